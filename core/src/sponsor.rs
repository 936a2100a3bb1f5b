//! What a member does for newcomers: it forwards each finished piece and each commit to those who follow
//! it, hands out blocks of its state, and names those who have caught up in its next header.

use crate::id::{Contact, PeerId, Round};
use crate::ledger::Member;
use crate::peer::{Lane, Peer, Phase};
use crate::wire::{Message, Standing};

/// Bytes of vectors that may be on their way to a follower before pieces are no longer forwarded to it, if that is more
/// than [`LEAST_LAG`] rounds: a small model's rounds may be shorter than the way to a newcomer, or quicker than it can
/// follow. As a member it will be waited for, but for that it has to be let in first.
const LAG_BYTES: usize = 32 << 20;

/// A newcomer may be so many rounds behind, however large their vectors.
const LEAST_LAG: Round = 2;

/// A newcomer that follows this peer.
#[derive(Debug)]
pub(crate) struct Follower {
    contact: Contact,
    /// Its speed, once it has caught up.
    ready: Option<u64>,
    /// The round that it began from: what it said at an earlier one counts no more.
    since: Round,
    sent: Round,
    applied: Round,
    /// Whether this attempt's pieces are forwarded.
    live: bool,
    /// Whether a round was not forwarded: it must begin again.
    gap: bool,
}

impl Follower {
    /// Decides whether the next attempt is forwarded, if it may be so many rounds behind.
    pub(crate) fn begin_attempt(&mut self, lag: Round) {
        self.live = !self.gap && self.sent - self.applied.min(self.sent) <= lag;
    }
}

impl Peer {
    /// Rounds that a follower may be behind before pieces are no longer forwarded to it. What it is behind when it is
    /// let in, the others wait for, so it must not be much.
    pub(crate) fn lag(&self) -> Round {
        let vector = 4 * self.manifest.layout.len.max(1);
        ((LAG_BYTES / vector) as Round).clamp(LEAST_LAG, self.settings.lag)
    }

    /// A newcomer asks to follow.
    pub(crate) fn on_follow(&mut self, from: PeerId, have: Option<Standing>, contact: Contact) {
        self.linger_on();
        if self.followers.contains_key(&from) {
            // It begins again: perhaps what it was given did not fit together.
            self.examine_state();
        }
        // A peer behind a wildcard or NAT does not know all its addresses; the link that it opened shows one.
        let contact = self.links.known_contact(from, contact);
        let able = match &self.phase {
            Phase::Member(_) => true,
            Phase::Lingering { .. } => self.head.finished(&self.manifest),
            Phase::Joining(_) | Phase::Gone => false,
        };
        if !able {
            return self.refuse(from);
        }
        let have = have.map(|h| h.chain);
        let current = have == Some(self.head.chain);
        let previous = self.last.as_ref().filter(|last| have == Some(last.before.chain));
        let last = previous.map(|last| (last.view, last.record.clone(), last.digest));
        let resumes = current || last.is_some();
        // A member that asks to follow is no member any more, unless it has just become one and not heard.
        let in_view = matches!(&self.phase, Phase::Member(w) if w.view.contains(from));
        let fresh = self
            .last
            .as_ref()
            .is_some_and(|last| last.record.headers.iter().all(|h| h.peer != from));
        // Had it heard, it would hold the present head, and might have left the attempt in work already.
        let member = in_view && fresh && last.is_some();
        let following = Message::Following {
            head: self.head.clone(),
            digest: self.digest,
            resumes: have.filter(|_| resumes),
            member,
        };
        let round = self.head.round;
        let applied = round - u64::from(last.is_some());
        let follower = Follower {
            contact,
            ready: None,
            since: applied,
            sent: round,
            applied,
            live: true,
            gap: false,
        };
        self.followers.insert(from, follower);
        self.links.send(&mut self.out, from, Lane::Bulk, following);
        if let Some((view, record, digest)) = last {
            self.links.send(
                &mut self.out,
                from,
                Lane::Bulk,
                Message::Committed { view, record, digest },
            );
        }
        self.forward_so_far(from);
        if in_view && !member {
            self.suspect([from].into());
        }
    }

    /// Tells a newcomer that this peer cannot help it.
    fn refuse(&mut self, newcomer: PeerId) {
        let standing = self.whole_standing();
        let message = Message::NotMember { standing };
        self.links.send(&mut self.out, newcomer, Lane::Control, message);
    }

    /// Compares the state with its digest. Damaged, a member among others is none any more; a lone one has
    /// nothing else to go on from.
    fn examine_state(&mut self) {
        let actual = self.state.digest();
        let Phase::Member(w) = &self.phase else { return };
        if actual == self.digest {
            return;
        }
        if w.view.members.len() > 1 {
            return self.outcast_damaged("its state was damaged");
        }
        self.digest = actual;
    }

    /// The follower has fallen too far behind: it begins again from here.
    pub(crate) fn restart_follower(&mut self, peer: PeerId) {
        let following = Message::Following {
            head: self.head.clone(),
            digest: self.digest,
            resumes: None,
            member: false,
        };
        let round = self.head.round;
        if let Some(f) = self.followers.get_mut(&peer) {
            *f = Follower {
                contact: f.contact.clone(),
                ready: None,
                since: round,
                sent: round,
                applied: round,
                live: true,
                gap: false,
            };
            self.links.send(&mut self.out, peer, Lane::Bulk, following);
            self.forward_so_far(peer);
        }
    }

    /// Forwards what is finished of the attempt in work to a follower that comes in its middle. It would have to ask
    /// for it otherwise, and rounds may go by faster than it asks: at worst it would be admitted while it lacks one.
    fn forward_so_far(&mut self, peer: PeerId) {
        let Phase::Member(w) = &self.phase else { return };
        // To one that is a member already they come on its own place in the ring, and from nobody else.
        if w.view.contains(peer) {
            return;
        }
        for message in w.reduce.gathered.messages() {
            self.links.send(&mut self.out, peer, Lane::Bulk, message);
        }
    }

    /// A piece is finished here.
    pub(crate) fn forward_piece(&mut self, message: &Message) {
        let Phase::Member(w) = &self.phase else { return };
        let newcomers = self.followers.iter().filter(|(peer, _)| !w.view.contains(**peer));
        for (peer, _) in newcomers.filter(|(_, f)| f.live) {
            self.links.send(&mut self.out, *peer, Lane::Bulk, message.clone());
        }
    }

    /// A round is committed here: tells the followers, and lets go of those who are members now.
    pub(crate) fn forward_commit(&mut self) {
        let lag = self.lag();
        let Some(last) = &self.last else { return };
        let (view, record, digest) = (last.view, last.record.clone(), last.digest);
        for (peer, f) in &mut self.followers {
            if f.live {
                let message = Message::Committed {
                    view,
                    record: record.clone(),
                    digest,
                };
                self.links.send(&mut self.out, *peer, Lane::Bulk, message);
                f.sent = view.round;
            } else {
                f.gap = true;
                f.ready = None;
            }
            f.begin_attempt(lag);
        }
        let head = &self.head;
        self.followers.retain(|peer, _| head.position(*peer).is_none());
    }

    /// A follower has applied a round.
    pub(crate) fn on_followed(&mut self, from: PeerId, round: Round) {
        let lag = self.lag();
        let Some(f) = self.followers.get_mut(&from) else {
            return;
        };
        f.applied = f.applied.max(round);
        if f.gap && f.applied >= f.sent {
            self.restart_follower(from);
        } else if !f.live {
            f.begin_attempt(lag);
            if f.live {
                self.forward_so_far(from);
            }
        }
    }

    /// A follower has caught up to a round, or not any more.
    pub(crate) fn on_ready(&mut self, from: PeerId, speed: Option<u64>, round: Round) {
        let Some(speed) = speed else {
            if self.followers.remove(&from).is_some() {
                // Perhaps what it was given did not fit together.
                self.examine_state();
            }
            return;
        };
        if let Some(f) = self.followers.get_mut(&from).filter(|f| round >= f.since) {
            f.ready = Some(speed.max(1));
            self.start_if_ready();
        }
    }

    /// A newcomer fetches a block of the state.
    pub(crate) fn on_fetch(&mut self, from: PeerId, block: u32) {
        self.linger_on();
        if !matches!(self.phase, Phase::Member(_) | Phase::Lingering { .. }) {
            return self.refuse(from);
        }
        if let Some(data) = self.state.read_block(&self.manifest, block) {
            let data = data.into();
            let message = Message::Block {
                block,
                round: self.head.round,
                chain: self.head.chain,
                data,
            };
            self.links.send(&mut self.out, from, Lane::Bulk, message);
        }
    }

    /// Whether a follower waits to become a member.
    pub(crate) fn has_ready(&self) -> bool {
        self.followers.values().any(|f| f.live && f.ready.is_some())
    }

    /// The followers to name in a header: only those to whom this round is forwarded, since who is not told of
    /// the round that admits it does not come.
    pub(crate) fn ready_followers(&self) -> Vec<Member> {
        let ready = self
            .followers
            .iter()
            .filter(|(_, f)| f.live)
            .filter_map(|(peer, f)| Some((peer, f, f.ready?)));
        ready
            .map(|(peer, f, speed)| Member {
                peer: *peer,
                speed,
                contact: f.contact.clone(),
            })
            .collect()
    }
}
