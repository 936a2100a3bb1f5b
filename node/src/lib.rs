//! Annulus trains a model written with Burn on all the machines that you have, of any make, without a master.
//!
//! Implement [`Task`]: data, model and loss. Then either make it a program of its own, with every command of `annulus`, by
//! [`run`]; or start it from your program by a [`Run`], as here:
//!
//! ```
//! use annulus::burn::module::Module;
//! use annulus::burn::nn::{Linear, LinearConfig};
//! use annulus::burn::tensor::{Device, Tensor};
//! use annulus::{Data, Event, InMemory, Run, RunOptions, Scores, Task, TaskError, burn};
//!
//! #[derive(Module, Debug)]
//! struct Line {
//!     linear: Linear,
//! }
//!
//! /// Learns to double a number.
//! struct Double(InMemory<f32>);
//!
//! impl Task for Double {
//!     type Model = Line;
//!     type Dataset = InMemory<f32>;
//!     type Config = ();
//!     const NAME: &'static str = "double";
//!
//!     fn new(_: (), _: Option<&Data>) -> Result<Self, TaskError> {
//!         Ok(Self(InMemory::new((0..64).map(|i| i as f32 / 64.0).collect())))
//!     }
//!
//!     fn dataset(&self) -> &InMemory<f32> {
//!         &self.0
//!     }
//!
//!     fn model(&self, device: &Device) -> Line {
//!         let linear = LinearConfig::new(1, 1).init(device);
//!         Line { linear }
//!     }
//!
//!     fn loss(&self, model: &Line, batch: Vec<f32>, device: &Device) -> Tensor<1> {
//!         let x = Tensor::<1>::from_floats(batch.as_slice(), device).unsqueeze_dim::<2>(1);
//!         (model.linear.forward(x.clone()) - x * 2.0).powi_scalar(2).mean()
//!     }
//!
//!     fn evaluate(&self, model: &Line, device: &Device) -> Option<Scores> {
//!         Some(self.loss(model, vec![0.25, 0.75], device).into())
//!     }
//! }
//!
//! let folder = std::env::temp_dir().join(format!("annulus-double-{}", std::process::id()));
//! let options = RunOptions::new(&folder)
//!     .device("cpu")
//!     .listen("127.0.0.1:0")
//!     .set("rounds", 20)
//!     .set("lr", 0.1);
//! let run = Run::start::<Double>(options)?;
//! let rounds = run.events().filter(|event| matches!(event, Event::Round(_)));
//! assert_eq!(rounds.count(), 20);
//! let done = run.wait()?.expect("it took part");
//! assert!(done.finished && done.loss < 1.0);
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Others take part by [`Run::join`], or `annulus join`, with the ticket in [`Event::Ready`].
//!
//! [`burn`] is the version of Burn that Annulus is built with. Depend on the same one, or use this.
//!
//! Read the modules in this order: [`task`] (what a user implements), [`trainer`] (a model as one flat vector),
//! [`participant`] (the loop that drives the protocol of `annulus-core`), [`net`] (links between peers), [`data`] (the run's
//! data). Natively there are also `store` (run folders), `offline` (commands on them), `web`, `bench` and `cli`.

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
pub use burn;
pub use data::Data;
pub use events::Event;
#[cfg(feature = "native")]
pub use participant::error::Error;
#[cfg(feature = "native")]
pub use run_handle::{Run, RunOptions};
pub use task::{Dataset, Generate, InMemory, Scores, Task, TaskError};

#[cfg(feature = "native")]
pub mod bench;
#[cfg(feature = "native")]
pub mod cli;
#[cfg(feature = "native")]
mod ending;
#[cfg(feature = "native")]
pub mod forecast;
#[cfg(feature = "native")]
mod run_handle;
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
