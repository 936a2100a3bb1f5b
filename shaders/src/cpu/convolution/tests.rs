//! Convolutions against their definition.

use super::*;

/// Numbers that have no pattern.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

impl Convolution {
    fn weights(&self) -> usize {
        self.outputs * self.inputs / self.groups * volume(self.kernel)
    }

    /// All products, as places in input, weights and output.
    fn products(&self) -> Vec<[usize; 3]> {
        let [sources, made] = [self.inputs / self.groups, self.outputs / self.groups];
        let mut products = Vec::new();
        for (image, output) in places([1, self.batch, self.outputs]).map(|[_, b, o]| (b, o)) {
            for (at, place) in places(self.output).enumerate() {
                for channel in 0..sources {
                    for (tap, of) in places(self.kernel).enumerate() {
                        let x: [usize; 3] = array::from_fn(|axis| {
                            (place[axis] * self.strides[axis] + of[axis] * self.dilations[axis])
                                .wrapping_sub(self.before[axis])
                        });
                        if (0..3).any(|axis| x[axis] >= self.input[axis]) {
                            continue;
                        }
                        let input = output / made * sources + channel;
                        let [_, rows, columns] = self.input;
                        let x = (x[0] * rows + x[1]) * columns + x[2];
                        products.push([
                            (image * self.inputs + input) * volume(self.input) + x,
                            (output * sources + channel) * volume(self.kernel) + tap,
                            (image * self.outputs + output) * volume(self.output) + at,
                        ]);
                    }
                }
            }
        }
        products
    }
}

fn of(
    [batch, inputs, outputs, groups]: [usize; 4],
    input: [usize; 3],
    kernel: [usize; 3],
    strides: [usize; 3],
    [before, behind]: [[usize; 3]; 2],
    dilations: [usize; 3],
) -> Convolution {
    let output = array::from_fn(|axis| {
        let padded = input[axis] + before[axis] + behind[axis];
        (padded - (kernel[axis] - 1) * dilations[axis] - 1) / strides[axis] + 1
    });
    Convolution {
        batch,
        inputs,
        outputs,
        groups,
        input,
        output,
        kernel,
        strides,
        before,
        dilations,
    }
}

fn all() -> Vec<Convolution> {
    let none = [[0; 3]; 2];
    let around = |y, x| [[0, y, x]; 2];
    vec![
        of([2, 3, 8, 1], [1, 9, 11], [1, 3, 3], [1; 3], around(1, 1), [1; 3]),
        of(
            [3, 5, 7, 1],
            [1, 8, 8],
            [1, 3, 3],
            [1, 2, 2],
            around(1, 1),
            [1; 3],
        ),
        of(
            [1, 4, 9, 1],
            [1, 1, 50],
            [1, 1, 7],
            [1, 1, 3],
            around(0, 3),
            [1, 1, 2],
        ),
        of([2, 6, 6, 6], [1, 7, 33], [1, 3, 3], [1; 3], around(1, 1), [1; 3]),
        of(
            [2, 6, 12, 6],
            [1, 7, 18],
            [1, 5, 5],
            [1, 2, 2],
            around(2, 2),
            [1; 3],
        ),
        of(
            [2, 8, 12, 2],
            [1, 6, 6],
            [1, 3, 3],
            [1; 3],
            around(2, 2),
            [1, 2, 2],
        ),
        of([5, 16, 24, 1], [1, 4, 4], [1; 3], [1; 3], none, [1; 3]),
        of([2, 4, 5, 1], [1, 5, 5], [1; 3], [1, 2, 2], none, [1; 3]),
        of(
            [2, 3, 5, 1],
            [4, 5, 6],
            [2, 3, 3],
            [2, 1, 2],
            [[1, 1, 0], [0, 2, 1]],
            [1; 3],
        ),
        // Numbers behind the last position, and a kernel that moves over some of them.
        of([1, 2, 4, 1], [1, 10, 10], [1, 2, 2], [1, 4, 3], none, [1; 3]),
        // A border wider than the kernel.
        of([1, 2, 5, 1], [1, 3, 3], [1, 2, 2], [1; 3], around(4, 3), [1; 3]),
        of(
            [2, 20, 70, 1],
            [1, 24, 25],
            [1, 3, 3],
            [1; 3],
            around(1, 1),
            [1; 3],
        ),
        // One image at a time, and deep sums.
        of(
            [2, 70, 6, 1],
            [1, 24, 24],
            [1, 3, 3],
            [1; 3],
            around(1, 1),
            [1; 3],
        ),
    ]
}

#[test]
fn output_and_gradients_are_what_they_should_be() {
    for of in all() {
        let sizes = [
            of.batch * of.inputs * volume(of.input),
            of.weights(),
            of.batch * of.outputs * volume(of.output),
        ];
        let [x, weight, gradient] = [0, 1, 2].map(|i| numbers(sizes[i], i as u32 + 1));
        let mut wanted = sizes.map(|size| vec![0.0f64; size]);
        for [i, j, k] in of.products() {
            let [x, weight, gradient] = [x[i], weight[j], gradient[k]].map(f64::from);
            wanted[0][i] += weight * gradient;
            wanted[1][j] += x * gradient;
            wanted[2][k] += x * weight;
        }
        let found = [
            of.to_input(&weight, &gradient),
            of.to_weight(&x, &gradient),
            of.forward(&x, &weight),
        ];
        for ((found, wanted), what) in found.iter().zip(wanted).zip(["input", "weights", "output"]) {
            assert_eq!(found.len(), wanted.len());
            let scale = wanted.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
            for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
                let off = (f64::from(*found) - wanted).abs() / scale;
                assert!(off < 2e-6, "{what} {i} of {of:?}: {found} instead of {wanted}");
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    for of in all() {
        let x = numbers(of.batch * of.inputs * volume(of.input), 1);
        let weight = numbers(of.weights(), 2);
        let gradient = numbers(of.batch * of.outputs * volume(of.output), 3);
        let by = |cores| {
            let (x, weight, gradient) = (&x, &weight, &gradient);
            let work = move || {
                crate::cpu::keep_to(cores);
                let made = [
                    of.forward(x, weight),
                    of.to_input(weight, gradient),
                    of.to_weight(x, gradient),
                ];
                made.map(|made| made.iter().map(|x| x.to_bits()).collect::<Vec<u32>>())
            };
            std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
        };
        assert!(by(1) == by(4), "{of:?}");
    }
}

#[test]
fn a_bias_gets_the_sum_over_images_and_positions() {
    let of = all()[0];
    let gradient = numbers(of.batch * of.outputs * volume(of.output), 3);
    let mut wanted = vec![0.0f64; of.outputs];
    for (i, g) in gradient.iter().enumerate() {
        wanted[i / volume(of.output) % of.outputs] += f64::from(*g);
    }
    for (found, wanted) in to_bias(&gradient, of.outputs, of.output).iter().zip(wanted) {
        assert!((f64::from(*found) - wanted).abs() < 1e-5);
    }
}
