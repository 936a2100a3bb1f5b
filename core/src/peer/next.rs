//! How a phase of a peer ends. Phases only return it; `machine.rs` changes the phase.

use crate::base::id::PeerId;
use crate::peer::interface::Exit;
use crate::peer::reason::OutcastReason;
use crate::peer::sponsor::Sponsor;

/// What comes after a phase.
pub(crate) enum Next {
    /// The phase goes on.
    Stay,
    /// The round after the head begins, with this peer as a member with these followers.
    Round(Sponsor),
    /// This peer is not a member any more, and joins again.
    Outcast(Outcast),
    /// This peer is done, and stays for a while to answer others.
    Finish(Exit),
    /// This peer is done, and nobody can need it.
    Exit(Exit),
}

/// Why a peer ceases to be a member.
#[derive(Debug)]
pub(crate) struct Outcast {
    pub reason: OutcastReason,
    /// The peer that reported it, through which this one joins again.
    pub via: Option<PeerId>,
    /// Whether its state is wrong.
    pub damaged: bool,
}

impl Outcast {
    pub fn new(reason: OutcastReason, via: Option<PeerId>) -> Self {
        Self {
            reason,
            via,
            damaged: false,
        }
    }

    pub fn damaged(reason: OutcastReason) -> Self {
        Self {
            reason,
            via: None,
            damaged: true,
        }
    }
}
