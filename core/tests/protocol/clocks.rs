//! Nobody is put out for a clock that differs from others'.

use crate::story::*;
use annulus_core::invitation::{Invitation, Role};
use annulus_core::ledger::Record;
use annulus_core::signature::Key;
use annulus_core::tickets::Barred;
use annulus_core::{Event, Exit, PeerId, Topology};

const EVE: PeerId = PeerId([9; 32]);

/// Members that train together, and the ticket by which Eve will come. Ben's clock is this many seconds late. By the
/// other clocks the ticket has expired.
fn late(members: u8, by_s: u64) -> (Story, Vec<PeerId>) {
    let mut story = Story::over(Topology::Direct, 1);
    let of_run = Invitation::of_run(Key::stand_in(story.manifest.key));
    let (root, key) = (story.manifest.root(), Key::stand_in(PeerId([50; 32])));
    let short = of_run.narrow(root, key, Role::Contribute, Some(1_000_000), None);
    let admission = short.unwrap().admit(EVE, root.run);
    story.admissions.insert(EVE, admission);
    let now_s = 999_900 + by_s;
    let clocks = (1..=members).map(|name| (PeerId([name; 32]), now_s));
    story.epoch_s.extend(clocks);
    story.epoch_s.extend([(BEN, 999_900), (EVE, 999_900)]);
    let all = story.gather(members, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    (story, all)
}

/// Eve knocks at Ben, and at nobody else.
fn knocks(story: &mut Story) {
    story.kill(EVE);
    story.exits.remove(&EVE);
    story.join(EVE, BEN, 100 * MILLI);
}

#[test]
fn a_sponsor_whose_clock_is_late_lets_nobody_in_by_an_expired_ticket_and_stays() {
    for members in [2, 3, 5] {
        let (mut story, all) = late(members, 23 * 60);
        let (since, rounds) = (story.events.len(), story.commits(ANN).len());
        // Ben's clock comes to the end of the ticket later.
        story.join(EVE, BEN, 100 * MILLI);
        for _ in 0..8 {
            story.run(10 * SECOND);
            knocks(&mut story);
        }
        assert_eq!(troubles(&story, since), Vec::<String>::new());
        assert!(story.are_together(&all));
        assert!(story.peers[&ANN].head().position(EVE).is_none());
        let came = |event: &Event| matches!(event, Event::Member { peer, .. } if *peer == EVE);
        assert!(!story.events.iter().any(|(_, _, event)| came(event)));
        // Now and then an attempt is repeated, and no more.
        let all_rounds = story.commits(ANN).len() - rounds;
        let retried = |record: &&Record| record.attempt > 0;
        let retried = story.records(ANN).skip(rounds).filter(retried).count();
        assert!(retried > 0 && retried <= 5, "{retried} of {all_rounds}");
    }
}

#[test]
fn who_is_told_that_its_ticket_has_expired_gives_up() {
    let (mut story, all) = late(3, 23 * 60);
    story.join(EVE, BEN, 100 * MILLI);
    [ANN, CAT].into_iter().for_each(|other| story.open(EVE, other));
    story.run(10 * SECOND);
    assert_eq!(story.exits.get(&EVE), Some(&Exit::Barred(Barred::Expired)));
    assert!(story.are_together(&all));
}

#[test]
fn clocks_may_differ_by_a_little() {
    let (mut story, _) = late(3, 280);
    story.join(EVE, BEN, 100 * MILLI);
    [ANN, CAT].into_iter().for_each(|other| story.open(EVE, other));
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, EVE]));
}

#[test]
fn another_whose_ticket_ends_later_comes_in_all_the_same() {
    let (mut story, _) = late(3, 23 * 60);
    let of_run = Invitation::of_run(Key::stand_in(story.manifest.key));
    let (root, dan) = (story.manifest.root(), PeerId([4; 32]));
    let key = Key::stand_in(PeerId([51; 32]));
    let long = of_run.narrow(root, key, Role::Contribute, Some(2_000_000), None);
    story.admissions.insert(dan, long.unwrap().admit(dan, root.run));
    story.epoch_s.insert(dan, 1_001_000);
    story.join(EVE, BEN, 100 * MILLI);
    story.run(SECOND);
    story.join(dan, BEN, 100 * MILLI);
    [ANN, CAT].into_iter().for_each(|other| story.open(dan, other));
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, dan]));
}
