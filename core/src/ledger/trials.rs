//! The record of a member's past shares, used to allot the next ones.

use crate::base::id::Round;
use serde::{Deserialize, Serialize};

/// The record of a member's past shares. Its speed, in contrast, is only its own claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trials {
    /// Whether its last share gave samples.
    pub delivered: bool,
    /// Shares in a row without samples.
    pub refused: u8,
    /// The member gets no share before this round, if others can do the work.
    pub rests_until: Round,
}

/// Most doublings of a member's rest: a thousand rounds.
const LONGEST_REST: u8 = 10;

impl Trials {
    /// The record after a round in which it had a share.
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
