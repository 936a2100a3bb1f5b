//! Rows as a schema reads them: a number for each cell, and the terms of each text.

use crate::number::parse;
use crate::schema::{Categories, ColumnKind, Schema, is_missing};
use crate::text::{Bag, Lexicon};

/// A category that is rare or was never seen.
const UNKNOWN: f64 = -1.0;

/// The cells of some rows, one row behind the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    /// A number; the place of a category ([`UNKNOWN`] if it has none); the place of a text among `texts`. Not a number if
    /// the cell is missing.
    values: Vec<f64>,
    texts: Vec<Bag>,
}

/// A row's cells.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub(crate) values: &'a [f64],
    pub(crate) texts: &'a [Bag],
}

impl Cells {
    /// A row, of this many columns.
    pub fn row(&self, row: usize, width: usize) -> Row<'_> {
        Row {
            values: &self.values[row * width..(row + 1) * width],
            texts: &self.texts,
        }
    }

    /// Bytes that differ where cells do.
    pub fn identity(&self, take: &mut impl FnMut(&[u8])) {
        for value in &self.values {
            take(&value.to_bits().to_le_bytes());
        }
        for text in &self.texts {
            take(&(text.len() as u64).to_le_bytes());
            for (term, weight) in text {
                take(&term.to_le_bytes());
                take(&weight.to_bits().to_le_bytes());
            }
        }
    }

    /// Adds a cell that is not known.
    pub fn push_missing(&mut self) {
        self.values.push(f64::NAN);
    }
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

/// Reads cells as a schema says.
pub(crate) struct Reader<'a> {
    missing: &'a [String],
    columns: Vec<As<'a>>,
}

/// How the cells of a column are read.
enum As<'a> {
    Number,
    Category(&'a Categories),
    Text(Lexicon<'a>),
}

impl<'a> Reader<'a> {
    pub fn of(schema: &'a Schema) -> Self {
        let kinds = schema.columns.iter().map(|column| match &column.kind {
            ColumnKind::Number(_) => As::Number,
            ColumnKind::Category(categories) => As::Category(categories),
            ColumnKind::Text(words) => As::Text(Lexicon::of(words)),
        });
        Self {
            missing: &schema.missing,
            columns: kinds.collect(),
        }
    }

    /// Adds the cell of a column. Returns false, and adds one that is missing, if a number is expected and it is something
    /// else.
    pub fn read(&self, column: usize, cell: &str, into: &mut Cells) -> bool {
        if is_missing(cell, self.missing) {
            into.push_missing();
            return true;
        }
        let value = match &self.columns[column] {
            As::Number => parse(cell),
            As::Category(categories) => {
                let place = categories.values.iter().position(|value| value == cell);
                Some(place.map_or(UNKNOWN, |place| place as f64))
            }
            As::Text(lexicon) => {
                into.texts.push(lexicon.bag(cell));
                Some((into.texts.len() - 1) as f64)
            }
        };
        into.values.push(value.unwrap_or(f64::NAN));
        value.is_some()
    }
}
