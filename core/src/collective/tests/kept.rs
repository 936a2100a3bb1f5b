//! Parts kept by members: the frames, the updates that keepers compute themselves, and faults in them.

use super::super::Kept;
use super::*;
use crate::ledger::keepers::Chain;
use crate::run::parts::Parts;
use bytes::Bytes;
use std::sync::Arc;

const LEN: usize = 20_000;
const MEMBERS: usize = 4;

/// Two keepers for each part, a different pair for each. A learner comes before those of the first part.
fn kept_plan() -> Plan {
    let parts = Parts::of_len(LEN);
    let chain = |part: u16| {
        let keepers = [0, 1].map(|k| (usize::from(part) + k) % MEMBERS);
        let learner = (part == 0).then_some(3);
        Chain {
            members: learner.into_iter().chain(keepers).collect(),
            learners: learner.iter().count(),
        }
    };
    let chains = parts.iter().map(chain).collect();
    Plan {
        topology: Topology::Direct,
        cut: Cut {
            members: MEMBERS,
            guests: Vec::new(),
            len: LEN,
            piece: 700,
            grain: 1,
            kept: Some(Arc::new(Kept::new(parts, chains, (MEMBERS, 700), None))),
        },
    }
}

/// Computes due updates: twice the sums. A `wrong` member publishes something else.
fn make(run: &mut Run, wrong: bool, out: &mut Sends) {
    for place in run.take_due() {
        let (range, sum) = run.held_sum(place).unwrap();
        let mut values = vec![0.0; range.len()];
        Codec::F32.decode(sum, &mut values).unwrap();
        let factor = if wrong && run.lets_out(place) { 3.0 } else { 2.0 };
        values.iter_mut().for_each(|value| *value *= factor);
        let mut update = Vec::new();
        Codec::F32.encode(&values, &mut update);
        run.take_update(place, update.into(), out).unwrap();
    }
}

/// An attempt in which one member, if any, publishes wrong updates from its first frame to the last.
fn attempt(wrong: Option<usize>) -> Attempt {
    let plan = kept_plan();
    let mut attempt = Attempt::new(plan.clone(), Codec::F32, contributions(&plan, 1));
    (0..MEMBERS).for_each(|member| attempt.start(member));
    loop {
        let busy = attempt.links.iter().find(|(_, frames)| !frames.is_empty());
        let Some((from, to)) = busy.map(|(link, _)| *link) else {
            return attempt;
        };
        attempt.deliver(from, to);
        let mut out = Sends::default();
        make(&mut attempt.runs[to], wrong == Some(to), &mut out);
        attempt.send(to, out);
    }
}

fn data(message: &Message) -> &Bytes {
    let Message::Piece { data, .. } = message else {
        panic!("no piece")
    };
    data
}

#[test]
fn all_hold_the_updates_and_as_much_is_sent_as_without_keepers() {
    let attempt = attempt(None);
    for run in &attempt.runs {
        assert!(run.is_complete());
        assert!(run.given().is_empty(), "it has made these itself");
        let same = |(own, first): (Message, Message)| data(&own) == data(&first);
        let view = ATTEMPT.view;
        let first = attempt.runs[0].gathered.messages(view);
        assert!(run.gathered.messages(view).zip(first).all(same));
    }
    let sent: usize = attempt
        .sent
        .iter()
        .map(|(_, _, message)| data(message).len())
        .sum();
    let learnt = Parts::of_len(LEN).range(0).unwrap().len();
    // A learner is one more member that a sum passes, and cannot compute the update yet.
    assert_eq!(sent, 4 * (2 * (MEMBERS - 1) * LEN + learnt));
}

#[test]
fn what_is_not_what_a_keeper_makes_of_the_sum_comes_from_others_and_is_doubted() {
    let mut attempt = attempt(Some(1));
    // Member 0 is the other keeper of the parts whose last is member 1.
    let whole: Vec<bool> = attempt.runs.iter().map(Run::is_whole).collect();
    assert_eq!(whole, [false, true, true, true]);
    let seals = attempt.runs[2].seals().expect("it is whole");
    let all: Vec<Message> = attempt.runs[2].gathered.messages(ATTEMPT.view).collect();
    let run = &mut attempt.runs[0];
    let lacking = run.give_up();
    assert!(!lacking.is_empty() && lacking.iter().all(|(chunk, _)| *chunk == 1));
    let teller = peer(2);
    for mut frame in all {
        let Message::Piece {
            chunk, piece, seal, ..
        } = &mut frame
        else {
            panic!("no piece")
        };
        if !lacking.contains(&(*chunk, *piece)) {
            continue;
        }
        *seal = Some(Box::new(seals[usize::from(*chunk)].clone()));
        // The owner's own word of it may still be under way.
        let mut word = frame.clone();
        edit(&mut word, |_, _, _, _, data| *data = Bytes::new());
        for frame in [word, frame] {
            assert_eq!(
                run.accept_repair((teller, teller), frame, &mut Sends::default()),
                Ok(())
            );
        }
    }
    assert!(run.is_whole());
    assert!(!run.given().is_empty());
    assert!(run.given().iter().all(|((chunk, _), ..)| *chunk == 1));
}

#[test]
fn at_a_second_attempt_keepers_are_sent_updates_too() {
    let (plan, own) = (kept_plan(), contributions(&kept_plan(), 1));
    let mut again = Attempt::new(plan, Codec::F32, own);
    let run = &mut again.runs[0];
    let place = (0..).map(|piece| (1, piece)).find(|place| run.makes(*place, 0));
    let view = ViewKey {
        attempt: 1,
        ..ATTEMPT.view
    };
    let attempt = crate::access::signature::Attempt { view, ..ATTEMPT };
    let members: Vec<PeerId> = (0..MEMBERS).map(peer).collect();
    let key = Key::stand_in(peer(0));
    let later = Run::new(attempt, members, 0, kept_plan(), Codec::F32, key);
    assert!(!later.makes(place.expect("there is one"), 0));
}

#[test]
fn a_keeper_is_told_of_an_update_whose_sum_it_holds_and_is_sent_none() {
    let (before, after) = (attempt(None), kept_plan());
    let told = |(from, to, message): &&(usize, usize, Message)| {
        let finished = matches!(message, Message::Piece { leg: Leg::Finished, piece, .. } if *piece > 0);
        (*from, *to) == (1, 0) && finished && data(message).is_empty()
    };
    let (_, _, frame) = before.sent.iter().find(told).unwrap();
    let violation = Err(Violation {
        by: peer(1),
        what: Wrong::Plan,
    });
    let fresh = || {
        Attempt::new(after.clone(), Codec::F32, contributions(&after, 1))
            .runs
            .remove(0)
    };
    let accept = |run: &mut Run, frame| run.accept(peer(1), None, frame, &mut Sends::default());
    assert_eq!(
        accept(&mut fresh(), frame.clone()),
        violation,
        "it has not passed"
    );
    let Message::Piece { chunk, piece, .. } = frame else {
        panic!("no piece")
    };
    let mut sent = before.runs[0]
        .gathered
        .message(ATTEMPT.view, *chunk, *piece)
        .unwrap();
    edit(&mut sent, |_, _, _, headers, _| headers.clear());
    assert_eq!(accept(&mut fresh(), sent), violation);
}

#[test]
fn where_a_model_is_split_nobody_makes_updates() {
    use crate::sim::stand_ins::spans;
    let manifest = spans::manifest(2, 2);
    let head = spans::head(&manifest, &[&[0], &[0], &[1], &[1], &[2], &[2], &[3], &[3]]);
    let names: Vec<PeerId> = head.members.iter().map(|m| m.peer).collect();
    let kept = Cut::of(&manifest, &head, &names).kept.expect("it trains");
    let places = (0..names.len()).flat_map(|chunk| (0..99).map(move |piece| (chunk, piece)));
    let pieces = places
        .clone()
        .filter(|(chunk, piece)| kept.range(*chunk, *piece).is_some());
    assert!(pieces.count() > 8);
    let mut makes = places.flat_map(|(c, p)| (0..names.len()).map(move |member| (c, p, member)));
    assert_eq!(makes.find(|(c, p, member)| kept.makes(*c, *p, *member)), None);
}
