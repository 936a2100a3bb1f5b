//! Against scikit-learn 1.9.1: `accuracy_score`, `balanced_accuracy_score`, `f1_score`, `roc_auc_score`,
//! `average_precision_score`, `log_loss`, `precision_recall_curve`, `confusion_matrix`, `root_mean_squared_error`,
//! `mean_absolute_error`, `r2_score` of the same rows. Intervals: `scipy.stats.binomtest(..).proportion_ci("wilson")`, and
//! numpy's variances in the formulas of DeLong and of the derivative.

use super::*;

fn value(metrics: &[Metric], name: &str) -> f64 {
    metrics.iter().find(|metric| metric.name == name).unwrap().value
}

fn check(metrics: &[Metric], wanted: &[(&str, f64)]) {
    assert_eq!(metrics.len(), wanted.len());
    for (name, wanted) in wanted {
        let found = value(metrics, name);
        assert!((found - wanted).abs() < 1e-12, "{name}: {found}, not {wanted}");
    }
}

fn half(metrics: &[Metric], name: &str) -> f64 {
    let (low, high) = metrics
        .iter()
        .find(|metric| metric.name == name)
        .unwrap()
        .interval
        .unwrap();
    (high - low) / 2.0
}

#[test]
fn two_classes_are_judged_as_by_scikit_learn() {
    let probability = [
        0.95, 0.9, 0.9, 0.8, 0.7, 0.7, 0.55, 0.5, 0.45, 0.4, 0.4, 0.3, 0.2, 0.1, 0.05, 0.5,
    ];
    let actual = [1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0].map(|class| class == 1);
    let best = best_threshold(&probability, &actual);
    let metrics = of_two_classes(&probability, &actual, 0.5, Some(best));
    check(
        &metrics,
        &[
            ("accuracy", 0.6875),
            ("balanced_accuracy", 0.683_333_333_333_333_3),
            ("f1", 0.615_384_615_384_615_4),
            ("auc", 0.8),
            ("average_precision", 0.689_814_814_814_814_8),
            ("log_loss", 0.574_328_620_103_128),
            ("best_f1", 0.666_666_666_666_666_7),
            // Two thresholds give that; scikit-learn's curve begins with the lower. The next lower probability is 0.55.
            ("threshold", 0.625),
        ],
    );
    let (low, high) = metrics[0].interval.unwrap();
    assert!((low - 0.444_043_558_347_406_66).abs() < 1e-12 && (high - 0.858_353_561_452_179_7).abs() < 1e-12);
    let (low, _) = metrics[3].interval.unwrap();
    assert!((0.8 - low - Z * 0.013_382_716_049_382_716f64.sqrt()).abs() < 1e-12);
}

#[test]
fn more_classes_are_judged_as_by_scikit_learn() {
    let probability = [
        [0.7, 0.2, 0.1],
        [0.1, 0.8, 0.1],
        [0.3, 0.3, 0.4],
        [0.2, 0.5, 0.3],
        [0.6, 0.3, 0.1],
        [0.1, 0.2, 0.7],
        [0.3, 0.5, 0.2],
        [0.25, 0.25, 0.5],
        [0.05, 0.9, 0.05],
        [0.4, 0.35, 0.25],
    ]
    .map(|row| row.to_vec());
    let actual = [0, 1, 2, 2, 1, 2, 1, 0, 1, 0];
    let metrics = of_classes(&probability, &actual);
    check(
        &metrics,
        &[
            ("accuracy", 0.7),
            ("balanced_accuracy", 0.694_444_444_444_444_3),
            ("f1", 0.694_444_444_444_444_3),
            ("auc", 0.863_095_238_095_238_1),
            ("log_loss", 0.736_182_256_892_951_9),
        ],
    );
    assert_eq!(
        confusion(probability.iter().map(|row| likeliest(row)), &actual, 3),
        [[2, 0, 1], [1, 3, 0], [0, 1, 2]]
    );
}

#[test]
fn numbers_are_judged_as_by_scikit_learn() {
    let actual = [3.0, -0.5, 2.0, 7.0, 4.25, 0.0];
    let metrics = of_numbers(&[2.5, 0.0, 2.0, 8.0, 4.0, 1.5], &actual);
    check(
        &metrics,
        &[
            ("rmse", 0.797_130_269_571_207_9),
            ("mae", 0.625),
            ("r2", 0.902_165_196_471_531_7),
        ],
    );
    assert!((half(&metrics, "rmse") - 0.435_746_927_913_576_2).abs() < 1e-12);
    assert!((half(&metrics, "mae") - 0.433_672_020_575_245_95).abs() < 1e-12);
}

#[test]
fn what_few_rows_do_not_define_has_no_interval() {
    let one = of_numbers(&[1.0], &[2.0]);
    assert_eq!((one[0].value, one[0].interval), (1.0, None));
    let one_class = of_two_classes(&[0.9, 0.4], &[true, true], 0.5, None);
    assert!(value(&one_class, "auc").is_nan() && value(&one_class, "accuracy") == 0.5);
}
