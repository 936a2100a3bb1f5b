//! Rows and answers as JSON, for programs that ask over HTTP.

use super::Predictor;
use crate::cells::{Cells, Reader};
use crate::error::TableError;
use crate::metrics::likeliest;
use crate::number::{listed, not_a_number};
use crate::schema::{ColumnKind, Target};
use serde_json::{Map, Value, json};

/// An answer that is a class: the likeliest by the target's name, and the probability of each.
pub fn class_json(name: &str, classes: &[String], answer: &[f64]) -> Value {
    let each = classes.iter().zip(answer);
    let each: Map<String, Value> = each.map(|(class, p)| (class.clone(), json!(p))).collect();
    json!({name: classes[likeliest(answer)], "probabilities": each})
}

impl Predictor {
    /// Answers rows: an object by column name, or an array of such. A value is a text, a number, `true`, `false`, or null if it
    /// is not known. The answer has a `predictions` array with an object for each row.
    ///
    /// # Errors
    ///
    /// If a row lacks a column, names one that the model does not read, or has a word for a number. Columns that training
    /// ignored may be there, and the target.
    pub fn answer_json(&self, rows: &Value) -> Result<Value, TableError> {
        let one = std::slice::from_ref(rows);
        let rows = rows.as_array().map_or(one, Vec::as_slice);
        let answers: Result<Vec<Value>, TableError> = rows
            .iter()
            .enumerate()
            .map(|(at, row)| self.row(at, row))
            .collect();
        Ok(json!({"predictions": answers?}))
    }

    /// What a row must have: for each input its name, its kind, and the values of a category.
    pub fn inputs_json(&self) -> Value {
        let column = |column: &crate::schema::Column| match &column.kind {
            ColumnKind::Number(_) => json!({"name": column.name, "kind": "number"}),
            ColumnKind::Category(categories) => {
                json!({"name": column.name, "kind": "category", "values": categories.values})
            }
            ColumnKind::Text(_) => json!({"name": column.name, "kind": "text"}),
        };
        let inputs: Vec<Value> = self.schema.columns.iter().map(column).collect();
        json!({"target": self.schema.target.name(), "inputs": inputs})
    }

    fn row(&self, at: usize, row: &Value) -> Result<Value, TableError> {
        let fail = |what: String| TableError::Other(format!("row {at}: {what}"));
        let row = row
            .as_object()
            .ok_or_else(|| fail("it must be an object with a value for each column".into()))?;
        self.check_names(row).map_err(fail)?;
        let (reader, mut cells) = (Reader::of(&self.schema), Cells::default());
        for (at, column) in self.schema.columns.iter().enumerate() {
            let known = match row.get(&column.name) {
                None => {
                    return Err(fail(format!(
                        "the column {:?} is missing; null says that it is not known",
                        column.name
                    )));
                }
                Some(Value::Null) => {
                    cells.push_missing();
                    true
                }
                Some(Value::String(text)) => reader.read(at, text.trim(), &mut cells),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => {
                    reader.read(at, &value.to_string(), &mut cells)
                }
                Some(Value::Array(_) | Value::Object(_)) => false,
            };
            let value = &row[&column.name];
            if !known {
                let why = match value {
                    Value::String(text) => not_a_number(text),
                    value => not_a_number(&value.to_string()),
                };
                return Err(fail(format!("column {}: {why}", column.name)));
            }
        }
        let (answer, name) = (
            self.answer(cells.row(0, self.schema.columns.len())),
            self.schema.target.name(),
        );
        Ok(match &self.schema.target {
            Target::Number { .. } => json!({name: answer[0] as f32}),
            Target::Class { classes, .. } => class_json(name, classes, &answer),
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
