//! Links as a transport over UDP provides them: two ordered lanes each way, with a delay and a rate. Connections
//! come up at both ends, and go down at each end in its own time. A silent link holds frames and delivers them
//! late, or gives up and loses them. It does not know what messages mean.

use super::plan::{MOST_PEERS, Plan};
use super::rng::Rng;
use crate::base::random::mix;
use crate::peer::Lane;
use crate::wire::Message;

/// Bytes of a frame besides its payload. A guess: enough for the headers of a small ring.
const FRAME_BYTES: usize = 120;

/// One direction of a link.
#[derive(Debug, Default)]
pub(super) struct Direction {
    /// Number of faults that block it.
    pub blocked: u32,
    /// Messages sent while it was blocked.
    pub held: Vec<(Lane, Message)>,
    latency_us: u64,
    extra_us: u64,
    us_per_byte: f64,
    /// When the last frame of each lane arrives: no frame overtakes one of its own lane.
    last: [u64; 2],
    /// When the bulk lane has sent all its frames.
    free_at: u64,
}

/// A pair of peers: at most one connection at a time.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// From the lower-numbered peer, and to it.
    pub ways: [Direction; 2],
    /// Number of the connection. Frames of an older one are lost.
    pub connection: u32,
    /// Whether each end believes that the connection is up.
    pub up: [bool; 2],
    /// Changes whenever a block begins or ends, which makes stale idle timeouts harmless.
    pub version: u32,
}

/// All links.
pub(super) struct Net {
    links: Vec<Link>,
    latency_us: f64,
    rate_bytes_per_s: f64,
    slow_line: f64,
    seed: u64,
}

impl Net {
    pub fn new(plan: &Plan, seed: u64) -> Self {
        let links = (0..MOST_PEERS * MOST_PEERS).map(|_| Link::default()).collect();
        let mut net = Self {
            links,
            latency_us: plan.latency_us,
            rate_bytes_per_s: plan.rate_bytes_per_s,
            slow_line: plan.slow_line,
            seed,
        };
        for low in 0..MOST_PEERS {
            for high in low + 1..MOST_PEERS {
                net.draw(low, high);
            }
        }
        net
    }

    /// Draws a link's properties: near and far pairs, and unequal directions.
    fn draw(&mut self, low: usize, high: usize) {
        let mut rng = Rng::new(mix(self.seed ^ (low * MOST_PEERS + high) as u64));
        let (latency_us, rate) = (self.latency_us, self.rate_bytes_per_s);
        let rate = if low == 1 || high == 1 {
            rate / self.slow_line
        } else {
            rate
        };
        let base = rng.octaves(0.3, 3.0) * latency_us;
        for way in &mut self.link(low, high).ways {
            way.latency_us = (base * rng.octaves(0.8, 1.25)) as u64 + 1;
            way.us_per_byte = 1e6 / (rate * rng.octaves(0.5, 2.0));
        }
    }

    /// The link of two peers.
    pub fn link(&mut self, a: usize, b: usize) -> &mut Link {
        debug_assert_ne!(a, b);
        &mut self.links[a.min(b) * MOST_PEERS + a.max(b)]
    }

    /// One direction.
    pub fn way(&mut self, from: usize, to: usize) -> &mut Direction {
        &mut self.link(from, to).ways[usize::from(from > to)]
    }

    /// Whether an end believes that its connection is up.
    pub fn is_up(&mut self, end: usize, other: usize) -> bool {
        self.link(end, other).up[usize::from(end > other)]
    }

    /// Sets the belief of an end. True if that is a change.
    pub fn set_up(&mut self, end: usize, other: usize, up: bool) -> bool {
        std::mem::replace(&mut self.link(end, other).up[usize::from(end > other)], up) != up
    }

    /// Whether both ends have a connection.
    pub fn is_linked(&self, a: usize, b: usize) -> bool {
        self.links[a.min(b) * MOST_PEERS + a.max(b)].up == [true; 2]
    }

    /// Whether frames pass in both directions.
    pub fn is_open(&mut self, a: usize, b: usize) -> bool {
        self.link(a, b).ways.iter().all(|way| way.blocked == 0)
    }

    pub fn delay(&mut self, from: usize, to: usize, extra_us: u64) {
        self.way(from, to).extra_us = extra_us;
    }

    /// There and back.
    pub fn round_trip_us(&mut self, a: usize, b: usize) -> u64 {
        self.link(a, b)
            .ways
            .iter()
            .map(|way| way.latency_us + way.extra_us)
            .sum()
    }

    /// A fresh connection.
    pub fn connect(&mut self, a: usize, b: usize) {
        let link = self.link(a, b);
        link.connection += 1;
        link.version += 1;
        link.up = [true; 2];
        for way in &mut link.ways {
            way.held.clear();
            way.last = [0; 2];
            way.free_at = 0;
        }
    }

    /// When a frame that is sent now arrives.
    pub fn arrival(
        &mut self,
        now: u64,
        from: usize,
        to: usize,
        lane: Lane,
        message: &Message,
        rng: &mut Rng,
    ) -> u64 {
        let bytes = FRAME_BYTES + payload_len(message);
        let way = self.way(from, to);
        let took = (bytes as f64 * way.us_per_byte) as u64;
        let sent = match lane {
            Lane::Control => now + took,
            Lane::Bulk => {
                way.free_at = way.free_at.max(now) + took;
                way.free_at
            }
        };
        let wobble = rng.below(1 + way.latency_us / 8);
        let last = &mut way.last[lane as usize];
        *last = (*last).max(sent + way.latency_us + way.extra_us + wobble);
        *last
    }

    /// When the last frame under way arrives.
    pub fn drained_at(&mut self, from: usize, to: usize) -> u64 {
        self.way(from, to).last.into_iter().max().unwrap_or(0)
    }
}

fn payload_len(message: &Message) -> usize {
    match message {
        Message::Piece { data, headers, .. } => data.len() + 100 * headers.len(),
        Message::Block { data, .. } | Message::Digests { data, .. } => data.len(),
        Message::Relay { frame, .. } => frame.len(),
        _ => 0,
    }
}
