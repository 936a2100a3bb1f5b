//! A peer that holds a guest's ticket and keeps to none of the rules: its link, without a state machine behind it.
#![allow(dead_code, reason = "each test file uses its own part")]

use annulus::net::config::QuicConfig;
use annulus::net::identity::Identity;
use annulus::net::link::{Frame, Lane, Link, LinkEvent, SendError, next_event};
use annulus::net::quic::QuicLink;
use annulus::net::ticket::Ticket;
use annulus_core::conviction::Conviction;
use annulus_core::wire::{Envelope, Message};
use annulus_core::{Contact, Digest, PeerId};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Frames that a guest sends at once, again and again: more than a member can check.
const FRAMES: usize = 100;

/// A guest that takes part in nothing.
pub struct Guest {
    pub link: QuicLink,
    identity: Identity,
    of: PeerId,
}

impl Guest {
    pub async fn at(of: PeerId, ticket: &Ticket, inbox_bytes: usize) -> Self {
        let guest = Self::try_at(of, ticket, inbox_bytes).await;
        guest.expect("a link")
    }

    /// None if the member has no room for it.
    pub async fn try_at(of: PeerId, ticket: &Ticket, inbox_bytes: usize) -> Option<Self> {
        let identity = Identity::generate();
        let config = QuicConfig {
            inbox_bytes,
            receive_window: 1 << 20,
            ..QuicConfig::new(ticket.root, ticket.right(), Bytes::new())
        };
        let mut link = QuicLink::start(&identity, config).expect("a socket");
        let addresses: Vec<String> = ticket.addrs.iter().map(ToString::to_string).collect();
        link.dial(of, &addresses);
        let up = next_event(&mut link).await;
        matches!(up, Some(LinkEvent::Up { .. })).then_some(Self { link, identity, of })
    }

    /// The status that a member tells everybody; none if the link ends before.
    async fn status(&mut self) -> Option<Message> {
        loop {
            match next_event(&mut self.link).await? {
                LinkEvent::Down { .. } => return None,
                LinkEvent::Frame { bytes, .. } => {
                    if let Ok(message @ Message::Status { claim: Some(_), .. }) = Message::decode(bytes) {
                        return Some(message);
                    }
                }
                _ => {}
            }
        }
    }

    /// Sends a frame again and again for this long. Whether the link still stands.
    pub async fn flood(&mut self, frame: &Bytes, lasting: Duration) -> bool {
        let until = Instant::now() + lasting;
        while Instant::now() < until {
            for _ in 0..FRAMES {
                if self.link.send(self.of, Lane::Control, Frame::from(frame.clone())) == Err(SendError::NotUp)
                {
                    return false;
                }
            }
            let event = timeout(Duration::from_millis(1), next_event(&mut self.link)).await;
            if matches!(event, Ok(Some(LinkEvent::Down { .. }))) {
                return false;
            }
        }
        true
    }
}

/// A frame of each kind that holds signatures; none if the link ends before.
pub async fn signed_frames(guest: &mut Guest, ticket: &Ticket) -> Option<Vec<(&'static str, Bytes)>> {
    let status = guest.status().await?;
    let Message::Status {
        claim: Some(claim), ..
    } = &status
    else {
        unreachable!("it has a claim")
    };
    let header = claim.record.headers[0].clone();
    let mut other = header.clone();
    other.content.loss += 1.0;
    let of_claim = annulus_core::signature::Attempt {
        chain: Digest([0; 32]),
        view: annulus_core::wire::ViewKey {
            round: claim.record.round,
            attempt: 0,
            id: 0,
        },
    };
    let convicted = Message::Convicted(Box::new(Conviction::new(of_claim, [header, other])));
    let follow = Message::Follow {
        have: None,
        // Somebody else's.
        admission: Box::new(ticket.right().admit(guest.of, ticket.root.run)),
        contact: Contact::default(),
    };
    let relay = Message::Relay {
        envelope: Envelope {
            from: guest.link.peer(),
            to: guest.of,
            number: 1,
            lane: Lane::Control,
            signature: guest.identity.key().sign_bytes(b"something else"),
        },
        frame: Message::Doubt.to_frame(),
    };
    let all = [
        ("claims", status.clone()),
        ("proofs", convicted),
        ("requests to follow", follow),
        ("relayed frames", relay),
    ];
    Some(all.map(|(kind, message)| (kind, message.to_frame())).to_vec())
}
