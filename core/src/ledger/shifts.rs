//! What the head says of a split model's spans that are to be held otherwise: a member that goes from one to another, or another
//! cut. Which had better be is worked out elsewhere.

use crate::base::id::{PeerId, Round};
use crate::run::config::Manifest;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU16;

/// Something is held otherwise only if that makes the slowest member's work shorter by more than one of so many parts ...
pub(crate) const GAIN: u32 = 5;

/// ... if that wins back what it costs within so many rounds; for as many nothing is changed again ...
pub(crate) const ROUNDS: Round = 20;

/// ... and if so many rounds running have asked for it: measured speeds are noisy.
pub(crate) const ASKS: u8 = 3;

/// What is to be held otherwise, since rounds are shorter then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shift {
    /// How it is to be.
    pub goal: Goal,
    /// By how much shorter the slowest member's work is then, in hundredths.
    pub shorter: u8,
}

/// How spans are to be held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// A member goes from one span to another.
    Move(Move),
    /// The model is cut otherwise.
    Cut(Recut),
}

/// Another cut of a model, in as many spans: those who hold them stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recut {
    /// How many steps each span has.
    pub spans: Vec<NonZeroU16>,
    /// Who holds which spans, now and then.
    pub holders: Vec<(PeerId, Vec<u16>)>,
    /// It is in force: what else those have is still to be let go of.
    pub in_force: bool,
}

impl Recut {
    /// The spans that a member holds and will hold, if it is one of those that did when this was begun.
    pub(crate) fn of(&self, peer: PeerId) -> Option<&[u16]> {
        let holder = self.holders.iter().find(|(holder, _)| *holder == peer)?;
        Some(&holder.1)
    }
}

/// A member that goes from one span to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Who.
    pub peer: PeerId,
    /// The span that it lets go of.
    pub from: u16,
    /// The span that it takes.
    pub to: u16,
}

/// What is to be held otherwise, and since when nothing of that kind has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shifts {
    /// What is on its way.
    pub under_way: Option<Shift>,
    /// The round since which it is, or since which the same members hold the same.
    pub since: Round,
    /// How many rounds running have asked for one.
    asks: u8,
}

impl Shifts {
    /// Nothing is on the way, and nothing is asked to be for a while.
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

    /// Another round has come in which the run could not go on: whether it has waited for several running.
    pub(crate) fn waited(&mut self) -> bool {
        self.asks += 1;
        self.asks >= ASKS
    }

    /// What has been on its way since this round.
    pub(crate) fn begun(&self, round: Round) -> Option<&Shift> {
        self.under_way.as_ref().filter(|_| self.since == round)
    }

    /// Who is to go to another span.
    pub(crate) fn next_move(&self) -> Option<Move> {
        match self.under_way.as_ref()?.goal {
            Goal::Move(goes) => Some(goes),
            Goal::Cut(_) => None,
        }
    }

    /// The cut that is to be, or is and has not come to rest.
    pub(crate) fn recut(&self) -> Option<&Recut> {
        match &self.under_way.as_ref()?.goal {
            Goal::Cut(recut) => Some(recut),
            Goal::Move(_) => None,
        }
    }

    /// Whether a run's ledger can have come to it.
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
