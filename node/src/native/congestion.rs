//! Which congestion controller a connection uses.

use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig};
use std::sync::Arc;

/// The choice of congestion controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC (RFC 9438): yields to every loss, so it is slow where packets get lost by chance.
    #[default]
    Cubic,
    /// QUIC's experimental BBR.
    Bbr,
}

impl Congestion {
    /// What makes the controllers of connections over a network.
    pub(super) fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Cubic => Arc::new(CubicConfig::default()),
            Self::Bbr => Arc::new(BbrConfig::default()),
        }
    }
}

/// What makes the controllers of connections within this machine. Its start must hold several packets of 64 KiB:
/// with less, the first probe for the packet size fills the window, and even a close waits behind it.
pub(super) fn local() -> Arc<dyn ControllerFactory + Send + Sync> {
    let mut cubic = CubicConfig::default();
    cubic.initial_window(LOCAL_WINDOW);
    Arc::new(cubic)
}

const LOCAL_WINDOW: u64 = 2 << 20;
