//! Convolutions by the twins.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};

use super::{Convolutions, Saved};
use crate::cpu::convolution::to_bias;
use crate::ops::host;

impl Convolutions for Flex {
    fn convolved(given: &Saved<Flex>, bias: Option<&FlexTensor>) -> FlexTensor {
        let (sizes, shape) = (given.sizes(), given.made());
        let [x, weight] = [&given.x, &given.weight].map(|tensor| host::contiguous(tensor.clone()));
        let [x, weight] = [&x, &weight].map(host::floats);
        let mut out = match given.transposed {
            false => sizes.forward(x, weight),
            true => sizes.to_input(weight, x),
        };
        if let Some(bias) = bias.map(|bias| host::contiguous(bias.clone())) {
            let size: usize = shape.as_slice()[2..].iter().product();
            let planes = out.chunks_exact_mut(size.max(1));
            for (plane, bias) in planes.zip(host::floats(&bias).iter().cycle()) {
                plane.iter_mut().for_each(|x| *x += *bias);
            }
        }
        host::tensor(out, shape)
    }

    fn convolution_gradients(
        saved: Saved<Flex>,
        gradient: FlexTensor,
        [on_x, on_weight, on_bias]: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let sizes = saved.sizes();
        let shapes = [saved.x.shape(), saved.weight.shape()];
        let [x, weight, gradient] = [saved.x, saved.weight, gradient].map(host::contiguous);
        let [x, weight, gradient] = [&x, &weight, &gradient].map(host::floats);
        let [to_x, to_weight, to_bias] = match saved.transposed {
            false => [
                on_x.then(|| sizes.to_input(weight, gradient)),
                on_weight.then(|| sizes.to_weight(x, gradient)),
                on_bias.then(|| to_bias(gradient, sizes.outputs, sizes.output)),
            ],
            true => [
                on_x.then(|| sizes.forward(gradient, weight)),
                on_weight.then(|| sizes.to_weight(gradient, x)),
                on_bias.then(|| to_bias(gradient, sizes.inputs, sizes.input)),
            ],
        };
        let [x_shape, weight_shape] = shapes;
        [
            to_x.map(|numbers| host::tensor(numbers, x_shape)),
            to_weight.map(|numbers| host::tensor(numbers, weight_shape)),
            to_bias.map(|numbers| {
                let length = numbers.len();
                host::tensor(numbers, [length])
            }),
        ]
    }
}
