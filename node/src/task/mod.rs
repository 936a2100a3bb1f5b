//! What a user implements to train a model of their own: a [`Dataset`], a [`Task`] on it, if the model can write
//! [`Generate`], and if it can be computed in steps [`Stages`].
//!
//! A task knows its data, its model and its loss. It knows nothing of peers, rounds, gradients or
//! optimizers, nor which device it runs on.

mod dataset;
mod error;
mod generate;
mod scores;
mod stages;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::data::{Data, DataFile};
pub use annulus_core::{Digest, Layout};
pub use annulus_shaders::needs::Layer;
pub use dataset::{Dataset, InMemory};
pub use error::TaskError;
pub use generate::{Emit, Generate, Generating, Prompt};
pub use scores::{Eval, Scores};
pub use stages::{Answering, Answers, HeldOut, Stages, WriteInSteps};

/// A model, the data it learns from, and the loss that says how well.
///
/// All peers of a run must build the same model from the same data; [`Dataset::digest`] and
/// [`Config`](Self::Config) are how they notice if they do not.
pub trait Task: Send + Sync + Sized + 'static {
    /// A Burn module. Its float parameters are what is trained.
    type Model: Module;

    /// What it learns from: [`InMemory`] if that fits.
    type Dataset: Dataset;

    /// The task's settings: a struct with `#[serde(default, deny_unknown_fields)]`, each field of
    /// which can be set by `key=value`; `()` if there are none.
    type Config: Serialize + DeserializeOwned + Default;

    /// The name under which the task is chosen, such as `digits`.
    const NAME: &'static str;

    /// One line about it, for help texts.
    const ABOUT: &'static str = "";

    /// Settings of a run that suit it, where they differ from the program's: `key=value` as on the command line.
    /// What a user sets wins.
    const SETTINGS: &'static [&'static str] = &[];

    /// Loads the data; `data` is the file or folder that the user gave, if any: on disk, or in the memory of a tab that
    /// has fetched it from a peer. Only the files that are asked for here are handed to peers that lack them.
    ///
    /// # Errors
    ///
    /// If the settings make no sense or the data cannot be read.
    fn new(config: Self::Config, data: Option<&Data>) -> Result<Self, TaskError>;

    /// For who computes steps between the first and the last alone ([`stages`](Self::stages)), which need no data: a task whose
    /// model has this layout, with any data set of at least one sample. Without data [`new`](Self::new) makes such a one if the
    /// model's shape does not depend on them.
    ///
    /// # Errors
    ///
    /// As there.
    fn without_data(config: Self::Config, layout: &Layout) -> Result<Self, TaskError> {
        let _ = layout;
        Self::new(config, None)
    }

    /// What to train on.
    fn dataset(&self) -> &Self::Dataset;

    /// A fresh model on `device`. Random initial parameters come from Burn's initializers, which
    /// are seeded before the call.
    fn model(&self, device: &Device) -> Self::Model;

    /// The mean loss over a batch, as a tensor of one element that gradients can be taken of. The model is on `device`,
    /// where the batch is to go.
    fn loss(&self, model: &Self::Model, batch: Batch<Self>, device: &Device) -> Tensor<1>;

    /// How good `model` is on held-out data. Without held-out data, nothing.
    fn evaluate(&self, model: &Self::Model, device: &Device) -> Option<Scores> {
        let _ = (model, device);
        None
    }

    /// What writes, if the model can: `Some(self)` for a task that implements [`Generate`].
    fn generator(&self) -> Option<&dyn Generate<Self::Model>> {
        None
    }

    /// Its loss in steps, if its model can be spread over machines: `Some(self)` for a task that implements [`Stages`].
    fn stages(&self) -> Option<&dyn Stages<Self::Model, Batch<Self>>> {
        None
    }

    /// What its model is made of, so that a device is asked for no other kernels of ours than these layers launch. If
    /// it is not said: all that there are, which takes long where a program plays the GPU.
    fn layers(&self) -> Vec<Layer> {
        Layer::all()
    }

    /// How many pieces a batch of so many samples is cut into, for the cores of a processor to work on at once. It must
    /// depend on nothing else: sums are rounded piece by piece, and every machine is to get the same bits. It must be 1
    /// where the loss draws random numbers.
    fn pieces(&self, samples: usize) -> usize {
        let _ = samples;
        1
    }

    /// Whether to keep less of the way forward in memory and to compute it again on the way back: slower, for where
    /// memory is short. The result is the same.
    fn recompute(&self) -> bool {
        false
    }
}

/// A batch of a task's data.
pub type Batch<T> = <<T as Task>::Dataset as Dataset>::Batch;
