//! Lineages that meet: which statements are believed, and which lineage stands.

use crate::story::{ANN, BEN, CAT, MAL, MILLI, SECOND, Story, nothing_follows, three};
use annulus_core::ledger::{Header, Record};
use annulus_core::signature::{Attempt, Key, Signed};
use annulus_core::wire::{Claim, Leg, Message, Standing, ViewKey};
use annulus_core::{Digest, Event, Exit, Input, PeerId, Topology};

/// Three members that train together, and Mal, which has heard their standing for a while.
fn known_to_mal() -> Story {
    let mut story = three();
    story.run(5 * SECOND);
    story
}

fn status(standing: Standing, claim: Option<Claim>) -> Message {
    Message::Status {
        standing,
        places: Vec::new(),
        claim: claim.map(Box::new),
        member: true,
        finished: true,
    }
}

/// Far ahead of everybody.
const AHEAD: Standing = Standing {
    samples: 900_000,
    round: 90_000,
    chain: Digest([7; 32]),
};

/// A lineage that Mal can invent with itself as a member, and others without their signatures.
fn invented(with: &[PeerId]) -> Claim {
    let header = |peer: &PeerId| {
        let said = Header {
            weight: 1,
            loss: 1.0,
            speed: 1000,
            digest: Digest([7; 32]),
            ..Header::stand_in(*peer)
        };
        let view = ViewKey {
            round: AHEAD.round,
            attempt: 0,
            id: 0,
        };
        let chain = AHEAD.chain;
        Key::stand_in(MAL).signed(&Attempt { chain, view }, said)
    };
    Claim {
        trail: Digest([7; 32]),
        samples: AHEAD.samples,
        head: Digest([7; 32]),
        record: Record {
            round: AHEAD.round,
            attempt: 0,
            headers: with.iter().map(header).collect::<Vec<Signed<Header>>>(),
        },
    }
}

/// The claims that Mal was shown, the last of each round.
fn shown(story: &Story) -> Vec<(Standing, Claim)> {
    let claim = |(_, message): &(PeerId, Message)| match message {
        Message::Status {
            standing,
            claim: Some(claim),
            ..
        } => Some((*standing, (**claim).clone())),
        _ => None,
    };
    story.heard.iter().filter_map(claim).collect()
}

fn outcasts(story: &Story, since: usize) -> Vec<PeerId> {
    let events = story.events[since..].iter();
    let outcast = events.filter(|(_, _, event)| matches!(event, Event::Outcast { .. }));
    outcast.map(|(_, who, _)| *who).collect()
}

#[test]
fn an_invented_standing_is_not_believed() {
    let mut story = known_to_mal();
    let since = story.events.len();
    for claim in [None, Some(invented(&[MAL])), Some(invented(&[]))] {
        let standing = claim.as_ref().map_or(AHEAD, Claim::standing);
        for who in [ANN, BEN, CAT] {
            story.say(MAL, who, status(standing, claim.clone()));
        }
    }
    nothing_follows(&mut story, since);
}

/// One of two members claims far more samples than it has, again and again. The other follows it, sees fewer, and soon
/// believes it no more.
#[test]
fn a_member_that_claims_more_than_it_shows_is_soon_not_believed() {
    let mut story = Story::new(2);
    story.gather(2, 100 * MILLI);
    story.run(10 * SECOND);
    let since = story.events.len();
    for _ in 0..600 {
        story.say(BEN, ANN, status(AHEAD, None));
        story.run(2 * SECOND);
    }
    let times = outcasts(&story, since).iter().filter(|who| **who == ANN).count();
    assert!((1..=9).contains(&times), "{times} times");
}

#[test]
fn who_shows_signatures_that_are_none_is_cut_off() {
    let mut story = Story::new(1);
    story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    let since = story.events.len();
    let claim = invented(&[MAL, BEN, CAT]);
    story.say(MAL, ANN, status(claim.standing(), Some(claim)));
    let told = |event: &Event| matches!(event, Event::Outlawed { peer: MAL, .. });
    assert!(
        story.events[since..]
            .iter()
            .any(|(_, who, event)| *who == ANN && told(event))
    );
    nothing_follows(&mut story, since);
}

#[test]
fn what_members_have_shown_somebody_moves_nobody_when_it_is_shown_again() {
    let mut story = known_to_mal();
    let since = story.events.len();
    let all = shown(&story);
    assert!(all.len() > 10);
    for (standing, claim) in &all {
        for who in [ANN, BEN, CAT] {
            story.say(MAL, who, status(*standing, Some(claim.clone())));
            let more = Standing {
                samples: standing.samples + 1_000_000,
                ..*standing
            };
            story.say(MAL, who, status(more, Some(claim.clone())));
        }
    }
    // Those of the next round, before all have heard of it.
    for _ in 0..200 {
        story.run(3 * MILLI);
        if let Some((standing, claim)) = shown(&story).pop() {
            for who in [ANN, BEN, CAT] {
                story.say(MAL, who, status(standing, Some(claim.clone())));
            }
        }
    }
    nothing_follows(&mut story, since);
}

#[test]
fn what_few_members_have_counted_alone_yields_to_what_many_have() {
    let mut story = Story::new(1);
    let all = story.gather(5, 500 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    let (few, many) = all.split_at(1);
    for (a, b) in few.iter().flat_map(|a| many.iter().map(move |b| (*a, *b))) {
        story.cut(a, b);
    }
    // One counts many more samples than the four others.
    story.compute_us.extend(few.iter().map(|who| (*who, 50 * MILLI)));
    story.run(20 * SECOND);
    assert!(story.are_together(few) && story.are_together(many));
    let samples = |story: &Story, who: PeerId| story.peers[&who].head().samples;
    let (of_few, of_many) = (samples(&story, few[0]), samples(&story, many[0]));
    assert!(of_few > 2 * of_many);
    let since = story.events.len();
    story.open(few[0], many[0]);
    story.run(20 * SECOND);
    assert!(story.are_together(&all));
    let gone: Vec<PeerId> = outcasts(&story, since);
    assert!(few.iter().all(|who| gone.contains(who)) && many.iter().all(|who| !gone.contains(who)));
}

#[test]
fn of_two_parts_of_much_the_same_size_the_one_that_counts_more_stands() {
    let mut story = Story::new(1);
    let all = story.gather(4, 500 * MILLI);
    story.run(10 * SECOND);
    let (slow, fast) = all.split_at(2);
    for (a, b) in slow.iter().flat_map(|a| fast.iter().map(move |b| (*a, *b))) {
        story.cut(a, b);
    }
    story.compute_us.extend(fast.iter().map(|who| (*who, 50 * MILLI)));
    story.run(20 * SECOND);
    // Newcomers of one side do not count for it.
    let new = PeerId([9; 32]);
    story.join(new, slow[0], 50 * MILLI);
    story.open(new, slow[1]);
    story.run(10 * SECOND);
    assert!(story.are_together(&[slow[0], slow[1], new]));
    let since = story.events.len();
    story.open(slow[0], fast[0]);
    fast.iter().for_each(|who| story.open(new, *who));
    story.run(30 * SECOND);
    assert!(story.are_together(&[&all[..], &[new]].concat()));
    let gone = outcasts(&story, since);
    assert!(slow.iter().all(|who| gone.contains(who)) && fast.iter().all(|who| !gone.contains(who)));
}

/// Runs until a peer commits the next round.
fn to_next_commit(story: &mut Story, who: PeerId) {
    let before = story.commits(who).len();
    while story.commits(who).len() == before {
        story.run(5 * MILLI);
    }
}

/// Cat, who has just begun to follow Ann and Ben, is cut off with their whole state before they admit it.
fn cut_off_cat(story: &mut Story) {
    story.run(60 * MILLI);
    story.cut(ANN, CAT);
    story.run(60 * MILLI);
    story.cut(BEN, CAT);
}

#[test]
fn who_goes_on_from_where_it_was_no_member_and_who_became_one_later_meet() {
    let mut story = Story::new(2);
    story.gather(2, 500 * MILLI);
    story.run(10 * SECOND);
    to_next_commit(&mut story, ANN);
    let dan = PeerId([4; 32]);
    for who in [CAT, dan] {
        story.join(who, ANN, 500 * MILLI);
        story.open(BEN, who);
    }
    cut_off_cat(&mut story);
    while !story.peers[&dan].is_member() {
        story.run(5 * MILLI);
    }
    story.cut(ANN, dan);
    story.cut(BEN, dan);
    story.run(30 * SECOND);
    // Each waits for a second member, and has committed no round.
    assert!(story.commits(CAT).is_empty() && story.commits(dan).is_empty());
    assert!(story.peers[&CAT].is_member() && story.peers[&dan].is_member());
    story.open(CAT, dan);
    story.run(10 * SECOND);
    assert!(story.are_together(&[CAT, dan]));
}

#[test]
fn both_sides_come_to_the_same_verdict_where_one_was_a_member_before_they_parted() {
    let mut story = Story::new(1);
    story.gather(3, 500 * MILLI);
    story.run(10 * SECOND);
    story.cut(ANN, CAT);
    story.cut(BEN, CAT);
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    // Cat comes back, and before it is admitted nobody sees anybody.
    to_next_commit(&mut story, ANN);
    story.open(ANN, CAT);
    story.open(BEN, CAT);
    cut_off_cat(&mut story);
    story.cut(ANN, BEN);
    story.compute_us.insert(CAT, 50 * MILLI);
    story.run(60 * SECOND);
    assert!(story.are_together(&[ANN]) && story.are_together(&[CAT]));
    assert!(story.peers[&CAT].head().samples > 2 * story.peers[&ANN].head().samples);
    // Ann was a member where they parted, and Cat was not.
    let since = story.events.len();
    story.open(ANN, CAT);
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, CAT]));
    assert_eq!(outcasts(&story, since), [CAT]);
}

#[test]
fn who_has_just_been_let_in_shows_the_round_in_which_it_was() {
    let mut story = Story::new(1);
    story.found(ANN, 500 * MILLI);
    story.run(3 * SECOND);
    story.join(CAT, ANN, 500 * MILLI);
    while !story.peers[&CAT].is_member() {
        story.run(5 * MILLI);
    }
    story.open(CAT, MAL);
    story.run(20 * MILLI);
    assert!(story.commits(CAT).is_empty());
    let shown = shown(&story);
    let (standing, claim) = shown.last().expect("it shows something");
    assert_eq!(claim.standing(), *standing);
    assert!(claim.record.headers.iter().all(|header| header.peer == ANN));
}

/// Ann has counted all samples alone, and told Mal.
fn finished() -> Story {
    let mut story = Story::with(Topology::Ring, |manifest| {
        manifest.target = 16.try_into().unwrap()
    });
    story.found(ANN, 50 * MILLI);
    story.open(ANN, MAL);
    story.run(SECOND);
    story
}

#[test]
fn who_has_finished_shows_it_to_a_member_of_another_lineage() {
    let mut story = finished();
    let before = shown(&story).len();
    assert!(story.peers[&ANN].head().samples == 16 && story.exits.is_empty());
    // Mal was not a member when Ann said so first, or has ignored it.
    let mine = Message::Status {
        standing: Standing {
            samples: 8,
            round: 1,
            ..AHEAD
        },
        places: Vec::new(),
        claim: None,
        member: true,
        finished: false,
    };
    story.say(MAL, ANN, mine);
    story.run(20 * MILLI);
    assert_eq!(shown(&story).len(), before + 1);
}

#[test]
fn who_has_finished_alone_yields_to_many_who_have_not() {
    let mut story = Story::with(Topology::Ring, |manifest| {
        manifest.target = 600.try_into().unwrap()
    });
    let all = story.gather(4, 500 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    let (one, many) = all.split_at(1);
    many.iter().for_each(|who| story.cut(one[0], *who));
    story.compute_us.insert(one[0], 50 * MILLI);
    story.open(one[0], MAL);
    let samples = |story: &Story, who: PeerId| story.peers[&who].head().samples;
    while samples(&story, one[0]) < 600 {
        story.run(50 * MILLI);
    }
    assert!(story.exits.is_empty() && samples(&story, many[0]) < 400);
    let since = story.events.len();
    story.open(one[0], many[0]);
    story.run(5 * SECOND);
    assert_eq!(outcasts(&story, since), one);
    assert!(story.are_together(&all));
    story.run(60 * SECOND);
    assert!(
        all.iter()
            .all(|who| story.exits.get(who) == Some(&Exit::Finished))
    );
    let heads: Vec<_> = all.iter().map(|who| story.peers[who].head()).collect();
    assert!(heads.iter().all(|head| head.chain == heads[0].chain));
}

#[test]
fn who_has_left_does_not_lead_others_where_nobody_is() {
    let mut story = Story::new(1);
    story.gather(2, 5 * SECOND);
    story.run(60 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    // Ann never gets Ben's finished pieces of the round after which Ben leaves.
    story.liar = Some((BEN, |_, _, message| {
        if let Message::Piece {
            leg: Leg::Finished, ..
        } = message
        {
            *message = Message::Followed { round: 0 };
        }
    }));
    story.give(BEN, Input::Leave);
    story.run(60 * SECOND);
    assert_eq!(story.exits.get(&BEN), Some(&Exit::Left));
    let before = story.commits(ANN).len();
    story.run(60 * SECOND);
    assert!(story.commits(ANN).len() >= before + 10);
}

#[test]
fn who_takes_the_result_from_another_shows_it_as_that_would() {
    let mut story = finished();
    let before = shown(&story).len();
    story.open(CAT, MAL);
    story.join(CAT, ANN, 50 * MILLI);
    story.give(
        CAT,
        annulus_core::Input::LinkUp {
            peer: MAL,
            contact: annulus_core::Contact::default(),
            rtt: std::time::Duration::ZERO,
        },
    );
    story.run(200 * MILLI);
    assert_eq!(story.peers[&CAT].head().samples, 16);
    let shown = shown(&story);
    assert_eq!(shown.len(), before + 1, "by Cat");
    let (standing, claim) = &shown[before];
    assert_eq!((claim.standing(), standing.samples), (*standing, 16));
}

const DAN: PeerId = PeerId([4; 32]);

/// How often a peer continued or began alone.
fn began_alone(story: &Story) -> usize {
    let events = story.events.iter();
    events
        .filter(|(_, _, event)| matches!(event, Event::Continued { .. }))
        .count()
}

fn meet(story: &mut Story, all: &[PeerId], compute_us: u64) {
    for (i, who) in all.iter().enumerate() {
        story.meet(*who, compute_us);
        all[..i].iter().for_each(|other| story.open(*who, *other));
    }
}

#[test]
fn of_those_who_would_found_the_same_run_one_does() {
    for min_peers in [1, 3] {
        let mut story = Story::new(min_peers);
        let all = [BEN, CAT, ANN];
        meet(&mut story, &all, 100 * MILLI);
        story.run(30 * SECOND);
        assert!(story.are_together(&all));
        assert_eq!(began_alone(&story), 1);
        assert_eq!(outcasts(&story, 0), []);
    }
}

#[test]
fn those_who_have_founded_the_same_run_apart_become_one() {
    for (min_peers, compute_us) in [
        (1, 100 * MILLI),
        (2, 100 * MILLI),
        (3, 100 * MILLI),
        (1, 500 * MILLI),
    ] {
        let mut story = Story::new(min_peers);
        meet(&mut story, &[ANN, BEN], 100 * MILLI);
        meet(&mut story, &[CAT, DAN], compute_us);
        story.run(60 * SECOND);
        assert!(story.are_together(&[ANN, BEN]) && story.are_together(&[CAT, DAN]));
        let samples = |story: &Story, who: PeerId| story.peers[&who].head().samples;
        let most = samples(&story, ANN).max(samples(&story, CAT));
        [(ANN, CAT), (ANN, DAN), (BEN, CAT), (BEN, DAN)]
            .into_iter()
            .for_each(|(a, b)| story.open(a, b));
        story.run(30 * SECOND);
        assert!(story.are_together(&[ANN, BEN, CAT, DAN]), "{min_peers}");
        assert!(samples(&story, ANN) >= most);
    }
}

#[test]
fn many_that_have_just_begun_do_not_outvote_one_that_has_come_far() {
    let mut story = Story::new(1);
    story.meet(ANN, 100 * MILLI);
    story.run(200 * SECOND);
    let far = story.peers[&ANN].head().samples;
    meet(&mut story, &[BEN, CAT, DAN], 100 * MILLI);
    story.run(30 * SECOND);
    assert!(story.are_together(&[BEN, CAT, DAN]) && story.are_together(&[ANN]));
    let since = story.events.len();
    [BEN, CAT, DAN].into_iter().for_each(|who| story.open(ANN, who));
    story.run(30 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, DAN]));
    assert!(story.peers[&BEN].head().samples > far);
    assert!(!outcasts(&story, since).contains(&ANN));
}

/// Ben has come far and computes for long; Ann has just begun. Both know only Cat, who waits for Ben to admit it.
fn with_a_newcomer_between(dialable: &[PeerId]) -> Story {
    let mut story = Story::new(1);
    story.dialable = dialable.iter().copied().collect();
    story.meet(BEN, 100 * MILLI);
    story.run(20 * SECOND);
    story.compute_us.insert(BEN, 1_000 * SECOND);
    story.run(SECOND);
    story.join(CAT, BEN, 100 * MILLI);
    story.run(5 * SECOND);
    story.meet(ANN, SECOND);
    story.open(ANN, CAT);
    story.run(30 * SECOND);
    assert!(story.peers[&BEN].is_member() && !story.peers[&CAT].is_member());
    story
}

#[test]
fn two_that_know_each_other_through_a_newcomer_alone_hear_of_each_other() {
    let story = with_a_newcomer_between(&[ANN, BEN]);
    let meet = |a, b| story.dialled.contains(&(a, b));
    assert!(meet(ANN, BEN) || meet(BEN, ANN), "{:?}", story.dialled);
}

#[test]
fn who_reaches_an_older_lineage_through_its_newcomer_alone_yields_to_it() {
    let story = with_a_newcomer_between(&[]);
    assert!(!story.peers[&ANN].is_member());
    assert!(outcasts(&story, 0).contains(&ANN));
}

#[test]
fn a_newcomer_leaves_a_member_that_the_others_have_gone_on_without() {
    let mut story = Story::new(1);
    story.gather(2, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    // Both were members of the last round that Ann knows, and Ann computes for long.
    story.compute_us.insert(ANN, 1_000 * SECOND);
    story.run(300 * MILLI);
    story.cut(ANN, BEN);
    story.run(10 * SECOND);
    story.join(CAT, ANN, 100 * MILLI);
    story.run(5 * SECOND);
    story.open(CAT, BEN);
    story.run(20 * SECOND);
    assert!(story.are_together(&[BEN, CAT]));
}

#[test]
fn a_newcomer_stays_with_its_sponsor_where_the_way_is_long() {
    let mut story = Story::new(1);
    story.gather(2, 100 * MILLI);
    story.run(10 * SECOND);
    // Rounds take four seconds to it, so it is many behind. By another way they would take minutes.
    story.bulk_us.insert((ANN, CAT), 4 * SECOND);
    story.bulk_us.insert((BEN, CAT), 100 * SECOND);
    story.join(CAT, ANN, 100 * MILLI);
    story.run(6 * SECOND);
    let behind = |story: &Story| story.peers[&BEN].head().round - story.peers[&CAT].head().round;
    let before = behind(&story);
    assert!(before > 20);
    story.open(CAT, BEN);
    story.run(10 * SECOND);
    assert!(behind(&story) < before + 10, "{} rounds", behind(&story));
}
