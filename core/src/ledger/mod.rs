//! What a round records, and what follows from the records alone. Every `impl Head` is here, so that all members derive
//! the same without asking each other.
//!
//! - Records: `record` (headers and records), `head` (where they lead), `check` (which records are possible).
//! - Shares: `samples` (the stream's cursor and holes), `allot`, `earned` (guests), `cut` and `local` (local steps), `stepping`, `route`
//!   (split runs).
//! - Measurements: `trials` of devices, `pace` (how members exchange), `aside` (slow newcomers).
//! - Kept parts: `keeps`, `keepers` (who should keep what), `spans`, `shifts` (planned moves), `saved` and `back`
//!   (going back to saved rounds).
//! - Admission: `admission` (sponsors), `tickets`, `revocations`, `accounts` (what guests of a ticket cost).
//! - Proofs: `decision`, `seal`, `conviction`, `claim` and `fork` (where lineages stand and part).

pub mod accounts;
pub mod admission;
pub mod allot;
pub mod aside;
pub mod back;
pub mod check;
pub mod claim;
pub mod conviction;
pub mod cut;
pub mod decision;
pub(crate) mod earned;
pub mod fork;
pub(crate) mod head;
pub mod keepers;
pub mod keeps;
pub mod local;
pub mod pace;
pub(crate) mod record;
pub mod revocations;
pub mod route;
pub(crate) mod samples;
pub mod saved;
pub mod seal;
pub mod shifts;
pub(crate) mod spans;
pub(crate) mod stepping;
pub mod tickets;
pub mod trials;

pub use head::Head;
pub(crate) use head::lineage;
pub use record::{Founder, Header, Member, Newcomer, Ready, Record, VERSION};
pub use trials::Trials;
