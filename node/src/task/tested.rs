//! A trained model's answers to the test part, by which two models are compared.

use burn::tensor::Tensor;

use super::error::TaskError;

/// A model's answers to some samples of the test part, and what is right.
#[derive(Clone, Debug, PartialEq)]
pub struct Tested {
    /// For each sample the natural logarithm of each class's probability, or one number.
    pub answers: Vec<f32>,
    /// What would have been right.
    pub right: Right,
}

/// The right answers to some samples, one for each.
#[derive(Clone, Debug, PartialEq)]
pub enum Right {
    /// The number of a class, from 0.
    Classes(Vec<usize>),
    /// A number.
    Numbers(Vec<f32>),
}

/// A model's answers to the test part, a piece at a time. Two models of a task give equally long pieces.
pub type TestPart<'a> = Box<dyn Iterator<Item = Result<Tested, TaskError>> + 'a>;

/// The numbers of a tensor on a processor.
///
/// # Errors
///
/// If they cannot be read.
pub fn floats<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, TaskError> {
    let numbers = tensor.into_data().try_to_vec::<f32>();
    numbers.map_err(|error| format!("the model's answers cannot be read: {error:?}").into())
}

/// Logarithms of probabilities, none of which is 0.
pub fn logarithms(probabilities: &[f64]) -> impl Iterator<Item = f32> {
    // As scikit-learn does for f64.
    probabilities
        .iter()
        .map(|probability| libm::log(probability.max(f64::EPSILON)) as f32)
}
