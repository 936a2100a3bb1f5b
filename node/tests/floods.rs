//! A guest that floods a member with frames, or asks for much and reads nothing. The run goes on, and memory has a bound.

mod common;

use annulus::net::config::QuicConfig;
use annulus::net::identity::Identity;
use annulus::net::link::{Frame, Lane, Link, LinkEvent, SendError, next_event};
use annulus::net::quic::QuicLink;
use annulus::net::ticket::Ticket;
use annulus_core::conviction::Conviction;
use annulus_core::wire::{Envelope, Message};
use annulus_core::{Contact, Digest, PeerId};
use bytes::Bytes;
use common::*;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

/// How long a flood lasts.
const FLOOD: Duration = Duration::from_secs(6);

/// Frames that a guest sends at once, again and again: more than a member can check.
const FRAMES: usize = 100;

/// Two members, and what a guest needs to reach the first.
fn two(folder: &Folder) -> (Node, Node, PeerId, Ticket) {
    let mut first = Node::start("first", folder.join("first"), &SMALL);
    let text = first.ticket();
    let mut second = join(folder, "second", &text);
    second.members(2);
    let peer = PeerId(Digest::from_hex(&first.peer()).expect("a name").0);
    (first, second, peer, text.parse().expect("a ticket"))
}

/// A guest that takes part in nothing.
struct Guest {
    link: QuicLink,
    identity: Identity,
    of: PeerId,
}

impl Guest {
    async fn at(of: PeerId, ticket: &Ticket, inbox_bytes: usize) -> Self {
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
        assert!(matches!(up, Some(LinkEvent::Up { .. })), "{up:?}");
        Self { link, identity, of }
    }

    /// The status that a member tells everybody.
    async fn status(&mut self) -> Message {
        loop {
            if let Some(LinkEvent::Frame { bytes, .. }) = next_event(&mut self.link).await
                && let Ok(message) = Message::decode(bytes)
                && matches!(message, Message::Status { claim: Some(_), .. })
            {
                return message;
            }
        }
    }

    /// Sends a frame again and again. Whether the link still stands.
    async fn flood(mut self, frame: &Bytes) -> bool {
        let until = Instant::now() + FLOOD;
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

fn round(node: &Node) -> u64 {
    let log = node.log();
    log.iter()
        .rev()
        .find(|seen| seen.is("round"))
        .map_or(0, Seen::round)
}

/// A frame of each kind that holds signatures.
async fn signed_frames(guest: &mut Guest, ticket: &Ticket) -> Vec<(&'static str, Bytes)> {
    let status = guest.status().await;
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
    all.map(|(kind, message)| (kind, message.to_frame())).to_vec()
}

#[test]
fn a_flood_does_not_halve_the_rounds() {
    let _alone = alone();
    let folder = Folder::new("floods");
    let (first, _second, peer, ticket) = two(&folder);
    let runtime = Runtime::new().expect("a runtime");
    let quiet = || {
        let before = round(&first);
        runtime.block_on(async { sleep(FLOOD).await });
        round(&first) - before
    };
    let mut undisturbed = quiet();
    for which in 0..4 {
        let before = round(&first);
        let (kind, stands) = runtime.block_on(async {
            let mut guest = Guest::at(peer, &ticket, 64 << 20).await;
            let (kind, frame) = signed_frames(&mut guest, &ticket).await.swap_remove(which);
            (kind, guest.flood(&frame).await)
        });
        let flooded = round(&first) - before;
        // The machine may have been busy with other things before or after.
        let later = quiet();
        println!(
            "{kind}: {undisturbed} and {later} rounds undisturbed, {flooded} flooded; the link stands: {stands}"
        );
        let least = undisturbed.min(later);
        assert!(2 * flooded > least, "{kind}: {flooded} of {least} rounds");
        undisturbed = later;
    }
}

/// Bytes of memory that a process uses.
#[cfg(target_os = "linux")]
fn memory(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("Linux tells");
    1024 * line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok())
        .expect("a number")
}

#[cfg(target_os = "linux")]
#[test]
fn guests_that_read_nothing_do_not_fill_the_memory() {
    let _alone = alone();
    let folder = Folder::new("hoarders");
    let (first, _second, peer, ticket) = two(&folder);
    let before = memory(&first);
    let most = Runtime::new().expect("a runtime").block_on(async {
        let mut guests = Vec::new();
        for _ in 0..6 {
            guests.push(Guest::at(peer, &ticket, 0).await);
        }
        let mut most = 0;
        for _ in 0..150 {
            for guest in &mut guests {
                for block in 0..2 {
                    let fetch = Message::Fetch { block }.to_frame();
                    // A link that was cut is what is expected.
                    let _ = guest.link.send(peer, Lane::Control, Frame::from(fetch));
                }
            }
            sleep(Duration::from_millis(100)).await;
            most = most.max(memory(&first));
        }
        most
    });
    let grown = most.saturating_sub(before) >> 20;
    println!("memory grew by {grown} MiB from {} MiB", before >> 20);
    assert!(grown < 400, "by {grown} MiB");
}
