//! How often and by which topology members exchange, where the run leaves that open: a function of the records, so
//! that all members choose the same in the same round.
//!
//! Each header tells how long its author's last exchange took. The shortest time in a record is that of the
//! exchange itself, since the last member to contribute has waited for nobody. A single time says little, so the
//! median of several counts. An exchange that took more than one attempt counts as endless.

use crate::base::id::Round;
use crate::ledger::cut::LEAD;
use crate::numeric::optim::LocalSteps;
use crate::run::config::{Manifest, Topology};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::time::Duration;

/// Number of exchanges whose median counts.
const WINDOW: usize = 5;

/// Rounds between two trials of the other topology, at first and at most.
const REST: Round = 64;
const LONGEST_REST: Round = 4096;

/// The other topology must take less than this percentage of the present one's time.
const BETTER: u64 = 95;

/// With local steps and without overlap, a round's compute time is this many times its exchange, so a ninth of the
/// time is lost. Fewer exchanges cost small models more than that.
const EXCHANGES: u128 = 8;

/// With overlap, the compute time is this many times the part of the exchange after the first step, so a third of
/// the time is lost. More steps win time, but lose more in learning, and samples with it. nano reaches a loss of
/// 2.2 after this many batches:
///
/// | batches a round | 1 | 2 | 4 | 10 to 15 |
/// |---|---|---|---|---|
/// | batches | 178 | 202 | 221 | more than 300 |
const REMAINDERS: u128 = 2;

/// [`REMAINDERS`] for large models, for which local steps cost little: 30 of them cost 2 % of the loss at 35
/// million parameters, 0.3 % at 2.4 billion (Charles et al. 2025, arXiv 2503.09799). A seventh of the time is lost.
const REMAINDERS_OF_LARGE: u128 = 5;

/// A model with at least this many parameters is large.
const LARGE: usize = 20_000_000;

/// With overlap, local steps begin to pay once an exchange takes this fraction of a batch. For shorter exchanges,
/// they cost more learning than they save time. nano reaches a loss of 2.2 after 179 batches with one a round, 199
/// with two.
const SHORT: u128 = 8;

/// Time for an exchange to end during computation, in quarters of its usual time.
const SLACK: u128 = 5;

/// Rounds in a row that must ask for other local steps.
const AGREEING: i8 = 3;

/// A round allots at most this fraction of the run.
const LARGEST: u64 = 16;

/// A record's measurements of exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchanged {
    /// The round.
    pub round: Round,
    /// Contributors.
    pub members: usize,
    /// Whether it took more than one attempt.
    pub failed: bool,
    /// The shortest exchange of the round before, in microseconds.
    pub us: Option<u64>,
    /// Samples in 1,000 seconds, over all members that computed.
    pub speed: u128,
    /// Whether guests are members of the next round.
    pub guests: bool,
}

/// A change, with the reason. Times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Turn {
    /// A trial has shown that another topology takes less time.
    Topology {
        /// An exchange with the new topology.
        exchange_us: u64,
        /// An exchange with the old one; `None` if that failed repeatedly.
        before_us: Option<u64>,
    },
    /// Another number of local steps.
    Batches {
        /// An exchange.
        exchange_us: u64,
        /// One batch, computed by all.
        batch_us: u64,
    },
}

/// How the next round exchanges, and the measurements behind that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// The topology.
    pub topology: Topology,
    /// How many batches a round allots: the local steps of the member with the largest share.
    pub batches: NonZeroU32,
    /// The lasting change of the last round.
    pub turn: Option<Turn>,
    /// The topology of the exchange that the next record tells, if there was one.
    told: Option<Topology>,
    /// The last exchanges of the present topology, in microseconds.
    measured: Vec<u64>,
    /// The time of the other topology, during a trial against it.
    against: Option<u64>,
    /// When the next trial begins, and how long the rest after it is.
    until: Round,
    rest: Round,
    /// Number of members of the last round.
    members: u16,
    /// Rounds in a row that asked for more batches or, below 0, for fewer; `None` before the first choice.
    votes: Option<i8>,
}

impl Pace {
    /// The pace of a new run.
    pub fn new(manifest: &Manifest) -> Self {
        let local = manifest.local.as_ref().and_then(|local| local.steps);
        Self {
            // On long paths, the ring costs more than the direct topology does on short ones.
            topology: manifest.topology.unwrap_or(Topology::Direct),
            batches: local.unwrap_or(NonZeroU32::MIN),
            turn: None,
            told: None,
            measured: Vec::new(),
            against: None,
            until: 0,
            rest: REST,
            members: 0,
            votes: None,
        }
    }

    /// Samples that the next round allots.
    pub fn round_samples(&self, manifest: &Manifest) -> u64 {
        u64::from(manifest.batch.get()) * u64::from(self.batches.get())
    }

    /// Time of an exchange with the present topology, in microseconds, once there are enough measurements.
    pub fn exchange_us(&self) -> Option<u64> {
        let mut sorted = self.measured.clone();
        sorted.sort_unstable();
        let median = sorted.get(WINDOW / 2).copied();
        median.filter(|us| sorted.len() == WINDOW && *us < u64::MAX)
    }

    /// Applies the measurements of a committed round.
    pub(crate) fn apply(&mut self, round: &Exchanged, manifest: &Manifest) {
        self.turn = None;
        let trains = manifest.trains(round.members);
        let told = std::mem::replace(&mut self.told, trains.then_some(self.topology));
        let chooses = manifest.topology.is_none();
        if chooses && round.guests && self.topology == Topology::Ring {
            // In a ring a guest's values reach only the next member unsummed.
            self.against = None;
            self.take_other();
        }
        let took = round.us.filter(|_| told == Some(self.topology));
        let failed = (round.failed && trains).then_some(u64::MAX);
        let Some(took) = failed.or(took) else {
            return;
        };
        if self.measured.len() == WINDOW {
            self.measured.remove(0);
        }
        self.measured.push(took);
        if self.measured.len() < WINDOW {
            return;
        }
        if manifest.local.as_ref().is_some_and(|local| local.steps.is_none()) {
            self.choose_batches(round, manifest);
        }
        if chooses && !round.guests && self.turn.is_none() {
            self.choose_topology(round);
        }
    }

    /// Tries the other topology now and then, for as many rounds as a measurement takes, and keeps the faster one.
    fn choose_topology(&mut self, round: &Exchanged) {
        let members = round.members as u16;
        if std::mem::replace(&mut self.members, members) != members {
            self.rest = REST;
            self.until = self.until.min(round.round + REST);
        }
        let here = self.exchange_us().unwrap_or(u64::MAX);
        if let Some(there) = self.against.take() {
            self.until = round.round + self.rest;
            self.rest = LONGEST_REST.min(2 * self.rest);
            // 128 bits, since an endless exchange has the largest number.
            let is_better = u128::from(here) * 100 < u128::from(there) * u128::from(BETTER);
            match is_better {
                true => {
                    self.turn = Some(Turn::Topology {
                        exchange_us: here,
                        before_us: (there < u64::MAX).then_some(there),
                    });
                }
                false => self.take_other(),
            }
        } else if members > 2 && (round.round >= self.until || here == u64::MAX) {
            // Between two members both topologies are the same.
            self.against = Some(here);
            self.take_other();
        }
    }

    fn take_other(&mut self) {
        self.topology = match self.topology {
            Topology::Ring => Topology::Direct,
            Topology::Direct => Topology::Ring,
        };
        self.measured.clear();
    }

    /// Chooses the number of local steps: more if exchanges are long in comparison, fewer if they are not. The
    /// first choice follows the shortest exchange seen, since the first exchanges over a path are longer than later
    /// ones. Further changes are by two fifths, once several rounds in a row have asked for more, or for fewer.
    fn choose_batches(&mut self, round: &Exchanged, manifest: &Manifest) {
        let speed = round.speed;
        let exchange = match self.votes {
            None => self.measured.iter().min().copied().filter(|us| *us < u64::MAX),
            Some(_) => self.exchange_us(),
        };
        let Some(exchange) = exchange.filter(|_| speed > 0) else {
            return;
        };
        // Speeds are samples in 1,000 seconds.
        let batch_us = (u128::from(manifest.batch.get()) * 1_000_000_000 / speed).max(1);
        let elements = manifest.layout.len;
        let wanted = local_batches(elements, exchange.into(), batch_us, manifest.overlap);
        let batches = manifest.target.get() / u64::from(manifest.batch.get());
        let most = (batches / LARGEST).clamp(1, LocalSteps::MOST.into());
        let wanted = wanted.clamp(1, most.into()) as u32;
        let here = self.batches.get();
        let batches = match self.votes {
            None => {
                // Topologies are compared in rounds of equal length, since overlapped computation makes exchanges
                // longer.
                self.until = round.round + WINDOW as Round;
                wanted
            }
            Some(votes) => {
                let (more, fewer) = (longer(here), (here * 5 / 7).max(1));
                let votes = match wanted {
                    _ if wanted >= more => votes.max(0) + 1,
                    // Not for one or two tenths: between two small numbers it would change for ever.
                    _ if here > 1 && (longer(wanted) < here || wanted == 1) => votes.min(0) - 1,
                    _ => 0,
                };
                if votes.abs() < AGREEING {
                    self.votes = Some(votes);
                    return;
                }
                if votes > 0 { more } else { fewer.max(wanted) }
            }
        };
        self.votes = Some(0);
        if batches == here {
            return;
        }
        self.batches = NonZeroU32::new(batches).expect("at least 1");
        self.turn = Some(Turn::Batches {
            exchange_us: exchange,
            batch_us: batch_us as u64,
        });
    }

    /// A planted bug: a member uses its own clock.
    pub(crate) fn mistake(&mut self, own: Duration) {
        if let Some(last) = self.measured.last_mut() {
            *last = own.as_micros() as u64;
        }
    }

    /// Whether a run's ledger can have reached it.
    pub(crate) fn is_sound(&self, manifest: &Manifest) -> bool {
        let topology = manifest.topology.is_none_or(|topology| topology == self.topology);
        let batches = match &manifest.local {
            None => self.batches == NonZeroU32::MIN,
            Some(local) => match local.steps {
                Some(steps) => self.batches == steps,
                None => self.batches.get() <= LocalSteps::MOST,
            },
        };
        topology && batches && self.measured.len() <= WINDOW && self.rest <= LONGEST_REST
    }
}

/// The best number of batches in a round of local steps, given the number of parameters, the time of an exchange,
/// and the time that all take for a batch.
pub fn local_batches(elements: usize, exchange_us: u128, batch_us: u128, overlap: bool) -> u128 {
    match overlap {
        false => (exchange_us * EXCHANGES).div_ceil(batch_us),
        true if exchange_us * SHORT <= batch_us => 1,
        true => {
            let hidden = u128::from(LEAD) * batch_us;
            let left = (exchange_us * SLACK / 4).saturating_sub(hidden);
            let remainders = if elements < LARGE {
                REMAINDERS
            } else {
                REMAINDERS_OF_LARGE
            };
            (left * remainders).div_ceil(batch_us).max(2)
        }
    }
}

/// The next larger number of batches.
fn longer(batches: u32) -> u32 {
    (batches + 1).max(batches * 7 / 5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::{Contact, PeerId};
    use crate::ledger::{Head, Header, Member, Record};
    use crate::run::config::{Layout, Settings};

    fn manifest(local: bool) -> Manifest {
        let mut local = local.then_some(LocalSteps::averaged(NonZeroU32::MIN));
        if let Some(local) = &mut local {
            local.steps = None;
        }
        Manifest {
            batch: NonZeroU32::new(48).unwrap(),
            target: (48 * 100_000).try_into().unwrap(),
            topology: None,
            local,
            ..Manifest::new(Layout::flat(3))
        }
    }

    #[test]
    fn with_guests_all_is_sent_straight() {
        let manifest = manifest(false);
        let mut pace = Pace::new(&manifest);
        let mut tried = Vec::new();
        for at in 0..300 {
            let guests = (100..200).contains(&at);
            let us = match pace.told {
                Some(Topology::Ring) => 20_000,
                _ => 30_000,
            };
            let round = Exchanged {
                round: at + 1,
                members: 4,
                failed: false,
                us: Some(us),
                speed: 400_000,
                guests,
            };
            pace.apply(&round, &manifest);
            tried.push(pace.topology);
        }
        let rings = |range: std::ops::Range<usize>| {
            let tried = tried[range].iter();
            tried.filter(|topology| **topology == Topology::Ring).count()
        };
        assert_eq!(rings(100..200), 0);
        assert!(rings(50..100) > 40 && rings(250..300) > 40, "it is faster");
    }

    fn head(manifest: &Manifest, members: u8) -> Head {
        let member = |n| {
            let settings = Settings::stand_in(PeerId([n; 32]), Contact::default(), manifest);
            Member::new(&settings, Some(100_000))
        };
        let mut head = Head::genesis(manifest, member(1));
        head.members = (1..=members).map(member).collect();
        head
    }

    /// A round with this time for the previous exchange, and slightly longer times at each other member.
    fn round(head: &mut Head, manifest: &Manifest, exchange_us: u64, attempt: u32) {
        let allotment = head.allot(manifest);
        let header = |(place, member): (usize, &Member)| Header {
            weight: allotment.len(place) as u32,
            speed: 100_000,
            exchange_us: exchange_us + 7000 * place as u64,
            ..Header::stand_in(member.peer)
        };
        let headers = head.members.iter().enumerate().map(header).collect();
        let mut record = Record::signed_by_stand_ins(head, headers);
        record.attempt = attempt;
        head.apply(&record, manifest);
        assert_eq!(head.check_itself(manifest), Ok(()));
    }

    /// The topologies of this many rounds, if an exchange takes these times, or never ends.
    fn tried(
        manifest: &Manifest,
        members: u8,
        rounds: usize,
        [ring, direct]: [Option<u64>; 2],
    ) -> Vec<Topology> {
        let mut head = head(manifest, members);
        let (mut before, mut tried) = (head.pace.topology, Vec::new());
        let us = |topology| match topology {
            Topology::Ring => ring,
            Topology::Direct => direct,
        };
        for at in 0..rounds {
            let now = head.pace.topology;
            tried.push(now);
            // A pause that is nobody's fault, now and then.
            let noise = if at % 11 == 3 {
                500_000
            } else {
                100 * (at as u64 % 5)
            };
            let attempt = u32::from(us(now).is_none());
            round(
                &mut head,
                manifest,
                us(before).map_or(0, |us| us + noise),
                attempt,
            );
            before = now;
        }
        tried
    }

    #[test]
    fn the_faster_topology_is_found_and_the_other_hardly_ever_tried_again() {
        let manifest = manifest(false);
        let [ring, direct] = Topology::ALL;
        for (times, best) in [
            ([Some(310_000), Some(110_000)], direct),
            ([Some(20_000), Some(30_000)], ring),
            ([Some(19_500), Some(20_000)], direct),
            ([None, Some(500_000)], direct),
            ([Some(500_000), None], ring),
        ] {
            let tried = tried(&manifest, 4, 1000, times);
            let others = |range: std::ops::Range<usize>| tried[range].iter().filter(|t| **t != best).count();
            assert!(others(0..20) <= 10, "{times:?}: {}", others(0..20));
            assert!(others(20..1000) <= 30, "{times:?}: {}", others(20..1000));
        }
        let two = tried(&manifest, 2, 100, [Some(300_000), Some(100_000)]);
        assert!(
            two.iter().all(|topology| *topology == direct),
            "there is but one way"
        );
        let fixed = Manifest {
            topology: Some(ring),
            ..manifest
        };
        let fixed = tried(&fixed, 4, 100, [Some(300_000), Some(100_000)]);
        assert!(fixed.iter().all(|topology| *topology == ring), "it is the run's");
    }

    #[test]
    fn rounds_are_as_long_as_exchanges_ask_for() {
        let mut manifest = manifest(true);
        manifest.topology = Some(Topology::Direct);
        let mut head = head(&manifest, 4);
        let mut changes = Vec::new();
        let mut rounds = |head: &mut Head, us: u64, rounds: u64| {
            for at in 0..rounds {
                let before = head.pace.batches.get();
                round(head, &manifest, us + us * (at * 7 % 11) / 50, 0);
                if head.pace.batches.get() != before {
                    changes.push(head.pace.batches.get());
                }
            }
            head.pace.batches.get()
        };
        // Four at 100 samples a second have done 48 in 120 ms.
        let at_once = rounds(&mut head, 150_000, WINDOW as u64 + 1);
        assert!((8..=12).contains(&at_once), "{at_once}");
        let many = rounds(&mut head, 150_000, 200);
        assert!((8..=12).contains(&many), "{many}");
        let more = rounds(&mut head, 600_000, 200);
        assert!((34..=48).contains(&more), "{more}");
        assert_eq!(rounds(&mut head, 5_000, 200), 1);
        assert_eq!(changes.iter().filter(|n| **n == 1).count(), 1, "{changes:?}");
        let turns = changes
            .windows(3)
            .filter(|w| (w[0] < w[1]) != (w[1] < w[2]))
            .count();
        assert_eq!(turns, 1, "{changes:?}");
    }

    #[test]
    fn between_two_numbers_of_local_steps_it_keeps_one() {
        let mut manifest = manifest(true);
        (manifest.topology, manifest.overlap) = (Some(Topology::Direct), true);
        let mut head = head(&manifest, 4);
        let mut changes = 0;
        for at in 0..400 {
            let before = head.pace.batches;
            // Of batches of 120 ms, three are as good as four, by turns.
            let us = if at / 9 % 2 == 0 { 230_000 } else { 250_000 };
            round(&mut head, &manifest, us, 0);
            changes += u32::from(head.pace.batches != before);
        }
        assert!(
            (3..=4).contains(&head.pace.batches.get()),
            "{}",
            head.pace.batches
        );
        assert!(changes <= 2, "{changes}");
    }

    #[test]
    fn an_exchange_that_ends_during_the_first_step_costs_no_further_local_steps() {
        let overlapped = |exchange, batch| local_batches(1000, exchange, batch, true);
        assert_eq!(
            overlapped(12, 100),
            1,
            "it costs a ninth, local steps cost as much"
        );
        assert_eq!(overlapped(13, 100), 2);
        assert_eq!(overlapped(80, 100), 2);
        assert_eq!((overlapped(160, 100), overlapped(400, 100)), (2, 8));
        assert_eq!(local_batches(LARGE, 400, 100, true), 20);
        assert_eq!(local_batches(1000, 100, 100, false), 8);
    }

    #[test]
    fn a_short_run_still_has_rounds() {
        let manifest = Manifest {
            target: (48 * 64).try_into().unwrap(),
            ..manifest(true)
        };
        let mut head = head(&manifest, 3);
        while !head.finished(&manifest) {
            round(&mut head, &manifest, 10_000_000, 0);
            assert!(head.pace.batches.get() <= 4);
        }
    }
}
