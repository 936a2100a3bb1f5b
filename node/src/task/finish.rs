//! From a trained model to predictions: [`Finished`], what a model file carries, and [`Predict`], what is made of it.
//!
//! Both work on the host in one fixed order, without a device, so that a file predicts the same bytes on every machine.

use super::error::TaskError;
use annulus_core::Layout;
use annulus_graph::Packing;
pub use annulus_table::Predicted;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A trained model's tensors by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors(BTreeMap<String, Vec<f32>>);

impl Tensors {
    /// The tensors of a flat vector.
    pub fn of(layout: &Layout, params: &[f32]) -> Self {
        let tensor = |tensor: &annulus_core::TensorSpec| {
            let values = &params[tensor.offset..tensor.offset + tensor.len()];
            (tensor.name.clone(), values.to_vec())
        };
        layout.tensors.iter().map(tensor).collect()
    }

    /// The flat vector of a model with this layout.
    ///
    /// # Errors
    ///
    /// If a tensor is missing or has another size.
    pub fn flat(&self, layout: &Layout) -> Result<Vec<f32>, TaskError> {
        let mut values = Vec::with_capacity(layout.len);
        for tensor in &layout.tensors {
            let own = self.get(&tensor.name).filter(|own| own.len() == tensor.len());
            let unfit = || {
                let (name, shape) = (&tensor.name, &tensor.shape);
                format!(
                    "the model file has no {name} of shape {shape:?}, which its settings ask for: export it again"
                )
            };
            values.extend_from_slice(own.ok_or_else(unfit)?);
        }
        Ok(values)
    }

    /// A tensor's numbers, row by row.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

impl FromIterator<(String, Vec<f32>)> for Tensors {
    fn from_iter<I: IntoIterator<Item = (String, Vec<f32>)>>(tensors: I) -> Self {
        Self(tensors.into_iter().collect())
    }
}

/// A tensor of a model file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileTensor {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its numbers, row by row.
    pub values: Vec<f32>,
    /// The blocks in which the file has them, if it is quantized.
    pub packed: Option<(Packing, Vec<u8>)>,
}

/// A trained model's judgement.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// What the model file carries beside [`Task::metadata`](crate::task::Task::metadata).
    pub metadata: Vec<(&'static str, String)>,
    /// The judgement in lines, for people.
    pub report: String,
    /// The model card: what the model does and how well, as Markdown.
    pub card: String,
}

/// A judgement on rows of a file.
#[derive(Clone, Debug)]
pub struct Scored {
    /// In lines, for people.
    pub report: String,
    /// The metrics by name, as JSON.
    pub metrics: Value,
}

/// A trained model that answers new data.
pub trait Predict: Send + Sync {
    /// Answers a file of rows by a file of rows. `name` is for messages, and its ending tells the format.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or lacks something: all that is wrong.
    fn predict(&self, name: &str, rows: &[u8]) -> Result<Predicted, TaskError>;

    /// Judges the model on the rows of a file that also tells the right answers, and tells what it did not know.
    ///
    /// # Errors
    ///
    /// If the model reads no rows, or the file cannot be used: all that is wrong.
    fn score(&self, name: &str, _rows: &[u8]) -> Result<(Scored, Vec<String>), TaskError> {
        Err(
            format!("{name}: this model reads no rows with right answers, so it cannot be judged by a file")
                .into(),
        )
    }

    /// Answers rows of CSV that somebody has sent.
    ///
    /// # Errors
    ///
    /// As [`predict`](Self::predict), or if the model reads no rows.
    fn answer_rows(&self, rows: &[u8]) -> Result<Predicted, TaskError> {
        self.predict("the request", rows)
    }

    /// Answers rows as JSON: an object, or an array of objects.
    ///
    /// # Errors
    ///
    /// If a row lacks something or has something unknown.
    fn answer(&self, rows: &Value) -> Result<Value, TaskError>;

    /// What a row must have, as JSON.
    fn inputs(&self) -> Value;

    /// Answers all files of a folder by a file of rows.
    ///
    /// # Errors
    ///
    /// If the model reads no folders, or files cannot be used: all of them.
    fn predict_folder(&self, folder: &Path) -> Result<Predicted, TaskError> {
        Err(format!(
            "{} is a folder, and this model reads a file of rows: name one",
            folder.display()
        )
        .into())
    }

    /// Answers a file's bytes as JSON, where that is no text.
    ///
    /// # Errors
    ///
    /// If the model reads no such files, or this is none.
    fn answer_file(&self, bytes: &[u8]) -> Result<Value, TaskError> {
        let _ = bytes;
        Err("this model reads rows: send them as JSON, or as CSV with Content-Type: text/csv".into())
    }
}
