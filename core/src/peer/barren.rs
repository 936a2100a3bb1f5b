//! Detects that a run's numbers are beyond rescue: several rounds in a row counted nothing, and most members have
//! refused the results of their own devices. If only one device refuses, or one member claims so, others compute
//! the samples.

use crate::base::id::PeerId;
use std::collections::BTreeSet;

/// A single round without result may be a bad batch.
const ROUNDS: u32 = 2;

/// Rounds in a row in which nothing was finite.
#[derive(Debug, Default)]
pub(crate) struct Barren {
    rounds: u32,
    /// Members that had a share in them and counted none of it.
    refused_by: BTreeSet<PeerId>,
}

impl Barren {
    /// Notes a round: whether it counted samples, and the members that had a share and counted none of it.
    pub fn take(&mut self, counted: bool, refused_by: impl Iterator<Item = PeerId>) {
        if counted {
            *self = Self::default();
            return;
        }
        let mut refused_by = refused_by.peekable();
        // A round in which only dead members had a share says nothing about numbers.
        self.rounds += u32::from(refused_by.peek().is_some());
        self.refused_by.extend(refused_by);
    }

    /// Whether the run should end, given its full members.
    pub fn is_hopeless(&self, full: impl Iterator<Item = PeerId>) -> bool {
        let (refuse, count): (Vec<_>, Vec<_>) = full.partition(|member| self.refused_by.contains(member));
        self.rounds >= ROUNDS && refuse.len() > count.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(names: &[u8]) -> Vec<PeerId> {
        names.iter().map(|name| PeerId([*name; 32])).collect()
    }

    /// A round without result, and the members that refused.
    fn none(refused_by: &[u8]) -> (bool, Vec<PeerId>) {
        (false, peers(refused_by))
    }

    fn is_hopeless(rounds: &[(bool, Vec<PeerId>)], full: &[u8]) -> bool {
        let mut barren = Barren::default();
        for (counted, refused_by) in rounds {
            barren.take(*counted, refused_by.iter().copied());
        }
        barren.is_hopeless(peers(full).into_iter())
    }

    #[test]
    fn a_run_is_past_saving_when_most_members_refuse_in_rounds_that_come_to_nothing() {
        assert!(is_hopeless(&[none(&[1, 2, 3]), none(&[1, 2, 3])], &[1, 2, 3]));
        assert!(is_hopeless(&[none(&[1]), none(&[1])], &[1]));
        // One after the other.
        assert!(is_hopeless(&[none(&[1]), none(&[2])], &[1, 2, 3]));
        // It was a bad batch, or one member's claim.
        assert!(!is_hopeless(&[none(&[1, 2, 3])], &[1, 2, 3]));
        assert!(!is_hopeless(&[none(&[1]), none(&[1]), none(&[1])], &[1, 2]));
        // Something was counted in between, and nobody was there to refuse.
        let some = (true, peers(&[1]));
        assert!(!is_hopeless(&[none(&[1, 2]), some, none(&[1, 2])], &[1, 2]));
        assert!(!is_hopeless(&[none(&[1, 2]), none(&[])], &[1, 2]));
        // Contributors do not count.
        assert!(!is_hopeless(&[none(&[1, 7, 8]), none(&[7, 8])], &[1, 2, 3]));
    }
}
