//! Chooses the congestion controller of a connection: on a network our own, [`model`].

mod model;
mod uplink;

use model::ModelFactory;
use quinn::congestion::{BbrConfig, Controller, ControllerFactory, CubicConfig};
use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};
pub(crate) use uplink::Uplink;

/// Losses up to this share are taken for random (`BBRLossThresh` of BBRv2).
const LOSS_BY_CHANCE: f64 = 0.02;

/// The congestion controllers to choose from, measured in a ring of four with 100 Mbit/s, 50 ms and 0.1 % loss:
///
/// | controller | Mbit/s per link |
/// |---|---|
/// | model | 87 to 89 |
/// | CUBIC | 14 to 19 |
/// | BBR | 85 to 86, and it sends every packet twice |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Our own, based on the measured rate and round-trip time.
    #[default]
    Model,
    /// CUBIC (RFC 9438) backs off after every loss. For networks where nobody else may be disturbed.
    Cubic,
    /// quinn's experimental BBR. Fast, but it overfills queues and sends nearly everything twice.
    Bbr,
}

impl Congestion {
    /// A factory for the controllers of one endpoint's connections over a network. They share this line.
    pub(crate) fn factory(self, line: &Arc<Uplink>) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Model => Arc::new(ModelFactory(line.clone())),
            Self::Cubic => Arc::new(CubicConfig::default()),
            Self::Bbr => Arc::new(BbrConfig::default()),
        }
    }
}

/// A factory for the controllers of connections within this machine. The initial window must hold several packets of 64
/// KiB, or the first probe for the packet size fills it and even a close waits. The window must not outgrow the
/// receiver's socket buffer, since there is no other queue: CUBIC alone grows until 2 to 3 % of the datagrams are
/// dropped there, more under load.
pub(crate) fn local() -> Arc<dyn ControllerFactory + Send + Sync> {
    Arc::new(LocalFactory)
}

const LOCAL_WINDOW: u64 = 2 << 20;

/// The window for a browser's tab: its datagrams are of 1.5 KB, each of which takes 2.3 KB of a socket buffer, and a browser
/// asks for 1 MiB of that. With [`LOCAL_WINDOW`] a tenth of them was lost on a busy machine, and what was left was 1 MB/s.
///
/// MB/s on loopback, two busy cores, Chromium 156, medians of 3 x 16 MiB (`cargo xtask bench-browser --link`). The window
/// is this one towards the tab and the receive window from it; the frames are of 4 to 1024 KiB. Below 256 KiB there is less
/// room for a process that is off the processor, above 1 MiB datagrams are lost. From the tab on, windows make no
/// difference that can be told from the noise, so there it is [`WINDOW`](crate::net::transport::WINDOW), which a network needs.
///
/// | window | to the tab, 4 / 16 / 64 / 256 / 1024 KiB | from it | both at once, each way |
/// |---|---|---|---|
/// | 64 KiB | 167 / 163 / 176 / 159 / 169 | 91 / 112 / 70 / 130 / 100 | 27 / 81 / 89 / 90 / 83 |
/// | 128 KiB | 148 / 200 / 181 / 198 / 209 | 106 / 110 / 93 / 100 / 87 | 85 / 97 / 91 / 98 / 96 |
/// | 256 KiB | 196 / 208 / 201 / 208 / 207 | 95 / 102 / 101 / 140 / 135 | 83 / 96 / 97 / 94 / 92 |
/// | 512 KiB | 185 / 213 / 219 / 204 / 203 | 101 / 131 / 134 / 127 / 159 | 72 / 98 / 91 / 99 / 101 |
/// | 1 MiB | 194 / 222 / 209 / 200 / 208 | 124 / 152 / 151 / 125 / 114 | 81 / 91 / 99 / 93 / 90 |
/// | 2 MiB | 91 / 108 / 120 / 141 / 137 | 64 / 116 / 63 / 67 / 115 | 73 / 93 / 95 / 102 / 99 |
/// | 4 MiB | 99 / 130 / 153 / 110 / 143 | 61 / 70 / 95 / 123 / 131 | 78 / 97 / 98 / 100 / 92 |
///
/// So a frame of a piece ([`Manifest::PIECE`](annulus_core::Manifest::PIECE)) is of a good size for tabs too.
pub(crate) const LOCAL_TAB_WINDOW: u64 = 256 << 10;

/// CUBIC that starts at [`LOCAL_WINDOW`] and never exceeds it.
struct LocalFactory;

impl ControllerFactory for LocalFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let mut cubic = CubicConfig::default();
        cubic.initial_window(LOCAL_WINDOW);
        Box::new(Local {
            inner: Arc::new(cubic).build(now, mtu),
            most: Arc::new(AtomicU64::new(LOCAL_WINDOW)),
        })
    }
}

/// Limits the window of a connection within this machine to what a browser's tab can take. Only the handshake shows
/// that a tab is at the other end, when the controller already works.
pub(crate) fn suit_tab(connection: &quinn::Connection, window: u64) {
    if let Ok(local) = connection.congestion_state().into_any().downcast::<Local>() {
        local.most.store(window, Relaxed);
    }
}

struct Local {
    inner: Box<dyn Controller>,
    /// Shared by the controller's clones.
    most: Arc<AtomicU64>,
}

impl Controller for Local {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &quinn_proto::RttEstimator,
    ) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        // At the bound there is no reason to grow.
        let app_limited = app_limited || self.inner.window() >= self.most.load(Relaxed);
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window().min(self.most.load(Relaxed))
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            most: self.most.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
