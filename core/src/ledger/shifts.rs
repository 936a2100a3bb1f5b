//! Planned moves in a split run: a member that goes from one span to another, or a new cut. `keepers/shift.rs`
//! works out which would help.

use crate::base::id::{PeerId, Round};
use crate::run::config::Manifest;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU16;

/// A change must make the slowest member's work shorter by more than this fraction, ...
pub(crate) const GAIN: u32 = 5;

/// ... must win back its cost within this many rounds, with as many before the next change, ...
pub(crate) const ROUNDS: Round = 20;

/// ... and this many rounds in a row must ask for it, since measured speeds are noisy.
pub(crate) const ASKS: u8 = 3;

/// A planned change of who holds what, which makes rounds shorter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shift {
    /// The change.
    pub goal: Goal,
    /// How much shorter the slowest member's work becomes, in percent.
    pub shorter: u8,
}

/// The kinds of change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// A member goes from one span to another.
    Move(Move),
    /// The model gets a new cut.
    Cut(Recut),
}

/// A new cut of a model, into the same number of spans with the same holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recut {
    /// The number of steps of each span.
    pub spans: Vec<NonZeroU16>,
    /// The holders, before and after, with their spans.
    pub holders: Vec<(PeerId, Vec<u16>)>,
    /// The cut is in force, but its holders still have to drop the parts of the old one.
    pub in_force: bool,
}

impl Recut {
    /// The spans of a member, if it was one of the holders when the change began.
    pub(crate) fn of(&self, peer: PeerId) -> Option<&[u16]> {
        let holder = self.holders.iter().find(|(holder, _)| *holder == peer)?;
        Some(&holder.1)
    }
}

/// A member that goes from one span to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The member.
    pub peer: PeerId,
    /// The span that it drops.
    pub from: u16,
    /// The span that it takes.
    pub to: u16,
}

/// The change under way, if any, and how long the holdings have been stable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shifts {
    /// The change under way.
    pub under_way: Option<Shift>,
    /// The round in which it began or, without one, since which the holdings have not changed.
    pub since: Round,
    /// Rounds in a row that asked for a change.
    asks: u8,
}

impl Shifts {
    /// No change under way, and none wanted for a while.
    pub(crate) fn none(since: Round) -> Self {
        Self {
            since,
            ..Self::default()
        }
    }

    /// Notes the change that another round asks for, if any.
    pub(crate) fn asked(&mut self, shift: Option<Shift>, round: Round) {
        self.asks = if shift.is_some() { self.asks + 1 } else { 0 };
        if self.asks == ASKS {
            *self = Self {
                under_way: shift,
                ..Self::none(round)
            };
        }
    }

    /// Notes another round in which the run could not continue. Whether there were several in a row.
    pub(crate) fn waited(&mut self) -> bool {
        self.asks += 1;
        self.asks >= ASKS
    }

    /// The change that began in this round, if it is under way.
    pub(crate) fn begun(&self, round: Round) -> Option<&Shift> {
        self.under_way.as_ref().filter(|_| self.since == round)
    }

    /// The member that is to go to another span.
    pub(crate) fn next_move(&self) -> Option<Move> {
        match self.under_way.as_ref()?.goal {
            Goal::Move(goes) => Some(goes),
            Goal::Cut(_) => None,
        }
    }

    /// The new cut under way, whether or not it is in force.
    pub(crate) fn recut(&self) -> Option<&Recut> {
        match &self.under_way.as_ref()?.goal {
            Goal::Cut(recut) => Some(recut),
            Goal::Move(_) => None,
        }
    }

    /// Whether a run's ledger can have reached it.
    pub(crate) fn is_sound(
        &self,
        round: Round,
        manifest: &Manifest,
        is_member: impl Fn(PeerId) -> bool,
    ) -> bool {
        let Some(split) = &manifest.split else {
            return *self == Self::default();
        };
        let is_span = |span: u16| usize::from(span) < split.spans.len();
        let shift = self.under_way.as_ref().is_none_or(|shift| {
            let goal = match &shift.goal {
                Goal::Move(Move { peer, from, to }) => {
                    is_span(*from) && is_span(*to) && from != to && is_member(*peer)
                }
                Goal::Cut(Recut { spans, holders, .. }) => {
                    let mut held = holders.iter().flat_map(|(_, held)| held);
                    split.can_be(spans)
                        && holders.is_sorted_by(|a, b| a.0 < b.0)
                        && holders
                            .iter()
                            .all(|(peer, held)| is_member(*peer) && held.is_sorted_by(|a, b| a < b))
                        && held.all(|span| is_span(*span))
                }
            };
            goal && shift.shorter <= 100
        });
        shift && self.since <= round && self.asks < ASKS
    }
}
