//! Relayed frames: which ones a peer passes on, and which ones it reads.

use super::Peer;
use crate::base::id::PeerId;
use crate::peer::shared::Shared;
use crate::wire::rights::{Kind, Roles};
use crate::wire::{Envelope, Message};

/// The cost of checking a signature, in bytes of a relay's allowance. Four states of the smallest model then allow
/// a thousand checks within the time of an answer: a tenth of a second.
const CHECK_BYTES: usize = 1024;

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

    /// Whether to open a relayed frame for this peer: the relay must be known, or else the author. In the latter
    /// case within limits, since each costs a signature check. This matters if members reach each other only
    /// through a peer that they have excluded: without it, no round would ever end.
    fn takes(&mut self, relay: PeerId, envelope: &Envelope, len: usize) -> bool {
        let author = envelope.from;
        let is_bearer = relay == author || self.roles(relay, true).meets(Roles::BEARER);
        let concerns = || self.roles(author, false).meets(Roles::BEARER.or(Roles::FOLLOWER));
        if is_bearer || !concerns() {
            return is_bearer;
        }
        let shared = &mut self.shared;
        let answer = shared.detector.answer();
        shared
            .allowance
            .take(relay, len.max(CHECK_BYTES), shared.now, answer)
    }
}
