//! A congestion controller that models the path and does not take random loss for congestion.
//!
//! Controllers that halve their rate for a lost packet (CUBIC, NewReno) are useless for a ring over a WAN. With one
//! packet in a thousand lost at random, 100 Mbit/s at 50 ms become 15 Mbit/s, and the slowest link of the ring sets the
//! pace.
//!
//! This one models the path as BBR does (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016),
//! reduced to a size that you can read in one sitting. The best delivery rate of the last rounds times the least
//! round-trip time is what fits on the path, and the window is slightly larger. It ignores losses below 2 % of a round,
//! as BBRv2 does, and reduces the window above that.
//!
//! [`Uplink`] decides its share of this machine's own line beside the endpoint's other connections.
//!
//! A *round* here is a round trip: from the departure of a packet to its acknowledgement.
//!
//! Measured on an emulated WAN of 4 hosts in a ring, all sending at once: 100 Mbit/s, 50 ms, queues of 200 kB (a third
//! of the bandwidth-delay product), start included. Two cores were shared with other work (load 5 to 9). The table gives Mbit/s of frames
//! that each host received (96 are possible), and packets sent again:
//!
//! | controller | no loss | 0.1 % loss | sent again |
//! |---|---|---|---|
//! | CUBIC, 60 MB | 79 to 82 | 14 to 19 (30 MB) | 2 to 3 % |
//! | BBR (quinn's), 60 MB | 85 to 91 | 85 to 86 | 85 to 110 % |
//! | model, 60 MB, the median of 8 | 87 (71 to 89) | 85 (57 to 87) | 1.5 to 4 % |
//! | model, 180 MB | 86 to 91 | 87 to 89 | 1.3 to 2.5 % |
//!
//! These numbers are from before connections shared the line and spread a window's packets over half a round trip; now
//! 0.2 % are sent again. In the outliers below 75 the start took the delays of a busy processor for a full queue.

use super::LOSS_BY_CHANCE;
use super::uplink::{Flow, Uplink};
use quinn::congestion::{Controller, ControllerFactory};
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// By how much the ceiling rises after a round without losses above chance, doubling with each further round. A guess:
/// slow if the limit is real, and soon gone if the path has improved or the losses were another connection's.
const CEILING_GROWTH: f64 = 0.02;

/// Rounds for which a delivery rate counts (BBR's `BBRBtlBwFilterLen`).
const RATE_ROUNDS: usize = 10;

/// How many rounds the usual round-trip time is the minimum of, since in a single round all packets may have been late.
const RTT_ROUNDS: usize = 3;

/// The window while the start's excess drains, and for how many rounds.
const DRAIN_GAIN: f64 = 0.95;
const DRAIN_ROUNDS: u32 = 2;

/// The window relative to what fits on the path at its own rate: a path with more room is found within a round trip.
/// BBR's `cwnd_gain` of 2 overfilled the line of one slow host among four, because each of the others probes for more.
/// Where this machine's line is the bottleneck, the share of the line bounds the window.
const PATH_GAIN: f64 = 1.4;

/// If no lower round-trip time was seen for this long, probe for one with a short queue, since the route may have
/// changed (ten seconds in BBR).
const RTT_VALID: Duration = Duration::from_secs(10);

/// The window during that probe.
const RTT_PROBE_GAIN: f64 = 0.5;

/// Packets in every window beyond the model's. Receivers acknowledge several packets at once, and the smallest window
/// must hold more than they wait for.
const EXTRA_PACKETS: u64 = 12;

/// Packets that must all have been queued before the start ends. Late acknowledgements and a busy processor delay
/// single ones.
const SAMPLE_PACKETS: u32 = 32;

/// Packets in the first window, as in Chromium. The ten of RFC 6928 cost two more round trips.
const INITIAL_PACKETS: u64 = 32;

#[derive(Clone, Debug)]
struct Model {
    mtu: u64,
    /// Bytes that may be in flight on the path.
    window: u64,
    in_flight: u64,
    /// Bytes that this connection may have in flight on the line.
    share: u64,
    /// Whether it sends everything that it may, as far as is known.
    greedy: bool,
    flow: Arc<Flow>,
    phase: Phase,
    /// Delivery rates (bytes per second) of the last rounds that always had data to send, newest last.
    rates: Vec<f64>,
    min_rtt: Duration,
    min_rtt_at: Instant,
    /// The minimum of each of the last rounds, newest last.
    rtts: Vec<Duration>,
    /// The sample in which the start looks for a queue: packets, and their least round-trip time.
    sample: (u32, Duration),
    /// The window that losses above chance have shown to be too large.
    ceiling: f64,
    /// Rounds since then.
    clean_rounds: u32,
    last_sent: u64,
    /// When the last packet that was acknowledged in the previous round was sent.
    departure: Instant,
    round: Round,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Double the window every round until the rate or the round-trip time shows that the path is full.
    Start { best_rate: f64, flat_rounds: u32 },
    /// Let the queue that the start has built drain, for this many rounds. Losses in them say nothing new.
    Drain { left: u32 },
    /// Keep the path full.
    Cruise,
    /// Probe for the least round-trip time. The first of two rounds drains the queue.
    ProbeRtt { second: bool },
}

const START: Phase = Phase::Start {
    best_rate: 0.0,
    flat_rounds: 0,
};

#[derive(Clone, Copy, Debug)]
struct Round {
    start: Instant,
    /// The round ends when this packet or a later one is acknowledged.
    end: u64,
    acked: u64,
    last_departure: Instant,
    lost: u64,
    /// Whether there was nothing to send at any time.
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
    fn new(now: Instant, mtu: u16, flow: Arc<Flow>) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            window: INITIAL_PACKETS * mtu,
            in_flight: 0,
            share: u64::MAX,
            greedy: false,
            flow,
            phase: START,
            rates: vec![],
            min_rtt: Duration::MAX,
            min_rtt_at: now,
            rtts: vec![],
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
        self.flow.acked(now, sent, bytes);
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
                // These packets left a round ago, when the window was half as large.
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
        // Acknowledgements may come in bursts, but nothing arrives faster than it was sent.
        let sending = round.last_departure.saturating_duration_since(self.departure);
        self.departure = round.last_departure;
        let rate = round.acked as f64 / sending.max(now - round.start).as_secs_f64();
        let loss = round.lost as f64 / (round.acked + round.lost) as f64;
        // A round with too little data shows only a lower bound of the path's rate.
        if !round.limited && !matches!(self.phase, Phase::ProbeRtt { .. }) || rate > self.best_rate() {
            remember(&mut self.rates, rate, RATE_ROUNDS);
        }
        remember(&mut self.rtts, round.rtt, RTT_ROUNDS);
        let rtt_is_old = now - self.min_rtt_at > RTT_VALID;
        // Without anything to send there is no queue of ours, which is as good as a probe.
        if round.rtt <= self.min_rtt + self.min_rtt / 32 {
            self.min_rtt_at = now;
        } else if rtt_is_old && round.limited {
            (self.min_rtt, self.min_rtt_at) = (round.rtt, now);
        }

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
            Phase::Drain { left: 0 } => Phase::Cruise,
            Phase::Drain { left } => Phase::Drain { left: left - 1 },
            Phase::Cruise if rtt_is_old && !round.limited => Phase::ProbeRtt { second: false },
            Phase::Cruise => Phase::Cruise,
            Phase::ProbeRtt { second: false } => Phase::ProbeRtt { second: true },
            Phase::ProbeRtt { second: true } => {
                (self.min_rtt, self.min_rtt_at) = (round.rtt, now);
                Phase::Cruise
            }
        };

        let fits = self.best_rate() * self.fair_rtt().as_secs_f64();
        if loss <= LOSS_BY_CHANCE {
            self.ceiling *= 1.0 + CEILING_GROWTH * f64::from(1 << self.clean_rounds.min(5));
            self.clean_rounds += 1;
        } else if !matches!(self.phase, Phase::Drain { .. }) {
            self.clean_rounds = 0;
            // The bytes that were delivered despite the losses do fit.
            self.ceiling = (0.9 * self.ceiling.min(self.window as f64)).max(round.acked as f64);
        }
        let gain = match self.phase {
            Phase::Start { .. } => return,
            Phase::Drain { .. } => DRAIN_GAIN,
            Phase::Cruise => PATH_GAIN,
            Phase::ProbeRtt { .. } => RTT_PROBE_GAIN,
        };
        let window = (gain * fits).min(self.ceiling) as u64;
        self.window = window + EXTRA_PACKETS * self.mtu;
    }

    /// Reports this connection's demand to the line, and takes the share that it gets.
    fn take_share(&mut self) {
        let wanted = if self.greedy { self.window } else { self.in_flight };
        let rtt = self.fair_rtt().as_secs_f64();
        let share = (rtt * self.flow.share(wanted as f64 / rtt, self.greedy)) as u64;
        self.share = share.saturating_add(EXTRA_PACKETS * self.mtu);
    }

    /// The round-trip time that windows are made for. Time beyond the minimum is spent in queues: on the way there
    /// behind what this end sends, and on the way back, where acknowledgements wait behind what the other end sends.
    /// Windows that ignore the second kind do not fill the line; windows that include the first kind let it grow for
    /// ever. They cannot be told apart, so each counts as half, which is right if both ends send alike.
    fn fair_rtt(&self) -> Duration {
        let usual = self.rtts.iter().min().unwrap_or(&self.min_rtt);
        self.min_rtt + usual.saturating_sub(self.min_rtt) / 2
    }

    fn best_rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Everything in flight was lost for several timeouts, so nothing known about the path holds any more.
    fn start_again(&mut self, now: Instant) {
        *self = Self {
            last_sent: self.last_sent,
            in_flight: self.in_flight,
            ..Self::new(now, self.mtu as u16, self.flow.clone())
        };
        self.round.end = self.last_sent + 1;
    }
}

/// Adds the newest entry, and drops the oldest ones beyond `most`.
fn remember<T>(last: &mut Vec<T>, newest: T, most: usize) {
    if last.len() == most {
        last.remove(0);
    }
    last.push(newest);
}

impl Controller for Model {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.last_sent = last_packet_number;
        // Pure acknowledgements are not in flight and do not count.
        if bytes >= self.mtu / 2 {
            self.in_flight += bytes;
            self.greedy = true;
            self.flow.sent(now);
            self.take_share();
        }
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
        self.greedy = !app_limited;
        self.acked_up_to(now, largest_packet_num_acked, app_limited);
        self.take_share();
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        _: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.round.lost += lost_bytes;
        self.flow.lost(lost_bytes);
        if is_persistent_congestion {
            self.start_again(now);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
    }

    fn window(&self) -> u64 {
        match self.phase {
            // The rate of the line may not be known yet.
            Phase::Start { .. } => self.window,
            _ => self.window.min(self.share),
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

/// Makes these controllers for the connections of one endpoint.
pub(super) struct ModelFactory(pub Arc<Uplink>);

impl ControllerFactory for ModelFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Model::new(now, current_mtu, self.0.join()))
    }
}

#[cfg(test)]
mod hosts_tests;
#[cfg(test)]
mod tests;
