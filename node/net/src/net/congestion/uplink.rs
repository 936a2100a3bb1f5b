//! Shares this machine's line among the connections of one endpoint.
//!
//! Each connection models its own path, but does not know what the other connections leave of this machine's line. Each
//! would claim the rate of its best moment, and together they would overfill the line and its queue. Losses would then
//! be random, and so would the shares. A member that sends equally much to all, as in the direct plan, would wait for
//! the slowest connection.
//!
//! So the connections add up what they send, and share the line's rate max-min fairly (Bertsekas and Gallager, "Data
//! Networks", 1992, section 6.5.2). A connection that needs less than an equal share leaves the rest to the others.
//!
//! It does not know why a connection has less to send, nor what the paths beyond are like.

use super::LOSS_BY_CHANCE;
use std::sync::{
    Arc, Mutex, MutexGuard, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use std::time::{Duration, Instant};

/// Time over which rates are measured, since acknowledgements come in bursts. A guess: two round trips of a long path.
const SAMPLE: Duration = Duration::from_millis(100);

/// Share of the rate that is forgotten with each sample that does not confirm it: half in 18 s of sending. A guess.
const FORGOTTEN: f64 = 1.0 / 256.0;

/// Share of the rate that is forgotten with each sample in which there was sometimes nothing to send: half in two
/// seconds. The rate of an unused line is unknown (as in RFC 7661). Otherwise a sender with little data, such as the
/// end of a pipeline, would send each time as fast as the line can, and overfill the queue of a receiver whose line
/// others use too. A guess.
const UNUSED: f64 = 1.0 / 32.0;

/// How much more than the rate is shared out. After a pause all queues are empty, and more than [`LEAST`] would begin
/// with a burst that overfills the queue. Later up to [`MOST`] keeps a short queue, so that the line never runs dry.
const MOST: f64 = 1.15;
const LEAST: f64 = 1.0;

/// By how much that grows with each sample without losses above chance, and shrinks with each sample with some.
/// Guesses.
const MORE: f64 = 0.03;
const LESS: f64 = 0.1;

/// A sample below this share of the rate says nothing about the line: there was little to send, or a path beyond was
/// narrow.
const TELLING: f64 = 0.25;

/// The line that an endpoint's connections share.
#[derive(Debug, Default)]
pub(crate) struct Uplink {
    flows: Mutex<Vec<Weak<Flow>>>,
    line: Mutex<Line>,
}

/// One connection's share.
#[derive(Debug)]
pub(super) struct Flow {
    uplink: Arc<Uplink>,
    /// Bytes per second that it would send alone.
    demand: AtomicU64,
    /// Whether it sends everything that it may.
    greedy: AtomicBool,
}

/// The rate at which all connections' bytes were acknowledged.
#[derive(Debug)]
struct Line {
    /// The best recent rate, in bytes per second.
    rate: f64,
    /// The best rate ever: a line that is little used for a while has not become slower.
    most: f64,
    /// How much more than the rate is shared out.
    gain: f64,
    lost: u64,
    /// Whether there was sometimes nothing to send in this sample.
    idle: bool,
    sample: Option<Sample>,
    /// When the last packet that was acknowledged in the previous sample was sent.
    departure: Option<Instant>,
    last_sent: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    start: Instant,
    acked: u64,
    departure: Instant,
}

impl Uplink {
    /// Adds a connection.
    pub(super) fn join(self: &Arc<Self>) -> Arc<Flow> {
        let flow = Arc::new(Flow {
            uplink: self.clone(),
            demand: AtomicU64::new(0),
            greedy: AtomicBool::new(false),
        });
        let mut flows = lock(&self.flows);
        flows.retain(|flow| flow.strong_count() > 0);
        flows.push(Arc::downgrade(&flow));
        flow
    }

    /// The best rate ever, in bytes per second; 0 if it is unknown.
    pub fn most(&self) -> u64 {
        lock(&self.line).most as u64
    }
}

impl Flow {
    /// Notes that a packet of this connection is sent.
    pub fn sent(&self, now: Instant) {
        lock(&self.uplink.line).sent(now);
    }

    /// Notes that a packet of this connection is acknowledged.
    pub fn acked(&self, now: Instant, sent: Instant, bytes: u64) {
        lock(&self.uplink.line).acked(now, sent, bytes);
    }

    /// Notes that bytes of this connection were lost.
    pub fn lost(&self, bytes: u64) {
        lock(&self.uplink.line).lost += bytes;
    }

    /// Bytes per second that this connection may send. `demand` is what it would send alone; `greedy` says that it
    /// sends everything that it may. Infinite while nothing is known of the line.
    pub fn share(&self, demand: f64, greedy: bool) -> f64 {
        self.demand.store(demand as u64, Relaxed);
        self.greedy.store(greedy, Relaxed);
        let flows = lock(&self.uplink.flows);
        let others = flows.iter().filter_map(Weak::upgrade);
        let others: Vec<Arc<Flow>> = others
            .filter(|flow| !std::ptr::eq(Arc::as_ptr(flow), self))
            .collect();
        drop(flows);
        let is_idle = !greedy && !others.iter().any(|flow| flow.greedy.load(Relaxed));
        let others = others
            .iter()
            .map(|flow| flow.demand.load(Relaxed) as f64)
            .collect();
        let mut line = lock(&self.uplink.line);
        line.idle |= is_idle;
        match line.shared_out() {
            0.0 => f64::INFINITY,
            rate => fair_share(rate, others),
        }
    }
}

impl Default for Line {
    fn default() -> Self {
        Self {
            rate: 0.0,
            most: 0.0,
            gain: LEAST,
            lost: 0,
            idle: false,
            sample: None,
            departure: None,
            last_sent: None,
        }
    }
}

impl Line {
    fn shared_out(&self) -> f64 {
        self.gain * self.rate
    }

    fn sent(&mut self, now: Instant) {
        let pause = self.last_sent.map(|last| now.saturating_duration_since(last));
        if pause.is_some_and(|pause| pause > SAMPLE) {
            self.gain = LEAST;
        }
        self.last_sent = Some(now);
    }

    fn acked(&mut self, now: Instant, sent: Instant, bytes: u64) {
        let Some(sample) = &mut self.sample else {
            self.sample = Some(Sample {
                start: now,
                acked: bytes,
                departure: sent,
            });
            return;
        };
        sample.acked += bytes;
        sample.departure = sample.departure.max(sent);
        let took = now.saturating_duration_since(sample.start);
        if took < SAMPLE {
            return;
        }
        // Acknowledgements may come in bursts, but nothing arrives faster than it was sent.
        let sending = self
            .departure
            .map(|before| sample.departure.saturating_duration_since(before));
        let rate = sample.acked as f64 / took.max(sending.unwrap_or_default()).as_secs_f64();
        self.departure = Some(sample.departure);
        let lost = std::mem::take(&mut self.lost) as f64;
        self.gain = match lost > LOSS_BY_CHANCE * (lost + sample.acked as f64) {
            true => (self.gain - LESS).max(LEAST),
            false => (self.gain + MORE).min(MOST),
        };
        *sample = Sample {
            start: now,
            acked: 0,
            departure: sample.departure,
        };
        let forgotten = match std::mem::take(&mut self.idle) {
            true => UNUSED,
            false => FORGOTTEN,
        };
        if rate > self.rate * TELLING {
            self.rate = rate.max(self.rate * (1.0 - forgotten));
            self.most = self.most.max(self.rate);
        }
    }
}

/// What is left of a rate for one more connection that others use too. It gets at least an equal share of what the
/// light users leave.
fn fair_share(rate: f64, mut others: Vec<f64>) -> f64 {
    others.sort_by(f64::total_cmp);
    let mut left = rate;
    for (i, used) in others.iter().enumerate() {
        let equal = left / (others.len() - i + 1) as f64;
        if *used >= equal {
            return equal;
        }
        left -= used;
    }
    left
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_shared_max_min_fairly() {
        for (others, share) in [
            (&[][..], 90.0),
            (&[0.0, 0.0], 90.0),
            (&[10.0], 80.0),
            (&[45.0], 45.0),
            (&[90.0], 45.0),
            (&[90.0, 90.0], 30.0),
            (&[60.0, 10.0], 40.0),
            (&[10.0, 20.0], 60.0),
            (&[0.0, 100.0, 5.0], 42.5),
        ] {
            assert_eq!(fair_share(90.0, others.to_vec()), share, "{others:?}");
        }
    }
}
