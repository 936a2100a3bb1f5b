//! A model's scores: [`Scores`] on the device, [`Eval`] as numbers.

use burn::tensor::Tensor;

/// The result of [`Task::evaluate`](crate::task::Task::evaluate), still on the device: tensors of one element.
///
/// ```
/// use annulus::Scores;
/// use annulus::burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let loss = Tensor::<1>::from_floats([0.25], &device);
/// // A task without right answers has a loss alone.
/// let scores = Scores::from(loss.clone());
/// assert!(scores.accuracy.is_none());
/// // One with answers says what share of them is right.
/// let accuracy = Some(Tensor::from_floats([0.9], &device));
/// let scores = Scores { loss, accuracy };
/// assert_eq!(scores.loss.into_scalar::<f32>(), 0.25);
/// ```
#[derive(Debug)]
pub struct Scores {
    /// Mean loss.
    pub loss: Tensor<1>,
    /// Share of right answers, 0 to 1, for tasks that have answers.
    pub accuracy: Option<Tensor<1>>,
}

/// Scores with only a loss.
impl From<Tensor<1>> for Scores {
    fn from(loss: Tensor<1>) -> Self {
        Self { loss, accuracy: None }
    }
}

/// Scores as numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eval {
    /// Mean loss.
    pub loss: f32,
    /// Share of right answers, 0 to 1.
    pub accuracy: Option<f32>,
}
