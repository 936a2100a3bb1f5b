//! Batch norm: brings each channel of `[batch, channels, ..]` to mean 0 and variance 1, then scales and shifts it (Ioffe and
//! Szegedy, 2015). Sums over the batch are in f64: over a hundred thousand numbers, those in f32 lose three digits.

use super::processor::{in_threads, threads, widest};

/// Numbers that take about three times as long as starting a thread does.
const NUMBERS_PER_THREAD: usize = 1 << 18;

/// Partial sums side by side.
const SIDES: usize = 16;

/// Sizes of what is normed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Channels.
    pub count: usize,
    /// Numbers of a channel in one image.
    pub each: usize,
}

impl Channels {
    /// Numbers of a channel in all images.
    fn numbers(&self, x: &[f32]) -> f64 {
        (x.len() / self.count.max(1)) as f64
    }

    /// For each channel the two sums that `sum` gives for its numbers in `xs` and `ys`, image by image.
    fn sums(
        &self,
        xs: &[f32],
        ys: &[f32],
        sum: impl Fn(usize, &[f32], &[f32]) -> [f64; 2] + Sync,
    ) -> Vec<[f64; 2]> {
        let mut sums = vec![[0.0; 2]; self.count];
        let share = self
            .count
            .div_ceil(threads(xs.len(), NUMBERS_PER_THREAD, self.count))
            .max(1);
        in_threads(sums.chunks_mut(share).enumerate(), |(part, sums)| {
            for image in 0..xs.len() / (self.count * self.each).max(1) {
                for (channel, sums) in (part * share..).zip(&mut *sums) {
                    let at = (image * self.count + channel) * self.each;
                    let [a, b] = sum(channel, &xs[at..][..self.each], &ys[at..][..self.each]);
                    *sums = [sums[0] + a, sums[1] + b];
                }
            }
        });
        sums
    }

    /// `f(channel, x, y)` for each number, where `y` has as many as `x`.
    fn map(&self, x: &[f32], y: &[f32], f: impl Fn(usize, &[f32], &[f32], &mut [f32]) + Sync) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        let image = self.count * self.each;
        if out.is_empty() {
            return out;
        }
        let images = x.len() / image;
        let share = images.div_ceil(threads(x.len(), NUMBERS_PER_THREAD, images)) * image;
        in_threads(out.chunks_mut(share).enumerate(), |(part, out)| {
            let planes = out.chunks_exact_mut(self.each).zip((0..self.count).cycle());
            for ((out, channel), at) in planes.zip((part * share..).step_by(self.each)) {
                f(channel, &x[at..][..self.each], &y[at..][..self.each], out);
            }
        });
        out
    }
}

/// Mean and biased variance of each channel: all means, then all variances.
pub fn statistics(x: &[f32], of: Channels) -> Vec<f32> {
    let count = of.numbers(x);
    let totals = of.sums(x, x, |_, x, _| [total(x), 0.0]);
    let means: Vec<f64> = totals.iter().map(|[total, _]| total / count).collect();
    let squares = of.sums(x, x, |channel, x, _| {
        [products(x, x, means[channel], means[channel]), 0.0]
    });
    let variances = squares.iter().map(|[square, _]| square / count);
    means.iter().copied().chain(variances).map(|x| x as f32).collect()
}

/// `(x - mean) / deviation * gamma + beta`, with the [`statistics`] of each channel.
pub fn batch_norm(
    x: &[f32],
    stats: &[f32],
    gamma: &[f32],
    beta: &[f32],
    epsilon: f64,
    of: Channels,
) -> Vec<f32> {
    let (means, variances) = stats.split_at(of.count);
    let scales: Vec<f32> = scales(variances, gamma, epsilon).collect();
    of.map(x, x, |channel, x, _, out| {
        scaled(x, means[channel], scales[channel], beta[channel], out);
    })
}

/// Gradients of a batch norm.
#[derive(Clone, Debug)]
pub struct BatchNormGradients {
    /// For the input, through the statistics too.
    pub x: Vec<f32>,
    /// For the scale.
    pub gamma: Vec<f32>,
    /// For the shift.
    pub beta: Vec<f32>,
}

/// The gradients, from those of the output.
pub fn batch_norm_backward(
    x: &[f32],
    stats: &[f32],
    gamma: &[f32],
    gradient: &[f32],
    epsilon: f64,
    of: Channels,
) -> BatchNormGradients {
    let (means, variances) = stats.split_at(of.count);
    let count = of.numbers(x);
    let sums = of.sums(x, gradient, |channel, x, gradient| {
        let mean = f64::from(means[channel]);
        [total(gradient), products(x, gradient, mean, 0.0)]
    });
    let deviations = variances.iter().map(|v| 1.0 / (f64::from(*v) + epsilon).sqrt());
    let deviations: Vec<f64> = deviations.collect();
    let factors: Vec<[f32; 3]> = (0..of.count)
        .map(|channel| {
            let ([shift, slope], inverse) = (sums[channel], deviations[channel]);
            let scale = f64::from(gamma[channel]) * inverse;
            [scale, inverse * inverse * slope / count, shift / count].map(|x| x as f32)
        })
        .collect();
    BatchNormGradients {
        x: of.map(x, gradient, |channel, x, gradient, out| {
            combined(x, gradient, means[channel], factors[channel], out);
        }),
        gamma: (sums.iter().zip(&deviations))
            .map(|([_, slope], d)| (slope * d) as f32)
            .collect(),
        beta: sums.iter().map(|[shift, _]| *shift as f32).collect(),
    }
}

/// `gamma / deviation` of each channel.
fn scales(variances: &[f32], gamma: &[f32], epsilon: f64) -> impl Iterator<Item = f32> {
    let both = variances.iter().zip(gamma);
    both.map(move |(v, g)| (f64::from(*g) / (f64::from(*v) + epsilon).sqrt()) as f32)
}

/// The sum of `(x - a) (y - b)`.
fn products(xs: &[f32], ys: &[f32], a: f64, b: f64) -> f64 {
    widest!(
        [] (xs: &[f32], ys: &[f32], a: f64, b: f64) -> f64,
        fused products_in_order, otherwise products_in_order,
    )
}

fn total(xs: &[f32]) -> f64 {
    widest!([] (xs: &[f32]) -> f64, fused total_in_order, otherwise total_in_order)
}

fn scaled(xs: &[f32], mean: f32, scale: f32, shift: f32, out: &mut [f32]) {
    widest!(
        [] (xs: &[f32], mean: f32, scale: f32, shift: f32, out: &mut [f32]),
        fused scaled_each, otherwise scaled_each,
    )
}

fn combined(xs: &[f32], gradient: &[f32], mean: f32, factors: [f32; 3], out: &mut [f32]) {
    widest!(
        [] (xs: &[f32], gradient: &[f32], mean: f32, factors: [f32; 3], out: &mut [f32]),
        fused combined_each, otherwise combined_each,
    )
}

#[inline(always)]
fn products_in_order(xs: &[f32], ys: &[f32], a: f64, b: f64) -> f64 {
    let mut sums = [0.0; SIDES];
    let ((xs, x_rest), (ys, y_rest)) = (xs.as_chunks::<SIDES>(), ys.as_chunks::<SIDES>());
    for (xs, ys) in xs.iter().zip(ys) {
        for ((sum, x), y) in sums.iter_mut().zip(xs).zip(ys) {
            *sum += (f64::from(*x) - a) * (f64::from(*y) - b);
        }
    }
    for ((sum, x), y) in sums.iter_mut().zip(x_rest).zip(y_rest) {
        *sum += (f64::from(*x) - a) * (f64::from(*y) - b);
    }
    sums.iter().sum()
}

#[inline(always)]
fn total_in_order(xs: &[f32]) -> f64 {
    let mut sums = [0.0; SIDES];
    let (xs, rest) = xs.as_chunks::<SIDES>();
    for xs in xs {
        for (sum, x) in sums.iter_mut().zip(xs) {
            *sum += f64::from(*x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += f64::from(*x);
    }
    sums.iter().sum()
}

#[inline(always)]
fn scaled_each(xs: &[f32], mean: f32, scale: f32, shift: f32, out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(xs) {
        *out = (*x - mean) * scale + shift;
    }
}

#[inline(always)]
fn combined_each(xs: &[f32], gradient: &[f32], mean: f32, [scale, slope, shift]: [f32; 3], out: &mut [f32]) {
    // The differences first: behind a mean over the image most of the gradient is taken away.
    for ((out, x), g) in out.iter_mut().zip(xs).zip(gradient) {
        *out = ((*g - shift) - (*x - mean) * slope) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32, around: f32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0 + around
        };
        (0..count).map(|_| next()).collect()
    }

    /// The output by its definition, in f64.
    fn by_definition(x: &[f64], gamma: &[f32], beta: &[f32], epsilon: f64, of: Channels) -> Vec<f64> {
        let channel = |i: usize| i / of.each % of.count;
        let mean = |c: usize, f: &dyn Fn(f64) -> f64| {
            let numbers = x.iter().enumerate().filter(|(i, _)| channel(*i) == c);
            let (sum, count) = numbers.fold((0.0, 0.0), |(sum, n), (_, x)| (sum + f(*x), n + 1.0));
            sum / count
        };
        let means: Vec<f64> = (0..of.count).map(|c| mean(c, &|x| x)).collect();
        let variances: Vec<f64> = (0..of.count)
            .map(|c| mean(c, &|x| (x - means[c]).powi(2)))
            .collect();
        let each = |(i, x): (usize, &f64)| {
            let c = channel(i);
            (x - means[c]) / (variances[c] + epsilon).sqrt() * f64::from(gamma[c]) + f64::from(beta[c])
        };
        x.iter().enumerate().map(each).collect()
    }

    #[test]
    fn output_is_exact_over_many_numbers_around_three() {
        let of = Channels {
            count: 2,
            each: 160 * 160,
        };
        let x = numbers(4 * 2 * 160 * 160, 1, 3.0);
        let (gamma, beta) = ([1.5, 0.5], [0.25, -0.25]);
        let found = batch_norm(&x, &statistics(&x, of), &gamma, &beta, 1e-5, of);
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (found, wanted) in found.iter().zip(by_definition(&wide, &gamma, &beta, 1e-5, of)) {
            assert!(
                (f64::from(*found) - wanted).abs() < 1e-6,
                "{found} instead of {wanted}"
            );
        }
    }

    #[test]
    fn gradients_are_finite_differences() {
        for of in [Channels { count: 3, each: 20 }, Channels { count: 5, each: 1 }] {
            let x = numbers(4 * of.count * of.each, 1, 0.5);
            let slopes = numbers(x.len(), 2, 0.0);
            let (gamma, beta) = (numbers(of.count, 3, 1.0), numbers(of.count, 4, 0.0));
            let found = batch_norm_backward(&x, &statistics(&x, of), &gamma, &slopes, 1e-3, of);
            let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let loss = |x: &[f64], gamma: &[f32], beta: &[f32]| {
                let out = by_definition(x, gamma, beta, 1e-3, of);
                out.iter()
                    .zip(&slopes)
                    .map(|(y, s)| y * f64::from(*s))
                    .sum::<f64>()
            };
            for i in 0..x.len() {
                let [mut up, mut down] = [wide.clone(), wide.clone()];
                (up[i], down[i]) = (up[i] + 1e-4, down[i] - 1e-4);
                let wanted = (loss(&up, &gamma, &beta) - loss(&down, &gamma, &beta)) / 2e-4;
                assert!(
                    (f64::from(found.x[i]) - wanted).abs() < 1e-5,
                    "{i}: {} {wanted}",
                    found.x[i]
                );
            }
            for i in 0..of.count {
                let off = |numbers: &[f32], by: f32| {
                    let mut numbers = numbers.to_vec();
                    numbers[i] += by;
                    numbers
                };
                let step = 1.0 / 16.0;
                let to_gamma =
                    loss(&wide, &off(&gamma, step), &beta) - loss(&wide, &off(&gamma, -step), &beta);
                let to_beta =
                    loss(&wide, &gamma, &off(&beta, step)) - loss(&wide, &gamma, &off(&beta, -step));
                assert!((f64::from(found.gamma[i]) - to_gamma / 0.125).abs() < 1e-5);
                assert!((f64::from(found.beta[i]) - to_beta / 0.125).abs() < 1e-5);
            }
        }
    }
}
