//! Error feedback: what rounding takes from a member's sums is added to what it contributes next, so that nothing is lost for
//! good, only late. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes"
//! (arXiv 1901.09847), algorithm 2, with sums of gradients in place of steps.
//!
//! Every element is encoded by each member once in an attempt: as its own values, as a partial sum around the ring, or as
//! the finished sum, where the member is the owner. Whichever it is, the error is the member's own. It is nobody else's
//! business and no part of the state: a member begins without, and what it has dies with its membership.

use crate::base::id::Digest;
use crate::numeric::codec::Codec;

/// The rounding errors of the last round that changed the state.
#[derive(Debug, Default)]
pub(crate) struct Feedback {
    /// The lineage whose next round they go into.
    chain: Option<Digest>,
    errors: Vec<f32>,
}

impl Feedback {
    /// Whether they go into the round after a lineage: then this peer was a member of its last round.
    pub fn goes_on(&self, chain: Digest) -> bool {
        self.chain == Some(chain)
    }

    /// Adds them to a contribution to that round.
    pub fn add_to(&self, values: &mut [f32]) {
        compensate(values, &self.errors);
    }

    /// A round is committed, and a member of it still. With `errors`, those of the attempt, if it has changed the state;
    /// otherwise nothing of what was contributed has gone anywhere, and what there was stays, unless the member has said
    /// that it begins without.
    pub fn commit(&mut self, (before, after): (Digest, Digest), errors: Option<Vec<f32>>, anew: bool) {
        match errors {
            Some(errors) => self.errors = errors,
            None if anew || self.chain != Some(before) => self.errors.clear(),
            None => {}
        }
        self.chain = Some(after);
    }
}

/// Adds a member's errors to its values, where what comes out can enter a sum ([`Codec::LARGEST`]). Both are as long as the
/// vector; no errors are none.
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
        // Another attempt: they are there still.
        assert_eq!(added(&feedback, HERE[1]), [1.5, 1.75]);
        // A round that changes no state leaves them.
        feedback.commit((HERE[1], HERE[2]), None, false);
        assert_eq!(added(&feedback, HERE[1]), [1.0, 2.0]);
        assert_eq!(added(&feedback, HERE[2]), [1.5, 1.75]);
        // Between these it was no member.
        feedback.commit((HERE[0], HERE[3]), None, false);
        assert_eq!(added(&feedback, HERE[3]), [1.0, 2.0]);
        // In such a round it has said that it begins without.
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
