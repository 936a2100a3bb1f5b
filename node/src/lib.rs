//! A participant in Annulus, the portable distributed trainer: a model written with Burn, trained on all
//! the machines that you have, of any make, without a master.
//!
//! To train a model of your own, implement [`Task`](task::Task) and hand it to [`run`]: that is a whole
//! node binary, with every command of `annulus`.
//!
//! Read in this order: [`task`] (what a user implements), [`trainer`] (a model as one flat vector),
//! [`provision`] (how data reaches who lacks it), [`link`] (what a transport implements), [`driver`] (what
//! moves the protocol of `annulus-core`), [`native`] (what needs an operating system), [`cli`] (the command line).

pub mod data;
pub mod device;
pub mod driver;
pub mod events;
pub mod hello;
pub mod link;
pub mod options;
pub mod provision;
pub mod recipe;
pub mod replay;
pub mod task;
pub mod tasks;
pub mod telling;
pub mod ticket;
pub mod trainer;

#[cfg(feature = "native")]
pub mod cli;
#[cfg(feature = "native")]
pub mod native;

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
    cli::main(&native::machine::Machine::new(vec![recipe::Recipe::of::<T>()]))
}
