//! What the commands ask of the rest of the crate. One implementor, where tasks, trainer, links and checkpoints come
//! together; the commands know nothing of those.

use super::{bench, eval, replay, sample};
use crate::events::Event;
use crate::offline::recompute::{Progress, ReplayReport};
use crate::options::{JoinOptions, TrainOptions};
use crate::task::Eval;
use serde::Serialize;
use serde_json::{Map, Value};

/// Why something could not be done, in words that say what to do.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Takes what a run tells, as it happens.
pub type Sink<'a> = &'a mut (dyn FnMut(Event) + Send);

/// A participant, as the command line sees it.
pub trait Node {
    /// The tasks that this program knows. The first is the default.
    fn tasks(&self) -> Vec<TaskInfo>;

    /// The adapters that this machine has.
    fn adapters(&self) -> Vec<Adapter>;

    /// Compiles every training kernel on the best adapter: how many there are; nothing without an adapter.
    fn compile_kernels(&self) -> Result<Option<usize>, Failure>;

    /// What a run would need, without starting it.
    fn plan(&self, options: &TrainOptions) -> Result<Plan, Failure>;

    /// Starts or resumes a run, until it ends or this peer is asked to leave it (Ctrl-C).
    fn train(&self, options: TrainOptions, sink: Sink<'_>) -> Result<(), Failure>;

    /// Takes part in a run, until it ends or this peer is asked to leave it.
    fn join(&self, options: JoinOptions, sink: Sink<'_>) -> Result<(), Failure>;

    /// Evaluates a run's newest checkpoint: its round, and how good it is.
    fn eval(&self, args: &eval::Args) -> Result<(u64, Eval), Failure>;

    /// Writes text by a run's newest checkpoint, piece by piece.
    fn sample(&self, args: &sample::Args, emit: &mut dyn FnMut(&str)) -> Result<(), Failure>;

    /// Takes training steps for as long as there are lines on standard input.
    fn steps(&self, args: &bench::Steps) -> Result<(), Failure>;

    /// Recomputes a run.
    fn replay(
        &self,
        args: &replay::Args,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<ReplayReport, Failure>;
}

/// A task.
#[derive(Clone, Debug)]
pub struct TaskInfo {
    /// Its name.
    pub name: String,
    /// One line about it.
    pub about: String,
    /// Settings of a run that suit it, as `key=value`.
    pub run_settings: &'static [&'static str],
    /// Its configuration with the default values: its keys, and the type of each.
    pub config: Map<String, Value>,
}

/// A graphics adapter, or another device to compute on.
#[derive(Clone, Debug, Serialize)]
pub struct Adapter {
    /// What `--device` calls it.
    pub device: String,
    /// Its maker's name for it.
    pub name: String,
    /// Through which interface it is reached, such as Vulkan.
    pub backend: String,
    /// Hardware, or a processor that imitates it.
    pub software: bool,
    /// Limits that matter: name and value.
    pub limits: Vec<(String, u64)>,
}

/// What a run would need.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device that would compute, in words.
    pub device: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// Tensors that they come in.
    pub tensors: u64,
    /// Vectors that the optimizer keeps, each as long as the parameters.
    pub slots: u64,
    /// Samples in the training set.
    pub samples: u64,
}
