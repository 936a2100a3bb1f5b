//! Admission and rights of peers: roles, expiry, uses, revocations, and tickets bound by a conviction.

use crate::story::*;
use annulus_core::conviction::Conviction;
use annulus_core::decision::Suspicion;
use annulus_core::id::Digest;
use annulus_core::invitation::{Admission, Invitation, Role};
use annulus_core::ledger::Header;
use annulus_core::signature::{Attempt, Key};
use annulus_core::tickets::Barred;
use annulus_core::wire::Message;
use annulus_core::{Event, Exit, Input, Peer, PeerId, Reason};
use std::collections::BTreeMap;

const DAN: PeerId = PeerId([4; 32]);

fn of_run(story: &Story) -> Invitation {
    Invitation::of_run(Key::stand_in(story.manifest.key))
}

/// A ticket of the run's own key.
fn ticket(story: &Story, name: u8, role: Role, until_s: Option<u64>, uses: Option<u32>) -> Invitation {
    let key = Key::stand_in(PeerId([name; 32]));
    of_run(story)
        .narrow(story.manifest.root(), key, role, until_s, uses)
        .unwrap()
}

/// The admission of a peer that comes by a ticket.
fn by(story: &Story, who: PeerId, ticket: &Invitation) -> Admission {
    ticket.admit(who, story.manifest.run_id())
}

fn guests(story: &mut Story, who: &[PeerId]) {
    for who in who {
        let own = ticket(story, 100 + who.0[0], Role::Contribute, None, None);
        let admission = by(story, *who, &own);
        story.admissions.insert(*who, admission);
    }
}

fn links_of_all(story: &mut Story, who: &[PeerId]) {
    for (i, a) in who.iter().enumerate() {
        for b in &who[..i] {
            if !story.links.contains(&(*b.min(a), *b.max(a))) {
                story.open(*a, *b);
            }
        }
    }
}

#[test]
fn a_contributor_computes_and_sums_and_sponsors_nobody() {
    let mut story = Story::new(1);
    guests(&mut story, &[BEN]);
    story.found(ANN, 100 * MILLI);
    story.join(BEN, ANN, 100 * MILLI);
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    // A peer that knows only this one gets no further.
    story.join(CAT, BEN, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN]) && !story.peers[&CAT].is_member());
    story.open(CAT, ANN);
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    let headers = || story.records(ANN).flat_map(|record| &record.headers);
    assert!(headers().any(|h| h.peer == BEN && h.weight > 0));
    assert!(headers().all(|h| h.peer != BEN || h.ready.is_empty()));
    assert_eq!(troubles(&story, 0), Vec::<String>::new());
}

#[test]
fn a_contributor_that_waits_finds_out_that_all_full_members_are_gone() {
    let mut story = Story::new(3);
    guests(&mut story, &[BEN]);
    story.found(ANN, 100 * MILLI);
    story.join(BEN, ANN, 100 * MILLI);
    story.run(60 * SECOND);
    assert!(story.are_together(&[ANN, BEN]), "they wait for a third");
    let rounds = story.commits(ANN).len();
    assert!(rounds < 3, "and do {rounds} rounds meanwhile");
    story.kill(ANN);
    story.run(60 * SECOND);
    assert!(!story.peers[&BEN].is_member(), "who comes would ask it in vain");
}

#[test]
fn contributors_that_lose_all_full_members_wait_for_one_and_then_give_up() {
    let mut story = Story::new(1);
    let all = [ANN, BEN, CAT];
    guests(&mut story, &[BEN, CAT]);
    story.found(ANN, 100 * MILLI);
    story.join(BEN, ANN, 100 * MILLI);
    story.join(CAT, ANN, 100 * MILLI);
    story.open(BEN, CAT);
    story.run(5 * SECOND);
    assert!(story.are_together(&all));
    [BEN, CAT].into_iter().for_each(|guest| story.cut(ANN, guest));
    story.run(5 * SECOND);
    let rounds = |story: &Story, who| story.commits(who).len();
    let before: BTreeMap<PeerId, usize> = all.map(|who| (who, rounds(&story, who))).into();
    story.run(60 * SECOND);
    assert!(rounds(&story, ANN) > before[&ANN] + 100, "who counts goes on");
    for guest in [BEN, CAT] {
        assert_eq!(rounds(&story, guest), before[&guest]);
        assert!(!story.peers[&guest].is_member() && !story.exits.contains_key(&guest));
        story.open(ANN, guest);
    }
    story.run(5 * SECOND);
    assert!(story.are_together(&all));
    [BEN, CAT].into_iter().for_each(|guest| story.cut(ANN, guest));
    story.run(400 * SECOND);
    assert_eq!(story.exits.get(&BEN), Some(&Exit::NoMember));
    assert_eq!(story.exits.get(&CAT), Some(&Exit::NoMember));
    assert_eq!(story.exits.get(&ANN), None);
}

#[test]
fn a_contributor_waits_for_as_long_as_others_follow_a_member() {
    let mut story = Story::new(1);
    guests(&mut story, &[CAT]);
    // Ann's round is long, and only Ben sees her.
    story.found(ANN, 1000 * SECOND);
    story.join(BEN, ANN, SECOND);
    story.run(5 * SECOND);
    story.join(CAT, BEN, SECOND);
    story.run(600 * SECOND);
    assert!(!story.peers[&BEN].is_member() && !story.exits.contains_key(&CAT));
}

#[test]
fn contributors_have_no_voice_where_lineages_meet() {
    let mut story = Story::new(1);
    let all = [ANN, BEN, CAT, DAN];
    guests(&mut story, &[CAT, DAN]);
    story.found(ANN, 100 * MILLI);
    all[1..].iter().for_each(|who| story.join(*who, ANN, 100 * MILLI));
    links_of_all(&mut story, &all);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    [BEN, CAT, DAN]
        .into_iter()
        .for_each(|other| story.cut(ANN, other));
    // One of the two full members is alone, and counts more.
    story.compute_us.insert(ANN, 20 * MILLI);
    story.run(20 * SECOND);
    let samples = |story: &Story, who| story.peers[&who].head().samples;
    assert!(story.are_together(&[BEN, CAT, DAN]));
    let alone = samples(&story, ANN);
    assert!(alone > samples(&story, BEN));
    [BEN, CAT, DAN]
        .into_iter()
        .for_each(|other| story.open(ANN, other));
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    assert!(samples(&story, BEN) > alone);
    let outcast = |who| {
        story
            .events
            .iter()
            .any(|(_, of, event)| *of == who && matches!(event, Event::Outcast { .. }))
    };
    assert!(outcast(BEN) && !outcast(ANN));
}

#[test]
fn who_has_only_contributors_around_goes_on_with_the_state_that_it_holds() {
    let mut story = Story::new(1);
    guests(&mut story, &[CAT]);
    let all = story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    // Ben has lost sight of Ann, says so, and is gone.
    let (view, _) = story.peers[&ANN].view().unwrap();
    let chain = story.peers[&ANN].head().chain;
    let suspects = vec![ANN];
    let signature = Key::stand_in(BEN).sign(&Attempt { chain, view }, &Suspicion(&suspects));
    let flush = Message::Flush {
        view,
        suspects,
        signature,
    };
    [ANN, CAT].into_iter().for_each(|other| story.cut(BEN, other));
    story.say(BEN, ANN, flush);
    assert!(!story.peers[&ANN].is_member());
    story.run(5 * SECOND);
    assert!(!story.peers[&CAT].is_member(), "none is left who counts");
    story.run(60 * SECOND);
    assert!(story.are_together(&[ANN, CAT]));
}

#[test]
fn a_ticket_for_one_lets_in_one_whoever_lets_it_in_and_that_one_again() {
    let mut story = Story::new(1);
    story.gather(2, 100 * MILLI);
    story.run(5 * SECOND);
    let once = ticket(&story, 50, Role::Member, None, Some(1));
    for who in [CAT, DAN] {
        let admission = by(&story, who, &once);
        story.admissions.insert(who, admission);
    }
    // At the same time, by different members.
    story.join(CAT, ANN, 100 * MILLI);
    story.join(DAN, BEN, 100 * MILLI);
    [(CAT, BEN), (DAN, ANN)]
        .into_iter()
        .for_each(|(a, b)| story.open(a, b));
    story.run(10 * SECOND);
    let (inside, outside) = match story.peers[&CAT].is_member() {
        true => (CAT, DAN),
        false => (DAN, CAT),
    };
    assert!(story.are_together(&[ANN, BEN, inside]));
    assert_eq!(story.exits.get(&outside), Some(&Exit::Barred(Barred::UsedUp)));
    let ways = [ANN, BEN];
    ways.into_iter().for_each(|way| story.cut(inside, way));
    story.run(10 * SECOND);
    assert!(story.are_together(&ways));
    ways.into_iter().for_each(|way| story.open(inside, way));
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, inside]));
}

#[test]
fn who_came_by_a_revoked_ticket_is_out_and_nobody_comes_by_it() {
    let mut story = Story::new(1);
    let shared = ticket(&story, 50, Role::Member, None, None);
    let root = story.manifest.root();
    let made = shared.narrow(
        root,
        Key::stand_in(PeerId([51; 32])),
        Role::Contribute,
        None,
        None,
    );
    let admissions = [
        (CAT, by(&story, CAT, &shared)),
        (DAN, by(&story, DAN, &made.unwrap())),
    ];
    story.admissions.extend(admissions);
    let all = story.gather(4, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    // A revocation that no issuer has signed has no effect.
    let by_another = ticket(&story, 60, Role::Member, None, None);
    assert!(by_another.revoke(root, shared.chain.clone()).is_err());
    let revocation = of_run(&story).revoke(root, shared.chain.clone()).unwrap();
    let round = story.peers[&ANN].head().round;
    story.give(BEN, Input::Revoke(Box::new(revocation)));
    story.run(2 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    for out in [CAT, DAN] {
        assert_eq!(story.exits.get(&out), Some(&Exit::Barred(Barred::Revoked)));
        assert!(story.events.iter().any(|(_, who, event)| *who == ANN
            && matches!(event, Event::Member { peer, reason: Reason::Revoked, .. } if *peer == out)));
    }
    // Nobody was waited for.
    let retried = |record: &&annulus_core::ledger::Record| record.round >= round && record.attempt > 0;
    assert_eq!(story.records(ANN).find(retried), None);
    let eve = PeerId([5; 32]);
    let admission = by(&story, eve, &shared);
    story.admissions.insert(eve, admission);
    story.join(eve, BEN, 100 * MILLI);
    story.run(3 * SECOND);
    assert_eq!(story.exits.get(&eve), Some(&Exit::Barred(Barred::Revoked)));
    assert!(story.are_together(&[ANN, BEN]));
}

#[test]
fn a_run_that_waits_for_members_hears_of_a_revocation() {
    let mut story = Story::new(3);
    let own = ticket(&story, 50, Role::Member, None, None);
    let admission = by(&story, BEN, &own);
    story.admissions.insert(BEN, admission);
    story.gather(2, 100 * MILLI);
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    let revocation = of_run(&story).revoke(story.manifest.root(), own.chain).unwrap();
    story.give(ANN, Input::Revoke(Box::new(revocation)));
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN]));
    assert_eq!(story.exits.get(&BEN), Some(&Exit::Barred(Barred::Revoked)));
}

#[test]
fn a_conviction_binds_the_ticket_too() {
    let mut story = Story::new(1);
    let liars = ticket(&story, 50, Role::Member, None, None);
    let root = story.manifest.root();
    let made = liars
        .narrow(
            root,
            Key::stand_in(PeerId([51; 32])),
            Role::Contribute,
            None,
            None,
        )
        .unwrap();
    let eve = PeerId([5; 32]);
    for (who, ticket) in [(CAT, &liars), (DAN, &liars), (eve, &made)] {
        let admission = by(&story, who, ticket);
        story.admissions.insert(who, admission);
    }
    story.gather(3, 100 * MILLI);
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    let chain = story.peers[&ANN].head().chain;
    let (view, _) = story.peers[&ANN].view().unwrap();
    let attempt = Attempt { chain, view };
    let header = |weight| {
        let header = Header {
            weight,
            compute_us: 0,
            ..Header::stand_in(CAT)
        };
        Key::stand_in(CAT).signed(&attempt, header)
    };
    let proof = Conviction::new(attempt, [header(1), header(2)]);
    story.say(BEN, ANN, Message::Convicted(Box::new(proof)));
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    // Under another name, and by a ticket made from that one; through a member that another has told of it.
    for (who, via) in [(DAN, BEN), (eve, ANN)] {
        story.join(who, via, 100 * MILLI);
        story.run(3 * SECOND);
        assert_eq!(story.exits.get(&who), Some(&Exit::Barred(Barred::Convicted)));
    }
    assert!(story.are_together(&[ANN, BEN]));
}

/// Ben admits nobody, and says that he may not.
fn bars(_: &Peer, _: PeerId, message: &mut Message) {
    if let Message::Following { .. } | Message::NotMember { .. } = message {
        *message = Message::Barred { why: Barred::Revoked };
    }
}

#[test]
fn one_that_lies_sends_nobody_away_for_good() {
    let mut story = Story::new(1);
    let all = story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    [ANN, BEN].into_iter().for_each(|other| story.cut(CAT, other));
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    // Alone it counts at most one sample now and then, and so yields.
    story.compute_us.insert(CAT, 5 * SECOND);
    story.run(20 * SECOND);
    story.liar = Some((BEN, bars));
    story.open(CAT, BEN);
    let since = story.events.len();
    story.run(SECOND);
    let asked =
        |(_, who, event): &(u64, PeerId, Event)| *who == CAT && matches!(event, Event::Outcast { .. });
    assert!(story.events[since..].iter().any(asked) && !story.exits.contains_key(&CAT));
    story.open(CAT, ANN);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
}

#[test]
fn who_hears_from_nobody_but_that_it_may_not_come_in_gives_up_at_last() {
    let mut story = Story::new(1);
    story.gather(2, 100 * MILLI);
    story.run(5 * SECOND);
    // Dan has followed Ben for a moment, and so knows of Ann, but never meets her.
    story.join(DAN, BEN, 100 * MILLI);
    while story.peers[&DAN].head().members.len() < 2 {
        story.run(MILLI);
    }
    story.cut(DAN, BEN);
    story.liar = Some((BEN, bars));
    story.open(DAN, BEN);
    story.run(5 * SECOND);
    assert!(!story.exits.contains_key(&DAN));
    story.run(200 * SECOND);
    assert_eq!(story.exits.get(&DAN), Some(&Exit::Barred(Barred::Revoked)));
}

#[test]
fn an_expired_ticket_lets_nobody_in_and_puts_nobody_out() {
    let mut story = Story::new(1);
    let short = ticket(&story, 50, Role::Member, Some(1_000_020), None);
    for who in [ANN, BEN, CAT, DAN] {
        story.epoch_s.insert(who, 1_000_000);
    }
    for who in [CAT, DAN] {
        let admission = by(&story, who, &short);
        story.admissions.insert(who, admission);
    }
    story.gather(3, 100 * MILLI);
    story.run(30 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    story.join(DAN, ANN, 100 * MILLI);
    story.run(5 * SECOND);
    assert_eq!(story.exits.get(&DAN), Some(&Exit::Barred(Barred::Expired)));
    assert!(story.are_together(&[ANN, BEN, CAT]));
    assert_eq!(troubles(&story, 0), Vec::<String>::new());
}

#[test]
fn who_only_watches_gets_each_round_and_is_never_a_member() {
    let mut story = Story::new(1);
    let watch = ticket(&story, 50, Role::Watch, None, None);
    let admission = by(&story, CAT, &watch);
    story.admissions.insert(CAT, admission);
    story.gather(2, 100 * MILLI);
    story.run(5 * SECOND);
    story.join(CAT, ANN, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    let digests = |who| {
        let of = story.events.iter().filter(move |(_, peer, _)| *peer == who);
        let commits = of.filter_map(|(_, _, event)| match event {
            Event::Committed(commit) => Some((commit.record.round, commit.digest)),
            _ => None,
        });
        commits.collect::<BTreeMap<u64, Digest>>()
    };
    let (ann, cat) = (digests(ANN), digests(CAT));
    assert!(cat.len() > 50, "{}", cat.len());
    assert!(cat.iter().all(|(round, digest)| ann.get(round) == Some(digest)));
    let rounds: Vec<u64> = cat.into_keys().collect();
    assert!(rounds.is_sorted_by(|a, b| a + 1 == *b), "none is missing");
    assert!(story.peers[&ANN].head().members.iter().all(|m| m.peer != CAT));
    // Its sponsor is gone: it follows another.
    story.open(CAT, BEN);
    story.cut(CAT, ANN);
    let before = story.commits(CAT).len();
    story.run(5 * SECOND);
    assert!(story.commits(CAT).len() > before + 20);
}
