//! Checks of what is said of a run, and that the settings fit runs whose members keep only parts of the state or of the
//! data.

use super::{MAX_PEERS, Manifest, ManifestError, Topology};
use crate::numeric::codec::Codec;

impl Manifest {
    /// Refuses words that would fill a page, or that a terminal obeys.
    pub(super) fn check_words(&self) -> Result<(), ManifestError> {
        let is_line = |text: &str, most| text.chars().count() <= most && !text.contains(char::is_control);
        let why = match (&*self.title, &*self.about) {
            (title, _) if !is_line(title, Self::TITLE_LIMIT) => {
                "a title has at most 80 characters, on one line"
            }
            (_, about) if !is_line(about, Self::ABOUT_LIMIT) => {
                "the text about a run has at most 500 characters, on one line"
            }
            _ => return Ok(()),
        };
        Err(ManifestError::Unusable(why))
    }

    /// Refuses chunks and stripes that data or batch are too small for.
    pub(super) fn check_chunks(&self) -> Result<(), ManifestError> {
        let why = match u64::from(self.chunk.get()) {
            chunk if chunk > 1 && chunk > self.samples.get() / 2 => {
                "a chunk must be at most half of the samples"
            }
            chunk if chunk > 1 && self.split.is_some() => {
                "data that is fetched while it is used does not go with split: each batch needs all of its data in one place"
            }
            _ if u32::from(self.stripes.get()) > self.batch.get() => {
                "stripes must be at most the batch, which takes a sample of each"
            }
            _ => return Ok(()),
        };
        Err(ManifestError::Unusable(why))
    }

    /// Refuses settings that need all moments where members have only some.
    pub(super) fn check_copies(&self) -> Result<(), ManifestError> {
        let why = match self.copies {
            None => return Ok(()),
            Some(_) if self.local.is_some() => {
                "copies goes with every batch a round, not with local_steps: their moments are each member's own"
            }
            Some(_) if self.topology != Some(Topology::Direct) => {
                "copies is for topology=direct: sums go straight to those who keep the moments"
            }
            Some(_) if self.optimizer.slots() == 0 => {
                "copies is for optimizers that keep moments, and sgd keeps none"
            }
            Some(copies) if usize::from(copies.get()) > MAX_PEERS => "copies must be at most 64",
            Some(_) => return Ok(()),
        };
        Err(ManifestError::Unusable(why))
    }

    /// Refuses cuts of a model that members cannot hold.
    pub(super) fn check_split(&self) -> Result<(), ManifestError> {
        let Some(split) = &self.split else { return Ok(()) };
        let why = match self.copies {
            _ if self.early_stop.is_some() => {
                "patience does not go with a split model, which is evaluated by nobody while it trains: leave patience out"
            }
            None => "split goes with copies: who keeps a part keeps its weights and moments",
            Some(_) if self.codec != Codec::F32 => "split is for codec=f32: sums travel as they are",
            Some(_) => return split.check(self.layout.len).map_err(ManifestError::Unusable),
        };
        Err(ManifestError::Unusable(why))
    }
}
