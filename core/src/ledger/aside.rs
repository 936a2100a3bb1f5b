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
//!
//! Members come and go during a trial, some of them on purpose. A newcomer answers only for itself: when another
//! member is gone, the trial goes on, and what was measured is scaled to the work of those that stay. Guests and full
//! members that come together are tried together; if that fails, the guests leave first, and the trial of the rest
//! starts again.

mod meter;

use crate::base::id::{PeerId, Round};
use crate::base::planted::{self, Bug};
use crate::run::config::{MAX_PEERS, Manifest};
use meter::{Meter, Part, rate};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// With a newcomer, a run must count at least this percentage of the samples a second that it counts without it.
const LEAST: u128 = 90;

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
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Link => "exchanging sums with it takes longer than its computing saves",
            Self::Device => "the others wait for its device",
            Self::Machine => "it shares a processor with another member",
            Self::Failed => "it did not answer in time",
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
    /// The samples of the round that let them in, for which the others may have paused, and how long it took.
    entry: (u64, u64),
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

impl Trial {
    /// Its cost so far, in microseconds.
    fn cost_us(&self) -> u64 {
        self.lost_us(self.samples, self.us)
    }

    /// How much longer than without the newcomers so many samples took.
    fn lost_us(&self, samples: u64, us: u64) -> u64 {
        let usual = u128::from(samples) * 1_000_000_000 / u128::from(self.without.max(1));
        u128::from(us).saturating_sub(usual).min(u64::MAX.into()) as u64
    }

    /// Whether it has passed or failed, once that is known.
    fn verdict(&self, meter: &Meter, manifest: &Manifest) -> Option<bool> {
        let enough = |with: u64| u128::from(with) * 100 >= u128::from(self.without) * LEAST;
        let adapts = manifest.local.as_ref().is_some_and(|local| local.steps.is_none());
        if adapts && self.rounds < ADAPTS {
            return None;
        }
        let costs = meter.count() >= 2 && self.cost_us() > COST_US && !enough(meter.best());
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

    /// Starts again with some of its newcomers.
    fn again(&mut self, newcomers: Vec<PeerId>) {
        *self = Self {
            newcomers,
            without: self.without,
            speeds: self.speeds,
            entry: self.entry,
            ..Self::default()
        };
    }

    /// Members other than its newcomers are gone. `others` is the work of the rest of these, `all` that of all that
    /// stay.
    fn lose(&mut self, meter: &mut Meter, others: Part, all: Part) {
        self.without = others.of(self.without);
        self.speeds = others.of(self.speeds);
        self.speeds_with = others.of(self.speeds_with);
        self.samples = others.of(self.samples);
        meter.scale(all);
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
    /// ... and its first attempt succeeded, by the topology that the run uses.
    pub as_usual: bool,
    /// The members before it, and how much of a round's work is theirs.
    pub before: &'a [(PeerId, u64)],
    /// The members after it, and whether each is a full member.
    pub next: &'a [(PeerId, bool)],
}

impl Told<'_> {
    fn has_left(&self, peer: PeerId) -> bool {
        self.said.iter().any(|said| said.peer == peer && said.leaving)
    }

    /// Whether a peer is a member after it.
    fn stays(&self, peer: PeerId) -> bool {
        self.next.iter().any(|(member, _)| *member == peer)
    }

    /// What is left of some members' work.
    fn left(&self, of: impl Fn(PeerId) -> bool) -> Part {
        let mut left = Part::default();
        for (peer, work) in self.before.iter().filter(|(peer, _)| of(*peer)) {
            left.all = left.all.saturating_add(*work);
            left.part = left
                .part
                .saturating_add(if self.stays(*peer) { *work } else { 0 });
        }
        left
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
        self.trial.is_none() && self.meter.usual().is_some() && self.waits(peer).is_none()
    }

    /// How long a peer that stands aside waits for its next trial.
    pub(crate) fn waits(&self, peer: PeerId) -> Option<Duration> {
        let aside = self.of(peer)?;
        let left_us = aside.until_us.saturating_sub(self.elapsed_us);
        (left_us > 0).then_some(Duration::from_micros(left_us))
    }

    /// Finds a peer that stands aside, or that did so and now has a trial.
    pub(crate) fn of(&self, peer: PeerId) -> Option<&Aside> {
        self.aside.iter().find(|aside| aside.peer == peer)
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
        let counts = told.trains && told.as_usual;
        let samples = std::mem::replace(&mut self.told, counts.then_some(told.weight));
        if let Some(us) = told.round_us {
            self.elapsed_us = self.elapsed_us.saturating_add(us);
            if let Some(samples) = samples {
                self.measure(samples, us, told);
            } else if let Some(trial) = self.trial.as_mut().filter(|trial| trial.entry.1 == 0) {
                trial.entry.1 = us;
            }
        }
        let was = |peer: &PeerId| told.before.iter().any(|(m, _)| m == peer);
        let members = told.before.iter().map(|(m, _)| *m);
        let lost: Vec<PeerId> = members.filter(|m| !told.stays(*m)).collect();
        let new: Vec<PeerId> = told.next.iter().map(|(m, _)| *m).filter(|m| !was(m)).collect();
        let stand_aside = match self.trial.take() {
            Some(trial) => self.go_on(trial, &lost, told, manifest, keeps),
            None => {
                if !lost.is_empty() {
                    self.meter.renew(told.left(|_| true));
                }
                Vec::new()
            }
        };
        let has_stood = |peer: &PeerId| self.aside.iter().any(|aside| aside.peer == *peer);
        if !lost.iter().all(has_stood) {
            // Without them the run has another rate.
            let soon_us = self.elapsed_us.saturating_add(FIRST_WAIT_US);
            let waits = self.aside.iter_mut();
            waits.for_each(|aside| aside.until_us = aside.until_us.min(soon_us));
        }
        if !lost.is_empty() || !new.is_empty() {
            self.told = None;
        }
        if !new.is_empty() {
            let usual = std::mem::take(&mut self.meter).usual();
            self.trial = usual.filter(|_| told.trains).map(|without| Trial {
                newcomers: new,
                without,
                speeds: told.speeds(|peer| told.stays(peer)),
                entry: (told.weight, 0),
                ..Trial::default()
            });
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

    /// A trial after a round in which some members were lost. Returns those that stand aside.
    fn go_on(
        &mut self,
        mut trial: Trial,
        lost: &[PeerId],
        told: &Told<'_>,
        manifest: &Manifest,
        keeps: bool,
    ) -> Vec<PeerId> {
        let is_new = |peer: PeerId| trial.newcomers.contains(&peer);
        let (others, all) = (told.left(|peer| !is_new(peer)), told.left(|_| true));
        if lost.iter().any(|peer| !is_new(*peer)) {
            trial.lose(&mut self.meter, others, all);
        }
        let (gone, here): (Vec<_>, Vec<_>) = trial
            .newcomers
            .iter()
            .copied()
            .partition(|peer| lost.contains(peer));
        if !gone.is_empty() {
            let failed = gone.into_iter().filter(|peer| !told.has_left(*peer));
            self.put_aside(
                &trial,
                &failed.collect::<Vec<_>>(),
                Some(Cause::Failed),
                told.round,
            );
            // Without them the rest may be faster.
            self.meter = Meter::default();
            trial.again(here);
        }
        if trial.newcomers.is_empty() {
            return Vec::new();
        }
        let verdict = match !lost.is_empty() && planted::here(Bug::BlameNewcomers) {
            true => Some(keeps),
            false => trial.verdict(&self.meter, manifest).map(|passed| passed || keeps),
        };
        match verdict {
            Some(true) => self.pass(&trial.newcomers),
            Some(false) => return self.fail(trial, told, manifest),
            None => self.trial = Some(trial),
        }
        Vec::new()
    }

    fn pass(&mut self, newcomers: &[PeerId]) {
        self.aside.retain(|aside| !newcomers.contains(&aside.peer));
    }

    /// A trial fails. Returns the newcomers that stand aside, if the others can train: guests before full members.
    fn fail(&mut self, mut trial: Trial, told: &Told<'_>, manifest: &Manifest) -> Vec<PeerId> {
        let full = |peer: &PeerId| told.next.contains(&(*peer, true));
        let (full, guests): (Vec<PeerId>, Vec<PeerId>) =
            trial.newcomers.iter().copied().partition(|peer| full(peer));
        let (failed, rest) = match guests.is_empty() {
            true => (full, guests),
            false => (guests, full),
        };
        let others = || told.next.iter().filter(|(m, _)| !failed.contains(m));
        let can_go = manifest.trains(others().count()) && others().any(|(_, is_full)| *is_full);
        if !can_go {
            self.pass(&trial.newcomers);
            return Vec::new();
        }
        self.put_aside(&trial, &failed, None, told.round);
        self.meter = Meter::default();
        self.told = None;
        if !rest.is_empty() {
            trial.again(rest);
            self.trial = Some(trial);
        }
        failed
    }

    fn put_aside(&mut self, trial: &Trial, peers: &[PeerId], cause: Option<Cause>, round: Round) {
        let entry_us = trial.lost_us(trial.entry.0, trial.entry.1);
        let cost_us = trial.cost_us().saturating_add(entry_us).saturating_mul(COSTS);
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
        self.meter.is_sound()
            && self.trial.iter().all(few)
            && self.aside.len() <= MAX_PEERS
            && self.aside.iter().all(aside)
    }
}

#[cfg(test)]
mod tests;
