//! When a split run goes back, and to which round.

use super::*;
use crate::access::invitation::Admission;
use crate::access::signature::Scheme;
use crate::base::id::{Digest, PeerId};
use crate::ledger::keeps::{Keeper, Keeps};
use crate::ledger::saved::Saved;
use crate::run::config::{Layout, Topology};
use crate::run::room::Room;
use crate::run::split::{Split, Step};
use std::num::{NonZeroU16, NonZeroU32};

/// Two spans of 1,024 elements and four parts each.
fn manifest() -> Manifest {
    let step = |i: usize| Step {
        ranges: std::iter::once(i * 1024..(i + 1) * 1024).collect(),
        cost: 1,
        boundary: 4,
    };
    Manifest {
        copies: NonZeroU16::new(2),
        topology: Some(Topology::Direct),
        optimizer: "adam".parse().unwrap(),
        batch: 10.try_into().unwrap(),
        target: 1000.try_into().unwrap(),
        samples: 1000.try_into().unwrap(),
        split: Some(Split {
            steps: (0..2).map(step).collect(),
            spans: vec![NonZeroU16::MIN; 2],
            micro_batch: NonZeroU32::new(2).unwrap(),
            boundary: crate::numeric::codec::Codec::F32,
            lanes: NonZeroU16::MIN,
        }),
        ..Manifest::new(Layout::flat(2048))
    }
}

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn span(manifest: &Manifest, span: usize) -> PartSet {
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(manifest).unwrap());
    split.parts(parts, span)
}

/// Ann and Cat hold the first span, Ben the second.
fn three(manifest: &Manifest) -> Head {
    let member = |n: u8| Member {
        peer: peer(n),
        admission: Admission::stand_in(peer(n), manifest.root()),
        speed: 1000,
        contact: Default::default(),
        trials: Default::default(),
        keeper: Keeper {
            kept: span(manifest, usize::from(n == 2)),
            room: Room::of(1),
            ..Keeper::default()
        },
    };
    let mut head = Head::unfounded(manifest);
    head.untrained = PartSet::default();
    head.members = [1, 2, 3].map(member).to_vec();
    head
}

/// The next round of some members. Each says of its parts what the head knows, and what `also` adds.
fn round(head: &Head, manifest: &Manifest, of: &[u8], also: impl Fn(u8, &mut Keeps)) -> Record {
    let names: Vec<PeerId> = of.iter().map(|n| peer(*n)).collect();
    let trains = head.trains(manifest, &names);
    let members = head.members.iter().filter(|m| names.contains(&m.peer));
    let header = |member: &Member| {
        let kept = member.keeper.kept;
        let ends = trains && !kept.and(&span(manifest, 1)).is_empty();
        let mut keeps = Keeps {
            kept,
            digests: vec![0; kept.len()],
            room: member.keeper.room,
            ..Keeps::default()
        };
        also(member.peer.0[0], &mut keeps);
        Header {
            weight: if ends { 10 } else { 0 },
            speed: member.speed,
            keeps,
            ..Header::stand_in(member.peer)
        }
    };
    let headers = members.map(header).collect();
    let mut record = Record::signed_by_stand_ins(head, headers);
    record.attempt = u32::from(of.len() < head.members.len());
    record.sign_by_stand_ins(head);
    record
}

fn take(head: &mut Head, manifest: &Manifest, record: &Record) {
    assert_eq!(head.check(record, manifest, Scheme::StandIn), Ok(()));
    head.apply(record, manifest);
    assert_eq!(head.check_itself(manifest), Ok(()));
}

/// A head after this many training rounds, before each of which all announce that they save.
fn trained(manifest: &Manifest, rounds: usize) -> Head {
    let mut head = three(manifest);
    for _ in 0..rounds {
        let record = round(&head, manifest, &[1, 2, 3], |_, keeps| keeps.saves = true);
        take(&mut head, manifest, &record);
    }
    head
}

fn saved(stepped: Digest, parts: PartSet) -> Saved {
    Saved { stepped, parts }
}

#[test]
fn a_run_goes_back_once_all_who_keep_parts_have_waited_and_not_before() {
    let manifest = manifest();
    let mut head = trained(&manifest, 4);
    let rounds: Vec<u64> = head.points.iter().map(|point| point.round).collect();
    assert_eq!(rounds, [1, 2, 3], "before the first round nothing was trained");
    assert_eq!((head.counted(), head.steps, head.cursor), (40, 4, 40));
    let (third, second) = (head.points[2].stepped, head.points[1].stepped);
    // Ben is gone, and the second span with him.
    let record = round(&head, &manifest, &[1, 3], |_, _| {});
    take(&mut head, &manifest, &record);
    assert_eq!(head.lost(&manifest), span(&manifest, 1));
    // Dan had Ben's place up to the second round, and says so at once. The others wait, one after the other.
    let mut dan = head.members[0].clone();
    (dan.peer, dan.keeper.kept) = (peer(4), PartSet::default());
    dan.admission = Admission::stand_in(peer(4), manifest.root());
    head.members.push(dan);
    let second_span = span(&manifest, 1);
    let says = |waits: &'static [u8]| {
        move |n: u8, keeps: &mut Keeps| {
            keeps.waits = waits.contains(&n);
            keeps.saved = match n {
                4 => vec![saved(second, second_span)],
                _ => vec![saved(second, keeps.kept), saved(third, keeps.kept)],
            };
            keeps.saved.sort_by_key(|saved| saved.stepped.0);
        }
    };
    for waits in [&[][..], &[4], &[1], &[3, 4]] {
        let mut tried = head.clone();
        let record = round(&tried, &manifest, &[1, 3, 4], says(waits));
        take(&mut tried, &manifest, &record);
        assert_eq!((tried.stepped, tried.undone), (head.stepped, 0), "{waits:?} wait");
    }
    let before = head.stepped;
    let record = round(&head, &manifest, &[1, 3, 4], says(&[1, 3]));
    take(&mut head, &manifest, &record);
    assert_eq!(head.went_back(before).map(|point| point.round), Some(2));
    assert_eq!((head.counted(), head.steps, head.cursor), (20, 2, 20));
    assert_eq!(
        (head.samples, head.round),
        (40, 6),
        "a ledger does not grow shorter"
    );
    assert_eq!(head.lost(&manifest), Parts::of(&manifest).unwrap().all());
    assert_eq!(head.points.len(), 2, "what was undone nobody goes back to");

    // Members with the parts on disk bring them, and the same samples are allotted again.
    let record = round(&head, &manifest, &[1, 3, 4], |n, keeps| {
        keeps.kept = span(&manifest, usize::from(n == 4));
        keeps.digests = vec![0; keeps.kept.len()];
    });
    take(&mut head, &manifest, &record);
    assert!(head.lost(&manifest).is_empty());
    let record = round(&head, &manifest, &[1, 3, 4], |_, _| {});
    assert_eq!(record.weight(), 10);
    take(&mut head, &manifest, &record);
    assert_eq!((head.counted(), head.steps, head.cursor), (30, 3, 30));
    assert_eq!(head.went_back(before), None);
}

#[test]
fn what_cannot_be_is_not_taken() {
    let manifest = manifest();
    let mut head = trained(&manifest, 3);
    let known = head.points[0].stepped;
    let check = |head: &Head, of: &[u8], also: &dyn Fn(&mut Keeps)| {
        let record = round(head, &manifest, of, |n, keeps| {
            if n == 1 {
                also(keeps);
            }
        });
        head.check(&record, &manifest, Scheme::StandIn).is_ok()
    };
    let first = span(&manifest, 0);
    let of = |stepped| move |keeps: &mut Keeps| keeps.saved = vec![saved(stepped, first)];
    // While each part has a keeper, nobody speaks of disks or of having waited.
    assert!(check(&head, &[1, 2, 3], &|_| {}));
    assert!(!check(&head, &[1, 2, 3], &of(known)));
    assert!(!check(&head, &[1, 2, 3], &|keeps| keeps.waits = true));
    let record = round(&head, &manifest, &[1, 3], |_, _| {});
    take(&mut head, &manifest, &record);
    assert!(check(&head, &[1, 3], &of(known)));
    assert!(check(&head, &[1, 3], &|keeps| keeps.waits = true));
    // Of a round that the ledger does not remember, of no parts, of one round twice.
    assert!(!check(&head, &[1, 3], &of(Digest([7; 32]))));
    assert!(!check(&head, &[1, 3], &|keeps| keeps.saved =
        vec![saved(known, PartSet::default())]));
    assert!(!check(&head, &[1, 3], &|keeps| keeps.saved =
        vec![saved(known, first); 2]));
}

#[test]
fn rounds_that_few_have_saved_are_forgotten_first() {
    let manifest = manifest();
    let mut head = three(&manifest);
    for n in 0..3 * POINTS as u64 {
        // One of them alone saves all rounds, all of them every third.
        let all = head.round.is_multiple_of(3);
        let record = round(&head, &manifest, &[1, 2, 3], |n, keeps| {
            keeps.saves = all || n == 2
        });
        take(&mut head, &manifest, &record);
        assert!(head.points.len() <= POINTS, "after {n}");
    }
    let strong = head.points.iter().filter(|point| !point.is_weak);
    let rounds: Vec<u64> = strong.map(|point| point.round).collect();
    assert_eq!(rounds, (1..=15).map(|third| 3 * third).collect::<Vec<_>>());
}
