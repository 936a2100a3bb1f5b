//! Softmax and cross-entropy in one.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Int, Tensor};
use bytemuck::{Pod, Zeroable};

use super::gradients::differentiable;
use super::host;
use super::rows::Rows;
use crate::cpu;
use crate::kernel::{
    CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, CROSS_ENTROPY_BACKWARD_SCALAR, CROSS_ENTROPY_MEAN,
    CROSS_ENTROPY_SCALAR, Kernel, fitting,
};
use crate::launch::{contiguous, empty, grid, integers, lanes, launch};

/// The mean of the cross-entropy between each row's softmax and the class that `targets` names, over
/// the rows whose target is not `ignore`; 0 if there are none. Logits are `[.., classes]`, targets the
/// same without the last axis, or flattened.
///
/// A target that is neither a class nor `ignore` makes the loss and that row's gradients not a number
/// on a GPU, which cannot complain in words.
///
/// # Panics
///
/// If there are not as many targets as rows, or no rows; on the CPU backend also for such a target.
pub fn cross_entropy<const D: usize, const E: usize>(
    logits: Tensor<D>,
    targets: Tensor<E, Int>,
    ignore: Option<i32>,
) -> Tensor<1> {
    let (logits, targets) = (logits.into_dispatch(), targets.into_dispatch());
    Tensor::from_dispatch(Dispatch::cross_entropy(logits, targets, ignore))
}

/// The loss and its gradient, not differentiable.
pub trait Losses: Backend {
    /// The mean loss, and what the backward pass needs of it.
    fn mean_loss(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        ignore: Option<i32>,
    ) -> (FloatTensor<Self>, Saved<Self>);

    /// The gradient for the logits, from that for the loss.
    fn logits_gradient(saved: &Saved<Self>, upstream: &FloatTensor<Self>) -> FloatTensor<Self>;
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
pub struct Saved<B: Backend> {
    logits: FloatTensor<B>,
    targets: IntTensor<B>,
    ignore: Option<i32>,
    /// log(sum(exp(logits))) of each row.
    norms: FloatTensor<B>,
    /// Sum of the losses, and how many there are.
    pub(super) sums: FloatTensor<B>,
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait CrossEntropyOps: Backend {
    /// See [`cross_entropy`].
    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        ignore: Option<i32>,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl CrossEntropyOps for $backend {
            fn cross_entropy(
                logits: FloatTensor<Self>,
                targets: IntTensor<Self>,
                ignore: Option<i32>,
            ) -> FloatTensor<Self> {
                Self::mean_loss(logits, targets, ignore).0
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: CrossEntropyOps + Losses, C: CheckpointStrategy> CrossEntropyOps for Autodiff<B, C> {
    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        ignore: Option<i32>,
    ) -> FloatTensor<Self> {
        differentiable::<B, C, _, 1>(
            [logits.node()],
            |_| B::mean_loss(logits.into_primitive(), targets, ignore),
            |saved, upstream, _| [Some(B::logits_gradient(&saved, &upstream))],
        )
    }
}

static FORWARD: [&Kernel; 2] = [&CROSS_ENTROPY, &CROSS_ENTROPY_SCALAR];
static BACKWARD: [&Kernel; 2] = [&CROSS_ENTROPY_BACKWARD, &CROSS_ENTROPY_BACKWARD_SCALAR];

/// The kernels for this number of classes.
pub(crate) fn kernels(classes: usize) -> Vec<&'static Kernel> {
    vec![
        fitting(FORWARD, classes).0,
        fitting(BACKWARD, classes).0,
        &CROSS_ENTROPY_MEAN,
    ]
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ForwardParams {
    rows: u32,
    width: u32,
    lanes: u32,
    flags: u32,
    groups: u32,
    ignore: i32,
    invalid: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BackwardParams {
    rows: u32,
    width: u32,
    lanes: u32,
    flags: u32,
    ignore: i32,
    invalid: f32,
}

fn check(rows: &Rows, targets: &impl TensorMetadata) {
    assert!(!rows.is_empty(), "the loss of no rows");
    let count = targets.shape().num_elements();
    assert_eq!(rows.count, count, "as many targets as rows of logits");
}

impl Losses for CubeBackend {
    fn mean_loss(logits: CubeTensor, targets: CubeTensor, ignore: Option<i32>) -> (CubeTensor, Saved<Self>) {
        let rows = Rows::of(&logits);
        check(&rows, &targets);
        let (logits, targets) = (contiguous(logits), integers(targets));
        let (kernel, width) = fitting(FORWARD, rows.width);
        // Few short rows fit into one workgroup, which saves a launch.
        let lanes = if rows.count <= 64 && width <= 16 {
            1
        } else {
            lanes(&logits, width)
        };
        let groups = rows.count.div_ceil((64 / lanes) as usize);
        let (norms, parts) = (empty(&logits, [rows.count]), empty(&logits, [groups, 2]));
        let loss = empty(&logits, [1]);
        let params = ForwardParams {
            rows: rows.count as u32,
            width: width as u32,
            lanes,
            flags: u32::from(ignore.is_some()),
            groups: groups as u32,
            ignore: ignore.unwrap_or_default(),
            invalid: f32::NAN,
        };
        launch(
            kernel,
            &[&logits, &targets],
            &[&norms, &parts, &loss],
            params,
            grid(groups),
        );
        let sums = if groups == 1 {
            parts
        } else {
            let sums = empty(&logits, [1, 2]);
            launch(
                &CROSS_ENTROPY_MEAN,
                &[&parts],
                &[&sums, &loss],
                groups as u32,
                [1, 1, 1],
            );
            sums
        };
        let saved = Saved {
            logits,
            targets,
            ignore,
            norms,
            sums,
        };
        (loss, saved)
    }

    fn logits_gradient(saved: &Saved<Self>, upstream: &CubeTensor) -> CubeTensor {
        let Saved {
            logits,
            targets,
            ignore,
            norms,
            sums,
        } = saved;
        let rows = Rows::of(logits);
        let upstream = contiguous(upstream.clone());
        let to_logits = empty(logits, logits.shape());
        let (kernel, width) = fitting(BACKWARD, rows.width);
        let lanes = lanes(logits, width);
        let params = BackwardParams {
            rows: rows.count as u32,
            width: width as u32,
            lanes,
            flags: u32::from(ignore.is_some()),
            ignore: ignore.unwrap_or_default(),
            invalid: f32::NAN,
        };
        let groups = grid(rows.count.div_ceil((64 / lanes) as usize));
        launch(
            kernel,
            &[logits, targets, norms, sums, &upstream],
            &[&to_logits],
            params,
            groups,
        );
        to_logits
    }
}

impl Losses for Flex {
    fn mean_loss(logits: FlexTensor, targets: FlexTensor, ignore: Option<i32>) -> (FlexTensor, Saved<Self>) {
        let rows = Rows::of(&logits);
        check(&rows, &targets);
        let (logits, targets) = (host::contiguous(logits), host::integers(targets));
        let (numbers, classes) = (host::floats(&logits), host::whole(&targets));
        let losses = match cpu::cross_entropy::cross_entropy(numbers, rows.width, classes, ignore) {
            Ok(losses) => losses,
            Err(error) => panic!("{error}"),
        };
        let saved = Saved {
            logits,
            targets,
            ignore,
            norms: host::tensor(losses.norms, [rows.count]),
            sums: host::tensor(losses.sums.to_vec(), [1, 2]),
        };
        (host::tensor(vec![losses.mean], [1]), saved)
    }

    fn logits_gradient(saved: &Saved<Self>, upstream: &FlexTensor) -> FlexTensor {
        let upstream = host::contiguous(upstream.clone());
        let sums = host::floats(&saved.sums);
        let gradient = cpu::cross_entropy::cross_entropy_backward(
            host::floats(&saved.logits),
            Rows::of(&saved.logits).width,
            host::whole(&saved.targets),
            saved.ignore,
            (host::floats(&saved.norms), [sums[0], sums[1]]),
            host::floats(&upstream)[0],
        );
        host::tensor(gradient, saved.logits.shape())
    }
}
