//! Who goes to another span, when, and that it stays so.

use super::*;
use crate::random::SplitMix;
use crate::stand_ins::spans::{cut, head, held, manifest, next, peer};

/// Two spans with these holders, of which each is wanted to be held by so many.
fn two_spans(copies: u16, members: &[&[usize]]) -> (Head, Manifest) {
    let mut manifest = manifest(copies, 8);
    cut(&mut manifest, &[4, 4]);
    (head(&manifest, members), manifest)
}

#[test]
fn a_fast_holder_goes_where_the_others_are_slow() {
    let (mut head, manifest) = two_spans(1, &[&[0], &[0], &[1], &[1]]);
    let speeds = [4000, 4000, 1000, 1000];
    let mut begun = Vec::new();
    for round in 1..=60 {
        next(&mut head, &manifest, |at| speeds[at]);
        begun.extend(head.shifts.begun(round));
        assert!(
            head.all_train(&manifest),
            "round {round}: {:?}",
            held(&head, &manifest)
        );
    }
    assert_eq!(held(&head, &manifest), [vec![1], vec![0], vec![1], vec![1]]);
    // Eight lanes: the slow two had four each, at 1,000, and the fast one that stays has all of its span's, at 4,000.
    let [shift] = begun[..] else { panic!("{begun:?}") };
    assert_eq!(
        (shift.peer, shift.from, shift.to, shift.shorter),
        (peer(1), 0, 1, 50)
    );
    assert_eq!(head.shifts.under_way, None);
}

#[test]
fn nobody_goes_for_less_than_a_fifth_or_from_where_it_is_wanted() {
    for (copies, members, speeds) in [
        (1, [[0], [0], [1], [1]], [1000, 1000, 900, 900]),
        (2, [[0], [0], [1], [1]], [4000, 4000, 1000, 1000]),
        // Whoever is fast is where it is needed.
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

#[test]
fn with_speeds_that_drift_it_comes_to_rest() {
    let mut shifts = 0;
    for world in 0..40u64 {
        let (mut head, manifest) = two_spans(1, &[&[0], &[0], &[0], &[1], &[1], &[1]]);
        let mut rng = SplitMix(world);
        let mut below = |n: u64| rng.bits() % n;
        let base = [(); 6].map(|()| 500 + below(4) * below(1500));
        let drift = [(); 6].map(|()| (below(1000) as f64, 100.0 + below(200) as f64));
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
        stays.take_shift(&manifest);
    }
    assert_eq!(stays.shifts.under_way, None);
}

#[test]
fn a_span_that_costs_more_is_slower() {
    let (mut head, mut manifest) = two_spans(1, &[&[0], &[0], &[1], &[1]]);
    let steps = &mut manifest.split.as_mut().unwrap().steps;
    steps[4..].iter_mut().for_each(|step| step.cost = 4);
    // In samples of its own span each is as fast as before: so those of the second could do four times as many of the first.
    for _ in 0..60 {
        next(&mut head, &manifest, |_| 1000);
    }
    assert_eq!(held(&head, &manifest), [[0], [0], [1], [1]]);
    // All four are equal, and the second span has four fifths of the work.
    for _ in 0..100 {
        let held = held(&head, &manifest);
        next(
            &mut head,
            &manifest,
            |at| if held[at] == [0] { 4000 } else { 1000 },
        );
    }
    assert_eq!(held(&head, &manifest), [[1], [0], [1], [1]]);
}

#[test]
fn what_cannot_be_is_found_out() {
    let (head, manifest) = two_spans(1, &[&[0], &[0], &[1], &[1]]);
    let shift = Shift {
        peer: peer(1),
        from: 0,
        to: 1,
        shorter: 50,
    };
    for (shift, is_sound) in [
        (shift, true),
        (
            Shift {
                peer: peer(9),
                ..shift
            },
            false,
        ),
        (Shift { to: 2, ..shift }, false),
        (Shift { to: 0, ..shift }, false),
        (
            Shift {
                shorter: 101,
                ..shift
            },
            false,
        ),
    ] {
        let mut head = head.clone();
        head.shifts.under_way = Some(shift);
        assert_eq!(head.check_itself(&manifest).is_ok(), is_sound, "{shift:?}");
    }
    let whole = Manifest::new(crate::config::Layout::flat(3));
    let mut head = Head::unfounded(&whole);
    head.shifts.under_way = Some(shift);
    assert!(head.check_itself(&whole).is_err());
}
