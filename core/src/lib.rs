//! The protocol of Annulus, pure: no sockets, clocks, threads or files.
//!
//! A *run* is one training job. Its *members* hold the same *state* (parameters, optimizer state) and
//! the same *ledger* (the committed *rounds*). In a round each member makes a *contribution*, the sum of
//! gradients over its share of samples; a ring all-reduce gives all members the same total, bit for bit;
//! each applies it on its own and derives from the headers that rode along who takes part in the next
//! round. There is no master and, while all are healthy, no other message.
//!
//! Read in this order: [`peer`] (all that a driver sees), [`ledger`] (what a round records and what
//! follows from it), `round` (a member's way through a round), [`reduce`] and [`schedule`] (the
//! all-reduce), `flush` (agreement after a failure), `join`, `catchup` and `sponsor` (how newcomers come in),
//! [`wire`] (the messages).
//!
//! | word | meaning |
//! |---|---|
//! | view | the members of one attempt, in ring order |
//! | attempt | one try at a round's all-reduce in one view |
//! | chunk, piece | the share of the vector that one member owns; what of it travels in one frame |
//! | commit | the local act of applying a completed round |
//! | lineage | a ledger's history; two lineages differ after a partition |
//! | digest | BLAKE3 of the state after a round |
//! | sponsor | the member that a newcomer follows |
//! | hole | samples that were handed out and not counted: they are handed out again first |

mod apply;
mod catchup;
pub mod codec;
pub mod config;
pub mod detector;
mod flush;
pub mod id;
mod join;
pub mod ledger;
mod links;
pub mod optim;
pub mod peer;
pub mod planted;
pub mod reduce;
mod round;
pub mod schedule;
pub mod shuffle;
#[cfg(feature = "sim")]
pub mod sim;
mod sponsor;
pub mod state;
mod time;
pub mod wire;

pub use config::{Layout, Manifest, Settings, TensorSpec};
pub use id::{Contact, Digest, PeerId, Round, RunId};
pub use peer::{Event, Exit, Input, Lane, Output, Peer};
pub use state::State;
pub use time::Time;
