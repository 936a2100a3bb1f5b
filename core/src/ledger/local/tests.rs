//! Tests of local steps.

use super::*;
use crate::access::invitation::Admission;
use crate::base::id::{Contact, PeerId};
use crate::ledger::{Head, Member, Trials};
use crate::numeric::optim::{LocalSteps, norm_squared};
use crate::run::config::Layout;

fn manifest(batch: u32, steps: u32) -> Manifest {
    Manifest {
        batch: batch.try_into().unwrap(),
        target: 1_000_000.try_into().unwrap(),
        optimizer: "adam".parse().unwrap(),
        clip: Some(1.0),
        local: Some(LocalSteps::averaged(steps.try_into().unwrap())),
        ..Manifest::new(Layout::flat(3))
    }
}

fn member(n: u8, speed: u64) -> Member {
    Member {
        peer: PeerId([n; 32]),
        admission: Admission::stand_in(PeerId([n; 32]), Manifest::new(Layout::flat(3)).root()),
        speed,
        contact: Contact::default(),
        trials: Trials {
            delivered: true,
            ..Trials::default()
        },
        keeper: Default::default(),
    }
}

fn head(manifest: &Manifest, speeds: &[u64]) -> Head {
    let mut head = Head::genesis(manifest, member(1, 1));
    let members = (1..).zip(speeds).map(|(n, speed)| member(n, *speed));
    head.members = members.collect();
    head
}

fn rounds(manifest: &Manifest, head: &Head) -> Vec<LocalRound> {
    let allotment = head.allot(manifest);
    let of = |place| LocalRound::whole(head.cut(&allotment, place, manifest).unwrap(), true);
    (0..head.members.len()).map(of).collect()
}

#[test]
fn steps_go_with_speeds_and_use_every_sample_of_a_share_once() {
    let manifest = manifest(48, 10);
    for speeds in [&[1000; 4][..], &[1000], &[6000, 4000, 2000, 1000], &[1000, 1]] {
        let head = head(&manifest, speeds);
        let allotment = head.allot(&manifest);
        for (place, round) in rounds(&manifest, &head).iter().enumerate() {
            let share = allotment.len(place) as usize;
            let sizes: Vec<usize> = round.steps(share).map(|(_, samples)| samples.len()).collect();
            assert_eq!(sizes.iter().sum::<usize>(), share);
            if share == 0 {
                continue;
            }
            let expected = (10.0 * speeds[place] as f64 / speeds[0] as f64).round().max(1.0);
            assert_eq!(sizes.len() as f64, expected, "{speeds:?}");
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{sizes:?}");
            // A member that stops early has taken the first of the same steps.
            let half: Vec<_> = round.steps(share / 2).collect();
            assert_eq!(
                half.iter().map(|(_, samples)| samples.len()).sum::<usize>(),
                share / 2
            );
            let all: Vec<_> = round.steps(share).collect();
            let before_last = half.len().saturating_sub(1);
            assert_eq!(half[..before_last], all[..before_last]);
        }
    }
}

#[test]
fn the_rate_follows_samples_and_grows_with_the_members() {
    let mut manifest = manifest(48, 10);
    manifest.schedule = crate::numeric::optim::Schedule::Warmup { steps: 100 };
    let rate = |samples, speeds: &[u64], step| {
        let mut head = head(&manifest, speeds);
        head.samples = samples;
        rounds(&manifest, &head)[0].rate(&manifest, step)
    };
    let alone = |samples, step| rate(samples, &[1000], step);
    // One step of ten is one batch.
    assert_eq!(alone(0, 7), manifest.schedule.rate(manifest.lr, 8));
    assert_eq!(alone(48 * 7, 0), alone(0, 7));
    for step in 0..10 {
        assert_eq!(rate(960, &[1000; 4], step), 2.0 * alone(960, step));
    }
}

#[test]
fn first_steps_and_the_others_are_all_and_come_to_what_they_would_in_a_row() {
    let manifest = Manifest {
        overlap: true,
        ..manifest(4, 5)
    };
    let head = head(&manifest, &[1000]);
    let whole = rounds(&manifest, &head)[0];
    let (lead, rest) = (LocalRound::lead(whole.cut).unwrap(), LocalRound::rest(whole.cut));
    for there in [0, 3, 4, 11, 20] {
        let parts = lead.steps(there).chain(rest.steps(there));
        assert!(parts.eq(whole.steps(there)));
    }
    assert_eq!(
        (lead.counted(20), rest.counted(20), whole.counted(20)),
        (4, 20, 20)
    );
    assert_eq!(
        (lead.counted(3), rest.counted(3)),
        (3, 4),
        "what is taken is taken"
    );
    let single = LocalRound::lead(Cut {
        steps: 1,
        ..whole.cut
    });
    assert_eq!(single, None, "all of it would be late");

    let walk = |own: &mut LocalOptimizer, round: &LocalRound, params: &mut [f32; 3]| {
        let mut now = own.begin(round, params);
        for (step, samples) in round.steps(20) {
            let sum = [1.0 - step as f32, 0.25, -3.0];
            own.step(&manifest, (round, step), &mut now, (&sum, samples.len() as u32));
        }
        own.end(round, params, now.clone(), round.counted(20));
        now
    };
    let start = [0.5f32, -1.0, 2.0];
    let goes_on = LocalRound::whole(whole.cut, false);
    let mut in_a_row = LocalOptimizer::new(&manifest);
    let first = walk(&mut in_a_row, &whole, &mut start.clone());
    let mut ahead = in_a_row.clone();
    let second = walk(&mut in_a_row, &goes_on, &mut first.clone().try_into().unwrap());

    // The others have reached other parameters: the gain of the first steps counts from there.
    let shared = [0.25f32, -1.5, 2.5];
    let mut untouched = start;
    walk(&mut ahead, &lead, &mut untouched);
    assert_eq!(untouched, start, "no contribution yet");
    let mut contribution = shared;
    let now = walk(&mut ahead, &rest, &mut contribution);
    for i in 0..3 {
        let gained = second[i] - first[i];
        // There is no weight decay here, so equal gradients give equal deltas from anywhere.
        assert!((now[i] - shared[i] - gained).abs() <= 1e-5);
        assert_eq!(contribution[i], 20.0 * (shared[i] - now[i]));
    }
}

#[test]
fn one_member_that_averages_takes_the_steps_of_its_optimizer() {
    let manifest = manifest(4, 5);
    let head = head(&manifest, &[1000]);
    let round = rounds(&manifest, &head)[0];
    let start = [0.5f32, -1.0, 2.0];
    let gradients: Vec<[f32; 3]> = (0..5).map(|i| [8.0 - i as f32, 0.25, -3.0 * i as f32]).collect();

    let mut own = LocalOptimizer::new(&manifest);
    let mut now = own.begin(&round, &start);
    for (step, samples) in round.steps(20) {
        let sum = &gradients[step as usize];
        own.step(&manifest, (&round, step), &mut now, (sum, samples.len() as u32));
    }

    let (mut expected, mut m, mut v) = (start, [0.0; 3], [0.0; 3]);
    for (i, sum) in (1..).zip(&gradients) {
        let mean = 0.25f32;
        let norm = norm_squared(sum).sqrt() * f64::from(mean);
        let scale = mean * clip_scale(norm, 1.0);
        let step = manifest.optimizer.step(manifest.lr, i, scale);
        let mut slots = [&mut m[..], &mut v[..]];
        manifest
            .optimizer
            .apply(&step, &mut expected, &mut slots, sum, true);
    }
    assert_eq!(now, expected);

    // A round later, in another membership, it starts from zero.
    own.begin(&round, &start);
    assert_eq!(own, LocalOptimizer::new(&manifest));

    // With averaging, the delta leads to the member's parameters.
    let mut way_gone = start;
    way(&mut way_gone, &now, 20);
    let (outer, rate) = manifest.shared_optimizer();
    let mut shared = start;
    outer.apply(
        &outer.step(rate, 1, 1.0 / 20.0),
        &mut shared,
        &mut [],
        &way_gone,
        true,
    );
    for (shared, now) in shared.iter().zip(now) {
        assert!((shared - now).abs() <= 1e-6, "{shared} {now}");
    }
}
