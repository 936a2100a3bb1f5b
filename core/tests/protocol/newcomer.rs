//! How a member serves a newcomer that is slower than the rounds. The newcomer is played by hand; time stands
//! still, so that deadlines play no part.

use annulus_core::invitation::Admission;
use annulus_core::ledger::Ready;
use annulus_core::shuffle;
use annulus_core::signature::Key;
use annulus_core::wire::{Leg, Message, ViewKey};
use annulus_core::{
    Contact, Event, Input, Layout, Manifest, Output, Peer, PeerId, Room, Round, RunId, Settings, State, Time,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const ANN: PeerId = PeerId([1; 32]);
const BEN: PeerId = PeerId([2; 32]);
const CAT: PeerId = PeerId([3; 32]);

/// Ann, who has founded the run, perhaps Ben, and their messages to Cat.
struct Ring {
    manifest: Arc<Manifest>,
    peers: BTreeMap<PeerId, Peer>,
    mail: VecDeque<(PeerId, PeerId, Message)>,
    /// Contributions that were asked for.
    asked: BTreeMap<PeerId, Input>,
    told: Vec<Message>,
    committed: Vec<(PeerId, ViewKey)>,
}

impl Ring {
    /// Ann alone, who lets nobody fall more than two rounds behind.
    fn new() -> Self {
        Self::with(2, false)
    }

    fn with(lag: Round, stand_aside: bool) -> Self {
        let manifest = Arc::new(Manifest {
            samples: 100.try_into().unwrap(),
            target: 1_000_000.try_into().unwrap(),
            batch: 8.try_into().unwrap(),
            piece: 4.try_into().unwrap(),
            stand_aside,
            ..Manifest::new(Layout::flat(12))
        });
        let settings = Settings {
            lag,
            ..Settings::stand_in(ANN, Contact::default(), &manifest)
        };
        let state = State::new(vec![0.5; manifest.layout.len], &manifest);
        let ann = Peer::found(manifest.clone(), settings, state, Time(0));
        let mut ring = Self {
            manifest,
            peers: [(ANN, ann)].into(),
            mail: VecDeque::new(),
            asked: BTreeMap::new(),
            told: Vec::new(),
            committed: Vec::new(),
        };
        ring.react(ANN);
        ring
    }

    fn with_ben(mut self) -> Self {
        let settings = Settings::stand_in(BEN, Contact::default(), &self.manifest);
        let ben = Peer::join(self.manifest.clone(), settings, ANN, &Contact::default(), Time(0));
        self.peers.insert(BEN, ben);
        self.link(ANN, BEN);
        self.link(BEN, ANN);
        self.give(BEN, Input::Warm { speed: 1000 });
        for _ in 0..3 {
            self.settle();
            self.round();
        }
        assert_eq!(self.peers[&ANN].head().members.len(), 2);
        self
    }

    fn follow(&mut self) {
        self.link(ANN, CAT);
        let contact = Contact::default();
        let admission = Box::new(Admission::stand_in(CAT, self.manifest.root()));
        self.say(Message::Follow {
            have: None,
            admission,
            contact,
        });
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

    /// Cat sends a message to Ann.
    fn say(&mut self, message: Message) {
        self.give(ANN, Input::Message { from: CAT, message });
    }

    fn give(&mut self, who: PeerId, input: Input) {
        self.peers.get_mut(&who).unwrap().handle(input, Time(0));
        self.react(who);
    }

    fn react(&mut self, who: PeerId) {
        while let Some(output) = self.peers.get_mut(&who).and_then(Peer::poll) {
            match output {
                Output::Send { to: CAT, message, .. } => self.told.push(message),
                Output::Send { to, message, .. } => self.mail.push_back((who, to, message)),
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
                        compute: Duration::from_millis(1),
                        late: false,
                    };
                    self.asked.insert(who, contribution);
                }
                Output::Event(Event::Committed(commit)) => self.committed.push((who, commit.view)),
                Output::Span(_) | Output::Restore { .. } => unreachable!("no model is split here"),
                Output::Event(_) | Output::Dial { .. } | Output::HangUp { .. } | Output::Exit(_) => {}
            }
        }
    }

    fn contribute(&mut self) {
        for (who, contribution) in std::mem::take(&mut self.asked) {
            self.give(who, contribution);
        }
    }

    fn deliver(&mut self) -> bool {
        let Some((from, to, message)) = self.mail.pop_front() else {
            return false;
        };
        self.give(to, Input::Message { from, message });
        true
    }

    fn settle(&mut self) {
        while self.deliver() {}
    }

    fn round(&mut self) {
        self.contribute();
        self.settle();
    }

    fn at(&self) -> Round {
        self.peers[&ANN].head().round
    }

    /// The last round that Cat was told of.
    fn last_told(&self) -> Round {
        let rounds = self.told.iter().filter_map(|message| match message {
            Message::Committed { view, .. } => Some(view.round),
            _ => None,
        });
        rounds.last().unwrap()
    }
}

#[test]
fn who_catches_up_in_the_middle_of_a_round_gets_all_of_it() {
    let mut ring = Ring::new().with_ben();
    ring.follow();
    let begun = ring.at();
    while ring.at() < begun + 3 {
        ring.round();
    }
    // It has not confirmed three rounds, and is told no more until it does.
    ring.told.clear();
    ring.contribute();
    let finished = |ring: &Ring| {
        ring.mail.iter().any(|(from, _, message)| {
            matches!(
                message,
                Message::Piece {
                    leg: Leg::Finished,
                    ..
                }
            ) && *from == ANN
        })
    };
    while !finished(&ring) {
        assert!(ring.deliver());
    }
    assert_eq!((ring.at(), ring.told.len()), (begun + 3, 0));
    ring.say(Message::Followed { round: begun + 3 });
    ring.settle();
    let view = ring.committed.last().unwrap().1;
    let mut pieces: Vec<(u16, u32)> = Vec::new();
    for message in &ring.told {
        match message {
            Message::Piece {
                view: of,
                chunk,
                piece,
                ..
            } if *of == view => pieces.push((*chunk, *piece)),
            Message::Committed { view: of, .. } => {
                assert_eq!(*of, view);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    pieces.sort();
    assert_eq!(pieces, [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

/// Cat has caught up to a round.
fn ready(run: RunId, round: Round) -> Message {
    let ready = Ready {
        peer: CAT,
        speed: 1000,
        round,
        room: Room::default(),
    };
    let ready = Key::stand_in(CAT).signed(&run, ready);
    Message::Ready { ready: Some(ready) }
}

#[test]
fn ready_said_before_a_new_beginning_admits_nobody() {
    let mut ring = Ring::new();
    ring.follow();
    // It hears nothing of the rounds after the third.
    for _ in 0..6 {
        ring.round();
    }
    let held = ring.last_told();
    assert!(held < ring.at());
    let run = ring.manifest.run_id();
    let ready = |round| ready(run, round);
    ring.say(Message::Followed { round: held });
    assert!(
        matches!(ring.told.last(), Some(Message::Following { head, .. }) if head.round == ring.at()),
        "it begins again"
    );
    // This was on its way.
    ring.say(ready(held));
    ring.round();
    assert_eq!(ring.peers[&ANN].head().members.len(), 1);
    ring.say(ready(ring.at()));
    ring.round();
    assert_eq!(ring.peers[&ANN].head().members.len(), 2);
}

/// On a path of 50 ms, rounds of 3 ms are always far ahead of a newcomer's confirmations.
#[test]
fn who_is_behind_because_the_way_is_long_is_let_in() {
    let mut ring = Ring::with(Settings::LAG, false);
    ring.follow();
    let begun = ring.at();
    for _ in 0..20 {
        ring.round();
    }
    assert_eq!(ring.last_told(), begun + 20, "it is told of every round");
    ring.say(Message::Followed { round: begun + 3 });
    ring.say(ready(ring.manifest.run_id(), begun + 3));
    ring.round();
    assert_eq!(ring.peers[&ANN].head().members.len(), 2);
}

/// Otherwise a peer that is slower than the ring could never come in.
#[test]
fn the_ring_pauses_once_for_who_had_to_begin_again_twice() {
    let mut ring = Ring::new();
    ring.follow();
    for _ in 0..2 {
        for _ in 0..6 {
            ring.round();
        }
        let held = ring.last_told();
        assert!(
            held < ring.at(),
            "nobody waits for a newcomer that only once was too slow"
        );
        ring.say(Message::Followed { round: held });
    }
    let begun = ring.at();
    for _ in 0..6 {
        ring.round();
    }
    assert_eq!(ring.at(), begun, "the ring pauses");
    ring.say(ready(ring.manifest.run_id(), begun));
    assert_eq!(ring.at(), begun + 1, "what was held back is handed in");
    assert_eq!(ring.peers[&ANN].head().members.len(), 2);
}

/// The messages to a newcomer that falls behind again and again.
fn falls_behind(stand_aside: bool) -> Vec<Message> {
    let mut ring = Ring::with(2, stand_aside);
    ring.follow();
    for _ in 0..2 {
        for _ in 0..6 {
            ring.round();
        }
        let held = ring.last_told();
        ring.say(Message::Followed { round: held });
    }
    for _ in 0..6 {
        ring.round();
    }
    // It has asked for nothing meanwhile, so that a pause is over.
    let soon = Time(2_400_000);
    ring.peers.get_mut(&ANN).unwrap().handle(Input::Tick, soon);
    ring.react(ANN);
    for _ in 0..6 {
        ring.round();
    }
    ring.told
}

#[test]
fn who_falls_behind_again_and_again_is_told_that_its_line_is_too_slow() {
    let is_sent_away = |message: &Message| matches!(message, Message::NoPlace { slow: Some(_) });
    assert!(falls_behind(true).iter().any(is_sent_away));
    assert!(
        !falls_behind(false).iter().any(is_sent_away),
        "a run without trials waits for all"
    );
}
