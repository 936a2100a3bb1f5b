//! Relayed frames: which ones a peer passes on, and which ones it reads. And signatures: which ones it checks.

use super::Peer;
use crate::access::invitation::Admission;
use crate::base::id::PeerId;
use crate::peer::shared::Shared;
use crate::wire::rights::{Kind, Roles};
use crate::wire::{Envelope, Message};

/// Bytes of a relayed frame that are hashed in the time of a signature check.
const HASHED: usize = 64 << 10;

impl Peer {
    /// Passes a relayed frame on, or opens it if it is for this peer.
    pub(super) fn unwrap(&mut self, from: PeerId, message: Message) -> Option<(PeerId, Message)> {
        let me = self.me();
        let is_taken = match &message {
            Message::Relay { envelope, frame } if envelope.to == me => {
                self.takes(from, envelope, frame.len())
            }
            _ => false,
        };
        let Shared { links, out, .. } = &mut self.shared;
        match message {
            Message::Relay { envelope, frame } => {
                let own = envelope.from == from;
                if is_taken {
                    if let Some(message) = links.open(&envelope, frame) {
                        return Some((envelope.from, message));
                    }
                } else if envelope.to != me && own {
                    links.relay(out, envelope, frame);
                    return None;
                }
                self.shared.refused.count(Kind::Relay);
            }
            Message::Unreachable { envelope, frame } => {
                if !links.on_unreachable(out, from, envelope, frame) {
                    self.shared.refused.count(Kind::Unreachable);
                }
            }
            message => return Some((from, message)),
        }
        None
    }

    /// Whether to open a relayed frame for this peer: the relay must be known, or else the author. A relay that is not
    /// known is heard within limits, since each frame costs a signature check. This matters if members reach each other
    /// only through a peer that they have excluded: without it, no round would ever end.
    fn takes(&mut self, relay: PeerId, envelope: &Envelope, len: usize) -> bool {
        let author = envelope.from;
        let is_bearer = self.roles(relay, true).meets(Roles::BEARER);
        let concerns = || self.roles(author, false).meets(Roles::BEARER.or(Roles::FOLLOWER));
        if is_bearer || !(relay == author || concerns()) {
            return is_bearer;
        }
        self.shared.may_check(relay, false, 1 + len / HASHED)
    }

    /// Whether to check the signatures in a message. Those of members and sponsors always, others within limits, which are wider
    /// for followers.
    pub(super) fn may_check(&mut self, author: PeerId, message: &Message) -> bool {
        let checks = signatures(message);
        let roles = self.roles(author, false);
        let may = checks == 0
            || roles.meets(Roles::BEARER)
            || self
                .shared
                .may_check(author, roles.meets(Roles::FOLLOWER), checks);
        if !may {
            self.shared.refused.count(Kind::of(message).0);
        }
        may
    }
}

/// The signatures that a peer may have to check in a message of one that is no member.
fn signatures(message: &Message) -> usize {
    let of = |admission: &Admission| admission.chain.0.len() + 1;
    match message {
        Message::Follow { admission, .. } => of(admission),
        Message::Convicted(proof) => 2 + proof.admission.as_deref().map_or(0, of),
        Message::Status { claim, .. } => claim.as_ref().map_or(0, |claim| claim.record.headers.len()),
        Message::Ready { ready: Some(_) } => 1,
        _ => 0,
    }
}
