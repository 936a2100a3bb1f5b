//! Products on a GPU: one launch each, with all that rides along.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::backend::wgpu::{CubeBackend, CubeTensor};

use super::{Products, Rest, Weight, WeightLayout, with_last};
use crate::cpu::activation::Activation;
use crate::ops::gemm::{Epilogue, Operand, gemm, takes_halves};
use crate::{halves, launch, matrices};

impl Products for CubeBackend {
    fn weight(full: CubeTensor) -> Weight<Self> {
        let full = launch::contiguous(full);
        let [rows, columns] = [full.shape()[0], full.shape()[1]];
        // Matrix units make halves of all numbers themselves.
        let packed = halves::wanted() && !matrices::taken() && takes_halves(&full, [rows, columns]);
        Weight {
            halves: packed.then(|| halves::pack(&full)),
            full,
        }
    }

    fn affine(
        x: &CubeTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        rest: Rest<Self>,
    ) -> (CubeTensor, Option<CubeTensor>) {
        let x = launch::contiguous(x.clone());
        let residual = rest.residual.map(launch::contiguous);
        let weight = Operand::of(&weight.full).or_halves(weight.halves.as_ref());
        let weight = match layout {
            WeightLayout::InputsFirst => weight,
            WeightLayout::OutputsFirst => weight.transposed(),
        };
        let epilogue = Epilogue {
            bias: rest.bias.as_ref(),
            activation: rest.activation,
            keep: rest.keep,
            add: residual.as_ref(),
            ..Epilogue::default()
        };
        let (out, sums) = gemm(Operand::of(&x), weight, epilogue);
        let shape = with_last(&x.shape(), out.shape()[1]);
        (
            launch::reshaped(out, shape.clone()),
            sums.map(|sums| launch::reshaped(sums, shape)),
        )
    }

    fn affine_input_gradient(
        gradient: &CubeTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        slope: Option<(Activation, &CubeTensor)>,
    ) -> CubeTensor {
        let gradient = launch::contiguous(gradient.clone());
        let weight = Operand::of(&weight.full).or_halves(weight.halves.as_ref());
        let weight = match layout {
            WeightLayout::InputsFirst => weight.transposed(),
            WeightLayout::OutputsFirst => weight,
        };
        let epilogue = Epilogue {
            slope,
            ..Epilogue::default()
        };
        let (out, _) = gemm(Operand::of(&gradient).gradient(), weight, epilogue);
        let shape = with_last(&gradient.shape(), out.shape()[1]);
        launch::reshaped(out, shape)
    }

    fn affine_weight_gradient(
        x: &CubeTensor,
        gradient: &CubeTensor,
        layout: WeightLayout,
        bias: bool,
    ) -> (CubeTensor, Option<CubeTensor>) {
        let (x, gradient) = (
            launch::contiguous(x.clone()),
            launch::contiguous(gradient.clone()),
        );
        let epilogue = Epilogue {
            sums: bias,
            ..Epilogue::default()
        };
        let (x, gradient) = (Operand::of(&x), Operand::of(&gradient).gradient());
        match layout {
            WeightLayout::InputsFirst => gemm(x.transposed(), gradient, epilogue),
            // The kernel sums the columns of its second operand, so the product is made turned.
            WeightLayout::OutputsFirst if bias => {
                let (turned, sums) = gemm(x.transposed(), gradient, epilogue);
                (Self::float_swap_dims(turned, 0, 1), sums)
            }
            WeightLayout::OutputsFirst => gemm(gradient.transposed(), x, epilogue),
        }
    }

    fn columns(matrix: &CubeTensor, columns: Range<usize>) -> CubeTensor {
        let rows = 0..matrix.shape()[0];
        launch::contiguous(Self::float_slice(matrix.clone(), &[rows.into(), columns.into()]))
    }
}
