//! Settings of a model that came as a file.

use super::samples::HeldOutBy;
use serde::{Deserialize, Serialize};

/// Settings of [`ModelFile`](super::ModelFile).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelFileConfig {
    /// Share of the samples that are held out.
    pub held_out: f64,
    /// Which these are.
    pub held_out_by: HeldOutBy,
    /// Whether to take a file that was made for inference as it is.
    pub as_is: bool,
    /// The file of the folder whose weights the run starts from; empty: those of the model.
    pub init: String,
    /// Whether samples are read when they are needed: by a peer that lacks them from others, while it trains.
    pub stream: bool,
}

impl Default for ModelFileConfig {
    fn default() -> Self {
        Self {
            held_out: 0.1,
            held_out_by: HeldOutBy::Draw,
            as_is: false,
            init: String::new(),
            stream: false,
        }
    }
}
