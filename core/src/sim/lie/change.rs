//! How a liar changes its peer's messages.

use super::{Speaker, elements, headers_of, invented_key};
use crate::access::invitation::{Admission, Chain, Invitation, Revocation, Role};
use crate::access::signature::Attempt;
use crate::base::id::{Contact, Digest, PeerId};
use crate::collective::Assembly;
use crate::ledger::check::{MAX_COMPUTE_US, MAX_SPEED};
use crate::ledger::seal::Finished;
use crate::ledger::tickets::Barred;
use crate::ledger::{Header, Newcomer, Ready};
use crate::numeric::codec::Codec;
use crate::peer::Phase;
use crate::run::room::Room;
use crate::sim::rng::Rng;
use crate::wire::{Claim, Doing, Leg, Message, Standing};
use bytes::Bytes;

impl Speaker<'_> {
    /// An invented lineage, shown to a peer that has not asked.
    pub(super) fn status(&mut self) -> Message {
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

    /// A lineage that counts more than any, and its proof: none, one that the league can sign, or another
    /// lineage's.
    pub(super) fn invented_lineage(
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

    /// Changes the headers of the league and what follows from them, the same way in all messages of an attempt.
    pub(in crate::sim) fn headers(&mut self, message: &mut Message, change: fn(&mut Self, &mut Header)) {
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

    /// A false statement about itself, always the same in a round.
    pub(super) fn claim(&mut self, header: &mut Header) {
        let round = self.peer.head().round;
        let mut rng = self.choice(round ^ u64::from(header.peer.0[0]));
        match rng.below(13) {
            0 => header.speed = [0, 1, MAX_SPEED, MAX_SPEED + 1, u64::MAX][rng.index(5)],
            1 => {
                let mut time = || [0, 1, MAX_COMPUTE_US, u64::MAX][rng.index(4)];
                (header.compute_us, header.round_us) = (time(), time());
            }
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

    /// Revokes tickets with and without the right to, always the same in a round.
    pub(super) fn revoke(&mut self, header: &mut Header) {
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
                // Its own grant is put into another peer's chain.
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

    /// Others' revocations, as they signed them, or signed by itself.
    pub(super) fn revoked_before(&self, rng: &mut Rng) -> Vec<Revocation> {
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

    /// Admits nobody.
    pub(super) fn bar(&mut self, message: &mut Message) {
        if let Message::Following { .. } | Message::NotMember { .. } = message {
            *message = self.barred();
        }
    }

    pub(super) fn barred(&mut self) -> Message {
        let why = [
            Barred::Expired,
            Barred::Revoked,
            Barred::UsedUp,
            Barred::Convicted,
            Barred::InUse,
        ];
        match why.get(self.rng().index(why.len() + 1)) {
            Some(why) => Message::Barred { why: *why },
            None => Message::NoPlace { slow: None },
        }
    }

    /// A newcomer that does not exist, with a signature of its own or without.
    pub(super) fn nobody(&mut self, rng: &mut Rng, signed: bool) -> Newcomer {
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

    /// False values that a device could have computed. Any peer may send such values, but the largest that can be
    /// summed would ruin any model.
    pub(in crate::sim) fn values(&mut self, message: &mut Message, which: Leg) {
        let Message::Piece { leg, data, .. } = message else {
            return;
        };
        if *leg == which {
            *data = self.other_values(data);
        }
    }

    /// Sends a peer another chunk in place of the finished one.
    pub(super) fn sums(&self, to: PeerId, message: &mut Message) {
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
        // The same change each time for this receiver.
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

    pub(super) fn other_values(&mut self, data: &Bytes) -> Bytes {
        match self.rng().below(6) {
            0 => vec![0xff; data.len()].into(),
            1 => data.slice(..data.len() / 2),
            _ => self.shifted(self.peer.manifest().codec, data),
        }
    }

    /// All values shifted by the same number.
    pub(in crate::sim) fn shifted(&mut self, codec: Codec, data: &Bytes) -> Bytes {
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

    /// Changes statements that others have signed.
    pub(super) fn forge(&mut self, message: &mut Message) {
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

    pub(super) fn suspect(&mut self, message: &mut Message) {
        if let Message::Flush { suspects, .. } = message {
            *suspects = self.some(0.5);
            self.sign(message);
        }
    }

    /// Some of the others in its attempt.
    pub(super) fn some(&mut self, share: f64) -> Vec<PeerId> {
        let me = self.peer.me();
        let members = self.peer.view().map_or(&[][..], |(_, members)| members);
        let mut some: Vec<PeerId> = members.iter().copied().filter(|m| *m != me).collect();
        some.retain(|_| self.twist.rng.chance(share));
        some.sort();
        some
    }

    pub(super) fn alive(&mut self, message: &mut Message) {
        if let Message::Alive { round, doing, .. } = message {
            let n = self.twist.number(0);
            *doing = [
                Doing::Computing { elapsed_us: 0 },
                Doing::Computing { elapsed_us: n },
                Doing::Waiting {
                    sent: n as u32,
                    came: 0,
                    of_all: 0,
                    beside: 0,
                },
                Doing::Idle,
                Doing::Syncing,
                Doing::Pausing,
            ][self.rng().index(5)];
            if self.rng().chance(0.2) {
                *round = self.twist.number(*round);
            }
        }
    }

    /// Changes the data for a newcomer.
    pub(super) fn state(&mut self, to: PeerId, message: &mut Message) {
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
                // A peer that was excluded from the round is led back into it.
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
}
