//! Computes the gradient of a few samples of a model from a file, and writes it for other programs.

use annulus_graph::{GraphError, PassOptions, Role, named_gradients};
use burn::tensor::Tensor;
use safetensors::tensor::{Dtype, TensorView};
use std::io::Write as _;
use std::path::Path;

use crate::device::{DeviceChoice, DeviceError, open};
use crate::task::{Data, TaskError};
use crate::tasks::graph::{ModelFile, ModelFileConfig};
use annulus_net::files::{FileError, write_atomic};

/// What to compute.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// How many samples, from the first on.
    pub samples: usize,
    /// Where.
    pub device: DeviceChoice,
    /// Whether batch norm uses the statistics of the samples. Dropout is off either way.
    pub training: bool,
    /// Whether to take a file that was made for inference as it is.
    pub as_is: bool,
}

/// What was computed.
#[derive(Debug)]
pub struct Done {
    /// The mean loss.
    pub loss: f32,
    /// The samples that there were.
    pub samples: usize,
    /// The device's name.
    pub device: String,
}

/// Why there is no gradient.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradientError {
    /// The folder cannot be read, or its model cannot be trained.
    #[error("{0}")]
    Task(TaskError),
    /// There is no such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model does not run on these samples.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device's memory cannot be read, or the numbers cannot be written.
    #[error("cannot take the numbers from the device: {0}")]
    Numbers(String),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Computes the gradient of an exported folder's first samples, and writes a safetensors file: the gradient of each trained
/// parameter under its name, `loss`, and `logits` if the model has them.
///
/// # Errors
///
/// If the folder cannot be read, the model does not run, or the file cannot be written.
pub fn gradient(folder: &Path, asked: Asked, out: &Path) -> Result<Done, GradientError> {
    let config = ModelFileConfig {
        held_out: 0.0,
        as_is: asked.as_is,
        ..ModelFileConfig::default()
    };
    let data = Data::open(folder).map_err(|error| GradientError::Task(error.into()))?;
    let file = ModelFile::read(&config, &data).map_err(GradientError::Task)?;
    let opened = open(asked.device)?;
    let device = opened.device.autodiff();
    let model = file.graph().model(&device)?;
    let batch = file.first(asked.samples);
    let options = PassOptions {
        training: asked.training,
        dropout: None,
    };
    let output = file.graph().run(&model, &batch.inputs, &device, options)?;
    let gradients = output.loss.backward();
    let mut tensors = Vec::new();
    for (parameter, own) in file
        .graph()
        .parameters()
        .iter()
        .zip(named_gradients(&model, &gradients))
    {
        if parameter.role == Role::Trained {
            // As the state_dict has it: a module gives an axis to parameters that have none.
            let shape = parameter.shape().to_vec();
            // The loss may not depend on it.
            let zeros = || Ok(vec![0.0; shape.iter().product()]);
            let gradient = own.gradient.map_or_else(zeros, floats)?;
            tensors.push((own.name, shape, gradient));
        }
    }
    let loss = floats(output.loss.inner())?;
    tensors.push((apart("loss", &tensors), vec![1], loss.clone()));
    if let Some(logits) = output.logits {
        let shape = logits.shape().to_vec();
        tensors.push((apart("logits", &tensors), shape, floats(logits.flat().inner())?));
    }
    write(&tensors, out)?;
    Ok(Done {
        loss: loss[0],
        samples: batch.inputs[0].1.shape()[0],
        device: opened.name,
    })
}

/// A name, a shape and the elements.
type Named = (String, Vec<usize>, Vec<f32>);

/// This name, or with underscores behind it if a tensor has it.
fn apart(name: &str, tensors: &[Named]) -> String {
    let mut name = name.to_owned();
    while tensors.iter().any(|(taken, ..)| *taken == name) {
        name.push('_');
    }
    name
}

fn floats(tensor: Tensor<1>) -> Result<Vec<f32>, GradientError> {
    let read = tensor.into_data().try_to_vec::<f32>();
    read.map_err(|error| GradientError::Numbers(format!("{error:?}")))
}

fn write(tensors: &[Named], out: &Path) -> Result<(), GradientError> {
    let numbers = |error: safetensors::SafeTensorError| GradientError::Numbers(error.to_string());
    let mut views = Vec::with_capacity(tensors.len());
    for (name, shape, values) in tensors {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values));
        views.push((name, view.map_err(numbers)?));
    }
    let file = safetensors::serialize(views, None).map_err(numbers)?;
    Ok(write_atomic(out, |to| to.write_all(&file))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_called_loss_keeps_its_name() {
        let named = |name: &str| (name.to_owned(), vec![1], vec![0.0]);
        let tensors = [named("weight"), named("loss"), named("loss_")];
        assert_eq!(apart("loss", &tensors), "loss__");
        assert_eq!(apart("logits", &tensors), "logits");
    }
}
