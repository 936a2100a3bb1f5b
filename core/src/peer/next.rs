//! How a phase of a peer ends. Phases only ask; `peer.rs` alone changes them.

use crate::base::id::PeerId;
use crate::peer::interface::Exit;
use crate::peer::reason::OutcastReason;
use crate::peer::sponsor::Sponsor;

/// What a phase asks for when it is over.
pub(crate) enum Next {
    /// It is not over.
    Stay,
    /// The round after the head begins, with this peer as one of its members and these followers.
    Round(Sponsor),
    /// This peer is no longer a member and joins again.
    Outcast(Outcast),
    /// This peer is done, and there for a while to answer those who are not.
    Finish(Exit),
    /// This peer is done, and nobody can need it.
    Exit(Exit),
}

/// Why a peer ceases to be a member.
#[derive(Debug)]
pub(crate) struct Outcast {
    pub reason: OutcastReason,
    /// Who said so: it joins again through that peer.
    pub via: Option<PeerId>,
    /// Whether the state that it holds is wrong.
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
