//! Messages that a liar sends when its peer sends nothing.

use super::{Lie, Speaker, headers_of};
use crate::access::signature::Attempt;
use crate::base::id::{Contact, Digest, PeerId};
use crate::ledger::conviction::Conviction;
use crate::ledger::decision::Suspicion;
use crate::ledger::seal::Finished;
use crate::ledger::{Ready, Record};
use crate::run::config::Settings;
use crate::run::room::Room;
use crate::wire::relayed::Relayed;
use crate::wire::{Lane, Leg, Message, ViewKey};
use bytes::Bytes;

/// Requests of a flood.
const FLOOD: u64 = 100;

impl Speaker<'_> {
    /// Messages without a request: to everybody in turn, and a different one to each.
    pub(in crate::sim) fn invent(&mut self, to: PeerId) -> Vec<Message> {
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

    /// An earlier message: one that was written for this peer, if there is any.
    pub(super) fn again(&mut self, to: PeerId) -> Option<Message> {
        let for_it =
            |message: &&Message| matches!(message, Message::Relay { envelope, .. } if envelope.to == to);
        let letters: Vec<&Message> = self.heard.iter().filter(for_it).collect();
        match self.rng().chance(0.7) && !letters.is_empty() {
            true => self.twist.rng.pick(&letters).cloned(),
            false => self.twist.rng.pick_ref(self.heard).cloned(),
        }
    }

    pub(super) fn flush(&self, view: ViewKey, suspects: Vec<PeerId>) -> Message {
        let chain = self.chain(view);
        Message::Flush {
            view,
            signature: self.keys[0].sign(&Attempt { chain, view }, &Suspicion(&suspects)),
            suspects,
        }
    }

    /// A message in the name of others.
    pub(super) fn forged(&mut self, to: PeerId, view: ViewKey) -> Message {
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

    /// A commit of an attempt in work, with the headers that it knows, with others' headers invented, or with one
    /// changed; or a decision that nobody has agreed on.
    pub(super) fn outcome(&mut self, view: ViewKey) -> Option<Message> {
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

    pub(super) fn differ(&mut self, view: ViewKey) -> Option<Message> {
        let sealed = self.peer.shared.lineage.last.as_ref();
        let sealed = sealed.and_then(|last| self.peer.shared.lineage.seals.of(last.view));
        if let Some(sealed) = sealed.cloned().filter(|_| self.rng().chance(0.3)) {
            // A seal that no owner has signed so, or a true one that nobody has asked for.
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

    /// A false goodbye, with false addresses of others.
    pub(super) fn leave(&mut self, view: Option<ViewKey>) -> Message {
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

    pub(super) fn flood(&mut self) -> Vec<Message> {
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
            // A piece that nobody can check yet.
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
