//! The state machine of a peer, its phases, and all that a driver and a peer say to each other.
//!
//! - What a driver sees: `machine` (the peer), `interface` (inputs and outputs), `reason`.
//! - Phases: `newcomer` with `catchup` (fetching the state), `member`, `lingering`; `next` (from phase to phase),
//!   `shared` (the context of all).
//! - A member's round: `contribution` from the `device` and its `speed`, the reduce in `member`, then `commit` and
//!   `barren` (when nothing is finite). `spot_check` has some of guests' work computed
//!   again, and `spot` compares it.
//! - Others: `agreement` after a failure, `late` (peers that are behind), `meeting` (other lineages), `sponsor`
//!   (newcomers that follow).
//! - Kept parts: `handover`, `keeping`, `disk`.

pub(crate) mod agreement;
pub(crate) mod barren;
pub(crate) mod catchup;
pub(crate) mod commit;
pub(crate) mod contribution;
pub(crate) mod device;
pub(crate) mod disk;
pub(crate) mod handover;
pub mod interface;
pub(crate) mod keeping;
pub(crate) mod late;
pub(crate) mod lingering;
pub(crate) mod machine;
pub(crate) mod meeting;
pub(crate) mod member;
pub(crate) mod newcomer;
pub(crate) mod next;
pub mod reason;
pub(crate) mod shared;
pub(crate) mod speed;
pub(crate) mod sponsor;
pub(crate) mod spot;
pub(crate) mod spot_check;

pub use interface::{Commit, Event, Exit, Input, Lane, Output};
pub use machine::Peer;
#[cfg(feature = "sim")]
pub(crate) use machine::Phase;
pub use reason::{Change, OutcastReason, Reason};
