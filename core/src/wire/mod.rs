//! The messages between peers: their encoding, their limits, and who may send which of them.

pub(crate) mod early;
pub(crate) mod message;
pub(crate) mod relayed;
pub mod rights;
pub(crate) mod view;

pub use crate::base::id::ViewKey;
pub use crate::ledger::claim::{Claim, Standing};
pub use message::{Doing, Envelope, Lane, Leg, META_LIMIT, Message, PAYLOAD_LIMIT, Slow, VERSION, WireError};
