//! Settings of a run on pictures. The rest is guessed.

use crate::augment::Augment;
use annulus_table::ClassWeights;
use serde::{Deserialize, Serialize};

/// Exceptions to what is guessed, and the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The kind of model.
    pub model: Model,
    /// Channels of the first convolution, a multiple of 8; later ones have more.
    pub width: usize,
    /// Of a `resnet`, residual blocks for each of its three sizes.
    pub blocks: usize,
    /// Pixels in each direction to which pictures are brought; 0: guessed.
    pub size: usize,
    /// How training pictures are varied.
    pub augment: Augment,
    /// What to do with files that cannot be used.
    pub bad_files: BadFiles,
    /// Whether rare classes weigh more in the loss.
    pub class_weights: ClassWeights,
    /// The file of the data folder whose weights the run starts from; empty: random ones.
    pub init: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            model: Model::Cnn,
            // Enough for 98 % on MNIST; see docs/images.md.
            width: 16,
            blocks: 1,
            size: 0,
            augment: Augment::Auto,
            bad_files: BadFiles::Fail,
            class_weights: ClassWeights::Off,
            init: String::new(),
        }
    }
}

/// The models to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// Convolutions, each at half the size of the one before.
    Cnn,
    /// Residual blocks (He et al. 2015) with group norm.
    Resnet,
}

/// What to do with files that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadFiles {
    /// Report all of them and stop.
    Fail,
    /// Go on without them.
    Skip,
}
