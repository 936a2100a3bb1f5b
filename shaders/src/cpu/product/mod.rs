//! Matrix products as Burn's CPU backend takes them here, with the same bits on all processors that have fused
//! multiply-add, so that a run can be replayed to the last bit on another one.
//!
//! The bits of the product are defined like this. The inner size is cut into the fewest blocks of at most 512, all of one
//! length but perhaps the last. Each block is one chain of fused multiply-adds in order, from 0 on, and the blocks' sums
//! are added in order. Vector length, rows per tile and number of threads do not change the result. (Burn's own products,
//! of the crate gemm, depend on vector length and cache sizes.) Without fused multiply-add each step rounds twice.
//!
//! A tile of rows by columns stays in registers while the inner index runs (Goto and van de Geijn, 2008, "Anatomy of
//! high-performance matrix multiplication"). Columns are packed, because each strip of rows reads them. A strip of rows is
//! read in place, unless it is a transpose.

mod lanes;

use std::array;

use self::lanes::{Lanes, Plain};
use super::gemm::Matrix;
use super::processor::{FUSED_EVERYWHERE, in_threads, threads};

/// So much of the inner size is summed before a sum goes to memory.
const DEPTH: usize = 512;

/// Most columns that are packed at once.
pub(super) const COLUMNS: usize = 256;

/// Columns that are packed at once, at full depth half a MiB or a quarter: half of the second cache of most processors with
/// vectors of this length. A product of 512 x 256 x 4608 takes a tenth longer on a Zen 3 where it fills all of it.
const fn columns_of(lanes: usize) -> usize {
    if lanes == 16 { COLUMNS } else { COLUMNS / 2 }
}

/// Products that take about three times as long as starting a thread does.
pub(super) const PRODUCTS_PER_THREAD: usize = 1 << 22;

/// So few rows are taken as columns where the second factor is a transpose: then nothing long is packed.
const FEW: usize = 32;

/// Rows of a strip, or a multiple: where threads part.
const STRIPS: usize = 24;

/// The first factor of a product, in strips of rows.
pub(super) trait First: Copy + Sync {
    /// The numbers `start .. start + depth` of `R` rows; beyond the last, of any.
    fn strip<'s, const R: usize>(
        &'s self,
        row: usize,
        rows: usize,
        start: usize,
        depth: usize,
        scratch: &'s mut Scratch<R>,
    ) -> Strip<'s, R>;
}

/// The second factor of a product, in blocks.
pub(super) trait Second: Copy + Sync {
    /// Its numbers from row `start` and column `left` on, in groups of as many columns as a tile has, each group row by row.
    /// Beyond the last column stands anything: what becomes of it goes nowhere.
    fn pack<const N: usize, const C: usize>(
        &self,
        packed: &mut Vec<[[f32; N]; C]>,
        at: [usize; 2],
        size: [usize; 2],
    );
}

/// Some rows of a first factor.
pub(super) enum Strip<'s, const R: usize> {
    /// Each by itself.
    Lines([&'s [f32]; R]),
    /// Side by side, column by column.
    Packed(&'s [[f32; R]]),
}

/// Where strips are put that do not lie in memory as they are needed.
#[derive(Default)]
pub(super) struct Scratch<const R: usize> {
    packed: Vec<[f32; R]>,
    pub lines: Vec<f32>,
}

/// `a b`, `[m, k]` times `[k, n]`, row-major.
///
/// # Panics
///
/// If an operand is smaller than that.
pub fn product([m, n, k]: [usize; 3], a: Matrix<f32>, b: Matrix<f32>) -> Vec<f32> {
    if m <= FEW && n > FEW && b.row == 1 && b.column != 1 {
        return transposed(&product([n, m, k], b.transposed(), a.transposed()), m);
    }
    let mut out = vec![0.0; m * n];
    if out.is_empty() || k == 0 {
        return out;
    }
    let threads = threads(m * n * k, PRODUCTS_PER_THREAD, m.div_ceil(STRIPS));
    let share = m.div_ceil(threads).next_multiple_of(STRIPS);
    in_threads(out.chunks_mut(share * n).enumerate(), |(part, out)| {
        rows(out, [n, k], a.from(part * share, 0), b);
    });
    out
}

/// The transpose of a row-major matrix with rows of `columns` numbers.
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let column = |at: usize| matrix[at..].iter().step_by(columns);
    (0..columns).flat_map(|at| column(at).copied()).collect()
}

/// Some rows of the product, in this thread.
pub(super) fn rows(out: &mut [f32], sizes: [usize; 2], a: impl First, b: impl Second) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::processor::{has_avx2, has_avx512};
        if has_avx512() {
            // SAFETY: safe code that needs what this processor has.
            return unsafe { rows_avx512(out, sizes, a, b) };
        }
        if has_avx2() {
            // SAFETY: safe code that needs what this processor has.
            return unsafe { rows_avx2(out, sizes, a, b) };
        }
    }
    if cfg!(target_arch = "aarch64") {
        strips::<Plain<4, FUSED_EVERYWHERE>, 4, 4, 6, _, _>(out, sizes, a, b);
    } else {
        strips::<Plain<4, FUSED_EVERYWHERE>, 4, 2, 4, _, _>(out, sizes, a, b);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn rows_avx512(out: &mut [f32], sizes: [usize; 2], a: impl First, b: impl Second) {
    strips::<lanes::Avx512, 16, 4, 6, _, _>(out, sizes, a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn rows_avx2(out: &mut [f32], sizes: [usize; 2], a: impl First, b: impl Second) {
    strips::<lanes::Avx2, 8, 2, 6, _, _>(out, sizes, a, b);
}

/// In tiles of `R` rows by `C` vectors of `N` columns.
#[inline(always)]
fn strips<V: Lanes<N>, const N: usize, const C: usize, const R: usize, A: First, B: Second>(
    out: &mut [f32],
    [n, k]: [usize; 2],
    a: A,
    b: B,
) {
    let depth = k.div_ceil(k.div_ceil(DEPTH));
    let mut columns: Vec<[[f32; N]; C]> = Vec::new();
    let mut scratch = Scratch::<R>::default();
    for left in (0..n).step_by(columns_of(N)) {
        let width = columns_of(N).min(n - left);
        for start in (0..k).step_by(depth) {
            let depth = depth.min(k - start);
            b.pack(&mut columns, [start, left], [depth, width]);
            for (row, out) in out.chunks_mut(R * n).enumerate() {
                let place = Place {
                    rows: out.len() / n,
                    stride: n,
                    left,
                    width,
                    add: start > 0,
                };
                match a.strip(row * R, place.rows, start, depth, &mut scratch) {
                    Strip::Lines(lines) => {
                        let lines = lines.map(|line| &line[..depth]);
                        tiles::<V, N, C, R>(out, place, &columns, depth, |l| {
                            let mut factors = [0.0; R];
                            for (factor, line) in factors.iter_mut().zip(&lines) {
                                // SAFETY: each line has `depth` numbers, and `l` is less. Were it checked, the lengths would
                                // take the registers that the lines need.
                                *factor = unsafe { *line.get_unchecked(l) };
                            }
                            factors
                        });
                    }
                    Strip::Packed(strip) => tiles::<V, N, C, R>(out, place, &columns, depth, |l| strip[l]),
                }
            }
        }
    }
}

impl First for Matrix<'_, f32> {
    #[inline(always)]
    fn strip<'s, const R: usize>(
        &'s self,
        row: usize,
        rows: usize,
        start: usize,
        depth: usize,
        scratch: &'s mut Scratch<R>,
    ) -> Strip<'s, R> {
        if self.column == 1 {
            // Rows beyond the last are the last one once more.
            let line = |r: usize| &self.data[(row + r.min(rows - 1)) * self.row + start..][..depth];
            Strip::Lines(array::from_fn(line))
        } else {
            pack_strip(&mut scratch.packed, [rows, depth], self.from(row, start));
            Strip::Packed(&scratch.packed[..depth])
        }
    }
}

impl Second for Matrix<'_, f32> {
    #[inline(always)]
    fn pack<const N: usize, const C: usize>(
        &self,
        packed: &mut Vec<[[f32; N]; C]>,
        [start, left]: [usize; 2],
        size: [usize; 2],
    ) {
        pack_columns(packed, size, self.from(start, left));
    }
}

/// Where a strip's numbers go.
#[derive(Clone, Copy)]
struct Place {
    rows: usize,
    stride: usize,
    left: usize,
    width: usize,
    add: bool,
}

/// All tiles of a strip; `factors` is asked for its column `l < depth`.
#[inline(always)]
fn tiles<V: Lanes<N>, const N: usize, const C: usize, const R: usize>(
    out: &mut [f32],
    place: Place,
    columns: &[[[f32; N]; C]],
    depth: usize,
    factors: impl Fn(usize) -> [f32; R],
) {
    for (index, columns) in columns.chunks_exact(depth).enumerate() {
        let mut tile = [[V::zero(); C]; R];
        for (l, columns) in columns.iter().enumerate() {
            let mut vectors = [V::zero(); C];
            for (vector, column) in vectors.iter_mut().zip(columns) {
                *vector = V::load(column);
            }
            for (sums, factor) in tile.iter_mut().zip(factors(l)) {
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = sum.plus_product(factor, vector);
                }
            }
        }
        let left = index * N * C;
        let width = (place.width - left).min(N * C);
        for (r, tile) in tile.iter().enumerate() {
            if r >= place.rows {
                break;
            }
            let out = &mut out[r * place.stride + place.left + left..][..width];
            if width == N * C {
                for (out, sum) in out.as_chunks_mut().0.iter_mut().zip(tile) {
                    let sum = if place.add { V::load(out).plus(*sum) } else { *sum };
                    sum.store(out);
                }
            } else {
                let mut sums = [[0.0; N]; C];
                for (to, sum) in sums.iter_mut().zip(tile) {
                    sum.store(to);
                }
                for (out, sum) in out.iter_mut().zip(sums.as_flattened()) {
                    *out = if place.add { *out + *sum } else { *sum };
                }
            }
        }
    }
}

#[inline(always)]
fn pack_columns<const N: usize, const C: usize>(
    packed: &mut Vec<[[f32; N]; C]>,
    [depth, width]: [usize; 2],
    b: Matrix<f32>,
) {
    packed.resize(depth * width.div_ceil(N * C), [[0.0; N]; C]);
    for (index, packed) in packed.chunks_exact_mut(depth).enumerate() {
        let left = index * N * C;
        let width = (width - left).min(N * C);
        let b = b.from(0, left);
        if b.column == 1 {
            for (l, to) in packed.iter_mut().enumerate() {
                let (whole, rest) = b.data[l * b.row..][..width].as_chunks::<N>();
                for (to, from) in to.iter_mut().zip(whole) {
                    *to = *from;
                }
                if !rest.is_empty() {
                    to[whole.len()][..rest.len()].copy_from_slice(rest);
                }
            }
        } else {
            let line = |column: usize| b.data[column * b.column..].iter().step_by(b.row);
            for column in (0..width).step_by(4) {
                // Four at a time, so that each place is written once, not four times; the last one again where there
                // are fewer.
                let [x, y, z, w] = [0, 1, 2, 3].map(|i| line((column + i).min(width - 1)));
                for ((((to, x), y), z), w) in packed.iter_mut().zip(x).zip(y).zip(z).zip(w) {
                    to[column / N][column % N..][..4].copy_from_slice(&[*x, *y, *z, *w]);
                }
            }
        }
    }
}

/// Rows side by side, column by column; beyond the last stands anything.
#[inline(always)]
fn pack_strip<const R: usize>(packed: &mut Vec<[f32; R]>, [rows, depth]: [usize; 2], a: Matrix<f32>) {
    packed.resize(depth, [0.0; R]);
    for (l, to) in packed.iter_mut().enumerate() {
        let from = &a.data[l * a.column..];
        match from.first_chunk::<R>() {
            Some(from) if rows == R && a.row == 1 => *to = *from,
            _ => {
                for (r, to) in to.iter_mut().enumerate().take(rows) {
                    *to = from[r * a.row];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
