//! Rows and answers as JSON, for programs that ask over HTTP.

use super::{Predictor, Unseen, wrong};
use crate::cells::{Cells, Found, Reader};
use crate::error::TableError;
use crate::number::listed;
use crate::schema::{Column, ColumnKind, DatePart, Format, Target};
use serde_json::{Map, Value, json};

/// An answer that is a class: by the target's name, and the probability of each.
pub fn class_json(name: &str, (classes, class): (&[String], usize), answer: &[f64]) -> Value {
    let each = classes.iter().zip(answer);
    let each: Map<String, Value> = each.map(|(class, p)| (class.clone(), json!(p))).collect();
    json!({name: classes[class], "probabilities": each})
}

impl Predictor {
    /// Answers rows: an object by column name, or an array of such. A value is a text, a number, `true`, `false`, or null if it
    /// is not known. The answer has a `predictions` array with an object for each row, and `warnings` where values are none that the
    /// model learnt.
    ///
    /// # Errors
    ///
    /// If a row lacks a column, names one that the model does not read, or has a word for a number. Columns that training
    /// ignored may be there, and the target.
    pub fn answer_json(&self, rows: &Value) -> Result<Value, TableError> {
        let one = std::slice::from_ref(rows);
        let rows = rows.as_array().map_or(one, Vec::as_slice);
        let mut unseen = Unseen::default();
        let answers: Result<Vec<Value>, TableError> = rows
            .iter()
            .enumerate()
            .map(|(at, row)| self.row(at, row, &mut unseen))
            .collect();
        let mut answer = json!({"predictions": answers?});
        let warnings = unseen.told();
        if !warnings.is_empty() {
            answer["warnings"] = json!(warnings);
        }
        Ok(answer)
    }

    /// What a row must have: for each input its name, its kind, and the values of a category.
    pub fn inputs_json(&self) -> Value {
        let column = |column: &Column| match &column.kind {
            _ if matches!(column.format, Format::Dates(..)) => json!({"name": column.name, "kind": "date"}),
            ColumnKind::Number(_) => json!({"name": column.name, "kind": "number"}),
            ColumnKind::Category(categories) => {
                json!({"name": column.name, "kind": "category", "values": categories.values})
            }
            ColumnKind::Text(_) => json!({"name": column.name, "kind": "text"}),
        };
        // Of the parts of a date the first stands for all.
        let is_part = |column: &&Column| {
            !matches!(column.format, Format::Dates(..)) || column.format.is_part(DatePart::Days)
        };
        let inputs: Vec<Value> = self.schema.columns.iter().filter(is_part).map(column).collect();
        json!({"target": self.schema.target.name(), "inputs": inputs})
    }

    fn row(&self, at: usize, row: &Value, unseen: &mut Unseen) -> Result<Value, TableError> {
        let fail = |what: String| TableError::Other(format!("row {at}: {what}"));
        let row = row
            .as_object()
            .ok_or_else(|| fail("it must be an object with a value for each column".into()))?;
        self.check_names(row).map_err(fail)?;
        let (reader, mut cells) = (Reader::of(&self.schema), Cells::default());
        for (at, column) in self.schema.columns.iter().enumerate() {
            let Some(value) = row.get(&column.name) else {
                return Err(fail(format!(
                    "the column {:?} is missing; null says that it is not known",
                    column.name
                )));
            };
            let text = || value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match reader.read_json(at, value, &mut cells) {
                Found::Known => {}
                Found::Unseen => unseen.add(&column.name, &text()),
                Found::Wrong => {
                    return Err(fail(format!(
                        "column {}: {}",
                        column.name,
                        wrong(&column.format, &text())
                    )));
                }
            }
        }
        let (answer, name) = (
            self.answer(cells.row(0, self.schema.columns.len())),
            self.schema.target.name(),
        );
        Ok(match &self.schema.target {
            Target::Number { .. } => json!({name: answer[0] as f32}),
            Target::Class { classes, .. } => {
                let class = self.decision.class(&self.schema.target, &answer);
                class_json(name, (classes, class), &answer)
            }
        })
    }

    /// A column that nobody knows is a typing error more often than not.
    fn check_names(&self, row: &Map<String, Value>) -> Result<(), String> {
        let reads = || self.schema.columns.iter().map(|column| column.name.as_str());
        let passes = self.schema.ignored.iter().map(|column| column.name.as_str());
        let known: Vec<&str> = reads().chain(passes).chain([self.schema.target.name()]).collect();
        match row.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(format!(
                "there is no column {name:?}; the model reads {}",
                listed(&reads().collect::<Vec<_>>())
            )),
        }
    }
}
