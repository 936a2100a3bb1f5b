//! Guests' values, shortened before they are added: see [`bound`](crate::collective::bound).

use super::Run;
use crate::collective::bound::{FEW, Scale};
use bytes::Bytes;

impl Run {
    /// Whether some members are guests.
    pub fn has_guests(&self) -> bool {
        !self.plan.cut.guests.is_empty()
    }

    /// Makes it shorten what guests contribute: nothing may be far longer than this member's gradients. A guest may take
    /// `steps` times as many local steps as a full member. Short vectors stay as they are.
    pub fn bound(&mut self, scale: Scale, steps: u32) {
        let is_long = self.plan.cut.len >= FEW * self.plan.cut.owners();
        self.scale = is_long.then_some((scale, steps));
    }

    /// Shortens guests' values of a piece where they are far too long.
    pub(super) fn shorten(&self, inputs: &mut [(usize, Bytes)], len: usize, place: (usize, usize)) {
        let Some((scale, steps)) = &self.scale else { return };
        for (number, data) in inputs {
            let by = self.plan.inputs(place, self.me).nth(*number).expect("an input");
            let mut values = vec![0.0; len];
            if !self.plan.cut.guests.contains(&by) || self.codec.decode(data, &mut values).is_err() {
                continue;
            }
            let weight = self.headers.of(by).map_or(0, |header| header.weight);
            if let Some(shorter) = scale.shorten(&values, weight, *steps) {
                let mut encoded = Vec::with_capacity(data.len());
                self.codec.encode(&shorter, &mut encoded);
                *data = encoded.into();
            }
        }
    }
}
