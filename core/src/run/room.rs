//! For how much of a model that is split over the members one of them has room.

use serde::{Deserialize, Serialize};

/// Parts that a span needs at most: all that a vector may have.
const ANY: u16 = 256;

/// For how many spans a member has room, and for which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// How many; 0 where no model is split.
    pub spans: u16,
    /// None with an end of the model, which alone read samples: it has no data.
    pub inner: bool,
    /// Only for such as need no more than so many parts. Those of the run's manifest never need more.
    pub parts: u16,
}

impl Room {
    /// For so many spans, whichever they are.
    pub const fn of(spans: u16) -> Self {
        Self {
            spans,
            inner: false,
            parts: ANY,
        }
    }

    /// For so many spans between the ends of a model.
    pub const fn inner(spans: u16) -> Self {
        Self {
            inner: true,
            ..Self::of(spans)
        }
    }

    /// Whether the samples are there that one of so many spans reads, if it reads any.
    pub fn reads(self, span: usize, spans: usize) -> bool {
        !self.inner || (span > 0 && span + 1 < spans)
    }

    /// The room that counts where a model has so many spans: for no more than there are for it.
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
