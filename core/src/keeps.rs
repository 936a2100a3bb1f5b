//! What is said of parts of the moments: by a header of those of its author, and by the head of each member's.

use crate::parts::{MOST_PARTS, PartSet};
use serde::{Deserialize, Serialize};

/// What a header says of the parts of its author. Nothing at all where each member keeps all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Keeps {
    /// Those whose moments it has, as they were before the round.
    pub kept: PartSet,
    /// Their digests, in order.
    pub digests: Vec<u64>,
    /// Those that it fetches: their sums are to pass it too.
    pub learns: PartSet,
    /// Those that it would rather not keep.
    pub drops: PartSet,
    /// It has waited long enough: it leaves although others do not keep what it does, and parts without a keeper begin anew.
    pub insists: bool,
}

impl Keeps {
    /// The digest of a part, if it is kept.
    pub fn digest(&self, part: u16) -> Option<u64> {
        let before = self.kept.iter().take_while(|p| *p < part).count();
        self.kept
            .contains(part)
            .then(|| self.digests.get(before).copied())?
    }

    /// Whether another keeps some of these parts, and has other moments.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let both = self.kept.and(&other.kept);
        both.iter().any(|part| self.digest(part) != other.digest(part))
    }

    /// Whether it is within its limits.
    pub(crate) fn is_bounded(&self) -> bool {
        self.digests.len() <= MOST_PARTS
    }
}

/// What a member has of the parts, as the head knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    /// Those whose moments it has.
    pub kept: PartSet,
    /// Those that it fetches.
    pub learns: PartSet,
    /// It wants to leave, once others keep what it does.
    pub leaves: bool,
}
