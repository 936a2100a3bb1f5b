//! Computes a trained model's outputs in plain loops: in one order, without fused operations, so that a model file gives
//! the same bytes on every machine and needs no device.

use crate::plan::Plan;

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
    /// How many numbers it has: as many multiplications as a row costs.
    pub(crate) fn parameters(&self) -> usize {
        let dense = |dense: &Dense| dense.weight.len() + dense.bias.len();
        let member = |member: &Member| dense(&member.around) + member.layers.iter().map(dense).sum::<usize>();
        self.members.iter().map(member).sum()
    }

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
