//! Training in a few lines, for the tests of tasks.

use crate::device::OpenDevice;
use crate::task::{FileTensor, Task, Units, without_units};
use crate::trainer::{Trainer, TrainerOptions, Worker};
use annulus_core::Layout;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::sync::Arc;

/// Trains by Adam with its usual settings, and gives the parameters.
pub(super) fn by_adam<'a>(
    worker: &mut impl Worker,
    rate: f32,
    batches: impl Iterator<Item = &'a [u64]>,
) -> Vec<f32> {
    let mut params = worker.init();
    let (mut mean, mut square) = (vec![0.0; params.len()], vec![0.0; params.len()]);
    let (mut decay1, mut decay2) = (1.0f32, 1.0f32);
    for batch in batches {
        let result = worker.contribute(params.clone(), batch).unwrap();
        decay1 *= 0.9;
        decay2 *= 0.999;
        for (index, sum) in result.gradient.iter().enumerate() {
            let gradient = sum / batch.len() as f32;
            mean[index] = 0.9 * mean[index] + 0.1 * gradient;
            square[index] = 0.999 * square[index] + 0.001 * gradient * gradient;
            let deviation = (square[index] / (1.0 - decay2)).sqrt() + 1e-8;
            params[index] -= rate * mean[index] / (1.0 - decay1) / deviation;
        }
    }
    params
}

/// Checks that a model of a task without these units has the tensors of the smaller task's model.
pub(super) fn assert_pruned<T: Task>(task: &Arc<T>, units: &[Units], smaller: &Arc<T>) {
    let tensors = |task: &Arc<T>| -> Vec<FileTensor> {
        let trainer = Trainer::new(task.clone(), &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
        let (layout, params) = (trainer.layout(), trainer.init());
        let tensor = |tensor: &annulus_core::TensorSpec| FileTensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            values: params[tensor.offset..tensor.offset + tensor.len()].to_vec(),
            packed: None,
        };
        layout.tensors.iter().map(tensor).collect()
    };
    let shapes = |tensors: &[FileTensor]| -> Vec<(String, Vec<usize>, usize)> {
        let shape = |own: &FileTensor| (own.name.clone(), own.shape.clone(), own.values.len());
        tensors.iter().map(shape).collect()
    };
    let before = tensors(task);
    let left = without_units(&before, units).unwrap();
    assert_eq!(shapes(&left), shapes(&tensors(smaller)));
    let count = |tensors: &[FileTensor]| tensors.iter().map(|own| own.values.len()).sum::<usize>();
    let share = count(&left) as f64 / count(&before) as f64;
    println!("{} of {}: {share}", T::NAME, count(&before));
    assert!((0.1..0.75).contains(&share), "{share}");
}

/// A file of weights for a model with this layout.
pub(super) fn weights_file(layout: &Layout, params: &[f32]) -> Vec<u8> {
    let views = layout.tensors.iter().map(|tensor| {
        let values = &params[tensor.offset..tensor.offset + tensor.len()];
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), bytemuck::cast_slice(values));
        (tensor.name.clone(), view.unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}
