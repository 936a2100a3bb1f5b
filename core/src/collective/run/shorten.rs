//! Guests' values, shortened before they are added: see [`bound`](crate::collective::bound).

use super::Run;
use crate::collective::bound::{FEW, Scale};
use bytes::Bytes;

impl Run {
    /// Makes it shorten what some members, guests, contribute: nothing may be far longer than this member's gradients.
    /// A guest may take `steps` times as many local steps as a full member. Short vectors stay as they are.
    pub fn bound(&mut self, scale: Scale, steps: u32, is_guest: Vec<bool>) {
        debug_assert_eq!(is_guest.len(), self.members.len());
        let is_long = self.plan.cut.len >= FEW * self.members.len();
        self.scale = is_long.then_some((scale, steps, is_guest));
    }

    /// Shortens guests' values of a piece where they are far too long. Returns this member's own, if those are.
    pub(super) fn shorten(
        &self,
        inputs: &mut [(usize, Bytes)],
        own: &[f32],
        place: (usize, usize),
    ) -> Option<Vec<f32>> {
        let (scale, steps, is_guest) = self.scale.as_ref()?;
        let by = |number: usize| self.plan.inputs(place, self.me).nth(number).expect("an input");
        let weight = |member: usize| self.headers.of(member).map_or(0, |header| header.weight);
        let values = |data: &Bytes| {
            let mut values = vec![0.0; own.len()];
            self.codec.decode(data, &mut values).ok().map(|()| values)
        };
        let alone = inputs
            .iter_mut()
            .map(|(number, data)| (by(*number), data))
            .filter(|(member, _)| self.plan.contributions(place, *member) == 1);
        let (guests, full): (Vec<_>, Vec<_>) = alone.partition(|(member, _)| is_guest[*member]);
        let scale = match is_guest[self.me] {
            false => *scale,
            true if own.len() < FEW => return None,
            // Its own device may be the broken one.
            true => full
                .iter()
                .filter_map(|(member, data)| Some(Scale::of(&values(data)?, weight(*member))))
                .fold(Scale::default(), Scale::max),
        };
        for (member, data) in guests {
            let shorter = values(data).and_then(|values| scale.shorten(&values, weight(member), *steps));
            if let Some(shorter) = shorter {
                let mut encoded = Vec::with_capacity(data.len());
                self.codec.encode(&shorter, &mut encoded);
                *data = encoded.into();
            }
        }
        match is_guest[self.me] {
            true => scale.shorten(own, weight(self.me), *steps),
            false => None,
        }
    }
}
