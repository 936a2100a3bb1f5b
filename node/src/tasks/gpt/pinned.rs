//! Compares a tiny model with PyTorch: `tests/fixtures/gpt.py` makes the values.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use annulus_core::optim::Schedule;
use serde::Deserialize;

use super::tests::Run;
use super::*;
use crate::device::{self, DeviceChoice, DeviceError, OpenDevice};
use crate::task::Dataset;
use crate::trainer::{Trainer, TrainerOptions, Worker};

#[derive(Deserialize)]
struct Expected {
    losses: Vec<f32>,
    gradients: BTreeMap<String, Vec<f32>>,
}

/// From -1/4 to 1/4, as in the script.
fn value(i: usize) -> f32 {
    let h = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(97);
    let h = (h ^ (h >> 15)).wrapping_mul(2_246_822_519);
    let h = h ^ (h >> 13);
    ((h >> 8) as f32 / (1 << 24) as f32 - 0.5) / 2.0
}

/// The losses of ten steps, and the gradient of the first, by tensor.
fn ten_steps(device: &OpenDevice) -> (Vec<f32>, BTreeMap<String, Vec<f32>>) {
    let config = GptConfig {
        layers: 2,
        heads: 3,
        width: 12,
        context: 8,
        bias: Some(true),
        vocabulary: Unit::Characters,
        ..GptConfig::default()
    };
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt.txt");
    let task = Arc::new(Gpt::new(config, Some(&Data::open(&text).unwrap())).unwrap());
    let samples = task.dataset().len();
    let worker = Trainer::new(task, device, TrainerOptions::default()).unwrap();
    let schedule = Schedule::Cosine {
        warmup: 3,
        total: 10,
        floor: 0.1,
    };
    let mut run = Run::new(worker, 1e-2, schedule);
    let tensors = run.worker.layout().tensors.clone();
    for tensor in &tensors {
        let one = if tensor.name.ends_with("gamma") { 1.0 } else { 0.0 };
        for i in tensor.offset..tensor.offset + tensor.len() {
            run.params[i] = value(i) + one;
        }
    }
    let (mut losses, mut first) = (Vec::new(), None);
    for step in 0..10 {
        let batch: Vec<u64> = (0..4).map(|j| (step * 37 + j * 101) % samples).collect();
        let (loss, gradient) = run.step(&batch);
        losses.push(loss);
        first.get_or_insert(gradient);
    }
    let first = first.unwrap();
    let part = |t: &annulus_core::TensorSpec| first[t.offset..t.offset + t.len()].to_vec();
    (
        losses,
        tensors.iter().map(|t| (t.name.clone(), part(t))).collect(),
    )
}

/// Compares losses up to `loss`, and gradients up to `gradient` relative to each tensor's largest.
fn compare(device: &OpenDevice, loss: f32, gradient: f32) {
    let expected: Expected = serde_json::from_str(include_str!("../../../tests/fixtures/gpt.json")).unwrap();
    let (losses, gradients) = ten_steps(device);
    assert_eq!(losses.len(), expected.losses.len());
    let worst =
        |pairs: &mut dyn Iterator<Item = (&f32, &f32)>| pairs.fold(0.0f32, |w, (a, b)| w.max((a - b).abs()));
    let off = worst(&mut losses.iter().zip(&expected.losses));
    println!("{}: losses differ by at most {off:.1e}", device.name);
    assert!(off <= loss, "{losses:?} {:?}", expected.losses);
    assert!(gradients.keys().eq(expected.gradients.keys()));
    let mut most = 0.0f32;
    for (name, found) in &gradients {
        let expected = &expected.gradients[name];
        assert_eq!(found.len(), expected.len(), "{name}");
        let scale = expected.iter().fold(0.0f32, |scale, v| scale.max(v.abs()));
        let off = worst(&mut found.iter().zip(expected)) / scale;
        assert!(
            off <= gradient,
            "{name} differs by {off:.1e} of its largest element"
        );
        most = most.max(off);
    }
    println!("{}: gradients differ by at most {most:.1e}", device.name);
}

#[test]
fn the_cpu_agrees_with_pytorch() {
    compare(&OpenDevice::cpu(), 2e-6, 2e-5);
}

#[test]
fn a_gpu_agrees_with_pytorch() {
    let gpu = match device::open(DeviceChoice::Gpu) {
        Err(DeviceError::NoAdapter) => {
            println!("skipped: this machine has no adapter, not even a software one");
            return;
        }
        gpu => gpu.unwrap(),
    };
    // Burn's GELU uses the slope of another formula there, the one with a hyperbolic tangent.
    compare(&gpu, 1e-4, 1e-3);
}
