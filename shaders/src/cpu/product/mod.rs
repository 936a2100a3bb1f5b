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

/// Columns that are packed at once: at full depth half a MiB, which caches hold.
const COLUMNS: usize = 256;

/// Products that take about three times as long as starting a thread does.
const PRODUCTS_PER_THREAD: usize = 1 << 22;

/// Rows of a strip, or a multiple: where threads part.
const STRIPS: usize = 24;

/// `a b`, `[m, k]` times `[k, n]`, row-major.
///
/// # Panics
///
/// If an operand is smaller than that.
pub fn product([m, n, k]: [usize; 3], a: Matrix<f32>, b: Matrix<f32>) -> Vec<f32> {
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

/// Some rows of the product.
fn rows(out: &mut [f32], sizes: [usize; 2], a: Matrix<f32>, b: Matrix<f32>) {
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
        strips::<Plain<4, FUSED_EVERYWHERE>, 4, 4, 6>(out, sizes, a, b);
    } else {
        strips::<Plain<4, FUSED_EVERYWHERE>, 4, 2, 4>(out, sizes, a, b);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn rows_avx512(out: &mut [f32], sizes: [usize; 2], a: Matrix<f32>, b: Matrix<f32>) {
    strips::<lanes::Avx512, 16, 4, 6>(out, sizes, a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn rows_avx2(out: &mut [f32], sizes: [usize; 2], a: Matrix<f32>, b: Matrix<f32>) {
    strips::<Plain<8, true>, 8, 2, 6>(out, sizes, a, b);
}

/// In tiles of `R` rows by `C` vectors of `N` columns.
#[inline(always)]
fn strips<V: Lanes<N>, const N: usize, const C: usize, const R: usize>(
    out: &mut [f32],
    [n, k]: [usize; 2],
    a: Matrix<f32>,
    b: Matrix<f32>,
) {
    let depth = k.div_ceil(k.div_ceil(DEPTH));
    let mut columns: Vec<[[f32; N]; C]> = Vec::new();
    let mut strip: Vec<[f32; R]> = Vec::new();
    for left in (0..n).step_by(COLUMNS) {
        let width = COLUMNS.min(n - left);
        for start in (0..k).step_by(depth) {
            let depth = depth.min(k - start);
            pack_columns(&mut columns, [depth, width], b.from(start, left));
            for (row, out) in out.chunks_mut(R * n).enumerate() {
                let a = a.from(row * R, start);
                let place = Place {
                    rows: out.len() / n,
                    stride: n,
                    left,
                    width,
                    add: start > 0,
                };
                if a.column == 1 {
                    // Rows beyond the last are the last one once more, and go nowhere.
                    let lines: [&[f32]; R] =
                        array::from_fn(|r| &a.data[r.min(place.rows - 1) * a.row..][..depth]);
                    tiles::<V, N, C, R>(out, place, &columns, depth, |l| {
                        let mut factors = [0.0; R];
                        for (factor, line) in factors.iter_mut().zip(&lines) {
                            // SAFETY: each line has `depth` numbers, and `l` is less. Were it checked, the lengths would
                            // take the registers that the lines need.
                            *factor = unsafe { *line.get_unchecked(l) };
                        }
                        factors
                    });
                } else {
                    pack_strip(&mut strip, [place.rows, depth], a);
                    let strip = &strip[..depth];
                    tiles::<V, N, C, R>(out, place, &columns, depth, |l| strip[l]);
                }
            }
        }
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

/// Columns in groups of as many as a tile has, each group row by row. Beyond the last stands anything: what becomes of it
/// goes nowhere.
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
