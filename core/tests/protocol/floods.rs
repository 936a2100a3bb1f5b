//! A stranger sends frames with signatures as fast as it can. A check costs as much as many other frames, so members
//! check few of them, and cut the link.

use crate::story::{ANN, BEN, MAL, MILLI, Story, three};
use annulus_core::conviction::Conviction;
use annulus_core::invitation::Admission;
use annulus_core::rights::Kind;
use annulus_core::signature::{Attempt, Key};
use annulus_core::wire::{Envelope, Lane, Message};
use annulus_core::{Contact, Digest, PeerId};

/// Frames that Mal sends to Ann each millisecond.
const FRAMES: u64 = 10;

/// Floods Ann for this long, or until she cuts the link. Returns the frames of that kind that she did not refuse, and
/// when she cut the link.
fn flood(story: &mut Story, message: &Message, kind: Kind, ms: u64) -> (u64, Option<u64>) {
    let mut sent = 0;
    for passed in 0..ms {
        for _ in 0..FRAMES {
            if !story.links.contains(&(ANN.min(MAL), ANN.max(MAL))) {
                return (sent - story.peers[&ANN].refused().of(kind), Some(passed));
            }
            story.say(MAL, ANN, message.clone());
            sent += 1;
        }
        story.run(MILLI);
    }
    (sent - story.peers[&ANN].refused().of(kind), None)
}

/// A frame of each kind that holds signatures, as Mal can make them.
fn signed_frames(story: &Story) -> Vec<(Kind, u64, Message)> {
    let header = story.records(ANN).last().expect("a round").headers[0].clone();
    let mut other = header.clone();
    other.content.loss += 1.0;
    let view = story.peers[&ANN].view().expect("it is a member").0;
    let chain = Digest([9; 32]);
    let proof = Conviction::new(Attempt { chain, view }, [header, other]);
    let follow = Message::Follow {
        have: None,
        // Somebody else's.
        admission: Box::new(Admission::stand_in(BEN, story.manifest.root())),
        contact: Contact::default(),
    };
    let relay = |from: PeerId| Message::Relay {
        envelope: Envelope {
            from,
            to: ANN,
            number: 1,
            lane: Lane::Bulk,
            signature: Key::stand_in(ANN).sign_bytes(b"forged"),
        },
        frame: Message::Doubt.to_frame(),
    };
    let told = story.heard.iter().find_map(|(_, message)| match message {
        Message::Status { claim: Some(_), .. } => Some(message.clone()),
        _ => None,
    });
    vec![
        (Kind::Convicted, 2, Message::Convicted(Box::new(proof))),
        (Kind::Follow, 2, follow),
        (Kind::Relay, 1, relay(MAL)),
        (Kind::Status, 3, told.expect("it is told to everybody")),
    ]
}

#[test]
fn a_flood_of_signatures_is_checked_within_a_budget_and_then_cut_off() {
    for which in 0..4 {
        let mut story = three();
        let (kind, signatures, message) = signed_frames(&story).swap_remove(which);
        let (taken, cut_at) = flood(&mut story, &message, kind, 20_000);
        assert!(
            taken * signatures <= 2048 + 12 * 1024,
            "{kind:?}: {taken} frames were taken"
        );
        let cut_at = cut_at.expect("the link is cut");
        assert!(
            (10_000..13_000).contains(&cut_at),
            "{kind:?}: cut after {cut_at} ms"
        );
    }
}

/// A newcomer comes while Mal sends this many frames of each kind per millisecond. Returns when it was in, and the rounds
/// of five seconds.
fn five_seconds(frames: usize) -> (Option<u64>, u64) {
    let mut story = three();
    let signed = signed_frames(&story);
    let before = story.peers[&ANN].head().round;
    let dan = PeerId([4; 32]);
    story.join(dan, ANN, 100 * MILLI);
    let mut in_after = None;
    for ms in 0..5000 {
        for (_, _, message) in &signed {
            (0..frames).for_each(|_| story.say(MAL, ANN, message.clone()));
        }
        story.run(MILLI);
        if story.peers[&dan].is_member() {
            in_after.get_or_insert(ms);
        }
    }
    (in_after, story.peers[&ANN].head().round - before)
}

#[test]
fn a_newcomer_comes_in_through_a_flood_and_members_go_on() {
    let (alone, undisturbed) = five_seconds(0);
    let (in_after, rounds) = five_seconds(3);
    assert!(
        in_after.is_some_and(|ms| ms < 3000),
        "after {in_after:?} ms, {alone:?} alone"
    );
    assert!(
        10 * rounds >= 7 * undisturbed,
        "{rounds} rounds, {undisturbed} undisturbed"
    );
}
