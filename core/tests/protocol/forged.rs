//! Statements in another's name, or two contradicting ones, are not believed, and their author is out. The peers
//! are real; the messages of one of them, or of a stranger, are changed on the way.

use annulus_core::codec::Codec;
use annulus_core::config::Topology;
use annulus_core::conviction::{Contradiction, Conviction};
use annulus_core::invitation::Admission;
use annulus_core::ledger::{Header, Newcomer, Ready, Record};
use annulus_core::planted::Bug;
use annulus_core::seal::{Finished, Seal};
use annulus_core::shuffle;
use annulus_core::signature::{Attempt, Key, Scheme, Signed};
use annulus_core::wire::{Doing, Message, ViewKey};
use annulus_core::{
    Contact, Digest, Event, Input, Layout, Manifest, Output, Peer, PeerId, Reason, Room, Round, Settings,
    State, Time,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

const ANN: PeerId = PeerId([1; 32]);
const BEN: PeerId = PeerId([2; 32]);
const CAT: PeerId = PeerId([3; 32]);
const DAN: PeerId = PeerId([4; 32]);
const EVE: PeerId = PeerId([5; 32]);

/// Changes a liar's message, given the liar and the receiver.
type Lie = Box<dyn Fn(&Peer, PeerId, &mut Message)>;

fn manifest(topology: Topology) -> Manifest {
    Manifest {
        samples: 100.try_into().unwrap(),
        target: 1_000_000.try_into().unwrap(),
        batch: 12.try_into().unwrap(),
        topology: Some(topology),
        piece: 4.try_into().unwrap(),
        ..Manifest::new(Layout::flat(12))
    }
}

/// Peers with links to each other, unless a story says otherwise. A message takes a millisecond.
struct World {
    now: u64,
    manifest: Arc<Manifest>,
    peers: BTreeMap<PeerId, Peer>,
    /// Pairs without a link.
    apart: BTreeSet<(PeerId, PeerId)>,
    mail: VecDeque<(PeerId, PeerId, Message)>,
    /// Contributions that were asked for. They are made once there is no mail.
    asked: VecDeque<(PeerId, Input)>,
    events: Vec<(PeerId, Event)>,
    liar: Option<(PeerId, Lie)>,
    /// Messages to peers that are played by hand.
    told: Vec<(PeerId, PeerId, Message)>,
}

impl World {
    /// A world of these members.
    fn new(topology: Topology, members: &[PeerId]) -> Self {
        Self::apart(topology, members, &[])
    }

    /// A world in which some pairs have no link.
    fn apart(topology: Topology, members: &[PeerId], apart: &[(PeerId, PeerId)]) -> Self {
        Self::of(manifest(topology), members, apart)
    }

    fn of(manifest: Manifest, members: &[PeerId], apart: &[(PeerId, PeerId)]) -> Self {
        let mut world = Self {
            now: 0,
            manifest: Arc::new(manifest),
            peers: BTreeMap::new(),
            apart: apart.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect(),
            mail: VecDeque::new(),
            asked: VecDeque::new(),
            events: Vec::new(),
            liar: None,
            told: Vec::new(),
        };
        let state = State::new(vec![0.5; 12], &world.manifest);
        let ann = Peer::found(
            world.manifest.clone(),
            settings(members[0], &world.manifest),
            state,
            Time(0),
        );
        world.enter(members[0], ann);
        for member in &members[1..] {
            world.join(*member, members[0]);
        }
        world.until(|world| world.are_together(members));
        world
    }

    fn join(&mut self, who: PeerId, via: PeerId) {
        let manifest = self.manifest.clone();
        let settings = settings(who, &manifest);
        let peer = Peer::join(manifest, settings, via, &Contact::default(), Time(self.now));
        self.enter(who, peer);
    }

    fn enter(&mut self, who: PeerId, peer: Peer) {
        let others: Vec<PeerId> = self.peers.keys().copied().collect();
        self.peers.insert(who, peer);
        self.react(who);
        self.give(who, Input::Warm { speed: 1000 });
        for other in others {
            if !self.apart.contains(&(who, other)) {
                self.link(who, other);
                self.link(other, who);
            }
        }
    }

    fn link(&mut self, who: PeerId, peer: PeerId) {
        let contact = Contact::default();
        self.give(
            who,
            Input::LinkUp {
                peer,
                contact,
                rtt: Duration::ZERO,
            },
        );
    }

    fn give(&mut self, who: PeerId, input: Input) {
        if let Some(peer) = self.peers.get_mut(&who) {
            peer.handle(input, Time(self.now));
            self.react(who);
        }
    }

    fn say(&mut self, from: PeerId, to: PeerId, message: Message) {
        self.give(to, Input::Message { from, message });
    }

    fn react(&mut self, who: PeerId) {
        while let Some(output) = self.peers.get_mut(&who).and_then(Peer::poll) {
            match output {
                Output::Send { to, mut message, .. } => {
                    if let Some((_, lie)) = self.liar.as_ref().filter(|(liar, _)| *liar == who) {
                        lie(&self.peers[&who], to, &mut message);
                    }
                    self.mail.push_back((who, to, message));
                }
                Output::Compute {
                    round,
                    positions,
                    buffer,
                    ..
                } => {
                    let contribution = Input::Contribution {
                        round,
                        gradient: vec![0.25; buffer.len()],
                        weight: shuffle::count(&positions) as u32,
                        loss: 1.0,
                        compute: Duration::from_millis(50),
                        late: false,
                    };
                    self.asked.push_back((who, contribution));
                }
                Output::HangUp { peer } => {
                    self.apart.extend([(who, peer), (peer, who)]);
                    self.give(who, Input::LinkDown { peer });
                    self.give(peer, Input::LinkDown { peer: who });
                }
                Output::Event(event) => self.events.push((who, event)),
                Output::Span(_) | Output::Restore { .. } => unreachable!("no model is split here"),
                Output::Dial { .. } | Output::Exit(_) => {}
            }
        }
    }

    /// One event: a message arrives, else all devices finish, else time passes.
    fn step(&mut self) {
        self.now += 1_000;
        if let Some((from, to, message)) = self.mail.pop_front() {
            if !self.peers.contains_key(&to) {
                self.told.push((from, to, message));
            } else if !self.apart.contains(&(from, to)) {
                self.say(from, to, message);
            }
        } else if !self.asked.is_empty() {
            for (who, contribution) in std::mem::take(&mut self.asked) {
                self.give(who, contribution);
            }
        } else {
            let wakes = self.peers.values().filter_map(Peer::wake_at).min();
            self.now = wakes.map_or(self.now, |at| at.0.max(self.now));
        }
        let due = |peer: &Peer| peer.wake_at().is_some_and(|at| at.0 <= self.now);
        let due: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, p)| due(p))
            .map(|(id, _)| *id)
            .collect();
        due.into_iter().for_each(|who| self.give(who, Input::Tick));
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("it does not come to that");
    }

    /// Runs until a peer has committed this many more rounds.
    fn rounds(&mut self, who: PeerId, rounds: Round) {
        let end = self.peers[&who].head().round + rounds;
        self.until(|world| world.peers[&who].head().round >= end);
    }

    /// Whether exactly these are the members of one lineage.
    fn are_together(&self, who: &[PeerId]) -> bool {
        let all: BTreeSet<PeerId> = who.iter().copied().collect();
        who.iter().all(|peer| {
            let peer = &self.peers[peer];
            let members: BTreeSet<PeerId> = peer.head().members.iter().map(|m| m.peer).collect();
            peer.is_member() && members == all
        })
    }

    /// How members were lost, as a peer has seen it.
    fn lost(&self, who: PeerId) -> Vec<(PeerId, Reason)> {
        let of_who = self.events.iter().filter(|(peer, _)| *peer == who);
        let lost = of_who.filter_map(|(_, event)| match event {
            Event::Member { peer, reason, .. } if *reason != Reason::CaughtUp => Some((*peer, *reason)),
            _ => None,
        });
        lost.collect()
    }

    fn outcasts(&self, who: PeerId) -> usize {
        let outcast =
            |(peer, event): &&(PeerId, Event)| *peer == who && matches!(event, Event::Outcast { .. });
        self.events.iter().filter(outcast).count()
    }

    /// The peers that a peer has cut off, and whether with a proof.
    fn outlaws(&self, who: PeerId) -> Vec<(PeerId, bool)> {
        let of_who = self.events.iter().filter(|(peer, _)| *peer == who);
        let outlaws = of_who.filter_map(|(_, event)| match event {
            Event::Outlawed { peer, proven } => Some((*peer, *proven)),
            _ => None,
        });
        outlaws.collect()
    }

    fn records(&self, who: PeerId) -> impl Iterator<Item = &Record> {
        self.events.iter().filter_map(move |(peer, event)| match event {
            Event::Committed(commit) if *peer == who => Some(&commit.record),
            _ => None,
        })
    }

    fn view(&self, who: PeerId) -> ViewKey {
        self.peers[&who].view().expect("it is a member").0
    }

    fn attempt(&self, who: PeerId) -> Attempt {
        let chain = self.peers[&who].head().chain;
        Attempt {
            chain,
            view: self.view(who),
        }
    }
}

fn settings(who: PeerId, manifest: &Manifest) -> Settings {
    Settings::stand_in(who, Contact::default(), manifest)
}

/// The headers in a message, and their attempt.
fn headers(message: &mut Message) -> Option<(ViewKey, &mut Vec<Signed<Header>>)> {
    match message {
        Message::Piece { view, headers, .. } => Some((*view, headers)),
        _ => None,
    }
}

/// An author changes its header, and signs it.
fn say_otherwise(author: &Peer, message: &mut Message, change: impl Fn(&mut Header)) {
    let (me, chain) = (author.me(), author.head().chain);
    let Some((view, headers)) = headers(message) else {
        return;
    };
    let attempt = Attempt { chain, view };
    // It may have committed the round since.
    let now = |header: &&mut Signed<Header>| header.is_by(me, &attempt, Scheme::StandIn);
    for header in headers.iter_mut().filter(now) {
        change(&mut header.content);
        header.signature = Key::stand_in(me).sign(&attempt, &header.content);
    }
}

#[test]
fn who_changes_a_header_that_it_passes_on_is_out_and_its_author_stays() {
    let all = [ANN, BEN, CAT, DAN];
    let mut world = World::new(Topology::Ring, &all);
    let members: Vec<PeerId> = world.peers[&ANN].head().members.iter().map(|m| m.peer).collect();
    // The author's next member in the ring.
    let (author, hop) = (members[0], members[1]);
    world.liar = Some((
        hop,
        Box::new(move |_, _, message| {
            let others = headers(message).into_iter().flat_map(|(_, headers)| headers);
            for header in others.filter(|header| header.peer == author) {
                header.content.weight = 0;
                header.content.loss = 0.0;
            }
        }),
    ));
    let rest: Vec<PeerId> = all.into_iter().filter(|peer| *peer != hop).collect();
    world.until(|world| world.are_together(&rest));
    // It comes back, since nobody can prove the lie, and is out again each time.
    world.rounds(author, 20);
    // The next member has seen it, and accepts nothing from it any more.
    assert_eq!(world.outlaws(members[2]), [(hop, false)]);
    for peer in rest {
        assert_eq!(world.outcasts(peer), 0);
        assert!(
            world.lost(peer).iter().all(|(lost, _)| *lost == hop),
            "{:?}",
            world.lost(peer)
        );
        let mut counted = world
            .records(peer)
            .flat_map(|r| &r.headers)
            .filter(|h| h.peer == author);
        assert!(counted.all(|h| h.weight > 0));
    }
}

#[test]
fn nobody_is_expelled_by_a_decision_that_those_who_stay_have_not_signed() {
    let all = [ANN, BEN, CAT, DAN];
    let mut world = World::new(Topology::Ring, &all);
    let decision = |world: &World, suspects: &[PeerId], signed: &[PeerId]| {
        let attempt = world.attempt(ANN);
        // Members have really signed another statement: that they stopped, without a suspect.
        let signature = |peer: &PeerId| (*peer, Key::stand_in(*peer).sign_bytes(b"something else"));
        Message::Decision {
            view: attempt.view,
            suspects: suspects.to_vec(),
            proof: signed.iter().map(signature).collect(),
        }
    };
    // A stranger with a link tells each member that it is expelled, or that all others are.
    for peer in all {
        world.link(peer, EVE);
        for suspects in [&[peer][..], &[BEN, CAT], &all] {
            let rest: Vec<PeerId> = all.into_iter().filter(|p| !suspects.contains(p)).collect();
            let message = decision(&world, suspects, &rest);
            world.say(EVE, peer, message);
        }
    }
    world.rounds(ANN, 5);
    assert!(world.are_together(&all));
    for peer in all {
        assert_eq!((world.lost(peer), world.outcasts(peer)), (vec![], 0));
    }
    // A member says so: it is the liar.
    let message = decision(&world, &[CAT], &[ANN, BEN, DAN]);
    world.say(BEN, ANN, message);
    world.until(|world| world.lost(ANN).contains(&(BEN, Reason::FalseDecision)));
    assert_eq!(world.outcasts(CAT), 0);
}

#[test]
fn a_sponsor_cannot_invent_newcomers() {
    let all = [ANN, BEN, CAT];
    let mut world = World::new(Topology::Ring, &all);
    let ready = Ready {
        peer: EVE,
        speed: 1000,
        round: world.peers[&BEN].head().round,
        room: Room::default(),
    };
    let root = world.manifest.root();
    world.liar = Some((
        BEN,
        Box::new(move |ben, _, message| {
            say_otherwise(ben, message, |header| {
                // Ben signs for Eve.
                let ready = Key::stand_in(BEN).signed(&root.run, ready.clone());
                let contact = Contact::default();
                let admission = Admission::stand_in(EVE, root);
                header.ready = vec![Newcomer {
                    ready,
                    admission,
                    contact,
                }];
            });
        }),
    ));
    world.until(|world| world.are_together(&[ANN, CAT]));
    world.rounds(ANN, 5);
    for peer in [ANN, CAT] {
        assert!(
            world
                .records(peer)
                .all(|record| record.headers.iter().all(|h| h.peer != EVE))
        );
        assert_eq!(world.outcasts(peer), 0);
    }
}

#[test]
fn a_newcomer_that_signs_for_itself_comes_in() {
    let mut world = World::new(Topology::Ring, &[ANN, BEN]);
    world.join(CAT, BEN);
    world.until(|world| world.are_together(&[ANN, BEN, CAT]));
}

#[test]
fn nobody_speaks_in_the_name_of_another_through_a_relay() {
    // Cat reaches Dan only through others.
    for liar in [ANN, BEN] {
        let all = [ANN, BEN, CAT, DAN];
        let mut world = World::apart(Topology::Direct, &all, &[(CAT, DAN)]);
        world.rounds(ANN, 3);
        // A member that relays Cat's messages to Dan changes them.
        world.liar = Some((
            liar,
            Box::new(|_, to, message| {
                if let Message::Relay { envelope, frame } = message
                    && (envelope.from, to) == (CAT, DAN)
                {
                    let mut inner = Message::decode(frame.clone()).expect("Cat's words");
                    if let Message::Piece { data, .. } = &mut inner {
                        *data = vec![0x7f; data.len()].into();
                    }
                    *frame = inner.to_frame();
                }
            }),
        ));
        // And a stranger invents some.
        world.link(DAN, EVE);
        let view = world.view(DAN);
        let (round, doing) = (view.round + 9, Doing::Idle);
        let frame = Message::Alive {
            nonce: 1,
            round,
            doing,
        }
        .to_frame();
        let mut stolen = None;
        for _ in 0..2_000 {
            let relayed = world.mail.iter().find_map(|(_, _, message)| match message {
                Message::Relay { envelope, .. } if envelope.from == CAT => Some(*envelope),
                _ => None,
            });
            stolen = stolen.or(relayed);
            world.step();
        }
        let envelope = stolen.expect("Cat has something to say to Dan");
        world.say(EVE, DAN, Message::Relay { envelope, frame });
        // No state holds a value that Cat did not give.
        for peer in world.peers.values() {
            assert!(peer.state().params.iter().all(|x| x.abs() < 1e3));
        }
        for peer in all {
            let blamed = world
                .lost(peer)
                .into_iter()
                .find(|(_, reason)| matches!(reason, Reason::Violation | Reason::Forged | Reason::Convicted));
            assert_eq!(blamed, None, "{peer} blames somebody for what the relay did");
        }
    }
}

#[test]
fn a_relay_cannot_make_a_peer_send_what_it_did_not_write() {
    let all = [ANN, BEN, CAT];
    let mut world = World::apart(Topology::Ring, &all, &[(BEN, CAT)]);
    world.rounds(ANN, 2);
    let view = world.view(BEN);
    let suspects = vec![ANN];
    let signature = Key::stand_in(ANN).sign_bytes(b"no flush");
    let flush = Message::Flush {
        view,
        suspects,
        signature,
    };
    let envelope = annulus_core::wire::Envelope {
        from: BEN,
        to: CAT,
        number: 999,
        lane: annulus_core::Lane::Bulk,
        signature,
    };
    let frame = flush.to_frame();
    world.mail.clear();
    world.say(
        ANN,
        BEN,
        Message::Unreachable {
            envelope,
            frame: frame.clone(),
        },
    );
    let says = |(_, _, message): &(PeerId, PeerId, Message)| match message {
        Message::Relay { frame: said, .. } => *said == frame,
        other => *other == flush,
    };
    assert!(!world.mail.iter().any(says));
}

/// Under the direct plan everybody gets the author's own header.
#[test]
fn who_tells_two_members_different_things_is_convicted_by_all_before_anybody_commits() {
    let all = [ANN, BEN, CAT, DAN, EVE];
    for liar in all {
        let mut world = World::new(Topology::Direct, &all);
        world.rounds(ANN, 2);
        let one = all
            .into_iter()
            .find(|peer| *peer != liar)
            .expect("there are five");
        world.liar = Some((
            liar,
            Box::new(move |liar, to, message| {
                if to == one {
                    say_otherwise(liar, message, |header| header.compute_us += 1);
                }
            }),
        ));
        let rest: Vec<PeerId> = all.into_iter().filter(|peer| *peer != liar).collect();
        let before: Vec<Digest> = rest.iter().map(|peer| world.peers[peer].head().chain).collect();
        world.until(|world| world.are_together(&rest));
        world.liar = None;
        for peer in &rest {
            assert_eq!(world.outlaws(*peer), [(liar, true)]);
            assert_eq!(world.outcasts(*peer), 0, "of {before:?}");
        }
        world.rounds(rest[0], 5);
        // Its name is not admitted again.
        for peer in &rest {
            world
                .apart
                .retain(|(a, b)| (*a, *b) != (*peer, liar) && (*b, *a) != (*peer, liar));
            world.link(*peer, liar);
            world.link(liar, *peer);
        }
        world.rounds(rest[0], 20);
        assert!(world.are_together(&rest));
        // In one lineage all records are the same.
        let records: Vec<Vec<&Record>> = rest.iter().map(|peer| world.records(*peer).collect()).collect();
        for records in &records {
            for record in records {
                let others = world.records(rest[0]).filter(|r| r.round == record.round);
                others.for_each(|other| assert_eq!(other, *record));
            }
        }
    }
}

/// An owner's chunk on its way, of one piece here, with its seal and the attempt.
fn sealed<'a>(owner: &Peer, message: &'a mut Message) -> Option<(Attempt, &'a mut Seal, &'a mut Bytes)> {
    let Message::Piece {
        view,
        seal: Some(seal),
        data,
        ..
    } = message
    else {
        return None;
    };
    let head = owner.head();
    // It may have committed the round since.
    let chains = [Some(head.chain), head.before.as_ref().map(|before| before.chain)];
    let mut attempts = chains
        .into_iter()
        .flatten()
        .map(|chain| Attempt { chain, view: *view });
    let attempt = attempts.find(|attempt| seal.is_by(owner.me(), attempt, Scheme::StandIn));
    Some((attempt.expect("it has just signed it"), seal, data))
}

/// One of five members, and a change to the finished chunk that it sends to another.
fn with_owner(change: fn(&Peer, &mut Message)) -> (World, PeerId, PeerId, Vec<PeerId>) {
    let all = [ANN, BEN, CAT, DAN, EVE];
    let (liar, one) = (BEN, DAN);
    let mut world = World::new(Topology::Direct, &all);
    world.rounds(ANN, 2);
    let lie: Lie = Box::new(move |liar, to, message| {
        if to == one {
            change(liar, message);
        }
    });
    world.liar = Some((liar, lie));
    let rest: Vec<PeerId> = all.into_iter().filter(|peer| *peer != liar).collect();
    (world, liar, one, rest)
}

#[test]
fn an_owner_that_finishes_its_chunk_differently_for_one_is_convicted_by_all() {
    let (mut world, liar, one, rest) = with_owner(|liar, message| {
        if let Some((attempt, seal, data)) = sealed(liar, message) {
            // Enough to show in the state.
            let mut other = data.to_vec();
            other[2] ^= 0x40;
            *data = other.into();
            *seal = Key::stand_in(liar.me()).signed(&attempt, Finished::of(&[Digest::of(data)]));
        }
    });
    world.until(|world| world.are_together(&rest));
    for peer in &rest {
        assert_eq!(world.outlaws(*peer), [(liar, true)]);
        assert_eq!(
            world.outcasts(*peer),
            usize::from(*peer == one),
            "it got the others' state"
        );
    }
    let digests = rest.iter().map(|peer| world.peers[peer].digest());
    assert_eq!(digests.collect::<BTreeSet<_>>().len(), 1);
}

#[test]
fn an_owner_that_sends_another_chunk_than_it_has_signed_is_cut_off_before_that_is_committed() {
    let spoil: [fn(&Peer, &mut Message); 2] = [
        |liar, message| {
            if let Some((_, _, data)) = sealed(liar, message) {
                let mut other = data.to_vec();
                other[0] ^= 1;
                *data = other.into();
            }
        },
        |_, message| {
            if let Message::Piece { seal, .. } = message {
                *seal = None;
            }
        },
    ];
    for spoil in spoil {
        let (mut world, liar, one, rest) = with_owner(spoil);
        world.until(|world| world.are_together(&rest));
        assert_eq!(world.outlaws(one), [(liar, false)]);
        assert!(rest.iter().all(|peer| world.outcasts(*peer) == 0));
    }
}

#[test]
fn a_keeper_whose_update_does_not_follow_from_the_sum_is_cut_off_by_who_gave_it_the_sum() {
    for codec in Codec::ALL {
        let manifest = Manifest {
            copies: NonZeroU16::new(2),
            codec,
            optimizer: "momentum".parse().unwrap(),
            piece: 256.try_into().unwrap(),
            ..manifest(Topology::Direct)
        };
        let all = [ANN, BEN, CAT];
        let mut world = World::of(manifest, &all, &[]);
        world.rounds(ANN, 10);
        // There is one part. Its sum passes its keepers in ring order.
        let members = &world.peers[&ANN].head().members;
        let keepers = members.iter().filter(|m| m.keeper.kept.contains(0));
        let keepers: Vec<PeerId> = keepers.map(|m| m.peer).collect();
        let &[giver, liar] = &keepers[..] else {
            panic!("{codec}: two keep it, not {keepers:?}");
        };
        world.peers.get_mut(&liar).unwrap().plant(Bug::FalseUpdates);
        let rest: Vec<PeerId> = all.into_iter().filter(|peer| *peer != liar).collect();
        world.until(|world| world.are_together(&rest));
        assert_eq!(world.outlaws(giver), [(liar, false)], "{codec}");
        let seen = world.events.iter().filter(|(peer, event)| {
            *peer == giver && matches!(event, Event::FalseUpdate { peer, part: 0 } if *peer == liar)
        });
        assert_eq!(seen.count(), 1, "{codec}");
        let others = rest.iter().filter(|peer| **peer != giver);
        others.for_each(|peer| assert_eq!(world.outlaws(*peer), [], "nobody else can tell"));
    }
}

#[test]
fn who_shows_of_an_owner_what_that_has_not_signed_is_cut_off() {
    let all = [ANN, BEN, CAT];
    let mut world = World::new(Topology::Direct, &all);
    world.rounds(ANN, 2);
    let last = world.events.iter().rev().find_map(|(peer, event)| match event {
        Event::Committed(commit) if *peer == ANN => Some(commit.view),
        _ => None,
    });
    let view = last.expect("she has committed");
    let chain = world.peers[&ANN].head().before.as_ref().unwrap().chain;
    let seal = Key::stand_in(BEN).signed(&Attempt { chain, view }, Finished(Digest([7; 32])));
    let seals = vec![seal.clone(), seal.clone(), seal];
    // Of her own chunk or of Cat's, whichever is first.
    world.say(BEN, ANN, Message::Seals { view, seals });
    assert_eq!(world.outlaws(ANN), [(BEN, false)]);
}

#[test]
fn a_newcomer_is_told_who_was_convicted() {
    let mut world = World::new(Topology::Ring, &[ANN, BEN, EVE]);
    let attempt = world.attempt(ANN);
    let header = |weight| {
        let header = Header {
            weight,
            compute_us: 0,
            ..Header::stand_in(EVE)
        };
        Key::stand_in(EVE).signed(&attempt, header)
    };
    let headers = [header(1), header(2)];
    let proof = Conviction::new(attempt, headers);
    let mut invented = proof.clone();
    let Contradiction::Headers(headers) = &mut invented.said else {
        panic!()
    };
    headers[1].content.weight = 3;
    world.say(BEN, ANN, Message::Convicted(Box::new(invented)));
    assert_eq!(world.outlaws(ANN), []);
    world.say(BEN, ANN, Message::Convicted(Box::new(proof)));
    assert_eq!(world.outlaws(ANN), [(EVE, true)]);
    world.until(|world| world.are_together(&[ANN, BEN]));
    world.rounds(ANN, 3);
    world.join(CAT, ANN);
    world.until(|world| world.are_together(&[ANN, BEN, CAT]));
    assert_eq!(world.outlaws(CAT), [(EVE, true)]);
    // Nobody hears its messages any more.
    world.told.clear();
    world.join(EVE, CAT);
    world.rounds(ANN, 10);
    assert!(world.are_together(&[ANN, BEN, CAT]));
}

/// A member that only claims to have other headers is found out: it cannot show any.
#[test]
fn who_says_that_its_headers_differ_and_cannot_show_it_is_out() {
    let all = [ANN, BEN, CAT];
    for topology in Topology::ALL {
        let mut world = World::new(topology, &all);
        world.liar = Some((
            BEN,
            Box::new(|_, _, message| {
                if let Message::Piece {
                    all: all @ Some(_), ..
                } = message
                {
                    *all = Some(Digest([7; 32]));
                }
            }),
        ));
        world.until(|world| world.are_together(&[ANN, CAT]));
        world.rounds(ANN, 3);
        for peer in [ANN, CAT] {
            assert_eq!((world.outcasts(peer), world.outlaws(peer)), (0, vec![]));
        }
    }
}
