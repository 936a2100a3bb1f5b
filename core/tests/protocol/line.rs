//! A newcomer behind a line that is slower than the run's rounds.

use crate::story::{ANN, BEN, CAT, MILLI, SECOND, Story, troubles};
use annulus_core::optim::Optimizer;
use annulus_core::{Event, PeerId, Topology};

/// Bytes of a round. The state is three times as large.
const ROUND: u64 = 32 << 10;

/// A ring whose rounds take 200 ms, and a newcomer whose line carries so many bytes a second.
fn ring(members: &[PeerId], line: u64) -> Story {
    let mut story = Story::with(Topology::Direct, |manifest| {
        manifest.layout = annulus_core::Layout::flat(ROUND as usize / 4);
        manifest.piece = 128.try_into().unwrap();
        manifest.optimizer = Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
        };
        (manifest.batch, manifest.stand_aside) = (96.try_into().unwrap(), true);
        manifest.target = 1_000_000_000.try_into().unwrap();
    });
    // As far behind as rounds of megabytes would be let.
    story.lag = 2;
    for (i, who) in members.iter().enumerate() {
        story.pace.insert(*who, 480.0 / members.len() as f64);
        match i {
            0 => story.found(*who, MILLI),
            _ => story.join(*who, ANN, MILLI),
        }
        members[1..i.max(1)]
            .iter()
            .for_each(|other| story.open(*who, *other));
        story.run(20 * SECOND);
    }
    assert!(story.are_together(members));
    story.line.insert(CAT, line);
    story
}

fn comes(story: &mut Story) {
    story.pace.insert(CAT, 480.0);
    story.join(CAT, ANN, MILLI);
}

/// The first moment at which somebody told such an event, in seconds since `since`.
fn first(story: &Story, since: u64, is: impl Fn(PeerId, &Event) -> bool) -> Option<u64> {
    let told = |(at, who, event): &(u64, PeerId, Event)| (*at > since && is(*who, event)).then_some(*at);
    story.events.iter().find_map(told).map(|at| (at - since) / SECOND)
}

fn becomes_a_member(members: &[PeerId]) {
    // A round takes 1.3 s to it, the state 4 s.
    let mut story = ring(members, 25_000);
    let troubled = story.events.len();
    let rounds = |story: &Story| story.peers[&ANN].head().round;
    let before = rounds(&story);
    story.run(20 * SECOND);
    let usual = rounds(&story) - before;
    let (since, before) = (story.now, rounds(&story));
    comes(&mut story);
    story.run(120 * SECOND);
    let entered = first(&story, since, |who, event| {
        who == CAT && matches!(event, Event::Entered)
    });
    assert!(entered.is_some_and(|s| s < 60), "{entered:?}");
    let here = rounds(&story) - before;
    assert!(
        10 * here > 9 * 6 * usual,
        "{here} rounds instead of {}",
        6 * usual
    );
    let aside = first(&story, since, |who, event| {
        who == CAT && matches!(event, Event::Aside(_))
    });
    assert!(aside.is_some(), "it learns why it is no member any more");
    // The others went on while the record that put it aside was on its way to it.
    let is_its_own = |trouble: &String| trouble.contains(&format!("{CAT} Outcast"));
    let of_others: Vec<_> = troubles(&story, troubled)
        .into_iter()
        .filter(|t| !is_its_own(t))
        .collect();
    assert_eq!(of_others, Vec::<String>::new());
}

#[test]
fn who_needs_seconds_for_a_round_becomes_a_member_of_a_fast_run() {
    becomes_a_member(&[ANN]);
}

#[test]
fn two_members_pause_for_one_of_them_and_none_is_put_out() {
    becomes_a_member(&[ANN, BEN]);
}

#[test]
fn who_could_never_catch_up_is_told_so_and_seldom_tries() {
    // A round takes 13 s to it, the state 40 s.
    let mut story = ring(&[ANN, BEN], 2_500);
    let since = story.now;
    let before = story.peers[&ANN].head().round;
    comes(&mut story);
    story.open(CAT, BEN);
    story.run(300 * SECOND);
    let is_told = |of: PeerId| {
        first(&story, since, |who, event| {
            let slow = match event {
                Event::TooSlow { peer: CAT, slow, .. } => Some(slow),
                _ => None,
            };
            who == of && slow.is_some_and(|slow| slow.carries < 5_000 && slow.takes > 100_000)
        })
    };
    assert!(is_told(CAT).is_some_and(|s| s < 60), "{:?}", is_told(CAT));
    assert!(is_told(ANN).or(is_told(BEN)).is_some_and(|s| s < 60));
    let rounds = story.peers[&ANN].head().round - before;
    assert!(rounds > 1350, "{rounds} of 1500 rounds");
    let words =
        |(_, who, event): &&(u64, PeerId, Event)| *who == CAT && matches!(event, Event::TooSlow { .. });
    let words = story.events.iter().filter(words).count();
    assert!((1..5).contains(&words), "{words}");
    assert!(!story.exits.contains_key(&CAT));
}
