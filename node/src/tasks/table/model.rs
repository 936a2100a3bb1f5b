//! The networks of a table's model, side by side. They know nothing of data or training.

use annulus_shaders::nn::{Linear, LinearConfig};
use annulus_table::Plan;
use burn::module::{Initializer, Module};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

/// All members, each with parameters of its own.
#[derive(Module, Debug)]
pub struct Members {
    members: Vec<Network>,
}

/// Hidden layers, and a linear path around them.
#[derive(Module, Debug)]
pub struct Network {
    around: Linear,
    layers: Vec<Linear>,
}

impl Members {
    /// Members with random hidden layers and linear paths of zeros.
    pub fn new(plans: &[Plan], outputs: usize, device: &Device) -> Self {
        let network = |plan: &Plan| {
            let layer = |(inputs, outputs): (usize, usize)| {
                // Burn's initial numbers, over the rate by which outputs are multiplied.
                let gain = 1.0 / 3f64.sqrt() / f64::from(plan.rate);
                let initializer = Initializer::KaimingUniform {
                    gain,
                    fan_out_only: false,
                };
                LinearConfig::new(inputs, outputs)
                    .with_initializer(initializer)
                    .init(device)
            };
            let around = LinearConfig::new(plan.inputs, outputs).with_initializer(Initializer::Zeros);
            Network {
                around: around.init(device),
                layers: plan.layers(outputs).into_iter().map(layer).collect(),
            }
        };
        Self {
            members: plans.iter().map(network).collect(),
        }
    }

    /// Inputs `[n, width]` to each member's outputs `[n, outputs]`. `kept`: `[n, units]`, what to multiply the hidden units of
    /// members with dropout by, one member behind the other; none: all count.
    pub fn forward(&self, plans: &[Plan], inputs: Tensor<2>, kept: Option<Tensor<2>>) -> Vec<Tensor<2>> {
        let mut before = 0;
        let members = self.members.iter().zip(plans);
        members
            .map(|(network, plan)| {
                let kept = kept.as_ref().filter(|_| plan.dropout > 0.0);
                let of = kept.map(|kept| (kept, &mut before));
                network.forward(plan, inputs.clone(), of)
            })
            .collect()
    }

    /// The sum over the members of what their squared weights add to their losses; none: nothing.
    pub fn penalty(&self, plans: &[Plan]) -> Option<Tensor<1>> {
        let squares = |layer: &Linear| layer.weight.val().square().sum();
        let members = self.members.iter().zip(plans);
        let of = |(network, plan): (&Network, &Plan)| {
            let layers = network.layers.iter().map(squares);
            let sum = layers.fold(squares(&network.around), |a, b| a + b);
            // The weights count `rate` times.
            sum.mul_scalar(plan.l2 * plan.rate * plan.rate)
        };
        members
            .filter(|(_, plan)| plan.l2 > 0.0)
            .map(of)
            .reduce(|a, b| a + b)
    }
}

impl Network {
    /// `kept`: with how many units of it other members are done.
    fn forward(
        &self,
        plan: &Plan,
        inputs: Tensor<2>,
        mut kept: Option<(&Tensor<2>, &mut usize)>,
    ) -> Tensor<2> {
        let [rows, width] = inputs.dims();
        let inputs = match plan.inputs == width {
            true => inputs,
            false => inputs.slice([0..rows, 0..plan.inputs]),
        };
        // A parameter counts `rate` times, and so do Adam's steps.
        let scaled = |outputs: Tensor<2>| match plan.rate == 1.0 {
            true => outputs,
            false => outputs.mul_scalar(plan.rate),
        };
        let around = scaled(self.around.forward(inputs.clone()));
        let Some((last, hidden)) = self.layers.split_last() else {
            return around;
        };
        let x = hidden.iter().fold(inputs, |x, layer| {
            let x = relu(scaled(layer.forward(x)));
            let Some((kept, before)) = &mut kept else {
                return x;
            };
            let first = **before;
            **before += x.dims()[1];
            x * kept.clone().slice([0..rows, first..**before])
        });
        scaled(last.forward(x)) + around
    }
}
