//! A model's scores: [`Scores`] on the device, [`Eval`] as numbers.

use std::collections::BTreeMap;

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
/// assert!(scores.metrics.is_empty());
/// // One with answers says what share of them is right.
/// let accuracy = Tensor::from_floats([0.9], &device);
/// let scores = Scores::from(loss).with("accuracy", accuracy);
/// assert_eq!(scores.loss.into_scalar::<f32>(), 0.25);
/// ```
#[derive(Debug)]
pub struct Scores {
    /// Mean loss.
    pub loss: Tensor<1>,
    /// Named measures, for people: see [`Metrics`].
    pub metrics: Vec<(&'static str, Tensor<1>)>,
}

impl Scores {
    /// The scores with one more metric.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: Tensor<1>) -> Self {
        self.metrics.push((name, value));
        self
    }
}

/// Scores with only a loss.
impl From<Tensor<1>> for Scores {
    fn from(loss: Tensor<1>) -> Self {
        let metrics = Vec::new();
        Self { loss, metrics }
    }
}

/// Measures of quality besides the loss, by the field's names: `accuracy` (share of right answers, 0 to 1), `rmse`, `mae`
/// and `r2` (in the unit of what is predicted). Only finite values.
pub type Metrics = BTreeMap<String, f32>;

/// Scores as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Eval {
    /// Mean loss.
    pub loss: f32,
    /// Named measures.
    pub metrics: Metrics,
}

/// Metrics as people read them, each after a comma: `, accuracy 97.12 %, rmse 51400`.
#[cfg(feature = "native")]
pub(crate) fn in_words(metrics: &Metrics) -> String {
    let one = |(name, value): (&String, &f32)| match name.as_str() {
        "accuracy" => format!(", accuracy {:.2} %", 100.0 * value),
        _ => format!(", {name} {}", significant(*value)),
    };
    metrics.iter().map(one).collect()
}

/// A number in four significant digits, as far as these lie behind the point.
#[cfg(feature = "native")]
fn significant(value: f32) -> String {
    let before = value.abs().max(f32::MIN_POSITIVE).log10().floor() as i32;
    format!("{value:.*}", (3 - before).clamp(0, 9) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_told_in_words() {
        let metrics = [
            ("accuracy", 0.97123),
            ("mae", 0.0123456),
            ("rmse", 51_400.25),
            ("r2", 0.0),
        ];
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
        assert_eq!(
            in_words(&metrics),
            ", accuracy 97.12 %, mae 0.01235, r2 0.000000000, rmse 51400"
        );
    }
}
