//! Sums gradients on the CPU into a vector of the host, with one batch per core at a time.

use annulus_shaders::cpu::keep_to;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, read_sync};

use super::backward::backward;
use super::parameters::detached;
use super::prefetch::Batches;
use super::read::{as_floats, read, read_scalar};
use super::worker::WorkerError;
use crate::task::Task;

/// Adds the gradients of this many batches to `sum` and returns the sum of the losses. Reading gradients is only a copy
/// here. Each thread computes one batch, and the results are added in the order of the batches, so the bits do not
/// depend on the number of threads.
pub(super) fn add_up<T: Task>(
    task: &T,
    model: &T::Model,
    device: &Device,
    batches: &mut Batches<T>,
    count: usize,
    threads: usize,
    sum: &mut [f32],
) -> Result<f32, WorkerError> {
    let mut loss_sum = 0.0;
    let mut add = |model: &T::Model, made: Result<(Tensor<1>, Gradients), WorkerError>| {
        let (loss, mut gradients) = made?;
        loss_sum += read_sync(read_scalar(loss))?;
        add_gradients(model, &mut gradients, sum)
    };
    let mut left = count;
    while left > 0 {
        let wave = left.min(threads);
        left -= wave;
        if wave == 1 {
            add(model, backward(task, model, batches.next()?, device))?;
            continue;
        }
        std::thread::scope(|scope| {
            let start = |_| {
                let (part, device) = (batches.next()?, device.clone());
                let model = detached(model.clone());
                Ok(scope.spawn(move || {
                    keep_to(threads / wave);
                    let made = backward(task, &model, part, &device);
                    (model, made)
                }))
            };
            let running: Vec<_> = (0..wave).map(start).collect::<Result<_, WorkerError>>()?;
            running.into_iter().try_for_each(|thread| {
                let (model, made) = thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                add(&model, made)
            })
        })?;
    }
    Ok(loss_sum)
}

/// Adds each parameter's gradient to its place in `sum`. For the CPU, where reading is cheap.
pub(super) fn add_gradients<M: Module>(
    model: &M,
    gradients: &mut Gradients,
    sum: &mut [f32],
) -> Result<(), WorkerError> {
    struct Add<'a> {
        gradients: &'a mut Gradients,
        rest: &'a mut [f32],
        error: Option<WorkerError>,
    }

    impl ModuleVisitor for Add<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.base();
            let rest = std::mem::take(&mut self.rest);
            let (place, rest) = rest.split_at_mut(tensor.shape().num_elements());
            self.rest = rest;
            // A parameter that is frozen, or that the loss does not use, has no gradient.
            let Some(gradient) = tensor.grad_remove(self.gradients) else {
                return;
            };
            let added = read_sync(read(gradient)).and_then(|data| {
                for (sum, value) in place.iter_mut().zip(as_floats(&data)?) {
                    *sum += value;
                }
                Ok(())
            });
            if let Err(error) = added {
                self.error.get_or_insert(error);
            }
        }
    }

    let mut add = Add {
        gradients,
        rest: sum,
        error: None,
    };
    model.visit(&mut add);
    add.error.map_or(Ok(()), Err)
}
