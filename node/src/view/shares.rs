//! Where a peer's time goes.

use serde::Serialize;

/// Shares of a peer's time. The rest went into the state, or was idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeShares {
    /// It computed.
    pub compute: f64,
    /// It exchanged, or waited for others, and did nothing else.
    pub exchange: f64,
    /// It exchanged while it computed.
    pub hidden: f64,
    /// Speed-up over this peer alone: samples of the run per sample of this peer, while it computes. None if it computed nothing.
    pub speed_up: Option<f64>,
}

impl TimeShares {
    /// The shares of `seconds`, in which a run counted `samples`, `own` of them by this peer.
    pub(super) fn of(seconds: f64, (compute, exchange): (f64, f64), (samples, own): (u64, u64)) -> Self {
        let hidden = (compute + exchange - seconds).clamp(0.0, exchange.max(0.0));
        let speed_up = samples as f64 / own as f64 * (compute / seconds);
        Self {
            compute: compute / seconds,
            exchange: (exchange - hidden) / seconds,
            hidden: hidden / seconds,
            speed_up: (own > 0 && compute > 0.0).then_some(speed_up),
        }
    }
}
