//! Convolutions by kernels: products of matrices whose second factor is never in memory, from a copy of the image with its
//! channels last and its border. Groups that make few channels are summed number by number.

use bytemuck::{Pod, Zeroable};

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::tensor::FloatDType;

use super::walks::{self, Walk};
use super::{Convolutions, Saved};
use crate::cpu::convolution::{Convolution, volume};
use crate::kernel::{
    BATCH_NORM_SUMS, CONVOLUTION, CONVOLUTION_COPY, CONVOLUTION_DIRECT, CONVOLUTION_DIRECT_WEIGHTS,
    CONVOLUTION_MATRIX, CONVOLUTION_TILED, CONVOLUTION_WEIGHTS, CONVOLUTION_WEIGHTS_TILED,
    CONVOLUTION_WEIGHTS_TOTAL, Kernel,
};
use crate::launch::{Adapter, adapter, contiguous, empty, grid, lanes, launch, reshaped};
use crate::ops::batch_norm::channel_sums;

/// The kernels that convolutions may take.
pub fn kernels(adapter: Adapter) -> Vec<&'static Kernel> {
    let ([product, of_weights], _) = products(adapter);
    vec![
        &CONVOLUTION_COPY,
        &CONVOLUTION_MATRIX,
        product,
        of_weights,
        &CONVOLUTION_WEIGHTS_TOTAL,
        &CONVOLUTION_DIRECT,
        &CONVOLUTION_DIRECT_WEIGHTS,
        // For the bias.
        &BATCH_NORM_SUMS,
    ]
}

/// The kernels of the product, and of the gradient for its weights, and how many channels a workgroup of them makes. Barriers
/// are dear where threads are emulated.
fn products(adapter: Adapter) -> ([&'static Kernel; 2], usize) {
    match adapter {
        Adapter::Gpu => ([&CONVOLUTION_TILED, &CONVOLUTION_WEIGHTS_TILED], 64),
        Adapter::Cpu | Adapter::SwiftShader => ([&CONVOLUTION, &CONVOLUTION_WEIGHTS], 16),
    }
}

/// Whether a product would make mostly channels that there are not: a tile has 64, or 16. A guess.
fn makes_few(groups: usize, made: usize) -> bool {
    made <= 4 || groups > 1 && made < 16
}

fn words<const N: usize>(numbers: [usize; N]) -> [u32; N] {
    numbers.map(|number| u32::try_from(number).expect("fewer than 2^32 numbers"))
}

/// Where a number lies: how far it is along each axis, times these.
fn steps([_, rows, columns]: [usize; 3], each: usize) -> [usize; 3] {
    [rows * columns * each, columns * each, each]
}

fn dot(xs: [usize; 3], ys: [usize; 3]) -> usize {
    xs.iter().zip(ys).map(|(x, y)| x * y).sum()
}

/// An image with its channels last, and a border of zeros.
struct Copied {
    tensor: CubeTensor,
    /// vec4 of a group's channels at a place.
    quads: usize,
    before: [usize; 3],
    /// In vec4, from an image to the next, and along the axes.
    image: usize,
    steps: [usize; 3],
}

impl Copied {
    /// Of `[batch, groups * channels, ..]`, with all that these walks read.
    fn new(
        x: &CubeTensor,
        [batch, groups, channels]: [usize; 3],
        lengths: [usize; 3],
        walks: &[Walk],
    ) -> Self {
        let reach = [0, 1, 2].map(|axis| walks::reach(walks, axis));
        let before = reach.map(|[low, _]| low.unsigned_abs());
        let places = reach.map(|[low, high]| (high - low + 1) as usize);
        let quads = channels.div_ceil(4);
        let count = batch * groups * quads * volume(places);
        let tensor = empty(x, [4 * count]);
        let [depth, rows, columns] = lengths;
        let [planes, lines, across] = places;
        let [before_z, before_y, before_x] = before;
        let params = words([
            batch, groups, channels, depth, rows, columns, planes, lines, across, before_z, before_y,
            before_x,
        ]);
        launch(
            &CONVOLUTION_COPY,
            &[x],
            &[&tensor],
            params,
            grid(count.div_ceil(64)),
        );
        Self {
            tensor,
            quads,
            before,
            image: groups * quads * volume(places),
            steps: steps(places, groups * quads),
        }
    }
}

/// The forward pass or the gradient for the input: either reads channels and makes others.
struct Pass {
    batch: usize,
    groups: usize,
    /// Channels that a group reads and makes.
    sources: usize,
    made: usize,
    /// Lengths of what is read, of what is made, and of the kernel.
    read: [usize; 3],
    to: [usize; 3],
    kernel: [usize; 3],
    /// From the weights of a group, of a made channel and of a source channel to those of the next.
    from: [usize; 3],
    walks: Vec<Walk>,
}

impl Pass {
    fn forward(sizes: &Convolution) -> Self {
        let (sources, made) = (sizes.inputs / sizes.groups, sizes.outputs / sizes.groups);
        let taps = volume(sizes.kernel);
        Self {
            batch: sizes.batch,
            groups: sizes.groups,
            sources,
            made,
            read: sizes.input,
            to: sizes.output,
            kernel: sizes.kernel,
            from: [made * sources * taps, sources * taps, taps],
            walks: vec![walks::forward(sizes)],
        }
    }

    fn to_input(sizes: &Convolution) -> Self {
        let (sources, made) = (sizes.outputs / sizes.groups, sizes.inputs / sizes.groups);
        let taps = volume(sizes.kernel);
        Self {
            sources,
            made,
            read: sizes.output,
            to: sizes.input,
            from: [made * sources * taps, taps, made * taps],
            walks: walks::to_input(sizes),
            ..Self::forward(sizes)
        }
    }

    fn run(&self, x: &CubeTensor, weight: &CubeTensor, bias: Option<&CubeTensor>) -> CubeTensor {
        let out = empty(x, [self.batch * self.groups * self.made * volume(self.to)]);
        if out.shape().num_elements() == 0 {
            return out;
        }
        match makes_few(self.groups, self.made) {
            true => self.directly(x, weight, bias, &out),
            false => self.by_products(x, weight, bias, &out),
        }
        out
    }

    /// Where a walk's first number goes, and how far it is from there to the next image, channel and position.
    fn target(&self, walk: &Walk) -> [usize; 6] {
        let along = steps(self.to, 1);
        let [z, y, x] = [0, 1, 2].map(|axis| along[axis] * walk[axis].to_step);
        let channel = volume(self.to);
        let first = dot(walk.map(|axis| axis.to), along);
        [first, self.groups * self.made * channel, channel, z, y, x]
    }

    /// The first of a walk's taps, and how far it is to the next along each axis.
    fn tap(&self, walk: &Walk) -> [usize; 4] {
        let along = steps(self.kernel, 1);
        let [z, y, x] = [0, 1, 2].map(|axis| along[axis] * walk[axis].tap_step);
        [dot(walk.map(|axis| axis.tap), along), z, y, x]
    }

    fn by_products(&self, x: &CubeTensor, weight: &CubeTensor, bias: Option<&CubeTensor>, out: &CubeTensor) {
        let copy = Copied::new(x, [self.batch, self.groups, self.sources], self.read, &self.walks);
        let taps = volume(self.kernel);
        let count = self.groups * taps * 4 * copy.quads * self.made.div_ceil(4);
        let matrix = empty(x, [4 * count]);
        let [from_group, from_made, from_source] = self.from;
        let params = words([
            self.groups,
            taps,
            self.sources,
            self.made,
            from_group,
            from_source,
            from_made,
        ]);
        launch(
            &CONVOLUTION_MATRIX,
            &[weight],
            &[&matrix],
            params,
            grid(count.div_ceil(64)),
        );
        let ([kernel, _], tile) = products(adapter(x));
        for walk in &self.walks {
            let sizes = [self.made, taps, usize::from(bias.is_some()), 0];
            let params = product_params(self.batch, &copy, walk, self.tap(walk), self.target(walk), sizes);
            let positions = params[0] as usize;
            let [columns, rows, _] = grid(positions.div_ceil(64) * self.made.div_ceil(tile));
            let groups = [columns, rows, self.groups as u32];
            let inputs = [&copy.tensor, &matrix, bias.unwrap_or(weight)];
            launch(kernel, &inputs, &[out], params, groups);
        }
    }

    fn directly(&self, x: &CubeTensor, weight: &CubeTensor, bias: Option<&CubeTensor>, out: &CubeTensor) {
        for walk in &self.walks {
            let [planes, rows, columns] = walk.map(|axis| axis.positions);
            let count = self.batch * self.groups * self.made * planes * rows * columns.div_ceil(4);
            let params = self.direct_params(walk, bias.is_some(), 1);
            let inputs = [x, weight, bias.unwrap_or(weight)];
            launch(
                &CONVOLUTION_DIRECT,
                &inputs,
                &[out],
                params,
                grid(count.div_ceil(64)),
            );
        }
    }

    fn direct_params(&self, walk: &Walk, biased: bool, lanes: u32) -> DirectParams {
        let signed = |number: isize| number as u32;
        let sizes = words([self.batch, self.groups, self.sources, self.made]);
        let mut all = sizes.to_vec();
        all.extend(words(self.read));
        all.extend(words(walk.map(|axis| axis.positions)));
        all.extend(words(walk.map(|axis| axis.moves)));
        all.extend(walk.map(|axis| signed(axis.first)));
        all.extend(walk.map(|axis| signed(axis.step)));
        all.extend(words(walk.map(|axis| axis.taps)));
        all.extend(words(self.tap(walk)));
        all.extend(words(self.from));
        all.extend(words(self.target(walk)));
        all.extend([u32::from(biased), lanes]);
        *bytemuck::from_bytes(bytemuck::cast_slice(&all))
    }
}

/// `convolution_direct_params.wgsl`, word by word.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DirectParams([u32; 32], [u32; 5]);

/// `convolution_params.wgsl`, word by word. `sizes` are channels made, taps of the kernel, whether there is a bias, and
/// positions in a piece.
fn product_params(
    batch: usize,
    copy: &Copied,
    walk: &Walk,
    tap: [usize; 4],
    target: [usize; 6],
    [made, all_taps, biased, piece]: [usize; 4],
) -> [u32; 30] {
    // A walk without taps reads nothing.
    let reads = walk.iter().all(|axis| axis.taps > 0);
    let start = [0, 1, 2].map(|axis| match reads {
        true => copy.before[axis].strict_add_signed(walk[axis].first),
        false => 0,
    });
    let [planes, rows, columns] = walk.map(|axis| axis.positions);
    let positions = batch * planes * rows * columns;
    let [from, image] = [dot(start, copy.steps), copy.image];
    let mut all = words([positions, rows, columns, planes, made, copy.quads, from, image]).to_vec();
    all.extend(words([0, 1, 2].map(|axis| walk[axis].moves * copy.steps[axis])));
    // Numbers below 0 wrap around.
    all.extend([0, 1, 2].map(|axis| (walk[axis].step * copy.steps[axis] as isize) as u32));
    all.extend(words(walk.map(|axis| if reads { axis.taps } else { 0 })));
    all.extend(words([all_taps]));
    all.extend(words(tap));
    all.extend(words(target));
    all.extend(words([biased, piece]));
    all.try_into().expect("a word for each parameter")
}

/// The gradient for the weights.
fn to_weight(sizes: &Convolution, x: &CubeTensor, gradient: &CubeTensor) -> CubeTensor {
    let pass = Pass::forward(sizes);
    let taps = volume(sizes.kernel);
    let count = sizes.outputs * pass.sources * taps;
    if count * sizes.batch == 0 {
        return CubeBackend::float_zeros([count].into(), &x.device, FloatDType::F32);
    }
    let out = empty(x, [count]);
    let walk = &pass.walks[0];
    if makes_few(pass.groups, pass.made) {
        let lanes = lanes(x, volume(sizes.output) * sizes.batch);
        let params = pass.direct_params(walk, false, lanes);
        let groups = grid(count.div_ceil((64 / lanes) as usize));
        launch(
            &CONVOLUTION_DIRECT_WEIGHTS,
            &[x, gradient],
            &[&out],
            params,
            groups,
        );
        return out;
    }
    let copy = Copied::new(
        x,
        [sizes.batch, pass.groups, pass.sources],
        sizes.input,
        &pass.walks,
    );
    // Walked over number by number.
    let mut plain = *walk;
    for axis in &mut plain {
        (axis.moves, axis.first, axis.taps) = (1, 0, 1);
    }
    let slopes = Copied::new(
        gradient,
        [sizes.batch, pass.groups, pass.made],
        sizes.output,
        &[plain],
    );
    let positions = sizes.batch * volume(sizes.output);
    let ([_, kernel], tile) = products(adapter(x));
    let tiles = (taps * copy.quads).div_ceil(16) * pass.made.div_ceil(tile);
    let part = pass.groups * taps * 4 * copy.quads * 4 * slopes.quads;
    let pieces = pieces(positions, tiles * pass.groups, part);
    let parts = empty(x, [pieces * part]);
    let [z, y, across] = slopes.steps;
    let target = [0, slopes.image, 0, z, y, across];
    let sizes = [pass.made, taps, 0, positions.div_ceil(pieces)];
    let params = product_params(pass.batch, &copy, walk, [0; 4], target, sizes);
    let [columns, rows, _] = grid(tiles * pieces);
    let groups = [columns, rows, pass.groups as u32];
    launch(kernel, &[&copy.tensor, &slopes.tensor], &[&parts], params, groups);
    let params = words([pieces, pass.groups, taps, pass.sources, pass.made]);
    launch(
        &CONVOLUTION_WEIGHTS_TOTAL,
        &[&parts],
        &[&out],
        params,
        grid(count.div_ceil(64)),
    );
    out
}

/// The number of pieces for the gradient of weights. Each covers some positions, and makes these tiles and numbers. A large GPU
/// needs enough workgroups, sums should be short, and a buffer holds only so much.
fn pieces(positions: usize, tiles: usize, numbers: usize) -> usize {
    // As for products.
    const ENOUGH: usize = 768;
    const SHORTEST: usize = 128;
    const LONGEST: usize = 4096;
    const MOST: usize = 1 << 24;
    let wanted = (ENOUGH / tiles)
        .min(positions / SHORTEST)
        .max(positions / LONGEST)
        .min(MOST / numbers)
        .max(1);
    // So that none is empty.
    positions.div_ceil(positions.div_ceil(wanted).max(1)).max(1)
}

impl Convolutions for CubeBackend {
    fn convolved(given: &Saved<Self>, bias: Option<&CubeTensor>) -> CubeTensor {
        let sizes = given.sizes();
        let [x, weight] = [&given.x, &given.weight].map(|tensor| contiguous(tensor.clone()));
        let bias = bias.map(|bias| contiguous(bias.clone()));
        let channels = given.made()[1];
        assert!(
            bias.as_ref()
                .is_none_or(|bias| bias.shape().num_elements() == channels),
            "a bias for each of {channels} channels"
        );
        let pass = match given.transposed {
            false => Pass::forward(&sizes),
            true => Pass::to_input(&sizes),
        };
        reshaped(pass.run(&x, &weight, bias.as_ref()), given.made())
    }

    fn convolution_gradients(
        saved: Saved<Self>,
        gradient: CubeTensor,
        [on_x, on_weight, on_bias]: [bool; 3],
    ) -> [Option<CubeTensor>; 3] {
        let sizes = saved.sizes();
        let shapes = [saved.x.shape(), saved.weight.shape()];
        let [x, weight, gradient] = [saved.x, saved.weight, gradient].map(contiguous);
        let (pass, read, slopes) = match saved.transposed {
            false => (Pass::to_input(&sizes), &x, &gradient),
            true => (Pass::forward(&sizes), &gradient, &x),
        };
        let [x_shape, weight_shape] = shapes;
        [
            on_x.then(|| reshaped(pass.run(&gradient, &weight, None), x_shape)),
            on_weight.then(|| reshaped(to_weight(&sizes, read, slopes), weight_shape)),
            on_bias.then(|| channel_sums(&gradient)),
        ]
    }
}
