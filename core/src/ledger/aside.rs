//! Standing aside: a member with which the run counts fewer samples a second than without it leaves for a while. A
//! function of the records alone, so that all members agree without a vote.
//!
//! A round takes as long as its slowest member. One slow line, or one device that shares a processor with another
//! member's, may therefore cost a run most of its speed. Nobody can tell beforehand, so each newcomer has a trial.
//! Headers tell how long rounds take, and so how many samples a second the run counts before the newcomer comes,
//! and with it.
//!
//! A newcomer that fails its trial stands aside. It is not a member then: it holds a state that is a few minutes old
//! at most, and can take over. Until its next trial it follows nobody, since on a member's machine or behind a slow
//! line that would cost nearly as much. After a while it has another trial. Each failed trial doubles the wait,
//! and a costlier trial is repeated later, so that all of them together cost little.

use crate::base::id::{PeerId, Round};
use crate::run::config::{MAX_PEERS, Manifest};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// With a newcomer, a run must count at least this percentage of the samples a second that it counts without it.
const LEAST: u128 = 90;

/// Rates that are compared, at least. Their median counts.
const RATES: usize = 5;

/// A rate is measured over at least this long, since a single short round says little. A guess.
const SPAN_US: u64 = 100_000;

/// When there are twice as many rates, each two become one of twice the span, up to this. So the median is of up to
/// eight minutes, or of all the time since the members were others. A newcomer that shares a machine with a member
/// slows it down before it joins: while it builds kernels, tries its device out and fetches the state.
const LONGEST_SPAN_US: u64 = 512 * SPAN_US;

/// A measurement of this length is enough, however few its rounds.
const LONG_US: u64 = 5_000_000;

/// A trial that has cost this much ends at once, unless some of its rounds were as fast as before: the first may be
/// slow because kernels are built. A guess: less than people notice in a run.
const COST_US: u64 = 2_000_000;

/// If members choose the number of local steps, a trial has at least this many rounds, in which they adapt to a
/// slow line.
const ADAPTS: u32 = 12;

/// The wait before a second trial is this long, and at least this many times the cost of the first.
const FIRST_WAIT_US: u64 = 30_000_000;
const COSTS: u64 = 20;

/// Most doublings of the wait, and its longest: an hour.
const DOUBLINGS: u8 = 7;
const LONGEST_WAIT_US: u64 = 3_600_000_000;

/// Why a run is slower with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Exchanges take longer.
    Link,
    /// The others wait for its device.
    Device,
    /// The others' devices are slower while its own computes: they share a processor.
    Machine,
    /// It did not get through its trial: the others had to continue without it.
    Failed,
    /// Another member was lost during its trial.
    Untried,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Link => "exchanging sums with it takes longer than its computing saves",
            Self::Device => "the others wait for its device",
            Self::Machine => "it shares a processor with another member",
            Self::Failed => "it did not answer in time",
            Self::Untried => "another member was lost during its trial",
        })
    }
}

/// A peer that stands aside, or that did so and now has a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aside {
    /// Its name.
    pub peer: PeerId,
    /// Why.
    pub cause: Cause,
    /// Samples in 1,000 seconds that the run has counted without it ...
    pub without: u64,
    /// ... and with it.
    pub with: u64,
    /// How long it waits for its next trial, from the round in which it left.
    pub wait_us: u64,
    /// The round in which it left.
    pub since: Round,
    /// When it may have another trial, by [`Asides::elapsed_us`].
    until_us: u64,
    /// Trials that have failed.
    trials: u8,
}

/// Measures how many samples a second the present members count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Meter {
    /// Measured, but not part of a rate yet.
    samples: u64,
    us: u64,
    /// The time that a rate is measured over, and the last rates, in samples per 1,000 seconds.
    span_us: u64,
    rates: Vec<u64>,
    /// Total time of the measurement.
    total_us: u64,
}

/// A trial of newcomers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    newcomers: Vec<PeerId>,
    /// The rate without them, and the sum of the others' speeds then.
    without: u64,
    speeds: u64,
    /// Rounds measured with them, their samples, and how long they took.
    rounds: u32,
    samples: u64,
    us: u64,
    /// For how much of that time the newcomers' devices computed, and the others' speeds, summed over the rounds.
    at_work_us: u64,
    speeds_with: u64,
}

/// The peers that stand aside, and the measurements behind that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asides {
    /// Total time of the run's rounds.
    pub elapsed_us: u64,
    /// Samples of the round whose time the next record tells, if that counts.
    told: Option<u64>,
    meter: Meter,
    trial: Option<Trial>,
    aside: Vec<Aside>,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            samples: 0,
            us: 0,
            span_us: SPAN_US,
            rates: Vec::new(),
            total_us: 0,
        }
    }
}

impl Meter {
    fn add(&mut self, samples: u64, us: u64) {
        self.samples = self.samples.saturating_add(samples);
        self.us = self.us.saturating_add(us);
        self.total_us = self.total_us.saturating_add(us);
        if self.us < self.span_us {
            return;
        }
        self.rates.push(rate(self.samples, self.us));
        (self.samples, self.us) = (0, 0);
        if self.rates.len() < 2 * RATES {
            return;
        }
        if self.span_us == LONGEST_SPAN_US {
            self.rates.remove(0);
        } else {
            let pairs = self.rates.chunks(2).map(|pair| pair[0].midpoint(pair[1]));
            self.rates = pairs.collect();
            self.span_us *= 2;
        }
    }

    fn best(&self) -> u64 {
        self.rates.iter().max().copied().unwrap_or(0)
    }

    /// The rate, if at least `least` were measured: the median of enough rates, and otherwise the best, since the
    /// first ones may be slow.
    fn rate(&self, least: usize) -> Option<u64> {
        let mut sorted = self.rates.clone();
        sorted.sort_unstable();
        match sorted.len() {
            enough if enough >= RATES => Some(sorted[enough / 2]),
            some if some >= least && self.total_us >= LONG_US => Some(self.best()),
            _ => None,
        }
    }
}

impl Trial {
    /// Its cost so far, in microseconds.
    fn cost_us(&self) -> u64 {
        let usual = u128::from(self.samples) * 1_000_000_000 / u128::from(self.without.max(1));
        u128::from(self.us).saturating_sub(usual).min(u64::MAX.into()) as u64
    }

    /// Whether it has passed or failed, once that is known.
    fn verdict(&self, meter: &Meter, manifest: &Manifest) -> Option<bool> {
        let enough = |with: u64| u128::from(with) * 100 >= u128::from(self.without) * LEAST;
        let adapts = manifest.local.as_ref().is_some_and(|local| local.steps.is_none());
        if adapts && self.rounds < ADAPTS {
            return None;
        }
        let costs = meter.rates.len() >= 2 && self.cost_us() > COST_US && !enough(meter.best());
        meter.rate(2).map(enough).or(costs.then_some(false))
    }

    fn cause(&self) -> Cause {
        let slower = self.speeds_with / u64::from(self.rounds.max(1)) < self.speeds / 4 * 3;
        match () {
            () if self.at_work_us > self.us / 2 && !slower => Cause::Device,
            () if slower => Cause::Machine,
            () => Cause::Link,
        }
    }
}

/// A member's header, as far as it concerns time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub peer: PeerId,
    pub leaving: bool,
    pub speed: u64,
    pub compute_us: u64,
}

/// A committed round.
pub(crate) struct Told<'a> {
    pub round: Round,
    pub said: &'a [Said],
    /// How long the round before it took.
    pub round_us: Option<u64>,
    /// Samples counted.
    pub weight: u64,
    /// Whether it trains, ...
    pub trains: bool,
    /// ... and its first attempt succeeded.
    pub at_once: bool,
    /// The members before it.
    pub before: &'a [PeerId],
    /// The members after it, and whether each is a full member.
    pub next: &'a [(PeerId, bool)],
}

impl Told<'_> {
    fn has_left(&self, peer: PeerId) -> bool {
        self.said.iter().any(|said| said.peer == peer && said.leaving)
    }

    /// The sum of some members' speeds.
    fn speeds(&self, of: impl Fn(PeerId) -> bool) -> u64 {
        let speeds = self
            .said
            .iter()
            .filter(|said| of(said.peer))
            .map(|said| said.speed);
        speeds.fold(0, u64::saturating_add)
    }
}

impl Asides {
    /// Whether a peer may be admitted now. It has to wait while another has a trial, and while it stands aside.
    pub(crate) fn admit(&self, peer: PeerId) -> bool {
        self.trial.is_none() && self.meter.rate(1).is_some() && self.waits(peer).is_none()
    }

    /// How long a peer that stands aside waits for its next trial.
    pub(crate) fn waits(&self, peer: PeerId) -> Option<Duration> {
        let aside = self.aside.iter().find(|aside| aside.peer == peer)?;
        let left_us = aside.until_us.saturating_sub(self.elapsed_us);
        (left_us > 0).then_some(Duration::from_micros(left_us))
    }

    /// The peers that stand aside since a round.
    pub(crate) fn since(&self, round: Round) -> impl Iterator<Item = &Aside> {
        self.aside.iter().filter(move |aside| aside.since == round)
    }

    /// A planted bug: a member uses its own clock.
    pub(crate) fn mistake(&mut self, own: Duration) {
        self.elapsed_us += own.as_micros() as u64;
    }

    /// Applies a round. Returns those of the next members that stand aside instead. With `keeps`, a planted bug,
    /// all pass their trial.
    pub(crate) fn apply(&mut self, told: &Told<'_>, manifest: &Manifest, keeps: bool) -> Vec<PeerId> {
        let counts = told.trains && told.at_once;
        let samples = std::mem::replace(&mut self.told, counts.then_some(told.weight));
        if let Some(us) = told.round_us {
            self.elapsed_us = self.elapsed_us.saturating_add(us);
            if let Some(samples) = samples {
                self.measure(samples, us, told);
            }
        }
        let was = |peer: &PeerId| told.before.contains(peer);
        let is = |peer: &PeerId| told.next.iter().any(|(m, _)| m == peer);
        let lost: Vec<PeerId> = told.before.iter().copied().filter(|m| !is(m)).collect();
        let new: Vec<PeerId> = told.next.iter().map(|(m, _)| *m).filter(|m| !was(m)).collect();
        let mut stand_aside = Vec::new();
        if let Some(trial) = self.trial.clone() {
            let mut failed = lost.clone();
            failed.retain(|peer| trial.newcomers.contains(peer) && !told.has_left(*peer));
            if !failed.is_empty() {
                self.put_aside(&trial, &failed, Some(Cause::Failed), told.round);
            }
            if !lost.is_empty() {
                // The measured rates are of other members. Newcomers that are still there are tried once more.
                stand_aside = self.end(&trial, (keeps, Some(Cause::Untried)), told, manifest);
            } else if let Some(passed) = trial.verdict(&self.meter, manifest) {
                stand_aside = self.end(&trial, (passed || keeps, None), told, manifest);
            }
        }
        let has_stood = |peer: &PeerId| self.aside.iter().any(|aside| aside.peer == *peer);
        if !lost.iter().all(has_stood) {
            // Without them the run has another rate.
            let soon_us = self.elapsed_us.saturating_add(FIRST_WAIT_US);
            let waits = self.aside.iter_mut();
            waits.for_each(|aside| aside.until_us = aside.until_us.min(soon_us));
        }
        if !lost.is_empty() || !new.is_empty() {
            let rate = std::mem::take(&mut self.meter).rate(1);
            let begins = told.trains && !new.is_empty();
            self.trial = rate.filter(|_| begins).map(|without| Trial {
                newcomers: new,
                without,
                speeds: told.speeds(|_| true),
                ..Trial::default()
            });
            self.told = None;
        }
        stand_aside
    }

    fn measure(&mut self, samples: u64, us: u64, told: &Told<'_>) {
        self.meter.add(samples, us);
        if let Some(trial) = &mut self.trial {
            let newcomers = told
                .said
                .iter()
                .filter(|said| trial.newcomers.contains(&said.peer));
            let at_work_us = newcomers.map(|said| said.compute_us).max().unwrap_or(0);
            let speeds = told.speeds(|peer| !trial.newcomers.contains(&peer));
            trial.rounds += 1;
            trial.samples = trial.samples.saturating_add(samples);
            trial.us = trial.us.saturating_add(us);
            trial.at_work_us = trial.at_work_us.saturating_add(at_work_us);
            trial.speeds_with = trial.speeds_with.saturating_add(speeds);
        }
    }

    /// Ends a trial. Returns the members that fail it, if the others can train.
    fn end(
        &mut self,
        trial: &Trial,
        (passed, cause): (bool, Option<Cause>),
        told: &Told<'_>,
        manifest: &Manifest,
    ) -> Vec<PeerId> {
        self.trial = None;
        let is_new = |peer: &PeerId| trial.newcomers.contains(peer);
        let others = || told.next.iter().filter(|(m, _)| !is_new(m));
        let can_go = manifest.trains(others().count()) && others().any(|(_, is_full)| *is_full);
        if passed || !can_go {
            let is_in = |peer: &PeerId| told.next.iter().any(|(m, _)| m == peer);
            self.aside
                .retain(|aside| !(is_new(&aside.peer) && is_in(&aside.peer)));
            return Vec::new();
        }
        // Some may have announced that they leave.
        let stays = told.next.iter().map(|(m, _)| *m);
        let failed: Vec<PeerId> = stays.filter(is_new).collect();
        self.put_aside(trial, &failed, cause, told.round);
        self.meter = Meter::default();
        self.told = None;
        failed
    }

    fn put_aside(&mut self, trial: &Trial, peers: &[PeerId], cause: Option<Cause>, round: Round) {
        let cost_us = trial.cost_us().saturating_mul(COSTS);
        for (place, peer) in (1..).zip(peers) {
            let before = self.aside.iter().position(|aside| aside.peer == *peer);
            let before = before.map_or(0, |at| self.aside.remove(at).trials);
            // One after the other, so that none is blamed for another.
            let wait_us = FIRST_WAIT_US.max(cost_us).saturating_mul(place) << before.min(DOUBLINGS);
            let wait_us = wait_us.min(LONGEST_WAIT_US);
            self.aside.push(Aside {
                peer: *peer,
                cause: cause.unwrap_or(trial.cause()),
                without: trial.without,
                with: rate(trial.samples, trial.us),
                wait_us,
                since: round,
                until_us: self.elapsed_us.saturating_add(wait_us),
                trials: before.saturating_add(1).min(DOUBLINGS),
            });
        }
        if self.aside.len() > MAX_PEERS {
            self.aside.drain(..self.aside.len() - MAX_PEERS);
        }
    }

    /// Whether records can lead to it.
    pub(crate) fn is_sound(&self) -> bool {
        let latest = self.elapsed_us.saturating_add(LONGEST_WAIT_US);
        let aside = |aside: &Aside| aside.until_us <= latest && aside.trials <= DOUBLINGS;
        let few = |trial: &Trial| trial.newcomers.len() <= MAX_PEERS;
        let meter = &self.meter;
        meter.rates.len() < 2 * RATES
            && (SPAN_US..=LONGEST_SPAN_US).contains(&meter.span_us)
            && self.trial.iter().all(few)
            && self.aside.len() <= MAX_PEERS
            && self.aside.iter().all(aside)
    }
}

/// Samples in 1,000 seconds.
fn rate(samples: u64, us: u64) -> u64 {
    let rate = u128::from(samples) * 1_000_000_000 / u128::from(us.max(1));
    rate.min(u64::MAX.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::Layout;
    use std::collections::BTreeSet;

    const SECOND: u64 = 1_000_000;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// A run, described by rounds of 100 samples.
    struct Run {
        asides: Asides,
        manifest: Manifest,
        members: BTreeSet<u8>,
        round: Round,
    }

    impl Run {
        fn of(members: &[u8]) -> Self {
            let mut manifest = Manifest::new(Layout::flat(3));
            manifest.stand_aside = true;
            Self {
                asides: Asides::default(),
                manifest,
                members: members.iter().copied().collect(),
                round: 0,
            }
        }

        /// A round in which each member says how long the one before has taken. Returns those that stand aside.
        fn round(&mut self, us: impl Fn(u8) -> u64, next: &[u8]) -> Vec<u8> {
            self.round += 1;
            let said = |n: &u8| Said {
                peer: peer(*n),
                leaving: false,
                speed: 1000,
                compute_us: 1,
            };
            let said: Vec<Said> = self.members.iter().map(said).collect();
            let mut told: Vec<u64> = self.members.iter().map(|n| us(*n)).filter(|us| *us > 0).collect();
            told.sort_unstable();
            let before: Vec<PeerId> = self.members.iter().map(|n| peer(*n)).collect();
            let after: Vec<(PeerId, bool)> = next.iter().map(|n| (peer(*n), true)).collect();
            let told = Told {
                round: self.round,
                said: &said,
                round_us: told.get(told.len() / 2).copied(),
                weight: 100,
                trains: true,
                at_once: true,
                before: &before,
                next: &after,
            };
            let aside = self.asides.apply(&told, &self.manifest, false);
            assert!(self.asides.is_sound());
            self.members = next
                .iter()
                .copied()
                .filter(|n| !aside.contains(&peer(*n)))
                .collect();
            aside.iter().map(|peer| peer.0[0]).collect()
        }

        /// Runs rounds of this length until one may be admitted, or none may for long. Returns how many.
        fn until_admitted(&mut self, n: u8, us: u64) -> u64 {
            let (begin, members): (_, Vec<u8>) =
                (self.asides.elapsed_us, self.members.iter().copied().collect());
            while !self.asides.admit(peer(n)) && self.asides.elapsed_us < begin + 100_000 * SECOND {
                self.round(|_| us, &members);
            }
            self.asides.elapsed_us - begin
        }

        /// Admits a newcomer with which rounds take this long. Returns the rounds of its trial, and whether it
        /// fails.
        fn trial(&mut self, n: u8, us: u64) -> (u32, bool) {
            let mut members: Vec<u8> = self.members.iter().copied().collect();
            members.push(n);
            self.round(|_| SECOND, &members);
            for rounds in 1..100 {
                let aside = self.round(|_| us, &members);
                if !aside.is_empty() || self.asides.trial.is_none() {
                    return (rounds, aside == [n]);
                }
            }
            panic!("it never ends");
        }
    }

    #[test]
    fn a_trial_that_fails_is_repeated_later_and_later() {
        let mut run = Run::of(&[1]);
        assert!(!run.asides.admit(peer(2)), "nothing is known yet");
        assert!(run.until_admitted(2, SECOND) <= 6 * SECOND);
        // A round of four seconds costs three, two of them six; and the first tells nothing of it yet.
        assert_eq!(run.trial(2, 4 * SECOND), (3, true));
        assert_eq!(run.asides.since(run.round).next().unwrap().cause, Cause::Link);
        assert!(
            run.asides.admit(peer(3)) || run.until_admitted(3, SECOND) <= 6 * SECOND,
            "another may come"
        );
        for waits in [120, 240, 480] {
            let waited = run.until_admitted(2, SECOND);
            assert!((waits - 10..=waits).contains(&(waited / SECOND)), "{waited}");
            assert_eq!(run.trial(2, 4 * SECOND), (3, true));
        }
        run.until_admitted(2, SECOND);
        assert_eq!(run.trial(2, SECOND / 2), (6, false), "it helps now");
        assert_eq!(run.asides.aside, []);
    }

    #[test]
    fn one_slow_round_fails_no_trial() {
        let mut run = Run::of(&[1]);
        run.until_admitted(2, SECOND);
        run.round(|_| SECOND, &[1, 2]);
        run.round(|_| SECOND, &[1, 2]);
        run.round(|_| 9 * SECOND, &[1, 2]);
        (0..5).for_each(|_| assert_eq!(run.round(|_| SECOND, &[1, 2]), []));
        assert!(run.asides.trial.is_none() && run.members.contains(&2));
    }

    #[test]
    fn who_slows_the_machine_down_before_it_joins_fails_its_trial() {
        let mut run = Run::of(&[1]);
        (0..120).for_each(|_| drop(run.round(|_| SECOND, &[1])));
        // It builds its kernels and fetches the state; then a round takes three times as long as before it came.
        (0..9).for_each(|_| drop(run.round(|_| 4 * SECOND, &[1])));
        assert!(run.asides.admit(peer(2)));
        assert!(run.trial(2, 3 * SECOND).1);
        assert_eq!(run.asides.since(run.round).next().unwrap().without, 100_000);
    }

    #[test]
    fn what_one_of_many_says_of_a_round_does_not_matter() {
        let mut run = Run::of(&[1, 2, 3]);
        run.until_admitted(4, SECOND);
        run.round(|_| SECOND, &[1, 2, 3, 4]);
        let lies = |n| if n == 1 { 1000 * SECOND } else { SECOND };
        (0..9).for_each(|_| assert_eq!(run.round(lies, &[1, 2, 3, 4]), []));
        assert!(run.asides.trial.is_none());
    }

    #[test]
    fn all_may_come_when_somebody_is_lost() {
        let mut run = Run::of(&[1, 2]);
        run.until_admitted(3, SECOND);
        assert!(run.trial(3, 9 * SECOND).1);
        assert!(run.until_admitted(4, SECOND) < 10 * SECOND && !run.asides.admit(peer(3)));
        run.round(|_| SECOND, &[1]);
        assert!(run.until_admitted(3, SECOND) < 40 * SECOND);
    }

    #[test]
    fn a_trial_in_which_another_is_lost_is_repeated() {
        let mut run = Run::of(&[1, 2]);
        run.until_admitted(3, SECOND);
        run.round(|_| SECOND, &[1, 2, 3]);
        assert_eq!(run.round(|_| SECOND, &[1, 3]), [3]);
        assert!(run.until_admitted(3, SECOND) < 40 * SECOND);
        run.round(|_| SECOND, &[1, 3]);
        assert_eq!(run.round(|_| SECOND, &[3]), [], "nobody else is there");
    }

    #[test]
    fn whom_the_run_needs_stays() {
        let mut run = Run::of(&[1]);
        run.until_admitted(2, SECOND);
        run.manifest.min_peers = 2.try_into().unwrap();
        assert!(!run.trial(2, 9 * SECOND).1);
    }
}
