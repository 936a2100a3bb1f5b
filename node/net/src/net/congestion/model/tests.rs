//! Controllers on a simulated path with known rates, queues and losses.

use super::*;
use std::collections::VecDeque;

const MTU: u64 = 1472;

/// How much a late sender may catch up on.
const BURST: Duration = Duration::from_millis(2);

/// A bottleneck with a tail-drop queue and random losses, and the senders of one endpoint, which always have data
/// unless they are idle.
struct Path {
    senders: Vec<Sender>,
    now: Instant,
    rate: f64,
    rtt: Duration,
    queue: f64,
    loss: f64,
    free_at: Instant,
    /// Whether the other end sends as much, so that acknowledgements queue there as packets do here.
    both_ways: bool,
    /// Each packet's sender, number, departure, and when its acknowledgement arrives, if it does.
    flying: VecDeque<(usize, u64, Instant, Option<Instant>)>,
    seed: u64,
    lost: u64,
}

struct Sender {
    model: Model,
    in_flight: u64,
    acked: u64,
    idle: bool,
    /// The last packet's round-trip time, and when the next packet may leave: quinn spreads a window over 4/5 of it.
    rtt: Duration,
    next: Instant,
}

impl Sender {
    fn may_send(&self) -> bool {
        !self.idle && self.in_flight + MTU < self.model.window()
    }
}

impl Path {
    fn new(mbit: f64, queue: f64, loss: f64) -> Self {
        Self::shared(1, mbit, queue, loss)
    }

    fn shared(senders: usize, mbit: f64, queue: f64, loss: f64) -> Self {
        let now = Instant::now();
        let line = Arc::new(Uplink::default());
        let sender = |_| Sender {
            model: Model::new(now, MTU as u16, line.join()),
            in_flight: 0,
            acked: 0,
            idle: false,
            rtt: Duration::from_millis(50),
            next: now,
        };
        Self {
            senders: (0..senders).map(sender).collect(),
            now,
            rate: mbit * 1e6 / 8.0,
            rtt: Duration::from_millis(50),
            queue,
            loss,
            free_at: now,
            both_ways: false,
            flying: VecDeque::new(),
            seed: 1,
            lost: 0,
        }
    }

    fn chance(&mut self) -> f64 {
        self.seed = self
            .seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Sends everything that a sender may send now.
    fn send(&mut self, who: usize) {
        while self.senders[who].may_send() && self.senders[who].next <= self.now {
            let backlog = self.free_at.saturating_duration_since(self.now).as_secs_f64() * self.rate;
            let lost = backlog > self.queue || self.chance() < self.loss;
            if backlog <= self.queue {
                self.free_at = self.free_at.max(self.now) + Duration::from_secs_f64(MTU as f64 / self.rate);
            }
            let sender = &mut self.senders[who];
            let packet = sender.model.last_sent + 1;
            let queued = if self.both_ways { backlog / self.rate } else { 0.0 };
            let arrives = (!lost).then(|| self.free_at + self.rtt + Duration::from_secs_f64(queued));
            self.flying.push_back((who, packet, self.now, arrives));
            sender.in_flight += MTU;
            let window = sender.model.window() as f64;
            sender.next = sender.next.max(self.now - BURST) + sender.rtt.mul_f64(0.8 * MTU as f64 / window);
            sender.model.on_sent(self.now, MTU, packet);
        }
    }

    /// When the next packet may leave.
    fn next_departure(&self) -> Option<Instant> {
        let waiting = self.senders.iter().filter(|sender| sender.may_send());
        waiting.map(|sender| sender.next).min()
    }

    /// Sends for this long; returns each sender's share of the rate, and the share of lost packets.
    fn run_all(&mut self, seconds: f64) -> (Vec<f64>, f64) {
        let (lost, start) = (self.lost, self.now);
        let before: Vec<u64> = self.senders.iter().map(|sender| sender.acked).collect();
        while self.now - start < Duration::from_secs_f64(seconds) {
            (0..self.senders.len()).for_each(|who| self.send(who));
            let at = self.flying.iter().position(|flying| flying.3.is_some());
            let arrival = at.and_then(|at| self.flying[at].3);
            let departure = self.next_departure();
            if departure.is_some_and(|departure| arrival.is_none_or(|arrival| departure < arrival)) {
                self.now = departure.unwrap();
                continue;
            }
            let at = at.expect("not all packets in flight are lost");
            for (who, ..) in self.flying.drain(..at) {
                let sender = &mut self.senders[who];
                self.lost += MTU;
                sender.in_flight -= MTU;
                sender.model.on_congestion_event(self.now, self.now, false, MTU);
            }
            let (who, packet, sent, arrives) = self.flying.pop_front().unwrap();
            self.now = self.now.max(arrives.unwrap());
            let sender = &mut self.senders[who];
            sender.rtt = self.now - sent;
            sender.acked += MTU;
            sender.in_flight -= MTU;
            sender.model.acked(self.now, sent, MTU);
            sender
                .model
                .on_end_acks(self.now, sender.in_flight, sender.idle, Some(packet));
        }
        let acked = self
            .senders
            .iter()
            .zip(before)
            .map(|(sender, before)| sender.acked - before);
        let acked: Vec<f64> = acked.map(|acked| acked as f64).collect();
        let lost = (self.lost - lost) as f64;
        let share = lost / (acked.iter().sum::<f64>() + lost);
        let used = acked.iter().map(|acked| acked / seconds / self.rate);
        (used.collect(), share)
    }

    fn run(&mut self, seconds: f64) -> (f64, f64) {
        let (used, lost) = self.run_all(seconds);
        (used.iter().sum(), lost)
    }
}

#[test]
fn a_path_is_filled_whatever_its_queue_and_chance_losses() {
    for (queue, loss) in [
        (200e3, 0.0),
        (200e3, 0.001),
        (200e3, 0.01),
        (60e3, 0.0),
        (60e3, 0.001),
        (2e6, 0.001),
    ] {
        let mut path = Path::new(100.0, queue, loss);
        let (start, _) = path.run(5.0);
        assert!(
            start > 0.8,
            "{start:.2} of the rate in the first seconds, queue {queue}, loss {loss}"
        );
        let (used, lost) = path.run(20.0);
        assert!(
            used > 0.9,
            "{used:.2} of the rate used, queue {queue}, loss {loss}"
        );
        assert!(lost < loss + 0.025, "{lost:.3} lost, queue {queue}, loss {loss}");
    }
}

#[test]
fn the_standing_queue_is_short() {
    let mut path = Path::new(100.0, 10e6, 0.0);
    path.run(20.0);
    let backlog = path.free_at.saturating_duration_since(path.now);
    assert!(
        backlog < path.rtt / 2,
        "{backlog:?} of packets wait in a queue that would hold 800 ms"
    );
}

#[test]
fn a_path_that_changes_is_followed() {
    let mut path = Path::new(100.0, 200e3, 0.001);
    path.run(10.0);
    path.rate /= 5.0;
    path.run(5.0);
    let (used, lost) = path.run(10.0);
    assert!(
        used > 0.9 && lost < 0.05,
        "after a drop: {used:.2} used, {lost:.3} lost"
    );
    path.rate *= 5.0;
    path.run(5.0);
    let (used, _) = path.run(10.0);
    assert!(used > 0.9, "after a rise: {used:.2} used");
    path.rtt *= 2;
    path.run(15.0);
    let (used, _) = path.run(10.0);
    assert!(used > 0.85, "on a longer route: {used:.2} used");
}

#[test]
fn connections_of_one_endpoint_share_its_line() {
    for loss in [0.0, 0.001] {
        let mut path = Path::shared(3, 100.0, 200e3, loss);
        path.run(5.0);
        let (used, lost) = path.run_all(2.0);
        assert!(
            used.iter().all(|used| (0.27..0.37).contains(used)),
            "{used:.2?} of the rate used by three, loss {loss}"
        );
        assert!(lost < loss + 0.025, "{lost:.3} lost by three, loss {loss}");
        // The third sender gets at once what two leave.
        path.senders[1].idle = true;
        path.senders[2].idle = true;
        path.run(0.3);
        let (used, _) = path.run(0.7);
        assert!(
            used > 0.9,
            "{used:.2} of the rate used by the one that is left, loss {loss}"
        );
        path.senders[1].idle = false;
        path.run(0.3);
        let (used, lost) = path.run_all(0.7);
        assert!(
            used[..2].iter().all(|used| (0.4..0.55).contains(used)),
            "{used:.2?} of the rate used by two, loss {loss}"
        );
        assert!(lost < loss + 0.025, "{lost:.3} lost by two, loss {loss}");
    }
}

#[test]
fn rounds_do_not_begin_with_a_burst() {
    let mut path = Path::shared(3, 100.0, 200e3, 0.0);
    path.both_ways = true;
    path.run(5.0);
    for _ in 0..3 {
        for sender in &mut path.senders {
            (sender.in_flight, sender.next) = (0, path.now);
        }
        path.flying.clear();
        path.now += Duration::from_secs(1);
        let (used, lost) = path.run(0.3);
        assert!(
            used > 0.7 && lost < 0.002,
            "just after a pause: {used:.2} of the rate used, {lost:.3} lost"
        );
    }
}

#[test]
fn persistent_congestion_starts_again() {
    let mut path = Path::new(100.0, 200e3, 0.0);
    path.run(5.0);
    let sender = &mut path.senders[0];
    sender
        .model
        .on_congestion_event(path.now, path.now, true, 10 * MTU);
    assert_eq!(sender.model.window, sender.model.initial_window());
    sender.in_flight = 0;
    path.flying.clear();
    path.run(2.0);
    assert!(path.run(5.0).0 > 0.9);
}
