//! Carries out what a [`Peer`] asks for: sends, dials, and hands the rest to its owner. It has no policy, clock or
//! runtime; the loop around it is in [`host`](super::host).

use super::heap;
use super::trace::Trace;
use crate::net::gate::Gate;
use crate::net::link::{Frame, Lane, Link, LinkEvent, SendError};
use crate::trainer::Share;
use annulus_core::interface::SpanWork;
use annulus_core::peer::Event;
use annulus_core::shuffle::Shuffle;
use annulus_core::wire::Message;
use annulus_core::{Contact, Digest, Exit, Input, Output, Peer, PeerId, Round, Time};
use std::collections::VecDeque;

/// Work for the owner of a [`Driver`].
#[derive(Debug)]
pub enum Todo {
    /// Make the contribution for a share and return it as [`Input::Contribution`].
    Compute {
        /// The round.
        round: Round,
        /// The share.
        share: Share,
    },
    /// Compute a microbatch's pass through a span, and return it as [`Input::Span`].
    Span {
        /// The pass.
        work: Box<SpanWork>,
        /// The samples at its positions.
        samples: Vec<u64>,
    },
    /// Read the parts of this lineage from the disk, and return them as [`Input::Restored`].
    Restore {
        /// The lineage after the round that stepped them last.
        stepped: Digest,
    },
    /// Report an event. The peer is as it was right after the event.
    Event(Event),
    /// Drain the link and stop.
    Exit(Exit),
}

/// Bytes of frames so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent that this peer relayed for members without a link to each other.
    pub relayed: u64,
    /// Bytes received with the state of others: its blocks, and parts of the optimizer's vectors.
    pub fetched: u64,
}

/// A peer and its link.
pub struct Driver<L> {
    peer: Peer,
    link: L,
    shuffle: Shuffle,
    trace: Trace,
    traffic: Traffic,
    /// Links that failed to take a frame and will be hung up.
    broken: Vec<PeerId>,
    /// The lineage by which the link decides who may come in.
    judged: Option<Digest>,
    /// How many parts of the optimizer's vectors the peer has.
    parts: usize,
    todo: VecDeque<Todo>,
}

impl<L: Link> Driver<L> {
    /// A peer that was not polled yet, and its link.
    pub fn new(peer: Peer, link: L, shuffle: Shuffle) -> Self {
        let mut driver = Self {
            trace: Trace::new(peer.me()),
            peer,
            link,
            shuffle,
            traffic: Traffic::default(),
            broken: Vec::new(),
            judged: None,
            parts: 0,
            todo: VecDeque::new(),
        };
        driver.carry_out();
        driver
    }

    /// The peer, to look at.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The link, to wait for its events.
    pub fn link(&mut self) -> &mut L {
        &mut self.link
    }

    /// Bytes of frames sent and received so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The owner's next task. The peer gets no input until there is none.
    pub fn next_todo(&mut self) -> Option<Todo> {
        self.todo.pop_front()
    }

    /// Whether the peer is in the middle of long work: let the transport run, then feed [`Input::Tick`] before anything
    /// else.
    pub fn is_busy(&self) -> bool {
        self.peer.is_applying()
    }

    /// Tells the peer the address of another peer of the run.
    pub fn know(&mut self, peer: PeerId, contact: &Contact, now: Time) {
        self.peer.know(peer, contact);
        self.handle(Input::Tick, now);
    }

    /// Feeds the peer an input and carries out what it asks for.
    pub fn handle(&mut self, input: Input, now: Time) {
        self.peer.handle(input, now);
        self.carry_out();
    }

    /// Feeds the peer an event of the link.
    pub fn on_link(&mut self, event: LinkEvent, now: Time) {
        self.trace.link(&event);
        let input = match event {
            LinkEvent::Up {
                peer, addresses, rtt, ..
            } => Input::LinkUp {
                peer,
                contact: Contact(addresses),
                rtt,
            },
            LinkEvent::Down { peer, .. } => Input::LinkDown { peer },
            LinkEvent::DialFailed { peer, reason } => Input::DialFailed {
                peer,
                barred: reason.barred(),
            },
            LinkEvent::Frame { peer, bytes, .. } => {
                let size = bytes.len();
                self.traffic.received += size as u64;
                match Message::decode(bytes) {
                    Ok(message) => {
                        self.trace.received(peer, &message, size);
                        if matches!(message, Message::Block { .. } | Message::Moments { .. }) {
                            self.traffic.fetched += size as u64;
                        }
                        Input::Message { from: peer, message }
                    }
                    Err(error) => {
                        self.trace.refused(peer, error);
                        return self.link.hang_up(peer);
                    }
                }
            }
        };
        self.handle(input, now);
    }

    fn carry_out(&mut self) {
        self.trace.enter(self.peer.view());
        // First, since a link treats members differently.
        let head = self.peer.head();
        if self.judged.replace(head.chain) != Some(head.chain) {
            self.link.judge_by(Gate::at(head));
        }
        let mut entered = false;
        while let Some(output) = self.peer.poll() {
            self.trace.output(&output);
            entered |= matches!(output, Output::Event(Event::Entered));
            match output {
                Output::Send { to, lane, message } => self.send(to, lane, &message),
                Output::Dial { peer, contact } => self.link.dial(peer, &contact.0),
                Output::HangUp { peer } => self.link.hang_up(peer),
                Output::Compute {
                    round,
                    positions,
                    buffer,
                    local,
                } => {
                    // Samples that were handed out before come once only.
                    let fresh = positions
                        .iter()
                        .filter(|range| range.start >= self.peer.head().cursor);
                    let fresh: Vec<_> = fresh.cloned().collect();
                    let share = Share {
                        samples: self.shuffle.draws(&positions),
                        ahead: self.shuffle.draws(&self.shuffle.ahead(&fresh)),
                        params: buffer,
                        local,
                    };
                    self.todo.push_back(Todo::Compute { round, share });
                }
                Output::Span(work) => {
                    let samples = self.shuffle.draws(&work.pass.positions);
                    self.todo.push_back(Todo::Span { work, samples });
                }
                Output::Restore { stepped } => self.todo.push_back(Todo::Restore { stepped }),
                Output::Event(event) => self.todo.push_back(Todo::Event(event)),
                Output::Exit(exit) => self.todo.push_back(Todo::Exit(exit)),
            }
        }
        let parts = self.peer.state().kept.set().len();
        // The peer has dropped parts, or is done with the rounds that it followed as a newcomer: much memory that it
        // will not need again.
        if std::mem::replace(&mut self.parts, parts) > parts || entered {
            heap::give_back();
        }
        for peer in std::mem::take(&mut self.broken) {
            self.link.hang_up(peer);
        }
    }

    fn send(&mut self, to: PeerId, lane: Lane, message: &Message) {
        let (meta, payload) = message.encode();
        let frame = Frame::new(if payload.is_empty() {
            vec![meta]
        } else {
            vec![meta, payload]
        });
        let bytes = frame.len();
        let sent = self.link.send(to, lane, frame);
        self.trace.sent(to, message, bytes, sent);
        match sent {
            Ok(()) => {
                self.traffic.sent += bytes as u64;
                if matches!(message, Message::Relay { envelope, .. } if envelope.from != self.peer.me()) {
                    self.traffic.relayed += bytes as u64;
                }
            }
            // Its `Down` will follow.
            Err(SendError::NotUp) => {}
            // A frame that is not sent leaves a gap, so the link is broken.
            Err(SendError::Full | SendError::TooLong) => self.broken.push(to),
        }
    }
}
