//! The traits that you implement to train a model of your own: a [`Dataset`], a [`Task`] on it, [`Generate`] if the
//! model can generate text, and [`Stages`] if it can be computed in steps.
//!
//! A task knows its data, its model and its loss. It knows nothing of peers, rounds, gradients or optimizers, nor which
//! device it runs on.

mod dataset;
mod error;
mod finish;
mod follow;
mod generate;
mod pieces;
mod pruning;
mod scores;
mod stages;
mod tested;

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::Path;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::data::{Data, DataFile};
pub use annulus_core::{Digest, Layout, TensorRule};
pub use annulus_shaders::needs::Layer;
pub use dataset::{Dataset, Draw, InMemory, Rows};
pub(crate) use dataset::{batch_of, drawn};
pub use error::TaskError;
pub use finish::{FileTensor, Finished, Predict, Predicted, Scored, Tensors};
pub use follow::follow;
pub use generate::{Emit, Generate, Generating, Prompt};
pub use pieces::pieces;
pub use pruning::{Place, Pruning, Units, kept, without_units};
#[cfg(feature = "native")]
pub(crate) use scores::in_words;
pub use scores::{Eval, Metrics, Scores};
pub use stages::{Answering, Answers, HeldOut, Stages, WriteInSteps};
pub use tested::{Right, TestPart, Tested};
pub(crate) use tested::{floats, logarithms};

/// A model, its training data, and its loss.
///
/// All peers of a run must build the same model from the same data. They compare [`Dataset::digest`] and
/// [`Config`](Self::Config) to make sure.
pub trait Task: Send + Sync + Sized + 'static {
    /// A Burn module. Its float parameters are trained.
    type Model: Module;

    /// The training data: [`InMemory`] if it fits.
    type Dataset: Dataset;

    /// The task's settings: a struct with `#[serde(default, deny_unknown_fields)]`, each field of which can be set by
    /// `key=value`; `()` if there are none.
    type Config: Serialize + DeserializeOwned + Default;

    /// The task's name on the command line, such as `digits`.
    const NAME: &'static str;

    /// One line about it, for help texts.
    const ABOUT: &'static str = "";

    /// Run settings that suit the task, where they differ from the program's defaults: `key=value` as on the command
    /// line. A user's own settings take precedence.
    const SETTINGS: &'static [&'static str] = &[];

    /// Run settings for `annulus search`, in place of [`SETTINGS`](Self::SETTINGS): among them those by which several models with
    /// different settings train side by side. Empty: the task searches nothing.
    const SEARCH: &'static [&'static str] = &[];

    /// What models of this task predict from, as a person names it, such as `NEW.csv`: set it where [`finish`](Self::finish) and
    /// [`predictor`](Self::predictor) are implemented.
    const PREDICTS: Option<&'static str> = None;

    /// Endings of data files, such as `csv`, for which this is the task where the user names none.
    const FILES: &'static [&'static str] = &[];

    /// The name of the file that [`pack`](Self::pack) makes of the user's data; none: the run learns from the data itself.
    const PACKED: Option<&'static str> = None;

    /// Whether inner steps ([`stages`](Self::stages)) need this file of the run's data, such as the model itself. A peer that
    /// computes nothing else fetches only such files. None: they need no file at all.
    const INNER: Option<fn(&str) -> bool> = None;

    /// Why this program alone cannot compute the model, and how to take part; none: it can. Such a model has an outside process
    /// compute it on each member (`--external`).
    const ELSEWHERE: Option<&'static str> = None;

    /// Help for the fields of [`Config`](Self::Config): the form of each, such as `hidden=N`, and one line.
    const HELP: &'static [(&'static str, &'static str)] = &[];

    /// Whether this is the task for a folder of data where the user names none.
    fn is_for(folder: &Path) -> bool {
        let _ = folder;
        false
    }

    /// Whether the user's data must be packed, where [`PACKED`](Self::PACKED) names a file.
    fn packs(data: &Path) -> bool {
        data.is_dir()
    }

    /// Turns the user's data into the file [`PACKED`](Self::PACKED), from which the run learns instead: lossy or slow work, such
    /// as decoding pictures, once, by the peer that founds the run. [`new`](Self::new) gets that file, here and on all peers.
    /// `tell` hears how many of how many steps are done.
    ///
    /// # Errors
    ///
    /// If the data cannot be used.
    fn pack(
        config: &Self::Config,
        data: &Path,
        tell: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<u8>, TaskError> {
        let _ = (config, tell);
        Err(format!("the task {} packs no data such as {}", Self::NAME, data.display()).into())
    }

    /// Loads the data. `data` is the user's file or folder, if any: on disk, or in the memory of a tab that has fetched
    /// it from a peer. Only files that are read here are sent to peers that lack them.
    ///
    /// # Errors
    ///
    /// If the settings make no sense or the data cannot be read.
    fn new(config: Self::Config, data: Option<&Data>) -> Result<Self, TaskError>;

    /// Makes the task for a peer that computes only inner steps ([`stages`](Self::stages)), which need no samples: a model with
    /// this layout, and any data set of at least one sample. `data` has the files of [`INNER`](Self::INNER). The default calls
    /// [`new`](Self::new), which suits models whose shape does not depend on the samples.
    ///
    /// # Errors
    ///
    /// As there.
    fn inner(config: Self::Config, layout: &Layout, data: Option<&Data>) -> Result<Self, TaskError> {
        let _ = layout;
        Self::new(config, data)
    }

    /// The training data.
    fn dataset(&self) -> &Self::Dataset;

    /// A new model on `device`. Random initial parameters come from Burn's initializers, which are seeded before the
    /// call.
    fn model(&self, device: &Device) -> Self::Model;

    /// The mean loss over a batch, as a tensor of one element with gradients. Put the batch on `device`, where the
    /// model is.
    fn loss(&self, model: &Self::Model, batch: Batch<Self>, device: &Device) -> Tensor<1>;

    /// How a round changes a tensor, by its name. None, the default: the optimizer steps it, and weight decay is for those with
    /// two or more axes.
    ///
    /// With [`TensorRule::Mean`] it follows a statistic of the batch instead of being trained, such as batch norm's running mean.
    /// Its parameter must require gradients, and [`loss`](Self::loss) must call [`follow`] for it. The value then moves by `rate`
    /// times its distance from the mean of all members' statistics. A model that is computed in [`stages`](Self::stages) cannot
    /// have such tensors yet.
    fn rule(&self, name: &str) -> Option<TensorRule> {
        let _ = name;
        None
    }

    /// Asks for the held-out data, if data is streamed, keeps it from then on, and waits for so long at most. Returns whether it is
    /// here. The default is for data that is here as a whole.
    fn have_held_out(&self, wait: Duration) -> bool {
        let _ = wait;
        true
    }

    /// Scores of `model` on held-out data; none if there is none.
    fn evaluate(&self, model: &Self::Model, device: &Device) -> Option<Scores> {
        let _ = (model, device);
        None
    }

    /// The generator, if the model has one: return `Some(self)` if the task implements [`Generate`].
    fn generator(&self) -> Option<&dyn Generate<Self::Model>> {
        None
    }

    /// The loss in steps, if the model can be split over machines: return `Some(self)` if the task implements
    /// [`Stages`].
    fn stages(&self) -> Option<&dyn Stages<Self::Model, Batch<Self>>> {
        None
    }

    /// The layers of the model, so that a device compiles only those kernels of ours that they launch. The default is
    /// all of them, which takes long on a software GPU.
    fn layers(&self) -> Vec<Layer> {
        Layer::all()
    }

    /// What another program needs to use an exported model, beside the names and shapes of its tensors: sizes that the settings
    /// leave open, a vocabulary, how inputs are made. `annulus export` writes it into the file.
    fn metadata(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What the task made of the data, in lines for a person to check before the run begins; empty: nothing to tell.
    fn description(&self) -> String {
        String::new()
    }

    /// Samples per step that suit the data, where the user names none.
    fn suited_batch(&self) -> Option<NonZeroU32> {
        None
    }

    /// Rounds that suit the data, where the user names no end of the run.
    fn suited_rounds(&self) -> Option<NonZeroU64> {
        None
    }

    /// How long a run may take, where the user says. It then gets as many rounds as fit.
    fn time(&self) -> Option<Duration> {
        None
    }

    /// Judges a trained model on data that it never saw, and tells what its file must carry to predict without the run.
    ///
    /// # Errors
    ///
    /// If the tensors are not the model's.
    fn finish(&self, tensors: &Tensors) -> Result<Option<Finished>, TaskError> {
        let _ = tensors;
        Ok(None)
    }

    /// Makes a predictor from a model file: its metadata ([`metadata`](Self::metadata) and [`Finished::metadata`]) and its
    /// tensors. None if the task predicts nothing.
    ///
    /// # Errors
    ///
    /// If the file lacks something.
    fn predictor(
        metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<Box<dyn Predict>>, TaskError> {
        let _ = (metadata, tensors);
        Ok(None)
    }

    /// A predictor with the model as it stands while the run goes on. It answers as the model file would that the run wrote now, on
    /// this machine's processor. None if the task predicts nothing.
    ///
    /// # Errors
    ///
    /// If the tensors are not the model's.
    fn live(&self, tensors: &Tensors) -> Result<Option<Box<dyn Predict>>, TaskError> {
        let _ = tensors;
        Ok(None)
    }

    /// The answers of a trained model to the test part, computed on this machine's processor, so that it can be compared with
    /// another model of the task. `metadata` and `tensors` are those of a model file. None if there is no test part.
    ///
    /// # Errors
    ///
    /// If the tensors are not the model's.
    fn test<'a>(
        &'a self,
        metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<TestPart<'a>>, TaskError> {
        let _ = (metadata, tensors);
        Ok(None)
    }

    /// The ONNX file that the model came as, with these tensors in place of its own; none if it came as no such file.
    ///
    /// # Errors
    ///
    /// If the data lacks the file, or the tensors are not the model's.
    fn onnx(data: &Data, tensors: &Tensors) -> Result<Option<Vec<u8>>, TaskError> {
        let _ = (data, tensors);
        Ok(None)
    }

    /// A trained model as a GGUF file, from its metadata and tensors; none if llama.cpp has no such architecture. `halves`:
    /// matrices become halves, unless they are quantized.
    ///
    /// # Errors
    ///
    /// If the model file lacks something.
    fn gguf(
        metadata: &BTreeMap<String, String>,
        tensors: &[FileTensor],
        halves: bool,
    ) -> Result<Option<Vec<u8>>, TaskError> {
        let _ = (metadata, tensors, halves);
        Ok(None)
    }

    /// What to take out of a trained model so that about a share `keep` of its units stays, from its settings and its file's
    /// metadata; none if the settings have no smaller model.
    ///
    /// # Errors
    ///
    /// If the model file lacks something.
    fn pruning(
        config: &Self::Config,
        metadata: &BTreeMap<String, String>,
        keep: f64,
    ) -> Result<Option<Pruning<Self::Config>>, TaskError> {
        let _ = (config, metadata, keep);
        Ok(None)
    }

    /// Into how many pieces a batch of this size is divided for a processor's cores. It must depend on nothing else:
    /// sums are rounded piece by piece, and every machine must get the same bits. It must be 1 if the loss draws random
    /// numbers. [`pieces()`] divides by what a model multiplies.
    fn pieces(&self, samples: usize) -> usize {
        let _ = samples;
        1
    }

    /// Bytes that a pass on a processor takes at least for this many samples, beside weights and gradients; 0: not known.
    fn pass_bytes(&self, samples: u32) -> u64 {
        let _ = samples;
        0
    }

    /// Whether the loss draws random numbers, as dropout does.
    fn draws(&self) -> bool {
        false
    }

    /// Whether to keep fewer activations in memory and to recompute them in the backward pass: slower, for machines
    /// with little memory. The result is the same.
    fn recompute(&self) -> bool {
        false
    }
}

/// A batch of a task's data.
pub type Batch<T> = <<T as Task>::Dataset as Dataset>::Batch;
