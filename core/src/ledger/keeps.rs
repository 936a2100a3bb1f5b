//! The claims of headers, and the knowledge of the head, about each member's parts of the moments.

use crate::ledger::saved::{POINTS, Saved};
use crate::run::parts::{MOST_PARTS, PartSet};
use crate::run::room::Room;
use serde::{Deserialize, Serialize};

/// What a header says of its author's parts. Empty if every member keeps all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "SaidOfParts", into = "SaidOfParts")]
pub struct Keeps {
    /// The parts whose moments it has, as of before the round.
    pub kept: PartSet,
    /// The digests of the kept parts, in order.
    pub digests: Vec<u64>,
    /// The parts that it fetches. Their sums are sent to it too.
    pub learns: PartSet,
    /// The parts that it wants to drop.
    pub drops: PartSet,
    /// It has waited long enough: it leaves even if others do not keep its parts, and parts without a keeper are
    /// reset.
    pub insists: bool,
    /// In a split run: how many spans it has room for.
    pub room: Room,
    /// In a split run: the measured rate of its line in kilobytes per second; 0 if unknown.
    pub line: u32,
    /// In a split run: some of its results are not finite, so nothing of the round counts.
    pub refuses: bool,
    /// In a split run: it saves its parts as of before the round.
    pub saves: bool,
    /// In a split run, while nobody has the trained values of some parts: it has waited long enough for them ...
    pub waits: bool,
    /// ... and has these parts on its disk, ordered by name.
    pub saved: Vec<Saved>,
}

impl Keeps {
    /// The author's parts, as the head will know them.
    pub(crate) fn keeper(&self) -> Keeper {
        Keeper {
            kept: self.kept,
            room: self.room,
            line: self.line,
            ..Keeper::default()
        }
    }

    /// The digest of a part, if it is kept.
    pub fn digest(&self, part: u16) -> Option<u64> {
        let before = self.kept.iter().take_while(|p| *p < part).count();
        self.kept
            .contains(part)
            .then(|| self.digests.get(before).copied())?
    }

    /// Whether another header has a different digest for a part that both keep.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let both = self.kept.and(&other.kept);
        both.iter().any(|part| self.digest(part) != other.digest(part))
    }

    /// Bytes that it holds in memory, besides itself.
    pub(crate) fn bytes(&self) -> usize {
        8 * self.digests.len() + self.saved.len() * size_of::<Saved>()
    }

    /// Whether it is within its limits.
    pub(crate) fn is_bounded(&self) -> bool {
        self.digests.len() <= MOST_PARTS && self.saved.len() <= POINTS
    }
}

/// A member's parts, as the head knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "KnownOfParts", into = "KnownOfParts")]
pub struct Keeper {
    /// The parts whose moments it has.
    pub kept: PartSet,
    /// The parts that it fetches.
    pub learns: PartSet,
    /// It wants to leave, once others keep its parts.
    pub leaves: bool,
    /// In a split run: how many spans it has room for.
    pub room: Room,
    /// In a split run: the measured rate of its line in kilobytes per second; 0 if unknown.
    pub line: u32,
}

impl Keeper {
    /// Whether it holds a span, given the parts that each span needs: it has room for the span, and keeps all its
    /// parts.
    pub fn holds(&self, span: usize, spans: &[PartSet]) -> bool {
        self.room.takes(span, spans) && spans[span].without(&self.kept).is_empty()
    }
}

/// The encoded form in a header: flags and the number of spans in one integer.
#[derive(Clone, Serialize, Deserialize)]
struct SaidOfParts {
    kept: PartSet,
    digests: Vec<u64>,
    learns: PartSet,
    drops: PartSet,
    also: u32,
    line: u32,
    saved: Vec<Saved>,
}

/// The encoded form in a head.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct KnownOfParts {
    kept: PartSet,
    learns: PartSet,
    also: u32,
    line: u32,
}

const FIRST: u32 = 1;
const SECOND: u32 = 2;
const INNER: u32 = 4;
const THIRD: u32 = 8;
const FOURTH: u32 = 16;
/// Bits of flags, below the number of spans.
const FLAGS: u32 = 5;
/// Bits below the number of parts that a span may need, which is at most 256.
const SPANS: u32 = FLAGS + 16;

fn also(said: [bool; 4], room: Room) -> u32 {
    let bits = [FIRST, SECOND, THIRD, FOURTH].into_iter().zip(said);
    let flags = bits.fold(u32::from(room.inner) * INNER, |all, (bit, on)| {
        all | (u32::from(on) * bit)
    });
    flags | (u32::from(room.spans) << FLAGS) | (u32::from(room.parts) << SPANS)
}

fn room(also: u32) -> Room {
    Room {
        spans: (also >> FLAGS) as u16,
        inner: also & INNER != 0,
        parts: (also >> SPANS) as u16,
    }
}

impl From<Keeps> for SaidOfParts {
    fn from(said: Keeps) -> Self {
        Self {
            also: also([said.insists, said.refuses, said.saves, said.waits], said.room),
            kept: said.kept,
            digests: said.digests,
            learns: said.learns,
            drops: said.drops,
            line: said.line,
            saved: said.saved,
        }
    }
}

impl From<SaidOfParts> for Keeps {
    fn from(said: SaidOfParts) -> Self {
        Self {
            kept: said.kept,
            digests: said.digests,
            learns: said.learns,
            drops: said.drops,
            insists: said.also & FIRST != 0,
            refuses: said.also & SECOND != 0,
            saves: said.also & THIRD != 0,
            waits: said.also & FOURTH != 0,
            room: room(said.also),
            line: said.line,
            saved: said.saved,
        }
    }
}

impl From<Keeper> for KnownOfParts {
    fn from(keeper: Keeper) -> Self {
        Self {
            kept: keeper.kept,
            learns: keeper.learns,
            also: also([keeper.leaves, false, false, false], keeper.room),
            line: keeper.line,
        }
    }
}

impl From<KnownOfParts> for Keeper {
    fn from(known: KnownOfParts) -> Self {
        Self {
            kept: known.kept,
            learns: known.learns,
            leaves: known.also & FIRST != 0,
            room: room(known.also),
            line: known.line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_as_it_was_said() {
        for (insists, refuses, room) in [
            (false, false, Room::default()),
            (true, false, Room::of(1)),
            (false, true, Room::inner(256)),
            (true, true, Room::inner(65535)),
            (
                false,
                false,
                Room {
                    parts: 17,
                    ..Room::of(3)
                },
            ),
        ] {
            let said = Keeps {
                insists,
                refuses,
                saves: refuses,
                waits: insists,
                room,
                line: 12_500,
                ..Keeps::default()
            };
            let bytes = postcard::to_allocvec(&said).unwrap();
            assert_eq!(postcard::from_bytes::<Keeps>(&bytes).unwrap(), said);
            let known = Keeper {
                leaves: insists,
                room,
                line: 12_500,
                ..Keeper::default()
            };
            let bytes = postcard::to_allocvec(&known).unwrap();
            assert_eq!(postcard::from_bytes::<Keeper>(&bytes).unwrap(), known);
        }
    }
}
