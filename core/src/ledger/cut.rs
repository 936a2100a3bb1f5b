//! What members are given to compute, and how a share is cut into local steps: by the shares of all, so that unequal devices take unequal numbers
//! of equal steps. It says nothing of who takes them, or when.

use crate::base::id::PeerId;
use crate::numeric::optim::LocalSteps;
use crate::run::config::Manifest;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// The steps of one member's share, and their place in the run's schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Steps that the share is cut into.
    pub(crate) steps: u32,
    /// Samples in the share.
    pub(crate) share: u64,
    /// Samples that the run counts before the round.
    pub(crate) samples: u64,
    /// Samples handed out in it.
    pub(crate) allotted: u64,
    /// The largest share.
    pub(crate) largest: u64,
}

impl Cut {
    /// Of the member at a place among shares of so many samples, in a round of so many batches, before which so many samples
    /// are counted.
    pub(crate) fn new(shares: &[u64], place: usize, batches: NonZeroU32, samples: u64) -> Self {
        let (share, largest) = (shares[place], shares.iter().max().copied().unwrap_or(0).max(1));
        // Rounded; one at least.
        let most = u128::from(batches.get());
        let steps = (most * u128::from(share) + u128::from(largest) / 2) / u128::from(largest);
        Self {
            steps: steps.clamp(1, share.clamp(1, u64::from(LocalSteps::MOST)).into()) as u32,
            share,
            samples,
            allotted: shares.iter().sum(),
            largest,
        }
    }

    /// Whether a share of so many samples can have been cut so.
    pub(crate) fn is_sound(&self, share: u64, manifest: &Manifest) -> bool {
        let steps = (1..=LocalSteps::MOST).contains(&self.steps) && u64::from(self.steps) <= self.share;
        let shares = self.share == share && share <= self.largest && self.largest <= self.allotted;
        let most = manifest.most_samples();
        steps && shares && self.allotted <= most && self.samples <= manifest.target.get()
    }

    /// How many steps are taken before the round's parameters are known, where that is wanted: see [`LEAD`].
    pub(crate) fn lead(&self) -> u32 {
        // A share of one step would be late as a whole.
        if self.steps > 1 { LEAD } else { 0 }
    }
}

/// Steps that are taken before a round's parameters are known: each costs more learning than several more steps between two
/// exchanges do. nano on Tiny Shakespeare, four members, comes to a validation loss of 2.2 after 222 local batches, four a
/// round, if none of them is late, 224 if one is and 248 if two are; with eight a round 238, 250 and more than 300.
pub const LEAD: u32 = 1;

/// Samples to hand out again, as positions in the stream of shuffled epochs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleRange {
    /// First position.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// The member whose result for these was not finite. They are given up when another's is not either.
    pub refused_by: Option<PeerId>,
}

impl SampleRange {
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// What a member was given to compute ahead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// The member.
    pub peer: PeerId,
    /// What it was given.
    pub share: Vec<SampleRange>,
    /// How that is cut, where members take local steps.
    pub cut: Option<Cut>,
}
