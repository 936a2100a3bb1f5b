//! Revocations only grow: what became of a ticket that was taken back, whoever was cut off and whoever counts more.

use crate::story::*;
use annulus_core::invitation::{Invitation, Role};
use annulus_core::signature::Key;
use annulus_core::tickets::Barred;
use annulus_core::{Event, Exit, Input, PeerId};

const DAN: PeerId = PeerId([4; 32]);

fn of_run(story: &Story) -> Invitation {
    Invitation::of_run(Key::stand_in(story.manifest.key))
}

fn ticket(story: &Story, from: &Invitation, name: u16, role: Role) -> Invitation {
    let mut bytes = [77; 32];
    bytes[..2].copy_from_slice(&name.to_le_bytes());
    let key = Key::stand_in(PeerId(bytes));
    from.narrow(story.manifest.root(), key, role, None, None).unwrap()
}

/// The peer comes by this ticket.
fn comes_by(story: &mut Story, who: PeerId, ticket: &Invitation) {
    let admission = ticket.admit(who, story.manifest.run_id());
    story.admissions.insert(who, admission);
}

/// Somebody takes a ticket back, through the peer of a folder.
fn revoke(story: &mut Story, at: PeerId, by: &Invitation, what: &Invitation) {
    let revocation = by.revoke(story.manifest.root(), what.chain.clone()).unwrap();
    story.give(at, Input::Revoke(Box::new(revocation)));
}

fn knows(story: &Story, who: PeerId, by: &Invitation, what: &Invitation) -> bool {
    let revocation = by.revoke(story.manifest.root(), what.chain.clone()).unwrap();
    let tickets = &story.peers[&who].head().tickets;
    tickets.knows(&revocation, story.manifest.run_id())
}

/// Members of which those of `revoked` came by one ticket; these sides do not hear each other.
fn parted(here: &[PeerId], there: &[PeerId], revoked: &[PeerId]) -> (Story, Invitation) {
    let mut story = Story::new(1);
    let shared = ticket(&story, &of_run(&story), 50, Role::Member);
    revoked.iter().for_each(|who| comes_by(&mut story, *who, &shared));
    let all = story.gather((here.len() + there.len()) as u8, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    let pairs = here.iter().flat_map(|a| there.iter().map(move |b| (*a, *b)));
    pairs.for_each(|(a, b)| story.cut(a, b));
    story.run(5 * SECOND);
    assert!(story.are_together(here) && story.are_together(there));
    (story, shared)
}

fn reunite(story: &mut Story, here: &[PeerId], there: &[PeerId]) {
    for (a, b) in here.iter().flat_map(|a| there.iter().map(move |b| (*a, *b))) {
        if !story.exits.contains_key(&a) && !story.exits.contains_key(&b) {
            story.open(a, b);
        }
    }
}

fn is_out(story: &Story, who: PeerId) -> bool {
    story.exits.get(&who) == Some(&Exit::Barred(Barred::Revoked))
}

#[test]
fn who_is_revoked_while_cut_off_with_another_is_out_when_they_meet() {
    let (here, there) = ([ANN], [BEN, CAT]);
    let (mut story, shared) = parted(&here, &there, &[CAT]);
    // The side of the one that was revoked counts more, so the founder comes over to it.
    story.compute_us.extend(there.map(|who| (who, 20 * MILLI)));
    story.compute_us.insert(ANN, 500 * MILLI);
    let all = of_run(&story);
    revoke(&mut story, ANN, &all, &shared);
    story.run(20 * SECOND);
    assert!(knows(&story, ANN, &all, &shared));
    let samples = |who| story.peers[&who].head().samples;
    assert!(samples(BEN) > 2 * samples(ANN));
    reunite(&mut story, &here, &there);
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, BEN]) && is_out(&story, CAT));
    for who in [ANN, BEN] {
        assert!(knows(&story, who, &all, &shared));
    }
    // And nobody comes by that ticket.
    comes_by(&mut story, DAN, &shared);
    story.join(DAN, BEN, 100 * MILLI);
    story.run(5 * SECOND);
    assert!(is_out(&story, DAN) && story.are_together(&[ANN, BEN]));
}

#[test]
fn who_is_revoked_where_it_would_go_is_out_where_it_is() {
    // Ann's side counts more, and only Cat hears of it.
    let (here, there) = ([ANN], [BEN, CAT]);
    let (mut story, shared) = parted(&here, &there, &[CAT]);
    story.compute_us.extend(there.map(|who| (who, 500 * MILLI)));
    story.compute_us.insert(ANN, 20 * MILLI);
    let all = of_run(&story);
    revoke(&mut story, ANN, &all, &shared);
    story.run(20 * SECOND);
    story.open(ANN, CAT);
    story.run(20 * SECOND);
    assert!(is_out(&story, CAT) && knows(&story, BEN, &all, &shared));
    reunite(&mut story, &here, &there);
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
}

#[test]
fn those_who_were_revoked_while_alone_do_not_take_turns_in_going_on() {
    // Each of them is alone, on a slow machine, and hears of the founder and of the other at the same time.
    let (mut story, shared) = parted(&[ANN], &[BEN, CAT], &[BEN, CAT]);
    story.cut(BEN, CAT);
    story.compute_us.extend([BEN, CAT].map(|who| (who, 60 * SECOND)));
    let all = of_run(&story);
    revoke(&mut story, ANN, &all, &shared);
    story.run(150 * SECOND);
    let since = story.events.len();
    story.open(BEN, CAT);
    reunite(&mut story, &[ANN], &[BEN, CAT]);
    story.run(120 * SECOND);
    assert!(story.are_together(&[ANN]) && is_out(&story, BEN) && is_out(&story, CAT));
    let outcast = story.events[since..].iter();
    let outcast = outcast.filter(|(_, _, event)| matches!(event, Event::Outcast { .. }));
    assert!(outcast.count() <= 4);
}

#[test]
fn lineages_that_began_when_two_revoked_each_other_become_one() {
    let mut story = Story::new(1);
    let all = of_run(&story);
    let tickets = [(ANN, 50), (BEN, 51)].map(|(who, name)| {
        let own = ticket(&story, &all, name, Role::Member);
        comes_by(&mut story, who, &own);
        own
    });
    story.gather(2, 100 * MILLI);
    story.run(5 * SECOND);
    story.cut(ANN, BEN);
    revoke(&mut story, ANN, &all, &tickets[1]);
    revoke(&mut story, BEN, &all, &tickets[0]);
    story.run(5 * SECOND);
    story.join(CAT, ANN, 100 * MILLI);
    story.join(DAN, BEN, 100 * MILLI);
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, CAT]) && story.are_together(&[BEN, DAN]));
    story.kill(ANN);
    story.kill(BEN);
    story.run(10 * SECOND);
    story.open(CAT, DAN);
    story.run(20 * SECOND);
    assert!(story.are_together(&[CAT, DAN]));
}

#[test]
fn those_who_were_revoked_draw_nobody_into_their_lineage() {
    // Two came by the ticket, so they are more than the one who stays. They count more, too.
    let (here, there) = ([ANN], [BEN, CAT]);
    let (mut story, shared) = parted(&here, &there, &there);
    story.compute_us.extend(there.map(|who| (who, 20 * MILLI)));
    story.compute_us.insert(ANN, 500 * MILLI);
    let all = of_run(&story);
    revoke(&mut story, ANN, &all, &shared);
    story.run(20 * SECOND);
    let since = story.events.len();
    reunite(&mut story, &here, &there);
    story.run(20 * SECOND);
    let is_drawn =
        |(_, who, event): &(u64, PeerId, Event)| *who == ANN && matches!(event, Event::Outcast { .. });
    assert!(!story.events[since..].iter().any(is_drawn));
    assert!(story.are_together(&[ANN]) && is_out(&story, BEN) && is_out(&story, CAT));
}

#[test]
fn who_came_by_a_revoked_ticket_is_out_before_unused_ones_are_announced() {
    let mut story = Story::new(1);
    let all = of_run(&story);
    let shared = ticket(&story, &all, 50, Role::Member);
    comes_by(&mut story, CAT, &shared);
    story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    // A header has room for four, and these come before Cat's by name.
    let id = |of: &Invitation| of.chain.ids(story.manifest.run_id()).pop();
    let unused = (1000..).map(|name| ticket(&story, &all, name, Role::Contribute));
    let unused: Vec<Invitation> = unused.filter(|other| id(other) < id(&shared)).take(200).collect();
    for other in &unused {
        revoke(&mut story, ANN, &all, other);
    }
    revoke(&mut story, ANN, &all, &shared);
    story.run(SECOND);
    assert!(story.are_together(&[ANN, BEN]) && is_out(&story, CAT));
    let is_known = |other: &Invitation| knows(&story, BEN, &all, other);
    assert!(!unused.iter().all(is_known));
    story.run(20 * SECOND);
    let is_known = |other: &Invitation| knows(&story, BEN, &all, other);
    assert!(unused.iter().all(is_known));
}

#[test]
fn what_either_side_has_revoked_stays_revoked_when_they_meet() {
    let (here, there) = ([ANN, BEN], [CAT, DAN]);
    let (mut story, _) = parted(&here, &there, &[]);
    let all = of_run(&story);
    let [one, other] = [60, 61].map(|name| ticket(&story, &all, name, Role::Contribute));
    revoke(&mut story, ANN, &all, &one);
    revoke(&mut story, CAT, &all, &other);
    story.compute_us.extend(there.map(|who| (who, 20 * MILLI)));
    story.run(10 * SECOND);
    reunite(&mut story, &here, &there);
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, DAN]));
    for who in [ANN, BEN, CAT, DAN] {
        assert!(knows(&story, who, &all, &one) && knows(&story, who, &all, &other));
    }
    assert_eq!(story.exits.len(), 0);
}

#[test]
fn who_comes_back_from_its_disk_still_knows_what_was_revoked() {
    let mut story = Story::new(1);
    let shared = ticket(&story, &of_run(&story), 50, Role::Member);
    comes_by(&mut story, CAT, &shared);
    story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    // The founder is alone when it takes the ticket back, and ends.
    [BEN, CAT].into_iter().for_each(|other| story.cut(ANN, other));
    story.saves_every = 1;
    let all = of_run(&story);
    revoke(&mut story, ANN, &all, &shared);
    story.run(10 * SECOND);
    story.kill(ANN);
    story.run(20 * SECOND);
    assert!(story.are_together(&[BEN, CAT]));
    story.come_back(ANN, 500 * MILLI);
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, BEN]) && is_out(&story, CAT));
}

#[test]
fn who_revokes_much_pushes_nobody_elses_revocation_out() {
    let mut story = Story::new(1);
    let all = of_run(&story);
    let [friend, liar] = [60, 61].map(|name| ticket(&story, &all, name, Role::Member));
    let guest = ticket(&story, &friend, 62, Role::Contribute);
    for (who, by) in [(BEN, &friend), (CAT, &liar), (DAN, &guest)] {
        comes_by(&mut story, who, by);
    }
    story.gather(4, 100 * MILLI);
    story.run(10 * SECOND);
    revoke(&mut story, BEN, &friend, &guest);
    story.run(5 * SECOND);
    assert!(is_out(&story, DAN));
    // Names that come before the guest's, as many as there is room for, and more.
    let id = |of: &Invitation| of.chain.ids(story.manifest.run_id()).pop();
    let own = (1000..).map(|name| ticket(&story, &liar, name, Role::Contribute));
    let smaller: Vec<Invitation> = own.filter(|own| id(own) < id(&guest)).take(300).collect();
    for own in &smaller {
        revoke(&mut story, CAT, &liar, own);
    }
    story.run(30 * SECOND);
    let known = smaller.iter().filter(|own| knows(&story, ANN, &liar, own));
    assert_eq!(known.count(), 255, "all that there is room for");
    assert!(knows(&story, ANN, &friend, &guest));
    assert!(story.are_together(&[ANN, BEN, CAT]));
    story.kill(DAN);
    story.exits.remove(&DAN);
    story.join(DAN, ANN, 100 * MILLI);
    story.run(5 * SECOND);
    assert!(is_out(&story, DAN) && story.are_together(&[ANN, BEN, CAT]));
    // Cat does not repeat for ever the revocations beyond its share.
    let last = story.records(ANN).last().unwrap();
    assert!(last.headers.iter().all(|h| h.revoked.is_empty()));
}
