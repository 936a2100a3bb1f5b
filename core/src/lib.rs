//! The protocol of Annulus, pure: no sockets, clocks, threads or files.
//!
//! A *run* is one training job. Its *members* hold the same *state* (parameters, optimizer state) and
//! the same *ledger* (the committed *rounds*). In a round each member makes a *contribution*, the sum of
//! gradients over its share of samples; an all-reduce gives all members the same total, bit for bit;
//! each applies it on its own and derives from the headers that rode along who takes part in the next
//! round. There is no master and, while all are healthy, no other message.
//!
//! Read in this order: [`interface`] and [`peer`] (all that a driver sees, and the phases of a peer), [`ledger`] (what a
//! round records and what follows from it) with [`allot`] (who works on what), [`check`] (what it must be), [`admission`] (who may name newcomers), [`invitation`] and [`tickets`] (who may come in), `member` (a member's way through a round) with `contribution`,
//! [`collective`] (the all-reduce), `agreement` (what follows from a failure), `newcomer`, `catchup` and `sponsor` (how
//! newcomers come in), `lingering` (who is done), [`wire`] (the messages), [`rights`] (who may say which of them when),
//! [`signature`] and [`conviction`] (who said what).
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

pub mod admission;
mod agreement;
pub mod allot;
mod allowance;
mod apply;
pub mod back;
mod barren;
mod catchup;
pub mod check;
pub mod claim;
pub mod codec;
pub mod collective;
mod commit;
pub mod config;
mod contribution;
pub mod conviction;
pub mod cut;
pub mod decision;
pub mod detector;
mod device;
mod disk;
mod early;
pub mod feedback;
mod flow;
pub mod fork;
mod handover;
pub mod id;
pub mod initial;
pub mod interface;
pub mod invitation;
pub mod keepers;
mod keeping;
pub mod keeps;
mod laggard;
mod late;
pub mod ledger;
mod lineage;
mod lingering;
mod links;
pub mod local;
mod meeting;
mod member;
pub mod moments;
mod newcomer;
mod next;
pub mod optim;
pub mod pace;
pub mod parts;
pub mod peer;
pub mod planted;
mod probation;
mod quotas;
pub mod random;
pub mod reason;
pub mod recompute;
mod relayed;
pub mod rights;
pub mod room;
pub mod route;
mod samples;
pub mod saved;
pub mod seal;
mod shared;
pub mod shifts;
pub mod shuffle;
pub mod signature;
#[cfg(feature = "sim")]
pub mod sim;
mod spans;
pub mod split;
mod sponsor;
pub mod stages;
#[cfg(any(test, feature = "sim"))]
mod stand_ins;
pub mod state;
mod stepping;
pub mod tickets;
mod time;
pub mod trials;
pub mod vector;
mod view;
mod ways;
mod wide;
pub mod wire;

pub use config::{DataSource, Layout, Manifest, Settings, TensorSpec, Topology};
pub use id::{Contact, Digest, PeerId, Round, RunId};
pub use initial::Initial;
pub use peer::{Change, Event, Exit, Input, Lane, OutcastReason, Output, Peer, Reason};
pub use room::Room;
pub use state::State;
pub use time::Time;
