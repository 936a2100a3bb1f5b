//! Tells what was guessed of a table, and warns of columns that are too good to be true.

use super::Table;
use crate::metrics;
use crate::number::grouped;
use crate::schema::{Column, ColumnKind, Schema, Target};
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
        let (rows, count) = (grouped(self.len() as u64), columns.len() + ignored.len() + 1);
        let _ = write!(
            text,
            "{}: {rows} rows, {count} columns; predicting {} ",
            self.name,
            target.name()
        );
        let _ = match target {
            Target::Number { .. } => write!(text, "(a number: squared error)"),
            Target::Class {
                classes, positive, ..
            } if classes.len() == 2 => {
                write!(
                    text,
                    "({} or {}; positive: {})",
                    classes[0], classes[1], classes[*positive]
                )
            }
            Target::Class { classes, .. } => write!(text, "({} classes)", classes.len()),
        };
        let told = |of: &dyn Fn(&Column) -> Option<String>| columns.iter().filter_map(of).collect::<Vec<_>>();
        let with_gaps = |column: &Column, size: &str| {
            let gaps = match column.missing {
                0 => String::new(),
                missing => format!("{} missing", grouped(missing)),
            };
            let more = [size, &gaps]
                .iter()
                .filter(|part| !part.is_empty())
                .copied()
                .collect::<Vec<_>>()
                .join(", ");
            match more.is_empty() {
                true => column.name.clone(),
                false => format!("{} ({more})", column.name),
            }
        };
        let numbers = told(&|column| match &column.kind {
            ColumnKind::Number(_) => Some(with_gaps(column, "")),
            ColumnKind::Category(_) => None,
        });
        let categories = told(&|column| match &column.kind {
            ColumnKind::Number(_) => None,
            ColumnKind::Category(all) if all.rare > 0 => {
                let (kept, rare) = (all.values.len(), grouped(all.rare));
                Some(with_gaps(column, &format!("{kept}, {rare} rare")))
            }
            ColumnKind::Category(all) => Some(with_gaps(column, &all.values.len().to_string())),
        });
        let ignored = ignored
            .iter()
            .map(|column| format!("{} ({})", column.name, column.why));
        for (kind, names) in [
            ("number", numbers),
            ("category", categories),
            ("ignored", ignored.collect::<Vec<_>>()),
        ] {
            if !names.is_empty() {
                let _ = write!(text, "\n  {kind:<9} {}", names.join(", "));
            }
        }
        let [train, validation, test] = [&self.rows.train, &self.rows.validation, &self.rows.test];
        let [train, validation, test] = [train, validation, test].map(|part| grouped(part.len() as u64));
        let _ = write!(
            text,
            "\n{}: {train} train, {validation} validation, {test} test",
            self.divided
        );
        let leaks = self.leaks();
        if !leaks.is_empty() {
            let _ = write!(
                text,
                "\nwarning: the answer can be told from {} alone. If it is not known beforehand, ignore it: columns.{}=ignore",
                leaks.join(", "),
                leaks[0]
            );
        }
        if !self.skipped.is_empty() {
            let _ = write!(text, "\nskipped {} rows:", grouped(self.skipped.len() as u64));
            for fault in self.skipped.iter().take(20) {
                let _ = write!(text, "\n  {fault}");
            }
        }
        text
    }

    /// Columns that tell two classes apart alone, as one does that was filled in after the fact.
    pub fn leaks(&self) -> Vec<&str> {
        let (train, target) = (&self.rows.train, &self.schema.target);
        if target.outputs() != 2 {
            return Vec::new();
        }
        let is: Vec<bool> = train.iter().map(|row| self.target(*row) == 1.0).collect();
        let tells = |(at, column): &(usize, &Column)| {
            let cells = train.iter().map(|row| self.cells(*row)[*at]);
            let cells = cells.map(|cell| if cell.is_nan() { f64::MIN } else { cell });
            let scores: Vec<f64> = match &column.kind {
                ColumnKind::Number(_) => cells.collect(),
                ColumnKind::Category(_) => shares(&cells.collect::<Vec<_>>(), &is),
            };
            let area = metrics::auc("auc", &scores, &is).value;
            area.max(1.0 - area) > LEAK
        };
        let columns = self.schema.columns.iter().enumerate();
        columns
            .filter(tells)
            .map(|(_, column)| column.name.as_str())
            .collect()
    }
}

/// An AUC above this, by one column alone, is too good to be true; a guess.
const LEAK: f64 = 0.999;

/// For each category the share of its rows for which the answer is yes.
fn shares(categories: &[f64], is: &[bool]) -> Vec<f64> {
    let mut counts = BTreeMap::<u64, (f64, f64)>::new();
    for (category, is) in categories.iter().zip(is) {
        let (yes, all) = counts.entry(category.to_bits()).or_default();
        *yes += f64::from(u8::from(*is));
        *all += 1.0;
    }
    let share = |category: &f64| {
        let (yes, all) = counts[&category.to_bits()];
        yes / all
    };
    categories.iter().map(share).collect()
}
