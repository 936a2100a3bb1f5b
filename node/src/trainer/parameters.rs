//! A model's parameters: as the seed makes them, and put into a model.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};

use crate::task::Task;

/// Burn's CPU backend has one random generator for the whole process. Initial parameters must not
/// depend on what else draws from it (dropout in another worker), so they are made alone.
static RANDOM: RwLock<()> = RwLock::new(());

/// Held by who draws random numbers in training: shared with other workers, but not with the making of initial
/// parameters.
pub(super) fn drawing() -> RwLockReadGuard<'static, ()> {
    RANDOM.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by who makes initial parameters: nobody else draws meanwhile.
pub(super) fn drawing_alone() -> RwLockWriteGuard<'static, ()> {
    RANDOM.write().unwrap_or_else(PoisonError::into_inner)
}

/// The model as the seed makes it, on the CPU whatever device will train it, and its parameters.
pub(super) fn initial_model<T: Task>(task: &T, seed: u64) -> (T::Model, Vec<f32>) {
    let _alone = drawing_alone();
    let cpu = Device::flex().autodiff();
    cpu.seed(seed);
    let model = task.model(&cpu);
    // Burn draws a parameter when it is first looked at, so this fixes the order.
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
    // A parameter draws its first values when it is first looked at, also one that is replaced at once.
    let _alone = drawing_alone();
    with_parameters(task.model(device), params, device)
}

/// A model whose parameters are replaced, in visiting order, by as many values as `layout_of` says.
///
/// # Panics
///
/// If there are fewer values.
pub(super) fn with_parameters<M: Module>(model: M, values: &[f32], device: &Device) -> M {
    model.map(&mut Load { rest: values, device })
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

/// A model with the same values, in no graph with the old: threads that share a graph wait for each other.
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
