//! How topologies and numbers of local steps are chosen, round by round.

use super::*;
use crate::base::id::{Contact, PeerId};
use crate::ledger::{Head, Header, Member, Record};
use crate::run::config::{Layout, Settings};

fn manifest(local: bool) -> Manifest {
    let mut local = local.then_some(LocalSteps::averaged(NonZeroU32::MIN));
    if let Some(local) = &mut local {
        local.steps = None;
    }
    Manifest {
        batch: NonZeroU32::new(48).unwrap(),
        target: (48 * 100_000).try_into().unwrap(),
        topology: None,
        local,
        ..Manifest::new(Layout::flat(3))
    }
}

#[test]
fn with_guests_all_is_sent_straight() {
    let manifest = manifest(false);
    let mut pace = Pace::new(&manifest);
    let mut tried = Vec::new();
    for at in 0..300 {
        let guests = (100..200).contains(&at);
        let us = match pace.told {
            Some(Topology::Ring) => 20_000,
            _ => 30_000,
        };
        let round = Exchanged {
            round: at + 1,
            members: 4,
            failed: false,
            us: Some(us),
            speed: 400_000,
            guests,
        };
        pace.apply(&round, &manifest);
        tried.push(pace.topology);
    }
    let rings = |range: std::ops::Range<usize>| {
        let tried = tried[range].iter();
        tried.filter(|topology| **topology == Topology::Ring).count()
    };
    assert_eq!(rings(100..200), 0);
    assert!(rings(50..100) > 40 && rings(250..300) > 40, "it is faster");
}

fn head(manifest: &Manifest, members: u8) -> Head {
    let member = |n| {
        let settings = Settings::stand_in(PeerId([n; 32]), Contact::default(), manifest);
        Member::new(&settings, Some(100_000))
    };
    let mut head = Head::genesis(manifest, member(1));
    head.members = (1..=members).map(member).collect();
    head
}

/// A round with this time for the previous exchange, and slightly longer times at each other member.
fn round(head: &mut Head, manifest: &Manifest, exchange_us: u64, attempt: u32) {
    let allotment = head.allot(manifest);
    let header = |(place, member): (usize, &Member)| Header {
        weight: allotment.len(place) as u32,
        speed: 100_000,
        exchange_us: exchange_us + 7000 * place as u64,
        ..Header::stand_in(member.peer)
    };
    let headers = head.members.iter().enumerate().map(header).collect();
    let mut record = Record::signed_by_stand_ins(head, headers);
    record.attempt = attempt;
    head.apply(&record, manifest);
    assert_eq!(head.check_itself(manifest), Ok(()));
}

/// The topologies of this many rounds, if an exchange takes these times, or never ends.
fn tried(manifest: &Manifest, members: u8, rounds: usize, [ring, direct]: [Option<u64>; 2]) -> Vec<Topology> {
    let mut head = head(manifest, members);
    let (mut before, mut tried) = (head.pace.topology, Vec::new());
    let us = |topology| match topology {
        Topology::Ring => ring,
        Topology::Direct => direct,
    };
    for at in 0..rounds {
        let now = head.pace.topology;
        tried.push(now);
        // A pause that is nobody's fault, now and then.
        let noise = if at % 11 == 3 {
            500_000
        } else {
            100 * (at as u64 % 5)
        };
        let attempt = u32::from(us(now).is_none());
        round(
            &mut head,
            manifest,
            us(before).map_or(0, |us| us + noise),
            attempt,
        );
        before = now;
    }
    tried
}

#[test]
fn the_faster_topology_is_found_and_the_other_hardly_ever_tried_again() {
    let manifest = manifest(false);
    let [ring, direct] = Topology::ALL;
    for (times, best) in [
        ([Some(310_000), Some(110_000)], direct),
        ([Some(20_000), Some(30_000)], ring),
        ([Some(19_500), Some(20_000)], direct),
        ([None, Some(500_000)], direct),
        ([Some(500_000), None], ring),
    ] {
        let tried = tried(&manifest, 4, 1000, times);
        let others = |range: std::ops::Range<usize>| tried[range].iter().filter(|t| **t != best).count();
        assert!(others(0..20) <= 10, "{times:?}: {}", others(0..20));
        assert!(others(20..1000) <= 30, "{times:?}: {}", others(20..1000));
    }
    let two = tried(&manifest, 2, 100, [Some(300_000), Some(100_000)]);
    assert!(
        two.iter().all(|topology| *topology == direct),
        "there is but one way"
    );
    let fixed = Manifest {
        topology: Some(ring),
        ..manifest
    };
    let fixed = tried(&fixed, 4, 100, [Some(300_000), Some(100_000)]);
    assert!(fixed.iter().all(|topology| *topology == ring), "it is the run's");
}

#[test]
fn rounds_are_as_long_as_exchanges_ask_for() {
    let mut manifest = manifest(true);
    manifest.topology = Some(Topology::Direct);
    let mut head = head(&manifest, 4);
    let mut changes = Vec::new();
    let mut rounds = |head: &mut Head, us: u64, rounds: u64| {
        for at in 0..rounds {
            let before = head.pace.batches.get();
            round(head, &manifest, us + us * (at * 7 % 11) / 50, 0);
            if head.pace.batches.get() != before {
                changes.push(head.pace.batches.get());
            }
        }
        head.pace.batches.get()
    };
    // Four at 100 samples a second have done 48 in 120 ms.
    let at_once = rounds(&mut head, 150_000, WINDOW as u64 + 1);
    assert!((8..=12).contains(&at_once), "{at_once}");
    let many = rounds(&mut head, 150_000, 200);
    assert!((8..=12).contains(&many), "{many}");
    let more = rounds(&mut head, 600_000, 200);
    assert!((34..=48).contains(&more), "{more}");
    assert_eq!(rounds(&mut head, 5_000, 200), 1);
    assert_eq!(changes.iter().filter(|n| **n == 1).count(), 1, "{changes:?}");
    let turns = changes
        .windows(3)
        .filter(|w| (w[0] < w[1]) != (w[1] < w[2]))
        .count();
    assert_eq!(turns, 1, "{changes:?}");
}

#[test]
fn between_two_numbers_of_local_steps_it_keeps_one() {
    let mut manifest = manifest(true);
    (manifest.topology, manifest.overlap) = (Some(Topology::Direct), true);
    let mut head = head(&manifest, 4);
    let mut changes = 0;
    for at in 0..400 {
        let before = head.pace.batches;
        // Of batches of 120 ms, three are as good as four, by turns.
        let us = if at / 9 % 2 == 0 { 230_000 } else { 250_000 };
        round(&mut head, &manifest, us, 0);
        changes += u32::from(head.pace.batches != before);
    }
    assert!(
        (3..=4).contains(&head.pace.batches.get()),
        "{}",
        head.pace.batches
    );
    assert!(changes <= 2, "{changes}");
}

#[test]
fn an_exchange_that_ends_during_the_first_step_costs_no_further_local_steps() {
    let overlapped = |exchange, batch| local_batches(1000, exchange, batch, true);
    assert_eq!(
        overlapped(12, 100),
        1,
        "it costs a ninth, local steps cost as much"
    );
    assert_eq!(overlapped(13, 100), 2);
    assert_eq!(overlapped(80, 100), 2);
    assert_eq!((overlapped(160, 100), overlapped(400, 100)), (2, 8));
    assert_eq!(local_batches(LARGE, 400, 100, true), 20);
    assert_eq!(local_batches(1000, 100, 100, false), 8);
}

#[test]
fn a_short_run_still_has_rounds() {
    let manifest = Manifest {
        target: (48 * 64).try_into().unwrap(),
        ..manifest(true)
    };
    let mut head = head(&manifest, 3);
    while !head.finished(&manifest) {
        round(&mut head, &manifest, 10_000_000, 0);
        assert!(head.pace.batches.get() <= 4);
    }
}
