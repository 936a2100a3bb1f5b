//! Controllers on simulated hosts that all send to each other, as the direct plan of an all-reduce does. Each host has
//! a line of its own rate, with a queue for each direction in which acknowledgements wait too.

use super::*;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

const MTU: u64 = 1472;
const ONE_WAY: Duration = Duration::from_millis(25);
const QUEUE: f64 = 200e3;

/// How much a late sender may catch up on.
const BURST: Duration = Duration::from_millis(2);

/// Time, order at that time, flow, packet, and what happens to it.
type Due = (Instant, u64, usize, u64, Step);

struct Hosts {
    now: Instant,
    lines: Vec<Line>,
    flows: Vec<Sender>,
    events: BinaryHeap<Reverse<Due>>,
    events_so_far: u64,
    loss: f64,
    seed: u64,
}

/// A host's line in both directions: bytes per second, and when its queue is empty.
struct Line {
    rate: f64,
    free_at: [Instant; 2],
}

const OUT: usize = 0;
const IN: usize = 1;

struct Sender {
    from: usize,
    to: usize,
    model: Model,
    /// Bytes to send.
    left: u64,
    /// Packets in flight, and when they left.
    flying: VecDeque<(u64, Instant)>,
    /// The last packet's round-trip time, and when the next packet may leave: quinn spreads a window over 4/5 of it.
    rtt: Duration,
    next: Instant,
    /// Whether a call is scheduled.
    called: bool,
    lost: u64,
}

/// What happens to a packet of a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    MayLeave,
    /// It reaches the receiver's line, and leaves it.
    Arrives,
    Delivered,
    /// Its acknowledgement arrives.
    AckArrives,
    Acked,
    /// No later packet has shown that it is lost.
    TimesOut,
}

impl Sender {
    /// How many packets in flight left before this one.
    fn before(&self, packet: u64) -> usize {
        self.flying.partition_point(|flying| flying.0 < packet)
    }
}

impl Hosts {
    fn new(mbit: &[f64], loss: f64) -> Self {
        let now = Instant::now();
        let line = |mbit: &f64| Line {
            rate: mbit * 1e6 / 8.0,
            free_at: [now; 2],
        };
        let mut flows = vec![];
        for from in 0..mbit.len() {
            let uplink = Arc::new(Uplink::default());
            for to in (0..mbit.len()).filter(|to| *to != from) {
                flows.push(Sender {
                    from,
                    to,
                    model: Model::new(now, MTU as u16, uplink.join()),
                    left: 0,
                    flying: VecDeque::new(),
                    rtt: 2 * ONE_WAY,
                    next: now,
                    called: false,
                    lost: 0,
                });
            }
        }
        Self {
            now,
            lines: mbit.iter().map(line).collect(),
            flows,
            events: BinaryHeap::new(),
            events_so_far: 0,
            loss,
            seed: 1,
        }
    }

    fn after(&mut self, delay: Duration, flow: usize, packet: u64, step: Step) {
        self.events_so_far += 1;
        let event = (self.now + delay, self.events_so_far, flow, packet, step);
        self.events.push(Reverse(event));
    }

    fn by_chance(&mut self) -> bool {
        self.seed = self
            .seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.seed >> 11) as f64 / (1u64 << 53) as f64) < self.loss
    }

    /// How long this many bytes take through a host's queue, if there is room.
    fn pass(&mut self, host: usize, way: usize, bytes: u64) -> Option<Duration> {
        let now = self.now;
        let Line { rate, free_at } = &mut self.lines[host];
        let backlog = free_at[way].saturating_duration_since(now);
        if bytes > 0 && backlog.as_secs_f64() * *rate > QUEUE {
            return None;
        }
        let delay = backlog + Duration::from_secs_f64(bytes as f64 / *rate);
        free_at[way] = now + delay;
        Some(delay)
    }

    fn send(&mut self, flow: usize) {
        loop {
            let now = self.now;
            let sender = &mut self.flows[flow];
            let window = sender.model.window();
            if sender.left == 0 || sender.model.in_flight + MTU >= window {
                return;
            }
            let packet = sender.model.last_sent + 1;
            if sender.next > now {
                if std::mem::replace(&mut sender.called, true) {
                    return;
                }
                let wait = sender.next - now;
                return self.after(wait, flow, packet, Step::MayLeave);
            }
            sender.next = sender.next.max(now - BURST) + sender.rtt.mul_f64(0.8 * MTU as f64 / window as f64);
            sender.left = sender.left.saturating_sub(MTU);
            sender.flying.push_back((packet, now));
            sender.model.on_sent(now, MTU, packet);
            let (from, rtt) = (sender.from, sender.rtt);
            match self.pass(from, OUT, MTU) {
                Some(delay) if !self.by_chance() => self.after(delay + ONE_WAY, flow, packet, Step::Arrives),
                _ => self.after(2 * rtt, flow, packet, Step::TimesOut),
            }
        }
    }

    fn loses(&mut self, flow: usize, packets: usize) {
        let now = self.now;
        let sender = &mut self.flows[flow];
        for _ in sender.flying.drain(..packets) {
            sender.left += MTU;
            sender.lost += MTU;
            sender.model.in_flight -= MTU;
            sender.model.on_congestion_event(now, now, false, MTU);
        }
    }

    fn acked(&mut self, flow: usize, packet: u64) {
        self.loses(flow, self.flows[flow].before(packet));
        let now = self.now;
        let sender = &mut self.flows[flow];
        if sender.flying.front().is_none_or(|flying| flying.0 != packet) {
            return;
        }
        let (_, sent) = sender.flying.pop_front().unwrap();
        sender.rtt = now - sent;
        sender.model.acked(now, sent, MTU);
        let in_flight = sender.model.in_flight - MTU;
        let model = &mut sender.model;
        model.on_end_acks(now, in_flight, sender.left == 0, Some(packet));
    }

    fn happens(&mut self, flow: usize, packet: u64, step: Step) {
        let Sender { from, to, rtt, .. } = self.flows[flow];
        match step {
            Step::MayLeave => self.flows[flow].called = false,
            Step::Arrives => match self.pass(to, IN, MTU) {
                Some(delay) => self.after(delay, flow, packet, Step::Delivered),
                None => self.after(2 * rtt, flow, packet, Step::TimesOut),
            },
            Step::Delivered => {
                let delay = self
                    .pass(to, OUT, 0)
                    .expect("an acknowledgement always finds room");
                self.after(delay + ONE_WAY, flow, packet, Step::AckArrives);
            }
            Step::AckArrives => {
                let delay = self
                    .pass(from, IN, 0)
                    .expect("an acknowledgement always finds room");
                self.after(delay, flow, packet, Step::Acked);
            }
            Step::Acked => self.acked(flow, packet),
            Step::TimesOut => self.loses(flow, self.flows[flow].before(packet + 1)),
        }
        self.send(flow);
    }

    /// Sends this many bytes from each host to each other; returns the seconds that it took.
    fn round(&mut self, bytes: u64) -> f64 {
        let start = self.now;
        for flow in 0..self.flows.len() {
            self.flows[flow].left = bytes;
            self.send(flow);
        }
        while self
            .flows
            .iter()
            .any(|flow| flow.left > 0 || !flow.flying.is_empty())
        {
            let next = self.events.pop();
            let Reverse((at, _, flow, packet, step)) = next.expect("what is under way arrives or is lost");
            self.now = self.now.max(at);
            self.happens(flow, packet, step);
        }
        (self.now - start).as_secs_f64()
    }

    /// Runs all-reduces of this many bytes, and returns the share of the bound that they reach after some rounds, and
    /// the share of lost packets.
    fn reached(&mut self, vector: u64, rounds: usize) -> (f64, f64) {
        let per_flow = 2 * vector / self.lines.len() as u64;
        let slowest = self.lines.iter().map(|line| line.rate).fold(f64::MAX, f64::min);
        let bound =
            per_flow as f64 * (self.lines.len() - 1) as f64 * (MTU + 28) as f64 / MTU as f64 / slowest;
        let (mut took, mut lost) = (0.0, 0);
        for round in 0..rounds + 2 {
            self.now += Duration::from_millis(300);
            if round == 2 {
                (took, lost) = (0.0, self.flows.iter().map(|flow| flow.lost).sum());
            }
            took += self.round(per_flow);
        }
        let all = self.flows.iter().map(|flow| flow.lost).sum::<u64>() - lost;
        let sent = per_flow * (self.flows.len() * rounds) as u64;
        (rounds as f64 * bound / took, all as f64 / sent as f64)
    }
}

#[test]
fn a_round_fills_the_lines_of_equal_hosts() {
    for loss in [0.0, 0.001] {
        let (reached, lost) = Hosts::new(&[100.0; 4], loss).reached(16 << 20, 3);
        assert!(
            reached > 0.9 && lost < loss + 0.01,
            "{reached:.3} of the bound, {lost:.4} lost, loss {loss}"
        );
    }
}

#[test]
fn a_round_fills_the_line_of_one_slow_host() {
    for loss in [0.0, 0.001] {
        let (reached, lost) = Hosts::new(&[100.0, 20.0, 100.0, 100.0], loss).reached(4 << 20, 6);
        assert!(
            reached > 0.9 && lost < loss + 0.03,
            "{reached:.3} of the bound, {lost:.4} lost, loss {loss}"
        );
    }
}
