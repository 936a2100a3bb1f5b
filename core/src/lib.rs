//! The protocol of Annulus, pure: no sockets, clocks, threads or files.
//!
//! A *run* is one training job. Its *members* hold the same *state* (parameters, optimizer state) and
//! the same *ledger* (the committed *rounds*). In a round each member makes a *contribution*, the sum of
//! gradients over its share of samples; an all-reduce gives all members the same total, bit for bit;
//! each applies it on its own and derives from the headers that rode along who takes part in the next
//! round. There is no master and, while all are healthy, no other message.
//!
//! The code is in rooms, each with one subject; a room imports only from those above it in this list:
//!
//! - `base`: ids, time, randomness;
//! - `numeric`: optimizers, codecs, error feedback;
//! - `access`: keys and grants ([`signature`], [`invitation`]);
//! - `run`: the facts of a run ([`config`], [`split`], [`shuffle`]);
//! - `placement`: pipeline parallelism as arithmetic ([`stages`]);
//! - [`ledger`]: what a round records, and what follows from it;
//! - [`wire`]: the messages, and who may send which ([`rights`]);
//! - [`collective`]: the all-reduce;
//! - [`state`]: parameters and optimizer state, and how rounds change them;
//! - `reach`: links, relays, deadlines;
//! - [`peer`]: the state machine, its phases, and all that a driver sees ([`interface`]);
//! - `sim`: the simulated world.
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

mod access;
mod base;
pub mod collective;
pub mod ledger;
mod numeric;
pub mod peer;
pub mod placement;
mod reach;
mod run;
#[cfg(feature = "sim")]
pub mod sim;
pub mod state;
pub mod wire;

pub use access::{invitation, signature};
pub use base::{id, planted, random};
pub use ledger::{
    admission, allot, aside, back, check, claim, conviction, cut, decision, fork, keepers, keeps, local,
    pace, route, saved, seal, shifts, tickets, trials,
};
pub use numeric::{codec, feedback, optim, vector};
pub use peer::{interface, reason};
pub use placement as stages;
pub use reach::detector;
pub use run::{config, initial, parts, room, shuffle, split};
pub use state::{moments, recompute};
pub use wire::rights;

pub use base::time::Time;
pub use config::{DataSource, Layout, Manifest, Settings, TensorSpec, Topology};
pub use id::{Contact, Digest, PeerId, Round, RunId};
pub use initial::Initial;
pub use peer::{Change, Event, Exit, Input, Lane, OutcastReason, Output, Peer, Reason};
pub use room::Room;
pub use state::State;
