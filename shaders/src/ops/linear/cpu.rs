//! Products on Burn's CPU backend: its own, and loops of ours for what rides along.

use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};

use super::{Products, Rest, Weight, WeightLayout, with_last};
use crate::cpu;
use crate::cpu::activation::Activation;
use crate::ops::host;

impl Products for Flex {
    fn affine(
        x: &FlexTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        rest: Rest<Self>,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let shape = with_last(
            &x.shape(),
            match layout {
                WeightLayout::InputsFirst => weight.full.shape()[1],
                WeightLayout::OutputsFirst => weight.full.shape()[0],
            },
        );
        let weight = match layout {
            WeightLayout::InputsFirst => weight.full.clone(),
            WeightLayout::OutputsFirst => weight.full.transpose(0, 1),
        };
        let mut out = host::contiguous(Self::float_matmul(as_matrix(x), weight));
        if let Some(bias) = rest.bias {
            cpu::gemm::add_bias(out.storage_mut(), host::floats(&host::contiguous(bias)));
        }
        let sums = rest.keep.then(|| host::reshaped(out.clone(), shape.clone()));
        rest.activation.apply_all(out.storage_mut::<f32>());
        if let Some(residual) = rest.residual {
            let residual = host::contiguous(residual);
            for (x, r) in out.storage_mut::<f32>().iter_mut().zip(host::floats(&residual)) {
                *x += *r;
            }
        }
        (host::reshaped(out, shape), sums)
    }

    fn affine_input_gradient(
        gradient: &FlexTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        slope: Option<(Activation, &FlexTensor)>,
    ) -> FlexTensor {
        let weight = match layout {
            WeightLayout::InputsFirst => weight.full.transpose(0, 1),
            WeightLayout::OutputsFirst => weight.full.clone(),
        };
        let shape = with_last(&gradient.shape(), weight.shape()[1]);
        let mut out = host::contiguous(Self::float_matmul(as_matrix(gradient), weight));
        if let Some((activation, input)) = slope {
            cpu::gemm::times_slope(
                out.storage_mut(),
                host::floats(&host::contiguous(input.clone())),
                activation,
            );
        }
        host::reshaped(out, shape)
    }

    fn affine_weight_gradient(
        x: &FlexTensor,
        gradient: &FlexTensor,
        layout: WeightLayout,
        bias: bool,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let (x, gradient) = (as_matrix(x), as_matrix(gradient));
        let columns = gradient.shape()[1];
        let sums = bias.then(|| {
            host::tensor(
                cpu::gemm::column_sums(host::floats(&gradient), columns),
                [columns],
            )
        });
        let product = match layout {
            WeightLayout::InputsFirst => Self::float_matmul(x.transpose(0, 1), gradient),
            WeightLayout::OutputsFirst => Self::float_matmul(gradient.transpose(0, 1), x),
        };
        (product, sums)
    }
}

/// All axes but the last as rows.
fn as_matrix(x: &FlexTensor) -> FlexTensor {
    let shape = x.shape();
    let columns = shape[shape.num_dims() - 1];
    host::reshaped(x.clone(), [shape.num_elements() / columns, columns])
}
