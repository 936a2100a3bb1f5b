//! Judges predictions: metrics with 95 % intervals, in f64 and in the order of rows.
//!
//! A name means the same in the report, in a model file and in events.

mod classes;
mod numbers;
mod two;

pub use classes::{confusion, likeliest, of_classes};
pub use numbers::of_numbers;
pub use two::of_two_classes;
pub(crate) use two::{auc, best_threshold};

use serde::{Deserialize, Serialize};

/// A metric of some predictions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name, such as `accuracy`.
    pub name: String,
    /// Its value; null in JSON if the rows do not define one.
    pub value: f64,
    /// The 95 % interval, where there is a formula for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
}

impl Metric {
    fn new(name: &str, value: f64) -> Self {
        let interval = None;
        Self {
            name: name.to_owned(),
            value,
            interval,
        }
    }

    /// With an interval of this half-width, cut off at what is possible.
    fn within(name: &str, value: f64, half: f64, (least, most): (f64, f64)) -> Self {
        let interval = half
            .is_finite()
            .then(|| ((value - half).max(least), (value + half).min(most)));
        Self {
            name: name.to_owned(),
            value,
            interval,
        }
    }
}

/// The 97.5 % quantile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The least probability whose logarithm is taken, as scikit-learn does for f64.
const LEAST: f64 = f64::EPSILON;

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Half of the interval of a mean: normal, with the sample's variance.
fn half_of_mean(values: &[f64]) -> f64 {
    Z * variance_of_mean(values).sqrt()
}

/// The variance of a mean, from the sample's variance; not a number for less than two values.
fn variance_of_mean(values: &[f64]) -> f64 {
    let (mean, count) = (mean(values), values.len() as f64);
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    squares / (count - 1.0) / count
}

/// The share of right answers, with Wilson's interval.
fn share(name: &str, right: usize, count: usize) -> Metric {
    let (share, count) = (right as f64 / count as f64, count as f64);
    let widened = 1.0 + Z * Z / count;
    let middle = (share + Z * Z / (2.0 * count)) / widened;
    let half = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt() / widened;
    let interval = Some((middle - half, middle + half));
    Metric {
        name: name.to_owned(),
        value: share,
        interval,
    }
}

/// The mean of the negative logarithms of the right classes' probabilities.
fn log_loss(right: &[f64]) -> Metric {
    let losses: Vec<f64> = right
        .iter()
        .map(|p| -libm::log(p.clamp(LEAST, 1.0 - LEAST)))
        .collect();
    Metric::within(
        "log_loss",
        mean(&losses),
        half_of_mean(&losses),
        (0.0, f64::INFINITY),
    )
}

/// `2 a / b`, which is F1 of `a` right answers among `b` predicted or actual ones; 0 if there are none.
fn f1(right: usize, either: usize) -> f64 {
    if either == 0 {
        0.0
    } else {
        2.0 * right as f64 / either as f64
    }
}

#[cfg(test)]
mod tests;
