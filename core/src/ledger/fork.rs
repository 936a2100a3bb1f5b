//! Places in a lineage's past where members were lost, and where another lineage may have begun.

use crate::base::id::{Digest, PeerId};
use serde::{Deserialize, Serialize};

/// Most places that a head remembers, two for each time that members were lost.
pub(crate) const FORKS: usize = 32;

/// A place in a lineage's past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The lineage there.
    pub chain: Digest,
    /// Samples counted there.
    pub samples: u64,
    /// The members of the next round.
    pub members: Vec<PeerId>,
    /// Those of them that were lost there.
    pub lost: Vec<PeerId>,
}

/// Notes that members were lost at these places, the last of which is where the lineage stands. Losses at one place
/// add up, since different peers may be lost there at different times.
pub(crate) fn lose(forks: &mut Vec<Fork>, places: impl Iterator<Item = Fork>, lost: &[PeerId]) {
    for mut fork in places {
        if let Some(known) = forks.iter().position(|other| other.chain == fork.chain) {
            fork = forks.remove(known);
        }
        for peer in lost {
            if fork.members.contains(peer) && !fork.lost.contains(peer) {
                fork.lost.push(*peer);
            }
        }
        forks.push(fork);
    }
    while forks.len() > FORKS {
        forks.remove(least(forks));
    }
}

/// Two places are noted each time that a peer is lost.
const EACH: usize = 2;

/// The place that is needed least: the oldest whose lost peers were all lost once more. They had come back in between, so nobody
/// went on elsewhere from there. If there is none such, the oldest. The one without members is kept: it may be the only one that
/// all lineages of a run have in common.
fn least(forks: &[Fork]) -> usize {
    let came_back = |at: usize| {
        let again = |peer: &PeerId| {
            forks[at + 1..]
                .iter()
                .filter(|fork| fork.lost.contains(peer))
                .count()
                >= EACH
        };
        !forks[at].lost.is_empty() && forks[at].lost.iter().all(again)
    };
    let mut oldest = (0..forks.len()).filter(|at| !forks[*at].members.is_empty());
    oldest
        .clone()
        .find(|at| came_back(*at))
        .or(oldest.next())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn place(n: u8, members: &[u8]) -> Fork {
        Fork {
            chain: Digest([n; 32]),
            samples: n.into(),
            members: members.iter().map(|n| peer(*n)).collect(),
            lost: Vec::new(),
        }
    }

    #[test]
    fn a_peer_that_comes_and_goes_does_not_push_out_where_another_went() {
        let mut forks = Vec::new();
        let remembers = |forks: &[Fork], n: u8| forks.iter().any(|fork| fork.chain == Digest([n; 32]));
        lose(&mut forks, [place(0, &[])].into_iter(), &[]);
        lose(
            &mut forks,
            [place(1, &[1]), place(2, &[1, 2])].into_iter(),
            &[peer(1)],
        );
        for n in (3..=99).step_by(2) {
            lose(
                &mut forks,
                [place(n, &[2, 3]), place(n + 1, &[2, 3])].into_iter(),
                &[peer(3)],
            );
        }
        assert_eq!(forks.len(), FORKS);
        for n in [0, 1, 2, 99, 100] {
            assert!(remembers(&forks, n), "place {n}");
        }
        // Places that differ in nothing are forgotten in their order.
        for n in 101..=200 {
            lose(&mut forks, [place(n, &[n])].into_iter(), &[peer(n)]);
        }
        assert!(remembers(&forks, 0) && !remembers(&forks, 100) && remembers(&forks, 200));
    }
}
