//! Metrics of probabilities for three classes or more.

use super::{Metric, auc, f1, log_loss, mean, share};

/// Accuracy, balanced accuracy, macro F1, AUC (mean of one class against the rest), and log loss, of at least one row.
/// `probability`: for each row one for each class. `actual`: the classes, by number.
pub fn of_classes(probability: &[Vec<f64>], actual: &[usize]) -> Vec<Metric> {
    let classes = probability[0].len();
    let table = confusion(probability.iter().map(|row| likeliest(row)), actual, classes);
    let right: usize = (0..classes).map(|class| table[class][class]).sum();
    let count = |class: usize| table[class].iter().sum::<usize>();
    let predicted = |class: usize| table.iter().map(|row| row[class]).sum::<usize>();
    // Classes that are in the rows; in the AUC, beside others.
    let there: Vec<usize> = (0..classes).filter(|class| count(*class) > 0).collect();
    let means = |of: &dyn Fn(usize) -> f64| mean(&there.iter().map(|class| of(*class)).collect::<Vec<_>>());
    let recall = |class: usize| table[class][class] as f64 / count(class) as f64;
    let area = |class: usize| {
        let scores: Vec<f64> = probability.iter().map(|row| row[class]).collect();
        let is: Vec<bool> = actual.iter().map(|of| *of == class).collect();
        auc("auc", &scores, &is).value
    };
    let of_right: Vec<f64> = probability
        .iter()
        .zip(actual)
        .map(|(row, class)| row[*class])
        .collect();
    vec![
        share("accuracy", right, actual.len()),
        Metric::new("balanced_accuracy", means(&recall)),
        Metric::new(
            "f1",
            means(&|class| f1(table[class][class], count(class) + predicted(class))),
        ),
        Metric::new("auc", means(&area)),
        log_loss(&of_right),
    ]
}

/// Rows by actual class (first index) and predicted class.
pub fn confusion(
    predicted: impl Iterator<Item = usize>,
    actual: &[usize],
    classes: usize,
) -> Vec<Vec<usize>> {
    let mut table = vec![vec![0; classes]; classes];
    for (predicted, class) in predicted.zip(actual) {
        table[*class][predicted] += 1;
    }
    table
}

/// The first class with the greatest probability.
pub fn likeliest(row: &[f64]) -> usize {
    let mut best = 0;
    for (class, probability) in row.iter().enumerate() {
        if *probability > row[best] {
            best = class;
        }
    }
    best
}
