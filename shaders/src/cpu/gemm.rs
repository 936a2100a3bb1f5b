//! Matrix products: the twin of `gemm_any`, `gemm_nn`, `gemm_nt`, `gemm_tn` and `gemm_tiled`, which
//! differ in nothing but how they get their numbers.

use super::{Real, activation::Activation};

/// A matrix in a slice: where it begins, and how far apart rows and columns are.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T> {
    /// The numbers.
    pub data: &'a [T],
    /// Distance from a row to the next.
    pub row: usize,
    /// Distance from a column to the next.
    pub column: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A row-major matrix with rows of `columns` numbers.
    pub fn row_major(data: &'a [T], columns: usize) -> Self {
        Self {
            data,
            row: columns,
            column: 1,
        }
    }

    /// What begins at this row and column.
    pub fn from(self, row: usize, column: usize) -> Self {
        Self {
            data: &self.data[row * self.row + column * self.column..],
            ..self
        }
    }

    /// The transpose, which moves nothing.
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            row: self.column,
            column: self.row,
        }
    }
}

/// `a b`, `[m, k]` times `[k, n]`, row-major.
pub fn product<T: Real>([m, n, k]: [usize; 3], a: Matrix<T>, b: Matrix<T>) -> Vec<T> {
    let mut out = vec![T::ZERO; m * n];
    for i in 0..m {
        for l in 0..k {
            let x = a.data[i * a.row + l * a.column];
            for j in 0..n {
                out[i * n + j] += x * b.data[l * b.row + j * b.column];
            }
        }
    }
    out
}

/// Adds `bias` to each row.
pub fn add_bias<T: Real>(rows: &mut [T], bias: &[T]) {
    for row in rows.chunks_exact_mut(bias.len()) {
        for (x, b) in row.iter_mut().zip(bias) {
            *x += *b;
        }
    }
}

/// Sums each column of a row-major matrix: the gradient of a bias.
pub fn column_sums<T: Real>(rows: &[T], columns: usize) -> Vec<T> {
    let mut sums = vec![T::ZERO; columns];
    for row in rows.chunks_exact(columns) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += *x;
        }
    }
    sums
}

/// Multiplies each gradient by the activation's slope at `input`.
pub fn times_slope<T: Real>(gradient: &mut [T], input: &[T], activation: Activation) {
    activation.times_slopes(gradient, input);
}
