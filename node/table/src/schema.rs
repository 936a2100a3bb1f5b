//! The schema: kinds of columns, statistics, categories, the target. A model and its file need nothing else of the table.
//!
//! Statistics are kept as f32, whose text in JSON is exact.

use crate::date::{Moment, Order};
use crate::number::Notation;
use crate::row::Row;
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

/// An input. A column of dates gives several, all with its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name in the header.
    pub name: String,
    /// How its cells are written.
    #[serde(default, skip_serializing_if = "Format::is_plain")]
    pub format: Format,
    /// How it is read.
    #[serde(flatten)]
    pub kind: ColumnKind,
    /// Training rows in which it is missing.
    pub missing: u64,
}

/// How cells are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// As numbers in a program, or as texts.
    #[default]
    Plain,
    /// As numbers for people.
    Numbers(Notation),
    /// As texts in which the case of letters makes no difference.
    AnyCase,
    /// As dates, of which this input is a part.
    Dates(Order, DatePart),
}

impl Format {
    /// Whether it is this part of a date.
    pub(crate) fn is_part(&self, wanted: DatePart) -> bool {
        matches!(self, Self::Dates(_, part) if *part == wanted)
    }

    fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

/// What a date tells a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatePart {
    /// Days since 1970, a number.
    Days,
    /// The year, a number.
    Year,
    /// The month from 1, a category.
    Month,
    /// The day of the week from 1, which is Monday; a category.
    Weekday,
    /// The hour from 0, a category.
    Hour,
}

impl DatePart {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [Self::Days, Self::Year, Self::Month, Self::Weekday, Self::Hour];

    /// Its value; none of a date without a time for the hour.
    pub(crate) fn of(self, moment: &Moment) -> Option<f64> {
        match self {
            Self::Days => Some(moment.days()),
            Self::Year => Some(moment.year().into()),
            Self::Month => Some(moment.month().into()),
            Self::Weekday => Some(moment.weekday().into()),
            Self::Hour => moment.hour().map(f64::from),
        }
    }

    /// Whether it is read as a number.
    pub(crate) fn is_number(self) -> bool {
        matches!(self, Self::Days | Self::Year)
    }
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

impl Numbers {
    /// Whether all were 0 or 1, as far as can be told: one octile may lie between them.
    pub(crate) fn are_zeros_and_ones(&self) -> bool {
        let between = self
            .octiles
            .iter()
            .filter(|octile| !matches!(octile, 0.0 | 1.0))
            .count();
        let [least, .., most] = self.octiles;
        between <= 1 && least >= 0.0 && most <= 1.0
    }
}

/// The values of a column of categories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Categories {
    /// Those that occur often enough, by falling count and then by bytes.
    pub values: Vec<String>,
    /// How many others there were.
    pub rare: u64,
}

/// The logarithm of the greatest number that a cell may be, 1e15.
const MOST_LOG: f64 = 34.538_776_394_910_684;

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
        /// What the model learns of it, if not the number itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        learnt: Option<Learnt>,
        /// How the file writes it.
        #[serde(default, skip_serializing_if = "Notation::is_plain")]
        notation: Notation,
    },
    /// One of some classes.
    Class {
        /// The column.
        name: String,
        /// The classes: numbers by size, words by bytes.
        classes: Vec<String>,
        /// Whether the case of letters makes no difference.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        any_case: bool,
        /// Training rows of each.
        counts: Vec<u64>,
        /// Of two classes, the one that metrics describe.
        positive: usize,
    },
}

/// What a model learns in a number's place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// Whether it is the natural logarithm.
    pub log: bool,
    /// How it changes with a date; the model learns the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trend: Option<Trend>,
    /// Mean of what is learnt, over the training rows.
    pub mean: f32,
    /// Standard deviation; 1 if there is none.
    pub deviation: f32,
}

impl Learnt {
    /// The value of a row for which the model's output is 0.
    pub fn base(&self, row: Row) -> f64 {
        let trend = self.trend.as_ref().map_or(0.0, |trend| {
            let days = row.values[trend.column] - f64::from(trend.middle);
            // Of a row without a date, as of the mean day.
            if days.is_nan() {
                0.0
            } else {
                f64::from(trend.slope) * days
            }
        });
        f64::from(self.mean) + trend
    }
}

/// A line through a number, or its logarithm, by a date. Networks know no time beyond their training rows, and a line goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    /// The place among the inputs of the date's days.
    pub column: usize,
    /// The mean day.
    pub middle: f32,
    /// What it rises by in a day.
    pub slope: f32,
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

/// What stands for a missing number or date, in any case of letters: the marks of pandas, of spreadsheets, and of people. Among
/// words, such as `none` of a column of colours, they may be values.
const GAPS: [&str; 32] = [
    "-", "--", ".", "..", "?", "\u{2013}", "\u{2014}", "na", "n/a", "n.a.", "none", "null", "nil", "nan",
    "-nan", "nat", "<na>", "#na", "#n/a", "#n/a n/a", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#div/0!",
    "#value!", "#name?", "#ref!", "#null!", "#num!", "unknown", "missing",
];

/// The bytes of the longest.
const LONGEST_GAP: usize = 8;

/// Whether a cell stands for a number or a date that is missing.
pub(crate) fn is_gap(cell: &str) -> bool {
    cell.is_empty() || cell.len() <= LONGEST_GAP && GAPS.iter().any(|mark| mark.eq_ignore_ascii_case(cell))
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

    /// What the model learns of a number's value: about 0, and about 1 wide.
    pub fn scaled(&self, value: f64, row: Row) -> f32 {
        match self {
            Self::Number {
                learnt: None,
                mean,
                deviation,
                ..
            } => ((value - f64::from(*mean)) / f64::from(*deviation)) as f32,
            Self::Number {
                learnt: Some(learnt), ..
            } => {
                let value = if learnt.log { libm::log(value) } else { value };
                ((value - learnt.base(row)) / f64::from(learnt.deviation)) as f32
            }
            Self::Class { .. } => value as f32,
        }
    }

    /// The number that a model's output means.
    pub fn natural(&self, output: f32, row: Row) -> f64 {
        let output = f64::from(output);
        match self {
            Self::Number {
                learnt: None,
                mean,
                deviation,
                ..
            } => f64::from(*mean) + f64::from(*deviation) * output,
            Self::Number {
                learnt: Some(learnt), ..
            } => {
                let value = learnt.base(row) + f64::from(learnt.deviation) * output;
                // No further than numbers may be, so that a wild output stays finite.
                if learnt.log {
                    libm::exp(value.min(MOST_LOG))
                } else {
                    value
                }
            }
            Self::Class { .. } => output,
        }
    }

    /// Whether the model learns a logarithm.
    pub fn is_log(&self) -> bool {
        matches!(self, Self::Number { learnt: Some(learnt), .. } if learnt.log)
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
