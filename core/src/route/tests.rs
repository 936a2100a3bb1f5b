//! Batches, routes, and what follows from who holds which spans.

use super::*;
use crate::codec::Codec;
use crate::config::{Layout, Topology};
use crate::keeps::{Keeper, Keeps};
use crate::ledger::{Header, Member, Record};
use crate::signature::Scheme;
use crate::split::Step;
use std::num::{NonZeroU16, NonZeroU32};

/// Four spans of two steps each over 8,000 elements, the last step of which uses the first step's again.
fn manifest(copies: u16, lanes: u16) -> Manifest {
    let step = |i: usize| Step {
        ranges: match i {
            7 => vec![0..500, 7000..8000],
            i => std::iter::once(i * 1000..(i + 1) * 1000).collect(),
        },
        cost: 1,
        boundary: 4,
    };
    Manifest {
        copies: NonZeroU16::new(copies),
        topology: Some(Topology::Direct),
        optimizer: "adam".parse().unwrap(),
        batch: 10.try_into().unwrap(),
        target: 1000.try_into().unwrap(),
        samples: 1000.try_into().unwrap(),
        split: Some(Split {
            steps: (0..8).map(step).collect(),
            spans: vec![NonZeroU16::new(2).unwrap(); 4],
            micro_batch: NonZeroU32::new(2).unwrap(),
            boundary: Codec::F32,
            lanes: lanes.try_into().unwrap(),
        }),
        ..Manifest::new(Layout::flat(8000))
    }
}

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn member(n: u8, spans: &[usize], manifest: &Manifest) -> Member {
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(manifest).unwrap());
    let kept = spans.iter().map(|span| split.parts(parts, *span));
    Member {
        peer: peer(n),
        admission: crate::invitation::Admission::stand_in(peer(n), manifest.root()),
        speed: 1000,
        contact: Default::default(),
        trials: Default::default(),
        keeper: Keeper {
            kept: kept.fold(PartSet::default(), |all, kept| all.or(&kept)),
            spans: 1,
            ..Keeper::default()
        },
    }
}

/// After some members hold these spans, and something was trained.
fn head(manifest: &Manifest, members: &[&[usize]]) -> Head {
    let mut head = Head::unfounded(manifest);
    head.untrained = PartSet::default();
    head.members = members
        .iter()
        .zip(1..)
        .map(|(spans, n)| member(n, spans, manifest))
        .collect();
    head
}

fn names(n: u8) -> Vec<PeerId> {
    (1..=n).map(peer).collect()
}

#[test]
fn a_batch_is_cut_into_microbatches_and_lanes() {
    let split = manifest(1, 2).split.unwrap();
    let hole = |start, end| Hole {
        start,
        end,
        refused_by: None,
    };
    let batch = Batch::new(&split, &[hole(3, 6), hole(10, 14)]);
    assert_eq!((batch.samples(), batch.microbatches(), batch.lanes()), (7, 4, 2));
    assert_eq!([0, 1].map(|lane| batch.lane(lane)), [0..2, 2..4]);
    assert_eq!((batch.lane_len(0), batch.lane_len(1)), (4, 3));
    let of: Vec<Vec<u64>> = (0..4)
        .map(|m| batch.of(m).into_iter().flatten().collect())
        .collect();
    assert_eq!(of, [vec![3, 4], vec![5, 10], vec![11, 12], vec![13]]);
    assert_eq!(batch.lane_of(2), Some(1));
    assert_eq!(batch.lane_of(4), None);
    let few = Batch::new(&split, &[hole(0, 1)]);
    assert_eq!((few.lanes(), few.microbatches()), (1, 1));
    let none = Batch::new(&split, &[]);
    assert_eq!((none.lanes(), none.is_empty()), (0, true));
}

#[test]
fn each_lane_of_each_span_has_one_holder() {
    let manifest = manifest(2, 4);
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(&manifest).unwrap());
    let head = head(&manifest, &[&[0], &[1], &[2], &[3], &[0], &[1, 2]]);
    let route = head.route(split, parts, &names(6), 4);
    assert_eq!([0, 1, 2, 3].map(|lane| route.of(0, lane)), [0, 0, 4, 4]);
    assert_eq!([0, 1, 2, 3].map(|lane| route.of(2, lane)), [2, 2, 5, 5]);
    assert_eq!([0, 1, 2, 3].map(|lane| route.of(3, lane)), [3; 4]);
    assert_eq!(route.by(5).collect::<Vec<_>>(), [(1, 2), (1, 3), (2, 2), (2, 3)]);
    // Without the first only its lanes go to another.
    let without = head.route(split, parts, &names(6)[1..], 4);
    assert_eq!([0, 1, 2, 3].map(|lane| without.of(0, lane)), [3; 4]);
    for (span, lane) in (1..4).flat_map(|span| (0..4).map(move |lane| (span, lane))) {
        assert_eq!(without.of(span, lane) + 1, route.of(span, lane));
    }
}

#[test]
fn a_head_that_does_not_hold_all_spans_hands_out_nothing() {
    let manifest = manifest(2, 2);
    let whole = head(&manifest, &[&[0, 1], &[2], &[3]]);
    assert!(whole.trains(&manifest, &names(3)));
    assert!(!whole.trains(&manifest, &names(2)));
    // Both halves of a span are with somebody, but nobody has both.
    let mut torn = head(&manifest, &[&[0], &[1], &[3], &[2]]);
    let (some, other) = (torn.members[3].keeper.kept, &mut torn.members[0].keeper.kept);
    let moved: PartSet = some.without(other).iter().take(1).collect();
    *other = other.or(&moved);
    torn.members[3].keeper.kept = some.without(&moved);
    assert!(torn.lacks(&manifest, |_| true).is_empty());
    assert!(!torn.all_train(&manifest));
}

#[test]
fn spans_go_where_they_lack() {
    let manifest = manifest(2, 2);
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(&manifest).unwrap());
    let of = |span: usize| split.parts(parts, span);
    // Each newcomer takes one that fewest have.
    let mut all = head(&manifest, &[&[0], &[1], &[2], &[3], &[], &[]]);
    assert_eq!(all.suggest(&manifest, peer(5)), (of(0), PartSet::default()));
    assert_eq!(all.suggest(&manifest, peer(6)), (of(1), PartSet::default()));
    assert_eq!(
        all.suggest(&manifest, peer(1)),
        (PartSet::default(), PartSet::default())
    );
    // Who has room takes what lacks copies.
    all.members[2].keeper.spans = 2;
    assert_eq!(all.suggest(&manifest, peer(3)).0, of(3).without(&of(2)));
    // Where one has three holders and another one, the last of the three lets go.
    let uneven = head(&manifest, &[&[0], &[0], &[0], &[1], &[2], &[2], &[3], &[3]]);
    let (learns, drops) = uneven.suggest(&manifest, peer(3));
    assert_eq!((learns, drops.is_empty()), (PartSet::default(), false));
    assert!(uneven.suggest(&manifest, peer(2)).1.is_empty());
    // What nobody has any more cannot be learnt.
    let lost = head(&manifest, &[&[0], &[2], &[3], &[]]);
    assert_eq!(lost.suggest(&manifest, peer(4)).0, of(0));
}

#[test]
fn with_little_room_somebody_moves_to_what_lacks() {
    let manifest = manifest(2, 2);
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(&manifest).unwrap());
    // Who leaves is the only one that has a span, and nobody has room for two: one of the two that have another moves.
    let mut all = head(&manifest, &[&[0], &[1], &[2], &[2], &[3]]);
    all.members[4].keeper.leaves = true;
    assert!(all.suggest(&manifest, peer(3)).1.is_empty());
    let dropped = all.suggest(&manifest, peer(4)).1;
    assert_eq!(dropped, split.parts(parts, 2));
    all.members[3].keeper.kept = PartSet::default();
    assert_eq!(all.suggest(&manifest, peer(4)).0, split.parts(parts, 3));
    // The one with room has what lacks holders: it takes another one, of somebody who lets go of a third and can take it.
    let mut all = head(&manifest, &[&[0, 1, 2], &[0, 1], &[0, 3]]);
    for (member, room) in all.members.iter_mut().zip([4, 2, 2]) {
        member.keeper.spans = room;
    }
    let has = all.members[0].keeper.kept;
    assert_eq!(
        all.suggest(&manifest, peer(1)).0,
        split.parts(parts, 3).without(&has)
    );
    assert_eq!(all.suggest(&manifest, peer(2)), Default::default());
    assert!(!all.suggest(&manifest, peer(3)).1.is_empty());
    all.members[2] = member(3, &[3], &manifest);
    all.members[2].keeper.spans = 2;
    let has = all.members[2].keeper.kept;
    assert_eq!(
        all.suggest(&manifest, peer(3)).0,
        split.parts(parts, 2).without(&has)
    );
}

#[test]
fn what_one_holds_by_the_way_takes_no_room() {
    let mut manifest = manifest(2, 2);
    manifest.layout = Layout::flat(700);
    let split = manifest.split.as_mut().unwrap();
    let step = |range: Range<usize>| Step {
        ranges: std::iter::once(range).collect(),
        cost: 1,
        boundary: 4,
    };
    // Of parts of 256 elements the first, the first and the second, and the second and the third.
    split.steps = [0..200, 200..400, 400..700].map(step).to_vec();
    split.spans = vec![NonZeroU16::MIN; 3];
    let mut all = head(&manifest, &[&[0], &[1]]);
    all.untrained = Parts::of(&manifest).unwrap().all();
    all.members[1].keeper.spans = 2;
    assert_eq!(all.suggest(&manifest, peer(1)), Default::default());
    let takes: PartSet = [2].into_iter().collect();
    assert_eq!(all.suggest(&manifest, peer(2)), (takes, PartSet::default()));
}

/// A round after which some leave, and some drop all that they keep.
fn gone(head: &Head, leave: &[u8], drop: &[u8], manifest: &Manifest) -> Head {
    let mut record = record(head, [0; 4], None);
    for header in &mut record.headers {
        let is_one = |of: &[u8]| of.iter().any(|n| peer(*n) == header.content.peer);
        let (leaves, drops) = (is_one(leave), is_one(drop));
        let said = &mut header.content;
        said.leaving = leaves;
        said.keeps.drops = if drops {
            said.keeps.kept
        } else {
            PartSet::default()
        };
        said.keeps.refuses = true;
    }
    record.sign_by_stand_ins(head);
    let mut head = head.clone();
    head.apply(&record, manifest);
    head
}

#[test]
fn the_last_that_holds_a_span_stays_though_others_keep_its_parts() {
    let manifest = manifest(1, 2);
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(&manifest).unwrap());
    // Each part of span 0 is with some other as well, since neighbours share parts, and nobody else has all of them.
    let all = head(&manifest, &[&[0, 1], &[1], &[2], &[3]]);
    let others = |part: &u16| (1..4).any(|at| all.members[at].keeper.kept.contains(*part));
    assert!(split.parts(parts, 0).iter().all(|part| others(&part)));
    let after = gone(&all, &[1], &[], &manifest);
    assert_eq!(after.members.len(), 4, "it may not leave yet");
    assert!(after.members[0].keeper.leaves && after.all_train(&manifest));
    // Neither may it drop the span. The second one's is held by the first too.
    let after = gone(&all, &[], &[1, 2], &manifest);
    assert!(after.all_train(&manifest));
    let after = gone(&all, &[2], &[], &manifest);
    assert_eq!(after.members.len(), 3);
    // Two cannot both go.
    let after = gone(
        &head(&manifest, &[&[0, 1, 2], &[0, 1], &[2], &[3]]),
        &[1, 2],
        &[],
        &manifest,
    );
    assert_eq!(after.members.len(), 4);
}

#[test]
fn a_run_that_is_split_gives_each_member_a_span_before_the_first_round() {
    let manifest = manifest(1, 2);
    let mut founder = member(1, &[], &manifest);
    founder.keeper.spans = 1;
    let mut head = Head::genesis(&manifest, founder);
    assert!(!head.all_train(&manifest));
    head.members.extend((2..=4).map(|n| member(n, &[], &manifest)));
    for n in 2..=4u8 {
        let (takes, _) = head.suggest(&manifest, peer(n));
        head.members[usize::from(n) - 1].keeper.kept = takes;
    }
    assert!(head.all_train(&manifest));
}

/// A round in which all have computed what they should, each with this weight.
fn record(head: &Head, weights: [u32; 4], refuses: Option<usize>) -> Record {
    let header = |(place, member): (usize, &Member)| Header {
        weight: weights[place],
        speed: member.speed,
        keeps: Keeps {
            kept: member.keeper.kept,
            digests: vec![0; member.keeper.kept.len()],
            spans: 1,
            refuses: refuses == Some(place),
            ..Keeps::default()
        },
        ..Header::stand_in(member.peer)
    };
    let headers = head.members.iter().enumerate().map(header).collect();
    Record::signed_by_stand_ins(head, headers)
}

#[test]
fn a_round_counts_all_or_nothing() {
    let manifest = manifest(1, 2);
    let mut head = head(&manifest, &[&[0], &[1], &[2], &[3]]);
    let good = |head: &Head, record: &Record| head.check(record, &manifest, Scheme::StandIn).is_ok();
    let whole = record(&head, [0, 0, 0, 10], None);
    assert!(good(&head, &whole));
    for wrong in [[0, 0, 0, 9], [0, 0, 0, 0], [10, 0, 0, 0], [1, 0, 0, 10]] {
        assert!(!good(&head, &record(&head, wrong, None)), "{wrong:?}");
    }
    // Somebody has what is no number: nothing counts, and after the second time it is given up.
    let refused = record(&head, [0, 0, 0, 10], Some(1));
    assert!(good(&head, &refused) && refused.weight() == 0);
    head.apply(&refused, &manifest);
    assert_eq!((head.samples, head.skipped, head.steps), (0, 0, 0));
    let again = record(&head, [0, 0, 0, 0], Some(3));
    assert!(good(&head, &again));
    head.apply(&again, &manifest);
    assert_eq!((head.samples, head.skipped), (0, 10));
    let counted = record(&head, [0, 0, 0, 10], None);
    head.apply(&counted, &manifest);
    assert_eq!((head.samples, head.steps, head.cursor), (10, 1, 20));
    assert_eq!(head.check_itself(&manifest), Ok(()));
}
