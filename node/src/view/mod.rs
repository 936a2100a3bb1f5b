//! A run as its events tell it: the one fold that the progress line, the demo, `/status` and `/metrics` read.
//!
//! Pure: events and times go in. Times are milliseconds since a moment that the caller chooses. This module holds all that can be
//! shown of a run, and leaves its looks to others.

mod curve;
mod logs;
mod run;
mod shares;
#[cfg(test)]
pub(crate) mod testing;

pub use curve::Curve;
pub use logs::{Agreement, Logs, PeerLog};
pub use run::{
    CHANGES, Computing, EVALUATIONS, Evaluation, MemberChange, PEERS, Peer, Phase, RATE_WINDOW_MS, Rates,
    RunView, Sample, Totals,
};
pub use shares::TimeShares;
