//! Splits equal pieces of work among unequally fast workers.

/// A worker's speed, at least 1, and the most pieces that it may get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub speed: u64,
    pub most: u64,
}

impl Limit {
    /// A worker without a limit.
    #[cfg(test)]
    pub fn none(speed: u64) -> Self {
        let most = u64::MAX;
        Self { speed, most }
    }
}

/// Splits `total` so that the last worker is done as early as possible. Each piece goes to the worker that would
/// finish it first, ties to the earlier one. This is list scheduling of equal jobs on uniform machines, where it is
/// optimal.
pub(crate) fn quotas(total: u64, limits: &[Limit]) -> Vec<u64> {
    let free = |limit: &&Limit| limit.most == u64::MAX;
    let sum: u128 = limits.iter().filter(free).map(|l| u128::from(l.speed)).sum();
    let limited = limits.iter().filter(|l| !free(l)).map(|l| l.most).sum::<u64>();
    // Each worker certainly gets this number. The few that are left are handed out one by one.
    let sure = u128::from(total.saturating_sub(limited));
    let floor = |limit: &Limit| match free(&limit) {
        true => (sure * u128::from(limit.speed) / sum) as u64,
        false => 0,
    };
    let mut quotas: Vec<u64> = limits.iter().map(floor).collect();
    let left = total - quotas.iter().sum::<u64>();
    for _ in 0..left {
        let open = (0..limits.len()).filter(|i| quotas[*i] < limits[*i].most);
        // At a speed s, a share of q takes q / s.
        let done = |i: usize, other: usize| u128::from(quotas[i] + 1) * u128::from(limits[other].speed);
        let Some(first) = open.reduce(|best, i| if done(i, best) < done(best, i) { i } else { best }) else {
            break;
        };
        quotas[first] += 1;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The time at which the last worker is done, as a fraction.
    fn makespan(quotas: &[u64], limits: &[Limit]) -> (u64, u64) {
        let spans = quotas.iter().zip(limits).map(|(q, l)| (*q, l.speed));
        spans
            .reduce(|a, b| if a.0 * b.1 < b.0 * a.1 { b } else { a })
            .unwrap()
    }

    /// The earliest possible end, found by trying all times at which a worker may be done.
    fn earliest(total: u64, limits: &[Limit]) -> (u64, u64) {
        let ends = limits.iter().flat_map(|l| (0..=total).map(move |q| (q, l.speed)));
        let enough = |&(q, s): &(u64, u64)| {
            let done = |l: &Limit| (q * l.speed / s).min(l.most);
            limits.iter().map(done).sum::<u64>() >= total
        };
        ends.filter(enough)
            .reduce(|a, b| if b.0 * a.1 < a.0 * b.1 { b } else { a })
            .unwrap()
    }

    proptest! {
        #[test]
        fn it_hands_out_all_and_is_done_as_early_as_can_be(
            total in 0u64..200,
            speeds in prop::collection::vec(1u64..2_000, 1..8),
        ) {
            let limits: Vec<Limit> = speeds.into_iter().map(Limit::none).collect();
            let quotas = super::quotas(total, &limits);
            prop_assert_eq!(quotas.iter().sum::<u64>(), total);
            let (is, best) = (makespan(&quotas, &limits), earliest(total, &limits));
            prop_assert_eq!(is.0 * best.1, best.0 * is.1, "{:?}", quotas);
        }

        #[test]
        fn it_keeps_to_limits_while_somebody_has_none(
            total in 0u64..10_000,
            speeds in prop::collection::vec((1u64..1_000_000_000_000, 0u64..3), 1..12),
        ) {
            let mut limits: Vec<Limit> = speeds.into_iter().map(|(speed, most)| Limit { speed, most }).collect();
            limits.push(Limit::none(1000));
            let quotas = super::quotas(total, &limits);
            prop_assert_eq!(quotas.iter().sum::<u64>(), total);
            prop_assert!(quotas.iter().zip(&limits).all(|(q, l)| *q <= l.most));
        }
    }

    #[test]
    fn who_cannot_do_a_sample_in_a_round_gets_none() {
        let four = |slow| quotas(48, &[464_000, 464_000, 464_000, slow].map(Limit::none));
        assert_eq!(four(464_000), [12, 12, 12, 12]);
        assert_eq!(four(46_400), [16, 16, 15, 1]);
        assert_eq!(four(4_640), [16, 16, 16, 0]);
        assert_eq!(four(464), [16, 16, 16, 0]);
    }
}
