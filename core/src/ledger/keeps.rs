//! What is said of parts of the moments: by a header of those of its author, and by the head of each member's.

use crate::ledger::saved::{POINTS, Saved};
use crate::run::parts::{MOST_PARTS, PartSet};
use crate::run::room::Room;
use serde::{Deserialize, Serialize};

/// What a header says of the parts of its author. Nothing at all where each member keeps all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "SaidOfParts", into = "SaidOfParts")]
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
    /// What it has room for, where the model is split over the members.
    pub room: Room,
    /// Likewise: kilobytes per second that its line carries, as far as that has shown; else 0.
    pub line: u32,
    /// Something of what it has computed is no number, where the model is split: then nothing of the round counts.
    pub refuses: bool,
    /// Where the model is split: it saves what it has had before the round.
    pub saves: bool,
    /// Likewise, while what was trained of some parts is with nobody: it has waited long enough for who has it ...
    pub waits: bool,
    /// ... and this is what it has on its disk, in the order of their names.
    pub saved: Vec<Saved>,
}

impl Keeps {
    /// What its author has.
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

    /// Whether another keeps some of these parts, and has other moments.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let both = self.kept.and(&other.kept);
        both.iter().any(|part| self.digest(part) != other.digest(part))
    }

    /// Bytes that it holds in memory, beside itself.
    pub(crate) fn bytes(&self) -> usize {
        8 * self.digests.len() + self.saved.len() * size_of::<Saved>()
    }

    /// Whether it is within its limits.
    pub(crate) fn is_bounded(&self) -> bool {
        self.digests.len() <= MOST_PARTS && self.saved.len() <= POINTS
    }
}

/// What a member has of the parts, as the head knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "KnownOfParts", into = "KnownOfParts")]
pub struct Keeper {
    /// Those whose moments it has.
    pub kept: PartSet,
    /// Those that it fetches.
    pub learns: PartSet,
    /// It wants to leave, once others keep what it does.
    pub leaves: bool,
    /// What it has room for, where the model is split over the members.
    pub room: Room,
    /// Likewise: kilobytes per second that its line carries, as far as that has shown; else 0.
    pub line: u32,
}

impl Keeper {
    /// Whether it holds one of a model's spans, which need these parts each: it takes it, and keeps all that it needs.
    pub fn holds(&self, span: usize, spans: &[PartSet]) -> bool {
        self.room.takes(span, spans) && spans[span].without(&self.kept).is_empty()
    }
}

/// As a header is encoded: what is said with yes or no, and for how many spans there is room, in one.
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

/// Likewise, as a head is.
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
/// Bits before the number of spans.
const FLAGS: u32 = 5;
/// Bits before the number of parts that one of them may need, which is 256 at most.
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
