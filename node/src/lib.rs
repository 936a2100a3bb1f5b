//! A participant in Annulus, the portable distributed trainer: a model written with Burn, trained on all
//! the machines that you have, of any make, without a master.
//!
//! To train a model of your own, implement [`Task`](task::Task) and hand it to [`run`]: that is a whole
//! node binary, with every command of `annulus`.
//!
//! Read in this order: [`task`] (what a user implements), [`trainer`] (a model as one flat vector), [`participant`] (the
//! loop that drives the protocol of `annulus-core`), [`net`] (links between peers), [`data`] (the run's data). Natively
//! there are also `store` (run folders), `offline` (commands on them), `web`, `bench` and `cli`.

pub mod device;
pub mod events;
pub mod offline;
pub mod options;
pub mod participant;
pub mod task;
pub mod task_factory;
pub mod tasks;
pub mod trainer;
pub mod view;

pub use annulus_net::{data, net};

#[cfg(feature = "native")]
pub mod bench;
#[cfg(feature = "native")]
pub mod cli;
#[cfg(feature = "native")]
mod ending;
#[cfg(feature = "native")]
pub mod forecast;
#[cfg(feature = "native")]
pub mod store;
#[cfg(all(test, feature = "native"))]
mod testing;
#[cfg(feature = "native")]
pub mod web;

/// A node binary for a task of one's own: everything that `annulus` can do, for this task.
///
/// ```no_run
/// # use annulus::tasks::digits::Digits as MyTask;
/// fn main() -> std::process::ExitCode {
///     annulus::run::<MyTask>()
/// }
/// ```
#[cfg(feature = "native")]
pub fn run<T: task::Task>() -> std::process::ExitCode {
    cli::main(&[task_factory::TaskFactory::of::<T>()])
}
