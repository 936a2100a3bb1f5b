//! Small worlds written by hand: what must happen when lineages, newcomers and links meet in one certain way.
//! The seeded worlds of `sim.rs` meet such situations by chance, and seldom.

use annulus_core::Change;
use annulus_core::config::Topology;
use annulus_core::ledger::{Header, Record};
use annulus_core::wire::{Message, ViewKey};
use annulus_core::{
    Contact, Digest, Event, Input, Lane, Layout, Manifest, Output, Peer, PeerId, Settings, State, Time,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SECOND: u64 = 1_000_000;
const MILLI: u64 = 1_000;

const ANN: PeerId = PeerId([1; 32]);
const BEN: PeerId = PeerId([2; 32]);
const CAT: PeerId = PeerId([3; 32]);

/// Peers on links that the story opens and cuts. Nobody dials: who can reach whom is the story's to say.
struct Story {
    now: u64,
    manifest: Arc<Manifest>,
    peers: BTreeMap<PeerId, Peer>,
    /// Time of a round's computing, in microseconds.
    compute_us: BTreeMap<PeerId, u64>,
    /// Open links, and how often each was opened: what was under way when it was cut is lost.
    links: BTreeSet<(PeerId, PeerId)>,
    opened: BTreeMap<(PeerId, PeerId), u32>,
    latency_us: BTreeMap<(PeerId, PeerId), u64>,
    /// What the bulk lane of one direction takes on top.
    bulk_us: BTreeMap<(PeerId, PeerId), u64>,
    /// What will happen, in order of time and of asking.
    due: BTreeMap<(u64, u64), Due>,
    asked: u64,
    /// What the peers told of, in order.
    events: Vec<(u64, PeerId, Event)>,
    /// Who says something else than its code does, and what.
    liar: Option<(PeerId, Lie)>,
    /// The attempt of the last piece that each has sent.
    at_work: BTreeMap<PeerId, ViewKey>,
}

/// Changes a message from a liar, given whom it is for.
type Lie = fn(PeerId, &mut Message);

enum Due {
    Tick(PeerId),
    Give(PeerId, Input),
    Deliver {
        from: PeerId,
        to: PeerId,
        opened: u32,
        message: Message,
    },
}

impl Story {
    fn new(min_peers: u16) -> Self {
        Self::over(Topology::Ring, min_peers)
    }

    fn over(topology: Topology, min_peers: u16) -> Self {
        let manifest = Manifest {
            samples: 100,
            target: 1_000_000,
            batch: 8,
            topology,
            piece: 4,
            min_peers,
            ..Manifest::new(Layout::flat(12))
        };
        Self {
            now: 0,
            manifest: Arc::new(manifest),
            peers: BTreeMap::new(),
            compute_us: BTreeMap::new(),
            links: BTreeSet::new(),
            opened: BTreeMap::new(),
            latency_us: BTreeMap::new(),
            bulk_us: BTreeMap::new(),
            due: BTreeMap::new(),
            asked: 0,
            events: Vec::new(),
            liar: None,
            at_work: BTreeMap::new(),
        }
    }

    /// Somebody founds the run, and needs so long for a round.
    fn found(&mut self, who: PeerId, compute_us: u64) {
        let state = State::new(vec![0.5; self.manifest.layout.len], &self.manifest);
        let settings = Settings::new(who, Contact::default());
        let peer = Peer::found(self.manifest.clone(), settings, state, Time(self.now));
        self.begin(who, peer, compute_us);
    }

    /// Somebody joins over an open link, which comes with it.
    fn join(&mut self, who: PeerId, via: PeerId, compute_us: u64) {
        let settings = Settings::new(who, Contact::default());
        let contact = Contact::default();
        let peer = Peer::join(self.manifest.clone(), settings, via, &contact, Time(self.now));
        self.begin(who, peer, compute_us);
        self.open(who, via);
    }

    /// So many that all have links to each other, and need the same time for a round.
    fn gather(&mut self, count: u8, compute_us: u64) -> Vec<PeerId> {
        let all: Vec<PeerId> = (1..=count).map(|name| PeerId([name; 32])).collect();
        self.found(all[0], compute_us);
        for (i, who) in all.iter().enumerate().skip(1) {
            self.join(*who, all[0], compute_us);
            all[1..i].iter().for_each(|other| self.open(*who, *other));
        }
        all
    }

    fn begin(&mut self, who: PeerId, peer: Peer, compute_us: u64) {
        self.peers.insert(who, peer);
        self.compute_us.insert(who, compute_us);
        self.react(who);
        self.give(who, Input::Warm { speed: 1000 });
    }

    fn open(&mut self, a: PeerId, b: PeerId) {
        let pair = (a.min(b), a.max(b));
        self.links.insert(pair);
        *self.opened.entry(pair).or_default() += 1;
        for (end, peer) in [(a, b), (b, a)] {
            let contact = Contact::default();
            self.give(end, Input::LinkUp { peer, contact });
        }
    }

    fn cut(&mut self, a: PeerId, b: PeerId) {
        self.links.remove(&(a.min(b), a.max(b)));
        for (end, peer) in [(a, b), (b, a)] {
            self.give(end, Input::LinkDown { peer });
        }
    }

    fn give(&mut self, who: PeerId, input: Input) {
        let peer = self.peers.get_mut(&who).expect("it is in the story");
        peer.handle(input, Time(self.now));
        self.react(who);
    }

    /// Does what a peer asks for.
    fn react(&mut self, who: PeerId) {
        while let Some(output) = self.peers.get_mut(&who).and_then(Peer::poll) {
            match output {
                Output::Send { to, lane, message } => self.send(who, to, lane, message),
                Output::Compute {
                    round,
                    positions,
                    buffer,
                } => {
                    let weight = positions.iter().map(|r| r.end - r.start).sum::<u64>() as u32;
                    // All say that they took as long as the slowest, so that all get the same share.
                    let says = *self.compute_us.values().max().expect("of this one");
                    let made = Input::Contribution {
                        round,
                        gradient: vec![0.25; buffer.len()],
                        weight,
                        loss: 1.0,
                        compute: Duration::from_micros(says),
                    };
                    self.at(self.now + self.compute_us[&who], Due::Give(who, made));
                }
                Output::Event(event) => self.events.push((self.now, who, event)),
                Output::Dial { .. } | Output::Exit(_) => {
                    panic!("nobody can dial or is done in these stories")
                }
            }
        }
        if let Some(at) = self.peers[&who].wake_at() {
            self.at(at.0.max(self.now + 1), Due::Tick(who));
        }
    }

    fn send(&mut self, from: PeerId, to: PeerId, lane: Lane, mut message: Message) {
        if let Message::Piece { view, .. } = &message {
            self.at_work.insert(from, *view);
        }
        if let Some((_, lie)) = self.liar.filter(|(liar, _)| *liar == from) {
            lie(to, &mut message);
        }
        let pair = (from.min(to), from.max(to));
        assert!(self.links.contains(&pair), "a peer knows which links are open");
        let bulk = if lane == Lane::Bulk {
            self.bulk_us.get(&(from, to))
        } else {
            None
        };
        let latency = self.latency_us.get(&pair).copied().unwrap_or(5 * MILLI);
        let at = self.now + latency + bulk.copied().unwrap_or(0);
        let opened = self.opened[&pair];
        self.at(
            at,
            Due::Deliver {
                from,
                to,
                opened,
                message,
            },
        );
    }

    fn at(&mut self, at: u64, due: Due) {
        self.asked += 1;
        self.due.insert((at, self.asked), due);
    }

    fn run(&mut self, for_us: u64) {
        let end = self.now + for_us;
        while let Some(next) = self.due.first_entry().filter(|next| next.key().0 <= end) {
            let ((at, _), due) = next.remove_entry();
            self.now = at;
            match due {
                Due::Tick(who) => {
                    if self.peers[&who].wake_at().is_some_and(|at| at.0 <= self.now) {
                        self.give(who, Input::Tick);
                    }
                }
                Due::Give(who, input) => self.give(who, input),
                Due::Deliver {
                    from,
                    to,
                    opened,
                    message,
                } => {
                    let pair = (from.min(to), from.max(to));
                    if self.links.contains(&pair) && self.opened[&pair] == opened {
                        self.give(to, Input::Message { from, message });
                    }
                }
            }
        }
        self.now = end;
    }

    /// Whether these, and nobody else, are the members of one lineage.
    fn are_together(&self, who: &[PeerId]) -> bool {
        let chains: BTreeSet<u64> = who.iter().map(|p| self.peers[p].head().round).collect();
        let close = chains.last().unwrap_or(&0) - chains.first().unwrap_or(&0) <= 1;
        close
            && who.iter().all(|peer| {
                let peer = &self.peers[peer];
                let members: BTreeSet<PeerId> = peer.head().members.iter().map(|m| m.peer).collect();
                peer.is_member() && members == who.iter().copied().collect()
            })
    }

    /// What a peer committed, in order.
    fn records(&self, who: PeerId) -> impl Iterator<Item = &Record> {
        let commits = self.events.iter().filter(move |(_, peer, _)| *peer == who);
        commits.filter_map(|(_, _, event)| match event {
            Event::Committed(commit) => Some(&commit.record),
            _ => None,
        })
    }

    /// When a peer committed its rounds.
    fn commits(&self, who: PeerId) -> Vec<(u64, u64)> {
        let commits = self.events.iter().filter(|(_, peer, _)| *peer == who);
        commits
            .filter_map(|(at, _, event)| match event {
                Event::Committed(commit) => Some((commit.record.round, *at)),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn two_who_wait_meet_though_their_first_link_broke_at_once() {
    let mut story = Story::new(2);
    story.found(ANN, SECOND);
    story.found(BEN, SECOND);
    story.open(ANN, BEN);
    story.run(2 * MILLI);
    // What they told each other is lost, and neither does anything by itself.
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
    // Ben is fast. So it is used to long waits, and does not ask soon what became of a round.
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
    // Cat's contribution is on its way around the ring. What Cat finishes takes long to Ann, who hears of the commit
    // before it comes; Ben gets it from Ann.
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
    // From here on a piece takes longer than all that was ever waited for.
    story.bulk_us.insert((ANN, BEN), 4 * SECOND);
    let before = story.commits(BEN).len();
    story.run(120 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    assert!(story.commits(BEN).len() >= before + 10);
}

#[test]
fn a_newcomer_goes_to_the_lineage_that_is_far_ahead() {
    let mut story = Story::new(1);
    story.found(ANN, 500 * SECOND);
    story.join(BEN, ANN, SECOND);
    story.found(CAT, SECOND);
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
    story.found(BEN, 2 * SECOND);
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
fn headers(message: &mut Message) -> &mut [Header] {
    match message {
        Message::Piece { headers, .. } => headers,
        Message::Committed { record, .. } => &mut record.headers,
        _ => &mut [],
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
    story.liar = Some((BEN, |_, message| {
        let own = headers(message).iter_mut().filter(|header| header.peer == BEN);
        own.for_each(|header| header.weight += 5);
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
    story.liar = None;
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
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
    // What Cat lacks of the round comes late, so Ben has committed it first.
    story.bulk_us.insert((BEN, CAT), 200 * MILLI);
    story.run(SECOND);
    while story.commits(BEN).last().map(|(round, _)| *round)
        <= story.commits(CAT).last().map(|(round, _)| *round)
    {
        story.run(MILLI);
    }
    let mut record = story.records(BEN).last().expect("the last round").clone();
    record.headers[0].weight += 5;
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
    story.liar = Some((BEN, |to, message| {
        if to == CAT
            && let Message::Committed { record, .. } = message
        {
            record.headers[0].weight += 5;
        }
    }));
    story.join(CAT, BEN, 100 * MILLI);
    story.run(SECOND);
    assert!(!story.peers[&CAT].is_member());
    story.open(CAT, ANN);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
}

/// Mean time of a round beyond its computing, among so many on links of 5 ms.
fn exchange_us(topology: Topology, count: u8) -> u64 {
    let compute_us = 100 * MILLI;
    let mut story = Story::over(topology, 1);
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
    for count in [2, 4, 7] {
        let ways = u64::from(2 * (count - 1));
        assert_eq!(exchange_us(Topology::Ring, count), ways * 5 * MILLI);
        assert_eq!(exchange_us(Topology::Direct, count), 2 * 5 * MILLI);
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
