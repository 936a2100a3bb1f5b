//! A run as its events tell it: the one fold that the progress line, the demo, `/status` and `/metrics` read.
//!
//! Pure: events and times go in. Times are milliseconds since whatever moment the caller chose. How things look is for
//! those who show them: what can be shown is what is here, and all of it comes from events.

mod curve;
mod logs;
mod run;
#[cfg(test)]
pub(crate) mod testing;

pub use curve::Curve;
pub use logs::{Agreement, Logs, PeerLog};
pub use run::{
    CHANGES, EVALUATIONS, Evaluation, MemberChange, PEERS, Peer, Phase, RATE_WINDOW_MS, Rates, RunView,
    TimeShares, Totals,
};
