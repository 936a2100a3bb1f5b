//! Tells what was guessed of a table, and warns of columns that are too good to be true.

use super::Table;
use super::refusals::such_as;
use crate::date::Moment;
use crate::measure::mean_and_deviation;
use crate::metrics;
use crate::number::{grouped, listed};
use crate::schema::{Column, ColumnKind, Format, Schema, Target};
use std::collections::BTreeMap;
use std::fmt::Write;

impl Table {
    /// All that was guessed, for a person to check.
    pub fn describe(&self) -> String {
        let Schema {
            columns,
            target,
            ignored,
            ..
        } = &self.schema;
        let mut text = String::new();
        let names = columns.chunk_by(|a, b| a.name == b.name).count();
        let (rows, count) = (grouped(self.len() as u64), names + ignored.len() + 1);
        let _ = write!(
            text,
            "{}: {rows} rows, {} columns; predicting {} ",
            self.name,
            grouped(count as u64),
            target.name()
        );
        let _ = match target {
            Target::Number { learnt, .. } => {
                let trend = learnt.as_ref().and_then(|learnt| learnt.trend.as_ref());
                let by = trend.map(|trend| format!("; a line by {} is added", columns[trend.column].name));
                let what = match target.is_log() {
                    true => {
                        "squared error of its logarithm, since few values are very large; log=off for plain"
                    }
                    false => "squared error",
                };
                write!(text, "(a number: {what}{})", by.unwrap_or_default())
            }
            Target::Class {
                classes, positive, ..
            } if classes.len() == 2 => {
                write!(
                    text,
                    "({} or {}; positive: {})",
                    classes[0], classes[1], classes[*positive]
                )
            }
            Target::Class { classes, .. } => write!(text, "({} classes)", grouped(classes.len() as u64)),
        };
        let told = |kind: &str| {
            let all = columns.iter().map(|column| (column, read_as(column)));
            let of_kind = all.filter(|(_, (other, _))| *other == kind);
            of_kind
                .map(|(column, (_, size))| with_gaps(column, size))
                .collect::<Vec<_>>()
        };
        let ignored = ignored
            .iter()
            .zip(&self.examples)
            .map(|(column, example)| format!("{} ({}{})", column.name, column.why, such_as(example)));
        let dates = columns.chunk_by(|a, b| a.name == b.name).filter_map(dates);
        for (kind, names) in [
            ("number", told("number")),
            ("date", dates.collect()),
            ("category", told("category")),
            ("text", told("text")),
            ("ignored", ignored.collect::<Vec<_>>()),
        ] {
            if !names.is_empty() {
                let _ = write!(text, "\n  {kind:<9} {}", listed(&names));
            }
        }
        let [train, validation, test] = [&self.rows.train, &self.rows.validation, &self.rows.test];
        let [train, validation, test] = [train, validation, test].map(|part| grouped(part.len() as u64));
        let _ = write!(
            text,
            "\n{}: {train} train, {validation} validation, {test} test",
            self.divided
        );
        for note in &self.notes {
            let _ = write!(text, "\nwarning: {note}");
        }
        let lost = self.lost();
        if !lost.is_empty() {
            let _ = write!(
                text,
                "\nwarning: no value of {} occurs often enough to learn from",
                listed(&lost)
            );
        }
        let leaks = self.leaks();
        if !leaks.is_empty() {
            let _ = write!(
                text,
                "\nwarning: the answer can be told from {} alone. If it is not known beforehand, ignore it: columns.{}=ignore",
                listed(&leaks),
                leaks[0]
            );
        }
        if !self.skipped.is_empty() {
            let _ = write!(text, "\nskipped {} rows:", grouped(self.skipped.rows()));
            for fault in self.skipped.iter().take(20) {
                let _ = write!(text, "\n  {fault}");
            }
        }
        text
    }

    /// Columns with categories none of which occurs often enough.
    fn lost(&self) -> Vec<&str> {
        let is_lost = |kind: &ColumnKind| matches!(kind, ColumnKind::Category(all) if all.values.is_empty() && all.rare > 0);
        let lost = self.schema.columns.iter().filter(|column| is_lost(&column.kind));
        lost.map(|column| column.name.as_str()).collect()
    }

    /// Columns that tell the answer alone, as one does that was filled in after the fact.
    pub fn leaks(&self) -> Vec<&str> {
        let train = &self.rows.train;
        let targets: Vec<f64> = train.iter().map(|row| self.target(*row)).collect();
        // Among a few rows some column always fits.
        let enough = match &self.schema.target {
            Target::Class { counts, .. } => counts.iter().all(|count| *count >= LEAK_CLASS),
            Target::Number { .. } => true,
        };
        if train.len() < LEAK_ROWS || !enough {
            return Vec::new();
        }
        let tells = |(at, column): &(usize, &Column)| {
            if matches!(column.kind, ColumnKind::Text(_)) {
                return false;
            }
            let missing = match &column.kind {
                ColumnKind::Number(numbers) if self.schema.target.outputs() == 1 => f64::from(numbers.mean),
                _ => f64::MIN,
            };
            let cells = train.iter().map(|row| self.cells(*row).values[*at]);
            let cells: Vec<f64> = cells
                .map(|cell| if cell.is_nan() { missing } else { cell })
                .collect();
            let is_number = matches!(column.kind, ColumnKind::Number(_));
            match &self.schema.target {
                Target::Class { classes, .. } if classes.len() == 2 => {
                    let is: Vec<bool> = targets.iter().map(|class| *class == 1.0).collect();
                    let scores = if is_number { cells } else { means(&cells, &targets) };
                    let area = metrics::auc("auc", &scores, &is).value;
                    area.max(1.0 - area) > LEAK
                }
                // What a line through a number explains, or through its ranks, or the mean of each category.
                Target::Number { .. } => {
                    let scores = if is_number { cells } else { means(&cells, &targets) };
                    explained(&scores, &targets) > LEAK || explained(&ranks(&scores), &ranks(&targets)) > LEAK
                }
                Target::Class { classes, .. } => {
                    borders(&cells, &targets) as f64
                        <= classes.len() as f64 + (1.0 - LEAK) * targets.len() as f64
                        || is_function(&cells, &targets)
                }
            }
        };
        let columns = self.schema.columns.iter().enumerate();
        let mut leaks: Vec<&str> = columns
            .filter(tells)
            .map(|(_, column)| column.name.as_str())
            .collect();
        leaks.dedup();
        leaks
    }
}

/// How often the class changes where rows lie by this number, and one more: as many as there are classes if each has a range of its
/// own. Rows of one value that are of another class than most of them count, too.
fn borders(cells: &[f64], classes: &[f64]) -> usize {
    let mut rows: Vec<(f64, f64)> = cells.iter().copied().zip(classes.iter().copied()).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (mut runs, mut before, mut others) = (0, f64::NAN, 0);
    for same in rows.chunk_by(|a, b| a.0 == b.0) {
        let of_class = same.chunk_by(|a, b| a.1 == b.1);
        let most = of_class.max_by_key(|rows| rows.len()).expect("a chunk has rows");
        others += same.len() - most.len();
        runs += usize::from(most[0].1 != before);
        before = most[0].1;
    }
    runs + others
}

/// Whether each value of a column that repeats its values goes with one class, but for a few mistakes.
fn is_function(cells: &[f64], classes: &[f64]) -> bool {
    let mut values = BTreeMap::<u64, BTreeMap<u64, usize>>::new();
    for (cell, class) in cells.iter().zip(classes) {
        let of = values.entry(cell.to_bits()).or_default();
        *of.entry(class.to_bits()).or_default() += 1;
    }
    let right: usize = values.values().filter_map(|of| of.values().max()).sum();
    right as f64 > LEAK * cells.len() as f64 && values.len() * REPEATS <= cells.len()
}

/// The kind of a column in a word, and how many values it knows.
fn read_as(column: &Column) -> (&'static str, String) {
    match &column.kind {
        _ if matches!(column.format, Format::Dates(..)) => ("date", String::new()),
        ColumnKind::Number(_) => match &column.format {
            Format::Numbers(notation) if !notation.unit.is_empty() => {
                ("number", format!("in {}", notation.unit))
            }
            _ => ("number", String::new()),
        },
        ColumnKind::Category(all) if all.rare > 0 => {
            let (kept, rare) = (all.values.len(), grouped(all.rare));
            ("category", format!("{kept}, {rare} rare"))
        }
        ColumnKind::Category(all) => ("category", all.values.len().to_string()),
        ColumnKind::Text(words) => {
            let terms = grouped(words.terms.len() as u64);
            ("text", format!("{terms} words and pairs"))
        }
    }
}

/// A column of dates: from when to when, and what is read of them. None if it is another column.
fn dates(parts: &[Column]) -> Option<String> {
    let (Format::Dates(..), ColumnKind::Number(days)) = (&parts[0].format, &parts[0].kind) else {
        return None;
    };
    let [first, .., last] = days.octiles.map(|day| Moment::told(day.into()));
    let name = |column: &Column| match column.format {
        Format::Dates(_, part) => format!("{part:?}").to_lowercase(),
        _ => String::new(),
    };
    let names: Vec<String> = parts.iter().map(name).collect();
    Some(with_gaps(
        &parts[0],
        format!("{first} to {last} in training, as {}", names.join(", ")),
    ))
}

/// A column's name, with the values that it knows and the cells that are missing, if there are any.
fn with_gaps(column: &Column, size: String) -> String {
    let gaps = match column.missing {
        0 => String::new(),
        missing => format!("{} missing", grouped(missing)),
    };
    let more: Vec<String> = [size, gaps].into_iter().filter(|part| !part.is_empty()).collect();
    match more.is_empty() {
        true => column.name.clone(),
        false => format!("{} ({})", column.name, more.join(", ")),
    }
}

/// An AUC above this, or a share of the variance, by one column alone is too good to be true; a guess.
const LEAK: f64 = 0.999;

/// With fewer training rows, or rows of a class, a column may tell the answer by chance; guesses.
const LEAK_ROWS: usize = 30;
const LEAK_CLASS: u64 = 5;

/// How often the values of a column repeat, on average, that are compared one by one; a guess.
const REPEATS: usize = 5;

/// For each row the mean target of its category; of two classes that is the share for which the answer is yes.
fn means(categories: &[f64], targets: &[f64]) -> Vec<f64> {
    let mut sums = BTreeMap::<u64, (f64, f64)>::new();
    for (category, target) in categories.iter().zip(targets) {
        let (sum, count) = sums.entry(category.to_bits()).or_default();
        *sum += target;
        *count += 1.0;
    }
    let mean = |category: &f64| {
        let (sum, count) = sums[&category.to_bits()];
        sum / count
    };
    categories.iter().map(mean).collect()
}

/// The place of each number among all by size; equal ones share the mean of theirs.
fn ranks(numbers: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
    let (mut ranks, mut before) = (vec![0.0; numbers.len()], 0);
    for same in order.chunk_by(|a, b| numbers[*a] == numbers[*b]) {
        let mean = before as f64 + (same.len() - 1) as f64 / 2.0;
        same.iter().for_each(|row| ranks[*row] = mean);
        before += same.len();
    }
    ranks
}

/// The square of the correlation; 0 if there is none.
fn explained(scores: &[f64], targets: &[f64]) -> f64 {
    let ((of_scores, spread), (of_targets, wide)) = (mean_and_deviation(scores), mean_and_deviation(targets));
    let both = scores.iter().zip(targets);
    let products: f64 = both
        .map(|(score, target)| (score - of_scores) * (target - of_targets))
        .sum();
    let correlation = products / scores.len().max(1) as f64 / spread / wide;
    match correlation.is_finite() {
        true => correlation * correlation,
        false => 0.0,
    }
}
