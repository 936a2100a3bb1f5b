//! Tests of batches, routes, and the consequences of who holds which spans.

use super::*;
use crate::access::signature::Scheme;
use crate::base::random::SplitMix;
use crate::ledger::keeps::Keeps;
use crate::ledger::{Header, Member, Record};
use crate::run::config::Layout;
use crate::run::parts::PartSet;
use crate::run::room::Room;
use crate::run::split::Step;
use crate::sim::stand_ins::spans::{cut, head, held, manifest, member, peer, settle};
use std::num::NonZeroU16;

fn names(n: u8) -> Vec<PeerId> {
    (1..=n).map(peer).collect()
}

#[test]
fn a_batch_is_cut_into_microbatches_and_lanes() {
    let split = manifest(1, 2).split.unwrap();
    let hole = |start, end| SampleRange {
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
    // The last has two lanes of the span before already.
    assert_eq!([0, 1, 2, 3].map(|lane| route.of(2, lane)), [2, 2, 2, 5]);
    assert_eq!([0, 1, 2, 3].map(|lane| route.of(3, lane)), [3; 4]);
    assert_eq!(route.by(5).collect::<Vec<_>>(), [(1, 2), (1, 3), (2, 3)]);
    // Without the first, only its lanes go to another.
    let without = head.route(split, parts, &names(6)[1..], 4);
    assert_eq!([0, 1, 2, 3].map(|lane| without.of(0, lane)), [3; 4]);
    for (span, lane) in (1..4).flat_map(|span| (0..4).map(move |lane| (span, lane))) {
        assert_eq!(without.of(span, lane) + 1, route.of(span, lane));
    }
}

#[test]
fn lanes_go_to_who_is_done_with_them_first() {
    let manifest = manifest(2, 8);
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(&manifest).unwrap());
    let mut head = head(&manifest, &[&[0], &[1], &[2], &[3], &[0], &[0]]);
    let speeds = |head: &mut Head, speeds: [u64; 3]| {
        let holders = [0, 4, 5].into_iter().zip(speeds);
        holders.for_each(|(at, speed)| head.members[at].speed = speed);
    };
    let shares = |head: &Head| {
        let route = head.route(split, parts, &names(6), 8);
        [0, 4, 5].map(|at| route.by(at).count())
    };
    speeds(&mut head, [1000, 2000, 1000]);
    assert_eq!(shares(&head), [2, 4, 2]);
    // A member that would take longer for one lane than the others for all gets none, except for trials.
    speeds(&mut head, [1000, 1000, 100]);
    assert_eq!(shares(&head), [4, 4, 0]);
    head.round = TRIAL - 1;
    assert_eq!(shares(&head), [4, 3, 1]);
    // If there are fewer lanes than holders, there are no trials at others' cost.
    let few = head.route(split, parts, &names(6), 2);
    assert_eq!([0, 4, 5].map(|at| few.by(at).count()), [1, 1, 0]);
}

#[test]
fn a_head_that_does_not_hold_all_spans_hands_out_nothing() {
    let manifest = manifest(2, 2);
    let whole = head(&manifest, &[&[0, 1], &[2], &[3]]);
    assert!(whole.trains(&manifest, &names(3)));
    assert!(!whole.trains(&manifest, &names(2)));
    // Both halves of a span have a keeper, but nobody has both.
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
    // Each newcomer takes a span that fewest have.
    let mut all = head(&manifest, &[&[0], &[1], &[2], &[3], &[], &[]]);
    assert_eq!(all.suggest(&manifest, peer(5)), (of(0), PartSet::default()));
    assert_eq!(all.suggest(&manifest, peer(6)), (of(1), PartSet::default()));
    assert_eq!(
        all.suggest(&manifest, peer(1)),
        (PartSet::default(), PartSet::default())
    );
    // A member with room takes a span that lacks copies.
    all.members[2].keeper.room = Room::of(2);
    assert_eq!(all.suggest(&manifest, peer(3)).0, of(3).without(&of(2)));
    // If one span has three holders and another one, the last of the three drops it.
    let uneven = head(&manifest, &[&[0], &[0], &[0], &[1], &[2], &[2], &[3], &[3]]);
    let (learns, drops) = uneven.suggest(&manifest, peer(3));
    assert_eq!((learns, drops.is_empty()), (PartSet::default(), false));
    assert!(uneven.suggest(&manifest, peer(2)).1.is_empty());
    // A span that nobody has any more cannot be learned.
    let lost = head(&manifest, &[&[0], &[2], &[3], &[]]);
    assert_eq!(lost.suggest(&manifest, peer(4)).0, of(0));
}

#[test]
fn with_little_room_somebody_moves_to_what_lacks() {
    let manifest = manifest(2, 2);
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(&manifest).unwrap());
    // The leaving member is the only holder of a span, and nobody has room for two: one of two holders of another
    // span moves.
    let mut all = head(&manifest, &[&[0], &[1], &[2], &[2], &[3]]);
    all.members[4].keeper.leaves = true;
    assert!(all.suggest(&manifest, peer(3)).1.is_empty());
    let dropped = all.suggest(&manifest, peer(4)).1;
    assert_eq!(dropped, split.parts(parts, 2));
    all.members[3].keeper.kept = PartSet::default();
    assert_eq!(all.suggest(&manifest, peer(4)).0, split.parts(parts, 3));
    // The member with room has the span that lacks holders. It takes another one, from a member that drops a third
    // and can take it.
    let mut all = head(&manifest, &[&[0, 1, 2], &[0, 1], &[0, 3]]);
    for (member, room) in all.members.iter_mut().zip([4, 2, 2]) {
        member.keeper.room = Room::of(room);
    }
    let has = all.members[0].keeper.kept;
    assert_eq!(
        all.suggest(&manifest, peer(1)).0,
        split.parts(parts, 3).without(&has)
    );
    assert_eq!(all.suggest(&manifest, peer(2)), Default::default());
    assert!(!all.suggest(&manifest, peer(3)).1.is_empty());
    all.members[2] = member(3, &[3], &manifest);
    all.members[2].keeper.room = Room::of(2);
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
    all.members[1].keeper.room = Room::of(2);
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
    // Each part of span 0 is with some other as well, since neighbours share parts, but nobody else has all of
    // them.
    let all = head(&manifest, &[&[0, 1], &[1], &[2], &[3]]);
    let others = |part: &u16| (1..4).any(|at| all.members[at].keeper.kept.contains(*part));
    assert!(split.parts(parts, 0).iter().all(|part| others(&part)));
    let after = gone(&all, &[1], &[], &manifest);
    assert_eq!(after.members.len(), 4, "it may not leave yet");
    assert!(after.members[0].keeper.leaves && after.all_train(&manifest));
    // Neither may it drop the span. The first also holds the second one's.
    let after = gone(&all, &[], &[1, 2], &manifest);
    assert!(after.all_train(&manifest));
    let after = gone(&all, &[2], &[], &manifest);
    assert_eq!(after.members.len(), 3);
    // They cannot both leave.
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
    founder.keeper.room = Room::of(1);
    let mut head = Head::genesis(&manifest, founder);
    assert!(!head.all_train(&manifest));
    head.members.extend((2..=4).map(|n| member(n, &[], &manifest)));
    for n in 2..=4u8 {
        let (takes, _) = head.suggest(&manifest, peer(n));
        head.members[usize::from(n) - 1].keeper.kept = takes;
    }
    assert!(head.all_train(&manifest));
}

#[test]
fn who_takes_no_ends_ends_up_in_the_middle() {
    let mut manifest = manifest(1, 2);
    cut(&mut manifest, &[3, 2, 3]);
    let native = Room::of(1);
    let tab = Room::inner(1);
    // In any order of arrival, at once or after all has settled, and for any room of the founder.
    for (others, at_once) in [
        ([native, tab], false),
        ([tab, native], false),
        ([native, tab], true),
        ([tab, native], true),
    ] {
        for founders in 1..=3 {
            for trained in [false, true] {
                let mut founder = member(1, &[], &manifest);
                founder.keeper.room = Room::of(founders);
                let mut head = Head::genesis(&manifest, founder);
                for (n, room) in (2..).zip(others) {
                    let mut newcomer = member(n, &[], &manifest);
                    newcomer.keeper.room = room;
                    head.members.push(newcomer);
                    if !at_once || n == 3 {
                        settle(&mut head, &manifest);
                    }
                    if trained && head.all_train(&manifest) {
                        head.untrained = PartSet::default();
                    }
                }
                assert!(
                    head.all_train(&manifest),
                    "{others:?} {founders}: {:?}",
                    held(&head, &manifest)
                );
                let of_tab = others.iter().position(|room| room.inner).unwrap() + 1;
                assert_eq!(held(&head, &manifest)[of_tab], [1], "{others:?} {founders}");
            }
        }
    }
}

#[test]
fn who_takes_no_ends_computes_none_though_it_keeps_the_parts() {
    let mut manifest = manifest(1, 2);
    manifest.layout = Layout::flat(200);
    let split = manifest.split.as_mut().unwrap();
    for (i, step) in split.steps.iter_mut().enumerate() {
        step.ranges = std::iter::once(i * 25..(i + 1) * 25).collect();
    }
    // There is one part, which all spans need.
    let mut head = head(&manifest, &[&[0], &[1]]);
    head.members[1].keeper.room = Room::inner(1);
    assert_eq!(held(&head, &manifest), [vec![0, 1, 2, 3], vec![1, 2]]);
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(&manifest).unwrap());
    let route = head.route(split, parts, &names(2), 2);
    // More of the middle, since the other has the ends.
    assert_eq!(route.by(1).collect::<Vec<_>>(), [(1, 0), (1, 1), (2, 1)]);
    assert!(head.trains(&manifest, &names(2)) && !head.trains(&manifest, &names(2)[1..]));
    // The other cannot leave it alone.
    assert_eq!(gone(&head, &[1], &[], &manifest).members.len(), 2);
    assert_eq!(gone(&head, &[2], &[], &manifest).members.len(), 1);
}

/// How many different members with this room can hold each span, found by placing one holder after the other.
fn most_holders(rooms: &[Room], spans: usize) -> usize {
    fn place(
        span: usize,
        seen: &mut Vec<bool>,
        held: &mut [Vec<usize>],
        rooms: &[Room],
        spans: usize,
    ) -> bool {
        for at in 0..rooms.len() {
            if seen[at] || held[at].contains(&span) || !rooms[at].reads(span, spans) {
                continue;
            }
            seen[at] = true;
            if held[at].len() < usize::from(rooms[at].spans) {
                held[at].push(span);
                return true;
            }
            for i in 0..held[at].len() {
                let other = held[at][i];
                held[at][i] = span;
                if place(other, seen, held, rooms, spans) {
                    return true;
                }
                held[at][i] = other;
            }
        }
        false
    }
    let mut held = vec![Vec::new(); rooms.len()];
    let mut holders = 0;
    loop {
        for span in 0..spans {
            if !place(span, &mut vec![false; rooms.len()], &mut held, rooms, spans) {
                return holders;
            }
        }
        holders += 1;
    }
}

#[test]
fn all_spans_come_to_have_as_many_holders_as_there_can_be() {
    let cuts: [&[u16]; 6] = [
        &[8],
        &[4, 4],
        &[3, 2, 3],
        &[2, 2, 2, 2],
        &[1, 2, 2, 2, 1],
        &[2, 1, 1, 1, 1, 2],
    ];
    let mut rng = SplitMix(7);
    let mut below = |n: u64| rng.bits() % n;
    for world in 0..500 {
        let mut manifest = manifest(1 + below(3) as u16, 2);
        cut(&mut manifest, cuts[below(6) as usize]);
        let spans = manifest.split.as_ref().unwrap().spans.len();
        let mut founder = member(1, &[], &manifest);
        founder.keeper.room = Room::of(1 + below(spans as u64) as u16);
        let mut head = Head::genesis(&manifest, founder);
        for n in 2..=2 + below(6) as u8 {
            let mut newcomer = member(n, &[], &manifest);
            let inner = below(2) == 0;
            let spans_of = 1 + below(2) as u16;
            newcomer.keeper.room = Room {
                inner,
                ..Room::of(spans_of)
            }
            .within(spans);
            head.members.push(newcomer);
            if below(2) == 0 {
                settle(&mut head, &manifest);
            }
            if head.all_train(&manifest) {
                head.untrained = PartSet::default();
            }
        }
        settle(&mut head, &manifest);
        let rooms: Vec<Room> = head.members.iter().map(|m| m.keeper.room).collect();
        let wanted = most_holders(&rooms, spans).min(manifest.copies.unwrap().get().into());
        let held = held(&head, &manifest);
        for span in 0..spans {
            let holders = held.iter().filter(|held| held.contains(&span)).count();
            assert!(
                holders >= wanted,
                "world {world}: span {span} of {held:?} with {rooms:?} is to have {wanted}"
            );
        }
        for (held, room) in held.iter().zip(&rooms) {
            assert!(
                !held.is_empty() || room.spans == 0,
                "world {world}: {held:?} {rooms:?}"
            );
        }
    }
}

/// A round in which all have computed what they should, each with this weight.
fn record(head: &Head, weights: [u32; 4], refuses: Option<usize>) -> Record {
    let header = |(place, member): (usize, &Member)| Header {
        weight: weights[place],
        speed: member.speed,
        keeps: Keeps {
            kept: member.keeper.kept,
            digests: vec![0; member.keeper.kept.len()],
            room: member.keeper.room,
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
    // One member's result is not finite: nothing counts, and after the second time the samples are given up.
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
