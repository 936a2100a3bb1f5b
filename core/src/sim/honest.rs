//! The conditions on honest peers among liars. They blame each liar whose lie shows, and nobody else. They commit
//! no statement of an honest peer that it has not made. And their rounds go on.

use super::check::duties::Duty;
use super::check::stands;
use super::node::Node;
use super::world::World;
use crate::access::signature::{Attempt, Signature, Signed};
use crate::base::id::{Digest, PeerId};
use crate::base::time::Time;
use crate::ledger::decision::{HeldSuspicion, Suspicion};
use crate::ledger::fork::Fork;
use crate::ledger::seal::Finished;
use crate::ledger::{Header, Newcomer};
use crate::peer::member::Member;
use crate::peer::{Change, Commit, Event, Exit, Input, Output, Peer, Phase, Reason};
use crate::run::config::Topology;
use crate::state::State;
use crate::wire::{Message, ViewKey};

/// A liar whose lie was seen in an attempt is out of it within this time, if there are no other faults.
const OUT_US: u64 = 30_000_000;

/// While there are lies, but no other faults, some honest member commits a round within this time plus some rounds.
const STALLED_US: u64 = 120_000_000;

impl World {
    /// What an input obliges an honest peer to do.
    pub(super) fn duty(&self, peer: &Peer, now: Time, input: &Input) -> Duty {
        let duty = Duty::of(peer, input);
        let Input::Message { from, message } = input else {
            return duty;
        };
        if !self.is_liar(*from) {
            return duty;
        }
        match duty {
            _ if peer.shared.outlaws.contains(*from) => Duty::None,
            Duty::None if self.is_invented(peer, message) => Duty::Doubt(*from),
            Duty::None | Duty::Yield => self.blame(peer, now, *from, message),
            duty => duty,
        }
    }

    /// Whether a message by itself shows that its sender lies.
    fn blame(&self, peer: &Peer, now: Time, from: PeerId, message: &Message) -> Duty {
        let Phase::Member(member) = &peer.phase else {
            return Duty::None;
        };
        // A peer that has overslept may have stopped the attempt by then.
        let due = peer.wake_at().map(|due| due + peer.shared.detector.answer());
        let late = due.is_some_and(|due| now > due);
        if late || !member.view.contains(from) || member.agreement.suspects(from) {
            return Duty::None;
        }
        let here = member.view.key;
        let attempt = member.view.attempt(peer.head());
        let scheme = peer.shared.scheme();
        // Whether it has said before that it can commit.
        let signed = |by: PeerId, suspects: &[PeerId], signature: &Signature| {
            let held = || scheme.holds(by, &attempt, &HeldSuspicion(suspects), signature);
            match scheme.holds(by, &attempt, &Suspicion(suspects), signature) {
                true => Some(false),
                false => held().then_some(true),
            }
        };
        let false_word = match message {
            Message::Flush {
                view,
                suspects,
                signature,
            } => *view == here && signed(from, suspects, signature).is_none(),
            Message::Decision {
                view,
                suspects,
                proof,
            } => {
                let rest = member.view.members.iter().filter(|m| !suspects.contains(m));
                let complete = !proof.is_empty() && rest.eq(proof.iter().map(|(peer, _)| peer));
                let said: Option<Vec<bool>> = proof.iter().map(|(by, s)| signed(*by, suspects, s)).collect();
                // An attempt that all members left can commit is not given up.
                let proven = said.is_some_and(|held| held.contains(&false));
                *view == here && !(complete && proven)
            }
            Message::Committed { view, record, .. } => {
                let members = record.headers.iter().map(|h| &h.peer);
                let all = members.eq(&member.view.members);
                *view == here && !(all && record.headers.iter().all(|h| self.is_signed(h, &attempt)))
            }
            Message::Piece { view, headers, .. } => {
                *view == here && self.is_forged(member, peer, headers, &attempt)
            }
            _ => false,
        };
        if false_word {
            Duty::Blame(here, from)
        } else {
            Duty::None
        }
    }

    /// Whether a lineage is shown in the name of an honest peer that was a member where it parted from this peer's,
    /// and that has not signed for it.
    fn is_invented(&self, peer: &Peer, message: &Message) -> bool {
        let Message::Status {
            standing,
            places,
            claim: Some(claim),
            ..
        } = message
        else {
            return false;
        };
        let attempt = claim.attempt();
        let common = |place: &Fork| standing.chain == place.chain || places.contains(&place.chain);
        let Some(parted) = peer.head().places().find(common) else {
            return false;
        };
        let counts = |by: PeerId| by != peer.me() && parted.members.contains(&by);
        let mut headers = claim.record.headers.iter();
        headers.any(|h| counts(h.peer) && !self.is_liar(h.peer) && !self.is_signed(h, &attempt))
    }

    fn is_signed(&self, header: &Signed<Header>, attempt: &Attempt) -> bool {
        header.is_by(header.peer, attempt, self.scheme)
    }

    /// Whether an accepted piece carries a header that its author has not signed.
    fn is_forged(&self, member: &Member, peer: &Peer, headers: &[Signed<Header>], attempt: &Attempt) -> bool {
        let ignored = member.agreement.told().is_some() || member.agreement.is_frozen(&peer.shared);
        let known = member.reduce.known_headers();
        let new = |header: &&Signed<Header>| known.iter().all(|known| known.content != header.content);
        !ignored && headers.iter().filter(new).any(|h| !self.is_signed(h, attempt))
    }

    /// Whether a peer blames a liar for a statement in an attempt, or has nothing more to do with it there. An
    /// attempt that all can commit is committed all the same.
    pub(super) fn blames(&self, i: usize, view: ViewKey, liar: PeerId, outputs: &[Output]) -> bool {
        let Some(peer) = &self.nodes[i].peer else {
            return true;
        };
        let names = |message: &Message| match message {
            Message::Flush { suspects, .. } => suspects.contains(&liar),
            _ => false,
        };
        let flushes = |o: &Output| matches!(o, Output::Send { message, .. } if names(message));
        match &peer.phase {
            _ if outputs.iter().any(flushes) => true,
            _ if peer.shared.outlaws.contains(liar) => true,
            Phase::Member(member) if member.view.key == view => member.agreement.suspects(liar),
            Phase::Member(member) => !member.view.contains(liar),
            _ => true,
        }
    }

    /// An honest peer reports something about another.
    pub(super) fn on_blame(&mut self, i: usize, event: &Event) {
        let (peer, why) = match event {
            Event::Outlawed { peer, .. } => (*peer, "cuts it off".to_string()),
            Event::Member {
                peer,
                change: Change::Failed | Change::Evicted,
                reason,
            } => {
                if *reason == Reason::Diverged {
                    self.on_diverged(i, *peer);
                }
                let is_lie = matches!(
                    reason,
                    Reason::Header(_)
                        | Reason::FalseCommit
                        | Reason::FalseDecision
                        | Reason::Forged
                        | Reason::Convicted
                        | Reason::FalseValues
                        | Reason::Violation
                );
                if self.is_liar(*peer) {
                    self.stats.caught += 1;
                }
                match is_lie {
                    true => (*peer, reason.to_string()),
                    false => return,
                }
            }
            _ => return,
        };
        if !self.is_liar(peer) {
            let (me, it) = (&self.nodes[i].name, self.name(peer));
            self.fail(format!("{me} takes {it}, which is honest, for a liar: {why}"));
        }
    }

    /// The states of two honest members differ: an owner that signed different sums for them must be convicted.
    fn on_diverged(&mut self, i: usize, other: PeerId) {
        let lineage = |i: usize| Some(&self.nodes[i].peer.as_ref()?.shared.lineage);
        let both = self.by_id.get(&other).and_then(|j| lineage(i).zip(lineage(*j)));
        let owner = both.and_then(|(mine, theirs)| {
            let view = mine.last.as_ref()?.view;
            let (mine, theirs) = (mine.seals.of(view)?, theirs.seals.of(view)?);
            let mut pairs = mine.members.iter().zip(mine.seals.iter().zip(&theirs.seals));
            let owner = pairs.find(|(_, (one, other))| one.content != other.content)?.0;
            Some(*owner)
        });
        let honest = self.by_id.get(&other).is_some_and(|j| !self.nodes[*j].is_liar());
        if let Some(owner) = owner.filter(|_| honest) {
            self.lies.sealed_twice.entry(owner).or_insert(self.now);
        }
    }

    /// Checks that committed sums match the owners' seals, if owners sign.
    fn check_seals(&self, peer: &Peer, commit: &Commit) -> Result<(), String> {
        let lineage = &peer.shared.lineage;
        let last = lineage.last.as_ref().filter(|last| last.view == commit.view);
        let Some(last) = last else { return Ok(()) };
        let n = last.record.headers.len();
        let before = self.ledger.topology(last.before.chain);
        if n < 2 || before != Some(Topology::Direct) {
            return Ok(());
        }
        let sealed = lineage.seals.of(commit.view);
        let sealed = sealed.ok_or("nobody has signed its sums")?;
        for (chunk, (owner, seal)) in sealed.members.iter().zip(&sealed.seals).enumerate() {
            let pieces = 0..last.sums.cut().pieces(chunk) as u32;
            let pieces = pieces.filter_map(|piece| lineage.last_piece(chunk as u16, piece));
            let hashes: Vec<Digest> = pieces.map(|data| Digest::of(&data)).collect();
            let same = Finished::of(&hashes) == seal.content;
            if !same || !seal.is_by(*owner, &sealed.attempt, self.scheme) {
                let owner = self.name(*owner);
                return Err(format!("it holds another chunk of {owner} than that has signed"));
            }
        }
        Ok(())
    }

    /// An honest peer sends its header.
    pub(super) fn note_said(&mut self, i: usize, message: &Message) {
        if self.plan.liars.is_none() || self.nodes[i].is_liar() {
            return;
        }
        match message {
            Message::Piece { view, headers, .. } => {
                let me = self.nodes[i].id;
                for header in headers.iter().filter(|h| h.peer == me) {
                    self.said.insert((*view, me), header.content.clone());
                }
            }
            Message::Relay { envelope, frame } if envelope.from == self.nodes[i].id => {
                if let Ok(message) = Message::decode(frame.clone()) {
                    self.note_said(i, &message);
                }
            }
            _ => {}
        }
    }

    /// An honest member commits a round: honest authors have made the statements in it, its numbers are finite, and
    /// with at most one liar no honest member has committed another record.
    pub(super) fn check_lies(&mut self, i: usize, commit: &Commit) -> Result<(), String> {
        self.lies.committed_at = self.now;
        let me = self.nodes[i].id;
        for header in &commit.record.headers {
            let run = self.manifest.run_id();
            let invented = |n: &&Newcomer| !n.ready.is_by(n.peer(), &run, self.scheme);
            if let Some(newcomer) = header.ready.iter().find(invented) {
                return Err(format!(
                    "{} has not said that it is ready",
                    self.name(newcomer.peer())
                ));
            }
            if header.peer == me || self.is_liar(header.peer) {
                continue;
            }
            if self.said.get(&(commit.view, header.peer)) != Some(&header.content) {
                return Err(format!(
                    "{} has not said {:?}",
                    self.name(header.peer),
                    header.content
                ));
            }
        }
        // Two liars can make some members hold another header of one of them, with the other's help.
        let one_liar = commit
            .record
            .headers
            .iter()
            .filter(|h| self.is_liar(h.peer))
            .count()
            < 2;
        if one_liar {
            let said: Vec<&Header> = commit.record.headers.iter().map(|h| &h.content).collect();
            let said = Digest::of(&postcard::to_allocvec(&said).expect("plain data"));
            let first = *self.lies.committed.entry(commit.view).or_insert((said, i));
            if first.0 != said {
                let other = &self.nodes[first.1].name;
                return Err(format!(
                    "{other} has committed another record of {:?}",
                    commit.view
                ));
            }
        }
        if let Some(peer) = &self.nodes[i].peer {
            self.check_seals(peer, commit)?;
        }
        let state = self.nodes[i].peer.as_ref().map(|peer| peer.state());
        let mut values = state.into_iter().flat_map(State::floats).flatten();
        // Values that can be summed but are far from what any device computes ruin any model.
        if self.lies.spoilt.is_empty() && values.any(|value| !value.is_finite()) {
            return Err("its state is not finite".into());
        }
        Ok(())
    }

    /// Whether a peer can ask hardly anybody but liars: most of the members that it knows, or the peers in its
    /// ticket.
    pub(super) fn knows_liars(&self, node: &Node, peer: &Peer) -> bool {
        let known = peer.head().full_members().filter(|m| *m != node.id);
        let (liars, honest): (Vec<PeerId>, Vec<PeerId>) = known.partition(|m| self.is_liar(*m));
        let by_liar = node.sponsor.is_some_and(|sponsor| self.nodes[sponsor].is_liar());
        // Its members may be a liar's invention, so the peers that it hears count too.
        let here = self.nodes.iter().position(|other| other.id == node.id);
        let hears =
            |other: &usize| here.is_some_and(|here| here != *other && self.net.is_linked(here, *other));
        let mut heard = (0..self.nodes.len()).filter(hears).peekable();
        let hears_liars_alone = heard.peek().is_some() && heard.all(|other| self.nodes[other].is_liar());
        liars.len() > honest.len() || (honest.is_empty() && by_liar) || hears_liars_alone
    }

    /// Whether there are peers, but none holds a whole state or is about to begin with one.
    pub(super) fn is_state_gone(&self) -> bool {
        self.starting == 0 && self.is_nobody_whole()
    }

    /// Whether there are peers, but none holds a whole state.
    pub(super) fn is_nobody_whole(&self) -> bool {
        let full = self.nodes.iter().filter(|n| !n.is_guest);
        let mut alive = full.filter_map(|n| n.peer.as_ref()).peekable();
        let whole = |p: &Peer| stands(p).is_some() || p.holds_whole_state();
        alive.peek().is_some() && !alive.any(|p| whole(p))
    }

    /// Whether a peer has cut off as proven liars all peers that hold a whole state.
    pub(super) fn is_state_with_outlaws(&self, me: &Peer) -> bool {
        let full = self.nodes.iter().filter(|n| !n.is_guest);
        let whole = |n: &&Node| {
            let peer = n.peer.as_ref();
            peer.is_some_and(|p| stands(p).is_some() || p.holds_whole_state())
        };
        let mut whole = full.filter(whole);
        self.starting == 0 && whole.all(|n| n.is_liar() && me.shared.outlaws.proof(n.id).is_some())
    }

    /// Whether a peer that comes now, by this sponsor, comes when the honest peers are done and only a liar is left
    /// to join.
    pub(super) fn is_late(&self, sponsor: Option<usize>) -> bool {
        let lingers = |peer: &Peer| !peer.is_member() && stands(peer).is_some();
        let is_done = |n: &Node| n.exit == Some(Exit::Finished) || n.peer.as_deref().is_some_and(lingers);
        sponsor.is_some_and(|s| self.nodes[s].is_liar()) && self.honest().any(is_done)
    }

    /// Rounds go on despite liars, and without those that were seen to lie.
    pub(super) fn check_pace_among_liars(&mut self) {
        let Some(since) = self.lies.since else { return };
        let busy = self.healed_at.is_some() || !self.plan.faults.is_empty() || self.hopeless;
        if busy || !self.honest().any(Node::is_alive) {
            return;
        }
        let nodes = &self.nodes;
        let is_in = |i: usize, view| {
            nodes[i]
                .peer
                .as_ref()
                .is_some_and(|p| p.view().is_some_and(|v| v.0 == view))
        };
        self.lies.seen.retain(|(i, view, _), _| is_in(*i, *view));
        let late = self.lies.seen.iter().find(|(_, at)| self.now > *at + OUT_US);
        if let Some(((i, view, liar), _)) = late {
            let (name, liar) = (&self.nodes[*i].name, self.name(*liar));
            let situation = self.situation();
            return self.fail(format!(
                "{name} is still with {liar} in {view:?}, whose lie it has seen: {situation}"
            ));
        }
        let proven = |liar: PeerId| {
            let peers = self.honest().filter_map(|n| n.peer.as_ref());
            peers.into_iter().any(|p| p.shared.outlaws.proof(liar).is_some())
        };
        let mut twice = self.lies.sealed_twice.iter();
        if let Some((liar, _)) = twice.find(|(liar, at)| self.now > **at + OUT_US && !proven(**liar)) {
            let why = format!(
                "{} has signed two sums, and nobody holds that against it",
                self.name(*liar)
            );
            return self.fail(why);
        }
        if !self.hold_all_honestly() || !self.meet_honestly() {
            self.lies.committed_at = self.now;
            return;
        }
        let patience = STALLED_US + (10.0 * self.longest_round_us()) as u64;
        let last = since.max(self.lies.committed_at);
        if self.now > last + patience {
            self.fail(format!(
                "no honest member has committed for so long: {}",
                self.situation()
            ));
        }
    }
}
