//! The fold, event by event.

use super::super::testing::{committed, done, eval, member, name, ready, ready_for, sync};
use super::*;

fn view(events: &[(u64, Event)]) -> RunView {
    let mut view = RunView::default();
    events.iter().for_each(|(at_ms, event)| view.take(event, *at_ms));
    view
}

#[test]
fn a_peer_passes_through_its_phases() {
    let fetch = Event::Fetch { bytes: 1, total: 2 };
    let mut view = RunView::default();
    assert_eq!(view.phase, Phase::Starting);
    for (event, phase) in [
        (
            Event::Pack { done: 1, total: 2 },
            Phase::Packing { done: 1, total: 2 },
        ),
        (fetch, Phase::Fetching { bytes: 1, total: 2 }),
        (ready(1), Phase::Starting),
        (
            sync(1, 4, 7),
            Phase::Syncing {
                bytes: 1,
                total: 4,
                round: 7,
            },
        ),
        (
            member(1, Change::Joined, 7, ""),
            Phase::Syncing {
                bytes: 1,
                total: 4,
                round: 7,
            },
        ),
        (committed(8, &[(1, 64)], 1.0), Phase::Training),
        (Event::Warning { message: "m".into() }, Phase::Training),
        (
            sync(3, 4, 9),
            Phase::Syncing {
                bytes: 3,
                total: 4,
                round: 9,
            },
        ),
        (done(9), Phase::Done),
    ] {
        view.take(&event, 0);
        assert_eq!(view.phase, phase, "{event:?}");
    }
    assert_eq!((view.totals.warnings, view.done.unwrap().round), (1, 9));
}

#[test]
fn a_round_shows_who_did_what() {
    let view = view(&[
        (1000, ready(1)),
        (2000, committed(1, &[(2, 40), (1, 24)], 2.5)),
        (3000, committed(2, &[(2, 32), (1, 32)], 2.0)),
        (3000, member(2, Change::Failed, 2, "why")),
        (5000, committed(3, &[(1, 64)], f32::NAN)),
    ]);
    let peer = |n| {
        let peer: &Peer = &view.peers[&name(n)];
        (peer.member, peer.weight, peer.samples, peer.rounds)
    };
    assert_eq!((peer(1), peer(2)), ((true, 64, 120, 3), (false, 0, 72, 2)));
    assert_eq!((view.members(), view.last_round(), view.counted()), (1, 3, 192));
    assert_eq!(view.losses.points(), [(1, 2.5), (2, 2.0)]);
    assert!((view.loss.unwrap() - 2.45).abs() < 1e-9);
    let change = MemberChange {
        at_ms: 3000,
        peer: name(2),
        change: Change::Failed,
        round: 2,
        reason: "why".into(),
    };
    assert_eq!(view.changes, [change]);
    let totals = view.totals;
    assert_eq!((totals.rounds, totals.samples, totals.own_samples), (3, 192, 120));
    assert_eq!((totals.bytes_sent, totals.bytes_received), (3000, 6000));
    assert_eq!(
        (totals.compute_seconds, totals.reduce_seconds),
        (0.75, 0.0),
        "what is not finite counts nothing"
    );
    assert_eq!(totals.changes, [0, 0, 0, 1, 0]);
}

#[test]
fn how_much_is_left_follows_from_the_newest_round() {
    for (target, rounds, share, remaining, expected) in [
        (6400, 0, 0.0, 6400, None),
        (6400, 1, 0.01, 6336, Some(100)),
        (6400, 100, 1.0, 0, Some(100)),
        (6401, 50, 3200.0 / 6401.0, 3201, Some(101)),
        (64, 2, 2.0, 0, Some(2)),
    ] {
        let mut view = view(&[(0, ready_for(1, target))]);
        (1..=rounds).for_each(|n| view.take(&committed(n, &[(1, 64)], 1.0), n));
        assert_eq!(
            (view.share_done(), view.remaining()),
            (share, remaining),
            "{target} {rounds}"
        );
        assert_eq!(view.rounds_expected(), expected, "{target} {rounds}");
    }
    let empty = view(&[(0, ready(1)), (0, committed(1, &[], f32::NAN))]);
    assert_eq!(
        (empty.rounds_expected(), empty.loss, empty.losses.points().len()),
        (None, None, 0)
    );
}

#[test]
fn rates_are_of_the_window_and_fall_when_the_run_stands_still() {
    let samples = |view: &RunView, window, now| view.rates(window, now).map(|rates| rates.samples);
    let mut view = view(&[(0, ready(1)), (0, committed(1, &[(1, 16), (2, 48)], 1.0))]);
    assert_eq!(view.rates(10_000, 5), None, "one round has no speed");
    view.take(&committed(2, &[(1, 16), (2, 48)], 1.0), 1000);
    let expected = Rates {
        rounds: 1.0,
        samples: 64.0,
        own_samples: 16.0,
        bytes_sent: 1000.0,
        time: TimeShares {
            compute: 0.25,
            exchange: 0.0,
            hidden: 0.0,
            speed_up: Some(1.0),
        },
    };
    assert_eq!(view.rates(10_000, 2000), Some(expected));
    assert_eq!(samples(&view, 10_000, 64_000), Some(1.0));
    for n in 3..100 {
        view.take(&committed(n, &[(1, 10)], 1.0), 1000 * n);
    }
    assert_eq!(samples(&view, 10_000, 99_000), Some(10.0));
    for n in 100..200 {
        view.take(&committed(n, &[(1, 10)], 1.0), 99_000 + 10 * (n - 99));
    }
    assert_eq!(samples(&view, 500, 100_000), Some(1000.0));
    assert!(samples(&view, 10_000, 100_000).unwrap() < 120.0);
    assert_eq!((view.since_round_ms(100_400), view.since_round_ms(0)), (400, 0));
}

#[test]
fn everything_is_bounded() {
    let mut view = RunView::default();
    for i in 0..2000u64 {
        let n = (i % 250) as u8;
        let stranger = Event::Member {
            peer: format!("{i:064}"),
            change: Change::Left,
            round: i,
            reason: String::new(),
        };
        for event in [
            member(n, Change::Joined, i, ""),
            member(n, Change::Left, i, ""),
            committed(i + 1, &[(n, 1)], 1.0),
            eval(i, 1.0, None),
            stranger,
        ] {
            view.take(&event, 20 * i);
        }
    }
    assert_eq!(
        (view.changes.len(), view.evaluations.len(), view.peers.len()),
        (CHANGES, EVALUATIONS, PEERS)
    );
    assert_eq!(
        (
            view.changes[CHANGES - 1].round,
            view.evaluations[EVALUATIONS - 1].round
        ),
        (1999, 1999)
    );
    assert!((250..=500).contains(&view.losses.points().len()));
    assert_eq!(view.recent.len() as u64, RATE_WINDOW_MS / 20 + 1);
}
