//! What a round records, and what follows from the records alone. Every `impl Head` is here, so that all members derive
//! the same without asking each other.

pub mod admission;
pub mod allot;
pub mod aside;
pub mod back;
pub mod check;
pub mod claim;
pub mod conviction;
pub mod cut;
pub mod decision;
pub mod fork;
pub(crate) mod head;
pub mod keepers;
pub mod keeps;
pub mod local;
pub mod pace;
pub mod route;
pub(crate) mod samples;
pub mod saved;
pub mod seal;
pub mod shifts;
pub(crate) mod spans;
pub(crate) mod stepping;
pub mod tickets;
pub mod trials;

pub(crate) use head::lineage;
pub use head::{Founder, Head, Header, Member, Newcomer, Ready, Record, VERSION};
pub use trials::Trials;
