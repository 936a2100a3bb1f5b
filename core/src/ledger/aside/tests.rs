//! Trials of newcomers in runs that are described round by round.

use super::*;
use crate::run::config::Layout;
use std::collections::BTreeSet;

const SECOND: u64 = 1_000_000;

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

/// The first name of a guest.
const GUEST: u8 = 100;

/// A run, described by rounds of 100 samples, of which each member computes as much.
struct Run {
    asides: Asides,
    manifest: Manifest,
    members: BTreeSet<u8>,
    round: Round,
}

impl Run {
    fn of(members: &[u8]) -> Self {
        let mut manifest = Manifest::new(Layout::flat(3));
        manifest.stand_aside = true;
        Self {
            asides: Asides::default(),
            manifest,
            members: members.iter().copied().collect(),
            round: 0,
        }
    }

    /// A round in which each member says how long the one before has taken. Returns those that stand aside.
    fn round(&mut self, us: impl Fn(u8) -> u64, next: &[u8]) -> Vec<u8> {
        self.round += 1;
        let said = |n: &u8| Said {
            peer: peer(*n),
            leaving: false,
            speed: 1000,
            compute_us: 1,
        };
        let said: Vec<Said> = self.members.iter().map(said).collect();
        let mut told: Vec<u64> = self.members.iter().map(|n| us(*n)).filter(|us| *us > 0).collect();
        told.sort_unstable();
        let before: Vec<(PeerId, u64)> = self.members.iter().map(|n| (peer(*n), 1)).collect();
        let after: Vec<(PeerId, bool)> = next.iter().map(|n| (peer(*n), *n < GUEST)).collect();
        let told = Told {
            round: self.round,
            said: &said,
            round_us: told.get(told.len() / 2).copied(),
            weight: 100,
            trains: true,
            as_usual: true,
            before: &before,
            next: &after,
        };
        let aside = self.asides.apply(&told, &self.manifest, false);
        assert!(self.asides.is_sound());
        self.members = next
            .iter()
            .copied()
            .filter(|n| !aside.contains(&peer(*n)))
            .collect();
        aside.iter().map(|peer| peer.0[0]).collect()
    }

    /// Runs rounds of this length until one may be admitted, or none may for long. Returns how many.
    fn until_admitted(&mut self, n: u8, us: u64) -> u64 {
        let (begin, members): (_, Vec<u8>) = (self.asides.elapsed_us, self.members.iter().copied().collect());
        while !self.asides.admit(peer(n)) && self.asides.elapsed_us < begin + 100_000 * SECOND {
            self.round(|_| us, &members);
        }
        self.asides.elapsed_us - begin
    }

    /// Admits a newcomer with which rounds take this long. Returns the rounds of its trial, and whether it
    /// fails.
    fn trial(&mut self, n: u8, us: u64) -> (u32, bool) {
        let mut members: Vec<u8> = self.members.iter().copied().collect();
        members.push(n);
        self.round(|_| SECOND, &members);
        for rounds in 1..100 {
            let aside = self.round(|_| us, &members);
            if !aside.is_empty() || self.asides.trial.is_none() {
                return (rounds, aside == [n]);
            }
        }
        panic!("it never ends");
    }
}

#[test]
fn a_trial_that_fails_is_repeated_later_and_later() {
    let mut run = Run::of(&[1]);
    assert!(!run.asides.admit(peer(2)), "nothing is known yet");
    assert!(run.until_admitted(2, SECOND) <= 6 * SECOND);
    // A round of four seconds costs three. The first is the one that lets the newcomer in, and is part of the cost.
    assert_eq!(run.trial(2, 4 * SECOND), (3, true));
    assert_eq!(run.asides.since(run.round).next().unwrap().cause, Cause::Link);
    assert!(
        run.asides.admit(peer(3)) || run.until_admitted(3, SECOND) <= 6 * SECOND,
        "another may come"
    );
    for waits in [180, 360, 720] {
        let waited = run.until_admitted(2, SECOND);
        assert!((waits - 10..=waits).contains(&(waited / SECOND)), "{waited}");
        assert_eq!(run.trial(2, 4 * SECOND), (3, true));
    }
    run.until_admitted(2, SECOND);
    assert_eq!(run.trial(2, SECOND / 2), (6, false), "it helps now");
    assert_eq!(run.asides.aside, []);
}

#[test]
fn one_slow_round_fails_no_trial() {
    let mut run = Run::of(&[1]);
    run.until_admitted(2, SECOND);
    run.round(|_| SECOND, &[1, 2]);
    run.round(|_| SECOND, &[1, 2]);
    run.round(|_| 9 * SECOND, &[1, 2]);
    (0..5).for_each(|_| assert_eq!(run.round(|_| SECOND, &[1, 2]), []));
    assert!(run.asides.trial.is_none() && run.members.contains(&2));
}

#[test]
fn who_slows_the_machine_down_before_it_joins_fails_its_trial() {
    let mut run = Run::of(&[1]);
    (0..120).for_each(|_| drop(run.round(|_| SECOND, &[1])));
    // It builds its kernels and fetches the state; then a round takes three times as long as before it came.
    (0..9).for_each(|_| drop(run.round(|_| 4 * SECOND, &[1])));
    assert!(run.asides.admit(peer(2)));
    assert!(run.trial(2, 3 * SECOND).1);
    assert_eq!(run.asides.since(run.round).next().unwrap().without, 100_000);
}

#[test]
fn what_one_of_many_says_of_a_round_does_not_matter() {
    let mut run = Run::of(&[1, 2, 3]);
    run.until_admitted(4, SECOND);
    run.round(|_| SECOND, &[1, 2, 3, 4]);
    let lies = |n| if n == 1 { 1000 * SECOND } else { SECOND };
    (0..9).for_each(|_| assert_eq!(run.round(lies, &[1, 2, 3, 4]), []));
    assert!(run.asides.trial.is_none());
}

#[test]
fn all_may_come_when_somebody_is_lost() {
    let mut run = Run::of(&[1, 2]);
    run.until_admitted(3, SECOND);
    assert!(run.trial(3, 9 * SECOND).1);
    assert!(run.until_admitted(4, SECOND) < 10 * SECOND && !run.asides.admit(peer(3)));
    run.round(|_| SECOND, &[1]);
    assert!(run.until_admitted(3, SECOND) < 40 * SECOND);
}

#[test]
fn a_trial_goes_on_when_others_are_gone() {
    let mut run = Run::of(&[1, 2, GUEST, GUEST + 1]);
    run.until_admitted(3, SECOND);
    run.round(|_| SECOND, &[1, 2, 3, GUEST, GUEST + 1]);
    run.round(|_| SECOND, &[1, 2, 3, GUEST]);
    run.round(|_| SECOND, &[1, 2, 3]);
    assert_eq!(run.round(|_| SECOND, &[1, 3]), []);
    // Two do now what five did, and nothing takes longer because of the newcomer.
    for _ in 0..9 {
        assert_eq!(run.round(|_| 2 * SECOND, &[1, 3]), []);
    }
    assert!(run.asides.trial.is_none() && run.asides.aside.is_empty());
}

#[test]
fn others_that_leave_do_not_get_a_slow_newcomer_through_its_trial() {
    let mut run = Run::of(&[1, 2, GUEST]);
    run.until_admitted(3, SECOND);
    run.round(|_| SECOND, &[1, 2, 3, GUEST]);
    run.round(|_| 4 * SECOND, &[1, 2, 3, GUEST]);
    run.round(|_| 4 * SECOND, &[1, 2, 3]);
    let aside = (0..9).find_map(|_| run.round(|_| 4 * SECOND, &[1, 2, 3]).first().copied());
    assert_eq!(aside, Some(3));
}

#[test]
fn guests_stand_aside_before_full_members() {
    let mut run = Run::of(&[1, 2]);
    run.until_admitted(3, SECOND);
    run.round(|_| SECOND, &[1, 2, 3, GUEST]);
    let mut round = |us, members: &[u8]| run.round(|_| us, members);
    let aside = (0..9).find_map(|_| round(4 * SECOND, &[1, 2, 3, GUEST]).first().copied());
    assert_eq!(aside, Some(GUEST));
    (0..9).for_each(|_| assert_eq!(round(SECOND, &[1, 2, 3]), []));
    assert!(run.asides.trial.is_none());
    assert!(run.asides.admit(peer(4)) && !run.asides.admit(peer(GUEST)));
}

#[test]
fn a_newcomer_that_is_gone_leaves_the_others_of_its_trial_alone() {
    let mut run = Run::of(&[1, 2]);
    run.until_admitted(3, SECOND);
    run.round(|_| SECOND, &[1, 2, 3, GUEST]);
    (0..2).for_each(|_| drop(run.round(|_| 4 * SECOND, &[1, 2, 3, GUEST])));
    assert_eq!(run.round(|_| 4 * SECOND, &[1, 2, 3]), []);
    assert_eq!(run.asides.aside[0].cause, Cause::Failed);
    (0..9).for_each(|_| assert_eq!(run.round(|_| SECOND, &[1, 2, 3]), []));
    assert!(run.asides.trial.is_none());
}

#[test]
fn nobody_waits_because_somebody_left() {
    let mut run = Run::of(&[1, 2, GUEST, GUEST + 1]);
    run.until_admitted(3, SECOND);
    for members in [&[1, 2, GUEST][..], &[1, 2], &[1]] {
        run.round(|_| SECOND, members);
        assert!(run.asides.admit(peer(3)));
    }
    assert!(!run.trial(3, 4 * SECOND).1, "a fourth of the work is left");
}

#[test]
fn whom_the_run_needs_stays() {
    let mut run = Run::of(&[1]);
    run.until_admitted(2, SECOND);
    run.manifest.min_peers = 2.try_into().unwrap();
    assert!(!run.trial(2, 9 * SECOND).1);
}
