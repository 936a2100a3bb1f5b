//! Compares two models by their answers to the same test part: what became worse, and whether the answers are the same.
//!
//! The measures are those by which llama.cpp judges quantized models (ggml-org/llama.cpp, pull request 6936): the loss, how often
//! both give the same answer, and the mean Kullback-Leibler divergence.

use super::saved::Saved;
use crate::task::{Right, TaskError, Tested};
use crate::task_factory::LoadedTask;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Compares two models on the test part of their data; none if there is none. Each comes with its task, as their settings may
/// differ, and both tasks with the same data. They are computed side by side, so only a piece of the answers is in memory.
///
/// # Errors
///
/// If one does not fit its task, or gives answers that are no numbers.
pub(crate) fn compare(
    before: (&Saved, &LoadedTask),
    after: (&Saved, &LoadedTask),
) -> Result<Option<Compared>, TaskError> {
    thread::scope(|scope| {
        let start = |(model, task): (&Saved, &LoadedTask)| {
            let (metadata, tensors) = (model.metadata.clone(), model.tensors());
            let test = task.tester();
            let (send, receive) = sync_channel(1);
            let thread = scope.spawn(move || {
                // If nobody listens, the other model has failed or ended.
                let stopped = |_| TaskError::from("the two models answer different questions");
                test((&metadata, &tensors), &mut |tested| {
                    send.send(tested).map_err(stopped)
                })
            });
            (receive, thread)
        };
        let ((first, one), (second, other)) = (start(before), start(after));
        let mut comparison = Comparison::default();
        let mut both = first.iter().zip(second.iter());
        let added = both.try_for_each(|(a, b)| comparison.add(&a, &b));
        // A model that still sends ends now.
        drop((first, second));
        added?;
        for thread in [one, other] {
            thread.join().map_err(|_| "a model cannot be computed")??;
        }
        Ok(comparison.finish())
    })
}

/// How two models do on one test part.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Samples, or for a language model tokens.
    pub samples: u64,
    /// The model before the change.
    pub before: Quality,
    /// The model after it.
    pub after: Quality,
    /// How alike their answers are, if these are classes.
    pub alike: Option<Alike>,
}

/// How well a model does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    /// Classes: the mean log loss. Numbers: the root of the mean squared error.
    pub loss: f64,
    /// Classes: the share of right answers. Numbers: R2. 1 is perfect.
    pub score: f64,
}

/// How alike the answers of two models are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alike {
    /// The share of samples for which both find the same class the likeliest.
    pub same: f64,
    /// The mean over the samples of the sum over the classes of `p ln (p / q)`, where the first model says p and the other q.
    pub divergence: f64,
}

impl Compared {
    /// By how many points the score fell: percent of the samples, or hundredths of R2. Negative if it rose.
    pub fn drop(&self) -> f64 {
        100.0 * (self.before.score - self.after.score)
    }

    /// The name of the score.
    pub fn score(&self) -> &'static str {
        if self.alike.is_some() { "accuracy" } else { "R2" }
    }
}

/// Sums over the samples so far.
#[derive(Debug, Default)]
pub struct Comparison {
    samples: u64,
    of_classes: bool,
    before: Sums,
    after: Sums,
    same: f64,
    divergence: f64,
    /// Sum and sum of squares of right numbers.
    right: (f64, f64),
}

#[derive(Debug, Default)]
struct Sums {
    loss: f64,
    hits: f64,
}

impl Comparison {
    /// Takes both models' answers to some samples.
    ///
    /// # Errors
    ///
    /// If they are answers to different questions, or not finite.
    pub fn add(&mut self, before: &Tested, after: &Tested) -> Result<(), TaskError> {
        let count = match &before.right {
            Right::Classes(right) => right.len(),
            Right::Numbers(right) => right.len(),
        };
        let fits = before.right == after.right && before.answers.len() == after.answers.len();
        if count == 0 || !fits || !before.answers.len().is_multiple_of(count) {
            return Err("the two models answer different questions".into());
        }
        for tested in [before, after] {
            if !tested.answers.iter().all(|answer| answer.is_finite()) {
                return Err("a model's answers are not finite numbers: its weights are too large".into());
            }
        }
        self.samples += count as u64;
        let width = before.answers.len() / count;
        let both = before.answers.chunks(width).zip(after.answers.chunks(width));
        match &before.right {
            Right::Classes(right) => {
                if right.iter().any(|right| *right >= width) {
                    return Err("the right class is none of the model's".into());
                }
                self.of_classes = true;
                both.zip(right).for_each(|(both, right)| self.class(both, *right));
            }
            Right::Numbers(right) => {
                both.zip(right)
                    .for_each(|(both, right)| self.number(both, *right));
            }
        }
        Ok(())
    }

    fn class(&mut self, (before, after): (&[f32], &[f32]), right: usize) {
        let (first, second) = (likeliest(before), likeliest(after));
        self.before.class(before, first, right);
        self.after.class(after, second, right);
        self.same += f64::from(u8::from(first == second));
        let terms = before.iter().zip(after).map(|(p, q)| {
            let (p, q) = (f64::from(*p), f64::from(*q));
            libm::exp(p) * (p - q)
        });
        // Each rounded sum may be slightly below 0.
        self.divergence += terms.sum::<f64>().max(0.0);
    }

    fn number(&mut self, (before, after): (&[f32], &[f32]), right: f32) {
        let right = f64::from(right);
        for (sums, answer) in [(&mut self.before, before), (&mut self.after, after)] {
            let error = f64::from(answer[0]) - right;
            sums.loss += error * error;
        }
        self.right.0 += right;
        self.right.1 += right * right;
    }

    /// The comparison; none without samples.
    pub fn finish(&self) -> Option<Compared> {
        let count = self.samples as f64;
        if self.samples == 0 {
            return None;
        }
        let (mean, squares) = (self.right.0 / count, self.right.1 / count);
        let variance = squares - mean * mean;
        let quality = |sums: &Sums| {
            let loss = sums.loss / count;
            match self.of_classes {
                true => Quality {
                    loss,
                    score: sums.hits / count,
                },
                false => Quality {
                    loss: loss.sqrt(),
                    score: 1.0 - loss / variance,
                },
            }
        };
        Some(Compared {
            samples: self.samples,
            before: quality(&self.before),
            after: quality(&self.after),
            alike: self.of_classes.then(|| Alike {
                same: self.same / count,
                divergence: self.divergence / count,
            }),
        })
    }
}

impl Sums {
    fn class(&mut self, answer: &[f32], likeliest: usize, right: usize) {
        self.loss -= f64::from(answer[right]);
        self.hits += f64::from(u8::from(likeliest == right));
    }
}

/// The likeliest class; the first of equal ones.
fn likeliest(answer: &[f32]) -> usize {
    (0..answer.len()).fold(0, |best, at| if answer[at] > answer[best] { at } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(probabilities: &[f32], right: &[usize]) -> Tested {
        Tested {
            answers: probabilities.iter().map(|p| p.ln()).collect(),
            right: Right::Classes(right.to_vec()),
        }
    }

    #[test]
    fn a_model_is_like_itself() {
        let model = classes(&[0.75, 0.25, 0.5, 0.5], &[0, 1]);
        let mut comparison = Comparison::default();
        comparison.add(&model, &model).unwrap();
        let compared = comparison.finish().unwrap();
        assert_eq!(
            compared.alike,
            Some(Alike {
                same: 1.0,
                divergence: 0.0
            })
        );
        assert_eq!(
            (compared.samples, compared.drop(), compared.before.score),
            (2, 0.0, 0.5)
        );
        assert!((compared.before.loss - (0.75f64.recip().ln() + 2f64.ln()) / 2.0).abs() < 1e-6);
    }

    #[test]
    fn what_differs_is_counted_over_all_pieces() {
        let mut comparison = Comparison::default();
        let before = classes(&[0.9, 0.1], &[0]);
        comparison.add(&before, &classes(&[0.4, 0.6], &[0])).unwrap();
        comparison.add(&before, &before).unwrap();
        let compared = comparison.finish().unwrap();
        let alike = compared.alike.unwrap();
        assert_eq!(
            (alike.same, compared.drop(), compared.score()),
            (0.5, 50.0, "accuracy")
        );
        let divergence = 0.9 * (0.9f64 / 0.4).ln() + 0.1 * (0.1f64 / 0.6).ln();
        assert!((alike.divergence - divergence / 2.0).abs() < 1e-6, "{alike:?}");
    }

    #[test]
    fn numbers_are_judged_by_their_errors() {
        let numbers = |answers: &[f32]| Tested {
            answers: answers.to_vec(),
            right: Right::Numbers(vec![1.0, 3.0]),
        };
        let mut comparison = Comparison::default();
        comparison
            .add(&numbers(&[1.0, 3.0]), &numbers(&[2.0, 2.0]))
            .unwrap();
        let compared = comparison.finish().unwrap();
        assert_eq!(
            compared.before,
            Quality {
                loss: 0.0,
                score: 1.0
            }
        );
        assert_eq!(
            compared.after,
            Quality {
                loss: 1.0,
                score: 0.0
            }
        );
        assert_eq!(
            (compared.alike, compared.drop(), compared.score()),
            (None, 100.0, "R2")
        );
    }

    #[test]
    fn answers_that_do_not_belong_together_are_refused() {
        let mut comparison = Comparison::default();
        let right = classes(&[0.5, 0.5], &[0]);
        for wrong in [
            classes(&[0.5, 0.5], &[1]),
            classes(&[0.2, 0.3, 0.5], &[0]),
            classes(&[0.0, 1.0], &[0]),
        ] {
            assert!(comparison.add(&right, &wrong).is_err(), "{wrong:?}");
        }
        assert!(
            comparison
                .add(&classes(&[0.5, 0.5], &[2]), &classes(&[0.5, 0.5], &[2]))
                .is_err()
        );
        assert_eq!(Comparison::default().finish(), None);
    }
}
