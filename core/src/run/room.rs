//! How many spans of a split model a member has room for.

use serde::{Deserialize, Serialize};

/// The most parts that a span can need: all that a vector may have.
const ANY: u16 = 256;

/// How many spans a member has room for, and which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The number of spans; 0 if no model is split.
    pub spans: u16,
    /// Set if the member has no data, and so cannot hold the first or the last span, which alone read samples.
    pub inner: bool,
    /// Only spans that need at most this many parts. The spans of the run's manifest never need more.
    pub parts: u16,
}

impl Room {
    /// Room for this many spans of any kind.
    pub const fn of(spans: u16) -> Self {
        Self {
            spans,
            inner: false,
            parts: ANY,
        }
    }

    /// Room for this many spans, except the first and the last.
    pub const fn inner(spans: u16) -> Self {
        Self {
            inner: true,
            ..Self::of(spans)
        }
    }

    /// Whether the member has the samples that one of `spans` spans reads, if it reads any.
    pub fn reads(self, span: usize, spans: usize) -> bool {
        !self.inner || (span > 0 && span + 1 < spans)
    }

    /// The same room, for at most `spans` spans.
    pub fn within(self, spans: usize) -> Self {
        let takes = (0..spans).filter(|span| self.reads(*span, spans)).count();
        Self {
            spans: self.spans.min(takes as u16),
            parts: self.parts.min(ANY),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_no_ends_has_room_between_them_alone() {
        let takes =
            |room: Room, spans: usize| (0..spans).filter(|s| room.reads(*s, spans)).collect::<Vec<_>>();
        assert_eq!(takes(Room::of(1), 3), [0, 1, 2]);
        assert_eq!(takes(Room::inner(1), 4), [1, 2]);
        for few in 0..3 {
            assert_eq!(takes(Room::inner(1), few), [0; 0]);
            assert_eq!(Room::inner(5).within(few).spans, 0);
        }
        assert_eq!(Room::inner(5).within(4), Room::inner(2));
        assert_eq!(Room::of(5).within(4), Room::of(4));
        assert_eq!(Room::inner(1).within(9), Room::inner(1));
        let beyond = Room {
            parts: 257,
            ..Room::of(1)
        };
        assert_eq!(beyond.within(2), Room::of(1));
    }
}
