//! Layer norm and RMS norm.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Tensor};
use bytemuck::{Pod, Zeroable};

use super::gradients::differentiable;
use super::host;
use super::optional::{Optional, Parent, optional};
use super::rows::Rows;
use crate::cpu;
use crate::cpu::norm::Norm;
use crate::kernel::{Kernel, NORM, NORM_BACKWARD, NORM_BACKWARD_SCALAR, NORM_SCALAR, fitting};
use crate::launch::{contiguous, empty, grid, lanes, launch};

/// Brings each row of the last axis to mean 0 and variance 1, then scales by `gamma` and shifts by
/// `beta`, both as long as a row. `epsilon` is added to the variance.
///
/// # Panics
///
/// If `gamma` or `beta` is not as long as a row.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f32,
) -> Tensor<D> {
    let beta = optional(beta);
    Tensor::from_dispatch(Dispatch::norm(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta,
        Norm::Layer,
        epsilon,
    ))
}

/// Brings each row of the last axis to mean square 1, then scales by `gamma`, as long as a row.
/// `epsilon` is added to the mean square.
///
/// # Panics
///
/// If `gamma` is not as long as a row.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f32) -> Tensor<D> {
    let (x, gamma) = (x.into_dispatch(), gamma.into_dispatch());
    Tensor::from_dispatch(Dispatch::norm(x, gamma, Optional::Missing, Norm::Rms, epsilon))
}

/// Norms and their gradients, not differentiable.
pub trait Norms: Backend {
    /// The rows, and mean and 1 / deviation of each.
    fn normed(
        x: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        beta: Option<&FloatTensor<Self>>,
        kind: Norm,
        epsilon: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Gradients for x, gamma and, if `shifted`, beta.
    fn norm_gradients(
        saved: &Saved<Self>,
        gradient: &FloatTensor<Self>,
        kind: Norm,
        shifted: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Option<FloatTensor<Self>>);
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
pub struct Saved<B: Backend> {
    /// What went in.
    pub x: FloatTensor<B>,
    /// Mean and 1 / deviation of each row.
    pub stats: FloatTensor<B>,
    /// The scale.
    pub gamma: FloatTensor<B>,
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait NormOps: Backend {
    /// See [`layer_norm`] and [`rms_norm`].
    fn norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Optional<Self>,
        kind: Norm,
        epsilon: f32,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl NormOps for $backend {
            fn norm(
                x: FloatTensor<Self>,
                gamma: FloatTensor<Self>,
                beta: Optional<Self>,
                kind: Norm,
                epsilon: f32,
            ) -> FloatTensor<Self> {
                Self::normed(&x, &gamma, beta.into_option().as_ref(), kind, epsilon).0
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: NormOps + Norms, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Optional<Self>,
        kind: Norm,
        epsilon: f32,
    ) -> FloatTensor<Self> {
        let beta = Parent::new(beta, &x);
        let nodes = [x.node(), gamma.node(), beta.node];
        let (x, gamma) = (x.into_primitive(), gamma.into_primitive());
        let forward = |_| {
            let (out, stats) = B::normed(&x, &gamma, beta.inner.as_ref(), kind, epsilon);
            (out, (Saved { x, stats, gamma }, kind, beta.inner.is_some()))
        };
        differentiable::<B, C, _, 3>(
            nodes,
            forward,
            |(saved, kind, shifted), gradient, [_, _, on_beta]| {
                let (to_x, to_gamma, to_beta) =
                    B::norm_gradients(&saved, &gradient, kind, shifted && on_beta);
                [Some(to_x), Some(to_gamma), to_beta]
            },
        )
    }
}

static FORWARD: [&Kernel; 2] = [&NORM, &NORM_SCALAR];
static BACKWARD: [&Kernel; 2] = [&NORM_BACKWARD, &NORM_BACKWARD_SCALAR];

/// Those that rows of `width` numbers take.
pub(crate) fn kernels(width: usize) -> Vec<&'static Kernel> {
    vec![fitting(FORWARD, width).0, fitting(BACKWARD, width).0]
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ForwardParams {
    rows: u32,
    width: u32,
    lanes: u32,
    flags: u32,
    epsilon: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BackwardParams {
    rows: u32,
    width: u32,
    lanes: u32,
    flags: u32,
    row_groups: u32,
}

const CENTRED: u32 = 1;
const SHIFTED: u32 = 2;
/// Columns, in elements, that a workgroup of the backward pass takes.
const ACROSS: usize = 8;

fn flags(kind: Norm, shifted: bool) -> u32 {
    let centred = if kind == Norm::Layer { CENTRED } else { 0 };
    centred | if shifted { SHIFTED } else { 0 }
}

fn check(rows: &Rows, gamma: &impl TensorMetadata, beta: Option<&impl TensorMetadata>) {
    let lengths = [
        Some(gamma.shape().num_elements()),
        beta.map(|beta| beta.shape().num_elements()),
    ];
    for length in lengths.into_iter().flatten() {
        assert_eq!(
            length, rows.width,
            "scale and shift of a norm are as long as a row"
        );
    }
}

impl Norms for CubeBackend {
    fn normed(
        x: &CubeTensor,
        gamma: &CubeTensor,
        beta: Option<&CubeTensor>,
        kind: Norm,
        epsilon: f32,
    ) -> (CubeTensor, CubeTensor) {
        let rows = Rows::of(x);
        check(&rows, gamma, beta);
        let (x, gamma) = (contiguous(x.clone()), contiguous(gamma.clone()));
        let beta = beta.map(|beta| contiguous(beta.clone()));
        let (out, stats) = (empty(&x, x.shape()), empty(&x, [rows.count, 2]));
        if rows.is_empty() {
            return (out, stats);
        }
        let (kernel, width) = fitting(FORWARD, rows.width);
        let lanes = lanes(&x, width);
        let params = ForwardParams {
            rows: rows.count as u32,
            width: width as u32,
            lanes,
            flags: flags(kind, beta.is_some()),
            epsilon,
        };
        let groups = grid(rows.count.div_ceil((64 / lanes) as usize));
        let inputs = [&x, &gamma, beta.as_ref().unwrap_or(&gamma)];
        launch(kernel, &inputs, &[&out, &stats], params, groups);
        (out, stats)
    }

    fn norm_gradients(
        saved: &Saved<Self>,
        gradient: &CubeTensor,
        kind: Norm,
        shifted: bool,
    ) -> (CubeTensor, CubeTensor, Option<CubeTensor>) {
        let rows = Rows::of(&saved.x);
        if rows.is_empty() {
            let zeros = || Self::float_zeros([rows.width].into(), &saved.x.device, FloatDType::F32);
            return (saved.x.clone(), zeros(), shifted.then(zeros));
        }
        let (x, gamma) = (contiguous(saved.x.clone()), contiguous(saved.gamma.clone()));
        let gradient = contiguous(gradient.clone());
        let (to_x, to_gamma) = (empty(&x, x.shape()), empty(&x, [rows.width]));
        // Whole vec4s, also where there is nothing to write.
        let to_beta = empty(&x, [if shifted { rows.width } else { 4 }]);
        let (kernel, width) = fitting(BACKWARD, rows.width);
        let lanes = lanes(&x, width);
        let row_groups = rows.count.div_ceil((256 / lanes) as usize);
        let params = BackwardParams {
            rows: rows.count as u32,
            width: width as u32,
            lanes,
            flags: flags(kind, shifted),
            row_groups: row_groups as u32,
        };
        let inputs = [&x, &saved.stats, &gamma, &gradient];
        let groups = grid(row_groups + width.div_ceil(ACROSS));
        launch(kernel, &inputs, &[&to_x, &to_gamma, &to_beta], params, groups);
        (to_x, to_gamma, shifted.then_some(to_beta))
    }
}

impl Norms for Flex {
    fn normed(
        x: &FlexTensor,
        gamma: &FlexTensor,
        beta: Option<&FlexTensor>,
        kind: Norm,
        epsilon: f32,
    ) -> (FlexTensor, FlexTensor) {
        let rows = Rows::of(x);
        check(&rows, gamma, beta);
        if rows.is_empty() {
            return (x.clone(), host::tensor(Vec::new(), [0, 2]));
        }
        let (x, gamma) = (host::contiguous(x.clone()), host::contiguous(gamma.clone()));
        let beta = beta.map(|beta| host::contiguous(beta.clone()));
        let beta = beta.as_ref().map(host::floats);
        let normed = cpu::norm::norm(host::floats(&x), host::floats(&gamma), beta, kind, epsilon);
        (
            host::tensor(normed.out, x.shape()),
            host::tensor(normed.stats, [rows.count, 2]),
        )
    }

    fn norm_gradients(
        saved: &Saved<Self>,
        gradient: &FlexTensor,
        kind: Norm,
        shifted: bool,
    ) -> (FlexTensor, FlexTensor, Option<FlexTensor>) {
        let (x, gamma) = (
            host::contiguous(saved.x.clone()),
            host::contiguous(saved.gamma.clone()),
        );
        let gradient = host::contiguous(gradient.clone());
        let found = cpu::norm::norm_backward(
            host::floats(&x),
            host::floats(&saved.stats),
            host::floats(&gamma),
            host::floats(&gradient),
            kind,
        );
        let width = [found.gamma.len()];
        let beta = shifted.then(|| host::tensor(found.beta, width));
        (
            host::tensor(found.x, x.shape()),
            host::tensor(found.gamma, width),
            beta,
        )
    }
}
