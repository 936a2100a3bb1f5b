//! Lies about parts of the moments: what a member keeps, what it hands out, and which sums it passes on.

use super::lie::{Lie, Speaker};
use super::rng::Rng;
use crate::ledger::Header;
use crate::run::parts::{PartSet, Parts};
use crate::wire::{Leg, Message};

impl Speaker<'_> {
    /// Changes a keeper's message.
    pub(super) fn keep(&mut self, message: &mut Message) {
        match self.episode.lie {
            Lie::Pass => self.values(message, Leg::Sum),
            Lie::Keep => self.headers(message, Self::say_of_parts),
            Lie::Moments => self.moments(message),
            _ => {}
        }
    }

    /// A false statement about its parts, always the same in a round.
    fn say_of_parts(&mut self, header: &mut Header) {
        let head = self.peer.head();
        let mut rng = self.choice(head.round ^ u64::from(header.peer.0[0]));
        let Some(parts) = Parts::of(self.peer.manifest()) else {
            return;
        };
        let may = head.position(header.peer).map(|at| head.members[at].keeper);
        let may = may.map_or(PartSet::default(), |keeper| keeper.kept.or(&keeper.learns));
        let keeps = &mut header.keeps;
        match rng.below(9) {
            0 => keeps.kept = parts.all(),
            1 => keeps.kept = may,
            2 => (keeps.kept, keeps.drops) = Default::default(),
            3 => keeps.learns = parts.all().without(&keeps.kept),
            4 => keeps.learns = PartSet::default(),
            5 => keeps.drops = keeps.kept,
            6 => keeps.insists = true,
            7 => keeps.digests.clear(),
            _ => {}
        }
        if rng.chance(0.9) {
            keeps.digests.resize(keeps.kept.len(), 0);
        }
        if rng.chance(0.3) {
            keeps.digests.iter_mut().for_each(|digest| *digest ^= 1);
        }
    }

    /// Hands out false moments, or says that they are of another round.
    fn moments(&mut self, message: &mut Message) {
        let Message::Moments {
            part,
            piece,
            stepped,
            data,
        } = message
        else {
            return;
        };
        let rng: &mut Rng = self.rng();
        match rng.below(6) {
            0 => *part = rng.below(300) as u16,
            1 => *piece = rng.below(9) as u32,
            2 => stepped.0[0] ^= 1,
            3 => *data = data.slice(..data.len() / 2),
            _ => {
                let mut bytes = data.to_vec();
                bytes.iter_mut().for_each(|byte| *byte ^= rng.next() as u8 & 1);
                *data = bytes.into();
            }
        }
    }
}
