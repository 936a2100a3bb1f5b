//! The kernels of convolutions.

use super::bench::{Bench, numbers, spare};
use annulus_shaders::cpu::convolution::Convolution;
use annulus_shaders::kernel::*;
use bytemuck::{Pod, Zeroable};

/// Images, channels in and out, groups; rows and columns, side of the kernel, stride, border, dilation.
const SHAPES: [[usize; 10]; 6] = [
    [1, 1, 1, 1, 1, 1, 1, 1, 0, 1],
    [2, 3, 9, 1, 7, 9, 3, 1, 1, 1],
    [2, 8, 70, 1, 5, 6, 3, 2, 1, 1],
    [3, 12, 20, 2, 6, 5, 2, 1, 0, 2],
    [2, 6, 6, 6, 9, 7, 3, 2, 1, 1],
    [1, 68, 5, 1, 9, 8, 1, 1, 0, 1],
];

/// A convolution, and what kernels take instead of images and weights.
struct Case {
    sizes: Convolution,
    taps: usize,
    /// vec4 of a group's channels in and out.
    quads: [usize; 2],
    /// Lines and places of the copy.
    places: [usize; 2],
}

impl Case {
    fn new(
        [
            batch,
            inputs,
            outputs,
            groups,
            rows,
            columns,
            side,
            stride,
            border,
            dilation,
        ]: [usize; 10],
    ) -> Self {
        let output =
            [rows, columns].map(|length| (length + 2 * border - (side - 1) * dilation - 1) / stride + 1);
        Self {
            sizes: Convolution {
                batch,
                inputs,
                outputs,
                groups,
                input: [1, rows, columns],
                output: [1, output[0], output[1]],
                kernel: [1, side, side],
                strides: [1, stride, stride],
                before: [0, border, border],
                dilations: [1, dilation, dilation],
            },
            taps: side * side,
            quads: [inputs, outputs].map(|channels| (channels / groups).div_ceil(4)),
            places: output.map(|length| (length - 1) * stride + (side - 1) * dilation + 1),
        }
    }

    /// `[batch, groups channels, rows, columns]` with its channels last.
    fn copy(
        &self,
        x: &[f32],
        channels: usize,
        [rows, columns]: [usize; 2],
        border: usize,
        to: [usize; 2],
    ) -> Vec<f32> {
        let (groups, batch) = (self.sizes.groups, self.sizes.batch);
        let wide = channels.div_ceil(4) * 4;
        let mut out = vec![0.0; batch * to[0] * to[1] * groups * wide];
        for (at, out) in out.iter_mut().enumerate() {
            let (channel, group) = (at % wide, at / wide % groups);
            let place = at / wide / groups;
            let (column, row, image) = (place % to[1], place / to[1] % to[0], place / to[1] / to[0]);
            if channel < channels
                && (border..rows + border).contains(&row)
                && (border..columns + border).contains(&column)
            {
                let plane = (image * groups + group) * channels + channel;
                *out = x[(plane * rows + row - border) * columns + column - border];
            }
        }
        out
    }

    fn matrix(&self, weight: &[f32]) -> Vec<f32> {
        let [sources, made] =
            [self.sizes.inputs, self.sizes.outputs].map(|channels| channels / self.sizes.groups);
        let [rows, columns] = self.quads.map(|quads| 4 * quads);
        let mut out = vec![0.0; self.sizes.groups * self.taps * rows * columns];
        for (at, out) in out.iter_mut().enumerate() {
            let (channel, source) = (at % columns, at / columns % rows);
            let (tap, group) = (at / columns / rows % self.taps, at / columns / rows / self.taps);
            if channel < made && source < sources {
                *out = weight[((group * made + channel) * sources + source) * self.taps + tap];
            }
        }
        out
    }

    /// The parameters of a product, which are the same for the gradient of the weights but for where a number goes.
    fn product(&self, to: [usize; 6], biased: bool, piece: usize) -> [u32; 30] {
        let (sizes, [lines, across]) = (&self.sizes, self.places);
        let [_, rows, columns] = sizes.output;
        let place = sizes.groups * self.quads[0];
        let line = across * place;
        let [stride, dilation, side] = [sizes.strides[2], sizes.dilations[2], sizes.kernel[2]];
        let all = [
            sizes.batch * rows * columns,
            rows,
            columns,
            1,
            sizes.outputs / sizes.groups,
            self.quads[0],
            0,
            lines * line,
            0,
            stride * line,
            stride * place,
            0,
            dilation * line,
            dilation * place,
            1,
            side,
            side,
            self.taps,
            0,
            0,
            side,
            1,
            to[0],
            to[1],
            to[2],
            to[3],
            to[4],
            to[5],
            usize::from(biased),
            piece,
        ];
        all.map(|word| word as u32)
    }

    fn direct(&self, lanes: usize, biased: bool) -> Direct {
        let sizes = &self.sizes;
        let [sources, made] = [sizes.inputs, sizes.outputs].map(|channels| channels / sizes.groups);
        let [_, rows, columns] = sizes.output;
        let before = sizes.before[2].wrapping_neg();
        let (stride, dilation, side) = (sizes.strides[2], sizes.dilations[2], sizes.kernel[2]);
        let each = sources * self.taps;
        let plane = rows * columns;
        let head = [
            sizes.batch,
            sizes.groups,
            sources,
            made,
            1,
            sizes.input[1],
            sizes.input[2],
            1,
            rows,
            columns,
            1,
            stride,
            stride,
            0,
            before,
            before,
            1,
            dilation,
            dilation,
            1,
            side,
            side,
            0,
            self.taps,
            side,
            1,
            made * each,
            each,
            self.taps,
            0,
            sizes.outputs * plane,
            plane,
        ];
        let tail = [plane, columns, 1, usize::from(biased), lanes];
        Direct(head.map(|word| word as u32), tail.map(|word| word as u32))
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Direct([u32; 32], [u32; 5]);

/// Forward, and the gradient for the weights.
pub async fn all(bench: &mut Bench) {
    for shape in SHAPES {
        let case = Case::new(shape);
        let sizes = &case.sizes;
        let [batch, groups] = [sizes.batch, sizes.groups];
        let [sources, made] = [sizes.inputs, sizes.outputs].map(|channels| channels / groups);
        let ([_, rows, columns], [_, down, across]) = (sizes.input, sizes.output);
        let positions = batch * down * across;
        let x = numbers(batch * sizes.inputs * rows * columns, 1);
        let weight = numbers(sizes.outputs * sources * case.taps, 2);
        let bias = numbers(sizes.outputs, 3);
        let gradient = numbers(positions * sizes.outputs, 4);
        let what = format!("{shape:?}");

        let border = sizes.before[2];
        let copy = case.copy(&x, sources, [rows, columns], border, case.places);
        let [lines, places] = case.places;
        let params = [
            batch, groups, sources, 1, rows, columns, 1, lines, places, 0, border, border,
        ];
        let grid = spare((copy.len() / 4).div_ceil(64));
        bench
            .case(
                &CONVOLUTION_COPY,
                &what,
                &[&x],
                &[&copy],
                0.0,
                params.map(|word| word as u32),
                grid,
            )
            .await;
        let matrix = case.matrix(&weight);
        let each = sources * case.taps;
        let params = [groups, case.taps, sources, made, made * each, case.taps, each];
        let grid = spare((matrix.len() / 4).div_ceil(64));
        bench
            .case(
                &CONVOLUTION_MATRIX,
                &what,
                &[&weight],
                &[&matrix],
                0.0,
                params.map(|word| word as u32),
                grid,
            )
            .await;

        let mut expected = sizes.forward(&x, &weight);
        for (at, x) in expected.iter_mut().enumerate() {
            *x += bias[at / (down * across) % sizes.outputs];
        }
        let plane = down * across;
        let params = case.product([0, sizes.outputs * plane, plane, 0, across, 1], true, 0);
        for (kernel, tile) in [(&CONVOLUTION, 16), (&CONVOLUTION_TILED, 64)] {
            let [width, height, _] = spare(positions.div_ceil(64) * made.div_ceil(tile));
            let grid = [width, height, groups as u32];
            bench
                .case(
                    kernel,
                    &what,
                    &[&copy, &matrix, &bias],
                    &[&expected],
                    1e-5,
                    params,
                    grid,
                )
                .await;
        }
        let count = batch * sizes.outputs * down * across.div_ceil(4);
        let grid = spare(count.div_ceil(64));
        let params = case.direct(1, true);
        bench
            .case(
                &CONVOLUTION_DIRECT,
                &what,
                &[&x, &weight, &bias],
                &[&expected],
                1e-5,
                params,
                grid,
            )
            .await;

        let expected = sizes.to_weight(&x, &gradient);
        for lanes in [1, 16] {
            let grid = spare(expected.len().div_ceil(64 / lanes));
            let params = case.direct(lanes, false);
            bench
                .case(
                    &CONVOLUTION_DIRECT_WEIGHTS,
                    &what,
                    &[&x, &gradient],
                    &[&expected],
                    1e-5,
                    params,
                    grid,
                )
                .await;
        }
        let slopes = case.copy(&gradient, made, [down, across], 0, [down, across]);
        let piece = positions.div_ceil(2);
        let parts = parts(&case, &copy, &slopes, piece);
        let pieces = positions.div_ceil(piece);
        let place = groups * case.quads[1];
        let params = case.product([0, plane * place, 0, 0, across * place, place], false, piece);
        for (kernel, tile) in [(&CONVOLUTION_WEIGHTS, 16), (&CONVOLUTION_WEIGHTS_TILED, 64)] {
            let tiles = (case.taps * case.quads[0]).div_ceil(16) * made.div_ceil(tile);
            let [width, height, _] = spare(tiles * pieces);
            let grid = [width, height, groups as u32];
            bench
                .case(kernel, &what, &[&copy, &slopes], &[&parts], 1e-5, params, grid)
                .await;
        }
        let params = [pieces, groups, case.taps, sources, made].map(|word| word as u32);
        let grid = spare(expected.len().div_ceil(64));
        bench
            .case(
                &CONVOLUTION_WEIGHTS_TOTAL,
                &what,
                &[&parts],
                &[&expected],
                1e-5,
                params,
                grid,
            )
            .await;
    }
}

/// The gradient for the weights, piece by piece of the positions, from copies of the input and of the gradient.
fn parts(case: &Case, copy: &[f32], slopes: &[f32], piece: usize) -> Vec<f32> {
    let sizes = &case.sizes;
    let ([_, down, across], [lines, places]) = (sizes.output, case.places);
    let (side, stride, dilation) = (sizes.kernel[2], sizes.strides[2], sizes.dilations[2]);
    let [rows, columns] = case.quads.map(|quads| 4 * quads);
    let positions = sizes.batch * down * across;
    let each = sizes.groups * case.taps * rows * columns;
    let mut out = vec![0.0f32; positions.div_ceil(piece) * each];
    for position in 0..positions {
        let (x, y, image) = (
            position % across,
            position / across % down,
            position / across / down,
        );
        for at in 0..each {
            let (column, row) = (at % columns, at / columns % rows);
            let (tap, group) = (at / columns / rows % case.taps, at / columns / rows / case.taps);
            let line = y * stride + tap / side * dilation;
            let place = (image * lines + line) * places + x * stride + tap % side * dilation;
            let read = copy[(place * sizes.groups + group) * rows + row];
            out[position / piece * each + at] +=
                read * slopes[(position * sizes.groups + group) * columns + column];
        }
    }
    out
}
