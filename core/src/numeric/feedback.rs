//! Error feedback: a member adds the rounding errors of its last sums to its next contribution, so that lossy
//! codecs delay values but never lose them. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient
//! Compression Schemes" (arXiv 1901.09847), algorithm 2, with sums of gradients in place of steps.
//!
//! Each member encodes every element once in an attempt: its own values, a partial sum around the ring, or, as the
//! owner, the finished sum. The error belongs to that member alone and is not part of the state. A member begins
//! with zero errors, and they end with its membership.

use crate::base::id::Digest;
use crate::numeric::codec::Codec;

/// The rounding errors of the last round that changed the state.
#[derive(Debug, Default)]
pub(crate) struct Feedback {
    /// They go into the round after this lineage.
    chain: Option<Digest>,
    errors: Vec<f32>,
}

impl Feedback {
    /// Whether they go into the round after a lineage. That is so if this peer was a member of that lineage's last
    /// round.
    pub fn goes_on(&self, chain: Digest) -> bool {
        self.chain == Some(chain)
    }

    /// Adds them to a contribution to that round.
    pub fn add_to(&self, values: &mut [f32]) {
        compensate(values, &self.errors);
    }

    /// Takes a committed round of which this peer stays a member. `errors` are those of the attempt, if it has
    /// changed the state. Without them, no contribution has taken effect and the old errors stay, unless the member
    /// has declared a reset.
    pub fn commit(&mut self, (before, after): (Digest, Digest), errors: Option<Vec<f32>>, anew: bool) {
        match errors {
            Some(errors) => self.errors = errors,
            None if anew || self.chain != Some(before) => self.errors.clear(),
            None => {}
        }
        self.chain = Some(after);
    }
}

/// Adds a member's errors to its values, where the result can enter a sum ([`Codec::LARGEST`]). Both are as long as
/// the vector; an empty slice means no errors.
pub fn compensate(values: &mut [f32], errors: &[f32]) {
    for (value, error) in values.iter_mut().zip(errors) {
        let sum = *value + error;
        *value = if sum.abs() <= Codec::LARGEST { sum } else { *value };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [Digest; 4] = [Digest([1; 32]), Digest([2; 32]), Digest([3; 32]), Digest([4; 32])];

    fn added(feedback: &Feedback, chain: Digest) -> [f32; 2] {
        let mut values = [1.0, 2.0];
        if feedback.goes_on(chain) {
            feedback.add_to(&mut values);
        }
        values
    }

    #[test]
    fn errors_go_into_the_next_round_of_their_lineage_and_no_other() {
        let mut feedback = Feedback::default();
        assert_eq!(added(&feedback, HERE[0]), [1.0, 2.0]);
        feedback.commit((HERE[0], HERE[1]), Some(vec![0.5, -0.25]), false);
        assert_eq!(added(&feedback, HERE[0]), [1.0, 2.0]);
        assert_eq!(added(&feedback, HERE[1]), [1.5, 1.75]);
        // In another attempt they are still there.
        assert_eq!(added(&feedback, HERE[1]), [1.5, 1.75]);
        // A round that does not change the state leaves them.
        feedback.commit((HERE[1], HERE[2]), None, false);
        assert_eq!(added(&feedback, HERE[1]), [1.0, 2.0]);
        assert_eq!(added(&feedback, HERE[2]), [1.5, 1.75]);
        // Between these rounds it was not a member.
        feedback.commit((HERE[0], HERE[3]), None, false);
        assert_eq!(added(&feedback, HERE[3]), [1.0, 2.0]);
        // In such a round it has declared a reset.
        feedback.commit((HERE[3], HERE[0]), Some(vec![0.5, -0.25]), true);
        assert_eq!(added(&feedback, HERE[0]), [1.5, 1.75]);
        feedback.commit((HERE[0], HERE[1]), None, true);
        assert_eq!(added(&feedback, HERE[1]), [1.0, 2.0]);
    }

    #[test]
    fn what_could_not_be_summed_stays_without() {
        let mut values = [Codec::LARGEST, Codec::LARGEST, 1.0];
        compensate(&mut values, &[1e30, -1e30, f32::INFINITY]);
        assert_eq!(values, [Codec::LARGEST, Codec::LARGEST - 1e30, 1.0]);
    }
}
