//! A guest that floods a member with frames, or asks for much and reads nothing. The run goes on, and memory has a bound.

use crate::common::*;
use crate::hostile::{Guest, signed_frames};
use annulus::net::link::{Frame, Lane, Link};
use annulus::net::ticket::Ticket;
use annulus_core::wire::Message;
use annulus_core::{Digest, PeerId};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::sleep;

/// How long a flood lasts that is measured.
const FLOOD: Duration = Duration::from_secs(6);

/// Two members, and what a guest needs to reach the first.
fn two(folder: &Folder) -> (Node, Node, PeerId, Ticket) {
    let mut first = Node::start("first", folder.join("first"), &SMALL);
    let text = first.ticket();
    let mut second = join(folder, "second", &text);
    second.members(2);
    let peer = PeerId(Digest::from_hex(&first.peer()).expect("a name").0);
    (first, second, peer, text.parse().expect("a ticket"))
}

fn round(node: &Node) -> u64 {
    let log = node.log();
    log.iter()
        .rev()
        .find(|seen| seen.is("round"))
        .map_or(0, Seen::round)
}

#[test]
fn the_ring_goes_on_under_a_flood_of_each_kind() {
    let _turn = beside();
    let folder = Folder::new("floods");
    let (mut first, _second, peer, ticket) = two(&folder);
    let runtime = Runtime::new().expect("a runtime");
    for which in 0..4 {
        let mut guest = runtime.block_on(Guest::at(peer, &ticket, 64 << 20));
        let frames = runtime.block_on(signed_frames(&mut guest, &ticket));
        let (kind, frame) = frames.expect("a link").swap_remove(which);
        let last = round(&first) + 30;
        until(&format!("30 rounds under a flood of {kind}"), || {
            // A flood that was cut off begins again.
            if !runtime.block_on(guest.flood(&frame, Duration::from_millis(200))) {
                guest = runtime.block_on(Guest::at(peer, &ticket, 64 << 20));
            }
            round(&first) >= last
        });
    }
    first.members(2);
    assert!(!first.log().iter().any(|seen| seen.event["change"] == "failed"));
}

#[test]
#[ignore = "measures for a minute; `cargo xtask prove` runs it"]
fn a_flood_does_not_halve_the_rounds() {
    let _turn = alone();
    let folder = Folder::new("floods-measured");
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
            let (kind, frame) = signed_frames(&mut guest, &ticket)
                .await
                .expect("a link")
                .swap_remove(which);
            (kind, guest.flood(&frame, FLOOD).await)
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
    let _turn = beside();
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
