//! What a trained model says of a picture of a digit: a PNG or JPEG file, written in dark on light or in light on dark.

use super::model::{Classifier, ModelKind};
use super::pictures::{CLASSES, SIDE};
use crate::task::{Predict, TaskError, Tensors, floats};
use crate::trainer::with_tensors;
use annulus_images::{Picture, decode, square};
use annulus_net::files::read_named;
use annulus_table::metrics::likeliest;
use annulus_table::{Predicted, class_json, softmax, write_class, write_field};
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The name of what is predicted.
const TARGET: &str = "digit";

/// Largest file that is read.
const LIMIT: usize = 64 << 20;

/// Most pixels of a picture.
const PIXELS: usize = 25_000_000;

/// Answers requests and files.
pub struct Answers {
    kind: ModelKind,
    hidden: usize,
    tensors: Tensors,
    classes: Vec<String>,
}

impl Answers {
    /// Of a model of this kind.
    ///
    /// # Errors
    ///
    /// If the tensors are not the model's.
    pub fn new(kind: ModelKind, hidden: usize, tensors: &Tensors) -> Result<Self, TaskError> {
        let answers = Self {
            kind,
            hidden,
            tensors: tensors.clone(),
            classes: (0..CLASSES).map(|digit| digit.to_string()).collect(),
        };
        answers.model()?;
        Ok(answers)
    }

    fn model(&self) -> Result<Classifier, TaskError> {
        let device = Device::flex();
        let model = Classifier::new(self.kind, self.hidden, &device);
        with_tensors(model, &self.tensors, &device)
    }

    /// The probability of each digit.
    fn of(&self, name: &str, bytes: &[u8]) -> Result<Vec<f64>, TaskError> {
        let picture = decode(bytes, PIXELS).map_err(|why| format!("{name}: {why}"))?;
        let input = TensorData::new(input(&picture), [1, SIDE * SIDE]);
        let logits = self.model()?.forward(Tensor::from_data(input, &Device::flex()));
        Ok(softmax(&floats(logits)?))
    }

    fn table(
        &self,
        pictures: impl Iterator<Item = (String, Result<Vec<u8>, TaskError>)>,
    ) -> Result<Predicted, TaskError> {
        let mut out = format!("file,{TARGET}_predicted");
        self.classes.iter().for_each(|class| {
            out.push(',');
            write_field(&mut out, &format!("{TARGET}_{class}"), b',');
        });
        out.push('\n');
        for (name, bytes) in pictures {
            let answer = self.of(&name, &bytes?)?;
            write_field(&mut out, &name, b',');
            out.push(',');
            write_class(&mut out, (&self.classes, likeliest(&answer)), &answer, b',');
            out.push('\n');
        }
        Ok(out.into())
    }
}

/// The picture as the model learnt from them: light on dark, from 0 to 1.
fn input(picture: &Picture) -> Vec<f32> {
    let grey = square(picture, SIDE, 1);
    // The border tells the ground.
    let is_border = |at: &usize| [0, SIDE - 1].contains(&(at % SIDE)) || [0, SIDE - 1].contains(&(at / SIDE));
    let border: Vec<usize> = (0..grey.len()).filter(is_border).collect();
    let sum: usize = border.iter().map(|at| usize::from(grey[*at])).sum();
    let is_light = sum > 127 * border.len();
    let value = |grey: u8| f32::from(if is_light { 255 - grey } else { grey }) / 255.0;
    grey.into_iter().map(value).collect()
}

/// The PNG and JPEG files of a folder, by name.
fn pictures(folder: &Path) -> Result<Vec<PathBuf>, TaskError> {
    let is_picture = |path: &PathBuf| {
        let ending = path
            .extension()
            .map(|ending| ending.to_string_lossy().to_lowercase());
        ending.is_some_and(|ending| ["png", "jpg", "jpeg"].contains(&&*ending))
    };
    let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files: Vec<PathBuf> = files.collect::<Result<_, std::io::Error>>()?;
    files.retain(is_picture);
    files.sort();
    match files.is_empty() {
        true => Err(format!("{} has no PNG or JPEG files", folder.display()).into()),
        false => Ok(files),
    }
}

/// The answer to rows.
const READS_PICTURES: &str = "this model reads pictures: send one with Content-Type: image/png or image/jpeg";

impl Predict for Answers {
    fn predict(&self, name: &str, picture: &[u8]) -> Result<Predicted, TaskError> {
        self.table([(name.to_owned(), Ok(picture.to_vec()))].into_iter())
    }

    fn answer_rows(&self, _rows: &[u8]) -> Result<Predicted, TaskError> {
        Err(READS_PICTURES.into())
    }

    fn answer(&self, _rows: &Value) -> Result<Value, TaskError> {
        Err(READS_PICTURES.into())
    }

    fn inputs(&self) -> Value {
        json!({"target": TARGET, "inputs": [{"name": "picture", "kind": "picture"}]})
    }

    fn predict_folder(&self, folder: &Path) -> Result<Predicted, TaskError> {
        let files = pictures(folder)?;
        self.table(files.iter().map(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            (name, read_named(path, LIMIT).map_err(Into::into))
        }))
    }

    fn answer_file(&self, picture: &[u8]) -> Result<Value, TaskError> {
        let answer = self.of("the picture", picture)?;
        Ok(json!({"predictions": [class_json(TARGET, (&self.classes, likeliest(&answer)), &answer)]}))
    }
}
