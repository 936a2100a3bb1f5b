//! What the head says of members that go from one span of a split model to another. Who had better go is worked out elsewhere.

use crate::config::Manifest;
use crate::id::{PeerId, Round};
use crate::stages::plan::ASKS;
use serde::{Deserialize, Serialize};

/// A member that goes from one span to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shift {
    /// Who.
    pub peer: PeerId,
    /// The span that it lets go of.
    pub from: u16,
    /// The span that it takes.
    pub to: u16,
    /// By how much shorter the slowest member's work is then, in hundredths.
    pub shorter: u8,
}

/// Who goes to another span, and since when nothing of that kind has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shifts {
    /// Who is on its way.
    pub under_way: Option<Shift>,
    /// The round since which it is, or since which the same members hold the same.
    pub since: Round,
    /// How many rounds running have asked for one.
    asks: u8,
}

impl Shifts {
    /// Nobody is on the way, and nobody is asked to be for a while.
    pub(crate) fn none(since: Round) -> Self {
        Self {
            since,
            ..Self::default()
        }
    }

    /// Another round has asked for one, or for none.
    pub(crate) fn asked(&mut self, shift: Option<Shift>, round: Round) {
        self.asks = if shift.is_some() { self.asks + 1 } else { 0 };
        if self.asks == ASKS {
            *self = Self {
                under_way: shift,
                ..Self::none(round)
            };
        }
    }

    /// Who goes since this round.
    pub(crate) fn begun(&self, round: Round) -> Option<Shift> {
        self.under_way.filter(|_| self.since == round)
    }

    /// Whether a run's ledger can have come to it.
    pub(crate) fn is_sound(
        &self,
        round: Round,
        manifest: &Manifest,
        is_member: impl Fn(PeerId) -> bool,
    ) -> bool {
        let spans = manifest.split.as_ref().map_or(0, |split| split.spans.len());
        let is_span = |span: u16| usize::from(span) < spans;
        let shift = self.under_way.is_none_or(|shift| {
            let spans = is_span(shift.from) && is_span(shift.to) && shift.from != shift.to;
            spans && is_member(shift.peer) && shift.shorter <= 100
        });
        shift && self.since <= round && self.asks < ASKS && (spans > 0 || *self == Self::default())
    }
}
