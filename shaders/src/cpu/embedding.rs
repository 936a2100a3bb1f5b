//! Rows of a table and of positions: the twin of `embedding`, `embedding_sort` and
//! `embedding_backward`.

use std::ops::Range;

use super::Real;

/// A table's or batch's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Numbers in a row.
    pub width: usize,
    /// Tokens of a sequence, after which positions begin again.
    pub period: usize,
}

/// Which rows of a table a part of it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRows {
    /// The first of them.
    pub first: usize,
    /// How many the whole table has.
    pub of: usize,
}

/// An id that is no row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("id {id} of token {token} is none of {vocabulary} rows")]
pub struct UnknownId {
    /// Of this token.
    pub token: usize,
    /// The id.
    pub id: i32,
    /// How many rows the table has.
    pub vocabulary: usize,
}

/// `table[ids[t]] + positions[t mod period]`. The table holds some rows of a whole one; the others count as 0.
///
/// # Errors
///
/// If an id is no row of the table.
pub fn embedding<T: Real>(
    ids: &[i32],
    (table, rows): (&[T], TableRows),
    positions: Option<&[T]>,
    sizes: Sizes,
) -> Result<Vec<T>, UnknownId> {
    let Sizes { width, period } = sizes;
    let mut out = Vec::with_capacity(ids.len() * width);
    for (token, id) in ids.iter().enumerate() {
        let row = usize::try_from(*id).ok().filter(|row| *row < rows.of);
        let row = row.ok_or(UnknownId {
            token,
            id: *id,
            vocabulary: rows.of,
        })?;
        let mut here = table.chunks_exact(width);
        match row.checked_sub(rows.first).and_then(|row| here.nth(row)) {
            Some(row) => out.extend_from_slice(row),
            None => out.resize((token + 1) * width, T::ZERO),
        }
        if let Some(positions) = positions {
            let position = &positions[token % period * width..][..width];
            out[token * width..]
                .iter_mut()
                .zip(position)
                .for_each(|(x, p)| *x += *p);
        }
    }
    Ok(out)
}

/// Ids with the tokens that have them, by id, then by token.
pub fn sorted(ids: &[i32]) -> Vec<[i32; 2]> {
    let mut sorted: Vec<[i32; 2]> = ids
        .iter()
        .copied()
        .zip(0..)
        .map(|(id, token)| [id, token])
        .collect();
    sorted.sort_unstable();
    sorted
}

/// The gradient of the rows of the table from the first of these to before the last. Ids that are none of them are left
/// out.
pub fn table_gradient<T: Real>(ids: &[i32], gradient: &[T], rows: Range<usize>, width: usize) -> Vec<T> {
    let mut to_table = vec![T::ZERO; rows.len() * width];
    for (id, gradient) in ids.iter().zip(gradient.chunks_exact(width)) {
        if let Some(row) = usize::try_from(*id).ok().filter(|row| rows.contains(row)) {
            let row = &mut to_table[(row - rows.start) * width..][..width];
            row.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += *g);
        }
    }
    to_table
}

/// The gradient of the positions, of which there are `count`.
pub fn position_gradient<T: Real>(gradient: &[T], count: usize, sizes: Sizes) -> Vec<T> {
    let Sizes { width, period } = sizes;
    let mut to_positions = vec![T::ZERO; count * width];
    for sequence in gradient.chunks_exact(period * width) {
        to_positions
            .iter_mut()
            .zip(sequence)
            .for_each(|(sum, g)| *sum += *g);
    }
    to_positions
}
