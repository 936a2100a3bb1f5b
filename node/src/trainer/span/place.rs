//! Puts some of a model's parameters in their place while the others never come to exist, and collects their gradients.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

/// The model, on a device with autodiff, with the tensors that are given, in visiting order. `track` says which of them
/// get gradients. Nothing is copied.
pub(super) fn placed<M: Module>(model: M, tensors: &[Option<Tensor<1>>], track: &[bool]) -> M {
    model.map(&mut Place {
        tensors,
        track: Some(track),
        next: 0,
    })
}

/// A model with these tensors, on a device without autodiff.
#[cfg(not(target_family = "wasm"))]
pub(super) fn plain<M: Module>(model: M, tensors: &[Option<Tensor<1>>]) -> M {
    model.map(&mut Place {
        tensors,
        track: None,
        next: 0,
    })
}

struct Place<'a> {
    tensors: &'a [Option<Tensor<1>>],
    /// With autodiff: which tensors get gradients.
    track: Option<&'a [bool]>,
    next: usize,
}

impl ModuleMapper for Place<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.next;
        self.next += 1;
        let Some(values) = &self.tensors[index] else {
            return param;
        };
        let tensor = values.clone().reshape(param.lazy_shape().dims::<D>());
        let tensor = match self.track {
            Some(track) => Tensor::from_inner(tensor).set_require_grad(track[index]),
            None => tensor,
        };
        Param::initialized(param.id, tensor)
    }
}

/// The gradients of these tensors (ascending numbers in visiting order), each flattened. None for a tensor that is
/// frozen or that the loss does not use.
pub(super) fn gradients_of<M: Module>(
    model: &M,
    tensors: &[usize],
    gradients: &mut Gradients,
) -> Vec<Option<Tensor<1>>> {
    let mut take = Take {
        tensors,
        gradients,
        parts: Vec::with_capacity(tensors.len()),
        next: 0,
    };
    model.visit(&mut take);
    take.parts
}

struct Take<'a> {
    tensors: &'a [usize],
    gradients: &'a mut Gradients,
    parts: Vec<Option<Tensor<1>>>,
    next: usize,
}

impl ModuleVisitor for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Reading the others would create them.
        if self.tensors.contains(&self.next) {
            let gradient = param.base().grad_remove(self.gradients);
            self.parts.push(gradient.map(|gradient| {
                let length = gradient.shape().num_elements();
                gradient.reshape([length])
            }));
        }
        self.next += 1;
    }
}
