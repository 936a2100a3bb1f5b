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

    /// Whether the next round tries out a topology.
    pub(crate) fn tries_topology(&self) -> bool {
        self.against.is_some()
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
mod tests;
