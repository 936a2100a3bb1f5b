//! Attention on a processor: the twin's loops over tensors in memory.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};

use super::{Attention, Operands, Saved, steps};
use crate::cpu::attention::{self, Bias, Given, Passed, Place, Placed, Sizes};
use crate::ops::heads::{Order, placed_on_host};
use crate::ops::host;

/// Operands and mask in memory.
struct HostInputs {
    qkv: [FlexTensor; 3],
    places: [Place; 3],
    mask: Option<FlexTensor>,
}

impl HostInputs {
    fn new(operands: &Operands<Flex>, mask: Option<&FlexTensor>, sizes: Sizes) -> Self {
        let (qkv, places) = match operands {
            Operands::Packed(qkv) => {
                let qkv = host::contiguous(qkv.clone());
                let start = qkv.layout().start_offset();
                let places = Place::packed(sizes).map(|place| Place {
                    start: start + place.start,
                    ..place
                });
                ([qkv.clone(), qkv.clone(), qkv], places)
            }
            Operands::Separate(qkv) => {
                let [q, k, v] = qkv.each_ref().map(placed_on_host);
                ([q.0, k.0, v.0], [q.1, k.1, v.1])
            }
        };
        let mask = mask.map(|mask| host::contiguous(mask.clone()));
        Self { qkv, places, mask }
    }

    fn given(&self) -> Given<'_, f32> {
        let [q, k, v] = [0, 1, 2].map(|kind| Placed {
            numbers: self.qkv[kind].storage(),
            place: self.places[kind],
        });
        let bias = self.mask.as_ref().map(|mask| {
            let strides: Vec<usize> = mask
                .layout()
                .strides()
                .iter()
                .map(|step| *step as usize)
                .collect();
            Bias {
                numbers: host::floats(mask),
                steps: steps(&mask.shape(), &strides),
            }
        });
        Given { q, k, v, bias }
    }
}

impl Attention for Flex {
    fn attention_forward(
        operands: &Operands<Self>,
        mask: Option<&FlexTensor>,
        sizes: Sizes,
    ) -> (FlexTensor, FlexTensor) {
        let inputs = HostInputs::new(operands, mask, sizes);
        let order = Order::of(inputs.places[0]);
        let place = order.place(sizes.queries, sizes.heads, sizes.head_dim);
        let (out, lse) = attention::forward(inputs.given(), place, sizes);
        let out = match operands {
            Operands::Packed(_) => host::tensor(out, [sizes.batch, sizes.queries, sizes.inner()]),
            Operands::Separate(_) => made_on_host(out, order, sizes, 0),
        };
        (out, host::tensor(lse, [sizes.batch, sizes.heads, sizes.queries]))
    }

    fn attention_backward(saved: &Saved<Self>, gradient: FlexTensor, sizes: Sizes) -> Operands<Self> {
        let inputs = HostInputs::new(&saved.operands, saved.mask.as_ref(), sizes);
        let order = Order::of(inputs.places[0]);
        let packed = matches!(saved.operands, Operands::Packed(_));
        let [out, d_out] = [&saved.out, &gradient].map(|tensor| match packed {
            true => {
                let tensor = host::contiguous(tensor.clone());
                let place = order.place(sizes.queries, sizes.heads, sizes.head_dim);
                let start = tensor.layout().start_offset();
                (tensor, Place { start, ..place })
            }
            false => placed_on_host(tensor),
        });
        let [out, d_out] = [&out, &d_out].map(|(tensor, place)| Placed {
            numbers: tensor.storage(),
            place: *place,
        });
        let lse = host::floats(&saved.lse);
        let passed = Passed { out, d_out, lse };
        if packed {
            let shape = inputs.qkv[0].shape();
            let to = Place::packed(sizes).map(|place| (0, place));
            let lengths = [shape.num_elements()];
            let slopes = attention::backward(inputs.given(), passed, &lengths, to, sizes).remove(0);
            return Operands::Packed(host::tensor(slopes, shape));
        }
        let to = [0, 1, 2].map(|kind| {
            let (tokens, heads) = (sizes.tokens()[kind], sizes.heads_of()[kind]);
            (kind, order.place(tokens, heads, sizes.head_dim))
        });
        let lengths = [0, 1, 2].map(|kind| sizes.batch * to[kind].1.batch);
        let slopes = attention::backward(inputs.given(), passed, &lengths, to, sizes);
        let slopes: [Vec<f32>; 3] = slopes.try_into().expect("a buffer of each length");
        let mut kinds = 0..;
        let tensors = slopes.map(|slopes| {
            let kind = kinds.next().expect("endless");
            made_on_host(slopes, order, sizes, kind)
        });
        Operands::Separate(tensors)
    }
}

/// Queries, keys or values of numbers that were made in this order.
fn made_on_host(numbers: Vec<f32>, order: Order, sizes: Sizes, kind: usize) -> FlexTensor {
    let (tokens, heads) = (sizes.tokens()[kind], sizes.heads_of()[kind]);
    order.on_host(numbers, [sizes.batch, heads, tokens, sizes.head_dim])
}
