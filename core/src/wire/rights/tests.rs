//! Sends every cell of the table to a real peer.

use super::*;
use crate::access::invitation::{Admission, Revocation};
use crate::access::signature::{Attempt, Key, Signed};
use crate::base::id::{Contact, Digest, PeerId};
use crate::base::time::Time;
use crate::ledger::conviction::Conviction;
use crate::ledger::tickets::Barred;
use crate::ledger::{Head, Header, Member};
use crate::peer::shared::Shared;
use crate::peer::sponsor::Sponsor;
use crate::peer::{Input, Output, Peer, Phase};
use crate::run::config::{Layout, Manifest, Settings};
use crate::state::State;
use crate::wire::Lane;
use crate::wire::relayed::Relayed;
use crate::wire::{Doing, Leg, Standing};
use bytes::Bytes;
use std::sync::Arc;

const ME: PeerId = PeerId([1; 32]);
const MEMBER: PeerId = PeerId([2; 32]);
const KNOWN: PeerId = PeerId([3; 32]);
const FOLLOWER: PeerId = PeerId([4; 32]);
const SPONSOR: PeerId = PeerId([5; 32]);
const STRANGER: PeerId = PeerId([6; 32]);
/// Sends through a relay.
const FAR: PeerId = PeerId([7; 32]);

/// The round after the head of all peers here.
const NEXT: u64 = 8;

const COLUMNS: [Column; 3] = [Column::Newcomer, Column::Member, Column::Lingering];

fn as_member(peer: PeerId) -> Member {
    let manifest = manifest();
    let settings = Settings::stand_in(peer, Contact::default(), &manifest);
    Head::genesis(&manifest, Member::new(&settings, None)).members[0].clone()
}

fn manifest() -> Manifest {
    Manifest {
        samples: 100.try_into().unwrap(),
        target: 1000.try_into().unwrap(),
        batch: 8.try_into().unwrap(),
        ..Manifest::new(Layout::flat(12))
    }
}

/// A peer in a phase, with a peer in every role that exists then.
fn peer(column: Column) -> Peer {
    let manifest = Arc::new(manifest());
    let settings = Settings::stand_in(ME, Contact::default(), &manifest);
    let mut head = Head::genesis(&manifest, as_member(ME));
    head.round = NEXT - 1;
    let members = [ME, MEMBER].map(as_member);
    head.members = members.to_vec();
    let state = State::new(vec![0.5; 12], &manifest);
    let mut peer = match column {
        Column::Newcomer => {
            let mut peer = Peer::join(manifest, settings, SPONSOR, &Contact::default(), Time(1));
            peer.shared.lineage.head = head;
            link(&mut peer, SPONSOR);
            peer
        }
        Column::Member | Column::Lingering => {
            let shared = Shared::new(manifest, settings, state, head, Time(1));
            let phase = Phase::Gone;
            let mut peer = Peer { shared, phase };
            peer.go(crate::peer::next::Next::Round(Sponsor::default()));
            link(&mut peer, FOLLOWER);
            hear(&mut peer, FOLLOWER, said(Kind::Follow, key(NEXT)));
            peer
        }
    };
    if column == Column::Lingering {
        link(&mut peer, MEMBER);
        peer.go(crate::peer::next::Next::Finish(crate::peer::Exit::Finished));
        // No peer is in an attempt with it any more.
        peer.shared.lineage.head.members[1] = as_member(KNOWN);
    } else {
        peer.shared.lineage.head.members.push(as_member(KNOWN));
    }
    for other in [MEMBER, KNOWN, STRANGER] {
        link(&mut peer, other);
    }
    while peer.poll().is_some() {}
    peer
}

fn link(peer: &mut Peer, other: PeerId) {
    let contact = Contact::default();
    let rtt = std::time::Duration::ZERO;
    peer.handle(
        Input::LinkUp {
            peer: other,
            contact,
            rtt,
        },
        Time(1),
    );
}

fn hear(peer: &mut Peer, from: PeerId, message: Message) {
    peer.handle(Input::Message { from, message }, Time(1));
}

fn key(round: u64) -> ViewKey {
    ViewKey {
        round,
        attempt: 0,
        id: 7,
    }
}

fn header(peer: PeerId) -> Header {
    Header {
        weight: 1,
        loss: 1.0,
        ..Header::stand_in(peer)
    }
}

fn signed(header: Header) -> Signed<Header> {
    let chain = Digest([0; 32]);
    let view = key(NEXT);
    Key::stand_in(header.peer).signed(&Attempt { chain, view }, header)
}

/// A message that its author has relayed.
fn relayed(author: PeerId, to: PeerId, message: &Message) -> Message {
    let settings = Settings::stand_in(author, Contact::default(), &manifest());
    let frame = message.to_frame();
    let envelope = Relayed::new(&settings, manifest().run_id()).seal(to, Lane::Control, &frame);
    Message::Relay { envelope, frame }
}

/// A message of a kind, with content that cannot matter.
fn said(kind: Kind, view: ViewKey) -> Message {
    let contact = Contact::default();
    let digest = Digest([0; 32]);
    let standing = Standing {
        samples: 0,
        round: 1,
        chain: digest,
    };
    match kind {
        Kind::Piece => Message::Piece {
            view,
            leg: Leg::Finished,
            chunk: 0,
            piece: 0,
            headers: Vec::new(),
            all: None,
            seal: None,
            data: vec![0; 24].into(),
        },
        Kind::Probe => Message::Probe { view, nonce: 1 },
        Kind::Alive => Message::Alive {
            nonce: 1,
            round: NEXT,
            doing: Doing::Idle,
        },
        Kind::Flush => Message::Flush {
            view,
            suspects: vec![STRANGER],
            signature: signed(header(MEMBER)).signature,
        },
        Kind::Decision => Message::Decision {
            view,
            suspects: vec![STRANGER],
            proof: Vec::new(),
        },
        Kind::Headers => Message::Headers {
            view,
            headers: vec![signed(header(MEMBER))],
        },
        Kind::Seals => Message::Seals {
            view,
            seals: Vec::new(),
        },
        Kind::Convicted => Message::Convicted(Box::new(Conviction::new(
            Attempt { chain: digest, view },
            [MEMBER, MEMBER].map(|peer| signed(header(peer))),
        ))),
        Kind::Revoked => {
            let ticket = Admission::stand_in(STRANGER, manifest().root()).chain;
            Message::Revoked(Box::new(Revocation::by(
                &Key::stand_in(STRANGER),
                ticket,
                manifest().run_id(),
            )))
        }
        Kind::Committed => Message::Committed {
            view,
            record: crate::ledger::Record {
                round: view.round,
                attempt: 0,
                headers: vec![signed(header(MEMBER))],
            },
            digest,
        },
        Kind::Repair => Message::Repair {
            view,
            missing: vec![(0, 0)],
        },
        Kind::Out => Message::Out { view },
        Kind::Status => Message::Status {
            standing,
            places: Vec::new(),
            claim: None,
            member: true,
            finished: false,
        },
        Kind::Follow => Message::Follow {
            have: None,
            admission: Box::new(Admission::stand_in(FOLLOWER, manifest().root())),
            contact,
        },
        Kind::Barred => Message::Barred { why: Barred::Revoked },
        Kind::NoPlace => Message::NoPlace { slow: None },
        Kind::Following => Message::Following {
            head: Box::new(Head::genesis(&manifest(), as_member(SPONSOR))),
            digest,
            resumes: None,
            member: false,
            claim: None,
        },
        Kind::NotMember => Message::NotMember {
            standing: None,
            follows: None,
        },
        Kind::Acquaintances => Message::Acquaintances {
            acquaintances: Vec::new(),
        },
        Kind::Followed => Message::Followed { round: 1 },
        Kind::Ready => Message::Ready { ready: None },
        Kind::Fetch => Message::Fetch { block: 0 },
        Kind::Doubt => Message::Doubt,
        Kind::Learn => Message::Learn { part: 0 },
        Kind::Moments => Message::Moments {
            part: 0,
            piece: 0,
            stepped: Digest([0; 32]),
            data: Bytes::new(),
        },
        Kind::Want => Message::Want {
            view,
            span: 0,
            lane: 0,
            back: false,
            have: Vec::new(),
        },
        Kind::Tensor => Message::Tensor {
            chain: digest,
            span: 0,
            back: false,
            microbatch: 0,
            data: vec![0; 4].into(),
        },
        Kind::Held => Message::Held { view },
        Kind::Digests => Message::Digests {
            chain: digest,
            data: vec![0; 32].into(),
        },
        Kind::Block => Message::Block {
            block: 0,
            round: 1,
            chain: digest,
            data: vec![0; 4].into(),
        },
        Kind::Introduce => Message::Introduce { to: FAR },
        Kind::Introduced => Message::Introduced {
            peer: FAR,
            contact,
            rtt_us: 1,
        },
        Kind::Relay => relayed(STRANGER, FAR, &said(Kind::Probe, view)),
        Kind::Unreachable => match relayed(STRANGER, FAR, &said(Kind::Probe, view)) {
            Message::Relay { envelope, frame } => Message::Unreachable { envelope, frame },
            other => other,
        },
    }
}

/// The peers of a phase, and their roles.
fn people(column: Column) -> Vec<(PeerId, Roles)> {
    let linked = Roles::ANYBODY.or(Roles::LINKED);
    let mut people = vec![
        (STRANGER, linked),
        (KNOWN, linked.or(Roles::KNOWN)),
        (FAR, Roles::ANYBODY),
    ];
    match column {
        Column::Newcomer => people.push((SPONSOR, linked.or(Roles::SPONSOR))),
        Column::Member => people.extend([
            (MEMBER, linked.or(Roles::KNOWN).or(Roles::MEMBER)),
            (FOLLOWER, linked.or(Roles::FOLLOWER)),
        ]),
        Column::Lingering => people.push((FOLLOWER, linked.or(Roles::FOLLOWER))),
    }
    people
}

fn bearer(column: Column) -> PeerId {
    match column {
        Column::Newcomer => SPONSOR,
        Column::Member | Column::Lingering => KNOWN,
    }
}

/// An attempt that relates so to the peer's.
fn attempt(peer: &Peer, when: When) -> ViewKey {
    let now = peer.view().map_or(key(NEXT), |(view, _)| view);
    match when {
        When::Always | When::Now => now,
        When::Past => key(NEXT - 1),
        When::Soon => key(NEXT + 1),
        When::Far => key(NEXT + 2),
    }
}

/// Sends a message to a fresh peer. Returns the peer afterwards, how often it refused, and its outputs.
fn tell(column: Column, kind: Kind, when: When, who: PeerId) -> (Peer, u64, Vec<Output>) {
    let mut peer = peer(column);
    let message = said(kind, attempt(&peer, when));
    if who == FAR {
        hear(&mut peer, bearer(column), relayed(who, ME, &message));
    } else {
        hear(&mut peer, who, message);
    }
    let refused = peer.refused().of(kind);
    assert_eq!(refused, peer.refused().total(), "of one kind only");
    let outputs = std::iter::from_fn(|| peer.poll()).collect();
    (peer, refused, outputs)
}

/// All cells except frames in frames, which are no messages of their own.
fn cells() -> impl Iterator<Item = (Column, Kind, When)> {
    let kinds = Kind::ALL
        .into_iter()
        .filter(|k| !matches!(k, Kind::Relay | Kind::Unreachable));
    let fits = |kind: Kind, when: When| {
        let in_attempt = Kind::of(&said(kind, key(NEXT))).1.is_some();
        in_attempt == (when != When::Always)
    };
    let timed = kinds.flat_map(move |kind| When::ALL.into_iter().map(move |when| (kind, when)));
    let timed = timed.filter(move |(kind, when)| fits(*kind, *when));
    timed.flat_map(|(kind, when)| COLUMNS.into_iter().map(move |column| (column, kind, when)))
}

#[test]
fn what_the_table_does_not_allow_is_dropped_and_counted_and_nothing_else_is() {
    let mut cells_seen = 0;
    for (column, kind, when) in cells() {
        for (who, roles) in people(column) {
            let able = roles.meets(super::who(kind, when, column));
            let (peer, refused, outputs) = tell(column, kind, when, who);
            let cell = format!("{kind:?} {when:?} to {column:?} by {who}");
            // No message here is refused for another reason than its sender.
            assert_eq!(refused, u64::from(!able), "{cell}");
            if !able {
                assert!(outputs.is_empty(), "{cell}: {outputs:?}");
                let before = self::peer(column);
                assert_eq!(peer.head(), before.head(), "{cell}");
                assert_eq!(peer.view(), before.view(), "{cell}");
                // The peer remembers that a relayed frame has come.
                let same = peer.buffered_bytes() == before.buffered_bytes();
                assert!(same || who == FAR, "{cell}");
            }
            cells_seen += 1;
        }
    }
    assert_eq!(cells_seen, (11 * 4 + 21) * (4 + 5 + 4));
}

#[test]
fn what_a_stranger_may_say_makes_no_member_stop_or_suspect_anybody() {
    for (column, kind, when) in cells().filter(|(column, ..)| *column == Column::Member) {
        for who in [STRANGER, FAR, FOLLOWER] {
            let (peer, _, _) = tell(column, kind, when, who);
            let Phase::Member(member) = &peer.phase else {
                panic!("{kind:?} {when:?} by {who} made it another than a member");
            };
            let cell = format!("{kind:?} {when:?} by {who}");
            assert!(member.agreement.flush().is_none(), "{cell}");
            assert!(member.agreement.told().is_none(), "{cell}");
            assert_eq!(member.view.key.attempt, 0, "{cell}");
        }
    }
}

#[test]
fn each_role_is_told_apart() {
    let all = Roles::EACH.into_iter().fold(Roles::NOBODY, Roles::or);
    let met = COLUMNS.into_iter().flat_map(people);
    let met = met.map(|(_, roles)| roles).fold(Roles::NOBODY, Roles::or);
    assert_eq!(met, all);
    assert!(!Roles::NOBODY.meets(all));
}

#[test]
fn the_documentation_lists_all_messages() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/inside/messages.md"));
    for kind in Kind::ALL {
        assert!(
            page.contains(&format!("`{kind:?}`")),
            "docs/inside/messages.md lacks {kind:?}"
        );
    }
}
