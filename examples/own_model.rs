//! A model of your own, trained on as many machines as you like: this file is a whole node.
//!
//! `cargo run --release --example own_model -- train lr=0.01 epochs=50` starts a run and prints a ticket;
//! on other machines `... --example own_model -- join TICKET` takes part in it. The loss, a mean squared
//! error, falls from about 0.7 to below 0.01.
//!
//! It is a page for browsers too: `cargo xtask browser own_model_page` builds it, and
//! `... --example own_model -- train --page target/browser-own_model_page` serves it.

use annulus::task::{Data, Digest, Scores, Task, TaskError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};

/// Any Burn module will do.
#[derive(Module, Debug)]
struct Wave {
    hidden: Linear,
    output: Linear,
}

/// What it shall learn: the sine, from 1,000 points of it.
struct LearnSine;

impl LearnSine {
    /// The mean squared error at some points; sample `i` lies at `x = i / 100`.
    fn error_at(model: &Wave, points: impl Iterator<Item = f32>, device: &Device) -> Tensor<1> {
        let x: Vec<f32> = points.collect();
        let shape = [x.len(), 1];
        let x = Tensor::<2>::from_data(TensorData::new(x, shape), device);
        let y = model.output.forward(tanh(model.hidden.forward(x.clone() - 5.0)));
        (y - x.sin()).powi_scalar(2).mean()
    }
}

impl Task for LearnSine {
    type Model = Wave;
    type Config = ();

    const NAME: &'static str = "sine";

    fn new(_config: (), _data: Option<&Data>) -> Result<Self, TaskError> {
        Ok(Self)
    }

    fn samples(&self) -> u64 {
        1_000
    }

    fn digest(&self) -> Digest {
        Digest::of(b"sine, 0 to 10 by 1/100")
    }

    fn model(&self, device: &Device) -> Wave {
        Wave {
            hidden: LinearConfig::new(1, 64).init(device),
            output: LinearConfig::new(64, 1).init(device),
        }
    }

    fn loss(&self, model: &Wave, samples: &[u64], device: &Device) -> Tensor<1> {
        Self::error_at(model, samples.iter().map(|i| *i as f32 / 100.0), device)
    }

    fn evaluate(&self, model: &Wave, device: &Device) -> Option<Scores> {
        let between = (0..1_000).map(|i| (i as f32 + 0.5) / 100.0);
        Some(Scores {
            loss: Self::error_at(model, between, device),
            accuracy: None,
        })
    }
}

#[cfg(not(target_family = "wasm"))]
fn main() -> std::process::ExitCode {
    annulus::run::<LearnSine>()
}

#[cfg(target_family = "wasm")]
annulus_browser::main!(LearnSine);
