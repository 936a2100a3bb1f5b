//! The schema: kinds of columns, statistics, categories, the target. A model and its file need nothing else of the table.
//!
//! Statistics are kept as f32, whose text in JSON is exact.

use crate::text::Words;
use serde::{Deserialize, Serialize};

/// Columns, statistics of the training rows, and the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    /// The inputs, in the file's order.
    pub columns: Vec<Column>,
    /// What is predicted.
    pub target: Target,
    /// Columns that the model does not read.
    pub ignored: Vec<Ignored>,
    /// Cells that mean "missing".
    pub missing: Vec<String>,
}

/// An input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name in the header.
    pub name: String,
    /// How it is read.
    #[serde(flatten)]
    pub kind: ColumnKind,
    /// Training rows in which it is missing.
    pub missing: u64,
}

/// How an input is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnKind {
    /// As a number.
    Number(Numbers),
    /// As one of some values.
    Category(Categories),
    /// As words.
    Text(Words),
}

/// Statistics of a column of numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// Mean.
    pub mean: f32,
    /// Standard deviation, of the population.
    pub deviation: f32,
    /// The least value, the seven octiles, and the greatest.
    pub octiles: [f32; 9],
}

/// The values of a column of categories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Categories {
    /// Those that occur often enough, by falling count and then by bytes.
    pub values: Vec<String>,
    /// How many others there were.
    pub rare: u64,
}

/// What is predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A number.
    Number {
        /// The column.
        name: String,
        /// Mean over the training rows.
        mean: f32,
        /// Standard deviation; 1 if there is none.
        deviation: f32,
    },
    /// One of some classes.
    Class {
        /// The column.
        name: String,
        /// The classes: numbers by size, words by bytes.
        classes: Vec<String>,
        /// Training rows of each.
        counts: Vec<u64>,
        /// Of two classes, the one that metrics describe.
        positive: usize,
    },
}

/// A column that the model does not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ignored {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
}

/// Whether a cell is one of the words that mean "missing". There are a few, so comparing costs less than hashing each cell.
pub(crate) fn is_missing(cell: &str, words: &[String]) -> bool {
    words.iter().any(|word| word == cell)
}

impl Target {
    /// The column's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Number { name, .. } | Self::Class { name, .. } => name,
        }
    }

    /// How many numbers a model puts out: one, or one for each class.
    pub fn outputs(&self) -> usize {
        match self {
            Self::Number { .. } => 1,
            Self::Class { classes, .. } => classes.len(),
        }
    }

    /// What the mean of a loss needs: for each class a weight, with which all classes count the same and rows 1 on average.
    pub fn balanced(&self) -> Vec<f32> {
        let Self::Class { counts, .. } = self else {
            return Vec::new();
        };
        let rows: u64 = counts.iter().sum();
        let weight = |count: &u64| rows as f64 / (counts.len() as f64 * (*count).max(1) as f64);
        counts.iter().map(|count| weight(count) as f32).collect()
    }
}
