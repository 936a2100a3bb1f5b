//! Which records are accepted, and which fault is found in others.

use super::*;
use crate::access::invitation::{Admission, Invitation};
use crate::access::signature::Key;
use crate::base::id::{Contact, Digest};
use crate::ledger::{Member, Trials};
use crate::run::config::Layout;
use crate::run::room::Room;
use crate::wire::ViewKey;

type Spoil<T> = fn(&mut T);

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn member(n: u8) -> Member {
    Member {
        peer: peer(n),
        admission: Admission::stand_in(peer(n), manifest().root()),
        speed: 1000,
        contact: Contact::default(),
        trials: Trials {
            delivered: true,
            ..Trials::default()
        },
        keeper: Default::default(),
    }
}

fn newcomer(n: u8) -> Newcomer {
    ready(peer(n), 1000, 0)
}

fn ready(peer: PeerId, speed: u64, round: Round) -> Newcomer {
    let said = Ready {
        peer,
        speed,
        round,
        room: Room::default(),
    };
    Newcomer {
        ready: Key::stand_in(peer).signed(&manifest().run_id(), said),
        admission: Admission::stand_in(peer, manifest().root()),
        contact: Contact::default(),
    }
}

fn manifest() -> Manifest {
    Manifest {
        batch: 12.try_into().unwrap(),
        target: 100.try_into().unwrap(),
        min_peers: 2.try_into().unwrap(),
        ..Manifest::new(Layout::flat(4))
    }
}

/// Three members that share twelve samples a round, at the end of the first round.
fn head() -> (Head, Manifest) {
    let manifest = manifest();
    let mut head = Head::genesis(&manifest, member(1));
    head.members = vec![member(1), member(2), member(3)];
    (head, manifest)
}

fn record(head: &Head) -> Record {
    let header = |member: &Member| Header {
        weight: 4,
        loss: 2.0,
        speed: member.speed,
        ..Header::stand_in(member.peer)
    };
    Record::signed_by_stand_ins(head, head.members.iter().map(header).collect())
}

fn check(head: &Head, mut record: Record, manifest: &Manifest) -> Result<(), RecordError> {
    record.sign_by_stand_ins(head);
    head.check(&record, manifest, Scheme::StandIn)
}

#[test]
fn what_members_agree_on_follows() {
    let (head, manifest) = head();
    let changes: [Spoil<Record>; 5] = [
        |_| {},
        |r| r.headers[1].content.leaving = true,
        |r| (r.headers[1].content.weight, r.headers[1].content.loss) = (0, 0.0),
        |r| r.headers[2].content.ready = vec![newcomer(4), newcomer(5)],
        // Excluded, and already back as a newcomer.
        |r| {
            (r.attempt, r.headers[0].content.ready) = (1, vec![newcomer(3)]);
            r.headers.pop();
        },
    ];
    for change in changes {
        let (mut head, mut record) = (head.clone(), record(&head));
        change(&mut record);
        assert_eq!(check(&head, record.clone(), &manifest), Ok(()));
        head.apply(&record, &manifest);
        assert_eq!(head.check_itself(&manifest), Ok(()));
    }
}

#[test]
fn what_they_cannot_have_agreed_on_is_named() {
    use Fault::*;
    let (head, manifest) = head();
    let cases: [(Spoil<Record>, RecordError); 6] = [
        (|r| r.round = 3, RecordError::Round { head: 0, record: 3 }),
        (|r| r.headers.clear(), RecordError::Empty),
        (|r| drop(r.headers.pop()), RecordError::Missing),
        (|r| r.headers[1].content.peer = peer(9), of(9, NotAMember)),
        (|r| r.headers.swap(0, 1), of(1, Order)),
        (|r| r.headers[1] = r.headers[0].clone(), of(1, Order)),
    ];
    for (change, error) in cases {
        let mut record = record(&head);
        change(&mut record);
        assert_eq!(check(&head, record, &manifest), Err(error));
    }
    let cases: [(Spoil<Header>, Fault); 16] = [
        (|h| h.weight = 5, Samples { counted: 5, share: 4 }),
        (|h| h.loss = f32::NAN, Loss),
        (|h| h.loss = f32::INFINITY, Loss),
        (|h| h.weight = 0, Loss),
        (|h| h.speed = 0, Speed),
        (|h| h.speed = MAX_SPEED + 1, Speed),
        (|h| h.compute_us = MAX_COMPUTE_US + 1, Time),
        (|h| h.exchange_us = MAX_COMPUTE_US + 1, Time),
        (|h| h.ready = vec![newcomer(3)], Ready),
        (|h| h.ready = vec![newcomer(4), newcomer(4)], Ready),
        (|h| h.ready = (10..80).map(newcomer).collect(), Ready),
        (|h| h.ready = vec![ready(peer(4), 0, 0)], Ready),
        (|h| h.ready = vec![ready(peer(4), MAX_SPEED + 1, 0)], Ready),
        (|h| h.ready = vec![ready(peer(4), 1, 1)], Ready),
        (
            |h| {
                h.ready = vec![newcomer(4)];
                h.ready[0].ready.content.speed += 1;
            },
            Ready,
        ),
        (
            |h| {
                let contact = Contact(vec!["x".repeat(Contact::ADDRESS_LIMIT + 1)]);
                h.ready = vec![Newcomer {
                    contact,
                    ..newcomer(4)
                }];
            },
            Ready,
        ),
    ];
    for (change, fault) in cases {
        let mut record = record(&head);
        change(&mut record.headers[1].content);
        assert_eq!(check(&head, record, &manifest), Err(of(2, fault)));
    }
    let mut alone = record(&head);
    (alone.attempt, _) = (1, alone.headers.drain(1..));
    assert_eq!(check(&head, alone, &manifest), Err(of(1, TooFew)));
}

#[test]
fn whoever_has_no_right_to_come_in_is_not_named() {
    let (mut head, manifest) = head();
    let root = manifest.root();
    let key = |n: u8| Key::stand_in(peer(n));
    let of_run = Invitation::of_run(Key::stand_in(root.key));
    let ticket = |n, role, uses| of_run.narrow(root, key(n), role, None, uses).unwrap();
    let (watch, once) = (
        ticket(50, Role::Watch, None),
        ticket(51, Role::Contribute, Some(1)),
    );
    let out = ticket(52, Role::Member, None);
    head.tickets
        .spend(&once.admit(peer(9), root.run), peer(9), root.run);
    head.tickets
        .revoked
        .add(of_run.revoke(root, out.chain.clone()).unwrap(), root.run);
    let named = |head: &Head, by: usize, admission: Admission| {
        let mut record = record(head);
        record.headers[by].content.ready = vec![Newcomer {
            admission,
            ..newcomer(4)
        }];
        check(head, record, &manifest)
    };
    let good = ticket(53, Role::Contribute, Some(1)).admit(peer(4), root.run);
    assert_eq!(named(&head, 1, good.clone()), Ok(()));
    let other = Invitation::of_run(key(4)).admit(peer(4), root.run);
    let tickets = [watch, once, out].map(|ticket| ticket.admit(peer(4), root.run));
    for admission in [good.clone(), other].into_iter().chain(tickets).skip(1) {
        assert_eq!(named(&head, 1, admission), Err(of(2, Fault::Ready)));
    }
    let of_another = ticket(53, Role::Member, None).admit(peer(5), root.run);
    assert_eq!(named(&head, 1, of_another), Err(of(2, Fault::Ready)));
    // A contributor names nobody, and cannot carry on a run alone.
    let guest = ticket(54, Role::Contribute, None);
    head.members[1].admission = guest.admit(peer(2), root.run);
    assert_eq!(named(&head, 1, good.clone()), Err(of(2, Fault::Ready)));
    assert_eq!(named(&head, 0, good), Ok(()));
    let mut alone = record(&head);
    (alone.attempt, alone.headers) = (1, vec![alone.headers[1].clone()]);
    assert_eq!(check(&head, alone, &manifest), Err(RecordError::NoMember));
    let mut told = record(&head);
    told.headers[0].content.revoked = vec![of_run.revoke(root, guest.chain.clone()).unwrap()];
    assert_eq!(check(&head, told.clone(), &manifest), Ok(()));
    let forged = Invitation::of_run(key(3));
    let chain = forged
        .narrow(Root { key: peer(3), ..root }, key(7), Role::Member, None, None)
        .unwrap()
        .chain;
    told.headers[0].content.revoked = vec![forged.revoke(Root { key: peer(3), ..root }, chain).unwrap()];
    assert_eq!(check(&head, told, &manifest), Err(of(1, Fault::Revocation)));
}

#[test]
fn contributors_do_not_count_in_a_majority() {
    let (mut head, manifest) = head();
    let root = manifest.root();
    for n in [2, 3] {
        let guest = Invitation::of_run(Key::stand_in(root.key)).narrow(
            root,
            Key::stand_in(peer(n)),
            Role::Contribute,
            None,
            None,
        );
        head.members[usize::from(n) - 1].admission = guest.unwrap().admit(peer(n), root.run);
    }
    let (mut record, shares) = (record(&head), head.allot(&manifest));
    for (place, header) in record.headers.iter_mut().enumerate() {
        header.content.weight = shares.len(place) as u32;
        header.content.digest = Digest([u8::from(place > 0); 32]);
    }
    assert_eq!(check(&head, record, &manifest), Err(of(2, Fault::Digest)));
}

#[test]
fn ready_holds_for_a_while() {
    for (round, holds) in [(READY_ROUNDS, true), (READY_ROUNDS + 1, false)] {
        let (mut head, manifest) = head();
        head.round = round;
        let mut record = record(&head);
        record.headers[0].content.ready = vec![newcomer(4)];
        assert_eq!(check(&head, record, &manifest).is_ok(), holds);
    }
}

#[test]
fn what_an_author_has_not_signed_for_this_attempt_is_not_its() {
    let (head, manifest) = head();
    let good = record(&head);
    let cases: [Spoil<Record>; 4] = [
        |r| r.headers[1].content.loss = 2.5,
        |r| r.headers[1].content.leaving = true,
        |r| r.headers[1].signature = r.headers[0].signature,
        |r| {
            let other = Attempt {
                chain: Digest([9; 32]),
                view: ViewKey {
                    round: 1,
                    attempt: 0,
                    id: 0,
                },
            };
            let header = &mut r.headers[1];
            header.signature = Key::stand_in(header.peer).sign(&other, &header.content);
        },
    ];
    for change in cases {
        let mut record = good.clone();
        change(&mut record);
        let found = head.check(&record, &manifest, Scheme::StandIn);
        assert_eq!(found, Err(of(2, Fault::Signature)));
    }
    // A signature for the first attempt is not valid for a later one with fewer members.
    let mut later = good;
    later.attempt = 1;
    later.headers.pop();
    let found = head.check(&later, &manifest, Scheme::StandIn);
    assert_eq!(found, Err(of(1, Fault::Signature)));
}

fn of(n: u8, fault: Fault) -> RecordError {
    RecordError::Header { peer: peer(n), fault }
}

#[test]
fn a_head_that_no_records_lead_to_is_named() {
    let (mut head, manifest) = head();
    let mut partly = record(&head);
    partly.headers[0].content.weight = 1;
    head.apply(&partly, &manifest);
    assert_eq!(head.holes.len(), 1);
    assert_eq!(head.check_itself(&manifest), Ok(()));
    let cases: [(Spoil<Head>, HeadError); 9] = [
        (|h| h.round = MAX_ROUND + 1, HeadError::Round),
        (|h| h.members[1] = h.members[0].clone(), HeadError::Members),
        (|h| h.members = (0..65).map(member).collect(), HeadError::Members),
        (|h| h.holes[0].end = h.holes[0].start, HeadError::Holes),
        (|h| h.holes[0].end = h.cursor + 1, HeadError::Holes),
        (
            |h| {
                h.holes.insert(
                    0,
                    SampleRange {
                        start: 3,
                        ..h.holes[0].clone()
                    },
                )
            },
            HeadError::Holes,
        ),
        (|h| h.samples += 1, HeadError::Sums),
        (|h| h.skipped = u64::MAX, HeadError::Sums),
        (|h| h.steps = 2, HeadError::Sums),
    ];
    for (change, error) in cases {
        let mut changed = head.clone();
        change(&mut changed);
        assert_eq!(changed.check_itself(&manifest), Err(error));
    }
}
