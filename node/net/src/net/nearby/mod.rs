//! Finds runs on the local network, and admits peers there by a short code.
//!
//! [`announcement`] is what members announce by multicast DNS. It admits nobody, and nobody trusts it: a member proves
//! itself when you join with a ticket, or with the code that it shows to its user. [`code`] is that code, [`pake`]
//! derives a key from it, [`door`] limits tries, and [`visit`] is the exchange between the two ends.
//!
//! It does not know who searches, nor what happens with a ticket.

pub mod announcement;
pub mod code;
pub mod door;
pub mod multicast;
pub mod pake;
pub mod visit;
