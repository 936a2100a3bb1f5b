//! Being found on the local network, and being let in there by a short code.
//!
//! [`announcement`] is what is told to everybody by multicast DNS, and what others tell. Nothing of it lets anybody in, and
//! nothing of it is believed: whom one has found shows itself when one comes by a ticket, or by the code that a member shows
//! its user. [`code`] is what that is, [`pake`] how two ends that know the same code get a key from it, [`door`] how often it
//! may be tried, and [`visit`] what passes between the two ends.
//!
//! It must not know who looks, nor what becomes of a ticket.

pub mod announcement;
pub mod code;
pub mod door;
pub mod multicast;
pub mod pake;
pub mod visit;
