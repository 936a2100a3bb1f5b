//! Spot checks of guests' work. A guest that returns anything with a likely loss looks like one that computes, so a
//! full member now and then computes a guest's share itself.
//!
//! Sums hide what each member has sent. But a member receives some of a guest's values alone. Under the direct plan
//! these are of the chunk that it owns, in a ring of the chunk whose sum begins at the guest before it. It keeps them
//! and the parameters of then. Its device computes the same samples, a few after each share of its own, so that no
//! round waits long. Then the member compares.
//!
//! A guest cannot foresee a check, since the member draws it with its own key. The first comes soon. The more of them
//! a guest has passed, the rarer they become. David P. Anderson, "BOINC: A System for Public-Resource Computing and
//! Storage" (2004), compares results of volunteers in the same way, and trusts those that were right before more.
//!
//! One mismatch may be this member's own fault, such as a flipped bit. So the guest's next share is checked too, and
//! the verdict waits for another round in which the others' digests agree with this member's.

use crate::base::id::{Digest, PeerId, Round};
use crate::collective::Scale;
use crate::numeric::codec::Codec;
use crate::peer::device::Made;
use crate::reach::detector::FLOOR;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The first check comes within this many shares of a guest, as does the next after a mismatch.
pub(super) const FIRST: u32 = 16;

/// Twice as many after each check that the guest passes, up to this many: one share in a thousand on average.
pub(super) const MOST: u32 = 2048;

/// With such a window, earlier mismatches are forgotten.
pub(super) const FORGIVEN: u32 = 256;

/// Mismatches that put a guest out.
pub(super) const MISMATCHES: u8 = 2;

/// After each share of its own, a device computes at most this part of it for a check, or one sample. Others take a
/// member for too slow that takes twice as long as usual.
const PART: u64 = 4;

/// They never do within [`FLOOR`]. If a sample takes at most this time, a second one is no reason.
const QUICK: Duration = FLOOR.checked_div(4).expect("not by 0");

/// A check takes at most this many rounds, or the member leaves it to faster ones.
pub(super) const ROUNDS: u64 = 64;

/// At least this much of the true values must be in what was sent. A guess: devices differ by a thousandth.
const LEAST: f64 = 0.25;

/// What was sent may be this many times as long as the true values.
const LONGEST: f64 = 3.0;

/// Where elements are this much smaller than elsewhere in the vector, they may be rounding errors.
const TELLING: f64 = 0.01;

/// With a smaller mean loss, all gradients may be.
const LEARNED: f64 = 1e-5;

/// What a member knows of a guest's work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    /// Shares until the next check; 0 if it is due.
    pub(super) left: u32,
    /// The next check is drawn from this many shares.
    pub(super) window: u32,
    pub(super) mismatches: u8,
    /// The round in work when the last mismatch showed that its work is false.
    pub(super) false_since: Option<Round>,
}

/// A guest's own values of some elements, encoded.
pub(super) type Sent = (Range<usize>, Bytes);

#[derive(Debug)]
pub(super) enum Stage {
    /// The guest's values come.
    Hearing {
        wanted: BTreeMap<(u16, u32), Range<usize>>,
        sent: Vec<Sent>,
    },
    /// They have come, and the device computes the same.
    Computing(Box<Computing>),
}

#[derive(Debug)]
pub(super) struct Computing {
    pub(super) round: Round,
    /// The lineage and the state before the round.
    pub(super) chain: Digest,
    pub(super) state: Digest,
    pub(super) params: Vec<f32>,
    pub(super) sent: Vec<Sent>,
    /// Positions that are still to be computed.
    pub(super) left: Vec<Range<u64>>,
    /// Samples that the device is at.
    pub(super) at_work: u64,
    pub(super) truth: Truth,
}

/// The values that the device has computed.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// The sums of the elements that were sent, one after the other.
    pub(super) values: Vec<f32>,
    /// Squared norms of what each task has given: of these elements, and of all.
    pub(super) squared: [f64; 2],
    /// Elements of the vector.
    pub(super) len: usize,
    pub(super) samples: u64,
    pub(super) loss: f64,
}

/// A member measures the length of its own gradients once in this many rounds.
pub(super) const MEASURED: Round = 8;

/// The checks of one member.
#[derive(Debug, Default)]
pub(crate) struct Spot {
    /// How long its own gradients are, and when it measures them again.
    pub(super) scale: Scale,
    pub(super) measures_at: Round,
    /// Samples of its own share in this round, or in the next if that has fewer, since a check may last into it.
    pub(super) own: u64,
    /// Whether its device computes a sample within [`QUICK`].
    pub(super) is_quick: bool,
    pub(super) watched: BTreeMap<PeerId, Watched>,
    pub(super) check: Option<(PeerId, Stage)>,
}

impl Spot {
    /// Whether it listens to a guest's values.
    pub fn hears(&self, guest: PeerId) -> bool {
        matches!(&self.check, Some((of, Stage::Hearing { .. })) if *of == guest)
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let sent = |sent: &[Sent]| sent.iter().map(|(_, data)| data.len()).sum::<usize>();
        match &self.check {
            Some((_, Stage::Hearing { sent: here, .. })) => sent(here),
            Some((_, Stage::Computing(c))) => {
                sent(&c.sent) + size_of::<f32>() * (c.params.len() + c.truth.values.len())
            }
            None => 0,
        }
    }

    /// Gives an idle device the next part of a check, after this member's own share.
    pub(super) fn next_part(&mut self) -> Option<(&mut Computing, Vec<Range<u64>>)> {
        let most = part(self.own, self.is_quick);
        let Some((_, Stage::Computing(check))) = &mut self.check else {
            return None;
        };
        let positions = take_first(&mut check.left, most);
        check.at_work = positions.iter().map(|range| range.end - range.start).sum();
        (check.at_work > 0).then_some((check, positions))
    }

    /// Draws a guest's next check.
    pub(super) fn draw(&mut self, guest: PeerId, bits: u64) {
        if let Some(watched) = self.watched.get_mut(&guest) {
            watched.left = 1 + (bits % u64::from(watched.window)) as u32;
        }
    }
}

/// Whether a device with this speed, in samples per 1,000 seconds, computes a sample within [`QUICK`].
pub(super) fn is_quick(speed: Option<u64>) -> bool {
    speed.is_some_and(|speed| speed as f64 * QUICK.as_secs_f64() >= 1000.0)
}

/// Samples that a device may compute for a check after a share of this many. A slow device computes none after a share of
/// one or two: its next share may be one, and that round would take twice as long.
pub(crate) fn part(own: u64, is_quick: bool) -> u64 {
    match own {
        0 => 0,
        1 | 2 => is_quick.into(),
        _ => (own / PART).max(1),
    }
}

impl Truth {
    /// Adds what a task has given. False if that is no use.
    pub(super) fn add(&mut self, made: &Made, sent: &[Sent]) -> bool {
        if made.gradient.len() != self.len || !made.loss.is_finite() {
            return false;
        }
        let mut values = self.values.iter_mut();
        for (elements, _) in sent {
            for value in &made.gradient[elements.clone()] {
                *values.next().expect("as many as were sent") += value;
                self.squared[0] += f64::from(*value).powi(2);
            }
        }
        self.squared[1] += squared(&made.gradient);
        self.samples += u64::from(made.weight);
        self.loss += f64::from(made.loss);
        self.squared[1].is_finite()
    }

    /// Whether what was sent is these values, as the codec passes them on. `None` if nobody can tell.
    pub(super) fn judge(&self, codec: Codec, sent: &[Sent]) -> Option<bool> {
        let mean = |squared: f64, count: usize| squared / count.max(1) as f64;
        let (here, all) = (
            mean(self.squared[0], self.values.len()),
            mean(self.squared[1], self.len),
        );
        let is_learned = self.loss.abs() < LEARNED * self.samples as f64;
        let (mut dot, mut of_truth, mut of_sent) = (0.0, 0.0, 0.0);
        let mut truth = &self.values[..];
        let (mut theirs, mut encoded) = (Vec::new(), Vec::new());
        for (elements, data) in sent {
            let (piece, rest) = truth.split_at(elements.len());
            truth = rest;
            encoded.clear();
            codec.encode(piece, &mut encoded);
            let mut ours = vec![0.0; piece.len()];
            theirs.resize(piece.len(), 0.0);
            codec.decode(&encoded, &mut ours).ok()?;
            codec.decode(data, &mut theirs).ok()?;
            dot += ours
                .iter()
                .zip(&theirs)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum::<f64>();
            of_truth += squared(&ours);
            of_sent += squared(&theirs);
        }
        if is_learned || here < TELLING * TELLING * all || of_truth == 0.0 {
            return None;
        }
        Some(dot >= LEAST * of_truth && of_sent <= LONGEST * LONGEST * of_truth)
    }
}

fn squared(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum()
}

/// Takes this many positions from the front, or all if they are fewer.
pub(super) fn take_first(positions: &mut Vec<Range<u64>>, mut count: u64) -> Vec<Range<u64>> {
    let mut taken = Vec::new();
    positions.retain_mut(|range| {
        let end = range.start + count.min(range.end - range.start);
        if end > range.start {
            taken.push(range.start..end);
            count -= end - range.start;
            range.start = end;
        }
        !range.is_empty()
    });
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    /// Values of elements 100 to 400 of a vector, and of all.
    fn truth(size: f32, loss: f64) -> (Truth, Vec<f32>) {
        let mut random = SplitMix(1);
        let values: Vec<f32> = (0..300).map(|_| size * (random.unit() as f32 - 0.5)).collect();
        let here = squared(&values);
        let truth = Truth {
            values: values.clone(),
            squared: [here, here + 100.0],
            len: 1000,
            samples: 10,
            loss,
        };
        (truth, values)
    }

    fn judged(
        codec: Codec,
        (truth, values): &(Truth, Vec<f32>),
        change: impl FnMut(f32) -> f32,
    ) -> Option<bool> {
        let said: Vec<f32> = values.iter().copied().map(change).collect();
        let piece = |range: Range<usize>| {
            let mut data = Vec::new();
            codec.encode(&said[range.start - 100..range.end - 100], &mut data);
            (range, data.into())
        };
        truth.judge(codec, &[piece(100..164), piece(164..400)])
    }

    #[test]
    fn values_of_another_device_pass_and_others_do_not() {
        let true_values = truth(1.0, 5.0);
        for codec in [Codec::F32, Codec::F16, Codec::Int8] {
            let mut random = SplitMix(2);
            let judged = |change: &mut dyn FnMut(f32) -> f32| judged(codec, &true_values, change);
            assert_eq!(judged(&mut |value| value), Some(true), "{codec}");
            assert_eq!(
                judged(&mut |value| value * (1.0 + 1e-3 * random.unit() as f32)),
                Some(true)
            );
            assert_eq!(judged(&mut |value| 0.5 * value), Some(true));
            assert_eq!(judged(&mut |_| 0.0), Some(false));
            assert_eq!(judged(&mut |value| -value), Some(false));
            assert_eq!(judged(&mut |value| 4.0 * value), Some(false));
            assert_eq!(judged(&mut |_| random.unit() as f32 - 0.5), Some(false));
        }
    }

    #[test]
    fn nobody_is_judged_by_what_may_be_rounding_errors() {
        let zeros = |truth: &(Truth, Vec<f32>)| judged(Codec::F32, truth, |_| 0.0);
        assert_eq!(zeros(&truth(1.0, 1.0)), Some(false));
        assert_eq!(zeros(&truth(1.0, 1e-5)), None, "there is nothing left to learn");
        assert_eq!(
            zeros(&truth(1e-3, 1.0)),
            None,
            "all other elements are far larger"
        );
        assert_eq!(zeros(&truth(0.0, 1.0)), None);
    }

    #[test]
    fn positions_are_taken_in_order() {
        let mut all = vec![3..5, 8..9, 20..24];
        let mut take = |count| {
            take_first(&mut all, count)
                .into_iter()
                .flatten()
                .collect::<Vec<u64>>()
        };
        assert_eq!(take(1), [3]);
        assert_eq!(take(3), [4, 8, 20]);
        assert_eq!(take(100), [21, 22, 23]);
        assert!(all.is_empty());
    }
}
