//! What a kernel sees as it moves over channels, without a matrix of it in memory.
//!
//! The channels are copied once, with their border and, where the kernel moves by more than one number along the last axis,
//! sorted by remainder. Each tap of the kernel then reads whole rows from another offset, and no border is looked at again.

use std::array;

use crate::cpu::product::{COLUMNS, First, Scratch, Second, Strip};

/// Numbers that are copied at once. Copies go on to the next multiple of it, and the next copy overwrites the rest.
pub(super) const SIDES: usize = 16;

/// How channels lie in a copy that a kernel can move over.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Lengths of what is copied.
    source: [usize; 3],
    before: [usize; 3],
    lengths: [usize; 3],
    /// The numbers of each remainder of a row.
    part: usize,
    /// How far the kernel moves.
    strides: [usize; 3],
    /// Where each tap begins.
    pub bases: Vec<usize>,
    /// Positions of the kernel.
    pub grid: [usize; 3],
}

impl Layout {
    /// For a kernel that reads at these offsets from `strides` times its position.
    pub fn new(source: [usize; 3], taps: &[[isize; 3]], strides: [usize; 3], grid: [usize; 3]) -> Self {
        let ends = |axis: usize| {
            let offsets = taps.iter().map(|tap| tap[axis]);
            let last = ((grid[axis].max(1) - 1) * strides[axis]) as isize;
            (
                offsets.clone().min().unwrap_or(0),
                offsets.max().unwrap_or(0) + last,
            )
        };
        let before: [usize; 3] = array::from_fn(|axis| (-ends(axis).0).max(0) as usize);
        let lengths = array::from_fn(|axis| (ends(axis).1 + before[axis] as isize + 1).max(1) as usize);
        let [_, rows, columns] = lengths;
        let part = columns.div_ceil(strides[2]);
        let row = part * strides[2];
        let base = |tap: &[isize; 3]| {
            let [z, y, x] = array::from_fn(|axis| (tap[axis] + before[axis] as isize) as usize);
            (z * rows + y) * row + x % strides[2] * part + x / strides[2]
        };
        Self {
            source,
            before,
            lengths,
            part,
            strides,
            bases: taps.iter().map(base).collect(),
            grid,
        }
    }

    /// Numbers of a copied channel.
    pub fn plane(&self) -> usize {
        self.lengths[0] * self.lengths[1] * self.row()
    }

    fn row(&self) -> usize {
        self.part * self.strides[2]
    }

    /// Positions of the kernel in a channel.
    pub fn positions(&self) -> usize {
        self.grid.iter().product()
    }

    /// Copies a channel. The border stays as it is.
    pub fn copy(&self, from: &[f32], to: &mut [f32]) {
        let [_, rows, columns] = self.source;
        let [top, left] = [self.before[1], self.before[2]];
        let inner = columns.min(self.lengths[2] - left.min(self.lengths[2]));
        for (line, from) in from.chunks_exact(columns).enumerate() {
            let (z, y) = (line / rows + self.before[0], line % rows + top);
            if z >= self.lengths[0] || y >= self.lengths[1] {
                continue;
            }
            let to = &mut to[(z * self.lengths[1] + y) * self.row()..][..self.row()];
            if self.strides[2] == 1 {
                to[left..left + inner].copy_from_slice(&from[..inner]);
                continue;
            }
            for remainder in 0..self.strides[2].min(inner) {
                let x = left + remainder;
                let to = &mut to[x % self.strides[2] * self.part + x / self.strides[2]..];
                let from = from[remainder..inner].iter().step_by(self.strides[2]);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }

    /// Rows of positions, each with where a tap at the beginning of a channel reads it: those of `count` positions from
    /// `start` on, if images lie `image` numbers apart.
    pub fn segments(&self, image: usize, start: usize, count: usize) -> Segments<'_> {
        let [_, rows, columns] = self.grid;
        let line = start / columns;
        Segments {
            layout: self,
            image,
            at: [
                line / rows / self.grid[0],
                line / rows % self.grid[0],
                line % rows,
            ],
            x: start % columns,
            left: count,
        }
    }
}

/// A part of a row of positions.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub offset: usize,
    pub length: usize,
}

pub(super) struct Segments<'a> {
    layout: &'a Layout,
    image: usize,
    at: [usize; 3],
    x: usize,
    left: usize,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline(always)]
    fn next(&mut self) -> Option<Segment> {
        let Self { layout, image, .. } = *self;
        let [depth, rows, columns] = layout.grid;
        let length = (columns - self.x).min(self.left);
        if length == 0 {
            return None;
        }
        let [b, z, y] = self.at;
        let line = z * layout.strides[0] * layout.lengths[1] + y * layout.strides[1];
        let offset = b * image + line * layout.row() + self.x;
        self.left -= length;
        self.x = 0;
        self.at = match (y + 1 < rows, z + 1 < depth) {
            (true, _) => [b, z, y + 1],
            (false, true) => [b, z + 1, 0],
            (false, false) => [b + 1, 0, 0],
        };
        Some(Segment { offset, length })
    }
}

/// Copied channels of some images as a matrix: a row for each channel and tap, a column for each image and position.
#[derive(Clone, Copy)]
pub(super) struct Patches<'a> {
    /// The copies, with [`SIDES`] numbers more at the end.
    pub copies: &'a [f32],
    pub layout: &'a Layout,
    /// From an image to the next.
    pub image: usize,
}

impl Patches<'_> {
    /// Where a row begins.
    #[inline(always)]
    fn base(&self, row: usize) -> usize {
        let taps = self.layout.bases.len();
        row / taps * self.layout.plane() + self.layout.bases[row % taps]
    }

    /// A row's numbers for some segments, one behind the other; `to` has [`SIDES`] numbers more than these.
    #[inline(always)]
    fn fill(&self, base: usize, segments: &[Segment], to: &mut [f32]) {
        let mut at = 0;
        for segment in segments {
            let from = &self.copies[base + segment.offset..];
            let to = &mut to[at..];
            for begin in (0..segment.length).step_by(SIDES) {
                let from: &[f32; SIDES] = from[begin..].first_chunk().expect("numbers behind the last");
                *to[begin..].first_chunk_mut().expect("room behind the last") = *from;
            }
            at += segment.length;
        }
    }
}

impl Second for Patches<'_> {
    #[inline(always)]
    fn pack<const N: usize, const C: usize>(
        &self,
        packed: &mut Vec<[[f32; N]; C]>,
        [start, left]: [usize; 2],
        [depth, width]: [usize; 2],
    ) {
        let segments: Vec<Segment> = self.layout.segments(self.image, left, width).collect();
        packed.resize(depth * width.div_ceil(N * C), [[0.0; N]; C]);
        let mut line = [0.0; COLUMNS + SIDES];
        for l in 0..depth {
            self.fill(self.base(start + l), &segments, &mut line);
            for (to, from) in packed[l..].iter_mut().step_by(depth).zip(line.chunks(N * C)) {
                let to = to.as_flattened_mut();
                to[..from.len()].copy_from_slice(from);
            }
        }
    }
}

/// Rows of [`Patches`] from one on.
#[derive(Clone, Copy)]
pub(super) struct PatchRows<'a> {
    pub patches: Patches<'a>,
    pub first: usize,
}

impl First for PatchRows<'_> {
    #[inline(always)]
    fn strip<'s, const R: usize>(
        &'s self,
        row: usize,
        rows: usize,
        start: usize,
        depth: usize,
        scratch: &'s mut Scratch<R>,
    ) -> Strip<'s, R> {
        let Self { patches, first } = self;
        let length = depth + SIDES;
        scratch.lines.resize(R * length, 0.0);
        let segments = patches.layout.segments(patches.image, start, depth);
        let segments: Vec<Segment> = segments.collect();
        for (r, line) in scratch.lines.chunks_exact_mut(length).enumerate().take(rows) {
            patches.fill(patches.base(first + row + r), &segments, line);
        }
        let lines = &scratch.lines;
        Strip::Lines(array::from_fn(|r| &lines[r.min(rows - 1) * length..][..depth]))
    }
}
