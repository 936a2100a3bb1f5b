//! How good a model's answers are, beside those of simpler models.

use super::Decision;
use crate::metrics::{self, Metric};
use crate::number::{grouped, listed, short};
use crate::schema::Target;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A model's judgement on a part of a table, beside those of simpler ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Rows, or other samples, that were predicted.
    pub rows: u64,
    /// The model's metrics.
    pub metrics: Vec<Metric>,
    /// Of always answering with the training rows' mean, or with the shares of their classes.
    pub constant: Vec<Metric>,
    /// Of the linear member alone, if there is one.
    pub linear: Vec<Metric>,
    /// Rows by actual and predicted class; empty for numbers.
    pub confusion: Vec<Vec<usize>>,
}

/// A threshold with a lower F1 is no remedy; a guess.
const USEFUL: f64 = 0.1;

/// What the training rows alone say: their mean, or the shares of their classes.
fn constant(target: &Target) -> Vec<f64> {
    match target {
        Target::Number { mean, .. } => vec![f64::from(*mean)],
        Target::Class { counts, .. } => {
            let rows: u64 = counts.iter().sum();
            counts.iter().map(|count| *count as f64 / rows as f64).collect()
        }
    }
}

/// The metrics that suit a target.
pub fn judge(target: &Target, answers: &[Vec<f64>], actual: &[f64], decision: Decision) -> Vec<Metric> {
    match target {
        Target::Number { .. } => {
            let predicted: Vec<f64> = answers.iter().map(|answer| answer[0]).collect();
            metrics::of_numbers(&predicted, actual)
        }
        Target::Class {
            classes, positive, ..
        } if classes.len() == 2 => {
            let probability: Vec<f64> = answers.iter().map(|answer| answer[*positive]).collect();
            let is: Vec<bool> = actual.iter().map(|class| *class as usize == *positive).collect();
            metrics::of_two_classes(&probability, &is, decision.threshold, decision.best)
        }
        Target::Class { .. } => {
            let classes: Vec<usize> = actual.iter().map(|class| *class as usize).collect();
            metrics::of_classes(answers, &classes)
        }
    }
}

impl Judged {
    /// Judges the answers to at least one sample.
    pub fn of(target: &Target, answers: &[Vec<f64>], actual: &[f64], decision: Decision) -> Self {
        let same = vec![constant(target); actual.len()];
        Self {
            rows: actual.len() as u64,
            metrics: judge(target, answers, actual, decision),
            constant: judge(target, &same, actual, Decision::default()),
            linear: Vec::new(),
            confusion: match target {
                Target::Number { .. } => Vec::new(),
                Target::Class { .. } => {
                    let actual: Vec<usize> = actual.iter().map(|class| *class as usize).collect();
                    let said = |answer: &Vec<f64>| decision.class(target, answer);
                    metrics::confusion(answers.iter().map(said), &actual, target.outputs())
                }
            },
        }
    }

    /// The judgement in lines, for people: metrics with intervals, then what simpler models reach. `what`: the samples, such as
    /// rows.
    pub fn describe(&self, part: &str, what: &str, target: &Target) -> String {
        let with_interval = |metric: &Metric| {
            let value = format!("{} {}", metric.name, short(metric.value));
            match metric.interval {
                Some((low, high)) => format!("{value} ({} to {})", short(low), short(high)),
                None => value,
            }
        };
        let all: Vec<String> = self.metrics.iter().map(with_interval).collect();
        let count = match self.rows {
            1 => format!("1 {}", what.trim_end_matches('s')),
            rows => format!("{} {what}", grouped(rows)),
        };
        let mut text = format!("{part} ({count}): {}", all.join(", "));
        // The first metric that does not only count answers tells models apart best.
        let telling = match target {
            Target::Number { .. } => "rmse",
            Target::Class { .. } => "auc",
        };
        let of =
            |metrics: &[Metric], name: &str| metrics.iter().find(|m| m.name == name).map(|m| short(m.value));
        let mut lines = Vec::new();
        for (model, metrics) in [
            ("always the same answer", &self.constant),
            ("linear model", &self.linear),
        ] {
            let told = [telling, "accuracy"].into_iter();
            let told = told.filter_map(|name| Some(format!("{name} {}", of(metrics, name)?)));
            let told: Vec<String> = told.collect();
            if !told.is_empty() {
                lines.push(format!("{model} {}", told.join(", ")));
            }
        }
        let _ = write!(text, "\nto compare: {}", lines.join("; "));
        if let Some(warning) = self.never_said(target, what) {
            let _ = write!(text, "\n{warning}");
        }
        if let Target::Class { classes, .. } = target
            && classes.len() <= 10
        {
            let width = classes
                .iter()
                .map(|class| class.chars().count())
                .max()
                .unwrap_or(0)
                .max(5);
            let _ = write!(
                text,
                "\n{what} by actual class (down) and predicted class (across):\n{:>width$}",
                ""
            );
            classes.iter().for_each(|class| {
                let _ = write!(text, " {class:>width$}");
            });
            for (class, row) in classes.iter().zip(&self.confusion) {
                let _ = write!(text, "\n{class:>width$}");
                row.iter().for_each(|count| {
                    let _ = write!(text, " {count:>width$}");
                });
            }
        }
        text
    }

    /// A warning of classes that are there and are never the answer.
    fn never_said(&self, target: &Target, what: &str) -> Option<String> {
        let Target::Class { classes, .. } = target else {
            return None;
        };
        let count = |class: usize| self.confusion[class].iter().sum::<usize>();
        let said = |class: usize| self.confusion.iter().any(|row| row[class] > 0);
        let never: Vec<usize> = (0..classes.len())
            .filter(|class| count(*class) > 0 && !said(*class))
            .collect();
        let names: Vec<&str> = never.iter().map(|class| classes[*class].as_str()).collect();
        let rows: usize = never.iter().copied().map(count).sum();
        let of = |name: &str| {
            self.metrics
                .iter()
                .find(|metric| metric.name == name)
                .map(|metric| metric.value)
        };
        let remedy = match (of("best_f1"), of("threshold")) {
            (Some(f1), Some(threshold)) if f1 > USEFUL => format!(
                "threshold=f1 answers the positive class above a probability of {}, for an f1 of {}",
                short(threshold),
                short(f1)
            ),
            _ => "class_weights=balanced lets rare classes count more, and more rounds may help".into(),
        };
        (!never.is_empty()).then(|| {
            format!(
                "warning: the model never answers {}, the class of {} of these {what}: {remedy}",
                listed(&names),
                grouped(rows as u64)
            )
        })
    }
}
