//! A trained model with its schema: judges itself on a table's parts and predicts new rows.

mod choice;
mod json;

pub use json::class_json;

use crate::cells::{Cells, Reader, Row};
use crate::csv::{Rows, write_field};
use crate::error::{Fault, Faults, TableError};
use crate::features::Features;
use crate::metrics::{self, Metric};
use crate::network::{Member, Network, softmax};
use crate::number::{grouped, listed, not_a_number, short};
use crate::parquet::as_csv;
use crate::schema::{Schema, Target};
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
}

/// A model's judgement on a part of a table, beside those of simpler ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Rows, or other samples, that were predicted.
    pub rows: u64,
    /// The model's metrics.
    pub metrics: Vec<Metric>,
    /// Of always answering with the training rows' mean, or with the shares of their classes.
    pub constant: Vec<Metric>,
    /// Of the linear member alone, if there is one.
    pub linear: Vec<Metric>,
    /// Rows by actual and predicted class; empty for numbers.
    pub confusion: Vec<Vec<usize>>,
}

impl Predictor {
    /// A model of these members, which count as `weights` say.
    pub fn new(schema: Schema, network: Network, weights: Vec<f64>) -> Self {
        Self {
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

    /// The columns and the target.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// A member's answer: a number, or a probability for each class.
    fn answer_of(&self, member: &Member, inputs: &[f32]) -> Vec<f64> {
        let outputs = member.outputs(inputs);
        match &self.schema.target {
            Target::Number { mean, deviation, .. } => {
                vec![f64::from(*mean) + f64::from(*deviation) * f64::from(outputs[0])]
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
                let of_member = self.answer_of(member, &inputs);
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
    pub fn predict(&self, name: &str, bytes: &[u8]) -> Result<String, TableError> {
        let (rows, faults) = Rows::read(name, &as_csv(name, bytes, &mut |_, _| {})?)?;
        let columns = self.places(name, &rows)?;
        let cells = self.cells(name, &rows, &columns, faults)?;
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
                    write_class(&mut out, classes, &answer, separator);
                }
            }
            out.push('\n');
        }
        Ok(out)
    }

    /// Where the file has each input.
    fn places(&self, name: &str, rows: &Rows) -> Result<Vec<usize>, TableError> {
        let names = || self.schema.columns.iter().map(|column| column.name.as_str());
        let missing: Vec<&str> = names().filter(|name| rows.column(name).is_none()).collect();
        match missing.is_empty() {
            true => Ok(names().filter_map(|name| rows.column(name)).collect()),
            false => Err(TableError::Other(format!(
                "{name} lacks columns that the model reads: {}. It has: {}",
                listed(&missing),
                listed(&rows.header)
            ))),
        }
    }

    /// The cells of all rows, or all that is wrong with them.
    fn cells(
        &self,
        name: &str,
        rows: &Rows,
        columns: &[usize],
        mut faults: Vec<Fault>,
    ) -> Result<Cells, TableError> {
        let (reader, mut cells) = (Reader::of(&self.schema), Cells::default());
        for row in 0..rows.len() {
            for (at, column) in columns.iter().enumerate() {
                let text = rows.cell(row, *column);
                if !reader.read(at, text, &mut cells) {
                    faults.push(Fault {
                        line: rows.line(row),
                        column: Some(rows.header[*column].clone()),
                        what: not_a_number(text),
                    });
                }
            }
        }
        faults.sort_by_key(|fault| fault.line);
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
                .map(|answers| judge(target, &answers, &actual))
                .unwrap_or_default(),
            ..Judged::of(target, &answers, &actual)
        }
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

/// Appends the likeliest class, and the probability of each.
pub fn write_class(out: &mut String, classes: &[String], answer: &[f64], separator: u8) {
    write_field(out, &classes[metrics::likeliest(answer)], separator);
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

/// What the training rows alone say: their mean, or the shares of their classes.
fn constant(target: &Target) -> Vec<f64> {
    match target {
        Target::Number { mean, .. } => vec![f64::from(*mean)],
        Target::Class { counts, .. } => {
            let rows: u64 = counts.iter().sum();
            counts.iter().map(|count| *count as f64 / rows as f64).collect()
        }
    }
}

/// The metrics that suit a target.
pub fn judge(target: &Target, answers: &[Vec<f64>], actual: &[f64]) -> Vec<Metric> {
    match target {
        Target::Number { .. } => {
            let predicted: Vec<f64> = answers.iter().map(|answer| answer[0]).collect();
            metrics::of_numbers(&predicted, actual)
        }
        Target::Class {
            classes, positive, ..
        } if classes.len() == 2 => {
            let probability: Vec<f64> = answers.iter().map(|answer| answer[*positive]).collect();
            let is: Vec<bool> = actual.iter().map(|class| *class as usize == *positive).collect();
            metrics::of_two_classes(&probability, &is)
        }
        Target::Class { .. } => {
            let classes: Vec<usize> = actual.iter().map(|class| *class as usize).collect();
            metrics::of_classes(answers, &classes)
        }
    }
}

impl Judged {
    /// Judges the answers to at least one sample.
    pub fn of(target: &Target, answers: &[Vec<f64>], actual: &[f64]) -> Self {
        let same = vec![constant(target); actual.len()];
        Self {
            rows: actual.len() as u64,
            metrics: judge(target, answers, actual),
            constant: judge(target, &same, actual),
            linear: Vec::new(),
            confusion: match target {
                Target::Number { .. } => Vec::new(),
                Target::Class { .. } => {
                    let actual: Vec<usize> = actual.iter().map(|class| *class as usize).collect();
                    metrics::confusion(answers, &actual)
                }
            },
        }
    }

    /// The judgement in lines, for people: metrics with intervals, then what simpler models reach. `what`: the samples, such as
    /// rows.
    pub fn describe(&self, part: &str, what: &str, target: &Target) -> String {
        let with_interval = |metric: &Metric| {
            let value = format!("{} {}", metric.name, short(metric.value));
            match metric.interval {
                Some((low, high)) => format!("{value} ({} to {})", short(low), short(high)),
                None => value,
            }
        };
        let all: Vec<String> = self.metrics.iter().map(with_interval).collect();
        let count = match self.rows {
            1 => format!("1 {}", what.trim_end_matches('s')),
            rows => format!("{} {what}", grouped(rows)),
        };
        let mut text = format!("{part} ({count}): {}", all.join(", "));
        // The first metric that does not only count answers tells models apart best.
        let telling = match target {
            Target::Number { .. } => "rmse",
            Target::Class { .. } => "auc",
        };
        let of =
            |metrics: &[Metric], name: &str| metrics.iter().find(|m| m.name == name).map(|m| short(m.value));
        let mut lines = Vec::new();
        for (model, metrics) in [
            ("always the same answer", &self.constant),
            ("linear model", &self.linear),
        ] {
            let told = [telling, "accuracy"].into_iter();
            let told = told.filter_map(|name| Some(format!("{name} {}", of(metrics, name)?)));
            let told: Vec<String> = told.collect();
            if !told.is_empty() {
                lines.push(format!("{model} {}", told.join(", ")));
            }
        }
        let _ = write!(text, "\nto compare: {}", lines.join("; "));
        if let Target::Class { classes, .. } = target
            && classes.len() <= 10
        {
            let width = classes
                .iter()
                .map(|class| class.chars().count())
                .max()
                .unwrap_or(0)
                .max(5);
            let _ = write!(
                text,
                "\n{what} by actual class (down) and predicted class (across):\n{:>width$}",
                ""
            );
            classes.iter().for_each(|class| {
                let _ = write!(text, " {class:>width$}");
            });
            for (class, row) in classes.iter().zip(&self.confusion) {
                let _ = write!(text, "\n{class:>width$}");
                row.iter().for_each(|count| {
                    let _ = write!(text, " {count:>width$}");
                });
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
