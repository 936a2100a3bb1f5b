//! Which members move and which cuts change, when, and whether the result is stable.

use super::*;
use crate::base::random::SplitMix;
use crate::run::room::Room;
use crate::sim::stand_ins::spans::{cut, head, held, manifest, next, peer};
use std::num::NonZeroU16;

/// Two spans with these holders, each wanted `copies` times. They cannot be cut in another way.
fn two_spans(copies: u16, members: &[&[usize]]) -> (Head, Manifest) {
    let (_, mut manifest) = two_to_cut(copies, members);
    let steps = &mut manifest.split.as_mut().unwrap().steps;
    for step in [0, 1, 2, 4, 5, 6] {
        steps[step].boundary = 0;
    }
    (head(&manifest, members), manifest)
}

/// Like [`two_spans`], with eight equal steps that can be cut anywhere.
fn two_to_cut(copies: u16, members: &[&[usize]]) -> (Head, Manifest) {
    let mut manifest = manifest(copies, 8);
    cut(&mut manifest, &[4, 4]);
    (head(&manifest, members), manifest)
}

/// The number of steps of each span.
fn steps(head: &Head) -> Vec<u16> {
    head.spans.iter().map(|steps| steps.get()).collect()
}

#[test]
fn a_fast_holder_goes_where_the_others_are_slow() {
    let (mut head, manifest) = two_spans(1, &[&[0], &[0], &[1], &[1]]);
    let speeds = [4000, 4000, 1000, 1000];
    let mut begun = Vec::new();
    for round in 1..=60 {
        next(&mut head, &manifest, |at| speeds[at]);
        begun.extend(head.shifts.begun(round).cloned());
        assert!(
            head.all_train(&manifest),
            "round {round}: {:?}",
            held(&head, &manifest)
        );
    }
    assert_eq!(held(&head, &manifest), [vec![1], vec![0], vec![1], vec![1]]);
    // Eight lanes: the slow two had four each, at 1,000, and the fast one that stays has all of its span's, at
    // 4,000.
    let goal = Goal::Move(Move {
        peer: peer(1),
        from: 0,
        to: 1,
    });
    assert_eq!(begun, [Shift { goal, shorter: 50 }]);
    assert_eq!(head.shifts.under_way, None);
}

#[test]
fn nobody_goes_for_less_than_a_fifth_or_from_where_it_is_wanted() {
    for (copies, members, speeds) in [
        (1, [[0], [0], [1], [1]], [1000, 1000, 900, 900]),
        (2, [[0], [0], [1], [1]], [4000, 4000, 1000, 1000]),
        // The fast member is where it is needed.
        (1, [[0], [1], [1], [1]], [4000, 1000, 1000, 1000]),
    ] {
        let members: Vec<&[usize]> = members.iter().map(|held| &held[..]).collect();
        let (mut head, manifest) = two_spans(copies, &members);
        for _ in 0..60 {
            assert!(next(&mut head, &manifest, |at| speeds[at]));
        }
        let as_before: Vec<Vec<usize>> = members.iter().map(|held| held.to_vec()).collect();
        assert_eq!(held(&head, &manifest), as_before);
    }
}

#[test]
fn one_slow_round_moves_nobody_and_neither_does_noise() {
    let (mut head, manifest) = two_spans(1, &[&[0], &[0], &[0], &[1], &[1], &[1]]);
    let mut rng = SplitMix(3);
    for round in 1..=500 {
        let mut speed = || 700 + rng.bits() % 600;
        let noisy = [(); 6].map(|()| speed());
        let stutters = round % 40 == 7;
        next(&mut head, &manifest, |at| {
            if stutters && at > 2 { 100 } else { noisy[at] }
        });
        assert_eq!(head.shifts.under_way, None, "round {round}");
    }
}

/// How many changes are asked for in forty runs of 500 rounds that begin with this head. None follows another soon,
/// and each round trains. Speeds are `least` and up to three times `more` above, drift by a quarter, and have 30 %
/// of noise.
fn shifts_in_forty_runs(begins: impl Fn() -> (Head, Manifest), (least, more): (u64, u64)) -> u32 {
    let mut shifts = 0;
    for world in 0..40u64 {
        let (mut head, manifest) = begins();
        let mut rng = SplitMix(world);
        let mut below = |n: u64| rng.bits() % n;
        let members = head.members.len();
        let base: Vec<u64> = (0..members).map(|_| least + below(4) * below(more)).collect();
        let drift = (0..members).map(|_| (below(1000) as f64, 100.0 + below(200) as f64));
        let drift: Vec<(f64, f64)> = drift.collect();
        let mut since = 0;
        for round in 1..=500u64 {
            let noise = 850 + below(300);
            let speed = |at: usize| {
                let (phase, period) = drift[at];
                let wave = 1.0 + 0.25 * ((round as f64 + phase) / period * std::f64::consts::TAU).sin();
                (base[at] as f64 * wave) as u64 * noise / 1000
            };
            next(&mut head, &manifest, speed);
            if head.shifts.begun(round).is_some() {
                assert!(
                    since == 0 || round >= since + ROUNDS,
                    "world {world}: {since} and {round}"
                );
                (since, shifts) = (round, shifts + 1);
            }
            assert!(head.all_train(&manifest));
        }
    }
    shifts
}

#[test]
fn with_speeds_that_drift_it_comes_to_rest() {
    let begins = || two_spans(1, &[&[0], &[0], &[0], &[1], &[1], &[1]]);
    let shifts = shifts_in_forty_runs(begins, (500, 1500));
    assert!((5..=80).contains(&shifts), "{shifts} in 20,000 rounds");
}

#[test]
fn who_is_gone_or_does_not_come_is_not_waited_for() {
    let (mut begun, manifest) = two_spans(1, &[&[0], &[0], &[1], &[1]]);
    let speeds = [4000, 4000, 1000, 1000];
    while begun.shifts.under_way.is_none() {
        next(&mut begun, &manifest, |at| speeds[at]);
    }
    let mut gone = begun.clone();
    gone.members.remove(0);
    next(&mut gone, &manifest, |_| 1000);
    assert_eq!(gone.shifts.under_way, None);
    assert_eq!(held(&gone, &manifest), [[0], [1], [1]]);
    let mut stays = begun.clone();
    for _ in 0..PATIENCE {
        assert!(stays.shifts.under_way.is_some());
        stays.round += 1;
        stays.take_shift(&manifest, false);
    }
    assert_eq!(stays.shifts.under_way, None);
}

#[test]
fn a_span_that_costs_more_is_slower() {
    let (mut head, mut manifest) = two_spans(1, &[&[0], &[0], &[1], &[1]]);
    // All four are equally fast, and so are the spans.
    for _ in 0..60 {
        next(&mut head, &manifest, |_| 1000);
    }
    assert_eq!(held(&head, &manifest), [[0], [0], [1], [1]]);
    let steps = &mut manifest.split.as_mut().unwrap().steps;
    steps[4..].iter_mut().for_each(|step| step.cost = 4);
    // The second span has four fifths of the work.
    for _ in 0..60 {
        next(&mut head, &manifest, |_| 1000);
    }
    assert_eq!(held(&head, &manifest), [[1], [0], [1], [1]]);
}

#[test]
fn what_cannot_be_is_found_out() {
    let (head, manifest) = two_to_cut(1, &[&[0], &[0], &[1], &[1]]);
    let goes = |n, from, to| {
        Goal::Move(Move {
            peer: peer(n),
            from,
            to,
        })
    };
    let cut = |steps: &[u16]| {
        Goal::Cut(Recut {
            spans: steps.iter().map(|n| NonZeroU16::new(*n).unwrap()).collect(),
            holders: vec![(peer(1), vec![0]), (peer(3), vec![1])],
            in_force: false,
        })
    };
    let holds = |holders: &[(u8, &[u16])]| {
        Goal::Cut(Recut {
            spans: vec![NonZeroU16::new(7).unwrap(), NonZeroU16::MIN],
            holders: holders
                .iter()
                .map(|(n, held)| (peer(*n), held.to_vec()))
                .collect(),
            in_force: true,
        })
    };
    for (goal, shorter, is_sound) in [
        (goes(1, 0, 1), 50, true),
        (goes(9, 0, 1), 50, false),
        (goes(1, 0, 2), 50, false),
        (goes(1, 0, 0), 50, false),
        (goes(1, 0, 1), 101, false),
        (cut(&[7, 1]), 50, true),
        (cut(&[7, 2]), 50, false),
        (cut(&[8]), 50, false),
        (cut(&[2, 2, 4]), 50, false),
        (holds(&[(1, &[0, 1])]), 50, true),
    ] {
        let mut head = head.clone();
        if let Goal::Cut(recut) = &goal {
            let mut head = head.clone();
            head.spans = recut.spans.clone();
            assert_eq!(head.check_itself(&manifest).is_ok(), is_sound, "{goal:?}");
        }
        head.shifts.under_way = Some(Shift { goal, shorter });
        assert_eq!(
            head.check_itself(&manifest).is_ok(),
            is_sound,
            "{:?}",
            head.shifts
        );
    }
    for goal in [
        holds(&[(9, &[0])]),
        holds(&[(1, &[2])]),
        holds(&[(1, &[1, 0])]),
        holds(&[(2, &[0]), (1, &[0])]),
    ] {
        let mut head = head.clone();
        head.shifts.under_way = Some(Shift { goal, shorter: 50 });
        assert!(head.check_itself(&manifest).is_err(), "{:?}", head.shifts);
    }
    let whole = Manifest::new(crate::run::config::Layout::flat(3));
    let mut head = Head::unfounded(&whole);
    assert!(head.check_itself(&whole).is_ok());
    head.spans = vec![NonZeroU16::MIN];
    assert!(head.check_itself(&whole).is_err());
    head.spans.clear();
    head.shifts.under_way = Some(Shift {
        goal: goes(1, 0, 1),
        shorter: 50,
    });
    assert!(head.check_itself(&whole).is_err());
}

#[test]
fn who_is_slow_has_fewer_steps_and_nobody_waits_for_that() {
    // Two copies, so that nobody can move: the second span's holders are three times slower.
    let (mut head, manifest) = two_to_cut(2, &[&[0], &[0], &[1], &[1]]);
    let mut begun = Vec::new();
    for round in 1..=60 {
        next(&mut head, &manifest, |at| if at < 2 { 3000 } else { 1000 });
        begun.extend(head.shifts.begun(round).cloned());
        assert!(head.all_train(&manifest), "round {round}");
        if steps(&head) != [4, 4] {
            assert_eq!(held(&head, &manifest), [[0], [0], [1], [1]], "round {round}");
        }
    }
    assert_eq!(steps(&head), [6, 2]);
    let [Shift { goal, shorter: 50 }] = &begun[..] else {
        panic!("{begun:?}")
    };
    assert!(
        matches!(goal, Goal::Cut(recut) if recut.spans == head.spans),
        "{goal:?}"
    );
    // The holders of the second span have dropped what the first has taken from it; the last step has the first's
    // elements too.
    let (parts, split) = (Parts::of(&manifest).unwrap(), head.split(&manifest).unwrap());
    let kept: Vec<PartSet> = head.members.iter().map(|m| m.keeper.kept).collect();
    assert_eq!(kept[0], split.parts(parts, 0));
    assert_eq!(kept[3], split.parts(parts, 1));
}

#[test]
fn a_cut_waits_for_all_who_hold_its_spans() {
    let (mut head, manifest) = two_to_cut(1, &[&[0], &[1]]);
    let slow = |head: &mut Head| next(head, &manifest, |at| if at == 0 { 4000 } else { 1000 });
    while head.shifts.under_way.is_none() {
        slow(&mut head);
    }
    let spans = head.spans.clone();
    // The parts that the first has begun to learn have not come yet: the old cut is in force, and the round trains.
    let mut early = head.clone();
    early.members[0].keeper.kept = head.members[0].keeper.kept;
    early.round += 1;
    early.take_shift(&manifest, false);
    assert_eq!((&early.spans, early.all_train(&manifest)), (&spans, true));
    let mut at_once = head.clone();
    at_once.take_shift(&manifest, true);
    assert!(at_once.spans != spans && !at_once.all_train(&manifest));
    // A change is given up once a member of it is gone whom nobody replaces.
    let mut gone = head.clone();
    gone.members.remove(1);
    gone.take_shift(&manifest, false);
    assert_eq!((gone.shifts.under_way.is_none(), &gone.spans), (true, &spans));
    for _ in 0..3 {
        slow(&mut head);
    }
    assert_eq!(
        (steps(&head), head.shifts.under_way.is_none()),
        (vec![7, 1], true)
    );
}

#[test]
fn each_holds_the_same_spans_before_and_after_wherever_borders_go() {
    // Four spans of two steps each. A member's parts of both cuts may include all of a neighbour's span in either.
    for (speeds, there) in [
        ([4000, 2000, 2000, 1000], [4, 1, 2, 1]),
        ([1000, 2000, 2000, 4000], [1, 2, 2, 3]),
        ([1000, 4000, 4000, 1000], [1, 3, 3, 1]),
    ] {
        let manifest = manifest(1, 1);
        let mut head = head(&manifest, &[&[0], &[1], &[2], &[3]]);
        for round in 1..=60 {
            // Learned parts reach one member sooner than the other.
            let before = head.clone();
            next(&mut head, &manifest, |at| speeds[at]);
            if round % 2 == 0 && head.shifts.recut().is_some_and(|recut| !recut.in_force) {
                let late = &before.members[round / 2 % 4].keeper;
                head.members[round / 2 % 4].keeper = *late;
            }
            assert!(
                head.all_train(&manifest),
                "round {round}: {:?}",
                held(&head, &manifest)
            );
        }
        assert_eq!(steps(&head), there);
        assert_eq!(head.shifts.under_way, None);
        let (parts, split) = (Parts::of(&manifest).unwrap(), head.split(&manifest).unwrap());
        for (span, member) in head.members.iter().enumerate() {
            assert_eq!(
                member.keeper.kept,
                split.parts(parts, span),
                "span {span} of {there:?}"
            );
        }
    }
}

#[test]
fn a_span_grows_only_where_there_is_room_for_it() {
    let (mut head, manifest) = two_to_cut(1, &[&[0], &[1]]);
    // Of eight parts the first has four. There is room for five.
    assert_eq!(head.members[0].keeper.kept.len(), 4);
    head.members[0].keeper.room = Room {
        parts: 5,
        ..Room::of(1)
    };
    for _ in 0..60 {
        next(&mut head, &manifest, |at| if at == 0 { 4000 } else { 1000 });
    }
    assert_eq!(steps(&head), [5, 3]);
}

#[test]
fn what_takes_longer_to_fetch_than_it_wins_back_is_left() {
    // A round of the slow members takes 40 s, of which a cut saves 20; in twenty rounds that is 400 s. A step has
    // 1,000 elements with their moments, so two are 24 kB or more, in whole parts.
    for (line, cuts) in [(0, true), (1000, true), (1, true)] {
        let (mut head, manifest) = two_to_cut(1, &[&[0], &[1]]);
        head.members.iter_mut().for_each(|m| m.keeper.line = line);
        for _ in 0..60 {
            next(&mut head, &manifest, |at| if at == 0 { 4000 } else { 1000 });
        }
        assert_eq!(steps(&head) != [4, 4], cuts, "{line} kB/s");
    }
    let (mut head, manifest) = two_to_cut(1, &[&[0], &[1]]);
    for m in &mut head.members {
        (m.keeper.line, m.speed) = (1, 1000);
    }
    for _ in 0..60 {
        // With rounds a thousand times faster, all of them together win nothing back.
        next(
            &mut head,
            &manifest,
            |at| if at == 0 { 4_000_000 } else { 1_000_000 },
        );
    }
    assert_eq!(steps(&head), [4, 4]);
}

#[test]
fn with_room_for_none_of_its_spans_the_founders_cut_is_back() {
    let (mut head, manifest) = two_to_cut(1, &[&[0], &[1]]);
    for _ in 0..60 {
        next(&mut head, &manifest, |at| if at == 0 { 4000 } else { 1000 });
    }
    assert_eq!(steps(&head), [7, 1]);
    // The only member with room for seven steps had them, and is gone. One with room for four has come.
    let mut came = crate::sim::stand_ins::spans::member(3, &[], &manifest);
    came.keeper.room.parts = 4;
    head.members[0] = came;
    head.untrained = Parts::of(&manifest).unwrap().all();
    for _ in 0..12 {
        next(&mut head, &manifest, |_| 1000);
    }
    assert_eq!(steps(&head), [4, 4]);
    assert!(head.all_train(&manifest), "{:?}", held(&head, &manifest));
}

#[test]
fn cuts_come_to_rest_with_speeds_that_drift() {
    let begins = || two_to_cut(2, &[&[0], &[0], &[1], &[1]]);
    let cuts = shifts_in_forty_runs(begins, (2000, 6000));
    assert!((10..=120).contains(&cuts), "{cuts} in 20,000 rounds");
}
