//! Metrics of predicted numbers.

use super::{Metric, Z, half_of_mean, mean, variance_of_mean};

/// RMSE, MAE and R2 of at least one prediction.
///
/// The interval of the RMSE follows from that of the mean squared error by its derivative.
pub fn of_numbers(predicted: &[f64], actual: &[f64]) -> Vec<Metric> {
    let errors: Vec<f64> = predicted.iter().zip(actual).map(|(p, a)| (p - a).abs()).collect();
    let squares: Vec<f64> = errors.iter().map(|error| error * error).collect();
    let rmse = mean(&squares).sqrt();
    let half = Z * variance_of_mean(&squares).sqrt() / (2.0 * rmse);
    let middle = mean(actual);
    let spread: f64 = actual
        .iter()
        .map(|value| (value - middle) * (value - middle))
        .sum();
    vec![
        Metric::within("rmse", rmse, half, (0.0, f64::INFINITY)),
        Metric::within("mae", mean(&errors), half_of_mean(&errors), (0.0, f64::INFINITY)),
        Metric::new("r2", 1.0 - squares.iter().sum::<f64>() / spread),
    ]
}
