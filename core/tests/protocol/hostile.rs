//! Small worlds with a peer that wants to ruin the run, with messages that the protocol can encode. One such frame
//! was once enough for each of these.

use crate::story::{ANN, BEN, CAT, MAL, MILLI, SECOND, Story, nothing_follows, three, troubles};
use annulus_core::decision::Suspicion;
use annulus_core::invitation::Admission;
use annulus_core::ledger::Ready;
use annulus_core::rights::Kind;
use annulus_core::signature::{Attempt, Key};
use annulus_core::wire::{Envelope, Lane, Leg, Message, ViewKey};
use annulus_core::{Change, Contact, Digest, Event, Layout, PeerId, Room, Topology};
use bytes::Bytes;
use std::collections::BTreeSet;

/// The attempt of a peer.
fn view(story: &Story, who: PeerId) -> ViewKey {
    story.peers[&who].view().expect("it is a member").0
}

/// An envelope in an author's name that another peer has sealed.
fn envelope(from: PeerId, to: PeerId, by: PeerId) -> Envelope {
    Envelope {
        from,
        to,
        number: 1,
        lane: Lane::Bulk,
        signature: Key::stand_in(by).sign_bytes(b""),
    }
}

/// A decision signed by other peers than those that could.
fn decision(view: ViewKey, suspects: &[PeerId], by: &[PeerId]) -> Message {
    let sign = |peer: &PeerId| (*peer, Key::stand_in(*peer).sign_bytes(b""));
    Message::Decision {
        view,
        suspects: suspects.to_vec(),
        proof: by.iter().map(sign).collect(),
    }
}

/// A flush with its author's signature.
fn flush(story: &Story, who: PeerId, view: ViewKey, suspects: &[PeerId]) -> Message {
    let chain = story.peers[&ANN].head().chain;
    Message::Flush {
        view,
        suspects: suspects.to_vec(),
        signature: Key::stand_in(who).sign(&Attempt { chain, view }, &Suspicion(suspects)),
    }
}

/// A newcomer's signed "ready".
fn ready(story: &Story, peer: PeerId, speed: u64, round: u64) -> Message {
    let room = Room::default();
    let ready = Ready {
        peer,
        speed,
        round,
        room,
    };
    let ready = Key::stand_in(peer).signed(&story.manifest.run_id(), ready);
    Message::Ready { ready: Some(ready) }
}

#[test]
fn nobody_speaks_for_another_through_a_relay() {
    let mut story = three();
    let since = story.events.len();
    let view = view(&story, ANN);
    for (bearer, author) in [(MAL, BEN), (MAL, CAT), (CAT, BEN), (MAL, ANN)] {
        let message = Message::Relay {
            envelope: envelope(author, ANN, bearer),
            frame: Message::Out { view }.to_frame(),
        };
        story.say(bearer, ANN, message);
    }
    assert_eq!(story.peers[&ANN].refused().of(Kind::Relay), 4);
    nothing_follows(&mut story, since);
}

#[test]
fn a_peer_says_nothing_that_only_comes_back_to_it() {
    let mut story = three();
    let since = story.events.len();
    let flush = Message::Flush {
        view: view(&story, ANN),
        suspects: vec![CAT],
        signature: Key::stand_in(MAL).sign_bytes(b""),
    };
    let message = Message::Unreachable {
        envelope: envelope(ANN, BEN, MAL),
        frame: flush.to_frame(),
    };
    story.say(MAL, ANN, message.clone());
    story.say(CAT, ANN, message);
    assert_eq!(story.peers[&ANN].refused().of(Kind::Unreachable), 2);
    nothing_follows(&mut story, since);
}

#[test]
fn an_outsider_decides_nothing() {
    let mut story = three();
    let since = story.events.len();
    for who in [ANN, BEN, CAT] {
        let view = view(&story, who);
        story.say(MAL, who, decision(view, &[ANN, BEN, CAT], &[MAL]));
        story.say(MAL, who, flush(&story, MAL, view, &[ANN, BEN, CAT]));
        story.say(MAL, who, Message::Out { view });
    }
    nothing_follows(&mut story, since);
}

#[test]
fn who_names_all_others_is_itself_the_one_that_is_left_behind() {
    let mut story = Story::new(1);
    let all = story.gather(5, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    let since = story.events.len();
    let (liar, others) = all.split_last().unwrap();
    for who in others {
        let view = view(&story, *who);
        let flush = flush(&story, *liar, view, others);
        story.say(*liar, *who, flush);
    }
    let before = story.commits(ANN).len();
    story.run(5 * SECOND);
    let cast_out = |(_, who, event): &&(u64, PeerId, Event)| {
        others.contains(who) && matches!(event, Event::Outcast { .. })
    };
    assert_eq!(story.events[since..].iter().filter(cast_out).count(), 0);
    assert!(story.commits(ANN).len() >= before + 20);
    // It is honest from here on, and comes back.
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
}

#[test]
fn a_decision_of_one_that_excludes_all_others_excludes_none() {
    let mut story = Story::new(1);
    let all = story.gather(5, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    let since = story.events.len();
    let (liar, others) = all.split_last().unwrap();
    for who in others {
        let view = view(&story, *who);
        // It signs what it suspects.
        let Message::Flush {
            view,
            suspects,
            signature,
        } = flush(&story, *liar, view, others)
        else {
            unreachable!("it is one")
        };
        let proof = vec![(*liar, signature)];
        story.say(
            *liar,
            *who,
            Message::Decision {
                view,
                suspects,
                proof,
            },
        );
    }
    story.run(5 * SECOND);
    let cast_out = |(_, who, event): &&(u64, PeerId, Event)| {
        others.contains(who) && matches!(event, Event::Outcast { .. })
    };
    assert_eq!(story.events[since..].iter().filter(cast_out).count(), 0);
}

#[test]
fn both_sides_of_a_partition_go_on_and_meet_again() {
    let mut story = Story::new(1);
    let all = story.gather(5, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&all));
    let (few, many) = all.split_at(2);
    let across: Vec<(PeerId, PeerId)> = few.iter().flat_map(|a| many.iter().map(|b| (*a, *b))).collect();
    across.iter().for_each(|(a, b)| story.cut(*a, *b));
    story.run(10 * SECOND);
    assert!(story.are_together(few) && story.are_together(many));
    across.iter().for_each(|(a, b)| story.open(*a, *b));
    story.run(15 * SECOND);
    assert!(story.are_together(&all));
}

/// A finished piece with the value 2 everywhere.
fn forged(story: &Story, view: ViewKey, chunk: u16, elements: usize) -> Message {
    let mut data = Vec::new();
    story.manifest.codec.encode(&vec![2.0; elements], &mut data);
    Message::Piece {
        view,
        leg: Leg::Finished,
        chunk,
        piece: 0,
        headers: Vec::new(),
        all: None,
        seal: None,
        data: data.into(),
    }
}

#[test]
fn a_strangers_piece_neither_stops_a_round_nor_enters_its_sum() {
    let mut story = three();
    let since = story.events.len();
    for chunk in 0..3 {
        let piece = forged(&story, view(&story, ANN), chunk, 4);
        story.say(MAL, ANN, piece);
    }
    assert_eq!(story.peers[&ANN].refused().of(Kind::Piece), 3);
    nothing_follows(&mut story, since);
}

#[test]
fn who_lacks_pieces_of_a_told_commit_takes_none_from_a_stranger() {
    let mut story = three();
    // Pieces of the round reach Cat late, so Ben has committed it first.
    story.bulk_us.insert((BEN, CAT), 200 * MILLI);
    story.run(SECOND);
    let last = |story: &Story, who| story.commits(who).last().map(|(round, _)| *round);
    while last(&story, BEN) <= last(&story, CAT) {
        story.run(MILLI);
    }
    let since = story.events.len();
    let record = story.records(BEN).last().expect("the last round").clone();
    let (view, digest) = (view(&story, CAT), story.peers[&BEN].digest());
    assert_eq!(view.round, record.round);
    story.say(BEN, CAT, Message::Committed { view, record, digest });
    for chunk in 0..3 {
        let piece = forged(&story, view, chunk, 4);
        story.say(MAL, CAT, piece);
    }
    story.bulk_us.clear();
    story.run(10 * SECOND);
    assert_eq!(troubles(&story, since), Vec::<String>::new());
    assert!(story.are_together(&[ANN, BEN, CAT]));
}

#[test]
fn who_tells_of_a_commit_again_and_again_and_does_not_deliver_is_left() {
    let mut story = three();
    story.bulk_us.insert((BEN, CAT), SECOND);
    let last = |story: &Story, who| story.commits(who).last().map(|(round, _)| *round);
    while last(&story, BEN) <= last(&story, CAT) {
        story.run(MILLI);
    }
    // Frames under way are lost, and no others come.
    story.cut(BEN, CAT);
    story.open(BEN, CAT);
    story.bulk_us.insert((BEN, CAT), 1_000_000 * SECOND);
    let record = story.records(BEN).last().expect("the last round").clone();
    let (view, digest, since) = (view(&story, CAT), story.peers[&BEN].digest(), story.events.len());
    assert_eq!(view.round, record.round);
    for _ in 0..1500 {
        let record = record.clone();
        story.say(BEN, CAT, Message::Committed { view, record, digest });
        story.run(20 * MILLI);
    }
    let is_left = |(_, who, event): &(u64, PeerId, Event)| {
        let failed = Change::Failed;
        *who == CAT && matches!(event, Event::Member { peer: BEN, change, .. } if *change == failed)
    };
    assert!(story.events[since..].iter().any(is_left));
    assert!(story.peers[&CAT].is_member());
}

#[test]
fn a_piece_that_came_early_from_a_stranger_enters_no_sum_either() {
    let mut story = three();
    let since = story.events.len();
    // Time stands still: Mal hears of Ben's next attempt before Ann is in it.
    story.bulk_us.insert((CAT, ANN), 50 * MILLI);
    let last = |story: &Story, who| story.commits(who).last().map(|(round, _)| *round);
    while last(&story, BEN) <= last(&story, ANN) {
        story.run(MILLI);
    }
    let next = view(&story, BEN);
    assert!(next.round > view(&story, ANN).round);
    for chunk in 0..3 {
        let piece = forged(&story, next, chunk, 4);
        story.say(MAL, ANN, piece);
    }
    story.bulk_us.clear();
    nothing_follows(&mut story, since);
    assert_eq!(story.peers[&ANN].refused().of(Kind::Piece), 3);
}

const DAN: PeerId = PeerId([4; 32]);

/// Invented names.
fn invented(number: u16) -> PeerId {
    let mut name = [200; 32];
    name[..2].copy_from_slice(&number.to_le_bytes());
    PeerId(name)
}

#[test]
fn newcomers_that_never_come_do_not_stop_the_rounds() {
    let mut story = three();
    let before = story.commits(ANN).len();
    // Sixty-four at once, and one more in every round for a minute.
    let mut next = 0;
    for tenth in 0..600 {
        for _ in 0..if tenth == 0 { 64 } else { 1 } {
            invent(&mut story, invented(next), ANN);
            next += 1;
        }
        story.run(100 * MILLI);
    }
    let rounds = story.commits(ANN).len() - before;
    assert!(rounds > 330, "{rounds} rounds in a minute, of 500 without them");
    assert!([ANN, BEN, CAT].iter().all(|who| story.peers[who].is_member()));
}

/// An invented newcomer follows a peer, and is ready at once.
fn invent(story: &mut Story, newcomer: PeerId, to: PeerId) {
    story.open(to, newcomer);
    let (have, contact) = (None, Contact::default());
    let admission = Box::new(Admission::stand_in(newcomer, story.manifest.root()));
    let follow = Message::Follow {
        have,
        admission,
        contact,
    };
    story.say(newcomer, to, follow);
    let round = story.peers[&to].head().round;
    story.say(newcomer, to, ready(story, newcomer, 1_000_000_000, round));
}

#[test]
fn a_newcomer_goes_to_a_member_that_may_name_it() {
    let mut story = three();
    for number in 0..600 {
        invent(&mut story, invented(number), ANN);
        story.run(100 * MILLI);
    }
    // Ann names nobody for about fifty rounds.
    story.join(DAN, ANN, 100 * MILLI);
    story.open(DAN, BEN);
    story.run(2 * SECOND);
    assert!(story.peers[&DAN].is_member());
}

/// Two members that train a model of this size, and Mal with a link to each.
fn two_with(elements: usize) -> Story {
    let mut story = Story::with(Topology::Direct, |manifest| {
        manifest.layout = Layout::flat(elements);
        manifest.piece = 4096.try_into().unwrap();
    });
    story.gather(2, 100 * MILLI);
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    [ANN, BEN].into_iter().for_each(|who| story.open(who, MAL));
    story.run(50 * MILLI);
    story.heard.clear();
    story
}

/// Bytes of pieces and blocks that reached a peer which only the story speaks for.
fn heard_bytes(story: &Story, who: PeerId) -> usize {
    let bytes = |message: &Message| match message {
        Message::Piece { data, .. } | Message::Block { data, .. } | Message::Digests { data, .. } => {
            data.len()
        }
        _ => 0,
    };
    let heard = story.heard.iter().filter(|(to, _)| *to == who);
    heard.map(|(_, message)| bytes(message)).sum()
}

#[test]
fn what_comes_too_early_is_held_within_bounds_whoever_sends_it() {
    let mut story = two_with(10_000);
    let now = view(&story, ANN);
    let header = story.records(ANN).last().unwrap().headers[0].clone();
    let before = story.peers[&ANN].buffered_bytes();
    for number in 0..30_000u32 {
        let from = if number % 2 == 0 { MAL } else { BEN };
        let message = Message::Piece {
            view: ViewKey {
                round: now.round + 1,
                attempt: 0,
                id: u64::from(number),
            },
            leg: Leg::Partial,
            chunk: 0,
            piece: number,
            headers: vec![header.clone(); 60],
            all: None,
            seal: None,
            data: Bytes::from_static(&[0; 8]),
        };
        story.say(from, ANN, message);
    }
    let held = story.peers[&ANN].buffered_bytes();
    assert!(
        held < before + 2 * 40_000 + (512 << 10),
        "{before} bytes, then {held}"
    );
}

#[test]
fn repairs_are_for_those_who_took_part_and_not_without_end() {
    let mut story = two_with(100_000);
    let round = story.commits(ANN).last().unwrap().0;
    while story.commits(ANN).last().unwrap().0 == round {
        story.run(MILLI);
    }
    let committed = story.events.iter().rev().find_map(|(_, who, event)| match event {
        Event::Committed(commit) if *who == ANN => Some(commit.view),
        _ => None,
    });
    let view = committed.expect("just committed");
    let missing: Vec<(u16, u32)> = (0..2).flat_map(|c| (0..12).map(move |p| (c, p))).collect();
    story.say(
        MAL,
        ANN,
        Message::Repair {
            view,
            missing: missing.clone(),
        },
    );
    story.run(10 * MILLI);
    assert_eq!(heard_bytes(&story, MAL), 0);
    let sent = |story: &Story| story.sent[&(ANN, BEN)];
    let before = sent(&story);
    for _ in 0..1000 {
        let missing = missing.clone();
        story.say(BEN, ANN, Message::Repair { view, missing });
    }
    let pieces = sent(&story) - before;
    assert!(
        (24..400).contains(&pieces),
        "{pieces} pieces for a thousand questions"
    );
    assert!(story.peers[&ANN].refused().of(Kind::Repair) > 900);
}

#[test]
fn a_state_is_not_handed_out_without_end() {
    let mut story = two_with(100_000);
    let state: usize = 4 * 100_000 * 3;
    for _ in 0..100 {
        for block in 0..7 {
            story.say(MAL, ANN, Message::Fetch { block });
        }
    }
    story.run(SECOND / 2);
    let heard = heard_bytes(&story, MAL);
    assert!(
        (400_000..8 * state).contains(&heard),
        "{heard} bytes of a state of {state}"
    );
    // Later it may ask again.
    story.run(SECOND);
    story.heard.clear();
    story.say(MAL, ANN, Message::Fetch { block: 0 });
    story.run(SECOND);
    assert!(heard_bytes(&story, MAL) > 0);
}

#[test]
fn no_more_follow_than_a_view_has_room_for_and_none_again_and_again() {
    let mut story = two_with(100_000);
    let root = story.manifest.root();
    let follow = |who| Message::Follow {
        have: None,
        admission: Box::new(Admission::stand_in(who, root)),
        contact: Contact::default(),
    };
    for _ in 0..10_000 {
        story.say(MAL, ANN, follow(MAL));
    }
    story.run(10 * MILLI);
    let accepted = |story: &Story, who| {
        let heard = story.heard.iter().filter(|(to, _)| *to == who);
        heard
            .filter(|(_, message)| matches!(message, Message::Following { .. }))
            .count()
    };
    let accepted_of_mal = accepted(&story, MAL);
    assert!((1..2500).contains(&accepted_of_mal), "{accepted_of_mal}");
    assert!(heard_bytes(&story, MAL) < 8 << 20);
    for number in 0..100 {
        story.open(ANN, invented(number));
        story.say(invented(number), ANN, follow(invented(number)));
    }
    story.run(10 * MILLI);
    let all = (0..100).filter(|number| accepted(&story, invented(*number)) > 0);
    assert_eq!(all.count(), 63, "Mal is one of 64");
}

#[test]
fn numbers_at_their_limits_do_no_harm() {
    let mut story = three();
    let since = story.events.len();
    let most = ViewKey {
        round: u64::MAX,
        attempt: u32::MAX,
        id: u64::MAX,
    };
    let doing = annulus_core::wire::Doing::Computing { elapsed_us: u64::MAX };
    let names = [ANN, BEN, CAT];
    for who in names {
        for from in [MAL, BEN, CAT].into_iter().filter(|from| *from != who) {
            let (nonce, round) = (u32::MAX, u64::MAX);
            let all: [Message; 8] = [
                Message::Probe { view: most, nonce },
                Message::Alive {
                    nonce: 1,
                    round,
                    doing,
                },
                decision(most, &names, &[]),
                Message::Repair {
                    view: most,
                    missing: vec![(u16::MAX, u32::MAX)],
                },
                Message::Out { view: most },
                Message::Followed { round },
                ready(&story, from, u64::MAX, round),
                Message::Fetch { block: u32::MAX },
            ];
            all.into_iter().for_each(|message| story.say(from, who, message));
        }
    }
    nothing_follows(&mut story, since);
    let digests: BTreeSet<Digest> = names.iter().map(|who| story.peers[who].digest()).collect();
    assert!(digests.len() <= 2);
}

#[test]
fn who_was_excluded_from_a_round_is_not_led_back_into_it() {
    let mut story = three();
    story.liar = Some((BEN, |_, _, message| {
        if let Message::Following { member, .. } = message {
            *member = true;
        }
    }));
    let since = story.events.len();
    let said = flush(&story, BEN, view(&story, CAT), &[CAT]);
    let round = story.peers[&CAT].head().round;
    story.say(BEN, CAT, said);
    assert!(!story.peers[&CAT].is_member());
    // It would sign again for a round for which it has already signed.
    while !story.peers[&CAT].is_member() {
        story.run(MILLI);
    }
    assert!(story.peers[&CAT].head().round > round);
    story.run(5 * SECOND);
    let outlawed = |event: &Event| matches!(event, Event::Outlawed { .. });
    assert!(!story.events[since..].iter().any(|(_, _, event)| outlawed(event)));
    assert!(story.are_together(&[ANN, BEN, CAT]));
}

#[test]
fn who_is_handed_another_head_than_the_members_does_not_enter_with_it() {
    let dan = PeerId([4; 32]);
    for elsewhere in [true, false] {
        let mut story = three();
        // Only this message tells the places where others may have left the lineage.
        story.liar = Some((BEN, |_, _, message| {
            if let Message::Following { head, .. } = message {
                head.forks = head.before.clone().into_iter().collect();
            }
        }));
        story.join(dan, BEN, 100 * MILLI);
        if elsewhere {
            story.open(dan, ANN);
        }
        for _ in 0..1000 {
            story.run(5 * MILLI);
            let (head, other) = (story.peers[&dan].head(), story.peers[&ANN].head());
            let same = head.round != other.round || head == other;
            assert!(same || !story.peers[&dan].is_member());
        }
        assert_eq!(story.peers[&dan].is_member(), elsewhere);
        story.liar = None;
        story.run(30 * SECOND);
        assert!(story.peers[&dan].is_member());
    }
}
