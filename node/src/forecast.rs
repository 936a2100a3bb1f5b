//! Predicts what training together gives on given links, from bytes and delays.
//!
//! Pure: numbers go in and come out. It counts samples, and does not know what late gradients and local steps cost in
//! learning.

pub mod members;

use annulus_core::Topology;
use annulus_core::codec::Codec;
use annulus_core::cut::LEAD;
use annulus_core::pace::local_batches;

/// The share of a line's rate that an exchange reaches, measured over emulated lines of 100 Mbit/s and 50 ms: 88 to 91
/// %.
pub(crate) const REACHED: f64 = 0.88;

/// The peers and the lines between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Parameters of the model.
    pub elements: usize,
    /// Samples of a batch, over all peers.
    pub batch: f64,
    /// Peers.
    pub peers: usize,
    /// Samples that each computes per second.
    pub speed: f64,
    /// Bytes per second that each can send, and receive.
    pub rate: f64,
    /// Round-trip time in seconds.
    pub round_trip: f64,
}

/// How peers may train together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Every batch is a round.
    EveryStep,
    /// Local steps, as many as the exchange requires. Part of the exchange runs during the first step of the next
    /// round.
    LocalSteps,
}

/// The forecast of one way of training together.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Forecast {
    /// Batches of a round.
    pub batches: f64,
    /// Seconds of an exchange.
    pub exchange_seconds: f64,
    /// Seconds of a round.
    pub round_seconds: f64,
    /// The share of the time in which nothing is computed.
    pub lost: f64,
    /// Samples per second, relative to one peer alone.
    pub speed_up: f64,
}

impl Conditions {
    /// How long the exchange of one vector takes.
    pub fn exchange_seconds(&self, topology: Topology, codec: Codec) -> f64 {
        let others = self.peers.saturating_sub(1) as f64;
        let delays = match topology {
            Topology::Ring => 2.0 * others,
            Topology::Direct => 2.0 * others.min(1.0),
        };
        let bytes = codec.encoded_len(self.elements) as f64 * 2.0 * others / self.peers as f64;
        bytes / (self.rate * REACHED) + delays * self.round_trip / 2.0
    }

    /// The forecast of a way of training together.
    pub fn forecast(&self, mode: Mode, topology: Topology, codec: Codec) -> Forecast {
        let exchange = self.exchange_seconds(topology, codec);
        let batch = self.batch / (self.speed * self.peers as f64);
        let batches = match mode {
            Mode::EveryStep => 1.0,
            Mode::LocalSteps => {
                let [exchange, batch] = [exchange, batch].map(|seconds| (seconds * 1e6).ceil() as u128);
                local_batches(self.elements, exchange, batch.max(1), true).max(1) as f64
            }
        };
        let hidden = match mode {
            Mode::EveryStep => 0.0,
            Mode::LocalSteps if batches > 1.0 => f64::from(LEAD) * batch,
            Mode::LocalSteps => 0.0,
        };
        let round = batches * batch + (exchange - hidden).max(0.0);
        let used = batches * batch / round;
        Forecast {
            batches,
            exchange_seconds: exchange,
            round_seconds: round,
            lost: 1.0 - used,
            speed_up: used * self.peers as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of 25.6 million parameters; a step of 12 samples takes each of four peers 2 s.
    const SMALL: Conditions = Conditions {
        elements: 25_600_000,
        batch: 48.0,
        peers: 4,
        speed: 6.0,
        rate: 12.5e6,
        round_trip: 0.05,
    };

    #[test]
    fn an_exchange_takes_its_bytes_and_its_delays() {
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-3, "{a} {b}");
        let bytes = 25.6e6 * 4.0 * 1.5 / (12.5e6 * REACHED);
        near(SMALL.exchange_seconds(Topology::Ring, Codec::F32), bytes + 0.15);
        near(SMALL.exchange_seconds(Topology::Direct, Codec::F32), bytes + 0.05);
        let two = Conditions { peers: 2, ..SMALL };
        let [ring, direct] = Topology::ALL.map(|topology| two.exchange_seconds(topology, Codec::Int8));
        near(ring, direct);
        let alone = Conditions { peers: 1, ..SMALL };
        assert_eq!(alone.exchange_seconds(Topology::Ring, Codec::F32), 0.0);
    }

    #[test]
    fn each_mode_gives_what_its_definition_says() {
        let every = SMALL.forecast(Mode::EveryStep, Topology::Ring, Codec::F32);
        assert!((every.round_seconds - 2.0 - every.exchange_seconds).abs() < 1e-9);
        assert!(every.speed_up < 1.0, "one alone is faster: {every:?}");
        let local = SMALL.forecast(Mode::LocalSteps, Topology::Direct, Codec::Int4);
        assert_eq!((local.lost, local.speed_up), (0.0, 4.0), "{local:?}");
        let far = Conditions {
            rate: 1.25e6,
            ..SMALL
        };
        let local = far.forecast(Mode::LocalSteps, Topology::Direct, Codec::Int4);
        assert!(local.lost > 0.1 && local.lost < 0.2, "{local:?}");
        for mode in [Mode::EveryStep, Mode::LocalSteps] {
            let alone = Conditions { peers: 1, ..SMALL }.forecast(mode, Topology::Direct, Codec::F32);
            assert_eq!((alone.speed_up, alone.lost), (1.0, 0.0));
        }
    }
}
