//! A congestion controller that keeps a model of the path and takes no chance loss for congestion.
//!
//! Controllers that halve their rate for a lost packet (CUBIC, NewReno) are useless to a ring over a WAN: with
//! one packet in a thousand lost by chance, 100 Mbit/s at 50 ms end at 15 Mbit/s, and the slowest link of
//! the ring sets the pace of all. This one instead keeps a model of the path, as BBR does
//! (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016), reduced to what can be
//! read in one sitting: the best delivery rate of the last rounds, times the least round-trip time, is what
//! fits on the path; the window is that and a little more. Chance losses below 2 % of a round are ignored,
//! as in BBRv2; above, the window yields.
//!
//! A *round* here is a round trip: from one packet's departure to its acknowledgement.
//!
//! Measured on an emulated WAN of 4 hosts in a ring, 100 Mbit/s, 50 ms, queues of 200 kB (a third of the
//! bandwidth-delay product), from each host to the next, all four at once, the start included, two cores shared with
//! other work (load 5 to 9); Mbit/s of frames each host received (96 are possible), and packets sent again:
//!
//! | controller | no loss | 0.1 % loss | sent again |
//! |---|---|---|---|
//! | CUBIC, 60 MB | 79 to 82 | 14 to 19 (30 MB) | 2 to 3 % |
//! | BBR (quinn's), 60 MB | 85 to 91 | 85 to 86 | 85 to 110 % |
//! | model, 60 MB, the median of 8 | 87 (71 to 89) | 85 (57 to 87) | 1.5 to 4 % |
//! | model, 180 MB | 86 to 91 | 87 to 89 | 1.3 to 2.5 % |
//!
//! The outliers below 75 are starts that took a busy processor's delays for a full queue and grew slowly afterwards.

use quinn::congestion::{Controller, ControllerFactory};
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Losses of a round up to this share are taken for chance (BBRv2's `BBRLossThresh`).
const LOSS_BY_CHANCE: f64 = 0.02;

/// By how much what was too much is raised after a round without such losses; twice as much after each further one. A
/// guess: gentle where the limit is real, and soon gone where the path has grown or the losses were of another.
const CEILING_GROWTH: f64 = 0.02;

/// Rounds for which a delivery rate counts (BBR's `BBRBtlBwFilterLen`).
const RATE_ROUNDS: usize = 10;

/// The window while the start's excess drains, and for how many rounds.
const DRAIN_GAIN: f64 = 0.95;
const DRAIN_ROUNDS: u32 = 2;

/// The window over what fits on the path, round by round. Two rounds ask whether there is room for more (the rate
/// answers one round later) and are repeated while there is; the next one drains what has queued; the others keep
/// just enough queued that the path never runs dry. (BBR's cycle asks for one round; the round-trip
/// time says little here, since acknowledgements queue behind the data that the other end sends on.)
const CYCLE: [f64; 8] = [1.4, 1.4, 1.0, 1.2, 1.2, 1.2, 1.2, 1.2];

/// The last of the asking rounds.
const ASKED: usize = 1;

/// A rate that grew by so much while asking shows that there is room.
const GREW: f64 = 1.03;

/// After this long without a new least round-trip time, look for one with a short queue (BBR's ten seconds):
/// the route may have changed.
const RTT_VALID: Duration = Duration::from_secs(10);

/// The window for that.
const RTT_PROBE_GAIN: f64 = 0.5;

/// What quinn is told of the window while there is room in it. quinn spreads a window's packets over 4/5 of a round
/// trip, and what its timers miss (they tick in milliseconds, and processors are busy) is lost; the window
/// itself, and acknowledgements, are what bounds the rate.
const PACING_GAIN: f64 = 1.6;

/// Packets in every window beyond the model's: receivers acknowledge several packets at once, and the smallest
/// window must hold more than they wait for.
const EXTRA_PACKETS: u64 = 12;

/// Packets that must all have been queued before the start is over: late acknowledgements and a busy processor
/// delay single ones.
const SAMPLE_PACKETS: u32 = 32;

/// Packets in the first window, as in Chromium: RFC 6928 has ten, which costs two round trips more.
const INITIAL_PACKETS: u64 = 32;

#[derive(Clone, Debug)]
struct Model {
    mtu: u64,
    /// Bytes that may be in flight.
    window: u64,
    in_flight: u64,
    phase: Phase,
    /// Bytes per second of the last rounds that were not held up by a lack of data, newest last.
    rates: Vec<f64>,
    min_rtt: Duration,
    min_rtt_at: Instant,
    /// Packets, and their least round-trip time, in the sample that the start watches for a queue.
    sample: (u32, Duration),
    /// What losses above chance have shown to be too much.
    ceiling: f64,
    /// Rounds since then.
    clean_rounds: u32,
    last_sent: u64,
    /// When the last packet that the previous round saw acknowledged was sent.
    departure: Instant,
    round: Round,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Double every round until the rate or the round-trip time shows that the path is full.
    Start { best_rate: f64, flat_rounds: u32 },
    /// Let what the start has overfilled drain, for so many rounds; their losses say nothing new.
    Drain { left: u32 },
    /// At this place in [`CYCLE`], which began at this rate.
    Cruise { at: usize, rate: f64 },
    /// Look for the least round-trip time, in this round of two: the first one drains the queue.
    ProbeRtt { second: bool },
}

const START: Phase = Phase::Start {
    best_rate: 0.0,
    flat_rounds: 0,
};

#[derive(Clone, Copy, Debug)]
struct Round {
    start: Instant,
    /// The round is over when this packet or a later one is acknowledged.
    end: u64,
    acked: u64,
    last_departure: Instant,
    lost: u64,
    /// Whether there was at any time nothing to send.
    limited: bool,
    rtt: Duration,
}

impl Round {
    fn new(start: Instant, departure: Instant, end: u64) -> Self {
        Self {
            start,
            end,
            acked: 0,
            last_departure: departure,
            lost: 0,
            limited: false,
            rtt: Duration::MAX,
        }
    }
}

impl Model {
    fn new(now: Instant, mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            window: INITIAL_PACKETS * mtu,
            in_flight: 0,
            phase: START,
            rates: vec![],
            min_rtt: Duration::MAX,
            min_rtt_at: now,
            sample: (0, Duration::MAX),
            ceiling: f64::INFINITY,
            clean_rounds: 0,
            last_sent: 0,
            departure: now,
            round: Round::new(now, now, 0),
        }
    }

    fn acked(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.round.acked += bytes;
        let rtt = now.saturating_duration_since(sent);
        self.round.last_departure = self.round.last_departure.max(sent);
        self.round.rtt = self.round.rtt.min(rtt);
        self.min_rtt = self.min_rtt.min(rtt);
        if matches!(self.phase, Phase::Start { .. }) && !self.round.limited {
            self.window += bytes;
            self.sample.0 += 1;
            self.sample.1 = self.sample.1.min(rtt);
            if self.sample.0 < SAMPLE_PACKETS {
                return;
            }
            let (_, rtt) = std::mem::replace(&mut self.sample, (0, Duration::MAX));
            if rtt
                > self.min_rtt + (self.min_rtt / 5).clamp(Duration::from_millis(4), Duration::from_millis(20))
            {
                // These packets left a round ago, when the window was half of what it is now.
                self.window = (self.window / 2).max(self.initial_window());
                self.phase = Phase::Drain { left: DRAIN_ROUNDS };
            }
        }
    }

    fn acked_up_to(&mut self, now: Instant, packet: Option<u64>, limited: bool) {
        self.round.limited |= limited;
        if packet.is_some_and(|packet| packet >= self.round.end)
            && now > self.round.start
            && self.round.acked > 0
        {
            let next = Round::new(now, self.round.last_departure, self.last_sent + 1);
            let round = std::mem::replace(&mut self.round, next);
            self.end_round(now, round);
        }
    }

    fn end_round(&mut self, now: Instant, round: Round) {
        // Acknowledgements may come compressed, but nothing arrives faster than it was sent.
        let sending = round.last_departure.saturating_duration_since(self.departure);
        self.departure = round.last_departure;
        let rate = round.acked as f64 / sending.max(now - round.start).as_secs_f64();
        let loss = round.lost as f64 / (round.acked + round.lost) as f64;
        // A round short of data shows only what the path carries at least.
        if !round.limited && !matches!(self.phase, Phase::ProbeRtt { .. }) || rate > self.best_rate() {
            if self.rates.len() == RATE_ROUNDS {
                self.rates.remove(0);
            }
            self.rates.push(rate);
        }
        let rtt_is_old = now - self.min_rtt_at > RTT_VALID;
        // With nothing to send there is no queue of ours, which is as good as a probe.
        if round.rtt <= self.min_rtt + self.min_rtt / 32 {
            self.min_rtt_at = now;
        } else if rtt_is_old && round.limited {
            (self.min_rtt, self.min_rtt_at) = (round.rtt, now);
        }

        let ask = Phase::Cruise {
            at: 0,
            rate: self.best_rate(),
        };
        self.phase = match self.phase {
            Phase::Start {
                best_rate,
                flat_rounds,
            } => {
                let grows = rate > 1.25 * best_rate;
                let flat_rounds = if grows || round.limited {
                    0
                } else {
                    flat_rounds + 1
                };
                if flat_rounds >= 3 || loss > LOSS_BY_CHANCE {
                    Phase::Drain { left: DRAIN_ROUNDS }
                } else {
                    Phase::Start {
                        best_rate: rate.max(best_rate),
                        flat_rounds,
                    }
                }
            }
            Phase::Drain { left: 0 } => ask,
            Phase::Drain { left } => Phase::Drain { left: left - 1 },
            Phase::Cruise { .. } if rtt_is_old && !round.limited => Phase::ProbeRtt { second: false },
            Phase::Cruise { at: ASKED, rate } if self.best_rate() > GREW * rate && loss <= LOSS_BY_CHANCE => {
                ask
            }
            Phase::Cruise { at, rate } if at + 1 < CYCLE.len() => Phase::Cruise { at: at + 1, rate },
            Phase::Cruise { .. } => ask,
            Phase::ProbeRtt { second: false } => Phase::ProbeRtt { second: true },
            Phase::ProbeRtt { second: true } => {
                (self.min_rtt, self.min_rtt_at) = (round.rtt, now);
                ask
            }
        };

        let fits = self.best_rate() * self.min_rtt.as_secs_f64();
        if loss <= LOSS_BY_CHANCE {
            self.ceiling *= 1.0 + CEILING_GROWTH * f64::from(1 << self.clean_rounds.min(5));
            self.clean_rounds += 1;
        } else if !matches!(self.phase, Phase::Drain { .. }) {
            self.clean_rounds = 0;
            // What got through all the same does fit.
            self.ceiling = (0.9 * self.ceiling.min(self.window as f64)).max(round.acked as f64);
        }
        let gain = match self.phase {
            Phase::Start { .. } => return,
            Phase::Drain { .. } => DRAIN_GAIN,
            Phase::Cruise { at, .. } => CYCLE[at],
            Phase::ProbeRtt { .. } => RTT_PROBE_GAIN,
        };
        let window = (gain * fits).min(self.ceiling) as u64;
        self.window = window + EXTRA_PACKETS * self.mtu;
    }

    fn best_rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Everything in flight got lost for several timeouts: nothing that was known of the path holds.
    fn start_again(&mut self, now: Instant) {
        *self = Self {
            last_sent: self.last_sent,
            in_flight: self.in_flight,
            ..Self::new(now, self.mtu as u16)
        };
        self.round.end = self.last_sent + 1;
    }
}

impl Controller for Model {
    fn on_sent(&mut self, _: Instant, bytes: u64, last_packet_number: u64) {
        self.last_sent = last_packet_number;
        self.in_flight += bytes;
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        _: &quinn_proto::RttEstimator,
    ) {
        self.round.limited |= app_limited;
        self.acked(now, sent, bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.in_flight = in_flight;
        self.acked_up_to(now, largest_packet_num_acked, app_limited);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        _: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.round.lost += lost_bytes;
        if is_persistent_congestion {
            self.start_again(now);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
    }

    fn window(&self) -> u64 {
        if self.in_flight + self.mtu < self.window {
            (self.window as f64 * PACING_GAIN) as u64
        } else {
            self.window
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Makes controllers of this kind.
pub(super) struct ModelFactory;

impl ControllerFactory for ModelFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Model::new(now, current_mtu))
    }
}

#[cfg(test)]
mod tests;
