//! The orders visit every sample once, look random, and are what they were.

use std::collections::HashSet;

use super::*;

fn shuffle(seed: u64, samples: u64) -> Shuffle {
    let samples = NonZeroU64::new(samples).unwrap();
    let stripes = Stripes::NONE;
    Shuffle {
        seed,
        samples,
        stripes,
    }
}

fn striped(samples: u64, chunk: u32, open: u16, batch: u32) -> Shuffle {
    Shuffle {
        stripes: Stripes {
            chunk: chunk.try_into().unwrap(),
            open: open.try_into().unwrap(),
            batch: batch.try_into().unwrap(),
        },
        ..shuffle(42, samples)
    }
}

fn epoch(shuffle: Shuffle, epoch: u64) -> Vec<u64> {
    let n = shuffle.samples.get();
    (epoch * n..(epoch + 1) * n)
        .map(|position| shuffle.index(position))
        .collect()
}

#[track_caller]
fn assert_permutation(order: &[u64]) {
    let mut seen = vec![false; order.len()];
    for index in order {
        let seen = &mut seen[*index as usize];
        assert!(!*seen, "{index} twice in an epoch of {}", order.len());
        *seen = true;
    }
}

/// Chi-square statistic of counts that should be equal.
fn chi_square(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts
        .iter()
        .map(|count| (*count as f64 - expected).powi(2) / expected)
        .sum()
}

/// Six standard deviations above the mean of the chi-square distribution.
fn limit(categories: usize) -> f64 {
    let freedom = (categories - 1) as f64;
    freedom + 6.0 * (2.0 * freedom).sqrt()
}

#[test]
fn each_epoch_visits_every_sample_once() {
    for n in 1..=300 {
        for number in 0..4 {
            assert_permutation(&epoch(shuffle(42, n), number));
        }
    }
    for n in [60_000, 65_535, 65_536, 65_537, 1_000_003] {
        assert_permutation(&epoch(shuffle(7, n), 3));
    }
}

#[test]
fn stripes_visit_every_sample_once() {
    for n in 1..=300 {
        for chunk in [1, 2, 3, 5, 8, 64] {
            for open in [1, 2, 3, 7, 64] {
                for batch in [1, 2, 5, 12, 64, 100] {
                    assert_permutation(&epoch(striped(n, chunk, open, batch), n % 3));
                }
            }
        }
    }
    assert_permutation(&epoch(striped(1_000_003, 256, 64, 512), 1));
    // Far too many to visit.
    let shuffle = striped(1_000_000_007, 256, 64, 96);
    let samples = (0..300_000).map(|i| shuffle.index(7_000_000_049 + i * 3_331));
    let samples: HashSet<u64> = samples
        .inspect(|sample| assert!(*sample < 1_000_000_007))
        .collect();
    assert_eq!(samples.len(), 300_000);
}

#[test]
fn chunks_of_one_sample_change_nothing() {
    for (open, batch) in [(1, 1), (7, 100), (64, 12)] {
        assert_eq!(epoch(striped(300, 1, open, batch), 2), epoch(shuffle(42, 300), 2));
    }
}

#[test]
fn a_place_in_the_batch_stays_with_its_stripe() {
    let shuffle = striped(3 * 4 * 8, 8, 4, 12);
    for place in 0..12 {
        let chunks: Vec<u64> = (0..8)
            .map(|round| shuffle.index(12 * round + place) / 8)
            .collect();
        // Turns of 3, 3 and 2 samples of each of four chunks, so the first two batches of a group keep to them.
        assert_eq!(chunks[0], chunks[1], "{place}: {chunks:?}");
    }
    // Where batches divide chunks, a place keeps to its chunk to the end.
    let shuffle = striped(512 * 256, 256, 48, 48);
    for place in 0..48 {
        let chunks: HashSet<u64> = (0..256)
            .map(|round| shuffle.index(48 * round + place) / 256)
            .collect();
        assert_eq!(chunks.len(), 1);
    }
}

#[test]
fn a_share_is_told_ahead_of_the_chunks_that_come_next() {
    let shuffle = striped(512 * 256, 256, 48, 48);
    let chunks = |positions: &[Range<u64>]| -> HashSet<u64> {
        let draws = shuffle.draws(positions).into_iter();
        draws.map(|draw| draw / 256).collect()
    };
    // Places 7 to 9 of each batch, and one that was open again.
    let share = |round: u64| [48 * round + 7..48 * round + 10, 40..41];
    for round in 0..512 {
        let ahead = shuffle.ahead(&share(round));
        assert_eq!(
            chunks(&ahead[..1]),
            chunks(&share(round + 128)[..1]),
            "round {round}"
        );
    }
    assert_ne!(chunks(&shuffle.ahead(&share(200))), chunks(&share(200)));
    assert!(self::shuffle(1, 100).ahead(&share(0)).is_empty());
}

#[test]
fn huge_epochs_stay_in_range_and_do_not_repeat() {
    for n in [1 << 32, (1 << 32) + 1, 1 << 63, u64::MAX] {
        let shuffle = shuffle(1, n);
        let mut seen = HashSet::new();
        for i in 0..50_000u64 {
            let index = shuffle.index(i * (n / 50_000));
            assert!(index < n && seen.insert(index));
        }
    }
    assert!(shuffle(1, 1000).index(u64::MAX) < 1000);
    assert_eq!(shuffle(9, 1).index(0), 0);
    assert_eq!(shuffle(9, 1).index(u64::MAX), 0);
}

#[test]
fn epochs_and_seeds_have_their_own_orders() {
    let orders: HashSet<_> = (0..50).map(|number| epoch(shuffle(5, 100), number)).collect();
    assert_eq!(orders.len(), 50);
    let orders: HashSet<_> = (0..50).map(|seed| epoch(shuffle(seed, 100), 0)).collect();
    assert_eq!(orders.len(), 50);
    // Seed s in epoch e + 1 is not seed s + 1 in epoch e.
    assert_ne!(epoch(shuffle(5, 100), 1), epoch(shuffle(6, 100), 0));
}

#[test]
fn a_draw_is_a_sample_in_an_epoch() {
    let shuffle = shuffle(5, 10);
    let draws = shuffle.draws(&[7..9, 18..23]);
    let expected = [7, 8, 18, 19, 20, 21, 22].map(|position| position / 10 * 10 + shuffle.index(position));
    assert_eq!(draws, expected);
    let all: HashSet<u64> = shuffle.draws(&[0..20, 20..50]).into_iter().collect();
    assert_eq!(all, (0..50).collect());
}

/// Over many epochs each sample stands at each position equally often.
#[test]
fn every_position_sees_every_sample_equally_often() {
    for n in [2, 3, 5, 8, 10, 33, 64] {
        let shuffle = shuffle(2026, n);
        let mut counts = vec![0; (n * n) as usize];
        for position in 0..n * 40_000 {
            counts[(position % n * n + shuffle.index(position)) as usize] += 1;
        }
        for (position, counts) in counts.chunks(n as usize).enumerate() {
            let got = chi_square(counts);
            assert!(got < limit(counts.len()), "n {n}, position {position}: {got}");
        }
    }
}

/// Over many epochs all orders of few samples come equally often.
#[test]
fn every_order_of_few_samples_comes_equally_often() {
    for (n, orders) in [(2, 2), (3, 6), (4, 24), (5, 120), (6, 720)] {
        let mut counts = std::collections::HashMap::new();
        for number in 0..orders * 200 {
            *counts.entry(epoch(shuffle(11, n), number)).or_insert(0) += 1;
        }
        let counts: Vec<u64> = counts.into_values().collect();
        assert_eq!(counts.len() as u64, orders, "n {n}");
        let got = chi_square(&counts);
        assert!(got < limit(counts.len()), "n {n}: {got}");
    }
}

/// Over many epochs all pairs of neighbours come equally often.
#[test]
fn neighbours_are_independent() {
    for n in [7, 20, 50] {
        let shuffle = shuffle(77, n);
        let mut counts = vec![0; (n * n) as usize];
        for number in 0..n * n * 100 {
            let (one, next) = (shuffle.index(number * n), shuffle.index(number * n + 1));
            counts[(one * n + next) as usize] += 1;
        }
        let (same, others): (Vec<_>, Vec<_>) =
            (0u64..).zip(counts).partition(|(pair, _)| pair / n == pair % n);
        assert!(same.iter().all(|(_, count)| *count == 0));
        let counts: Vec<u64> = others.into_iter().map(|(_, count)| count).collect();
        let got = chi_square(&counts);
        assert!(got < limit(counts.len()), "n {n}: {got}");
    }
}

/// Within one epoch the order shows no trace of the positions: neither where samples land, nor the step from one
/// to the next.
#[test]
fn one_epoch_looks_random() {
    const BINS: u64 = 16;
    for n in [10_000, 65_536, 100_003] {
        let order = epoch(shuffle(3, n), 0);
        let mut landed = vec![0; (BINS * BINS) as usize];
        let mut steps = vec![0; BINS as usize];
        let mut parity = vec![0; 4];
        for (position, pair) in (0u64..).zip(order.windows(2)) {
            landed[(position * BINS / n * BINS + pair[0] * BINS / n) as usize] += 1;
            steps[((pair[1] + n - pair[0]) % n * BINS / n) as usize] += 1;
            parity[(position % 2 * 2 + pair[0] % 2) as usize] += 1;
        }
        for counts in [landed, steps, parity] {
            let got = chi_square(&counts);
            assert!(got < limit(counts.len()), "n {n}: {got} in {} bins", counts.len());
        }
    }
}

/// Peers of all versions and machines must agree on the order.
#[test]
fn the_order_is_pinned() {
    assert_eq!(epoch(shuffle(42, 10), 0), [1, 2, 9, 7, 5, 4, 3, 8, 6, 0]);
    assert_eq!(shuffle(42, 1_000_000_007).index(123_456_789_012), 486_429_956);
    assert_eq!(
        epoch(striped(15, 4, 2, 3), 0),
        [8, 0, 9, 1, 10, 2, 11, 3, 4, 5, 6, 7, 12, 13, 14]
    );
}
