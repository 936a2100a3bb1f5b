//! Computes a trained model's outputs in plain loops: in one order, without fused operations, so that a model file gives
//! the same bytes on every machine and needs no device.

use crate::plan::{Block, GROUP, Plan};
use annulus_table::Dense;

/// A trained model.
#[derive(Clone, Debug)]
pub struct Network {
    plan: Plan,
    stem: Unit,
    blocks: Vec<Parts>,
    output: Dense,
}

/// A convolution and its norm.
#[derive(Clone, Debug)]
struct Unit {
    convolution: Convolution,
    scale: Vec<f32>,
    shift: Vec<f32>,
}

#[derive(Clone, Debug)]
struct Parts {
    first: Unit,
    second: Option<Unit>,
    shortcut: Option<Convolution>,
}

#[derive(Clone, Debug)]
struct Convolution {
    inputs: usize,
    outputs: usize,
    side: usize,
    /// By row and column of the kernel, input and output.
    weight: Vec<f32>,
}

/// A square of places with some channels each, row by row.
#[derive(Clone, Debug)]
struct Map {
    side: usize,
    channels: usize,
    values: Vec<f32>,
}

/// Added to a variance, as PyTorch does.
const EPSILON: f32 = 1e-5;

impl Network {
    /// The network of a plan, from a trained model's tensors: `conv1.weight` as `[outputs, inputs, rows, columns]`,
    /// `norm1.weight`, `norm1.bias`, `blocks.B.conv1.weight` and so on, `fc.weight` as `[inputs, outputs]`, `fc.bias`. None if one
    /// is missing or has another size.
    pub fn of<'a>(plan: &Plan, tensor: impl Fn(&str) -> Option<&'a [f32]>) -> Option<Self> {
        let numbers = |name: &str, length: usize| tensor(name).filter(|found| found.len() == length);
        let convolution = |name: String, (inputs, outputs): (usize, usize), side: usize| {
            let found = numbers(&name, inputs * outputs * side * side)?;
            let mut weight = Vec::with_capacity(found.len());
            for place in 0..side * side {
                for input in 0..inputs {
                    weight.extend(
                        (0..outputs).map(|output| found[(output * inputs + input) * side * side + place]),
                    );
                }
            }
            Some(Convolution {
                inputs,
                outputs,
                side,
                weight,
            })
        };
        let unit = |prefix: &str, number: usize, shape: (usize, usize)| {
            Some(Unit {
                convolution: convolution(format!("{prefix}conv{number}.weight"), shape, 3)?,
                scale: numbers(&format!("{prefix}norm{number}.weight"), shape.1)?.to_vec(),
                shift: numbers(&format!("{prefix}norm{number}.bias"), shape.1)?.to_vec(),
            })
        };
        let parts = |(at, block): (usize, &Block)| {
            let prefix = format!("blocks.{at}.");
            let (inputs, outputs) = (block.inputs, block.outputs);
            Some(Parts {
                first: unit(&prefix, 1, (inputs, outputs))?,
                second: match block.residual {
                    true => Some(unit(&prefix, 2, (outputs, outputs))?),
                    false => None,
                },
                shortcut: match block.reshapes() {
                    true => Some(convolution(
                        format!("{prefix}downsample.weight"),
                        (inputs, outputs),
                        1,
                    )?),
                    false => None,
                },
            })
        };
        Some(Self {
            stem: unit("", 1, (plan.inputs, plan.width))?,
            blocks: plan.blocks.iter().enumerate().map(parts).collect::<Option<_>>()?,
            output: Dense {
                weight: numbers("fc.weight", plan.features() * plan.outputs)?.to_vec(),
                bias: numbers("fc.bias", plan.outputs)?.to_vec(),
            },
            plan: plan.clone(),
        })
    }

    /// The logits of each class for an input: channel by channel, rows of `size` numbers.
    pub fn outputs(&self, input: &[f32], size: usize) -> Vec<f32> {
        let (places, channels) = (size * size, self.plan.inputs);
        let by_place = (0..places).flat_map(|place| (0..channels).map(move |of| input[of * places + place]));
        let x = Map {
            side: size,
            channels,
            values: by_place.collect(),
        };
        let mut x = self.stem.forward(&x, 1).relu();
        for _ in 0..self.plan.pools {
            x = x.pool();
        }
        for (block, parts) in self.plan.blocks.iter().zip(&self.blocks) {
            x = parts.forward(x, block.stride);
            if block.pool {
                x = x.pool();
            }
        }
        let mut out = vec![0.0; self.plan.outputs];
        self.output.add(&[x.maximum(), x.mean()].concat(), &mut out);
        out
    }
}

impl Parts {
    fn forward(&self, x: Map, stride: usize) -> Map {
        let y = self.first.forward(&x, stride);
        let Some(second) = &self.second else {
            return y.relu();
        };
        let mut y = second.forward(&y.relu(), 1);
        let around = match &self.shortcut {
            Some(shortcut) => shortcut.forward(&x, stride),
            None => x,
        };
        y.values.iter_mut().zip(around.values).for_each(|(y, x)| *y += x);
        y.relu()
    }
}

impl Unit {
    fn forward(&self, x: &Map, stride: usize) -> Map {
        let mut y = self.convolution.forward(x, stride);
        let count = (y.side * y.side * GROUP) as f64;
        for group in (0..y.channels).step_by(GROUP) {
            let values = || {
                y.values
                    .chunks_exact(y.channels)
                    .flat_map(|place| &place[group..group + GROUP])
            };
            let mean = values().map(|value| f64::from(*value)).sum::<f64>() / count;
            let squares = values().map(|value| (f64::from(*value) - mean) * (f64::from(*value) - mean));
            let variance = squares.sum::<f64>() / count;
            let (mean, factor) = (mean as f32, 1.0 / (variance as f32 + EPSILON).sqrt());
            let (scale, shift) = (
                &self.scale[group..group + GROUP],
                &self.shift[group..group + GROUP],
            );
            for place in y.values.chunks_exact_mut(y.channels) {
                let numbers = place[group..group + GROUP].iter_mut();
                for (value, (scale, shift)) in numbers.zip(scale.iter().zip(shift)) {
                    *value = (*value - mean) * factor * scale + shift;
                }
            }
        }
        y
    }
}

impl Convolution {
    /// With zeros around the square, as many as keep its size at a stride of 1.
    fn forward(&self, x: &Map, stride: usize) -> Map {
        let around = self.side / 2;
        let side = (x.side + 2 * around - self.side) / stride + 1;
        let mut values = vec![0.0; side * side * self.outputs];
        for (at, out) in values.chunks_exact_mut(self.outputs).enumerate() {
            let (top, left) = (at / side * stride, at % side * stride);
            let of_kernel = self.weight.chunks_exact(self.inputs * self.outputs);
            for (place, weights) in of_kernel.enumerate() {
                let (row, column) = (top + place / self.side, left + place % self.side);
                // Below 0 becomes far too large.
                let (row, column) = (row.wrapping_sub(around), column.wrapping_sub(around));
                if row >= x.side || column >= x.side {
                    continue;
                }
                let inputs = &x.values[(row * x.side + column) * self.inputs..][..self.inputs];
                for (input, weights) in inputs.iter().zip(weights.chunks_exact(self.outputs)) {
                    out.iter_mut()
                        .zip(weights)
                        .for_each(|(sum, weight)| *sum += input * weight);
                }
            }
        }
        Map {
            side,
            channels: self.outputs,
            values,
        }
    }
}

impl Map {
    fn relu(mut self) -> Self {
        self.values.iter_mut().for_each(|value| *value = value.max(0.0));
        self
    }

    /// The maxima of 2 x 2 places. A last odd row or column is left out.
    fn pool(self) -> Self {
        let (side, channels) = (self.side / 2, self.channels);
        let mut values = Vec::with_capacity(side * side * channels);
        for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
            let of = |down: usize, right: usize| {
                let place = (2 * row + down) * self.side + 2 * column + right;
                &self.values[place * channels..][..channels]
            };
            let (a, b, c, d) = (of(0, 0), of(0, 1), of(1, 0), of(1, 1));
            values.extend((0..channels).map(|of| a[of].max(b[of]).max(c[of]).max(d[of])));
        }
        Self {
            side,
            channels,
            values,
        }
    }

    /// The maximum of each channel, of numbers that are not negative.
    fn maximum(&self) -> Vec<f32> {
        let mut most = vec![0.0f32; self.channels];
        for place in self.values.chunks_exact(self.channels) {
            most.iter_mut()
                .zip(place)
                .for_each(|(most, value)| *most = most.max(*value));
        }
        most
    }

    /// The mean of each channel.
    fn mean(&self) -> Vec<f32> {
        let mut sums = vec![0.0; self.channels];
        for place in self.values.chunks_exact(self.channels) {
            sums.iter_mut().zip(place).for_each(|(sum, value)| *sum += value);
        }
        let count = (self.side * self.side) as f32;
        sums.into_iter().map(|sum| sum / count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_convolution_sums_its_surroundings() {
        let x = Map {
            side: 3,
            channels: 1,
            values: (1..=9).map(|value| value as f32).collect(),
        };
        let of = |weight: Vec<f32>, outputs| Convolution {
            inputs: 1,
            outputs,
            side: 3,
            weight,
        };
        let all = of(vec![1.0; 9], 1);
        assert_eq!(
            all.forward(&x, 1).values,
            [12.0, 21.0, 16.0, 27.0, 45.0, 33.0, 24.0, 39.0, 28.0]
        );
        assert_eq!(all.forward(&x, 2).values, [12.0, 16.0, 24.0, 28.0]);
        // The left neighbour, and twice the place itself.
        let mut weight = vec![0.0; 18];
        (weight[6], weight[9]) = (1.0, 2.0);
        assert_eq!(
            of(weight, 2).forward(&x, 1).values[..6],
            [0.0, 2.0, 1.0, 4.0, 2.0, 6.0]
        );
    }

    #[test]
    fn maxima_and_means_are_taken_by_channel() {
        let x = Map {
            side: 3,
            channels: 2,
            values: (0..18)
                .map(|value| {
                    if value % 2 == 0 {
                        value as f32
                    } else {
                        -(value as f32)
                    }
                })
                .collect(),
        };
        assert_eq!(x.clone().pool().values, [8.0, -1.0]);
        assert_eq!(x.mean(), [8.0, -9.0]);
        assert_eq!(x.maximum(), [16.0, 0.0]);
        assert_eq!(x.relu().mean(), [8.0, 0.0]);
    }
}
