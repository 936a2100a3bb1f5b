//! Metrics of a probability for one of two classes.

use super::{Metric, Z, f1, log_loss, mean, share, variance_of_mean};

/// Accuracy, balanced accuracy, F1, ROC AUC, average precision and log loss, of at least one row. `probability` and `actual`
/// describe the positive class, which is predicted above the threshold. If other rows have told which threshold gives the best F1:
/// what it gives here.
pub fn of_two_classes(
    probability: &[f64],
    actual: &[bool],
    threshold: f64,
    best: Option<f64>,
) -> Vec<Metric> {
    let rows = || probability.iter().zip(actual);
    let count_above = |threshold: f64, wanted: &dyn Fn(bool, bool) -> bool| {
        rows().filter(|(p, a)| wanted(**p > threshold, **a)).count()
    };
    let count = |wanted: &dyn Fn(bool, bool) -> bool| count_above(threshold, wanted);
    let (right, positive) = (count(&|p, a| p && a), count(&|_, a| a));
    let (right_no, negative) = (count(&|p, a| !p && !a), actual.len() - positive);
    let recalls = [(right, positive), (right_no, negative)].map(|(right, of)| right as f64 / of as f64);
    let of_right: Vec<f64> = rows().map(|(p, a)| if *a { *p } else { 1.0 - p }).collect();
    let mut metrics = vec![
        share("accuracy", right + right_no, actual.len()),
        Metric::new("balanced_accuracy", mean(&recalls)),
        Metric::new("f1", f1(right, count(&|p, _| p) + positive)),
        auc("auc", probability, actual),
        Metric::new(
            "average_precision",
            Sorted::of(probability, actual).average_precision(),
        ),
        log_loss(&of_right),
    ];
    if let Some(best) = best {
        let (right, said) = (count_above(best, &|p, a| p && a), count_above(best, &|p, _| p));
        metrics.push(Metric::new("best_f1", f1(right, said + positive)));
        metrics.push(Metric::new("threshold", best));
    }
    metrics
}

/// The threshold above which F1 is best; of equal ones the highest. It lies in the middle between two rows, where it suits others
/// best.
pub(crate) fn best_threshold(probability: &[f64], actual: &[bool]) -> f64 {
    let sorted = Sorted::of(probability, actual);
    let least = sorted.least_at_best_f1();
    let below = sorted
        .steps
        .iter()
        .map(|(probability, ..)| *probability)
        .find(|other| *other < least);
    (least + below.unwrap_or(0.0)) / 2.0
}

/// The area under the ROC curve with DeLong's interval (1988): the share of pairs in the right order, ties as halves.
pub(crate) fn auc(name: &str, score: &[f64], actual: &[bool]) -> Metric {
    let of = |class: bool| {
        let mut scores: Vec<f64> = score
            .iter()
            .zip(actual)
            .filter(|(_, a)| **a == class)
            .map(|(s, _)| *s)
            .collect();
        scores.sort_by(f64::total_cmp);
        scores
    };
    let (positive, negative) = (of(true), of(false));
    // For each score the share of the others below it.
    let above = |scores: &[f64], others: &[f64]| -> Vec<f64> {
        let place = |score: &f64| {
            let (below, not_above) = (
                others.partition_point(|other| other < score),
                others.partition_point(|other| other <= score),
            );
            (below + not_above) as f64 / 2.0 / others.len() as f64
        };
        scores.iter().map(place).collect()
    };
    let (of_positive, of_negative) = (above(&positive, &negative), above(&negative, &positive));
    let variance = variance_of_mean(&of_positive) + variance_of_mean(&of_negative);
    Metric::within(name, mean(&of_positive), Z * variance.sqrt(), (0.0, 1.0))
}

/// Rows from the highest probability to the lowest, those with equal ones together.
struct Sorted {
    /// Probability, positive rows and all rows down to it.
    steps: Vec<(f64, usize, usize)>,
    positive: usize,
}

impl Sorted {
    fn of(probability: &[f64], actual: &[bool]) -> Self {
        let mut rows: Vec<(f64, bool)> = probability.iter().copied().zip(actual.iter().copied()).collect();
        rows.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut steps: Vec<(f64, usize, usize)> = Vec::new();
        let (mut positive, mut all) = (0, 0);
        for (probability, actual) in rows {
            positive += usize::from(actual);
            all += 1;
            match steps.last_mut() {
                Some(step) if step.0 == probability => *step = (probability, positive, all),
                _ => steps.push((probability, positive, all)),
            }
        }
        Self { steps, positive }
    }

    /// The sum of precision times gain in recall.
    fn average_precision(&self) -> f64 {
        let mut before = 0;
        let mut sum = 0.0;
        for (_, positive, all) in &self.steps {
            sum += (positive - before) as f64 / self.positive as f64 * *positive as f64 / *all as f64;
            before = *positive;
        }
        sum
    }

    /// The least probability that is positive where F1 is best; of equally good ones the highest.
    fn least_at_best_f1(&self) -> f64 {
        let (mut best, mut least) = (0.0, 1.0);
        for (probability, positive, all) in &self.steps {
            let found = f1(*positive, all + self.positive);
            if found > best {
                (best, least) = (found, *probability);
            }
        }
        least
    }
}
