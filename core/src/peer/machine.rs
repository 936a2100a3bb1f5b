//! The state machine of a participant: inputs in, outputs out, nothing else.
//!
//! Call [`Peer::handle`] for everything that happens, then [`Peer::poll`] until it returns `None`, and
//! [`Peer::handle`] with [`Input::Tick`] no later than [`Peer::wake_at`]. A peer is in one of three phases, each in
//! a file of its own: `newcomer.rs`, `member.rs`, `lingering.rs`. A phase only returns what comes next; this module
//! carries it out.

#[cfg(feature = "sim")]
mod simulated;
mod unwrapping;

use crate::access::invitation::Role;
use crate::base::id::{Contact, Digest, PeerId};
use crate::base::time::Time;
use crate::ledger::{self, Founder, Head};
use crate::peer::barren::Barren;
use crate::peer::handover;
use crate::peer::interface::{Event, Exit, Input, Output};
use crate::peer::lingering::Lingering;
use crate::peer::member::Member;
use crate::peer::newcomer::Newcomer;
use crate::peer::next::{Next, Outcast};
use crate::peer::reason::OutcastReason;
use crate::peer::shared::Shared;
use crate::peer::sponsor::Sponsor;
use crate::peer::spot::Spot;
use crate::run::config::{Manifest, Settings};
use crate::state::State;
use crate::wire::rights::{self, Column, Kind, Refused, Roles, When};
use crate::wire::{Message, ViewKey};
use std::sync::Arc;
use std::time::Duration;

pub(crate) enum Phase {
    Newcomer(Box<Newcomer>),
    Member(Box<Member>),
    Lingering(Lingering),
    Gone,
}

/// A participant of a run. See the module's documentation for the order of calls.
pub struct Peer {
    pub(crate) shared: Shared,
    pub(crate) phase: Phase,
}

impl Peer {
    /// Founds a run with an initial state, as its only member so far.
    pub fn found(manifest: Arc<Manifest>, settings: Settings, mut state: State, now: Time) -> Self {
        let head = Head::genesis(&manifest, ledger::Member::founder(&settings, &manifest));
        state.kept.initial = settings.initial.clone();
        // It keeps all parts until others come or, of a split model, as many as it has room for.
        state.kept.begin(&manifest, &head.members[0].keeper.kept);
        let mut peer = Self::new(manifest, settings, state, head, now);
        peer.go(Next::Round(Sponsor::default()));
        peer
    }

    /// Continues a run from a checkpoint, as its only member so far. A peer that is not a full member waits for
    /// one. If the head has no members ([`Head::unfounded`]) and this peer finds none, it founds the run.
    pub fn resume(manifest: Arc<Manifest>, settings: Settings, state: State, head: Head, now: Time) -> Self {
        let others = head.members.clone();
        let mut peer = Self::new(manifest, settings, state, head, now);
        for member in others {
            // They may continue too; the one that has counted less joins the other again.
            peer.know(member.peer, &member.contact);
        }
        let shared = &mut peer.shared;
        shared.forgetful = true;
        let founded = !shared.head().members.is_empty();
        if shared.settings.role() == Role::Member && founded {
            shared.go_on_alone();
            peer.go(Next::Round(Sponsor::default()));
        } else {
            peer.phase = Phase::Newcomer(Box::new(Newcomer::outcast(false, None, shared)));
            peer.on_time();
        }
        peer
    }

    /// Joins a run through one of its members.
    pub fn join(
        manifest: Arc<Manifest>,
        settings: Settings,
        via: PeerId,
        contact: &Contact,
        now: Time,
    ) -> Self {
        let head = Head::genesis(&manifest, ledger::Member::new(&settings, None));
        let state = State::new(Vec::new(), &manifest);
        let mut peer = Self::new(manifest, settings, state, head, now);
        peer.phase = Phase::Newcomer(Box::new(Newcomer::new(now)));
        peer.know(via, contact);
        peer.on_time();
        peer
    }

    /// Tells it where another peer of the run may be found. If the one that it joins through is gone, any other
    /// will do.
    pub fn know(&mut self, peer: PeerId, contact: &Contact) {
        self.shared.links.want(peer, contact, self.shared.now);
    }

    fn new(manifest: Arc<Manifest>, settings: Settings, mut state: State, head: Head, now: Time) -> Self {
        state.kept.initial = settings.initial.clone();
        Self {
            shared: Shared::new(manifest, settings, state, head, now),
            phase: Phase::Gone,
        }
    }

    /// Handles an input. Time never goes back.
    pub fn handle(&mut self, input: Input, now: Time) {
        let due = self.wake_at().filter(|_| !self.is_applying());
        let shared = &mut self.shared;
        shared.now = shared.now.max(now);
        shared.links.now = shared.now;
        if let Phase::Member(member) = &mut self.phase
            && member.is_applying()
        {
            let next = match input {
                Input::Tick => member.apply_part(shared),
                _ => member.apply_rest(shared),
            };
            self.go(next);
            if self.is_applying() {
                return;
            }
        }
        let shared = &mut self.shared;
        if let Phase::Member(member) = &mut self.phase
            && due.is_some_and(|due| shared.now > due + shared.detector.answer())
        {
            let next = member.overslept(shared);
            self.go(next);
        }
        self.take(input);
        self.on_time();
    }

    /// Handles an input: first what it means in every phase, then what it means in the present one.
    fn take(&mut self, input: Input) {
        let shared = &mut self.shared;
        match &input {
            Input::LinkUp { peer, .. } if shared.outlaws.contains(*peer) => {
                return shared.out.push_back(Output::HangUp { peer: *peer });
            }
            Input::Message { from, .. } if shared.outlaws.contains(*from) => return,
            _ => {}
        }
        match &input {
            Input::LinkUp { peer, contact, rtt } => {
                shared.links.up(*peer, contact.clone(), *rtt, shared.now);
                shared.forget_told(*peer);
            }
            Input::LinkDown { peer } => shared.links.down(*peer, shared.now),
            Input::DialFailed { peer, .. } => shared.links.failed(*peer, shared.now),
            Input::Warm { speed } => {
                shared.speed.warm(*speed);
            }
            Input::Line { bytes_per_s } => {
                shared.keeping.line = u32::try_from(*bytes_per_s / 1000).unwrap_or(u32::MAX);
            }
            Input::Leave => shared.leaving = true,
            Input::Stalled(stalled) => shared.stalled = *stalled,
            Input::Revoke(revocation) => shared.revoke((**revocation).clone()),
            Input::Saved(saved) => shared.saved.clone_from(saved),
            Input::Restored { stepped, kept: None } => {
                shared.saved.retain(|saved| saved.stepped != *stepped);
            }
            Input::Tick
            | Input::Message { .. }
            | Input::Contribution { .. }
            | Input::Span(_)
            | Input::Restored { .. } => {}
        }
        let input = match input {
            Input::Message { from, message } => match self.admit(from, message) {
                Some((from, message)) if !self.shared.outlaws.contains(from) => {
                    Input::Message { from, message }
                }
                _ => return,
            },
            other => other,
        };
        let shared = &mut self.shared;
        match &input {
            Input::Message {
                from,
                message: Message::Status { finished, .. },
            } => shared.says_ended(*from, *finished),
            // Perhaps it had finished in another lineage, and has come over.
            Input::Message {
                from,
                message: Message::Follow { .. },
            } => shared.says_ended(*from, false),
            _ => {}
        }
        let input = match input {
            Input::Message { from, message } => match message {
                Message::Acquaintances { acquaintances } => return shared.meet(from, acquaintances),
                Message::Revoked(revocation) => {
                    shared.hear_revocation(from, (*revocation).clone());
                    Input::Revoke(revocation)
                }
                Message::Introduce { to } => return shared.links.introduce(&mut shared.out, from, to),
                Message::Introduced {
                    peer,
                    contact,
                    rtt_us,
                } => {
                    let rtt = Duration::from_micros(rtt_us.into());
                    return shared
                        .links
                        .introduced(&mut shared.out, from, (peer, contact), rtt);
                }
                message => Input::Message { from, message },
            },
            other => other,
        };
        let next = match &mut self.phase {
            Phase::Newcomer(newcomer) => newcomer.handle(input, shared),
            Phase::Member(member) => member.handle(input, shared),
            Phase::Lingering(lingering) => lingering.handle(input, shared),
            Phase::Gone => Next::Stay,
        };
        self.go(next);
    }

    /// The message for this peer and its author, if that has the right to send it now.
    fn admit(&mut self, from: PeerId, message: Message) -> Option<(PeerId, Message)> {
        if !self.may_say(from, true, &message) {
            return None;
        }
        let wrapped = matches!(message, Message::Relay { .. });
        let (author, message) = self.unwrap(from, message)?;
        let may = !wrapped || self.may_say(author, author == from, &message);
        (may && self.may_check(author, &message)).then_some((author, message))
    }

    /// Whether a peer has the right to send this now, over a link of its own or not.
    fn may_say(&mut self, peer: PeerId, linked: bool, message: &Message) -> bool {
        let column = match &self.phase {
            Phase::Newcomer(_) => Column::Newcomer,
            Phase::Member(_) => Column::Member,
            Phase::Lingering(_) => Column::Lingering,
            Phase::Gone => return false,
        };
        let (kind, view) = Kind::of(message);
        let able = rights::who(kind, self.when(view), column);
        // Roles are only computed where they matter.
        let may = able.meets(Roles::ANYBODY) || able.meets(self.roles(peer, linked));
        if !may {
            self.shared.refused.count(kind);
        }
        may
    }

    /// How an attempt relates to this peer's.
    fn when(&self, view: Option<ViewKey>) -> When {
        match (view, &self.phase) {
            (None, _) => When::Always,
            (Some(view), Phase::Member(member)) => When::in_attempt(view, member.view.key),
            (Some(view), _) => When::in_round(view, self.head().round.saturating_add(1)),
        }
    }

    /// The roles of another peer.
    fn roles(&self, peer: PeerId, linked: bool) -> Roles {
        let here = match &self.phase {
            Phase::Newcomer(newcomer) => Roles::SPONSOR.when(newcomer.has_asked(peer)),
            Phase::Member(member) => {
                let follower = Roles::FOLLOWER.when(member.sponsor.has(peer));
                Roles::MEMBER.when(member.view.contains(peer)).or(follower)
            }
            Phase::Lingering(lingering) => Roles::FOLLOWER.when(lingering.sponsor.has(peer)),
            Phase::Gone => Roles::NOBODY,
        };
        let known = Roles::KNOWN.when(self.shared.lineage.knows(peer));
        Roles::ANYBODY.or(Roles::LINKED.when(linked)).or(known).or(here)
    }

    fn on_time(&mut self) {
        let shared = &mut self.shared;
        shared.links.on_time(&mut shared.out, shared.now);
        let next = match &mut self.phase {
            Phase::Newcomer(newcomer) => newcomer.on_time(shared),
            Phase::Member(member) => member.on_time(shared),
            Phase::Lingering(lingering) => lingering.on_time(shared),
            Phase::Gone => Next::Stay,
        };
        self.go(next);
    }

    /// Changes the phase, as often as a phase asks for another.
    pub(crate) fn go(&mut self, mut next: Next) {
        loop {
            next = match next {
                Next::Stay => return,
                Next::Round(sponsor) => self.begin_round(sponsor),
                Next::Outcast(outcast) => self.begin_again(outcast),
                Next::Finish(exit) => {
                    let sponsor = self.take_sponsor();
                    self.linger(exit, sponsor)
                }
                Next::Exit(exit) => {
                    if matches!(exit, Exit::Left | Exit::Barred(_)) {
                        self.shared.say_goodbye();
                    }
                    self.shared.out.push_back(Output::Exit(exit));
                    self.phase = Phase::Gone;
                    Next::Stay
                }
            };
        }
    }

    fn begin_round(&mut self, sponsor: Sponsor) -> Next {
        let shared = &mut self.shared;
        if shared.head().finished(&shared.manifest) {
            return self.linger(Exit::Finished, sponsor);
        }
        shared.want_members();
        match Member::new(sponsor, shared) {
            Ok(mut member) => {
                shared.member_at = Some(shared.head().chain);
                let next = member.begin(shared);
                self.phase = Phase::Member(Box::new(member));
                next
            }
            Err(sponsor) => {
                if stands_aside(shared) {
                    sponsor.dismiss(shared);
                    self.phase = Phase::Lingering(Lingering::aside(shared));
                    return Next::Stay;
                }
                let reason = match shared.head().position(shared.me()) {
                    Some(_) => OutcastReason::NoMember,
                    None => OutcastReason::NotAMember,
                };
                self.join_again(Outcast::new(reason, None), sponsor)
            }
        }
    }

    fn begin_again(&mut self, outcast: Outcast) -> Next {
        if let Phase::Member(member) = &mut self.phase {
            member.keep_pending(&mut self.shared);
        }
        let sponsor = self.take_sponsor();
        self.join_again(outcast, sponsor)
    }

    fn join_again(&mut self, outcast: Outcast, sponsor: Sponsor) -> Next {
        let shared = &mut self.shared;
        let reason = outcast.reason;
        shared.tell(Event::Outcast { reason });
        sponsor.dismiss(shared);
        shared.leave_round();
        if shared.leaving {
            return Next::Exit(Exit::Left);
        }
        handover::leave(outcast.damaged, shared);
        shared.lineage.last = None;
        shared.barren = Barren::default();
        shared.spot = Spot::default();
        let newcomer = Newcomer::outcast(outcast.damaged, outcast.via, shared);
        self.phase = Phase::Newcomer(Box::new(newcomer));
        Next::Stay
    }

    fn linger(&mut self, exit: Exit, sponsor: Sponsor) -> Next {
        let lingering = Lingering::new(exit, sponsor, &mut self.shared);
        let next = lingering.on_time(&self.shared);
        self.phase = Phase::Lingering(lingering);
        next
    }

    /// The followers of a member whose phase is over.
    fn take_sponsor(&mut self) -> Sponsor {
        match &mut self.phase {
            Phase::Member(member) => std::mem::take(&mut member.sponsor),
            Phase::Lingering(lingering) => std::mem::take(&mut lingering.sponsor),
            _ => Sponsor::default(),
        }
    }

    /// The next thing to do; `None` if there is none.
    pub fn poll(&mut self) -> Option<Output> {
        self.shared.out.pop_front()
    }

    /// When [`Input::Tick`] is due, unless something else happens before.
    pub fn wake_at(&self) -> Option<Time> {
        let own = match &self.phase {
            Phase::Newcomer(newcomer) => Some(newcomer.wake_at(&self.shared)),
            Phase::Member(member) if member.is_applying() => return Some(self.shared.now),
            Phase::Member(member) => member.wake_at(&self.shared),
            Phase::Lingering(lingering) => Some(lingering.wake_at()),
            Phase::Gone => return None,
        };
        [self.shared.links.wake_at(), own].into_iter().flatten().min()
    }

    /// Whether a round is being applied. Let the network have its turn, then pass in [`Input::Tick`].
    pub fn is_applying(&self) -> bool {
        matches!(&self.phase, Phase::Member(member) if member.is_applying())
    }

    /// The state after the last committed round. A newcomer's may be incomplete.
    pub fn state(&self) -> &State {
        &self.shared.lineage.state
    }

    /// How it last continued alone, if it has.
    pub fn founder(&self) -> Option<&Founder> {
        self.shared.lineage.founder.as_ref()
    }

    /// The end of the ledger.
    pub fn head(&self) -> &Head {
        self.shared.head()
    }

    /// The state's digest at the head.
    pub fn digest(&self) -> Digest {
        self.shared.lineage.digest
    }

    /// The digest of what this peer holds at the head: of the state, which all members share; or, where the model is split over
    /// them, of its own parts, if it has any.
    pub fn held_digest(&self) -> Option<Digest> {
        match self.manifest().split {
            None => Some(self.digest()),
            Some(_) => self.state().kept.digest_of_all(),
        }
    }

    /// This peer's name.
    pub fn me(&self) -> PeerId {
        self.shared.me()
    }

    /// This peer's own settings.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The run.
    pub fn manifest(&self) -> &Manifest {
        &self.shared.manifest
    }

    /// Whether this peer is a member of the round in work.
    pub fn is_member(&self) -> bool {
        matches!(self.phase, Phase::Member(_))
    }

    /// Whether its user has asked it to leave.
    pub fn is_leaving(&self) -> bool {
        self.shared.leaving
    }

    /// The attempt that this peer takes part in, and all its members in ring order.
    pub fn view(&self) -> Option<(ViewKey, &[PeerId])> {
        match &self.phase {
            Phase::Member(member) => Some((member.view.key, &member.view.members)),
            _ => None,
        }
    }

    /// Messages that were dropped because their sender had no right to send them at that moment. Honest peers too
    /// send some too late, so a few mean nothing.
    pub fn refused(&self) -> &Refused {
        &self.shared.refused
    }

    /// Bytes that this peer holds on behalf of others, besides the state: waiting and finished pieces, and what it
    /// remembers of them. The bound is a few vectors and a few hundred KiB, whatever others send (see
    /// `wire/message.rs`).
    pub fn buffered_bytes(&self) -> usize {
        let here = match &self.phase {
            Phase::Member(m) => m.reduce.bytes() + m.agreement.bytes() + m.sponsor.bytes() + m.tensor_bytes(),
            Phase::Newcomer(newcomer) => newcomer.bytes(),
            Phase::Lingering(lingering) => lingering.sponsor.bytes(),
            Phase::Gone => 0,
        };
        self.shared.bytes() + here
    }
}

/// Whether this peer stands aside since the last round.
fn stands_aside(shared: &Shared) -> bool {
    let mut aside = shared.head().asides.since(shared.head().round);
    aside.any(|aside| aside.peer == shared.me())
}
