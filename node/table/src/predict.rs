//! A trained model with its schema: judges itself on a table's parts and predicts new rows.

mod choice;
mod importance;
mod json;
mod judged;
mod unique;

pub(crate) use importance::percent;
pub use importance::{Importance, describe as describe_importance};
pub use json::class_json;
pub use judged::{Judged, judge};
pub use unique::Unique;

use crate::category::{Case, Places};
use crate::cells::{Cells, Found, Reader};
use crate::csv::{Rows, write_field};
use crate::error::{Fault, FaultList, Faults, TableError};
use crate::features::Features;
use crate::metrics;
use crate::network::{Member, Network, softmax};
use crate::number::{grouped, listed, not_a_number};
use crate::parquet::as_csv;
use crate::row::Row;
use crate::schema::{Format, Schema, Target};
use crate::table::Table;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// All that a prediction needs.
#[derive(Clone, Debug)]
pub struct Predictor {
    schema: Schema,
    features: Features,
    network: Network,
    /// How much each member counts; they sum to 1.
    weights: Vec<f64>,
    decision: Decision,
}

/// What the validation rows said of how to use a model's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Of two classes: above which probability the answer is the positive one.
    pub threshold: f64,
    /// Of two classes: the threshold with the best F1.
    pub best: Option<f64>,
    /// Times this are predicted numbers whose logarithm was learnt: the mean of a logarithm is not the logarithm of a mean (Duan
    /// 1983, "Smearing estimate").
    pub factor: f64,
}

/// The most likely of two classes.
const LIKELIEST: f64 = 0.5;

impl Default for Decision {
    fn default() -> Self {
        Self {
            threshold: LIKELIEST,
            best: None,
            factor: 1.0,
        }
    }
}

impl Decision {
    /// The class of an answer.
    pub(super) fn class(&self, target: &Target, answer: &[f64]) -> usize {
        match target {
            Target::Class { positive, .. } if answer.len() == 2 && self.threshold != LIKELIEST => {
                match answer[*positive] > self.threshold {
                    true => *positive,
                    false => 1 - positive,
                }
            }
            _ => metrics::likeliest(answer),
        }
    }
}

/// A file's rows with predictions.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// As CSV or TSV.
    pub text: String,
    /// Of each column with values that training never saw, how many there are.
    pub notes: Vec<String>,
}

impl From<String> for Predicted {
    fn from(text: String) -> Self {
        let notes = Vec::new();
        Self { text, notes }
    }
}

impl Predictor {
    /// A model of these members, which count as `weights` say.
    pub fn new(schema: Schema, network: Network, weights: Vec<f64>, decision: Decision) -> Self {
        Self {
            decision,
            features: Features::of(&schema),
            schema,
            network,
            weights,
        }
    }

    /// How much each member counts.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// How its outputs become answers.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// The columns and the target.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// A member's answer: a number, or a probability for each class.
    fn answer_of(&self, member: &Member, inputs: &[f32], cells: Row) -> Vec<f64> {
        let outputs = member.outputs(inputs);
        match &self.schema.target {
            Target::Number { .. } => {
                vec![self.schema.target.natural(outputs[0], cells) * self.decision.factor]
            }
            Target::Class { .. } => softmax(&outputs),
        }
    }

    /// The answer to a row's cells: a number, or a probability for each class.
    pub fn answer(&self, cells: Row) -> Vec<f64> {
        let mut inputs = Vec::with_capacity(self.features.width());
        self.features.write(cells, &mut inputs);
        let mut answer = vec![0.0; self.schema.target.outputs()];
        for (member, weight) in self.network.members.iter().zip(&self.weights) {
            if *weight > 0.0 {
                let of_member = self.answer_of(member, &inputs, cells);
                answer
                    .iter_mut()
                    .zip(of_member)
                    .for_each(|(sum, part)| *sum += weight * part);
            }
        }
        answer
    }

    /// Predicts the rows of a CSV, TSV or Parquet file, as CSV or TSV: its columns, and behind them `TARGET_predicted` and, for classes, a
    /// probability for each, `TARGET_CLASS`. The order of columns does not matter, and others may be there.
    ///
    /// # Errors
    ///
    /// If a column is missing, or some cells cannot be read as the schema says: all of them.
    pub fn predict(&self, name: &str, bytes: &[u8]) -> Result<Predicted, TableError> {
        let (rows, faults) = Rows::read(name, &as_csv(name, bytes, &mut |_, _| {})?)?;
        let columns = self.places(name, &rows)?;
        let mut unseen = Unseen::default();
        let cells = self.cells(name, &rows, &columns, (faults, &mut unseen, |_| None))?;
        let (mut out, separator) = (String::new(), rows.separator);
        let target = self.schema.target.name();
        let mut names: Vec<String> = rows.header.clone();
        add_name(&mut names, format!("{target}_predicted"));
        if let Target::Class { classes, .. } = &self.schema.target {
            classes
                .iter()
                .for_each(|class| add_name(&mut names, format!("{target}_{class}")));
        }
        write_row(&mut out, names.iter().map(String::as_str), separator);
        out.push('\n');
        for row in 0..rows.len() {
            let fields = (0..rows.header.len()).map(|column| rows.field(row, column));
            write_row(&mut out, fields, separator);
            out.push(char::from(separator));
            let answer = self.answer(cells.row(row, columns.len()));
            match &self.schema.target {
                Target::Number { .. } => {
                    let _ = write!(out, "{}", answer[0] as f32);
                }
                Target::Class { classes, .. } => {
                    let class = self.decision.class(&self.schema.target, &answer);
                    write_class(&mut out, (classes, class), &answer, separator);
                }
            }
            out.push('\n');
        }
        Ok(Predicted {
            text: out,
            notes: unseen.told(),
        })
    }

    /// Judges the model on the rows of a file that also has the target, and tells what it did not know.
    ///
    /// # Errors
    ///
    /// As [`predict`](Self::predict), or if the target is missing somewhere or is no number or class of training.
    pub fn score(&self, name: &str, bytes: &[u8]) -> Result<(Judged, Vec<String>), TableError> {
        let (rows, faults) = Rows::read(name, &as_csv(name, bytes, &mut |_, _| {})?)?;
        let columns = self.places(name, &rows)?;
        let target = &self.schema.target;
        let Some(column) = rows.column(target.name()) else {
            return Err(TableError::Other(format!(
                "{name} lacks the column {}, which tells the right answers",
                target.name()
            )));
        };
        let places = match target {
            Target::Class {
                classes, any_case, ..
            } => Places::of(classes, Case::any(*any_case)),
            Target::Number { .. } => Places::of(&[], Case::Matters),
        };
        let read = |cell: &str| match target {
            Target::Number { notation, .. } => notation.read(cell),
            Target::Class { .. } => places.of_cell(cell).map(|place| place as f64),
        };
        let mut actual = Vec::new();
        let take = |row: usize| {
            let cell = rows.cell(row, column);
            let value = read(cell);
            actual.extend(value);
            value.is_none().then(|| {
                let shown: String = cell.chars().take(40).collect();
                Fault {
                    line: rows.line(row),
                    column: Some(target.name().to_owned()),
                    what: format!("{shown:?} is no answer that the model can give"),
                }
            })
        };
        let mut unseen = Unseen::default();
        let cells = self.cells(name, &rows, &columns, (faults, &mut unseen, take))?;
        if actual.is_empty() {
            return Err(TableError::Other(format!("{name} has no rows to judge by")));
        }
        let answers: Vec<Vec<f64>> = (0..rows.len())
            .map(|row| self.answer(cells.row(row, columns.len())))
            .collect();
        Ok((
            Judged::of(target, &answers, &actual, self.decision),
            unseen.told(),
        ))
    }

    /// Where the file has each input.
    fn places(&self, name: &str, rows: &Rows) -> Result<Vec<usize>, TableError> {
        let names = || self.schema.columns.iter().map(|column| column.name.as_str());
        let mut missing: Vec<&str> = names().filter(|name| rows.column(name).is_none()).collect();
        missing.dedup();
        match missing.is_empty() {
            true => Ok(names().filter_map(|name| rows.column(name)).collect()),
            false => Err(TableError::Other(format!(
                "{name} lacks columns that the model reads: {}. It has: {}",
                listed(&missing),
                listed(&rows.header)
            ))),
        }
    }

    /// The cells of all rows, or all that is wrong with them; `also`: what else is wrong with a row.
    fn cells(
        &self,
        name: &str,
        rows: &Rows,
        columns: &[usize],
        (mut faults, unseen, mut also): (FaultList, &mut Unseen, impl FnMut(usize) -> Option<Fault>),
    ) -> Result<Cells, TableError> {
        let (reader, mut cells) = (Reader::of(&self.schema), Cells::default());
        for row in 0..rows.len() {
            if !faults.is_empty() {
                // Nobody will need those before.
                cells = Cells::default();
            }
            also(row).into_iter().for_each(|fault| faults.push(fault));
            for (at, column) in columns.iter().enumerate() {
                let text = rows.cell(row, *column);
                let schema = &self.schema.columns[at];
                match reader.read(at, text, &mut cells) {
                    Found::Known => {}
                    // A date that is wrong is so in each of its parts.
                    Found::Wrong if at > 0 && self.schema.columns[at - 1].name == schema.name => {}
                    Found::Wrong => faults.push(Fault {
                        line: rows.line(row),
                        column: Some(rows.header[*column].clone()),
                        what: wrong(&schema.format, text),
                    }),
                    Found::Unseen => unseen.add(&schema.name, text),
                }
            }
        }
        faults.sort();
        match faults.is_empty() {
            true => Ok(cells),
            false => Err(TableError::Rows(Faults {
                file: name.to_owned(),
                rows: rows.seen,
                list: faults,
                remedy: "Fix them, or leave a cell empty that is not known",
            })),
        }
    }

    /// Judges the model on some rows of a table, beside always the same answer and the linear member alone.
    pub fn judge(&self, table: &Table, rows: &[usize]) -> Judged {
        let answers: Vec<Vec<f64>> = rows.iter().map(|row| self.answer(table.cells(*row))).collect();
        let actual: Vec<f64> = rows.iter().map(|row| table.target(*row)).collect();
        let target = &self.schema.target;
        let linear = self
            .network
            .members
            .iter()
            .position(|member| member.layers.is_empty());
        let linear = linear.filter(|_| self.network.members.len() > 1).map(|at| {
            let mut weights = vec![0.0; self.weights.len()];
            weights[at] = 1.0;
            let alone = Self {
                weights,
                ..self.clone()
            };
            rows.iter()
                .map(|row| alone.answer(table.cells(*row)))
                .collect::<Vec<_>>()
        });
        Judged {
            linear: linear
                .map(|answers| judge(target, &answers, &actual, self.decision))
                .unwrap_or_default(),
            ..Judged::of(target, &answers, &actual, self.decision)
        }
    }
}

/// Why a cell cannot be read.
fn wrong(format: &Format, cell: &str) -> String {
    let why = not_a_number(cell);
    match format {
        Format::Dates(..) => why.replace("is not a number", "is not a date as training had them"),
        Format::Numbers(notation) => {
            let decimals = if notation.comma {
                "a decimal comma"
            } else {
                "a decimal point"
            };
            match notation.unit.as_str() {
                "" => format!("{why}; training had {decimals}"),
                unit => format!("{why}; training had {decimals} and {unit}"),
            }
        }
        Format::Plain | Format::AnyCase => why,
    }
}

/// Categories that a model does not know.
#[derive(Default)]
struct Unseen(Vec<(String, u64, String)>);

impl Unseen {
    fn add(&mut self, column: &str, cell: &str) {
        match self.0.iter_mut().find(|(name, ..)| name == column) {
            Some((_, count, _)) => *count += 1,
            None => self
                .0
                .push((column.to_owned(), 1, cell.chars().take(40).collect())),
        }
    }

    /// A sentence for each column.
    fn told(&self) -> Vec<String> {
        let told = |(column, count, example): &(String, u64, String)| {
            format!(
                "column {column}: {} of the values, such as {example:?}, are none that the model learnt; it answers as if they were \
                 none of those",
                grouped(*count)
            )
        };
        self.0.iter().map(told).collect()
    }
}

/// Appends the name of a column, with a number behind it if another has that name: names must differ for a file to be read again.
fn add_name(names: &mut Vec<String>, name: String) {
    let numbered = (2..).map(|number| format!("{name}_{number}"));
    let free = std::iter::once(name.clone())
        .chain(numbered)
        .find(|name| !names.contains(name));
    names.extend(free);
}

/// Appends the class that an answer means, and the probability of each.
pub fn write_class(out: &mut String, (classes, class): (&[String], usize), answer: &[f64], separator: u8) {
    write_field(out, &classes[class], separator);
    for probability in answer {
        let _ = write!(out, "{}{probability:.6}", char::from(separator));
    }
}

/// Appends fields, without the line's end.
fn write_row<'a>(out: &mut String, fields: impl Iterator<Item = &'a str>, separator: u8) {
    for (at, field) in fields.enumerate() {
        if at > 0 {
            out.push(char::from(separator));
        }
        write_field(out, field, separator);
    }
}

#[cfg(test)]
mod tests;
