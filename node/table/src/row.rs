//! A row's cells, as a schema reads them.

use crate::text::Bag;

/// A row's cells.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub(crate) values: &'a [f64],
    pub(crate) texts: &'a [Bag],
}

impl Row<'_> {
    /// The terms of a text; none if it is missing.
    pub(crate) fn text(&self, column: usize) -> &[(u32, f32)] {
        match self.values[column] {
            value if value.is_nan() => &[],
            value => &self.texts[value as usize],
        }
    }
}
