//! The record of a member's past shares, used to allot the next ones.

use crate::base::id::Round;
use serde::{Deserialize, Serialize};

/// The record of a member's past shares. Its speed, in contrast, is only its own claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trials {
    /// Whether its last share gave samples.
    pub delivered: bool,
    /// Shares in a row without samples.
    pub refused: u8,
    /// The member gets no share before this round, if others can do the work.
    pub rests_until: Round,
    /// Of a guest: how often its share is halved.
    pub doubt: u8,
    /// Of a guest: its mean loss, and that of the full members in the same rounds.
    pub losses: Option<(f64, f64)>,
}

/// Samples after which half of a mean loss is new. A guess: single samples differ a lot.
const SAMPLES: f64 = 64.0;

/// Mean losses agree if neither is more than four times the other. A guess: a guest that computes from the same
/// weights is much closer, once it has computed more than a few samples.
const APART: f64 = 0.75;

/// Most halvings of a guest's share.
const MOST_DOUBT: u8 = 10;

/// Most doublings of a member's rest: a thousand rounds.
const LONGEST_REST: u8 = 10;

impl Trials {
    /// The record after a round in which it had a share. If it was late, its data may be there soon.
    pub(crate) fn after(self, round: Round, weight: u32, late: bool) -> Self {
        if weight > 0 {
            return Self {
                delivered: true,
                refused: 0,
                rests_until: 0,
                ..self
            };
        }
        let refused = if late { 1 } else { self.refused.saturating_add(1) };
        Self {
            delivered: false,
            refused,
            rests_until: round + 1 + (1 << refused.min(LONGEST_REST)),
            ..self
        }
    }

    /// The record of a guest after a round in which its samples had this sum of losses, and those of the full members
    /// this mean. A guest gets less while its losses are unlike theirs.
    pub(crate) fn compared(self, (weight, loss): (u32, f32), others: f64) -> Self {
        let samples = f64::from(weight);
        let new = samples / (samples + SAMPLES);
        let (own, of_others) = self.losses.unwrap_or((others, others));
        let own = own + (f64::from(loss) / samples - own) * new;
        let of_others = of_others + (others - of_others) * new;
        let agrees = (own - of_others).abs() <= APART * own.abs().max(of_others.abs());
        Self {
            doubt: match agrees {
                true => self.doubt.saturating_sub(1),
                false => (self.doubt + 1).min(MOST_DOUBT),
            },
            losses: Some((own, of_others)),
            ..self
        }
    }

    /// Whether records can lead to it.
    pub(crate) fn is_sound(&self) -> bool {
        let finite = |(own, others): (f64, f64)| own.is_finite() && others.is_finite();
        self.doubt <= MOST_DOUBT && self.losses.is_none_or(finite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_whose_losses_are_unlike_the_others_is_doubted_until_they_agree() {
        let after = |mut trials: Trials, rounds, mean: f32| {
            for _ in 0..rounds {
                trials = trials.compared((16, 16.0 * mean), 0.5);
            }
            assert!(trials.is_sound());
            trials
        };
        let mean = |rounds, mean| after(Trials::default(), rounds, mean).doubt;
        assert_eq!([0.2, 0.5, 1.5].map(|own| mean(100, own)), [0; 3]);
        assert_eq!([-3.0, 0.0, 5.0, 1e37].map(|own| mean(100, own)), [MOST_DOUBT; 4]);
        assert_eq!(mean(1, 1.5), 0, "one round of few samples says little");
        let doubted = after(Trials::default(), 100, 5.0);
        assert_eq!(after(doubted, 100, 0.5).doubt, 0);
        // A round in which it had no share changes nothing, and who gives nothing is not believed the more.
        assert_eq!(doubted.after(7, 0, false).doubt, MOST_DOUBT);
    }
}
