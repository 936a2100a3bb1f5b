//! Keys and grants: who signed a statement, and what right a peer has to take part.

pub mod invitation;
pub mod signature;
