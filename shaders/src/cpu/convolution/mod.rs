//! Convolutions over one to three axes, forward and both gradients, as products of matrices whose second one is never in
//! memory (Chetlur and others, 2014, "cuDNN: Efficient Primitives for Deep Learning", section 3).
//!
//! | what | first factor | second factor |
//! |---|---|---|
//! | output | weights `[outputs, inputs x taps]` | what the kernel sees of the input |
//! | gradient for the input | weights `[inputs, outputs x taps]` | what the kernel, turned, sees of the output's gradient |
//! | gradient for the weights | what the kernel sees of the input | the output's gradient |
//!
//! Where the kernel moves by more than one number, the numbers of the input's gradient are made remainder by remainder, each
//! of the taps that reach it. Groups of few channels make no products of matrices; there one number after the other is
//! summed. Vector length and number of threads change no bit.

mod patches;

use std::array;

use self::patches::{Layout, PatchRows, Patches, SIDES, Segment};
use super::gemm::Matrix;
use super::processor::{in_threads, threads, widest};
use super::product::{self, COLUMNS, PRODUCTS_PER_THREAD};

/// Groups with fewer rows in a product than this are summed one number after the other: a tile has six rows.
const FEW: usize = 3;

/// The sizes of a convolution. Axes that there are not have length 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Images.
    pub batch: usize,
    /// Channels of the input.
    pub inputs: usize,
    /// Channels of the output.
    pub outputs: usize,
    /// Groups of channels; each output channel sees the inputs of its group.
    pub groups: usize,
    /// Lengths of the input's axes.
    pub input: [usize; 3],
    /// Lengths of the output's axes.
    pub output: [usize; 3],
    /// Lengths of the kernel.
    pub kernel: [usize; 3],
    /// How far the kernel moves from a position to the next.
    pub strides: [usize; 3],
    /// Zeros before the input.
    pub before: [usize; 3],
    /// From a tap of the kernel to the next.
    pub dilations: [usize; 3],
}

impl Convolution {
    /// The output `[batch, outputs, ..]` of an input `[batch, inputs, ..]` and weights `[outputs, inputs / groups, ..]`.
    pub fn forward(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let taps = self.all_taps();
        let walk = Walk {
            batch: self.batch,
            groups: self.groups,
            sources: self.inputs / self.groups,
            made: self.outputs / self.groups,
            source: self.input,
            layout: Layout::new(self.input, &offsets(&taps), self.strides, self.output),
            target: Target {
                lengths: self.output,
                first: [0; 3],
                strides: [1; 3],
            },
        };
        let mut out = vec![0.0; self.batch * self.outputs * volume(self.output)];
        walk.run(x, weight, &mut out);
        out
    }

    /// The gradient for the input, from that for the output.
    pub fn to_input(&self, weight: &[f32], gradient: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.batch * self.inputs * volume(self.input)];
        for remainder in self.remainders() {
            let reach = |axis: usize, tap: usize| {
                let at =
                    (remainder[axis] + self.before[axis]) as isize - (tap * self.dilations[axis]) as isize;
                let stride = self.strides[axis] as isize;
                (at.rem_euclid(stride) == 0).then(|| at.div_euclid(stride))
            };
            let taps = self.taps(reach);
            let grid = array::from_fn(|axis| {
                let left = self.input[axis].saturating_sub(remainder[axis]);
                left.div_ceil(self.strides[axis])
            });
            if taps.is_empty() {
                continue;
            }
            let walk = Walk {
                batch: self.batch,
                groups: self.groups,
                sources: self.outputs / self.groups,
                made: self.inputs / self.groups,
                source: self.output,
                layout: Layout::new(self.output, &offsets(&taps), [1; 3], grid),
                target: Target {
                    lengths: self.input,
                    first: remainder,
                    strides: self.strides,
                },
            };
            walk.run(gradient, &self.turned(weight, &taps), &mut out);
        }
        out
    }

    /// The remainders of the strides that some of the input's numbers have.
    pub(crate) fn remainders(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        places(array::from_fn(|axis| self.strides[axis].min(self.input[axis])))
    }

    /// The gradient for the weights, from that for the output.
    pub fn to_weight(&self, x: &[f32], gradient: &[f32]) -> Vec<f32> {
        let taps = self.all_taps();
        let layout = &Layout::new(self.input, &offsets(&taps), self.strides, self.output);
        let [sources, made] = [self.inputs / self.groups, self.outputs / self.groups];
        let positions = volume(self.output);
        let (columns, taps) = (self.batch * positions, taps.len());
        // Channel by channel, of all images.
        let mut joined = vec![0.0; gradient.len()];
        for (to, channel) in joined.chunks_exact_mut(columns.max(1)).zip(0..) {
            for (to, image) in to.chunks_exact_mut(positions).zip(0..) {
                to.copy_from_slice(&gradient[(image * self.outputs + channel) * positions..][..positions]);
            }
        }
        // Rows of input channels and taps, columns of output channels.
        let mut turned = vec![0.0; self.inputs * taps * made];
        let work = self.inputs * taps * made * columns;
        let threads = threads(work, PRODUCTS_PER_THREAD, self.inputs);
        let share = self.inputs.div_ceil(threads);
        in_threads(
            turned.chunks_mut(share * taps * made).enumerate(),
            |(part, out)| {
                let mut first = part * share;
                let mut rest = out;
                while !rest.is_empty() {
                    // No further than the group goes.
                    let group = first / sources;
                    let count = (rest.len() / taps / made).min((group + 1) * sources - first);
                    let (out, behind) = rest.split_at_mut(count * taps * made);
                    let image = count * layout.plane();
                    let mut copies = vec![0.0; self.batch * image + SIDES];
                    for (i, to) in copies[..self.batch * image]
                        .chunks_exact_mut(layout.plane())
                        .enumerate()
                    {
                        let channel = i / count * self.inputs + first + i % count;
                        let size = volume(self.input);
                        layout.copy(&x[channel * size..][..size], to);
                    }
                    let patches = Patches {
                        copies: &copies,
                        layout,
                        image,
                    };
                    let gradient = &joined[group * made * columns..][..made * columns];
                    if made <= FEW {
                        sums(out, made, gradient, patches);
                    } else {
                        let of_rows = PatchRows { patches, first: 0 };
                        let gradient = Matrix::row_major(gradient, columns).transposed();
                        product::rows(out, [made, columns], of_rows, gradient);
                    }
                    (first, rest) = (first + count, behind);
                }
            },
        );
        let mut out = vec![0.0; turned.len()];
        for (group, out) in out.chunks_exact_mut((sources * taps * made).max(1)).enumerate() {
            let turned = &turned[group * sources * taps * made..];
            for (o, out) in out.chunks_exact_mut(sources * taps).enumerate() {
                let column = turned[o..].iter().step_by(made);
                out.iter_mut().zip(column).for_each(|(to, from)| *to = *from);
            }
        }
        out
    }

    /// All taps, by where they read the input.
    fn all_taps(&self) -> Vec<Tap> {
        self.taps(|axis, tap| Some((tap * self.dilations[axis]) as isize - self.before[axis] as isize))
    }

    /// The taps of the kernel that have an offset along each axis, with their places in the kernel.
    fn taps(&self, offset: impl Fn(usize, usize) -> Option<isize>) -> Vec<Tap> {
        let taps = places(self.kernel).enumerate();
        let tap = |(index, place): (usize, [usize; 3])| {
            let [z, y, x] = array::from_fn(|axis| offset(axis, place[axis]));
            let offset = [z?, y?, x?];
            Some(Tap { index, offset })
        };
        taps.filter_map(tap).collect()
    }

    /// Weights `[inputs, outputs / groups, taps]` of some taps.
    fn turned(&self, weight: &[f32], taps: &[Tap]) -> Vec<f32> {
        let [sources, made, kernel] = [
            self.inputs / self.groups,
            self.outputs / self.groups,
            volume(self.kernel),
        ];
        let mut out = Vec::with_capacity(self.inputs * made * taps.len());
        for input in 0..self.inputs {
            for output in 0..made {
                let channel = input / sources * made + output;
                let of = &weight[(channel * sources + input % sources) * kernel..][..kernel];
                out.extend(taps.iter().map(|tap| of[tap.index]));
            }
        }
        out
    }
}

/// The gradient for numbers that are added to each channel, from that for `[batch, channels, ..]`.
pub fn to_bias(gradient: &[f32], channels: usize, lengths: [usize; 3]) -> Vec<f32> {
    let mut sums = vec![0.0f64; channels];
    let planes = gradient.chunks_exact(volume(lengths).max(1));
    for (plane, channel) in planes.zip((0..channels).cycle()) {
        sums[channel] += f64::from(super::sums::sum_by(plane, |x| x));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

/// A number of the kernel, and where it reads.
struct Tap {
    index: usize,
    offset: [isize; 3],
}

fn offsets(taps: &[Tap]) -> Vec<[isize; 3]> {
    taps.iter().map(|tap| tap.offset).collect()
}

/// How many numbers lengths have together.
pub(crate) fn volume(lengths: [usize; 3]) -> usize {
    lengths.iter().product()
}

/// All places within some lengths, the last axis fastest.
fn places([depth, rows, columns]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> + use<> {
    (0..depth * rows * columns).map(move |i| [i / columns / rows, i / columns % rows, i % columns])
}

/// Where the numbers of a walk go.
struct Target {
    lengths: [usize; 3],
    first: [usize; 3],
    strides: [usize; 3],
}

impl Target {
    /// Whether they lie one behind the other.
    fn is_whole(&self) -> bool {
        self.first == [0; 3] && self.strides == [1; 3]
    }

    /// Puts a row of positions where it belongs in a channel.
    fn put(&self, [z, y]: [usize; 2], from: &[f32], channel: &mut [f32]) {
        let [z, y] = [(z, 0), (y, 1)].map(|(at, axis)| self.first[axis] + at * self.strides[axis]);
        let to = &mut channel[(z * self.lengths[1] + y) * self.lengths[2] + self.first[2]..];
        let to = to.iter_mut().step_by(self.strides[2]);
        to.zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// A kernel that moves over channels.
struct Walk {
    batch: usize,
    groups: usize,
    /// Channels that a group reads and makes.
    sources: usize,
    made: usize,
    /// Lengths of the channels that are read.
    source: [usize; 3],
    layout: Layout,
    target: Target,
}

impl Walk {
    /// `weight` is `[groups, made, sources, taps]`.
    fn run(&self, source: &[f32], weight: &[f32], out: &mut [f32]) {
        let positions = self.layout.positions();
        let image = self.groups * self.made * volume(self.target.lengths);
        if out.is_empty() {
            return;
        }
        let work = weight.len() * positions * self.batch;
        let threads = threads(work, PRODUCTS_PER_THREAD, self.batch);
        let share = self.batch.div_ceil(threads);
        // Several small images make a product of enough columns.
        let unit = (2 * COLUMNS).div_ceil(positions).min(share);
        in_threads(out.chunks_mut(share * image).enumerate(), |(part, out)| {
            let mut copies = vec![0.0; unit * self.sources * self.layout.plane() + SIDES];
            let mut made = Vec::new();
            for (out, first) in out.chunks_mut(unit * image).zip((part * share..).step_by(unit)) {
                for group in 0..self.groups {
                    let images = first..first + out.len() / image;
                    self.copy(source, images.clone(), group, &mut copies);
                    self.make(weight, group, images.len(), &copies, &mut made, out);
                }
            }
        });
    }

    /// Copies what a group reads of some images.
    fn copy(&self, source: &[f32], images: std::ops::Range<usize>, group: usize, copies: &mut [f32]) {
        let mut to = copies.chunks_exact_mut(self.layout.plane());
        for image in images {
            for channel in 0..self.sources {
                let channel = (image * self.groups + group) * self.sources + channel;
                let from = &source[channel * volume(self.source)..][..volume(self.source)];
                self.layout.copy(from, to.next().expect("room for all"));
            }
        }
    }

    /// Makes a group's channels of some images.
    fn make(
        &self,
        weight: &[f32],
        group: usize,
        images: usize,
        copies: &[f32],
        made: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let positions = self.layout.positions();
        let inner = self.sources * self.layout.bases.len();
        let weight = &weight[group * self.made * inner..][..self.made * inner];
        let patches = Patches {
            copies,
            layout: &self.layout,
            image: self.sources * self.layout.plane(),
        };
        let product = |out: &mut [f32]| {
            if self.made <= FEW {
                one_by_one(out, weight, patches, images * positions);
            } else {
                let weight = Matrix::row_major(weight, inner);
                product::rows(out, [images * positions, inner], weight, patches);
            }
        };
        let size = volume(self.target.lengths);
        if images == 1 && self.target.is_whole() {
            return product(&mut out[group * self.made * size..][..self.made * size]);
        }
        made.clear();
        made.resize(self.made * images * positions, 0.0);
        product(made);
        let [depth, rows, columns] = self.layout.grid;
        let mut lines = made.chunks_exact(columns);
        for channel in 0..self.made {
            for image in 0..images {
                let to = ((image * self.groups + group) * self.made + channel) * size;
                let to = &mut out[to..][..size];
                for at in (0..depth).flat_map(|z| (0..rows).map(move |y| [z, y])) {
                    self.target.put(at, lines.next().expect("a line for each"), to);
                }
            }
        }
    }
}

/// Rows of `columns` numbers, each a sum over all rows of patches, in order.
fn one_by_one(out: &mut [f32], weight: &[f32], patches: Patches, columns: usize) {
    widest!(
        [] (out: &mut [f32], weight: &[f32], patches: Patches, columns: usize),
        fused one_by_one_as::<true>, otherwise one_by_one_as::<{ super::processor::FUSED_EVERYWHERE }>,
    )
}

#[inline(always)]
fn one_by_one_as<const FUSED: bool>(out: &mut [f32], weight: &[f32], patches: Patches, columns: usize) {
    let inner = weight.len() / (out.len() / columns);
    for (out, weight) in out.chunks_exact_mut(columns).zip(weight.chunks_exact(inner)) {
        let mut at = 0;
        for Segment { offset, length } in patches.layout.segments(patches.image, 0, columns) {
            let to = &mut out[at..at + length];
            let (wide, rest) = to.as_chunks_mut::<{ 2 * SIDES }>();
            for (to, begin) in wide.iter_mut().zip((offset..).step_by(2 * SIDES)) {
                *to = beside::<{ 2 * SIDES }, FUSED>(weight, patches, begin);
            }
            let begin = offset + length - rest.len();
            for (to, begin) in rest.chunks_mut(SIDES).zip((begin..).step_by(SIDES)) {
                to.copy_from_slice(&beside::<SIDES, FUSED>(weight, patches, begin)[..to.len()]);
            }
            at += length;
        }
    }
}

/// The sums over all rows of patches at `N` positions side by side.
#[inline(always)]
fn beside<const N: usize, const FUSED: bool>(weight: &[f32], patches: Patches, begin: usize) -> [f32; N] {
    let layout = patches.layout;
    let mut sums = [0.0f32; N];
    for (channel, weights) in weight.chunks_exact(layout.bases.len()).enumerate() {
        let from = &patches.copies[channel * layout.plane() + begin..];
        for (base, weight) in layout.bases.iter().zip(weights) {
            let from: &[f32; N] = from[*base..].first_chunk().expect("numbers behind the last");
            for (sum, x) in sums.iter_mut().zip(from) {
                *sum = plus_product::<FUSED>(*sum, *weight, *x);
            }
        }
    }
    sums
}

/// Sums of products of each row of patches with each of `made` rows of the gradient: `[rows, made]`.
fn sums(out: &mut [f32], made: usize, gradient: &[f32], patches: Patches) {
    widest!(
        [] (out: &mut [f32], made: usize, gradient: &[f32], patches: Patches),
        fused sums_as::<true>, otherwise sums_as::<{ super::processor::FUSED_EVERYWHERE }>,
    )
}

#[inline(always)]
fn sums_as<const FUSED: bool>(out: &mut [f32], made: usize, gradient: &[f32], patches: Patches) {
    let taps = patches.layout.bases.len();
    let columns = gradient.len() / made;
    for (channel, out) in out.chunks_exact_mut(taps * made).enumerate() {
        let copies = &patches.copies[channel * patches.layout.plane()..];
        for (o, gradient) in gradient.chunks_exact(columns).enumerate() {
            let mut to = out[o..].iter_mut().step_by(made);
            let (fours, rest) = patches.layout.bases.as_chunks::<4>();
            for bases in fours {
                let sums = at_bases::<4, FUSED>(copies, *bases, gradient, patches);
                to.by_ref().zip(sums).for_each(|(to, sum)| *to = sum);
            }
            for base in rest {
                let [sum] = at_bases::<1, FUSED>(copies, [*base], gradient, patches);
                to.by_ref().take(1).for_each(|to| *to = sum);
            }
        }
    }
}

/// The sums of products for some taps of a channel: each of sixteen sums, which are added at the end.
#[inline(always)]
fn at_bases<const T: usize, const FUSED: bool>(
    copies: &[f32],
    bases: [usize; T],
    gradient: &[f32],
    patches: Patches,
) -> [f32; T] {
    let mut sums = [[0.0f32; SIDES]; T];
    let mut rest = gradient;
    for Segment { offset, length } in patches.layout.segments(patches.image, 0, gradient.len()) {
        let (gradient, behind) = rest.split_at(length);
        rest = behind;
        let (gradient, last) = gradient.as_chunks::<SIDES>();
        let lines = bases.map(|base| copies[base + offset..][..length].as_chunks::<SIDES>());
        for (i, gradient) in gradient.iter().enumerate() {
            for (sums, (line, _)) in sums.iter_mut().zip(&lines) {
                for ((sum, x), g) in sums.iter_mut().zip(&line[i]).zip(gradient) {
                    *sum = plus_product::<FUSED>(*sum, *x, *g);
                }
            }
        }
        for (sums, (_, line)) in sums.iter_mut().zip(&lines) {
            for ((sum, x), g) in sums.iter_mut().zip(*line).zip(last) {
                *sum = plus_product::<FUSED>(*sum, *x, *g);
            }
        }
    }
    sums.map(|sums| sums.iter().sum())
}

#[inline(always)]
fn plus_product<const FUSED: bool>(sum: f32, x: f32, y: f32) -> f32 {
    if FUSED { x.mul_add(y, sum) } else { sum + x * y }
}

#[cfg(test)]
mod tests;
