//! Settings of a table. The rest is guessed.

use crate::date::Order;
use crate::error::TableError;
use crate::schema::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Exceptions to what [`Table::read`](crate::Table::read) guesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The column to predict.
    pub target: String,
    /// Of two classes, the one that F1, AUC and the threshold describe; empty: guessed.
    pub positive: String,
    /// Kinds of columns by name, where the guess is wrong.
    pub columns: BTreeMap<String, Kind>,
    /// Cells that mean "missing".
    pub missing: Vec<String>,
    /// What to do with rows that cannot be used.
    pub bad_rows: BadRows,
    /// A column that names each row's part; empty: one that looks like it, or a division by row number.
    pub split_column: String,
    /// Rows with equal values in this column stay in one part.
    pub split_by: String,
    /// The last rows by this column, a number or a date, are the test.
    pub split_time: String,
    /// Whether the logarithm of a number is learnt.
    pub log: Log,
    /// Of two classes: above which probability the answer is the positive one; `f1`: the threshold with the best F1 on the validation
    /// rows.
    pub threshold: String,
    /// A column with the weight of each row in the loss; empty: all weigh the same.
    pub weight: String,
    /// Whether rare classes weigh more in the loss.
    pub class_weights: ClassWeights,
    /// The kind of model.
    pub model: Model,
    /// How long a run may take, such as `10m`; empty: as long as it takes.
    pub time: String,
    /// A search: how many networks to train side by side with settings that are drawn; the validation rows choose among them.
    pub trials: Option<u32>,
    /// One network instead of several, with these units in its hidden layers, such as `128-64`; empty: several.
    pub hidden: String,
    /// Whether the one model also reads numbers in bins.
    pub bins: bool,
    /// The one model's learning rate over the run's.
    pub rate: f32,
    /// Share of the one network's hidden units that each training row leaves out.
    pub dropout: f32,
    /// Adds this times the sum of the one model's squared weights to its loss.
    pub l2: f32,
    /// Hidden units of the networks, in percent of the usual ones.
    pub width: u32,
    /// The file of the data folder whose weights the run starts from; empty: random ones.
    pub init: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            target: String::new(),
            positive: String::new(),
            columns: BTreeMap::new(),
            // As pandas, without `None` and `NULL`'s kin that occur as names.
            missing: ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "?"]
                .map(str::to_owned)
                .to_vec(),
            bad_rows: BadRows::Fail,
            split_column: String::new(),
            split_by: String::new(),
            split_time: String::new(),
            log: Log::Auto,
            threshold: "0.5".into(),
            weight: String::new(),
            class_weights: ClassWeights::Off,
            model: Model::Mlp,
            time: String::new(),
            trials: None,
            hidden: String::new(),
            bins: false,
            rate: 1.0,
            dropout: 0.0,
            l2: 0.0,
            width: 100,
            init: String::new(),
        }
    }
}

/// The models to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// One linear model.
    Linear,
    /// Several networks and a linear model, averaged as suits the validation rows.
    Mlp,
}

/// How to read a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// As a number.
    Number,
    /// As one of some values; as the target: a class.
    Category,
    /// As words; never the target.
    Text,
    /// As a date, if its order of day and month can be told; never the target.
    Date,
    /// As a date such as 31/12/2024; never the target.
    #[serde(rename = "day-first")]
    DayFirst,
    /// As a date such as 12/31/2024; never the target.
    #[serde(rename = "month-first")]
    MonthFirst,
    /// As a date such as 24-12-31; never the target.
    #[serde(rename = "year-first")]
    YearFirst,
    /// As a date: seconds since 1970, or as many milli-, micro- or nanoseconds; never the target.
    Unix,
    /// As a date: days as spreadsheets count them; never the target.
    Excel,
    /// As one of some values, whatever the case of their letters.
    #[serde(rename = "any-case")]
    AnyCase,
    /// Not at all.
    Ignore,
}

impl Kind {
    /// How dates are written, if this says so.
    pub(crate) fn order(self) -> Option<Order> {
        match self {
            Self::DayFirst => Some(Order::DayFirst),
            Self::MonthFirst => Some(Order::MonthFirst),
            Self::YearFirst => Some(Order::YearFirst),
            Self::Unix => Some(Order::Unix),
            Self::Excel => Some(Order::Excel),
            _ => None,
        }
    }
}

/// What to do with rows that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadRows {
    /// Report all of them and stop.
    Fail,
    /// Go on without them.
    Skip,
}

/// Whether a model learns a number's logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Log {
    /// If large values are rare and far from the others.
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

/// Weights of classes in the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassWeights {
    /// All rows weigh the same.
    Off,
    /// All classes weigh the same; the mean weight of a row is 1.
    Balanced,
}

/// Above which probability a model of two classes says the positive one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Threshold {
    /// This one.
    At(f64),
    /// The one with the best F1 on the validation rows.
    BestF1,
}

impl Options {
    /// The threshold that was asked for, for this target.
    pub(crate) fn asked_threshold(&self, target: &Target) -> Result<Threshold, TableError> {
        let asked = self.threshold.as_str();
        let fail = |why: &str| {
            Err(TableError::Other(format!(
                "threshold={asked} is not possible: {why}"
            )))
        };
        let usual = asked == Self::default().threshold;
        match (asked, asked.parse()) {
            _ if !usual && target.outputs() != 2 => fail("it is for two classes"),
            ("f1", _) => Ok(Threshold::BestF1),
            (_, Ok(threshold)) if (0.0..1.0).contains(&threshold) => Ok(Threshold::At(threshold)),
            _ => fail("give f1, or a probability of at least 0 and below 1"),
        }
    }
}
