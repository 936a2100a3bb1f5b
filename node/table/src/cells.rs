//! Rows as a schema reads them: a number for each cell, and the terms of each text.

use crate::category::{self, Case, Places};
use crate::date::{Moment, Order};
use crate::number::{MOST, Notation};
use crate::row::Row;
use crate::schema::{ColumnKind, DatePart, Format, Schema, is_gap, is_missing};
use crate::text::{Bag, Lexicon};
use serde_json::Value;

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

/// Reads cells as a schema says.
pub(crate) struct Reader<'a> {
    missing: &'a [String],
    columns: Vec<As<'a>>,
}

/// How the cells of a column are read.
enum As<'a> {
    /// Whether all numbers of training were 0 or 1, as far as is known: `true` is one then, too.
    Number(Notation, bool),
    Category(Places<'a>),
    Text(Lexicon<'a>),
    /// With the known values, if this part is a category.
    Date(Order, DatePart, Option<Vec<f64>>),
}

/// What was found in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Something that the model knows, or a gap.
    Known,
    /// A category that the model does not know.
    Unseen,
    /// Neither a number nor a date, where one is expected.
    Wrong,
}

impl<'a> Reader<'a> {
    pub fn of(schema: &'a Schema) -> Self {
        let columns = schema
            .columns
            .iter()
            .map(|column| match (&column.format, &column.kind) {
                (Format::Dates(order, part), ColumnKind::Category(all)) => {
                    let known = all.values.iter().filter_map(|value| value.parse().ok());
                    As::Date(*order, *part, Some(known.collect()))
                }
                (Format::Dates(order, part), _) => As::Date(*order, *part, None),
                (format, ColumnKind::Number(numbers)) => {
                    let notation = match format {
                        Format::Numbers(notation) => notation.clone(),
                        _ => Notation::default(),
                    };
                    As::Number(notation, numbers.are_zeros_and_ones())
                }
                (format, ColumnKind::Category(categories)) => {
                    let case = Case::any(*format == Format::AnyCase);
                    As::Category(Places::of(&categories.values, case))
                }
                (_, ColumnKind::Text(words)) => As::Text(Lexicon::of(words)),
            });
        Self {
            missing: &schema.missing,
            columns: columns.collect(),
        }
    }

    /// Adds the cell of a column; one that is missing, if a number or a date is expected and it is something else.
    pub fn read(&self, column: usize, cell: &str, into: &mut Cells) -> Found {
        if is_missing(cell, self.missing) {
            into.push_missing();
            return Found::Known;
        }
        let value = match &self.columns[column] {
            As::Number(notation, is_boolean) => notation.read(cell).or_else(|| {
                let word = is_boolean.then(|| category::number(cell)).flatten();
                word.filter(|value| matches!(value, 0.0 | 1.0))
            }),
            As::Category(places) => {
                let place = places.of_cell(cell);
                into.values.push(place.map_or(UNKNOWN, |place| place as f64));
                return if place.is_some() {
                    Found::Known
                } else {
                    Found::Unseen
                };
            }
            As::Text(lexicon) => {
                into.texts.push(lexicon.bag(cell));
                Some((into.texts.len() - 1) as f64)
            }
            As::Date(order, part, known) => {
                let moment = Moment::read(cell, *order);
                moment.map(|moment| match (part.of(&moment), known) {
                    (Some(value), Some(known)) => {
                        let place = known.iter().position(|other| *other == value);
                        place.map_or(UNKNOWN, |place| place as f64)
                    }
                    (value, _) => value.unwrap_or(f64::NAN),
                })
            }
        };
        into.values.push(value.unwrap_or(f64::NAN));
        match value.is_some() || is_gap(cell) {
            true => Found::Known,
            false => Found::Wrong,
        }
    }

    /// Adds a value of JSON in the same way.
    pub fn read_json(&self, column: usize, value: &Value, into: &mut Cells) -> Found {
        match (value, &self.columns[column]) {
            (Value::Null, _) => {
                into.push_missing();
                Found::Known
            }
            // However the file wrote its numbers, this is one.
            (Value::Number(number), As::Number(..)) => {
                let number = number.as_f64().filter(|number| number.abs() <= MOST);
                into.values.push(number.unwrap_or(f64::NAN));
                if number.is_some() {
                    Found::Known
                } else {
                    Found::Wrong
                }
            }
            // As a number 2020.10 is 2020.1.
            (Value::Number(number), As::Date(order, ..))
                if number.as_f64().is_some_and(|number| number.fract() != 0.0)
                    && !matches!(order, Order::Unix | Order::Excel) =>
            {
                into.push_missing();
                Found::Wrong
            }
            (Value::String(text), _) => self.read(column, text.trim(), into),
            (Value::Array(_) | Value::Object(_), _) => {
                into.push_missing();
                Found::Wrong
            }
            (value, _) => self.read(column, &value.to_string(), into),
        }
    }
}
