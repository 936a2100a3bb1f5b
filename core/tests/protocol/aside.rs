//! A member that would slow the run down stands aside: samples per virtual second, with it and without.

use crate::story::{ANN, BEN, CAT, MILLI, SECOND, Story};
use annulus_core::aside::Cause;
use annulus_core::invitation::{Invitation, Role};
use annulus_core::signature::Key;
use annulus_core::{Event, Input, PeerId, Topology};
use std::collections::BTreeSet;

const DAN: PeerId = PeerId([4; 32]);

/// A run of these members, each of which computes 300 samples a second.
fn run_of(members: &[PeerId]) -> Story {
    let mut story = Story::with(Topology::Direct, |manifest| {
        (manifest.batch, manifest.stand_aside) = (96.try_into().unwrap(), true);
        manifest.target = 1_000_000_000.try_into().unwrap();
    });
    for (i, who) in members.iter().enumerate() {
        story.pace.insert(*who, 300.0);
        match i {
            0 => story.found(*who, MILLI),
            _ => come(&mut story, *who, &members[..i]),
        }
        story.run(10 * SECOND);
    }
    assert!(members.is_empty() || story.are_together(members));
    story
}

/// A peer joins, with links to all.
fn come(story: &mut Story, who: PeerId, others: &[PeerId]) {
    story.join(who, others[0], MILLI);
    others[1..].iter().for_each(|other| story.open(who, *other));
}

/// Slows down all frames of a peer.
fn slow_line(story: &mut Story, who: PeerId, others: &[PeerId]) {
    let ways = others.iter().map(|other| ((who, *other), 1500 * MILLI));
    story.bulk_us.extend(ways);
}

/// Samples a second, over this many seconds.
fn rate(story: &mut Story, seconds: u64) -> f64 {
    let before = story.peers[&ANN].head().samples;
    story.run(seconds * SECOND);
    (story.peers[&ANN].head().samples - before) as f64 / seconds as f64
}

/// Why a peer stands aside, each time that it does.
fn causes(story: &Story, who: PeerId) -> Vec<Cause> {
    let aside = |(_, teller, event): &(u64, PeerId, Event)| match event {
        Event::Aside(aside) if aside.peer == who && *teller == ANN => Some(aside.cause),
        _ => None,
    };
    story.events.iter().filter_map(aside).collect()
}

#[test]
fn a_member_behind_a_slow_line_costs_less_than_a_tenth() {
    let mut story = run_of(&[ANN, BEN, CAT]);
    let without = rate(&mut story, 60);
    story.pace.insert(DAN, 300.0);
    slow_line(&mut story, DAN, &[ANN, BEN, CAT]);
    come(&mut story, DAN, &[ANN, BEN, CAT]);
    let with = rate(&mut story, 300);
    assert!(
        with > 0.9 * without,
        "{with:.0} samples a second, {without:.0} without it"
    );
    let causes = causes(&story, DAN);
    assert!(
        !causes.is_empty() && causes.iter().all(|cause| *cause == Cause::Link),
        "{causes:?}"
    );
    // It follows nobody meanwhile, its state is five minutes old at most, and it comes back once its line is better.
    let [ann, dan] = [ANN, DAN].map(|who| story.peers[&who].head().round);
    let rounds_in_five_minutes = (without * 300.0 / 96.0) as u64;
    assert!((30..rounds_in_five_minutes).contains(&(ann - dan)), "{ann} {dan}");
    story.bulk_us.clear();
    story.run(400 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, DAN]));
    assert!(rate(&mut story, 60) > 1.1 * without);
}

/// Two devices on one processor: while the second computes, the first is a third as fast, as measured with a native
/// peer and a tab.
fn share_processor(story: &mut Story, seconds: u64) -> f64 {
    let (before, until) = (story.peers[&ANN].head().samples, story.now + seconds * SECOND);
    while story.now < until {
        let both = story.peers[&BEN].is_member();
        story.pace.insert(ANN, if both { 100.0 } else { 300.0 });
        story.run(20 * MILLI);
    }
    (story.peers[&ANN].head().samples - before) as f64 / seconds as f64
}

#[test]
fn a_device_that_shares_a_processor_costs_less_than_a_tenth() {
    let mut story = run_of(&[ANN]);
    let without = rate(&mut story, 60);
    story.pace.insert(BEN, 30.0);
    come(&mut story, BEN, &[ANN]);
    let with = share_processor(&mut story, 120);
    assert!(
        with > 0.9 * without,
        "{with:.0} samples a second, {without:.0} without it"
    );
    assert!(causes(&story, BEN).contains(&Cause::Machine));
}

#[test]
fn a_device_that_is_a_hundred_times_as_slow_costs_less_than_a_tenth() {
    let mut story = run_of(&[ANN, BEN]);
    let without = rate(&mut story, 60);
    story.pace.insert(CAT, 3.0);
    // It overstates its speed.
    story.warm.insert(CAT, 300_000);
    come(&mut story, CAT, &[ANN, BEN]);
    let with = rate(&mut story, 120);
    assert!(
        with > 0.9 * without,
        "{with:.0} samples a second, {without:.0} without it"
    );
}

#[test]
fn an_equal_member_helps_and_stays() {
    let mut story = run_of(&[ANN, BEN]);
    let without = rate(&mut story, 60);
    story.pace.insert(CAT, 300.0);
    come(&mut story, CAT, &[ANN, BEN]);
    let with = rate(&mut story, 60);
    assert!(
        with > 1.25 * without,
        "{with:.0} samples a second, {without:.0} without it"
    );
    assert_eq!(causes(&story, CAT), []);
}

#[test]
fn a_peer_that_stands_aside_takes_over_when_the_others_are_gone() {
    let mut story = run_of(&[ANN]);
    story.pace.insert(BEN, 300.0);
    slow_line(&mut story, BEN, &[ANN]);
    come(&mut story, BEN, &[ANN]);
    story.run(20 * SECOND);
    assert!(!causes(&story, BEN).is_empty() && !story.peers[&BEN].is_member());
    let samples = story.peers[&BEN].head().samples;
    story.cut(ANN, BEN);
    story.run(60 * SECOND);
    assert!(story.peers[&BEN].is_member() && story.peers[&BEN].head().samples > samples);
}

/// Three full members whose rounds take a third of a second, and a visitor that holds names by a page's ticket. Whenever
/// somebody comes in, one of the names says goodbye, and the next name comes.
struct Visited {
    story: Story,
    names: Vec<PeerId>,
    /// Names that have fallen silent, if they do so instead of saying goodbye.
    silent: Option<Vec<PeerId>>,
    came: u32,
    members: BTreeSet<PeerId>,
}

/// Names that the visitor holds.
const HELD: usize = 6;
const SECONDS: u64 = 400;

impl Visited {
    fn new() -> Self {
        let mut story = run_of(&[]);
        for who in [ANN, BEN, CAT] {
            story.pace.insert(who, 100.0);
        }
        story.found(ANN, MILLI);
        come(&mut story, BEN, &[ANN]);
        come(&mut story, CAT, &[ANN, BEN]);
        let mut visited = Self {
            story,
            names: Vec::new(),
            silent: None,
            came: 0,
            members: BTreeSet::new(),
        };
        visited.run(60 * SECOND, &[]);
        visited
    }

    /// A peer comes, with links to all.
    fn come(&mut self, who: PeerId) {
        let others: Vec<PeerId> = self
            .story
            .peers
            .keys()
            .copied()
            .filter(|other| *other != who)
            .collect();
        self.story.pace.insert(who, 100.0);
        come(&mut self.story, who, &others);
    }

    /// For how many seconds each of these is a member.
    fn run(&mut self, for_us: u64, honest: &[PeerId]) -> Vec<u64> {
        const STEP: u64 = 100 * MILLI;
        let mut steps = vec![0; honest.len()];
        for _ in 0..for_us / STEP {
            self.disturb();
            self.story.run(STEP);
            for (steps, who) in steps.iter_mut().zip(honest) {
                *steps += u64::from(self.story.peers[who].is_member());
            }
        }
        steps.iter().map(|steps| steps * STEP / SECOND).collect()
    }

    fn disturb(&mut self) {
        let members = self.story.peers[&ANN]
            .head()
            .members
            .iter()
            .map(|m| m.peer)
            .collect();
        let before = std::mem::replace(&mut self.members, members);
        let new: Vec<PeerId> = self.members.difference(&before).copied().collect();
        let can_leave = |name: &&PeerId| self.members.contains(*name) && !new.contains(*name);
        if let Some(name) = self
            .names
            .iter()
            .find(can_leave)
            .copied()
            .filter(|_| !new.is_empty())
        {
            match &mut self.silent {
                None => self.story.give(name, Input::Leave),
                Some(silent) => {
                    self.story.fall_asleep(name);
                    self.names.retain(|other| *other != name);
                    silent.push(name);
                }
            }
        }
        let is_out = |name: &mut PeerId| !self.members.contains(name);
        for name in self
            .silent
            .iter_mut()
            .flat_map(|silent| silent.extract_if(.., is_out))
        {
            self.story.kill(name);
        }
        let exits = &self.story.exits;
        let gone: Vec<PeerId> = self
            .names
            .extract_if(.., |name| exits.contains_key(name))
            .collect();
        gone.into_iter().for_each(|name| self.story.kill(name));
        while self.names.len() < HELD {
            let name = PeerId([100 + (self.came % 100) as u8; 32]);
            self.came += 1;
            self.story.exits.remove(&name);
            let of_run = Invitation::of_run(Key::stand_in(self.story.manifest.key));
            let (root, key) = (self.story.manifest.root(), Key::stand_in(PeerId([99; 32])));
            let page = of_run.narrow(root, key, Role::Contribute, None, None).unwrap();
            self.story.admissions.insert(name, page.admit(name, root.run));
            self.come(name);
            self.names.push(name);
        }
    }

    /// Each is a member for at least four fifths of the time after it came.
    fn stays(&mut self, honest: &[PeerId]) {
        let seconds = self.run(SECONDS * SECOND, honest);
        let (came, aside) = (
            self.came,
            honest.iter().flat_map(|who| causes(&self.story, *who)).count(),
        );
        println!("members for {seconds:?} of {SECONDS} s, {aside} times aside, {came} names");
        assert!(came > 10, "{came} names");
        assert!(seconds.iter().all(|s| *s >= SECONDS * 4 / 5), "{seconds:?}");
    }
}

#[test]
fn goodbyes_of_guests_keep_no_full_member_out() {
    let mut visited = Visited::new();
    visited.come(DAN);
    visited.stays(&[DAN]);
}

#[test]
fn guests_that_fall_silent_keep_no_full_member_out() {
    let mut visited = Visited::new();
    visited.silent = Some(Vec::new());
    visited.come(DAN);
    visited.stays(&[DAN]);
}

#[test]
fn goodbyes_of_guests_keep_none_of_four_out_that_come_at_once() {
    let mut visited = Visited::new();
    let four = [10, 11, 12, 13].map(|n| PeerId([n; 32]));
    four.into_iter().for_each(|who| visited.come(who));
    visited.stays(&four);
}

#[test]
fn goodbyes_of_guests_keep_no_full_member_out_that_restarts() {
    let mut visited = Visited::new();
    for who in [BEN, CAT] {
        visited.story.kill(who);
    }
    visited.run(SECOND, &[]);
    for who in [BEN, CAT] {
        visited.come(who);
    }
    visited.stays(&[BEN, CAT]);
}
