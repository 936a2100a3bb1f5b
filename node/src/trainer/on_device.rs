//! A model's parameters and gradients as vectors on a GPU. Knows neither tasks nor samples.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};

use super::read::{as_floats, read};
use super::worker::WorkerError;
use annulus_core::{Layout, TensorSpec};
use annulus_shaders::split::{SplitLayout, SplitVector};

/// Places for the parameters, and for what else follows them.
pub(super) fn places(
    layout: &Layout,
    behind: &[usize],
    largest: usize,
) -> Result<Arc<SplitLayout>, WorkerError> {
    let lengths = layout.tensors.iter().map(TensorSpec::len);
    let split = SplitLayout::new(lengths.chain(behind.iter().copied()), largest);
    split.map(Arc::new).map_err(|error| {
        let name = layout
            .tensors
            .get(error.index)
            .map_or("the loss", |tensor| &tensor.name);
        WorkerError::Unsupported {
            problem: format!(
                "{name} has {} numbers, and this device takes {} in one tensor; make the layer \
                 smaller, or use another device, such as --device cpu",
                error.len, error.largest
            ),
        }
    })
}

/// Reads the sums from the device: gradients into `buffer`, and the loss as the result.
pub(super) async fn read_total(total: &SplitVector, buffer: &mut [f32]) -> Result<f32, WorkerError> {
    let mut loss = [0.0];
    let mut rest = buffer;
    for part in total.parts() {
        let data = read(part.tensor()).await?;
        let layout = part.layout();
        // The loss comes after all gradients, perhaps in a buffer of its own.
        let gradients = layout.dense_len().min(rest.len());
        let (values, behind) = std::mem::take(&mut rest).split_at_mut(gradients);
        let also = layout.dense_len() - gradients;
        layout.gather(as_floats(&data)?, [values, &mut loss[..also]]);
        rest = behind;
    }
    let [loss] = loss;
    Ok(loss)
}

/// Makes each parameter a view of one vector that holds all of them.
pub(super) struct View<'a> {
    pub(super) vector: SplitVector,
    /// The device, with autodiff.
    pub(super) device: &'a Device,
    /// The number of the next tensor.
    pub(super) next: usize,
}

impl ModuleMapper for View<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.next;
        self.next += 1;
        param.map(|old| {
            let view = Tensor::from_inner(self.vector.view(index, old.dims()));
            // A tensor that is created on the device would take this from the device.
            let view = match self.device.gradient_checkpointing_strategy() {
                Some(strategy) => view.with_gradient_checkpointing_strategy(strategy),
                None => view,
            };
            view.set_require_grad(old.is_require_grad())
        })
    }
}

/// Collects all gradients that exist, and then the loss.
pub(super) fn gradients_and_loss<M: Module>(
    model: &M,
    gradients: &mut Gradients,
    loss: Tensor<1>,
) -> Vec<Option<Tensor<1>>> {
    struct Parts<'a> {
        gradients: &'a mut Gradients,
        parts: Vec<Option<Tensor<1>>>,
    }

    impl ModuleVisitor for Parts<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.base().grad_remove(self.gradients);
            self.parts.push(gradient.map(|gradient| {
                let length = gradient.shape().num_elements();
                gradient.reshape([length])
            }));
        }
    }

    let mut parts = Parts {
        gradients,
        parts: Vec::new(),
    };
    model.visit(&mut parts);
    parts.parts.push(Some(loss));
    parts.parts
}
