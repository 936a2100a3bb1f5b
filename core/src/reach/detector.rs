//! Adaptive deadlines from observations: the estimator of RFC 6298 (smoothed mean plus four mean deviations), one
//! for each kind of wait.

use crate::base::id::PeerId;
use std::collections::BTreeMap;
use std::time::Duration;

/// RFC 6298, rule 2.4: a retransmission timer is never shorter than a second. It covers delays that no estimator
/// has seen yet, such as another process taking the processor. Also the deadline of an answer before the first
/// observation (rule 2.1).
pub const FLOOR: Duration = Duration::from_secs(1);

/// RFC 6298, rule 2.5 allows a cap of a minute or more.
pub const CAP: Duration = Duration::from_secs(60);

/// The estimator of RFC 6298, section 2.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimator {
    mean_us: f64,
    deviation_us: f64,
    seen: bool,
}

impl Estimator {
    /// Adds an observation.
    pub fn observe(&mut self, sample: Duration) {
        // Larger values are as good as infinite, and would make the sums below lose precision.
        let sample = sample.as_micros().min(1 << 62) as f64;
        if self.seen {
            self.deviation_us += 0.25 * ((self.mean_us - sample).abs() - self.deviation_us);
            self.mean_us += 0.125 * (sample - self.mean_us);
        } else {
            self.mean_us = sample;
            self.deviation_us = sample / 2.0;
            self.seen = true;
        }
    }

    /// The mean, once there is an observation.
    pub fn mean(&self) -> Option<Duration> {
        self.seen.then(|| Duration::from_micros(self.mean_us as u64))
    }

    /// Mean plus four deviations, once there is an observation.
    pub fn deadline(&self) -> Option<Duration> {
        self.seen
            .then(|| Duration::from_micros((self.mean_us + 4.0 * self.deviation_us) as u64))
    }
}

/// This peer's observations of the others.
#[derive(Debug, Default)]
pub struct Detector {
    /// From this peer's contribution to the end of the reduce.
    reduce: Estimator,
    /// From a probe to its answer.
    answer: Estimator,
    /// From a probe to its answer, for each peer: the values of one that is far from all others would be lost among
    /// theirs.
    answers: BTreeMap<PeerId, Estimator>,
    /// Answers missed since the last one.
    backoff: u32,
    /// Each member's time for a sample, from its headers.
    sample: BTreeMap<PeerId, Estimator>,
}

impl Detector {
    /// Observes the wait of a healthy round.
    pub fn saw_reduce(&mut self, wait: Duration) {
        self.reduce.observe(wait);
    }

    /// Observes an answer, perhaps after its deadline. Counts as at most twice the deadline: a peer that answers
    /// later was stopped.
    pub fn saw_answer(&mut self, peer: PeerId, wait: Duration) {
        let most = 2 * self.answer_of(peer);
        if self.answers.len() < REMEMBERED || self.answers.contains_key(&peer) {
            self.answers.entry(peer).or_default().observe(wait.min(most));
        }
        self.answer.observe(wait.min(2 * self.answer()));
        self.backoff = 0;
    }

    /// A peer that is surely there did not answer in time. Doubles the wait until an answer comes (RFC 6298, rules
    /// 5.5 and 5.7); otherwise a path longer than the first deadline would never be measured.
    pub fn missed_answer(&mut self) {
        self.backoff = (self.backoff + 1).min(6);
    }

    /// Observes the compute time in a member's header.
    pub fn saw_compute(&mut self, peer: PeerId, compute: Duration, samples: f64) {
        if samples > 0.0 {
            let per_sample = compute.as_secs_f64() / samples;
            self.sample
                .entry(peer)
                .or_default()
                .observe(seconds(per_sample * SCALE));
        }
    }

    /// Forgets peers that are not members any more, except for their distance: they may come back.
    pub fn keep(&mut self, members: impl Fn(&PeerId) -> bool) {
        self.sample.retain(|peer, _| members(peer));
        if self.answers.len() >= REMEMBERED {
            self.answers.retain(|peer, _| members(peer));
        }
    }

    /// After this time without a new piece, a peer probes the others. A probe is cheap, so this may be early. A
    /// quarter of the floor avoids constant probing where rounds take microseconds.
    pub fn quiet(&self) -> Duration {
        self.reduce.deadline().unwrap_or(FLOOR).clamp(FLOOR / 4, CAP)
    }

    /// After this time without an answer, a peer is suspected.
    pub fn answer(&self) -> Duration {
        let deadline = self.answer.deadline().unwrap_or(FLOOR).clamp(FLOOR, CAP);
        (deadline * (1 << self.backoff)).min(CAP)
    }

    /// After this time without an answer, this peer is suspected: later if it is farther away than others, but with
    /// a bound. Otherwise a peer that answers late on purpose would make all wait as long for the dead.
    fn answer_of(&self, peer: PeerId) -> Duration {
        let own = self.answers.get(&peer).and_then(Estimator::deadline);
        let usual = self.answer();
        usual.max(own.unwrap_or_default().min(FAR * usual))
    }

    /// After this time, those of these peers that have not answered are suspected.
    pub fn answers(&self, peers: impl Iterator<Item = PeerId>) -> Duration {
        peers.fold(self.answer(), |longest, peer| longest.max(self.answer_of(peer)))
    }

    /// After this time, a member that still computes is too slow. Before the first observation, its declared speed
    /// in samples per 1,000 seconds counts.
    ///
    /// Never less than twice the usual time. Excluding a member costs the work that it has in hand and its way
    /// back, at least a round, so waiting for a round is worth it.
    pub fn compute(&self, peer: PeerId, samples: f64, speed: u64) -> Duration {
        let seen = self.sample.get(&peer);
        let seen = seen.and_then(|e| Some(e.deadline()?.max(e.mean()?.saturating_mul(2))));
        let per_sample = seen.map_or(3.0 * 1000.0 / speed.max(1) as f64, |seen| {
            seen.as_secs_f64() / SCALE
        });
        let least = if seen.is_some() { FLOOR } else { FIRST };
        seconds(per_sample * samples.max(1.0)).max(least)
    }
}

/// This many seconds, or the longest duration: what others claim can lead to any number.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// A member's first contribution may take this long, since it builds kernels for new sizes. A guess, from software
/// Vulkan adapters that take 4 to 9 seconds for it.
const FIRST: Duration = Duration::from_secs(15);

/// The wait for a far peer is at most this many times the usual one.
const FAR: u32 = 4;

/// Peers whose distance is remembered; more than there can be members.
const REMEMBERED: usize = 256;

/// Times per sample are stored per this many samples, since durations here have the grain of a microsecond.
const SCALE: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimator_follows_rfc_6298() {
        let ms = Duration::from_millis;
        let mut e = Estimator::default();
        assert_eq!(e.deadline(), None);
        e.observe(ms(100));
        assert_eq!(e.deadline(), Some(ms(300))); // R + 4 * R/2
        e.observe(ms(100));
        assert_eq!(e.deadline(), Some(ms(250))); // deviation 3/4 * 50
        e.observe(ms(180));
        // deviation 0.75 * 37.5 + 0.25 * 80 = 48.125; mean 0.875 * 100 + 0.125 * 180 = 110
        assert_eq!(e.deadline(), Some(Duration::from_micros(110_000 + 192_500)));
    }

    #[test]
    fn no_number_that_anybody_tells_is_too_large() {
        let mut d = Detector::default();
        let peer = PeerId([1; 32]);
        assert!(d.compute(peer, f64::MAX, 1) >= FIRST);
        for _ in 0..3 {
            d.saw_compute(peer, Duration::MAX, 1.0);
            d.saw_answer(peer, Duration::MAX);
            d.saw_reduce(Duration::MAX);
        }
        assert!(d.compute(peer, f64::MAX, 0) >= d.compute(peer, 1.0, u64::MAX));
        assert_eq!(d.quiet(), CAP);
        assert!(d.answers([peer].into_iter()) <= FAR * CAP);
    }

    #[test]
    fn who_is_far_from_all_others_is_waited_for_longer() {
        let (near, far) = (PeerId([1; 32]), PeerId([2; 32]));
        let mut d = Detector::default();
        for _ in 0..50 {
            d.saw_answer(far, Duration::from_millis(1500));
            (0..12).for_each(|_| d.saw_answer(near, Duration::from_millis(300)));
        }
        let wait = d.answers([near, far].into_iter());
        assert!(wait > Duration::from_millis(1490), "{wait:?}");
        assert!(d.answers([near].into_iter()) < wait);
        (0..50).for_each(|_| d.saw_answer(far, CAP));
        (0..50).for_each(|_| d.saw_answer(near, Duration::from_millis(300)));
        assert!(
            d.answers([far].into_iter()) <= FAR * d.answer(),
            "it may do so on purpose"
        );
    }

    #[test]
    fn a_steady_member_that_turns_ten_times_slower_is_too_slow() {
        let mut d = Detector::default();
        let peer = PeerId([1; 32]);
        // At first its declared 20 samples per second count threefold, and never less than the first grace.
        assert_eq!(d.compute(peer, 1000.0, 20_000), Duration::from_secs(150));
        assert_eq!(d.compute(peer, 10.0, 20_000), FIRST);
        for _ in 0..50 {
            d.saw_compute(peer, Duration::from_secs(5), 100.0);
        }
        let limit = d.compute(peer, 100.0, 1);
        assert!(
            limit >= Duration::from_secs(10) && limit < Duration::from_secs(11),
            "{limit:?}"
        );
    }
}
