//! Peers that are no members take up only so much of a peer's links and memory.

use super::tests::{config, event, frame, root, start, ticket, up};
use super::*;
use crate::net::link::{DialError, DownReason, Refusal};
use annulus_core::config::{Layout, Manifest, Settings};
use annulus_core::invitation::Invitation;
use annulus_core::ledger::{Head, Member};
use bytes::Bytes;
use tokio::time::{sleep, timeout};

fn by(right: &Invitation) -> QuicConfig {
    QuicConfig {
        right: right.clone(),
        receive_window: 1 << 20,
        inbox_bytes: 0,
        ..config()
    }
}

/// Dials the host and waits until both ends are up. Returns the peers whose links to the host ended meanwhile.
async fn joins(guest: &mut QuicLink, host: &mut QuicLink) -> Vec<PeerId> {
    guest.dial(host.peer(), &[host.local_addr().to_string()]);
    up(guest).await;
    let mut ended = Vec::new();
    loop {
        match event(host).await {
            LinkEvent::Up { peer, .. } => {
                assert_eq!(peer, guest.peer());
                return ended;
            }
            LinkEvent::Down { peer, .. } => ended.push(peer),
            other => panic!("{other:?}"),
        }
    }
}

/// A ledger whose members are these.
fn ledger(members: &[&QuicLink], right: &Invitation) -> Head {
    let manifest = Manifest {
        key: root().key,
        ..Manifest::new(Layout::flat(1))
    };
    let member = |link: &&QuicLink| {
        let admission = right.admit(link.peer(), root().run);
        let settings = Settings::new(Identity::generate().key(), admission, Contact::default());
        Member {
            peer: link.peer(),
            ..Member::new(&settings, None)
        }
    };
    let mut all = members.iter().map(member);
    let mut head = Head::genesis(&manifest, all.next().unwrap());
    head.members.extend(all);
    head
}

#[tokio::test]
async fn those_who_read_nothing_take_a_quarter_of_a_gigabyte_in_all() {
    let mut host = start(config());
    let right = ticket().right();
    let mut friend = start(config());
    joins(&mut friend, &mut host).await;
    let mut idle = Vec::new();
    for _ in 0..12 {
        let mut guest = start(by(&right));
        joins(&mut guest, &mut host).await;
        idle.push(guest);
    }
    let body = Bytes::from(vec![1; 1 << 20]);
    let all = |host: &QuicLink| idle.iter().map(|guest| host.queued(guest.peer())).sum::<usize>();
    let mut most = 0;
    for _ in 0..60 {
        for guest in &idle {
            // A full queue and a link that was cut are what is expected.
            let _ = host.send(guest.peer(), Lane::Bulk, body.clone().into());
        }
        most = most.max(all(&host));
        sleep(Duration::from_millis(5)).await;
    }
    assert!(
        (150 << 20..=256 << 20).contains(&most),
        "{most} bytes were queued"
    );
    let mut ended = 0;
    while let Ok(Some(event)) = timeout(Duration::from_millis(300), next_event(&mut host)).await {
        let LinkEvent::Down { peer, reason } = event else {
            continue;
        };
        assert_ne!(peer, friend.peer());
        assert_eq!(reason, DownReason::HungUp);
        ended += 1;
    }
    assert!((1..12).contains(&ended), "{ended} links were cut");
    // Another is served as before.
    host.send(friend.peer(), Lane::Bulk, body.clone().into()).unwrap();
    assert_eq!(frame(&mut friend).await, (Lane::Bulk, body));
}

#[tokio::test]
async fn the_queue_of_one_guest_is_shorter_than_a_members() {
    let mut host = start(QuicConfig {
        bulk_queue_bytes: 64 << 20,
        guest_queue_bytes: 16 << 20,
        ..config()
    });
    let right = ticket().right();
    let mut other = start(by(&right));
    joins(&mut other, &mut host).await;
    let body = Bytes::from(vec![1; 1 << 20]);
    let fill = |host: &mut QuicLink| {
        while host.send(other.peer(), Lane::Bulk, body.clone().into()).is_ok() {}
        host.queued(other.peer()) >> 20
    };
    assert!(fill(&mut host) < 16);
    host.judge_by(Gate::at(&ledger(&[&other], &right)));
    assert!((60..64).contains(&fill(&mut host)));
}

#[tokio::test]
async fn one_ticket_holds_a_quarter_of_the_links_while_others_ask() {
    let mut host = start(QuicConfig {
        max_peers: 8,
        ..config()
    });
    let right = ticket().right();
    let mut idle = Vec::new();
    for _ in 0..8 {
        let mut guest = start(by(&right));
        joins(&mut guest, &mut host).await;
        idle.push(guest);
    }
    let refused = |event| {
        matches!(
            event,
            LinkEvent::DialFailed {
                reason: DialError::Refused(Refusal::TooManyPeers),
                ..
            }
        )
    };
    let door = [host.local_addr().to_string()];
    // One more by the same ticket has no better right, and members do not give way.
    let mut same = start(by(&right));
    same.dial(host.peer(), &door);
    assert!(refused(event(&mut same).await));
    let members: Vec<&QuicLink> = idle.iter().collect();
    host.judge_by(Gate::at(&ledger(&members, &right)));
    let mut newcomer = start(config());
    newcomer.dial(host.peer(), &door);
    assert!(refused(event(&mut newcomer).await));

    host.judge_by(Gate::at(&ledger(&members[..1], &right)));
    let mut newcomers = vec![newcomer, start(config()), start(config())];
    let mut ended = Vec::new();
    for newcomer in &mut newcomers {
        ended.extend(joins(newcomer, &mut host).await);
    }
    while let Ok(Some(event)) = timeout(Duration::from_millis(300), next_event(&mut host)).await {
        if let LinkEvent::Down { peer, .. } = event {
            ended.push(peer);
        }
    }
    assert!(!ended.contains(&idle[0].peer()), "it is a member");
    assert!(newcomers.iter().all(|newcomer| !ended.contains(&newcomer.peer())));
    let told = event(
        &mut idle
            .into_iter()
            .find(|link| ended.contains(&link.peer()))
            .unwrap(),
    )
    .await;
    let full = DownReason::Refused(Refusal::TooManyPeers);
    assert!(matches!(told, LinkEvent::Down { reason, .. } if reason == full));
}

#[tokio::test]
async fn frames_of_a_guest_are_taken_no_faster_than_a_newcomer_needs() {
    let (mut host, right) = (start(config()), ticket().right());
    let [mut guest, mut member] = [start(config()), start(config())];
    joins(&mut guest, &mut host).await;
    joins(&mut member, &mut host).await;
    host.judge_by(Gate::at(&ledger(&[&host], &right)));
    let all = 9000;
    for from in [&mut guest, &mut member] {
        for _ in 0..all {
            let frame = Bytes::from_static(b"a request");
            from.send(host.peer(), Lane::Control, frame.into()).unwrap();
        }
    }
    // Both wait. Then one is a member, and is taken at its word at once.
    host.judge_by(Gate::at(&ledger(&[&host, &member], &right)));
    let (mut of_guest, mut of_member) = (0, 0);
    while of_member < all {
        if let LinkEvent::Frame { peer, .. } = event(&mut host).await {
            *(if peer == member.peer() {
                &mut of_member
            } else {
                &mut of_guest
            }) += 1;
        }
    }
    assert!(
        of_guest < all / 2,
        "{of_guest} of a guest's frames before a member's {all}"
    );
}
