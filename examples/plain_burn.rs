//! The task `digits` trained by Burn alone on one machine: what a distributed run is measured
//! against. Same data, same model of Burn's own layers, Burn's Adam, batch 64, 5 epochs.
//!
//! `cargo run --release --example plain_burn [-- --data FOLDER]`

use std::path::Path;
use std::time::Instant;

use annulus::tasks::digits::{Digits, DigitsConfig};
use annulus::{Data, Dataset, Task, TaskError};
use annulus_stock::Mlp;
use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::Device;

const EPOCHS: u64 = 5;
const BATCH: usize = 64;
const HIDDEN: usize = 128;
const LEARNING_RATE: f64 = 1e-3;

fn main() -> Result<(), TaskError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let data = match arguments.as_slice() {
        [] => None,
        [flag, folder] if flag == "--data" => Some(Data::open(Path::new(folder))?),
        _ => return Err("usage: plain_burn [--data FOLDER]".into()),
    };
    let task = Digits::new(DigitsConfig::default(), data.as_ref())?;
    let cpu = Device::flex();
    cpu.seed(0);
    let device = cpu.clone().autodiff();
    let mut model = Mlp::new(HIDDEN, &device);
    let mut adam: ModuleOptimizer = AdamConfig::new().init();
    let pictures = task.dataset();
    let mut order: Vec<u64> = (0..pictures.len()).collect();
    let start = Instant::now();
    for epoch in 1..=EPOCHS {
        shuffle(&mut order, epoch);
        for batch in order.chunks(BATCH) {
            let (images, labels) = pictures.batch(batch).into_tensors(&device);
            let gradients = model.loss(images, labels).backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            model = adam.step(LEARNING_RATE, model, gradients);
        }
        let (images, labels) = pictures.test(0..pictures.held_out()).into_tensors(&cpu);
        let tested = model.valid();
        let answers = tested.forward(images.clone()).argmax(1).squeeze_dim::<1>(1);
        let accuracy = answers.equal(labels.clone()).float().mean().into_scalar::<f32>();
        let loss = tested.loss(images, labels).into_scalar::<f32>();
        println!(
            "epoch {epoch}: test loss {loss:.4}, accuracy {:.2} %, {:.2} s",
            100.0 * accuracy,
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Fisher and Yates's shuffle with a linear congruential generator (Knuth's MMIX).
fn shuffle(order: &mut [u64], seed: u64) {
    let mut state = seed;
    for last in (1..order.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (state >> 33) as usize % (last + 1));
    }
}
