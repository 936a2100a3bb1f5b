//! Makes sums of pieces.

use super::super::step::{Sends, Violation};
use super::super::sum::sum_encode;
use super::{Run, Sum};
use crate::base::planted::Bug;
use crate::numeric::vector::Vector;
use crate::wire::Leg;
use bytes::Bytes;

impl Run {
    /// Makes a piece's sum and passes it on, once all its inputs are there.
    pub(super) fn add_up(
        &mut self,
        own: &Vector,
        chunk: usize,
        piece: usize,
        out: &mut Sends,
    ) -> Result<(), Violation> {
        if self.is_of_lanes((chunk, piece)) {
            return self.add_lanes((chunk, piece), out);
        }
        let needed = self.plan.inputs((chunk, piece), self.me).count();
        let slot = &mut self.sums[chunk][piece];
        let Sum::Open(inputs) = slot else {
            return Ok(());
        };
        if inputs.len() < needed {
            return Ok(());
        }
        let mut inputs = std::mem::take(inputs);
        *slot = Sum::Made;
        if !self.planted(Bug::SumAsTheyCome) {
            inputs.sort_unstable_by_key(|(place, _)| *place);
        }
        self.waiting -= inputs.len();
        self.waiting_bytes -= inputs.iter().map(|(_, data)| data.len()).sum::<usize>();
        let range = self.plan.cut.range(chunk, piece).expect("own piece");
        let values = if range.is_empty() {
            &[]
        } else {
            &own[range.clone()]
        };
        self.shorten(&mut inputs, values.len(), (chunk, piece));
        let sum = match inputs.is_empty() && self.errors.is_none() {
            // Alone: nothing is added, and the sum may be the values themselves.
            true => own.encoded(self.codec, range.clone()),
            false => self.add(
                inputs.into_iter().map(|(_, data)| data).collect(),
                values,
                (chunk, piece),
            )?,
        };
        #[cfg(feature = "sim")]
        let sum = self.any_sum((chunk, piece), sum);
        match self.plan.partial_to((chunk, piece), self.me) {
            Some(to) => self.send(to, Leg::Partial, (chunk, piece), (sum, None), out),
            None if self.plan.passes((chunk, piece), self.me).is_some() => {
                return self.hold_sum((chunk, piece), sum, out);
            }
            // A word is sent once its content is known.
            None if self.plan.cut.kept.is_some() => {}
            None => {
                let finished = self.finish(self.me, (chunk, piece), (sum, None), out);
                debug_assert!(finished.is_ok(), "what can be summed gives what can be a sum");
            }
        }
        Ok(())
    }

    /// A lie: this owner's sum is any number.
    #[cfg(feature = "sim")]
    fn any_sum(&self, (chunk, piece): (usize, usize), sum: Bytes) -> Bytes {
        let len = self.plan.cut.range(chunk, piece).map_or(0, |range| range.len());
        match self.bug {
            Some(Bug::AnySum(bits)) if self.plan.sums((chunk, piece)) == self.me => {
                let mut any = Vec::with_capacity(sum.len());
                self.codec.encode(&vec![f32::from_bits(bits); len], &mut any);
                any.into()
            }
            _ => sum,
        }
    }

    /// The encoded sum of a piece: what came from others, and this member's values.
    fn add(
        &mut self,
        inputs: Vec<Bytes>,
        own: &[f32],
        (chunk, piece): (usize, usize),
    ) -> Result<Bytes, Violation> {
        let range = self.plan.cut.range(chunk, piece).expect("own piece");
        let mut sum = Vec::with_capacity(self.codec.encoded_len(own.len()));
        let sums = self.plan.sums((chunk, piece));
        let forgets = sums == self.me && self.planted(Bug::OwnersRoundingForgotten);
        let errors = self.errors.as_mut().filter(|_| !forgets);
        let errors = errors.map(|errors| &mut errors[range.clone()]);
        if let Err(input) = sum_encode(self.codec, &inputs, own, &mut self.room, errors, &mut sum) {
            let by = self
                .plan
                .inputs((chunk, piece), self.me)
                .nth(input)
                .expect("an input");
            return Err(Violation::of_plan(self.members[by]));
        }
        #[cfg(feature = "sim")]
        if self.planted(Bug::OwnerSkipsDecoding)
            && chunk == self.me
            && !range.is_empty()
            && self.plan.cut.kept.is_none()
        {
            let exact =
                super::super::sum::sum(self.codec, &inputs, own, &mut self.room).expect("added up above");
            self.gathered.exact.insert(range.start, exact.to_vec());
        }
        Ok(sum.into())
    }
}
