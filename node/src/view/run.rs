//! A run as one peer tells it, event by event. It must not hold more the longer the run lasts.

use super::curve::Curve;
use super::shares::TimeShares;
use crate::events::{Change, Done, Event, Pace, Ready, Round};
use crate::net::link::LinkKind;
use crate::task::Metrics;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Changes of membership that are kept.
pub const CHANGES: usize = 50;

/// Evaluations that are kept.
pub const EVALUATIONS: usize = 100;

/// Peers that are remembered. Of those that are members no longer, the one gone for longest is forgotten first.
pub const PEERS: usize = 256;

/// The longest time that rates may be taken over, in milliseconds.
pub const RATE_WINDOW_MS: u64 = 10_000;

/// Rounds that a rate is taken over at least. The first only sets the clock.
const RATE_ROUNDS: usize = 4;

/// Weight of the newest loss in the smoothed one.
const SMOOTHING: f64 = 0.1;

/// What is known of a run, as one peer tells it.
#[derive(Debug, Default)]
pub struct RunView {
    /// That peer's name and task, once it is up.
    pub ready: Option<Ready>,
    /// Where it stands.
    pub phase: Phase,
    /// The last committed round.
    pub round: Option<Round>,
    /// How far this peer is with its part of the next one, if that takes long.
    pub computing: Option<Computing>,
    /// Mean loss per sample, smoothed over rounds.
    pub loss: Option<f64>,
    /// The losses of all rounds.
    pub losses: Curve,
    /// The last evaluations, the newest at the end.
    pub evaluations: VecDeque<Evaluation>,
    /// The newest text by the model.
    pub sample: Option<Sample>,
    /// Members, and those that were.
    pub peers: BTreeMap<String, Peer>,
    /// Peers that came and went recently, the newest at the end.
    pub changes: VecDeque<MemberChange>,
    /// How the members exchange, if that has changed.
    pub pace: Option<Pace>,
    /// The last round before a member went to another span of a model that is split, or its spans were to have other steps.
    pub shifted: u64,
    /// The reason for waiting, while it waits.
    pub waiting: Option<String>,
    /// How each of its links was made.
    pub links: BTreeMap<String, LinkKind>,
    /// Sums over this peer's time in the run.
    pub totals: Totals,
    /// How it ended.
    pub done: Option<Done>,
    recent: VecDeque<Moment>,
}

/// A part of a round that takes long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Computing {
    /// The round.
    pub round: u64,
    /// Its samples.
    pub samples: u64,
    /// How many of them are done, if that is known.
    pub done: Option<u64>,
    /// For how long it is in work.
    pub seconds: f64,
}

/// Where a peer stands in the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It has no part yet.
    #[default]
    Starting,
    /// It packs the run's data.
    Packing {
        /// Steps done.
        done: u64,
        /// All steps.
        total: u64,
    },
    /// It fetches the run's data.
    Fetching {
        /// Bytes here.
        bytes: u64,
        /// Bytes needed.
        total: u64,
    },
    /// It fetches the state.
    Syncing {
        /// Bytes here.
        bytes: u64,
        /// Bytes needed.
        total: u64,
        /// The committed round that it is catching up with.
        round: u64,
    },
    /// It is out of the ring for a while.
    Waiting,
    /// It takes part.
    Training,
    /// Its part is over.
    Done,
}

/// The model tried out on data that it does not train on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// The round.
    pub round: u64,
    /// Mean loss per sample.
    pub loss: f32,
    /// Named measures, such as accuracy.
    pub metrics: Metrics,
}

/// A text by the model as it stood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// After this round.
    pub round: u64,
    /// The text.
    pub text: String,
}

/// One peer's part in the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// How it calls itself.
    pub name: Option<String>,
    /// Whether it is a member now.
    pub member: bool,
    /// Its samples in the last round.
    pub weight: u64,
    /// Its samples in all rounds.
    pub samples: u64,
    /// Rounds that it took part in.
    pub rounds: u64,
    last_ms: u64,
}

/// A peer that came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// When this was told.
    pub at_ms: u64,
    /// The peer.
    pub peer: String,
    /// What happened to it.
    pub change: Change,
    /// The last committed round then.
    pub round: u64,
    /// Why, in words.
    pub reason: String,
}

/// Sums over a peer's time in the run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Rounds that it saw committed.
    pub rounds: u64,
    /// Samples in them.
    pub samples: u64,
    /// Those among them that it contributed itself.
    pub own_samples: u64,
    /// Bytes that it sent for them.
    pub bytes_sent: u64,
    /// Bytes that it received for them.
    pub bytes_received: u64,
    /// Bytes that it passed on for others.
    pub bytes_relayed: u64,
    /// How long it computed, in seconds.
    pub compute_seconds: f64,
    /// How long it exchanged and waited, in seconds.
    pub reduce_seconds: f64,
    /// Members that came or went, in the order of [`Change`].
    pub changes: [u64; 5],
    /// Warnings.
    pub warnings: u64,
}

/// How fast a run goes, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Rounds.
    pub rounds: f64,
    /// Samples in them.
    pub samples: f64,
    /// Samples of this peer's own.
    pub own_samples: f64,
    /// Bytes that it sent.
    pub bytes_sent: f64,
    /// Where its time goes.
    pub time: TimeShares,
}

/// When a round was committed, and some of the sums up to then: what lies between two moments is a difference.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at_ms: u64,
    rounds: u64,
    samples: u64,
    own_samples: u64,
    bytes_sent: u64,
    compute_seconds: f64,
    reduce_seconds: f64,
}

impl RunView {
    /// Takes an event that happened at this time.
    pub fn take(&mut self, event: &Event, now_ms: u64) {
        match event {
            Event::Ready(ready) => {
                self.phase = Phase::Starting;
                self.waiting = None;
                self.ready = Some(ready.clone());
            }
            &Event::Pack { done, total } => self.phase = Phase::Packing { done, total },
            &Event::Fetch { bytes, total } => self.phase = Phase::Fetching { bytes, total },
            &Event::Sync { bytes, total, round } => self.phase = Phase::Syncing { bytes, total, round },
            &Event::Computing {
                round,
                samples,
                done,
                seconds,
            } => {
                self.computing = Some(Computing {
                    round,
                    samples,
                    done,
                    seconds,
                });
            }
            Event::Round(round) => self.commit(round, now_ms),
            Event::Named { peer, name } => self.peer(peer, now_ms).name = Some(name.clone()),
            Event::Sample { round, text } => {
                self.sample = Some(Sample {
                    round: *round,
                    text: text.clone(),
                });
            }
            Event::Pace(pace) => self.pace = Some(pace.clone()),
            &Event::Shift { round, .. } | &Event::Cut { round, .. } => self.shifted = round,
            Event::Member {
                peer,
                change,
                round,
                reason,
            } => {
                self.totals.changes[*change as usize] += 1;
                self.peer(peer, now_ms).member = *change == Change::Joined;
                let (peer, reason) = (peer.clone(), reason.clone());
                let change = MemberChange {
                    at_ms: now_ms,
                    peer,
                    change: *change,
                    round: *round,
                    reason,
                };
                push(&mut self.changes, CHANGES, change);
            }
            Event::Eval { round, loss, metrics } => {
                let evaluation = Evaluation {
                    round: *round,
                    loss: *loss,
                    metrics: metrics.clone(),
                };
                push(&mut self.evaluations, EVALUATIONS, evaluation);
            }
            // Words for the person at this machine; they may name its files.
            Event::Warning { .. } => self.totals.warnings += 1,
            Event::Reach { .. } | Event::Nearby { .. } | Event::Data { .. } | Event::Model { .. } => {}
            Event::Link {
                peer, way: Some(way), ..
            } => drop(self.links.insert(peer.clone(), *way)),
            Event::Link { peer, way: None, .. } => drop(self.links.remove(peer)),
            Event::Waiting { why } => {
                // It has hung up, and nobody was left to tell of each link.
                self.links.clear();
                self.phase = Phase::Waiting;
                self.waiting = Some(why.clone());
            }
            Event::Done(done) => {
                self.links.clear();
                self.phase = Phase::Done;
                self.done = Some(done.clone());
            }
        }
    }

    fn commit(&mut self, round: &Round, now_ms: u64) {
        self.phase = Phase::Training;
        self.computing = None;
        self.waiting = None;
        for peer in self.peers.values_mut() {
            (peer.member, peer.weight) = (false, 0);
        }
        for share in &round.members {
            let peer = self.peer(&share.peer, now_ms);
            peer.member = true;
            peer.weight = share.weight;
            peer.samples += share.weight;
            peer.rounds += 1;
        }
        if round.loss.is_finite() && round.samples > 0 {
            let loss = f64::from(round.loss);
            self.loss = Some(self.loss.map_or(loss, |old| old + SMOOTHING * (loss - old)));
            self.losses.push(round.round, round.loss);
        }
        let own = round
            .members
            .iter()
            .filter(|share| self.is_own(&share.peer))
            .map(|share| share.weight)
            .sum::<u64>();
        let finite = |seconds: f64| if seconds.is_finite() { seconds } else { 0.0 };
        let totals = &mut self.totals;
        totals.rounds += 1;
        totals.samples += round.samples;
        totals.own_samples += own;
        totals.bytes_sent += round.bytes_sent;
        totals.bytes_received += round.bytes_received;
        totals.bytes_relayed += round.bytes_relayed;
        totals.compute_seconds += finite(round.compute_seconds);
        totals.reduce_seconds += finite(round.reduce_seconds);
        let &mut Totals {
            rounds,
            samples,
            own_samples,
            bytes_sent,
            compute_seconds,
            reduce_seconds,
            ..
        } = totals;
        self.recent.push_back(Moment {
            at_ms: now_ms,
            rounds,
            samples,
            own_samples,
            bytes_sent,
            compute_seconds,
            reduce_seconds,
        });
        while self.recent.len() > RATE_ROUNDS && self.recent[0].at_ms + RATE_WINDOW_MS < now_ms {
            self.recent.pop_front();
        }
        self.round = Some(round.clone());
    }

    fn peer(&mut self, name: &str, now_ms: u64) -> &mut Peer {
        if !self.peers.contains_key(name) && self.peers.len() >= PEERS {
            let gone = self.peers.iter().filter(|(_, peer)| !peer.member);
            let oldest = gone
                .min_by_key(|(_, peer)| peer.last_ms)
                .map(|(name, _)| name.clone());
            // A ring has fewer members than that; nobody is left without a place.
            if let Some(oldest) = oldest {
                self.peers.remove(&oldest);
            }
        }
        let peer = self.peers.entry(name.to_owned()).or_default();
        peer.last_ms = now_ms;
        peer
    }

    /// How a peer calls itself, if it does.
    pub fn name_of(&self, peer: &str) -> Option<&String> {
        self.peers.get(peer)?.name.as_ref()
    }

    /// How frames get to a peer from the one that tells all this; none if they do not, or need not.
    pub fn way_to(&self, name: &str) -> Option<&'static str> {
        let member = || self.peers.get(name).is_some_and(|peer| peer.member);
        match self.links.get(name) {
            Some(LinkKind::Direct) => Some("direct"),
            Some(LinkKind::Mapped) => Some("mapped"),
            Some(LinkKind::Punched) => Some("punched"),
            None if self.phase == Phase::Training && member() && !self.is_own(name) => Some("relayed"),
            None => None,
        }
    }

    /// Whether a name is that of the peer that tells all this.
    pub fn is_own(&self, name: &str) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.peer == name)
    }

    /// How many members the last round had, with those who have come or gone since.
    pub fn members(&self) -> usize {
        self.peers.values().filter(|peer| peer.member).count()
    }

    /// Number of the last committed round, 0 before the first.
    pub fn last_round(&self) -> u64 {
        self.round.as_ref().map_or(0, |round| round.round)
    }

    /// Samples that the run has counted.
    pub fn counted(&self) -> u64 {
        self.round.as_ref().map_or(0, |round| round.counted)
    }

    /// Samples after which it ends, 0 before that is known.
    pub fn target(&self) -> u64 {
        self.ready.as_ref().map_or(0, |ready| ready.target)
    }

    /// Samples that it still has to count.
    pub fn remaining(&self) -> u64 {
        self.target().saturating_sub(self.counted())
    }

    /// How much of the run is done, 0 to 1.
    pub fn share_done(&self) -> f64 {
        self.counted() as f64 / self.target().max(1) as f64
    }

    /// Number of the run's last round if all that follow are as large as the newest, which must have samples.
    pub fn rounds_expected(&self) -> Option<u64> {
        let round = self.round.as_ref().filter(|round| round.samples > 0)?;
        Some(round.round + self.remaining().div_ceil(round.samples))
    }

    /// Whether all rounds so far had as many samples as the newest, or nothing is left of the run.
    pub fn rounds_are_alike(&self) -> bool {
        let alike = |round: &Round| round.counted == round.round * round.samples;
        self.remaining() == 0 || self.round.as_ref().is_some_and(alike)
    }

    /// How fast the run has gone of late: over this many milliseconds, up to [`RATE_WINDOW_MS`]. None before two rounds
    /// at different times. A run that stands still slows down here too, instead of keeping its last speed for ever.
    pub fn rates(&self, window_ms: u64, now_ms: u64) -> Option<Rates> {
        let last = self.recent.back()?;
        let inside = self
            .recent
            .partition_point(|moment| moment.at_ms + window_ms < last.at_ms);
        let first = &self.recent[inside.min(self.recent.len().saturating_sub(RATE_ROUNDS))];
        let end_ms = if now_ms > last.at_ms + window_ms {
            now_ms
        } else {
            last.at_ms
        };
        let seconds = end_ms.saturating_sub(first.at_ms) as f64 / 1000.0;
        let counted = |of: fn(&Moment) -> u64| of(last) - of(first);
        let per_second = |of| counted(of) as f64 / seconds;
        let spent = (
            last.compute_seconds - first.compute_seconds,
            last.reduce_seconds - first.reduce_seconds,
        );
        let samples = (
            counted(|moment| moment.samples),
            counted(|moment| moment.own_samples),
        );
        (seconds > 0.0 && last.rounds > first.rounds).then(|| Rates {
            rounds: per_second(|moment| moment.rounds),
            samples: per_second(|moment| moment.samples),
            own_samples: per_second(|moment| moment.own_samples),
            bytes_sent: per_second(|moment| moment.bytes_sent),
            time: TimeShares::of(seconds, spent, samples),
        })
    }

    /// Milliseconds since the last round was committed.
    pub fn since_round_ms(&self, now_ms: u64) -> u64 {
        self.recent
            .back()
            .map_or(0, |moment| now_ms.saturating_sub(moment.at_ms))
    }
}

fn push<T>(row: &mut VecDeque<T>, most: usize, value: T) {
    if row.len() == most {
        row.pop_front();
    }
    row.push_back(value);
}

#[cfg(test)]
mod tests;
