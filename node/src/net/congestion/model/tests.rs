//! Controllers on a simulated path: rates, queues and losses that are known.

use super::*;
use std::collections::VecDeque;

const MTU: u64 = 1472;

/// A bottleneck with a tail-drop queue and chance losses, and a sender that always has something to send.
struct Path {
    model: Model,
    now: Instant,
    rate: f64,
    rtt: Duration,
    queue: f64,
    loss: f64,
    free_at: Instant,
    /// When each packet left, and when its acknowledgement comes, if it does.
    flying: VecDeque<(u64, Instant, Option<Instant>)>,
    seed: u64,
    acked: u64,
    lost: u64,
}

impl Path {
    fn new(mbit: f64, queue: f64, loss: f64) -> Self {
        let now = Instant::now();
        let rate = mbit * 1e6 / 8.0;
        let rtt = Duration::from_millis(50);
        let model = Model::new(now, MTU as u16);
        Self {
            model,
            now,
            rate,
            rtt,
            queue,
            loss,
            free_at: now,
            flying: VecDeque::new(),
            seed: 1,
            acked: 0,
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

    fn send(&mut self) {
        let in_flight = |path: &Self| path.flying.len() as u64 * MTU;
        while in_flight(self) + MTU < self.model.window {
            let backlog = self.free_at.saturating_duration_since(self.now).as_secs_f64() * self.rate;
            let lost = backlog > self.queue || self.chance() < self.loss;
            if backlog <= self.queue {
                self.free_at = self.free_at.max(self.now) + Duration::from_secs_f64(MTU as f64 / self.rate);
            }
            let packet = self.model.last_sent + 1;
            self.flying
                .push_back((packet, self.now, (!lost).then(|| self.free_at + self.rtt)));
            self.model.on_sent(self.now, MTU, packet);
        }
    }

    /// Sends for so long; the share of the rate that was used, and of the packets that were lost.
    fn run(&mut self, seconds: f64) -> (f64, f64) {
        let (acked, lost, start) = (self.acked, self.lost, self.now);
        while self.now - start < Duration::from_secs_f64(seconds) {
            self.send();
            let Some(at) = self.flying.iter().position(|flying| flying.2.is_some()) else {
                panic!("all {} packets in flight are lost", self.flying.len());
            };
            for _ in 0..at {
                self.flying.pop_front();
                self.lost += MTU;
                self.model.on_congestion_event(self.now, self.now, false, MTU);
            }
            let (packet, sent, arrives) = self.flying.pop_front().unwrap();
            self.now = self.now.max(arrives.unwrap());
            self.acked += MTU;
            self.model.acked(self.now, sent, MTU);
            let in_flight = self.flying.len() as u64 * MTU;
            self.model.on_end_acks(self.now, in_flight, false, Some(packet));
        }
        let (acked, lost) = ((self.acked - acked) as f64, (self.lost - lost) as f64);
        (acked / seconds / self.rate, lost / (acked + lost))
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
fn persistent_congestion_starts_again() {
    let mut path = Path::new(100.0, 200e3, 0.0);
    path.run(5.0);
    path.model.on_congestion_event(path.now, path.now, true, 10 * MTU);
    assert_eq!(path.model.window, path.model.initial_window());
    path.flying.clear();
    path.run(2.0);
    assert!(path.run(5.0).0 > 0.9);
}
