//! A liar's changed messages: earlier messages with some fields changed.

use super::rng::Rng;
use crate::access::invitation::{Admission, Revocation, Root};
use crate::access::signature::{Key, Signed};
use crate::base::id::{Contact, Digest, PeerId};
use crate::ledger::conviction::Contradiction;
use crate::ledger::cut::SampleRange;
use crate::ledger::{Header, Member, Newcomer, Ready, Record};
use crate::run::room::Room;
use crate::wire::{Doing, Leg, Message, Standing, ViewKey};
use bytes::Bytes;

/// Changes messages, with their author's knowledge of the others.
pub(super) struct Twist<'a> {
    pub rng: &'a mut Rng,
    pub root: Root,
    /// Names of real peers.
    pub names: &'a [PeerId],
    /// The lineages of peers.
    pub chains: Vec<Digest>,
    /// The attempts of members.
    pub views: Vec<Option<ViewKey>>,
}

impl Twist<'_> {
    /// Another number: a near one, or an extreme one.
    pub(super) fn number(&mut self, n: u64) -> u64 {
        match self.rng.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::from(u32::MAX),
            3 => 1 << self.rng.below(64),
            4 => n.wrapping_sub(1),
            5 => n.wrapping_add(2),
            _ => n.wrapping_add(1),
        }
    }

    /// The name of a real peer, or perhaps of none.
    pub(super) fn anybody(&mut self) -> PeerId {
        match self.rng.below(8) {
            0 => PeerId([self.rng.next() as u8; 32]),
            _ => self.names[self.rng.index(self.names.len())],
        }
    }

    fn float(&mut self) -> f32 {
        f32::from_bits(self.number(0) as u32)
    }

    fn digest(&mut self, digest: Digest) -> Digest {
        match self.rng.chance(0.5) {
            true => Digest([self.rng.next() as u8; 32]),
            false => self.rng.pick(&self.chains).unwrap_or(digest),
        }
    }

    fn view(&mut self, view: &mut ViewKey) {
        match self.rng.below(5) {
            0 => view.round = self.number(view.round),
            1 => view.attempt = self.number(view.attempt.into()) as u32,
            2 => view.id = self.rng.next(),
            _ => {
                // The attempt of some peer at this moment.
                *view = self.rng.pick(&self.views).flatten().unwrap_or(*view);
            }
        }
    }

    fn standing(&mut self, standing: &mut Standing) {
        match self.rng.below(3) {
            0 => standing.samples = self.number(standing.samples),
            1 => standing.round = self.number(standing.round),
            _ => standing.chain = self.digest(standing.chain),
        }
    }

    fn member(&mut self) -> Member {
        let peer = self.anybody();
        Member {
            peer,
            admission: Admission::stand_in(peer, self.root),
            speed: self.number(1000),
            contact: Contact(vec!["x".repeat(self.rng.index(200)); self.rng.index(10)]),
            trials: Default::default(),
            keeper: Default::default(),
        }
    }

    fn header(&mut self, header: &mut Header) {
        match self.rng.below(12) {
            0 => header.peer = self.anybody(),
            1 => header.weight = self.number(header.weight.into()) as u32,
            2 => header.loss = self.float(),
            3 => header.speed = self.number(header.speed),
            4 => header.compute_us = self.number(header.compute_us),
            10 => header.round_us = self.number(header.round_us),
            5 => header.digest = self.digest(header.digest),
            6 => header.leaving ^= true,
            7 => header.anew ^= true,
            8 => header.revoked = (0..self.rng.below(6)).map(|_| self.revocation()).collect(),
            _ => header.ready = (0..self.rng.below(80)).map(|_| self.newcomer()).collect(),
        }
    }

    /// A revocation of some ticket by some peer.
    fn revocation(&mut self) -> Revocation {
        let (chain, by) = (self.member().admission.chain, Key::stand_in(self.anybody()));
        Revocation::by(&by, chain, self.root.run)
    }

    fn newcomer(&mut self) -> Newcomer {
        let Member {
            peer,
            admission,
            speed,
            contact,
            ..
        } = self.member();
        let round = self.number(1);
        let ready = Ready {
            peer,
            speed,
            round,
            room: Room::default(),
        };
        let by = Key::stand_in(self.anybody());
        let ready = by.signed(&self.root.run, ready);
        Newcomer {
            ready,
            admission,
            contact,
        }
    }

    fn headers(&mut self, headers: &mut Vec<Signed<Header>>) {
        let at = self.rng.index(headers.len().max(1));
        match self.rng.below(5) {
            0 if !headers.is_empty() => drop(headers.remove(at)),
            1 if headers.len() < 64 => headers.extend_from_within(..),
            _ => {
                if let Some(header) = headers.get_mut(at) {
                    self.header(&mut header.content);
                }
            }
        }
    }

    fn record(&mut self, record: &mut Record) {
        match self.rng.below(4) {
            0 => record.round = self.number(record.round),
            1 => record.attempt = self.number(record.attempt.into()) as u32,
            _ => self.headers(&mut record.headers),
        }
    }

    fn peers(&mut self, peers: &mut Vec<PeerId>) {
        *peers = (0..self.rng.below(8)).map(|_| self.anybody()).collect();
        if self.rng.chance(0.9) {
            peers.sort();
            peers.dedup();
        }
    }

    fn data(&mut self, data: &mut Bytes) {
        let mut bytes = data.to_vec();
        match self.rng.below(4) {
            0 => bytes.truncate(self.rng.index(bytes.len() + 1)),
            1 => bytes.extend(vec![0x7f; self.rng.index(64)]),
            2 => bytes.fill(0xff),
            _ => bytes.iter_mut().for_each(|b| *b = self.rng.next() as u8),
        }
        *data = bytes.into();
    }

    /// Changes a field of a message.
    pub(super) fn message(&mut self, message: &mut Message) {
        match message {
            Message::Piece {
                view,
                leg,
                chunk,
                piece,
                headers,
                all,
                seal,
                data,
            } => match self.rng.below(8) {
                0 => self.view(view),
                1 => *leg = [Leg::Partial, Leg::Finished][self.rng.index(2)],
                2 => *chunk = self.number((*chunk).into()) as u16,
                3 => *piece = self.number((*piece).into()) as u32,
                4 => self.headers(headers),
                5 => {
                    let other = self.digest(Digest([0; 32]));
                    match seal {
                        Some(seal) if self.rng.chance(0.7) => seal.content.0 = other,
                        seal => *seal = None,
                    }
                }
                6 => *all = self.rng.chance(0.5).then(|| self.digest(Digest([0; 32]))),
                _ => self.data(data),
            },
            Message::Headers { view, headers } => match self.rng.chance(0.3) {
                true => self.view(view),
                false => self.headers(headers),
            },
            Message::Convicted(proof) => match self.rng.below(3) {
                0 => self.view(&mut proof.attempt.view),
                1 => proof.attempt.chain = self.digest(proof.attempt.chain),
                _ => match &mut proof.said {
                    Contradiction::Headers(headers) => self.header(&mut headers[0].content),
                    Contradiction::Seals { owner, seals } => match self.rng.chance(0.5) {
                        true => *owner = self.anybody(),
                        false => seals[0].content.0 = self.digest(seals[1].content.0),
                    },
                },
            },
            Message::Revoked(revocation) => **revocation = self.revocation(),
            Message::Seals { view, seals } => match self.rng.below(3) {
                0 => self.view(view),
                1 => seals.extend_from_within(..seals.len().min(64 - seals.len().min(64))),
                _ => {
                    let at = self.rng.index(seals.len().max(1));
                    let other = self.digest(Digest([0; 32]));
                    seals
                        .iter_mut()
                        .skip(at)
                        .take(1)
                        .for_each(|seal| seal.content.0 = other);
                }
            },
            Message::Probe { view, nonce } => {
                self.view(view);
                *nonce = self.number((*nonce).into()) as u32;
            }
            Message::Alive { nonce, round, doing } => match self.rng.below(3) {
                0 => *nonce = self.number((*nonce).into()) as u32,
                1 => *round = self.number(*round),
                _ => {
                    let n = self.number(0);
                    *doing = [
                        Doing::Computing { elapsed_us: n },
                        Doing::Waiting {
                            sent: n as u32,
                            came: self.number(0) as u32,
                            of_all: self.number(0) as u32,
                            beside: self.number(0) as u32,
                        },
                        Doing::Idle,
                        Doing::Syncing,
                        Doing::Pausing,
                    ][self.rng.index(4)];
                }
            },
            Message::Flush { view, suspects, .. } | Message::Decision { view, suspects, .. } => {
                match self.rng.chance(0.5) {
                    true => self.view(view),
                    false => self.peers(suspects),
                }
            }
            Message::Committed { view, record, digest } => match self.rng.below(4) {
                0 => self.view(view),
                1 => *digest = self.digest(*digest),
                _ => self.record(record),
            },
            other => self.twist_other(other),
        }
    }

    /// Changes a field of a message that belongs to no attempt in work.
    fn twist_other(&mut self, message: &mut Message) {
        match message {
            Message::Repair { view, missing } => {
                self.view(view);
                let some = self.number(1) as u32;
                missing.extend((0..self.rng.below(2000) as u32).map(|p| (some as u16, p)));
            }
            Message::Out { view } => self.view(view),
            Message::Status {
                standing,
                places: _,
                claim,
                member,
                finished,
            } => match (self.rng.below(7), claim) {
                (0, _) => *member ^= true,
                (1, _) => *finished ^= true,
                (2, Some(claim)) => self.headers(&mut claim.record.headers),
                (3, Some(claim)) => claim.samples = self.number(claim.samples),
                (4, claim) => *claim = None,
                _ => self.standing(standing),
            },
            Message::Follow {
                have,
                admission,
                contact,
            } => {
                if let Some(have) = have {
                    self.standing(have);
                }
                let other = self.member();
                *contact = other.contact;
                if self.rng.chance(0.3) {
                    **admission = other.admission;
                }
            }
            Message::Following {
                head,
                digest,
                resumes,
                member,
                claim: _,
            } => match self.rng.below(9) {
                0 => *digest = self.digest(*digest),
                1 => *resumes = Some(self.digest(*digest)),
                2 => *member ^= true,
                3 => head.round = self.number(head.round),
                4 => head.samples = self.number(head.samples),
                5 => head.cursor = self.number(head.cursor),
                6 => head.chain = self.digest(head.chain),
                7 => {
                    let (start, end) = (self.number(head.cursor), self.number(head.cursor));
                    let refused_by = Some(self.anybody());
                    head.holes.push(SampleRange {
                        start,
                        end,
                        refused_by,
                    });
                }
                _ => head.members.push(self.member()),
            },
            Message::NotMember { standing, follows } => {
                *follows = Some(self.number(1) as u8);
                if let Some(standing) = standing {
                    self.standing(standing);
                }
            }
            Message::Followed { round } => *round = self.number(*round),
            Message::Ready { ready } => *ready = self.rng.chance(0.8).then(|| self.newcomer().ready),
            Message::Fetch { block } => *block = self.number((*block).into()) as u32,
            Message::Block {
                block,
                round,
                chain,
                data,
            } => match self.rng.below(4) {
                0 => *block = self.number((*block).into()) as u32,
                1 => *round = self.number(*round),
                2 => *chain = self.digest(*chain),
                _ => self.data(data),
            },
            Message::Digests { chain, data } => match self.rng.chance(0.5) {
                true => *chain = self.digest(*chain),
                false => self.data(data),
            },
            Message::Acquaintances { acquaintances } => {
                acquaintances.extend((0..self.rng.below(70)).map(|_| {
                    let member = self.member();
                    (member.peer, member.contact)
                }));
            }
            other => self.twist_carried(other),
        }
    }

    /// Changes fields about the ways of messages.
    fn twist_carried(&mut self, message: &mut Message) {
        match message {
            Message::Relay { envelope, .. } | Message::Unreachable { envelope, .. } => {
                match self.rng.below(3) {
                    0 => envelope.from = self.anybody(),
                    1 => envelope.to = self.anybody(),
                    _ => envelope.number = self.number(envelope.number),
                }
            }
            Message::Introduce { to } => *to = self.anybody(),
            Message::Introduced {
                peer,
                contact,
                rtt_us,
            } => match self.rng.below(3) {
                0 => *peer = self.anybody(),
                1 => *contact = self.member().contact,
                _ => *rtt_us = self.number((*rtt_us).into()) as u32,
            },
            _ => {}
        }
    }
}
