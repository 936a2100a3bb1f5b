//! Products on Burn's CPU backend, and loops for what rides along.

use std::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};

use super::{Products, Rest, Weight, WeightLayout, with_last};
use crate::cpu;
use crate::cpu::activation::Activation;
use crate::cpu::gemm::Matrix;
use crate::cpu::product::product;
use crate::ops::host;

impl Products for Flex {
    fn weight(full: FlexTensor) -> Weight<Self> {
        Weight {
            full: host::contiguous(full),
            halves: None,
        }
    }

    fn affine(
        x: &FlexTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        rest: Rest<Self>,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let mut out = times(x, weight, layout == WeightLayout::OutputsFirst);
        if let Some(bias) = rest.bias {
            cpu::gemm::add_bias(out.storage_mut(), host::floats(&host::contiguous(bias)));
        }
        let sums = rest.keep.then(|| out.clone());
        rest.activation.apply_all(out.storage_mut::<f32>());
        if let Some(residual) = rest.residual {
            let residual = host::contiguous(residual);
            for (x, r) in out.storage_mut::<f32>().iter_mut().zip(host::floats(&residual)) {
                *x += *r;
            }
        }
        (out, sums)
    }

    fn affine_input_gradient(
        gradient: &FlexTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        slope: Option<(Activation, &FlexTensor)>,
    ) -> FlexTensor {
        let mut out = times(gradient, weight, layout == WeightLayout::InputsFirst);
        if let Some((activation, input)) = slope {
            cpu::gemm::times_slope(
                out.storage_mut(),
                host::floats(&host::contiguous(input.clone())),
                activation,
            );
        }
        out
    }

    fn affine_weight_gradient(
        x: &FlexTensor,
        gradient: &FlexTensor,
        layout: WeightLayout,
        bias: bool,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let (x, gradient) = (host::contiguous(x.clone()), host::contiguous(gradient.clone()));
        let (x, gradient) = (Operand::of(&x), Operand::of(&gradient));
        let sums = bias.then(|| {
            host::tensor(
                cpu::gemm::column_sums(gradient.numbers, gradient.columns),
                [gradient.columns],
            )
        });
        let (first, second) = match layout {
            WeightLayout::InputsFirst => (x, gradient),
            WeightLayout::OutputsFirst => (gradient, x),
        };
        let product = product(
            [first.columns, second.columns, first.rows()],
            first.matrix().transposed(),
            second.matrix(),
        );
        (host::tensor(product, [first.columns, second.columns]), sums)
    }

    fn columns(matrix: &FlexTensor, columns: Range<usize>) -> FlexTensor {
        let rows = 0..matrix.shape()[0];
        host::contiguous(Self::float_slice(matrix.clone(), &[rows.into(), columns.into()]))
    }
}

/// A tensor as a matrix of its last axis, the others being rows.
#[derive(Clone, Copy)]
struct Operand<'a> {
    numbers: &'a [f32],
    columns: usize,
}

impl<'a> Operand<'a> {
    fn of(contiguous: &'a FlexTensor) -> Self {
        let shape = contiguous.shape();
        Self {
            numbers: host::floats(contiguous),
            columns: shape[shape.num_dims() - 1],
        }
    }

    fn rows(self) -> usize {
        self.numbers.len() / self.columns.max(1)
    }

    fn matrix(self) -> Matrix<'a, f32> {
        Matrix::row_major(self.numbers, self.columns)
    }
}

/// `x w`, or `x wᵀ` if `transposed`.
fn times(x: &FlexTensor, weight: &Weight<Flex>, transposed: bool) -> FlexTensor {
    let (x, weight) = (host::contiguous(x.clone()), host::contiguous(weight.full.clone()));
    let shape = x.shape();
    let (x, weight) = (Operand::of(&x), Operand::of(&weight));
    let (matrix, columns) = if transposed {
        (weight.matrix().transposed(), weight.rows())
    } else {
        (weight.matrix(), weight.columns)
    };
    let out = product([x.rows(), columns, x.columns], x.matrix(), matrix);
    host::tensor(out, with_last(&shape, columns))
}
