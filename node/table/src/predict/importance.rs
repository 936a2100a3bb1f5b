//! How much each column matters: how much worse a trained model does when the column's cells are exchanged between rows (Breiman
//! 2001, "Random forests"; Fisher et al. 2019, "All models are wrong, but many are useful"). It needs no other model.

use super::{Predictor, choice::Answers};
use crate::number::{listed, short};
use crate::row::Row;
use crate::split::shuffled;
use crate::table::Table;
use serde::{Deserialize, Serialize};

/// Most rows to predict again for each column, and the fewest that tell anything; guesses.
const MOST_ROWS: usize = 1_000;
const LEAST_ROWS: usize = 20;

/// Most multiplications for all columns together: a few seconds.
const WORK: usize = 2_000_000_000;

/// How often cells are exchanged for the mean.
const TIMES: usize = 3;

/// Columns that a line names.
const TOLD: usize = 10;

/// How much a column matters to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Importance {
    /// Its name.
    pub column: String,
    /// What the loss on the validation rows grows by without it: the mean squared error, or the log loss.
    pub loss: f64,
    /// The same, of the loss with it: 1 doubles the loss.
    pub share: f64,
}

impl Predictor {
    /// How much each column matters by the validation rows, the most important first. Empty if there are too many columns for a few
    /// seconds.
    pub fn importance(&self, table: &Table) -> Vec<Importance> {
        let columns = &self.schema.columns;
        let each = WORK / (TIMES * columns.len() * self.network.parameters().max(1)).max(1);
        if each < LEAST_ROWS {
            return Vec::new();
        }
        let each = each.min(MOST_ROWS);
        let rows: Vec<usize> = table.rows.validation.iter().copied().take(each).collect();
        let cells: Vec<Row> = rows.iter().map(|row| table.cells(*row)).collect();
        let loss = |cells: &mut dyn Iterator<Item = Row>| {
            let answers = cells.map(|row| self.answer(row)).collect::<Vec<_>>();
            Answers::mean_loss(
                &self.schema.target,
                &answers,
                rows.iter().map(|row| table.target(*row)),
            )
        };
        let whole = loss(&mut cells.iter().copied());
        let mut found: Vec<Importance> = Vec::new();
        let names = columns.chunk_by(|a, b| a.name == b.name);
        let mut first = 0;
        for parts in names {
            let of_column = first..first + parts.len();
            first = of_column.end;
            let exchanged = |time: usize| {
                let order = shuffled(rows.len(), time as u64);
                let row = |at: usize| {
                    let mut values = cells[at].values.to_vec();
                    values[of_column.clone()].copy_from_slice(&cells[order[at]].values[of_column.clone()]);
                    values
                };
                let values: Vec<Vec<f64>> = (0..rows.len()).map(row).collect();
                let texts = cells[0].texts;
                loss(&mut values.iter().map(|values| Row { values, texts }))
            };
            let without = (0..TIMES).map(exchanged).sum::<f64>() / TIMES as f64;
            found.push(Importance {
                column: parts[0].name.clone(),
                loss: without - whole,
                share: (without - whole) / whole.max(f64::EPSILON),
            });
        }
        found.sort_by(|a, b| b.loss.total_cmp(&a.loss).then_with(|| a.column.cmp(&b.column)));
        found
    }
}

/// In a line, for people.
pub fn describe(all: &[Importance]) -> String {
    if all.is_empty() {
        return "which columns matter is not told: there are too many".into();
    }
    let told = |one: &Importance| format!("{} {}", one.column, percent(one.share));
    let told: Vec<String> = all.iter().take(TOLD).map(told).collect();
    format!("what the loss grows by without a column: {}", listed(&told))
}

pub(crate) fn percent(share: f64) -> String {
    match 100.0 * share {
        share if share.abs() < 0.1 => "0 %".into(),
        share => format!("{} %", short(share)),
    }
}
