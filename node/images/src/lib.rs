//! Pictures as training data: a folder for each class in, records of one size out, and what a trained model says of a picture.
//!
//! The founder of a run turns the folder into one file, once, by [`pack`] (feature `decode`). It decodes PNG and JPEG, takes the
//! middle square of each picture, and averages it down by [`square`]. The file has plain bytes: peers and tabs need no codec,
//! and get equal bits ([`Records`]). [`Augment`] flips and shifts a record as a seed says. [`Network`] computes a trained
//! model in plain loops, in one order. So a model file predicts the same bytes on every machine: [`Predictor`].

mod augment;
#[cfg(feature = "decode")]
mod decode;
mod describe;
#[cfg(feature = "decode")]
mod folder;
mod network;
mod options;
#[cfg(feature = "decode")]
mod pack;
mod plan;
mod predict;
mod records;
mod resize;
#[cfg(all(test, feature = "decode"))]
mod testing;
mod threads;

pub use augment::Augment;
#[cfg(feature = "decode")]
pub use decode::{Size, decode, size_of};
#[cfg(feature = "decode")]
pub use folder::is_of_pictures;
pub use network::Network;
pub use options::{BadFiles, Model, Options};
#[cfg(feature = "decode")]
pub use pack::pack;
pub use plan::{Block, GROUP, Plan};
pub use predict::{Predictor, TARGET};
pub use records::{FILE, Facts, Fault, ImageError, Records};
pub use resize::{Picture, square};
