//! What a peer holds of the run: the ledger's head, the digest of the state there, and the round that led to it.

use crate::access::signature::Attempt;
use crate::base::id::{Digest, PeerId};
use crate::base::planted::Bug;
use crate::collective::Assembly;
use crate::ledger::claim::Claim;
use crate::ledger::decision::{Decided, Known};
use crate::ledger::seal::Seals;
use crate::ledger::{Founder, Head, Header, Record};
use crate::run::config::{Manifest, Settings};
use crate::state::{State, root};
use crate::wire::{Message, Standing, ViewKey};
use bytes::Bytes;

/// The last committed round, kept to repair peers that lack some of it.
#[derive(Debug)]
pub(crate) struct Committed {
    pub view: ViewKey,
    pub record: Record,
    pub digest: Digest,
    pub sums: Assembly,
    /// The attempts that were given up on the way to it.
    pub decided: Vec<Decided>,
    /// The lineage before it ...
    pub before: Standing,
    /// ... its preimage, together with the samples ...
    pub trail: Digest,
    /// ... and the hash of the head there.
    pub head: Digest,
}

impl Committed {
    /// The attempt that made it, or one on the way to it.
    pub fn attempt(&self, key: ViewKey) -> Option<Known> {
        let chain = self.before.chain;
        if key != self.view {
            let decided = self.decided.iter().find(|d| d.view == key);
            return decided.map(|d| d.known(chain));
        }
        let members = self.record.headers.iter().map(|h| h.peer).collect();
        let attempt = Attempt { chain, view: key };
        Some(Known { attempt, members })
    }

    pub fn message(&self) -> Message {
        Message::Committed {
            view: self.view,
            record: self.record.clone(),
            digest: self.digest,
        }
    }
}

/// The ledger's head and all that belongs to it.
pub(crate) struct Lineage {
    pub head: Head,
    pub state: State,
    /// The digest of the state at the head ...
    pub digest: Digest,
    /// ... and those of its blocks.
    pub blocks: Vec<Digest>,
    pub last: Option<Committed>,
    /// The owners' seals of the last rounds.
    pub seals: Seals,
    /// The last round that it has followed, before it has committed one itself.
    pub followed: Option<Claim>,
    /// How this peer last continued alone.
    pub founder: Option<Founder>,
}

impl Lineage {
    pub fn new(head: Head, state: State) -> Self {
        let blocks = state.block_digests();
        Self {
            digest: root(&blocks),
            blocks,
            head,
            state,
            last: None,
            seals: Seals::default(),
            followed: None,
            founder: None,
        }
    }

    /// Sets the digests of the state's blocks.
    pub fn hashed(&mut self, blocks: Vec<Digest>) {
        self.digest = root(&blocks);
        self.blocks = blocks;
    }

    /// A finished piece of the last round, if it is there. A piece that only the state has is read from it, if the
    /// state has not changed by itself since the round.
    pub fn last_piece(&self, chunk: u16, piece: u32) -> Option<Bytes> {
        let sums = &self.last.as_ref()?.sums;
        let Some(range) = sums.gone(chunk, piece) else {
            return sums.get(chunk, piece).cloned();
        };
        let blocks = (0..).zip(&self.blocks).map_while(|(number, digest)| {
            let elements = self.state.block_range(number)?;
            (elements.start < range.end).then_some((elements, digest))
        });
        let mut blocks = blocks.filter(|(elements, _)| elements.end > range.start);
        let sound = blocks.all(|(elements, digest)| self.state.block_digest(elements) == *digest);
        sound.then(|| Bytes::copy_from_slice(bytemuck::cast_slice(&self.state.params[range])))
    }

    /// Whether a peer is one of the head's members, or took part in the last round.
    pub fn knows(&self, peer: PeerId) -> bool {
        let took_part = |last: &Committed| {
            let was_in = |d: &Decided| d.members.contains(&peer) && d.suspects.contains(&peer);
            last.record.headers.iter().any(|h| h.peer == peer) || last.decided.iter().any(was_in)
        };
        self.head.position(peer).is_some() || self.last.as_ref().is_some_and(took_part)
    }

    pub fn standing(&self) -> Standing {
        Standing::of(&self.head)
    }

    /// The proof of where it stands: the last round that this peer has committed or followed. `None` if there was
    /// no round since it has continued alone.
    pub fn claim(&self) -> Option<Box<Claim>> {
        let claim = |last: &Committed| Claim {
            trail: last.trail,
            samples: last.before.samples,
            head: last.head,
            record: last.record.clone(),
        };
        let committed = self.last.as_ref().map(claim);
        let shown = committed.or_else(|| self.followed.clone());
        let shown = shown.filter(|claim| claim.standing() == self.standing());
        shown.map(Box::new)
    }

    /// The lineages at the places where others may have left it.
    pub fn places(&self) -> Vec<Digest> {
        self.head.places().skip(1).map(|fork| fork.chain).collect()
    }

    /// Applies the record of an attempt to the ledger's head.
    pub fn apply_record(&mut self, view: ViewKey, record: &Record, manifest: &Manifest, settings: &Settings) {
        if !settings.planted(Bug::CountTheDead) {
            let chain = self.head.chain;
            return self
                .head
                .apply_of(&Attempt { chain, view }, record, manifest, settings.bug());
        }
        let mut padded = record.clone();
        let allotment = self.head.allot(manifest);
        for (i, member) in self.head.members.iter().enumerate() {
            if padded.headers.iter().all(|h| h.peer != member.peer) {
                let mut dead = padded.headers[0].clone();
                dead.content = Header {
                    peer: member.peer,
                    weight: allotment.len(i) as u32,
                    leaving: true,
                    ..dead.content
                };
                padded.headers.push(dead);
            }
        }
        self.head.apply(&padded, manifest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Cut, Kept};
    use crate::ledger::keepers::Chain;
    use crate::numeric::codec::Codec;
    use crate::run::config::Layout;
    use crate::run::parts::Parts;
    use std::sync::Arc;

    const LEN: usize = 5000;

    /// After a round of one member whose updates are in the state, and were dropped.
    fn after_a_round() -> Lineage {
        let manifest = Manifest {
            copies: std::num::NonZeroU16::new(2),
            piece: 256.try_into().unwrap(),
            ..Manifest::new(Layout::flat(LEN))
        };
        let parts = Parts::of_len(LEN);
        let kept = Kept::new(
            parts,
            vec![
                Chain {
                    members: vec![0],
                    learners: 0
                };
                parts.count()
            ],
            (1, 256),
            None,
        );
        let mut sums = Assembly::new(
            Cut {
                members: 1,
                guests: Vec::new(),
                len: LEN,
                piece: 256,
                grain: 1,
                kept: Some(Arc::new(kept)),
            },
            Codec::F32,
        );
        let params: Vec<f32> = (0..LEN).map(|i| i as f32).collect();
        for piece in 0..sums.cut().pieces(0) as u32 {
            let range = sums.cut().range(0, piece as usize).unwrap();
            let data = Bytes::copy_from_slice(bytemuck::cast_slice(&params[range]));
            sums.put(0, piece, data);
        }
        sums.let_go(LEN);
        let head = Head::unfounded(&manifest);
        let (before, digest) = (Standing::of(&head), Digest([0; 32]));
        let mut lineage = Lineage::new(head, State::new(params, &manifest));
        lineage.last = Some(Committed {
            view: ViewKey {
                round: 1,
                attempt: 0,
                id: 0,
            },
            record: Record {
                round: 1,
                attempt: 0,
                headers: Vec::new(),
            },
            sums,
            digest,
            decided: Vec::new(),
            before,
            trail: digest,
            head: digest,
        });
        lineage
    }

    #[test]
    fn what_somebody_lacks_of_the_last_round_is_taken_from_the_state() {
        let lineage = after_a_round();
        assert_eq!(lineage.last.as_ref().unwrap().sums.bytes(), 0);
        let mut values = Vec::new();
        for data in (0..).map_while(|piece| lineage.last_piece(0, piece)) {
            let start = values.len();
            values.resize(start + data.len() / 4, 0.0);
            Codec::F32.decode(&data, &mut values[start..]).unwrap();
        }
        assert_eq!(values, lineage.state.params);
    }

    #[test]
    fn what_is_no_longer_what_it_was_after_the_round_is_not_given_out() {
        let mut lineage = after_a_round();
        let piece = |lineage: &Lineage, piece| lineage.last_piece(0, piece).is_some();
        lineage.state.params[300] += 1.0;
        // It cannot tell which piece of the block has changed.
        assert!(!piece(&lineage, 0) && !piece(&lineage, 1) && !piece(&lineage, 3));
        assert!(piece(&lineage, 4) && piece(&lineage, 5));
    }
}
