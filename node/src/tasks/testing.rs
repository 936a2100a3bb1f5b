//! Training in a few lines, for the tests of tasks.

use crate::trainer::Worker;

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
