//! The ways in which a liar breaks the protocol: what it says instead of what its peer wants to say, and what it says when
//! its peer says nothing. It knows the protocol, signs what it says in its own name, and has the keys of those that it is
//! in league with. When it lies, and to whom it may, is in `liars`.

use super::resign::resign;
use super::rng::Rng;
use super::twist::Twist;
use crate::check::{MAX_COMPUTE_US, MAX_SPEED};
use crate::codec::Codec;
use crate::collective::Assembly;
use crate::config::Settings;
use crate::conviction::Conviction;
use crate::decision::Suspicion;
use crate::id::{Contact, Digest, PeerId};
use crate::invitation::{Admission, Chain, Invitation, Revocation, Role};
use crate::ledger::{Header, Newcomer, Ready, Record};
use crate::peer::{Peer, Phase};
use crate::random::mix;
use crate::relayed::Relayed;
use crate::room::Room;
use crate::seal::Finished;
use crate::signature::{Attempt, Key, Signed};
use crate::tickets::Barred;
use crate::wire::{Claim, Doing, Lane, Leg, Message, Standing, ViewKey};
use bytes::Bytes;
use std::fmt;

/// Questions of a flood.
const FLOOD: u64 = 100;

/// Kinds of lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lie {
    /// Some members are told another header than others.
    Equivocate,
    /// All are told the same header, and it is not true: speed, time, loss, samples, state, what it carries on, newcomers,
    /// goodbye.
    Claim,
    /// The device's values, samples or time are others than it made.
    Contribution,
    /// Values that others are to add to are not what they should be.
    Partial,
    /// Finished values are not what was summed, for all or for one.
    Finished,
    /// Some get another finished chunk than others, and each the hash of it, signed.
    Sums,
    /// What only others could have signed is said in their name, or changed on its way.
    Forge,
    /// Members that are there are suspected, others by each word.
    Suspect,
    /// A commit or a decision is told that was not, or before others can know.
    Outcome,
    /// Headers are said to differ that do not, and guilt to be proven that is not.
    Differ,
    /// One member gets nothing, or nobody gets values.
    Withhold,
    /// Nobody gets anything.
    Silent,
    /// Whoever asks is told something else than what is done.
    Alive,
    /// Newcomers are invented, with keys of their own.
    Invent,
    /// A newcomer says that it is ready, and is not.
    Ready,
    /// Tickets of others are taken back by a key that may not, or by one's own all that it has made; what others took back
    /// is said again.
    Revoke,
    /// Whoever asks to be let in is told that it may not.
    Bar,
    /// Newcomers are given another state than the run's.
    State,
    /// What was said before is said again, by whomever it was said.
    Replay,
    /// More is asked than could be answered.
    Flood,
    /// It leaves and stays, and tells of others where they are not.
    Leave,
    /// Any field of any message is another.
    Twist,
    /// Its lineage counts more samples than any.
    Standing,
    /// The next keeper of a part gets another sum than the part's.
    Pass,
    /// It says that it keeps, learns or drops other parts than it does, and of those that it keeps that they are others.
    Keep,
    /// Who learns a part gets other moments.
    Moments,
    /// Other activations and gradients go on than were computed, or twice, or of another place; or others are asked for.
    Tensor,
    /// Its word comes before it holds its sums, or tells other squares than they have.
    Word,
    /// It says that it can commit before it can, or does not say so.
    Held,
}

impl Lie {
    /// All that are drawn in every world.
    pub const DRAWN: [Self; 23] = [
        Self::Equivocate,
        Self::Claim,
        Self::Contribution,
        Self::Partial,
        Self::Finished,
        Self::Sums,
        Self::Forge,
        Self::Suspect,
        Self::Outcome,
        Self::Differ,
        Self::Withhold,
        Self::Silent,
        Self::Alive,
        Self::Invent,
        Self::Ready,
        Self::Revoke,
        Self::Bar,
        Self::State,
        Self::Replay,
        Self::Flood,
        Self::Leave,
        Self::Twist,
        Self::Standing,
    ];

    /// Those that only keepers can tell.
    pub const OF_KEEPERS: [Self; 3] = [Self::Pass, Self::Keep, Self::Moments];

    /// Those that only holders of a model's spans can tell.
    pub const OF_SPANS: [Self; 3] = [Self::Tensor, Self::Word, Self::Held];
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A lie that is told for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    pub lie: Lie,
    /// In virtual time.
    pub until: u64,
    /// Who is lied to, where it is not all.
    pub victim: PeerId,
    /// How many of the messages that it fits.
    pub share: f64,
    /// Whether it also says what its peer has no reason to say.
    pub invents: bool,
    /// What makes it the same lie each time where it has to be.
    pub salt: u64,
}

/// A liar about to say something.
pub(super) struct Speaker<'a> {
    pub episode: Episode,
    pub twist: Twist<'a>,
    /// Its own state machine.
    pub peer: &'a Peer,
    /// Its own key, and then those of its league.
    pub keys: &'a [Key],
    /// What it has heard and said.
    pub heard: &'a [Message],
}

impl Speaker<'_> {
    pub(super) fn rng(&mut self) -> &mut Rng {
        self.twist.rng
    }

    /// The same choice whenever it is made about this.
    pub(super) fn choice(&self, about: u64) -> Rng {
        Rng::new(mix(self.episode.salt ^ about))
    }

    fn is_league(&self, peer: PeerId) -> bool {
        self.keys.iter().any(|key| key.peer() == peer)
    }

    /// The lineage that an attempt goes on from.
    pub(super) fn chain(&self, view: ViewKey) -> Digest {
        let last = self.peer.shared.lineage.last.as_ref();
        match last.filter(|last| view.round <= last.view.round) {
            Some(last) => last.before.chain,
            None => self.peer.head().chain,
        }
    }

    /// Signs anew what is said in the league's name.
    fn sign(&self, message: &mut Message) {
        let view = match message {
            Message::Piece { view, .. }
            | Message::Headers { view, .. }
            | Message::Committed { view, .. }
            | Message::Flush { view, .. }
            | Message::Decision { view, .. } => Some(*view),
            _ => None,
        };
        let chain = view.map_or(self.peer.head().chain, |view| self.chain(view));
        for key in self.keys {
            resign(message, key, chain, self.twist.root.run);
        }
    }

    /// What goes to a peer instead of a message.
    pub fn instead(&mut self, to: PeerId, message: Message) -> Vec<Message> {
        let Episode { share, victim, .. } = self.episode;
        if !self.rng().chance(share) {
            return vec![message];
        }
        let one = to == victim;
        let mut said = message;
        match self.episode.lie {
            Lie::Equivocate if self.choice(u64::from(to.0[0])).chance(0.5) => {
                self.headers(&mut said, |_, header| header.compute_us ^= 1);
            }
            Lie::Claim => self.headers(&mut said, Self::claim),
            Lie::Partial => self.values(&mut said, Leg::Partial),
            Lie::Finished if one || self.choice(1).chance(0.5) => self.values(&mut said, Leg::Finished),
            Lie::Sums if one || self.choice(u64::from(to.0[0])).chance(0.3) => self.sums(to, &mut said),
            Lie::Forge => self.forge(&mut said),
            Lie::Suspect => self.suspect(&mut said),
            Lie::Outcome => {
                if let Message::Piece { view, .. } = said {
                    let told = self.outcome(view);
                    return std::iter::once(said).chain(told).collect();
                }
            }
            Lie::Differ => {
                if let Message::Piece { all, .. } = &mut said {
                    *all = Some(Digest([self.rng().next() as u8; 32]));
                }
            }
            Lie::Withhold if self.choice(2).chance(0.5) => {
                return if one { Vec::new() } else { vec![said] };
            }
            Lie::Withhold if matches!(said, Message::Piece { .. }) => return Vec::new(),
            Lie::Silent => return Vec::new(),
            Lie::Alive => self.alive(&mut said),
            Lie::State => self.state(to, &mut said),
            Lie::Revoke => self.headers(&mut said, Self::revoke),
            Lie::Bar => self.bar(&mut said),
            Lie::Pass | Lie::Keep | Lie::Moments => self.keep(&mut said),
            Lie::Tensor | Lie::Word | Lie::Held => return self.span(said),
            Lie::Replay => {
                let again = self.again(to);
                return std::iter::once(said).chain(again).collect();
            }
            Lie::Leave => {
                if let Message::Status { finished, .. } = &mut said {
                    *finished = true;
                }
            }
            Lie::Twist => {
                self.twist.message(&mut said);
                self.sign(&mut said);
            }
            Lie::Standing => {
                if let Message::Status {
                    standing,
                    claim,
                    member,
                    ..
                } = &mut said
                {
                    *member = true;
                    (*standing, *claim) = self.invented_lineage(*standing, claim.take());
                }
            }
            _ => {}
        }
        vec![said]
    }

    /// An invented lineage, shown to somebody who has not asked.
    fn status(&mut self) -> Message {
        let lineage = &self.peer.shared.lineage;
        let places = lineage.places();
        let (standing, claim) = self.invented_lineage(lineage.standing(), lineage.claim());
        Message::Status {
            standing,
            places,
            claim,
            member: true,
            finished: false,
        }
    }

    /// A lineage that counts more than any, and what is shown of it: nothing, what the league can sign, or somebody else's.
    fn invented_lineage(
        &mut self,
        real: Standing,
        shown: Option<Box<Claim>>,
    ) -> (Standing, Option<Box<Claim>>) {
        let mut rng = self.choice(real.samples);
        let standing = Standing {
            samples: real.samples + 1_000_000,
            round: real.round + 1_000,
            chain: Digest([7; 32]),
        };
        let Some(mut claim) = shown.filter(|_| rng.chance(0.7)) else {
            return (standing, None);
        };
        claim.samples += 1_000_000;
        claim.record.round += rng.below(1_000);
        if rng.chance(0.7) {
            let keys = &self.keys;
            claim
                .record
                .headers
                .retain(|h| keys.iter().any(|key| key.peer() == h.peer));
        }
        let attempt = claim.attempt();
        for header in &mut claim.record.headers {
            let own = self.keys.iter().find(|key| key.peer() == header.peer);
            if let Some(key) = own {
                header.signature = key.sign(&attempt, &header.content);
            }
        }
        (claim.standing(), Some(claim))
    }

    /// Changes the headers of the league, and what else follows from them, the same way in all messages of an attempt.
    pub(super) fn headers(&mut self, message: &mut Message, change: fn(&mut Self, &mut Header)) {
        let (view, headers, all) = match message {
            Message::Piece {
                view, headers, all, ..
            } => (*view, headers, Some(all)),
            Message::Headers { view, headers } => (*view, headers, None),
            Message::Committed { view, record, .. } => (*view, &mut record.headers, None),
            _ => return,
        };
        let mut known = headers_of(self.peer, view);
        for header in headers.iter_mut().chain(&mut known) {
            if self.is_league(header.peer) {
                change(self, &mut header.content);
            }
        }
        if let Some(all @ Some(_)) = all {
            let said: Vec<&Header> = known.iter().map(|h| &h.content).collect();
            *all = Some(Digest::of(&postcard::to_allocvec(&said).expect("plain data")));
        }
        self.sign(message);
    }

    /// Says something else of itself than what is: always the same in a round.
    fn claim(&mut self, header: &mut Header) {
        let round = self.peer.head().round;
        let mut rng = self.choice(round ^ u64::from(header.peer.0[0]));
        match rng.below(13) {
            0 => header.speed = [0, 1, MAX_SPEED, MAX_SPEED + 1, u64::MAX][rng.index(5)],
            1 => header.compute_us = [0, 1, MAX_COMPUTE_US, u64::MAX][rng.index(4)],
            2 => header.loss = [f32::NAN, f32::INFINITY, -1e30, 0.0][rng.index(4)],
            3 => header.weight += 1 + rng.below(5) as u32,
            4 => header.weight = header.weight.saturating_sub(1),
            5 => header.weight = u32::MAX,
            6 => header.digest = Digest([rng.next() as u8; 32]),
            7 => header.leaving ^= true,
            8 => header.ready = (0..rng.below(80)).map(|_| self.nobody(&mut rng, true)).collect(),
            9 => header.ready = vec![self.nobody(&mut rng, true)],
            10 => header.ready = vec![self.nobody(&mut rng, false)],
            11 => header.anew ^= true,
            _ => header.ready.clear(),
        }
    }

    /// Takes back what it may and what it may not: always the same in a round.
    fn revoke(&mut self, header: &mut Header) {
        let head = self.peer.head();
        let mut rng = self.choice(head.round ^ u64::from(header.peer.0[0]));
        let (run, members) = (self.twist.root.run, &head.members);
        let key = self.keys.iter().find(|key| key.peer() == header.peer);
        let (Some(key), Some(member)) = (key, members.iter().find(|m| m.peer == header.peer)) else {
            return;
        };
        let chain = member.admission.chain.clone();
        let own = Invitation {
            chain: chain.clone(),
            key: key.clone(),
        };
        let made = |rng: &mut Rng| {
            let to = invented_key(key.scheme(), rng.next());
            let made = own.narrow(self.twist.root, to, Role::Member, None, None);
            made.map_or(chain.clone(), |made| made.chain)
        };
        let mut of_others = members.iter().map(|m| m.admission.chain.clone());
        let chains: Vec<Chain> = match rng.below(5) {
            0 => of_others.nth(rng.index(members.len())).into_iter().collect(),
            1 => of_others.take(Revocation::MOST + rng.index(2)).collect(),
            2 => (0..Revocation::MOST).map(|_| made(&mut rng)).collect(),
            3 => {
                // What it has made is put under the chain of somebody else.
                let mut other = of_others.nth(rng.index(members.len())).unwrap_or_default();
                other.0.extend(made(&mut rng).0.pop());
                vec![other]
            }
            _ => {
                header.revoked = self.revoked_before(&mut rng);
                return;
            }
        };
        let by = |chain| Revocation::by(key, chain, run);
        header.revoked = chains.into_iter().map(by).collect();
    }

    /// What others have taken back, as they have said it, or signed by itself.
    fn revoked_before(&self, rng: &mut Rng) -> Vec<Revocation> {
        let headers = self.heard.iter().flat_map(|message| match message {
            Message::Piece { headers, .. } | Message::Headers { headers, .. } => &headers[..],
            Message::Committed { record, .. } => &record.headers[..],
            _ => &[],
        });
        let mut said: Vec<Revocation> = headers.flat_map(|h| h.revoked.clone()).collect();
        said.truncate(Revocation::MOST);
        if rng.chance(0.5) {
            let again = |said: Revocation| Revocation::by(&self.keys[0], said.chain, self.twist.root.run);
            said = said.into_iter().map(again).collect();
        }
        said
    }

    /// Nobody is let in.
    fn bar(&mut self, message: &mut Message) {
        if let Message::Following { .. } | Message::NotMember { .. } = message {
            *message = self.barred();
        }
    }

    fn barred(&mut self) -> Message {
        let why = [
            Barred::Expired,
            Barred::Revoked,
            Barred::UsedUp,
            Barred::Convicted,
        ][self.rng().index(4)];
        Message::Barred { why }
    }

    /// A newcomer that does not exist, with its own key or without.
    fn nobody(&mut self, rng: &mut Rng, signed: bool) -> Newcomer {
        let key = invented_key(self.keys[0].scheme(), rng.next());
        let peer = key.peer();
        let ready = Ready {
            peer,
            speed: 1 + rng.below(1 << 20),
            round: self.peer.head().round,
            room: Room::default(),
        };
        let by = if signed { &key } else { &self.keys[0] };
        Newcomer {
            ready: by.signed(&self.twist.root.run, ready),
            admission: Admission::stand_in(peer, self.twist.root),
            contact: Contact(vec!["nowhere".into()]),
        }
    }

    /// Other values than there are. They stay such as a device could have made: whoever likes may give those, and with
    /// the largest that can be summed ruin any model.
    pub(super) fn values(&mut self, message: &mut Message, which: Leg) {
        let Message::Piece { leg, data, .. } = message else {
            return;
        };
        if *leg == which {
            *data = self.other_values(data);
        }
    }

    /// Sends somebody another chunk than is finished, as if it were that.
    fn sums(&self, to: PeerId, message: &mut Message) {
        let Message::Piece {
            view,
            leg: Leg::Finished,
            chunk,
            seal,
            data,
            ..
        } = message
        else {
            return;
        };
        let (lineage, codec) = (&self.peer.shared.lineage, self.peer.manifest().codec);
        let last = lineage.last.as_ref();
        let (sums, is_last) = match &self.peer.phase {
            Phase::Member(member) if member.view.key == *view => (Some(&member.reduce.gathered), false),
            _ => (
                last.filter(|last| last.view == *view).map(|last| &last.sums),
                true,
            ),
        };
        let piece = |sums: &Assembly, chunk, piece| match is_last {
            true => lineage.last_piece(chunk, piece),
            false => sums.get(chunk, piece).cloned(),
        };
        // The same change whenever it is made for this one.
        let add = self.choice(view.round ^ u64::from(to.0[0])).unit() as f32;
        let change = |data: &Bytes| {
            let mut values = vec![0.0; elements(codec, data)];
            let mut bytes = Vec::new();
            if codec.decode(data, &mut values).is_err() {
                return data.clone();
            }
            values.iter_mut().for_each(|value| *value += add);
            codec.encode(&values, &mut bytes);
            bytes.into()
        };
        *data = change(data);
        if let (Some(seal), Some(sums)) = (seal, sums) {
            let pieces = 0..sums.cut().pieces(usize::from(*chunk)) as u32;
            let pieces = pieces.filter_map(|number| piece(sums, *chunk, number));
            let hashes: Vec<Digest> = pieces.map(|data| Digest::of(&change(&data))).collect();
            let finished = Finished::of(&hashes);
            let (chain, view) = (self.chain(*view), *view);
            **seal = self.keys[0].signed(&Attempt { chain, view }, finished);
        }
    }

    fn other_values(&mut self, data: &Bytes) -> Bytes {
        match self.rng().below(6) {
            0 => vec![0xff; data.len()].into(),
            1 => data.slice(..data.len() / 2),
            _ => self.shifted(self.peer.manifest().codec, data),
        }
    }

    /// All values are another by the same number.
    pub(super) fn shifted(&mut self, codec: Codec, data: &Bytes) -> Bytes {
        let mut values = vec![0.0; elements(codec, data)];
        if codec.decode(data, &mut values).is_err() {
            return data.clone();
        }
        let add = 10.0 * (self.rng().unit() as f32 - 0.5);
        values.iter_mut().for_each(|value| *value += add);
        let mut bytes = Vec::new();
        codec.encode(&values, &mut bytes);
        bytes.into()
    }

    /// What others have signed is not what arrives.
    fn forge(&mut self, message: &mut Message) {
        match message {
            Message::Piece { headers, .. } | Message::Headers { headers, .. } => {
                let mut others = headers.iter_mut().map(|h| &mut h.content);
                if let Some(header) = others.find(|h| self.keys.iter().all(|key| key.peer() != h.peer)) {
                    header.loss += 1.0;
                    header.compute_us += 1;
                }
            }
            Message::Committed { record, .. } => record.headers[0].content.compute_us ^= 1,
            Message::Flush { signature, .. } => *signature = self.keys[0].sign_bytes(b"no flush"),
            Message::Decision { suspects, .. } => {
                suspects.push(self.twist.anybody());
                suspects.sort();
                suspects.dedup();
            }
            Message::Relay { frame, .. } | Message::Unreachable { frame, .. } => {
                if let Some(other) = self.heard.first() {
                    *frame = other.to_frame();
                }
            }
            _ => {}
        }
    }

    fn suspect(&mut self, message: &mut Message) {
        if let Message::Flush { suspects, .. } = message {
            *suspects = self.some(0.5);
            self.sign(message);
        }
    }

    /// Some of the others in its attempt.
    fn some(&mut self, share: f64) -> Vec<PeerId> {
        let me = self.peer.me();
        let members = self.peer.view().map_or(&[][..], |(_, members)| members);
        let mut some: Vec<PeerId> = members.iter().copied().filter(|m| *m != me).collect();
        some.retain(|_| self.twist.rng.chance(share));
        some.sort();
        some
    }

    fn alive(&mut self, message: &mut Message) {
        if let Message::Alive { round, doing, .. } = message {
            let n = self.twist.number(0);
            *doing = [
                Doing::Computing { elapsed_us: 0 },
                Doing::Computing { elapsed_us: n },
                Doing::Waiting {
                    sent: n as u32,
                    came: 0,
                    of_all: 0,
                },
                Doing::Idle,
                Doing::Syncing,
            ][self.rng().index(5)];
            if self.rng().chance(0.2) {
                *round = self.twist.number(*round);
            }
        }
    }

    /// What a newcomer is given.
    fn state(&mut self, to: PeerId, message: &mut Message) {
        let member = self.peer.view().is_some_and(|(_, members)| members.contains(&to));
        match message {
            Message::Block {
                data, round, chain, ..
            } => match self.rng().below(4) {
                0 => *round += 1,
                1 => *chain = Digest([3; 32]),
                2 => *data = data.slice(..data.len() / 2),
                _ => {
                    let mut bytes = data.to_vec();
                    bytes.iter_mut().step_by(4).for_each(|byte| *byte ^= 1);
                    *data = bytes.into();
                }
            },
            Message::Digests { chain, data } => match self.rng().below(3) {
                0 => *chain = Digest([6; 32]),
                1 => *data = data.slice(..data.len() / 2),
                _ => {
                    let mut bytes = data.to_vec();
                    bytes.iter_mut().step_by(40).for_each(|byte| *byte ^= 1);
                    *data = bytes.into();
                }
            },
            Message::Following {
                head,
                digest,
                resumes,
                member,
                ..
            } => match self.rng().below(3) {
                // Who is out of the round is led back into it.
                _ if !*member && head.position(to).is_some() => *member = true,
                0 => *digest = Digest([4; 32]),
                1 => *resumes = None,
                _ => *member ^= true,
            },
            Message::Committed { digest, record, .. } if !member => match self.rng().below(2) {
                0 => *digest = Digest([5; 32]),
                _ => record.headers[0].content.weight += 1,
            },
            Message::Piece { .. } if !member => self.values(message, Leg::Finished),
            _ => {}
        }
    }

    /// What it says without being asked, and to whom: to everybody in turn, and each something of its own.
    pub fn invent(&mut self, to: PeerId) -> Vec<Message> {
        let own = self.peer.view().map(|(view, _)| view);
        let view = own.or_else(|| self.twist.rng.pick(&self.twist.views).flatten());
        let said = match (self.episode.lie, view) {
            (Lie::Suspect, Some(view)) => {
                let share = self.rng().unit();
                let suspects = self.some(share);
                Some(self.flush(view, suspects))
            }
            (Lie::Forge, Some(view)) => Some(self.forged(to, view)),
            (Lie::Outcome, Some(view)) => self.outcome(view),
            (Lie::Differ, Some(view)) => self.differ(view),
            (Lie::Leave, _) => Some(self.leave(view)),
            (Lie::Standing, _) => Some(self.status()),
            (Lie::Bar, _) => Some(self.barred()),
            (Lie::Ready, _) if own.is_none() => {
                let (peer, speed, round) = (self.peer.me(), 1 << 20, self.peer.head().round);
                let round = round + self.rng().below(3);
                let ready = Ready {
                    peer,
                    speed,
                    round,
                    room: Room::default(),
                };
                let ready = self.keys[0].signed(&self.twist.root.run, ready);
                Some(Message::Ready { ready: Some(ready) })
            }
            (Lie::Replay | Lie::Twist, _) => {
                let mut said = self.again(to);
                if let (Lie::Twist, Some(said)) = (self.episode.lie, &mut said) {
                    self.twist.message(said);
                    self.sign(said);
                }
                said
            }
            (Lie::Flood, _) if to == self.episode.victim => return self.flood(),
            _ => None,
        };
        said.into_iter().collect()
    }

    /// Something that was said before: what somebody wrote for this peer, if it has that.
    fn again(&mut self, to: PeerId) -> Option<Message> {
        let for_it =
            |message: &&Message| matches!(message, Message::Relay { envelope, .. } if envelope.to == to);
        let letters: Vec<&Message> = self.heard.iter().filter(for_it).collect();
        match self.rng().chance(0.7) && !letters.is_empty() {
            true => self.twist.rng.pick(&letters).cloned(),
            false => self.twist.rng.pick_ref(self.heard).cloned(),
        }
    }

    fn flush(&self, view: ViewKey, suspects: Vec<PeerId>) -> Message {
        let chain = self.chain(view);
        Message::Flush {
            view,
            signature: self.keys[0].sign(&Attempt { chain, view }, &Suspicion(&suspects)),
            suspects,
        }
    }

    /// Something in the name of others.
    fn forged(&mut self, to: PeerId, view: ViewKey) -> Message {
        let suspects = self.some(0.4);
        let members = self
            .peer
            .view()
            .map_or(Vec::new(), |(_, members)| members.to_vec());
        match self.choice(3).below(4) {
            0 => {
                let rest = members.iter().filter(|m| !suspects.contains(m));
                let proof = rest.map(|m| (*m, self.keys[0].sign_bytes(&m.0))).collect();
                Message::Decision {
                    view,
                    suspects,
                    proof,
                }
            }
            1 => {
                let signature = self.keys[0].sign_bytes(b"no flush");
                Message::Flush {
                    view,
                    suspects,
                    signature,
                }
            }
            _ => {
                let from = self.twist.anybody();
                let inner = match self.rng().below(3) {
                    0 => Message::Out { view },
                    1 => self.flush(view, suspects),
                    _ => self.leave(Some(view)),
                };
                let frame = inner.to_frame();
                let settings = Settings {
                    started: self.rng().next(),
                    ..self.peer.shared.settings.clone()
                };
                let mut envelope = Relayed::new(&settings, self.twist.root.run).seal(to, Lane::Bulk, &frame);
                envelope.from = from;
                match self.rng().chance(0.7) {
                    true => Message::Relay { envelope, frame },
                    false => Message::Unreachable { envelope, frame },
                }
            }
        }
    }

    /// A commit of an attempt in work: as far as its headers are known, with others' invented, or with one changed; or an
    /// end that nobody has agreed on.
    fn outcome(&mut self, view: ViewKey) -> Option<Message> {
        let mut headers = headers_of(self.peer, view);
        let members = self
            .peer
            .view()
            .map_or(Vec::new(), |(_, members)| members.to_vec());
        match self.choice(4).below(4) {
            0 => {}
            1 => {
                let template = headers.first()?.clone();
                let said = |peer: &PeerId| headers.iter().find(|h| h.peer == *peer).cloned();
                let invented = |peer: &PeerId| {
                    let mut header = template.clone();
                    header.content.peer = *peer;
                    header
                };
                headers = members
                    .iter()
                    .map(|m| said(m).unwrap_or_else(|| invented(m)))
                    .collect();
            }
            2 => {
                let which = self.rng().index(headers.len().max(1));
                headers.get_mut(which)?.content.compute_us ^= 1;
            }
            _ => {
                let suspects = self.some(0.3);
                let proof = vec![(self.peer.me(), self.keys[0].sign_bytes(b"nothing"))];
                return Some(Message::Decision {
                    view,
                    suspects,
                    proof,
                });
            }
        }
        let record = Record {
            round: view.round,
            attempt: view.attempt,
            headers,
        };
        let digest = self.peer.digest();
        Some(Message::Committed { view, record, digest })
    }

    fn differ(&mut self, view: ViewKey) -> Option<Message> {
        let sealed = self.peer.shared.lineage.last.as_ref();
        let sealed = sealed.and_then(|last| self.peer.shared.lineage.seals.of(last.view));
        if let Some(sealed) = sealed.cloned().filter(|_| self.rng().chance(0.3)) {
            // What no owner has signed so, or a true word that nobody has asked for.
            let mut seals = sealed.seals;
            let at = self.rng().index(seals.len());
            if self.rng().chance(0.7) {
                seals[at] = self.keys[0].signed(&sealed.attempt, Finished(Digest([7; 32])));
            }
            let view = sealed.attempt.view;
            return Some(Message::Seals { view, seals });
        }
        let mut headers = headers_of(self.peer, view);
        if self.rng().chance(0.5) {
            return Some(Message::Headers { view, headers });
        }
        let one = headers.pop()?;
        let mut other = one.clone();
        other.content.compute_us ^= 1;
        let attempt = Attempt {
            chain: self.chain(view),
            view,
        };
        let proof = Conviction::new(attempt, [one, other]);
        Some(Message::Convicted(Box::new(proof)))
    }

    /// A goodbye that is none, and tells of others where they are not.
    fn leave(&mut self, view: Option<ViewKey>) -> Message {
        match view.filter(|_| self.rng().chance(0.4)) {
            Some(view) => Message::Out { view },
            None => {
                let known = self.twist.names.iter().copied();
                let nowhere = Contact(vec!["nowhere".into()]);
                let more = (0..40).map(|n| PeerId([200 + n; 32]));
                let acquaintances = known.chain(more).map(|peer| (peer, nowhere.clone())).collect();
                Message::Acquaintances { acquaintances }
            }
        }
    }

    fn flood(&mut self) -> Vec<Message> {
        let view = self.peer.view().map(|(view, _)| view);
        let last = self.peer.shared.lineage.last.as_ref().map(|last| last.view);
        let kind = self.rng().below(6);
        let headers = last.map_or(Vec::new(), |view| headers_of(self.peer, view));
        let headers: Vec<_> = headers
            .iter()
            .cycle()
            .take(40.min(40 * headers.len()))
            .cloned()
            .collect();
        let ask = |n: u64| match (kind, last, view) {
            // What nobody can look at yet.
            (5, _, Some(view)) => Message::Piece {
                view: ViewKey {
                    round: view.round + 1,
                    ..view
                },
                leg: Leg::Partial,
                chunk: 0,
                piece: n as u32,
                headers: headers.clone(),
                all: None,
                seal: None,
                data: Bytes::from_static(&[0; 4]),
            },
            (0, Some(view), _) => Message::Repair {
                view,
                missing: (0..8).map(|piece| (0, piece)).collect(),
            },
            (1, _, Some(view)) => Message::Probe {
                view,
                nonce: n as u32,
            },
            (2, ..) => Message::Fetch { block: 0 },
            (3, ..) => Message::Followed { round: n },
            _ => Message::Follow {
                have: None,
                admission: Box::new(self.peer.shared.settings.admission.clone()),
                contact: Contact::default(),
            },
        };
        (0..FLOOD).map(ask).collect()
    }
}

/// The headers that a peer knows of an attempt, in ring order.
pub(super) fn headers_of(peer: &Peer, view: ViewKey) -> Vec<Signed<Header>> {
    let last = peer.shared.lineage.last.as_ref();
    match &peer.phase {
        Phase::Member(member) if member.view.key == view => member.reduce.known_headers(),
        _ => last
            .filter(|last| last.view == view)
            .map_or(Vec::new(), |last| last.record.headers.clone()),
    }
}

/// How many values are encoded here.
fn elements(codec: Codec, data: &Bytes) -> usize {
    let mut most = (1..=data.len()).rev();
    most.find(|n| codec.encoded_len(*n) == data.len()).unwrap_or(0)
}

/// The key of a name that nobody has.
pub(super) fn invented_key(scheme: crate::signature::Scheme, number: u64) -> Key {
    let mut bytes = [0xee; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    match scheme {
        crate::signature::Scheme::Ed25519 => Key::from_seed(&bytes),
        crate::signature::Scheme::StandIn => Key::stand_in(PeerId(bytes)),
    }
}
