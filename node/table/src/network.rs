//! Computes a trained model's outputs in plain loops: in one order, without fused operations, so that a model file gives
//! the same bytes on every machine and needs no device.

use crate::features::Features;
use crate::options::{Model, Options};

/// The shape of a member, and how fast it learns.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How many of a row's inputs it reads, from the first.
    pub inputs: usize,
    /// Units of each hidden layer; none of a linear model.
    pub hidden: Vec<usize>,
    /// Multiplies the outputs of each layer, and so the effect of Adam's steps: its learning rate over the run's.
    pub rate: f32,
}

/// Hidden layers, whether they read bins, and rate of each member. Sizes are those of the design's measurements; rates
/// below 1 are for tables on which the others learn their rows by heart, as stopping early would be.
const MEMBERS: [(&[usize], bool, f32); 8] = [
    (&[], false, 1.0),
    (&[], true, 0.3),
    (&[128, 64], false, 1.0),
    (&[128, 64], true, 1.0),
    (&[64, 64, 64], true, 1.0),
    (&[256], true, 0.3),
    (&[128, 64], true, 0.1),
    (&[64], false, 0.1),
];

impl Plan {
    /// The members of a model. The first is linear.
    pub fn of(options: &Options, features: &Features) -> Vec<Self> {
        let count = match options.model {
            Model::Linear => 1,
            Model::Mlp => MEMBERS.len(),
        };
        let share = options.hidden as usize;
        let plan = |(hidden, bins, rate): &(&[usize], bool, f32)| Self {
            inputs: if *bins {
                features.width()
            } else {
                features.without_bins()
            },
            hidden: hidden.iter().map(|units| (units * share).div_ceil(100)).collect(),
            rate: *rate,
        };
        MEMBERS[..count].iter().map(plan).collect()
    }

    /// Inputs and outputs of each layer, with `outputs` of the last; none of a linear model.
    pub fn layers(&self, outputs: usize) -> Vec<(usize, usize)> {
        if self.hidden.is_empty() {
            return Vec::new();
        }
        let ins = std::iter::once(self.inputs).chain(self.hidden.iter().copied());
        let outs = self.hidden.iter().copied().chain([outputs]);
        ins.zip(outs).collect()
    }
}

/// An affine map `y = x W + b`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// `[inputs, outputs]`, row by row.
    pub weight: Vec<f32>,
    /// One for each output; its length is their number.
    pub bias: Vec<f32>,
}

/// One of the models whose outputs are averaged: hidden layers with ReLU between them, and a linear path around them.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// How many of a row's inputs it reads, from the first.
    pub inputs: usize,
    /// The linear path.
    pub around: Dense,
    /// The layers, the last of which gives the outputs; none of a linear model.
    pub layers: Vec<Dense>,
}

/// A model: members and how much each counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The members.
    pub members: Vec<Member>,
}

impl Network {
    /// The network of these plans, from a trained model's tensors: `members.M.around.weight` and `.bias`,
    /// `members.M.layers.L.weight` and `.bias`. None if one is missing or has another size.
    pub fn of<'a>(
        plans: &[Plan],
        outputs: usize,
        tensor: impl Fn(&str) -> Option<&'a [f32]>,
    ) -> Option<Self> {
        let member = |(at, plan): (usize, &Plan)| {
            let dense = |name: String, (inputs, outputs): (usize, usize)| {
                let of = |part: &str, length: usize| {
                    let found = tensor(&format!("members.{at}.{name}.{part}"))
                        .filter(|found| found.len() == length)?;
                    Some(found.iter().map(|value| value * plan.rate).collect())
                };
                Some(Dense {
                    weight: of("weight", inputs * outputs)?,
                    bias: of("bias", outputs)?,
                })
            };
            let layers = plan.layers(outputs).into_iter().enumerate();
            Some(Member {
                inputs: plan.inputs,
                around: dense("around".into(), (plan.inputs, outputs))?,
                layers: layers
                    .map(|(layer, size)| dense(format!("layers.{layer}"), size))
                    .collect::<Option<_>>()?,
            })
        };
        let members: Option<Vec<Member>> = plans.iter().enumerate().map(member).collect();
        Some(Self { members: members? })
    }
}

impl Dense {
    /// Adds `x W + b` to `out`.
    pub fn add(&self, x: &[f32], out: &mut [f32]) {
        for (sum, bias) in out.iter_mut().zip(&self.bias) {
            *sum += bias;
        }
        for (value, weights) in x.iter().zip(self.weight.chunks_exact(self.bias.len())) {
            // Half of the inputs and of the hidden units are 0.
            if *value != 0.0 {
                for (sum, weight) in out.iter_mut().zip(weights) {
                    *sum += value * weight;
                }
            }
        }
    }
}

impl Member {
    /// The outputs for a row's inputs.
    pub fn outputs(&self, inputs: &[f32]) -> Vec<f32> {
        let inputs = &inputs[..self.inputs];
        let mut out = vec![0.0; self.around.bias.len()];
        self.around.add(inputs, &mut out);
        let Some((last, hidden)) = self.layers.split_last() else {
            return out;
        };
        let mut x = inputs.to_vec();
        for layer in hidden {
            let mut next = vec![0.0; layer.bias.len()];
            layer.add(&x, &mut next);
            next.iter_mut().for_each(|value| *value = value.max(0.0));
            x = next;
        }
        last.add(&x, &mut out);
        out
    }
}

/// Turns logits into probabilities, in f64 by the pinned exponential.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits
        .iter()
        .map(|logit| libm::exp(f64::from(*logit) - f64::from(largest)))
        .collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_adds_its_hidden_layers_to_its_linear_path() {
        let dense = |weight: &[f32], bias: &[f32]| Dense {
            weight: weight.to_vec(),
            bias: bias.to_vec(),
        };
        let member = Member {
            inputs: 2,
            around: dense(&[10.0, 20.0], &[1.0]),
            layers: vec![
                dense(&[1.0, -1.0, 0.5, 2.0], &[0.0, 0.25]),
                dense(&[3.0, 5.0], &[-2.0]),
            ],
        };
        // Hidden: (2 + 0.5, -2 + 2 + 0.25); the third input is another's.
        assert_eq!(
            member.outputs(&[2.0, 1.0, 99.0]),
            [1.0 + 20.0 + 20.0 + 3.0 * 2.5 + 5.0 * 0.25 - 2.0]
        );
        let linear = Member {
            layers: Vec::new(),
            ..member
        };
        assert_eq!(linear.outputs(&[2.0, 1.0, 99.0]), [41.0]);
    }

    #[test]
    fn probabilities_sum_to_one_whatever_the_size_of_logits() {
        let found = softmax(&[1000.0, 1000.0, -1000.0]);
        assert_eq!(found, [0.5, 0.5, 0.0]);
    }
}
