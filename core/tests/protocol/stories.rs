//! Certain meetings of lineages, newcomers and links, and what must follow. The seeded worlds of `sim.rs` meet such
//! situations only by chance.

use crate::story::{ANN, BEN, CAT, MILLI, SECOND, Story};
use annulus_core::ledger::Header;
use annulus_core::signature::{Attempt, Key, Scheme, Signed};
use annulus_core::wire::Message;
use annulus_core::{Change, Digest, Event, Input, Peer, PeerId, Topology};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn two_who_wait_meet_though_their_first_link_broke_at_once() {
    let mut story = Story::new(2);
    story.gather(2, SECOND);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    story.cut(ANN, BEN);
    story.run(20 * SECOND);
    let waits = |who| {
        story.peers[&who]
            .view()
            .is_some_and(|(_, members)| members.len() == 1)
    };
    assert!(waits(ANN) && waits(BEN), "each of them without the other");
    story.open(ANN, BEN);
    story.run(2 * MILLI);
    // Their messages to each other are lost, and neither does anything by itself.
    story.cut(ANN, BEN);
    story.open(ANN, BEN);
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
}

#[test]
fn a_link_that_breaks_and_comes_back_costs_nobody_its_membership() {
    let mut story = Story::new(1);
    story.found(ANN, 300 * MILLI);
    story.join(BEN, ANN, 300 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    for moment in 0..40 {
        story.run(SECOND + moment * 10 * MILLI);
        story.cut(ANN, BEN);
        story.run(200 * MILLI);
        story.open(ANN, BEN);
    }
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    let lost = story.events.iter().filter(|(_, _, event)| {
        matches!(
            event,
            Event::Outcast { .. }
                | Event::Member {
                    change: Change::Failed | Change::Evicted,
                    ..
                }
        )
    });
    assert_eq!(lost.count(), 0);
}

#[test]
fn who_was_told_of_a_commit_still_passes_on_what_comes_around_the_ring() {
    let mut story = Story::new(1);
    // Ben is fast. So it is used to long waits, and does not ask early about the round.
    story.found(ANN, 3 * SECOND);
    story.join(BEN, ANN, 10 * MILLI);
    story.run(4 * SECOND);
    story.join(CAT, ANN, 3 * SECOND);
    story.open(BEN, CAT);
    story.run(60 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    let rounds = story.commits(CAT).len();
    while story.commits(CAT).len() == rounds {
        story.run(MILLI);
    }
    // Cat's contribution is on its way around the ring. Cat's finished pieces take long to Ann, who hears of the
    // commit before they come; Ben gets them from Ann.
    story.run(3 * SECOND + 12 * MILLI);
    story.bulk_us.insert((CAT, ANN), 400 * MILLI);
    story.run(SECOND);
    story.bulk_us.clear();
    story.run(10 * SECOND);
    let ben: BTreeMap<u64, u64> = story.commits(BEN).into_iter().collect();
    let late = story
        .commits(ANN)
        .into_iter()
        .filter(|(round, at)| ben.get(round).is_some_and(|ben| *ben > at + 100 * MILLI));
    assert_eq!(late.collect::<Vec<_>>(), []);
}

#[test]
fn a_link_that_becomes_slow_stops_no_round_for_good() {
    let mut story = Story::new(1);
    story.found(ANN, 100 * MILLI);
    story.join(BEN, ANN, 100 * MILLI);
    story.run(10 * SECOND);
    // From here on a piece takes longer than any wait before.
    story.bulk_us.insert((ANN, BEN), 4 * SECOND);
    let before = story.commits(BEN).len();
    story.run(120 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    assert!(story.commits(BEN).len() >= before + 10);
}

#[test]
fn a_newcomer_goes_to_the_lineage_that_is_far_ahead() {
    let mut story = Story::new(1);
    story.found(ANN, SECOND);
    story.join(CAT, ANN, SECOND);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, CAT]));
    story.cut(ANN, CAT);
    story.compute_us.insert(ANN, 500 * SECOND);
    story.run(10 * SECOND);
    story.join(BEN, ANN, SECOND);
    story.run(10 * SECOND);
    assert!(!story.peers[&BEN].is_member(), "Ann's round is long");
    story.open(BEN, CAT);
    story.run(30 * SECOND);
    assert!(story.peers[&BEN].is_member());
    // As a member Ben tells Ann, who joins too.
    for peer in story.peers.values() {
        assert!(
            peer.head().samples > 80,
            "all count the samples of the lineage that was ahead"
        );
    }
}

#[test]
fn a_sponsor_whose_answers_take_longer_than_the_deadline_is_found_out() {
    let mut story = Story::new(1);
    story.found(ANN, 500 * MILLI);
    story.join(BEN, ANN, 500 * MILLI);
    story.run(5 * SECOND);
    story.cut(ANN, BEN);
    story.compute_us.insert(BEN, 2 * SECOND);
    story.join(CAT, BEN, 2 * SECOND);
    story.run(20 * SECOND);
    assert!(story.are_together(&[BEN, CAT]));
    // Ann's lineage is ahead. Ben, who is near, answers soon each time that Cat has given up waiting for Ann.
    story.latency_us.insert((ANN, CAT), 750 * MILLI);
    story.open(ANN, CAT);
    story.run(60 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
}

/// The headers in a message.
fn headers(message: &mut Message) -> &mut [Signed<Header>] {
    match message {
        Message::Piece { headers, .. } => headers,
        Message::Committed { record, .. } => &mut record.headers,
        _ => &mut [],
    }
}

/// A liar changes its header, and signs it.
fn change_own_header(liar: &Peer, message: &mut Message, change: impl Fn(&mut Header)) {
    let Message::Piece { view, .. } = message else {
        return;
    };
    let (me, view, chain) = (liar.me(), *view, liar.head().chain);
    let attempt = Attempt { chain, view };
    // It may have committed the round since.
    let now = |header: &&mut Signed<Header>| header.is_by(me, &attempt, Scheme::StandIn);
    for header in headers(message).iter_mut().filter(now) {
        change(&mut header.content);
        header.signature = Key::stand_in(me).sign(&attempt, &header.content);
    }
}

#[test]
fn who_claims_more_samples_than_its_share_is_out_and_the_others_go_on() {
    let mut story = Story::new(1);
    story.found(ANN, 100 * MILLI);
    story.join(BEN, ANN, 100 * MILLI);
    story.join(CAT, ANN, 100 * MILLI);
    story.open(BEN, CAT);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    let (before, told) = (story.peers[&ANN].head().samples, story.events.len());
    story.liar = Some((BEN, |ben, _, message| {
        change_own_header(ben, message, |header| header.weight += 5);
    }));
    story.run(30 * SECOND);
    for who in [ANN, CAT] {
        assert!(story.records(who).all(|record| record.weight() <= 8));
        assert!(story.peers[&who].head().samples > before + 400);
        let outcast =
            |(_, peer, event): &&(u64, PeerId, Event)| *peer == who && matches!(event, Event::Outcast { .. });
        assert_eq!(
            story.events[told..].iter().find(outcast).map(|event| event.0),
            None
        );
    }
    // The header that its code signs and the one that it signs as a liar convict it.
    assert!(story.are_together(&[ANN, CAT]));
}

#[test]
fn a_told_commit_that_cannot_be_is_not_taken() {
    let mut story = Story::new(1);
    story.found(ANN, 100 * MILLI);
    story.join(BEN, ANN, 100 * MILLI);
    story.join(CAT, ANN, 100 * MILLI);
    story.open(BEN, CAT);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    // Pieces of the round reach Cat late, so Ben has committed it first.
    story.bulk_us.insert((BEN, CAT), 200 * MILLI);
    story.run(SECOND);
    while story.commits(BEN).last().map(|(round, _)| *round)
        <= story.commits(CAT).last().map(|(round, _)| *round)
    {
        story.run(MILLI);
    }
    let mut record = story.records(BEN).last().expect("the last round").clone();
    record.headers[0].content.weight += 5;
    let message = Message::Committed {
        view: story.at_work[&BEN],
        record,
        digest: Digest([7; 32]),
    };
    story.bulk_us.clear();
    story.give(CAT, Input::Message { from: BEN, message });
    story.run(10 * SECOND);
    for who in [ANN, BEN, CAT] {
        assert!(story.records(who).all(|record| record.weight() <= 8), "{who}");
    }
    assert!(story.are_together(&[ANN, BEN, CAT]));
}

#[test]
fn a_newcomer_leaves_a_sponsor_that_tells_of_commits_that_cannot_be() {
    let mut story = Story::new(1);
    story.found(ANN, 100 * MILLI);
    story.join(BEN, ANN, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    story.liar = Some((BEN, |_, to, message| {
        if to == CAT
            && let Message::Committed { record, .. } = message
        {
            record.headers[0].content.weight += 5;
        }
    }));
    story.join(CAT, BEN, 100 * MILLI);
    story.run(SECOND);
    assert!(!story.peers[&CAT].is_member());
    story.open(CAT, ANN);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
}

/// Mean time of a round beyond its compute time, among this many members on links of 5 ms.
fn exchange_us(topology: Topology, count: u8) -> u64 {
    let compute_us = 100 * MILLI;
    // One sample for each.
    let mut story = Story::with(topology, |manifest| {
        manifest.batch = u32::from(count).try_into().unwrap()
    });
    for name in 1..=count {
        story.pace.insert(PeerId([name; 32]), 10.0);
    }
    let all = story.gather(count, compute_us);
    story.run(30 * SECOND);
    assert!(story.are_together(&all));
    let before = *story.commits(all[0]).last().unwrap();
    story.run(30 * SECOND);
    let after = *story.commits(all[0]).last().unwrap();
    (after.1 - before.1) / (after.0 - before.0) - compute_us
}

#[test]
fn a_round_of_a_ring_takes_two_ways_for_each_other_member_and_a_direct_one_takes_two() {
    for count in [2, 4, 8] {
        let ways = u64::from(2 * (count - 1));
        // Members that are not quite in step at first save a little of it.
        let takes = |topology, ways| exchange_us(topology, count).abs_diff(ways * 5 * MILLI) < MILLI / 10;
        assert!(
            takes(Topology::Ring, ways) && takes(Topology::Direct, 2),
            "{count}"
        );
    }
}

#[test]
fn sixty_four_train_directly_and_go_on_without_those_that_fall_silent() {
    let mut story = Story::over(Topology::Direct, 1);
    let all = story.gather(64, 500 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    let (gone, rest) = all.split_at(3);
    for gone in gone {
        all.iter()
            .filter(|other| *other != gone)
            .for_each(|other| story.cut(*gone, *other));
    }
    let before = story.commits(rest[0]).len();
    story.run(10 * SECOND);
    assert!(story.are_together(rest));
    assert!(story.commits(rest[0]).len() > before + 8);
    let digests: BTreeSet<(u64, Digest)> = rest
        .iter()
        .map(|peer| (story.peers[peer].head().round, story.peers[peer].digest()))
        .collect();
    let rounds: BTreeSet<u64> = digests.iter().map(|(round, _)| *round).collect();
    assert_eq!(digests.len(), rounds.len());
}

#[test]
fn equal_devices_share_a_batch_that_takes_them_hardly_longer_than_one_sample() {
    let mut story = Story::with(Topology::Direct, |manifest| {
        manifest.batch = 64.try_into().unwrap()
    });
    for who in [ANN, BEN] {
        story.pace.insert(who, 100_000.0);
        story.launch_us.insert(who, 10 * MILLI);
    }
    // Ann's was tried out with a batch, Ben's with half of one while the machine was busy.
    story.warm.extend([(ANN, 6_000_000), (BEN, 1_000_000)]);
    story.found(ANN, MILLI);
    story.run(SECOND);
    story.join(BEN, ANN, MILLI);
    story.run(20 * SECOND);
    let last: Vec<_> = story.records(ANN).collect();
    let [ann, ben] = [ANN, BEN].map(|who| {
        let headers = last[last.len() - 100..].iter().flat_map(|record| &record.headers);
        let weights = headers.filter(|h| h.peer == who).map(|h| h.weight);
        weights.sum::<u32>()
    });
    assert!(ann.abs_diff(ben) * 20 < ann + ben, "{ann} to {ben}");
}
