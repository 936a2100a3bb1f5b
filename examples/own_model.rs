//! A model of your own, trained on as many machines as you like: this file is a whole node.
//!
//! `cargo run --release --example own_model -- train lr=0.01 epochs=50` starts a run and prints a ticket;
//! on other machines `... --example own_model -- join TICKET` takes part in it. The loss, a mean squared
//! error, falls from about 0.7 to below 0.01.
//!
//! It is a page for browsers too: `cargo xtask browser own_model_page` builds it, and
//! `... --example own_model -- train --page target/browser-own_model_page` serves it.

use annulus::{Data, InMemory, Scores, Task, TaskError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};

/// Any Burn module will do.
#[derive(Module, Debug)]
struct Wave {
    hidden: Linear,
    output: Linear,
}

/// What it shall learn: the sine, from 1,000 points of it.
struct LearnSine(InMemory<f32>);

impl Task for LearnSine {
    type Model = Wave;
    type Dataset = InMemory<f32>;
    type Config = ();

    const NAME: &'static str = "sine";

    fn new(_config: (), _data: Option<&Data>) -> Result<Self, TaskError> {
        Ok(Self(InMemory::new(
            (0..1_000).map(|i| i as f32 / 100.0).collect(),
        )))
    }

    fn dataset(&self) -> &InMemory<f32> {
        &self.0
    }

    fn model(&self, device: &Device) -> Wave {
        Wave {
            hidden: LinearConfig::new(1, 64).init(device),
            output: LinearConfig::new(64, 1).init(device),
        }
    }

    /// The mean squared error at some points.
    fn loss(&self, model: &Wave, points: Vec<f32>, device: &Device) -> Tensor<1> {
        let x = Tensor::<1>::from_floats(points.as_slice(), device).unsqueeze_dim::<2>(1);
        let y = model.output.forward(tanh(model.hidden.forward(x.clone() - 5.0)));
        (y - x.sin()).powi_scalar(2).mean()
    }

    fn evaluate(&self, model: &Wave, device: &Device) -> Option<Scores> {
        let between = (0..1_000).map(|i| (i as f32 + 0.5) / 100.0);
        Some(self.loss(model, between.collect(), device).into())
    }
}

#[cfg(not(target_family = "wasm"))]
fn main() -> std::process::ExitCode {
    annulus::run::<LearnSine>()
}

#[cfg(target_family = "wasm")]
annulus_browser::main!(LearnSine);
