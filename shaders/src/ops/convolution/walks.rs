//! How the kernel of a convolution walks over numbers, in arithmetic alone: which a position reads, and where its own goes.

use std::array;

use crate::cpu::convolution::Convolution;

/// A walk along one axis: position `p` reads for tap `j` at `p * moves + first + j * step`, if there is such a number, and
/// its own goes to `to + p * to_step`.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Positions.
    pub positions: usize,
    /// How far the next position reads from this one.
    pub moves: usize,
    /// What position 0 reads for the first tap.
    pub first: isize,
    /// Taps of this walk.
    pub taps: usize,
    /// From tap to tap.
    pub step: isize,
    /// Which tap of the kernel is the first, ...
    pub tap: usize,
    /// ... and how many there are to the next.
    pub tap_step: usize,
    /// Where the number of position 0 goes, ...
    pub to: usize,
    /// ... and how far it is to the next.
    pub to_step: usize,
}

/// All three.
pub type Walk = [Axis; 3];

/// The output's numbers.
pub fn forward(sizes: &Convolution) -> Walk {
    array::from_fn(|axis| Axis {
        positions: sizes.output[axis],
        // A single position moves nowhere, however large the stride.
        moves: if sizes.output[axis] > 1 {
            sizes.strides[axis]
        } else {
            0
        },
        first: -(sizes.before[axis] as isize),
        taps: sizes.kernel[axis],
        step: sizes.dilations[axis] as isize,
        tap: 0,
        tap_step: 1,
        to: 0,
        to_step: 1,
    })
}

/// The numbers of the input's gradient, remainder by remainder of the strides: each is reached by taps of its own.
pub fn to_input(sizes: &Convolution) -> Vec<Walk> {
    let walk = |at: [usize; 3]| array::from_fn(|axis| axis_to_input(sizes, axis, at[axis]));
    sizes.remainders().map(walk).collect()
}

fn axis_to_input(sizes: &Convolution, axis: usize, remainder: usize) -> Axis {
    let [stride, dilation] = [sizes.strides[axis], sizes.dilations[axis]];
    let reads = |tap: usize| (remainder + sizes.before[axis]) as isize - (tap * dilation) as isize;
    let mut taps = (0..sizes.kernel[axis]).filter(|tap| reads(*tap) % stride as isize == 0);
    let tap = taps.next();
    let count = taps.count() + usize::from(tap.is_some());
    let positions = (sizes.input[axis] - remainder).div_ceil(stride);
    let (mut shared, mut rest) = (stride, dilation);
    while rest > 0 {
        (shared, rest) = (rest, shared % rest);
    }
    Axis {
        positions,
        moves: 1,
        first: reads(tap.unwrap_or(0)).div_euclid(stride as isize),
        taps: count,
        step: -((dilation / shared) as isize),
        tap: tap.unwrap_or(0),
        // Only from one to another.
        tap_step: if count > 1 { stride / shared } else { 0 },
        to: remainder,
        to_step: if positions > 1 { stride } else { 0 },
    }
}

/// The first and the last number that any of these walks reads along an axis, but for those of walks without taps.
pub fn reach(walks: &[Walk], axis: usize) -> [isize; 2] {
    let reading = walks.iter().filter(|walk| walk.iter().all(|axis| axis.taps > 0));
    reading.map(|walk| walk[axis]).fold([0, 0], |[low, high], axis| {
        let across = (axis.taps as isize - 1) * axis.step;
        let along = ((axis.positions - 1) * axis.moves) as isize;
        let first = axis.first + across.min(0);
        [low.min(first), high.max(axis.first + across.max(0) + along)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_meets_what_the_way_forward_does() {
        for (input, kernel, stride, before, dilation) in [
            (9, 3, 1, 1, 1),
            (9, 3, 2, 0, 1),
            (10, 3, 3, 2, 2),
            (7, 2, 4, 0, 2),
            (5, 1, 2, 0, 1),
        ] {
            let room = input + 2 * before - (kernel - 1) * dilation - 1;
            let sizes = Convolution {
                batch: 1,
                inputs: 1,
                outputs: 1,
                groups: 1,
                input: [1, 1, input],
                output: [1, 1, room / stride + 1],
                kernel: [1, 1, kernel],
                strides: [1, 1, stride],
                before: [0, 0, before],
                dilations: [1, 1, dilation],
            };
            let met = |walk: &Walk, length: usize| -> Vec<[usize; 3]> {
                let of = walk[2];
                let pairs = (0..of.positions).flat_map(|p| (0..of.taps).map(move |j| (p, j)));
                let all = pairs.map(|(p, j)| {
                    let read = (p * of.moves) as isize + of.first + j as isize * of.step;
                    (of.to + p * of.to_step, of.tap + j * of.tap_step, read)
                });
                let inside = all.filter(|(.., read)| (0..length as isize).contains(read));
                inside.map(|(to, tap, read)| [to, tap, read as usize]).collect()
            };
            let mut forward = met(&forward(&sizes), input);
            let walks = to_input(&sizes);
            let back = walks.iter().flat_map(|walk| met(walk, sizes.output[2]));
            let mut back: Vec<[usize; 3]> = back.map(|[to, tap, read]| [read, tap, to]).collect();
            forward.sort_unstable();
            back.sort_unstable();
            assert_eq!(forward, back, "{sizes:?}");
            let written: usize = walks.iter().map(|walk| walk[2].positions).sum();
            assert_eq!(written, input);
        }
    }
}
