//! Draws a model's initial parameters from the seed, and puts parameters into a model.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::layout::layout_of;
use crate::task::{Task, TaskError, Tensors};

/// Burn's CPU backend has one random generator for the whole process. Initial parameters must not depend on other users
/// of it, such as dropout in another worker, so nobody else may draw while they are made.
static RANDOM: RwLock<()> = RwLock::new(());

/// A lock for drawing random numbers in training. Workers share it with each other, but not with [`drawing_alone`].
pub(super) fn drawing() -> RwLockReadGuard<'static, ()> {
    RANDOM.read().unwrap_or_else(PoisonError::into_inner)
}

/// A lock for drawing initial parameters: nobody else draws meanwhile.
pub(super) fn drawing_alone() -> RwLockWriteGuard<'static, ()> {
    RANDOM.write().unwrap_or_else(PoisonError::into_inner)
}

/// The model as the seed makes it, and its parameters. It is always made on the CPU, whichever device will train it.
pub(super) fn initial_model<T: Task>(task: &T, seed: u64) -> (T::Model, Vec<f32>) {
    let _alone = drawing_alone();
    let cpu = Device::flex().autodiff();
    cpu.seed(seed);
    let model = task.model(&cpu);
    // Burn draws a parameter when it is first read, so this fixes the order.
    let params = parameters_of(&model);
    (model, params)
}

/// The parameters of a model in visiting order.
pub(super) fn parameters_of<M: Module>(model: &M) -> Vec<f32> {
    let mut collect = Collect::default();
    model.visit(&mut collect);
    collect.params
}

#[derive(Default)]
struct Collect {
    params: Vec<f32>,
}

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.base().inner().into_data_as::<f32>();
        // The data were just converted to this type.
        let values = data.as_slice::<f32>().expect("f32 data");
        self.params.extend_from_slice(values);
    }
}

/// The task's model with these parameters, in visiting order.
///
/// # Panics
///
/// If there are fewer values than parameters.
#[cfg(test)]
pub(crate) fn model_of<T: Task>(task: &T, params: &[f32], device: &Device) -> T::Model {
    // Burn draws a parameter's first values when it is first read, even if they are replaced at once.
    let _alone = drawing_alone();
    with_parameters(task.model(device), params, device)
}

/// Replaces a model's parameters, in visiting order, by as many values as `layout_of` says.
///
/// # Panics
///
/// If there are fewer values.
pub(crate) fn with_parameters<M: Module>(model: M, values: &[f32], device: &Device) -> M {
    model.map(&mut Load { rest: values, device })
}

/// The model with a model file's tensors as its parameters.
///
/// # Errors
///
/// If one is missing or has another size.
pub(crate) fn with_tensors<M: Module>(model: M, tensors: &Tensors, device: &Device) -> Result<M, TaskError> {
    let values = tensors.flat(&layout_of(&model, |_| None)?)?;
    Ok(with_parameters(model, &values, device))
}

/// Replaces the parameters, in visiting order.
struct Load<'a> {
    rest: &'a [f32],
    device: &'a Device,
}

impl ModuleMapper for Load<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.shape();
        let (values, rest) = self.rest.split_at(shape.num_elements());
        self.rest = rest;
        param.map(|old| {
            let data = TensorData::new(values.to_vec(), shape);
            Tensor::from_data(data, self.device).set_require_grad(old.is_require_grad())
        })
    }
}

/// A model with the same values but no shared graph: threads that share a graph wait for each other.
pub(super) fn detached<M: Module>(model: M) -> M {
    model.map(&mut Detach)
}

struct Detach;

impl ModuleMapper for Detach {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| {
            let tracked = old.is_require_grad();
            old.detach().set_require_grad(tracked)
        })
    }
}
