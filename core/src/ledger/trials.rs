//! What a member's shares have shown of its device, for who hands the next ones out.

use crate::base::id::Round;
use serde::{Deserialize, Serialize};

/// What a member's shares have shown of its device: a speed is only what it says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trials {
    /// Whether its last share gave samples.
    pub delivered: bool,
    /// Shares in a row that gave none.
    pub refused: u8,
    /// Before this round it gets no share, if others can do the work.
    pub rests_until: Round,
}

/// Doublings of a member's rest, at most: a thousand rounds.
const LONGEST_REST: u8 = 10;

impl Trials {
    /// After a round in which it had a share.
    pub(crate) fn after(self, round: Round, weight: u32) -> Self {
        if weight > 0 {
            return Self {
                delivered: true,
                ..Self::default()
            };
        }
        let refused = self.refused.saturating_add(1);
        Self {
            delivered: false,
            refused,
            rests_until: round + 1 + (1 << refused.min(LONGEST_REST)),
        }
    }
}
