//! A page hands one ticket to everybody. These stories are about its worst visitors: names are free, so what they do
//! counts against their ticket, and must neither hold up the run nor keep others out for long.

use crate::story::*;
use annulus_core::conviction::Conviction;
use annulus_core::invitation::{Admission, Invitation, Role};
use annulus_core::ledger::{Header, Ready};
use annulus_core::signature::{Attempt, Key};
use annulus_core::tickets::Barred;
use annulus_core::wire::Message;
use annulus_core::{Contact, Event, Exit, PeerId, Reason, Room, Topology};

const DAN: PeerId = PeerId([4; 32]);
const EVE: PeerId = PeerId([5; 32]);
const FAY: PeerId = PeerId([6; 32]);
const MEMBERS: [PeerId; 3] = [ANN, BEN, CAT];

/// Invented names.
fn invented(number: u16) -> PeerId {
    let mut name = [200; 32];
    name[..2].copy_from_slice(&number.to_be_bytes());
    name[0] |= 128;
    PeerId(name)
}

/// The admission of a visitor by a page's ticket.
fn by_page(story: &Story, page: u8, who: PeerId) -> Admission {
    let (of_run, key) = (
        Invitation::of_run(Key::stand_in(story.manifest.key)),
        Key::stand_in(PeerId([100 + page; 32])),
    );
    let ticket = of_run.narrow(story.manifest.root(), key, Role::Contribute, None, None);
    ticket.unwrap().admit(who, story.manifest.run_id())
}

/// A real peer comes by a page's ticket, with links to all members.
fn visit(story: &mut Story, page: u8, who: PeerId, via: PeerId) {
    let admission = by_page(story, page, who);
    story.admissions.insert(who, admission);
    story.join(who, via, 100 * MILLI);
    let others = MEMBERS.into_iter().filter(|other| *other != via);
    others.for_each(|other| story.open(who, other));
}

/// A name follows a member by a page's ticket, and the story speaks for it.
fn follow(story: &mut Story, page: u8, name: PeerId, to: PeerId) {
    story.open(to, name);
    let follow = Message::Follow {
        have: None,
        admission: Box::new(by_page(story, page, name)),
        contact: Contact::default(),
    };
    story.say(name, to, follow);
}

/// A name says that it is ready, and never comes.
fn say_ready(story: &mut Story, name: PeerId, to: PeerId) {
    let ready = Ready {
        peer: name,
        speed: 1000,
        round: story.peers[&to].head().round,
        room: Room::default(),
    };
    let ready = Key::stand_in(name).signed(&story.manifest.run_id(), ready);
    story.say(name, to, Message::Ready { ready: Some(ready) });
}

/// The proof that a name has contradicted itself, by its own hand.
fn own_conviction(story: &Story, who: PeerId) -> Message {
    let chain = story.peers[&ANN].head().chain;
    let (view, _) = story.peers[&ANN].view().expect("she is a member");
    let attempt = Attempt { chain, view };
    let header = |weight| {
        let header = Header {
            weight,
            compute_us: 0,
            ..Header::stand_in(who)
        };
        Key::stand_in(who).signed(&attempt, header)
    };
    let proof = Conviction {
        admission: Some(Box::new(by_page(story, 0, who))),
        ..Conviction::new(attempt, [header(1), header(2)])
    };
    Message::Convicted(Box::new(proof))
}

/// Seconds until a peer is a member, if it is one soon enough.
fn comes_in(story: &mut Story, who: PeerId, within_s: u64) -> u64 {
    (0..within_s)
        .find(|_| {
            story.run(SECOND);
            story.peers[&who].is_member()
        })
        .unwrap_or_else(|| panic!("{who} does not come in within {within_s} s"))
}

/// Rounds that Ann has committed.
fn rounds(story: &Story) -> usize {
    story.commits(ANN).len()
}

/// Three members, and the rounds that they commit in a second when nobody disturbs them.
fn undisturbed(topology: Topology) -> (Story, f64) {
    let mut story = Story::over(topology, 1);
    story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&MEMBERS));
    let before = rounds(&story);
    story.run(20 * SECOND);
    let per_s = (rounds(&story) - before) as f64 / 20.0;
    (story, per_s)
}

#[test]
fn a_guest_that_convicts_itself_closes_the_page_for_nobody_else() {
    let mut story = three();
    visit(&mut story, 0, DAN, ANN);
    comes_in(&mut story, DAN, 10);
    // Mal has never been in.
    for who in MEMBERS {
        let proof = own_conviction(&story, MAL);
        story.say(MAL, who, proof);
    }
    visit(&mut story, 0, EVE, BEN);
    comes_in(&mut story, EVE, 10);
    MEMBERS.into_iter().for_each(|who| story.cut(DAN, who));
    story.run(5 * SECOND);
    assert!(story.peers[&ANN].head().position(DAN).is_none());
    MEMBERS.into_iter().for_each(|who| story.open(DAN, who));
    comes_in(&mut story, DAN, 10);
    // Eve was in: she is out for good, and the next visitor comes in all the same.
    let proof = own_conviction(&story, EVE);
    story.say(EVE, ANN, proof);
    story.run(5 * SECOND);
    let outlawed = |event: &Event| {
        matches!(
            event,
            Event::Outlawed {
                peer: EVE,
                proven: true
            }
        )
    };
    assert!(
        MEMBERS
            .iter()
            .all(|who| story.events.iter().any(|(_, by, e)| by == who && outlawed(e)))
    );
    visit(&mut story, 0, FAY, CAT);
    comes_in(&mut story, FAY, 10);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, DAN, FAY]));
}

#[test]
fn a_ticket_made_for_one_is_barred_with_its_guest() {
    let mut story = three();
    let of_run = Invitation::of_run(Key::stand_in(story.manifest.key));
    let (root, key) = (story.manifest.root(), Key::stand_in(PeerId([100; 32])));
    let ticket = of_run.narrow(root, key, Role::Contribute, None, Some(2)).unwrap();
    for who in [DAN, EVE] {
        story.admissions.insert(who, ticket.admit(who, root.run));
    }
    story.join(DAN, ANN, 100 * MILLI);
    comes_in(&mut story, DAN, 10);
    let Message::Convicted(mut proof) = own_conviction(&story, DAN) else {
        panic!()
    };
    proof.admission = None;
    story.say(DAN, ANN, Message::Convicted(proof));
    story.run(5 * SECOND);
    story.join(EVE, ANN, 100 * MILLI);
    story.run(5 * SECOND);
    assert_eq!(story.exits.get(&EVE), Some(&Exit::Barred(Barred::Convicted)));
}

#[test]
fn proofs_about_invented_names_are_not_kept() {
    let mut story = three();
    let since = story.events.len();
    // A stranger's first frame is remembered, as that of any other.
    let proof = own_conviction(&story, invented(2000));
    story.say(MAL, ANN, proof);
    let held = story.peers[&ANN].buffered_bytes();
    for number in 0..2000 {
        let proof = own_conviction(&story, invented(number));
        story.say(MAL, ANN, proof);
    }
    assert_eq!(story.peers[&ANN].buffered_bytes(), held);
    let is_warning = |event: &Event| matches!(event, Event::Outlawed { .. });
    assert!(
        !story.events[since..]
            .iter()
            .any(|(_, _, event)| is_warning(event))
    );
    nothing_follows(&mut story, since);
}

#[test]
fn names_that_follow_and_never_catch_up_keep_nobody_out() {
    let mut story = three();
    let mut next = 0;
    let mut fill = |story: &mut Story| {
        for _ in 0..64 {
            MEMBERS
                .into_iter()
                .for_each(|to| follow(story, 0, invented(next), to));
            next += 1;
        }
        story.run(SECOND);
    };
    // By a full member's ticket, by another page's, and by the very same.
    fill(&mut story);
    story.join(DAN, ANN, 100 * MILLI);
    [BEN, CAT].into_iter().for_each(|other| story.open(DAN, other));
    let dan = comes_in(&mut story, DAN, 10);
    fill(&mut story);
    visit(&mut story, 1, EVE, BEN);
    let eve = comes_in(&mut story, EVE, 10);
    fill(&mut story);
    visit(&mut story, 0, FAY, CAT);
    let fay = comes_in(&mut story, FAY, 60);
    println!("in after {dan}, {eve} and {fay} s");
}

#[test]
fn names_that_renew_their_places_keep_nobody_of_their_ticket_out() {
    let mut story = three();
    let names = |burst: u16| (70 * burst..70 * (burst + 1)).map(invented);
    for burst in 0..40 {
        for to in MEMBERS {
            if burst > 0 {
                names(burst - 1).for_each(|name| story.cut(to, name));
            }
            names(burst).for_each(|name| follow(&mut story, 0, name, to));
        }
        if burst == 0 {
            visit(&mut story, 0, DAN, ANN);
        }
        story.run(500 * MILLI);
    }
    assert!(story.peers[&DAN].is_member());
}

/// All places of contributors are taken by one ticket.
#[test]
fn one_ticket_does_not_keep_all_places_while_others_ask() {
    let mut story = Story::over(Topology::Direct, 1);
    story.gather(3, 100 * MILLI);
    story.run(5 * SECOND);
    let crowd: Vec<PeerId> = (0..34).map(|n| PeerId([20 + n; 32])).collect();
    for (i, who) in crowd.iter().enumerate() {
        visit(&mut story, 0, *who, MEMBERS[i % 3]);
        crowd[..i].iter().for_each(|other| story.open(*who, *other));
        story.run(300 * MILLI);
    }
    story.run(10 * SECOND);
    let guests = |story: &Story| {
        story.peers[&ANN]
            .head()
            .members
            .iter()
            .filter(|m| !m.is_full())
            .count()
    };
    assert_eq!(guests(&story), 32);
    let since = story.events.len();
    visit(&mut story, 1, DAN, ANN);
    crowd.iter().for_each(|other| story.open(DAN, *other));
    comes_in(&mut story, DAN, 10);
    assert_eq!(guests(&story), 32);
    let made_room = |event: &Event| {
        matches!(
            event,
            Event::Member {
                reason: Reason::MadeRoom,
                ..
            }
        )
    };
    assert!(
        story.events[since..]
            .iter()
            .any(|(_, who, event)| *who == ANN && made_room(event))
    );
    assert_eq!(
        troubles(&story, since)
            .iter()
            .filter(|t| !t.contains("NotAMember"))
            .count(),
        0
    );
}

/// Two at a time: a name takes part once, falls silent, and the next comes. Returns the rounds in a second, compared
/// with those before, and how many names came.
fn fall_silent(topology: Topology, seconds: u64) -> (f64, u16, Story) {
    let (mut story, per_s) = undisturbed(topology);
    let (mut next, mut awake) = (0, Vec::<PeerId>::new());
    let (mut asleep, mut came) = (Vec::<PeerId>::new(), 0);
    let before = rounds(&story);
    let end = story.now + seconds * SECOND;
    while story.now < end {
        while awake.len() < 2 {
            let name = invented(next);
            visit(&mut story, 0, name, MEMBERS[usize::from(next) % 3]);
            awake.push(name);
            next += 1;
        }
        story.run(50 * MILLI);
        for name in std::mem::take(&mut awake) {
            let took_part = story.commits(name).iter().any(|(round, _)| {
                let record = story.records(ANN).find(|record| record.round == *round);
                record.is_some_and(|record| record.headers.iter().any(|h| h.peer == name))
            });
            match took_part {
                true => {
                    story.fall_asleep(name);
                    asleep.push(name);
                    came += 1;
                }
                false => awake.push(name),
            }
        }
        for name in std::mem::take(&mut asleep) {
            match MEMBERS
                .iter()
                .any(|who| story.peers[who].head().position(name).is_some())
            {
                true => asleep.push(name),
                false => story.kill(name),
            }
        }
    }
    let rate = (rounds(&story) - before) as f64 / seconds as f64;
    (rate / per_s, came, story)
}

#[test]
fn guests_that_fall_silent_one_after_the_other_hardly_hold_up_the_rounds() {
    for topology in [Topology::Ring, Topology::Direct] {
        let (rate, came, mut story) = fall_silent(topology, 300);
        println!("{topology:?}: {rate:.2} of the rounds, {came} names");
        assert!(rate >= 0.8, "{topology:?}: {rate:.2} of the rounds, {came} names");
        visit(&mut story, 0, DAN, ANN);
        let after = comes_in(&mut story, DAN, 60);
        println!("an honest visitor comes in after {after} s");
    }
}

#[test]
fn names_that_say_they_are_ready_and_never_come_hardly_hold_up_the_rounds() {
    let (mut story, per_s) = undisturbed(Topology::Ring);
    let before = rounds(&story);
    let (mut next, mut came_in) = (0, None);
    for half in 0..240 {
        for place in 0..12 {
            let to = MEMBERS[place % 3];
            follow(&mut story, 0, invented(next), to);
            say_ready(&mut story, invented(next), to);
            // It makes room for another.
            if next >= 48 {
                story.cut(to, invented(next - 48));
            }
            next += 1;
        }
        story.run(500 * MILLI);
        if half == 120 {
            visit(&mut story, 0, DAN, ANN);
        }
        if half > 120 && came_in.is_none() && story.peers[&DAN].is_member() {
            came_in = Some((half - 120) / 2);
        }
    }
    let rate = (rounds(&story) - before) as f64 / 120.0 / per_s;
    println!("{rate:.2} of the rounds, an honest visitor comes in after {came_in:?} s");
    assert!(rate >= 0.8, "{rate:.2} of the rounds");
    assert!(came_in.is_some_and(|after| after <= 60), "{came_in:?}");
}
