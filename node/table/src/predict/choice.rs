//! Chooses how much each member of a model counts, by the validation rows: in f64 and in one order, so that all machines agree.

use super::{Decision, Predictor};
use crate::error::TableError;
use crate::metrics::best_threshold;
use crate::network::Network;
use crate::options::{Options, Threshold};
use crate::plan::Plan;
use crate::schema::Target;
use crate::search::Trial;
use crate::table::Table;
use std::cmp::Ordering;

/// Most steps of the choice.
const STEPS: usize = 50;

/// Of how many trials one joins the usual model, and how much these count together. Tried on the validation rows of five tables:
/// chosen by two thirds of them and judged by the others, a greedy choice of trials did worse than the usual model, and this
/// better.
const ONE_OF: usize = 3;
const TRIALS_SHARE: f64 = 0.5;

/// How many standard errors a loss must be above another to be clearly worse.
const CLEARLY: f64 = 2.0;

impl Predictor {
    /// Chooses how much each member counts by the validation rows. Of the first `usual` members it greedily adds, with repetition,
    /// the one that lowers the loss most (Caruana et al. 2004, "Ensemble selection from libraries of models"). It begins with one
    /// of each, since they were picked to go well together. The others are trials of a search, too many for that: few rows praise
    /// some of them by chance. So the better third joins, each alike, unless that is clearly worse.
    pub fn chosen(
        table: &Table,
        network: Network,
        usual: usize,
        options: &Options,
    ) -> Result<Self, TableError> {
        let count = network.members.len();
        let mut predictor = Self::new(
            table.schema.clone(),
            network,
            vec![0.0; count],
            Decision::default(),
        );
        let answers = Answers::of(&predictor, table);
        let weights = answers.with_trials(answers.of_usual(usual), usual);
        let decision = answers.decision(&answers.mixed(&weights), options)?;
        (predictor.weights, predictor.decision) = (weights, decision);
        Ok(predictor)
    }

    /// The trials of a search, the best by its validation loss first. The first `usual` members together are the first trial, as
    /// those of these plans are the others.
    pub fn trials(&self, table: &Table, plans: &[Plan], usual: usize) -> Vec<Trial> {
        let answers = Answers::of(self, table);
        let share: f64 = self.weights[..usual].iter().sum();
        let of_usual = |member| {
            if member < usual {
                self.weights[member] / share
            } else {
                0.0
            }
        };
        let first = Trial {
            number: 1,
            loss: answers.loss(&answers.each(of_usual)),
            share,
            settings: Vec::new(),
        };
        let others = (usual..self.weights.len()).map(|trial| Trial {
            number: trial - usual + 2,
            loss: answers.loss(&answers.each(|member| f64::from(member == trial))),
            share: self.weights[trial],
            settings: plans[trial].words(),
        });
        let mut trials: Vec<Trial> = std::iter::once(first).chain(others).collect();
        trials.sort_by(|a, b| order((a.loss, a.number), (b.loss, b.number)));
        trials
    }
}

/// The members' answers to the validation rows, beside the right ones.
pub(super) struct Answers<'a> {
    target: &'a Target,
    /// By member, row and class.
    of_members: Vec<Vec<Vec<f64>>>,
    actual: Vec<f64>,
}

impl<'a> Answers<'a> {
    fn of(predictor: &'a Predictor, table: &Table) -> Self {
        let rows = &table.rows.validation;
        let mut inputs = Vec::new();
        let mut of_members: Vec<Vec<Vec<f64>>> = vec![Vec::new(); predictor.network.members.len()];
        for row in rows {
            inputs.clear();
            predictor.features.write(table.cells(*row), &mut inputs);
            for (member, answers) in predictor.network.members.iter().zip(&mut of_members) {
                answers.push(predictor.answer_of(member, &inputs, table.cells(*row)));
            }
        }
        Self {
            target: &predictor.schema.target,
            of_members,
            actual: rows.iter().map(|row| table.target(*row)).collect(),
        }
    }

    /// A weight for each member.
    fn each(&self, weight: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..self.of_members.len()).map(weight).collect()
    }

    /// How much each of the first members counts without the others.
    fn of_usual(&self, usual: usize) -> Vec<f64> {
        let mut counts = self.each(|member| f64::from(member < usual));
        let mut best = self.loss(&shares(&counts));
        for _ in 0..STEPS {
            let tried = (0..usual).map(|member| {
                let mut more = counts.clone();
                more[member] += 1.0;
                (self.loss(&shares(&more)), member)
            });
            let Some((loss, member)) = tried.min_by(|a, b| order(*a, *b)) else {
                break;
            };
            if loss.partial_cmp(&best) != Some(Ordering::Less) {
                break;
            }
            best = loss;
            counts[member] += 1.0;
        }
        shares(&counts)
    }

    /// These weights of the usual members, and half of them for the best of the others.
    fn with_trials(&self, weights: Vec<f64>, usual: usize) -> Vec<f64> {
        let own = |trial: usize| (self.loss(&self.each(|member| f64::from(member == trial))), trial);
        let mut ranked: Vec<(f64, usize)> = (usual..weights.len()).map(own).collect();
        ranked.sort_by(|a, b| order(*a, *b));
        ranked.truncate(ranked.len().div_ceil(ONE_OF));
        if ranked.is_empty() {
            return weights;
        }
        let mut mixed = self.each(|member| weights[member] * (1.0 - TRIALS_SHARE));
        for (_, trial) in &ranked {
            mixed[*trial] = TRIALS_SHARE / ranked.len() as f64;
        }
        let (before, now) = (self.losses(&weights), self.losses(&mixed));
        let more: Vec<f64> = now
            .iter()
            .zip(&before)
            .map(|(now, before)| now - before)
            .collect();
        if is_clear(&more) { weights } else { mixed }
    }

    /// The answer to each row with these weights of members.
    fn mixed(&self, weights: &[f64]) -> Vec<Vec<f64>> {
        // One that diverged and counts nothing must not make the sum infinite.
        let counting = || {
            self.of_members
                .iter()
                .zip(weights)
                .filter(|(_, weight)| **weight > 0.0)
        };
        let mixed = |row: usize, output: usize| counting().map(|(of, weight)| of[row][output] * weight).sum();
        let outputs = self.target.outputs();
        let rows = 0..self.actual.len();
        rows.map(|row| (0..outputs).map(|output| mixed(row, output)).collect())
            .collect()
    }

    /// How these answers are used best.
    fn decision(&self, answers: &[Vec<f64>], options: &Options) -> Result<Decision, TableError> {
        let plain = Decision::default();
        let Target::Class { positive, .. } = self.target else {
            let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>();
            let ratio =
                sum(&mut self.actual.iter().copied()) / sum(&mut answers.iter().map(|answer| answer[0]));
            // Few rows with one huge value say little.
            let factor = match self.target.is_log() && ratio.is_finite() {
                true => ratio.clamp(0.5, 2.0),
                false => 1.0,
            };
            return Ok(Decision { factor, ..plain });
        };
        let asked = options.asked_threshold(self.target)?;
        if self.target.outputs() != 2 {
            return Ok(plain);
        }
        let probability: Vec<f64> = answers.iter().map(|answer| answer[*positive]).collect();
        let is: Vec<bool> = self
            .actual
            .iter()
            .map(|class| *class as usize == *positive)
            .collect();
        let best = best_threshold(&probability, &is);
        let threshold = match asked {
            Threshold::BestF1 => best,
            Threshold::At(threshold) => threshold,
        };
        Ok(Decision {
            threshold,
            best: Some(best),
            ..plain
        })
    }

    /// The loss with these weights of members: the mean squared error, or the log loss.
    fn loss(&self, weights: &[f64]) -> f64 {
        mean(&self.losses(weights))
    }

    /// The same, row by row.
    fn losses(&self, weights: &[f64]) -> Vec<f64> {
        let rows = self.mixed(weights).into_iter().zip(&self.actual);
        rows.map(|(answer, actual)| loss(self.target, &answer, *actual))
            .collect()
    }

    /// The mean loss of some answers.
    pub(super) fn mean_loss(target: &Target, answers: &[Vec<f64>], actual: impl Iterator<Item = f64>) -> f64 {
        let rows = answers.iter().zip(actual);
        mean(
            &rows
                .map(|(answer, actual)| loss(target, answer, actual))
                .collect::<Vec<_>>(),
        )
    }
}

/// The squared error, of logarithms if they are learnt, or the log loss.
fn loss(target: &Target, answer: &[f64], actual: f64) -> f64 {
    match target {
        Target::Number { .. } => {
            let error = match target.is_log() {
                true => libm::log(answer[0]) - libm::log(actual),
                false => answer[0] - actual,
            };
            error * error
        }
        Target::Class { .. } => -libm::log(answer[actual as usize].max(1e-12)),
    }
}

/// Whether the mean of these differences is clearly above 0, or no number.
fn is_clear(differences: &[f64]) -> bool {
    let mean = mean(differences);
    let squares: f64 = differences.iter().map(|one| (one - mean) * (one - mean)).sum();
    let count = differences.len() as f64;
    let error = (squares / count / (count - 1.0)).sqrt();
    let within = mean <= 0.0 || mean <= CLEARLY * error;
    !within
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// By loss, then by place; a loss that is no number comes last.
fn order(a: (f64, usize), b: (f64, usize)) -> Ordering {
    let key = |loss: f64| if loss.is_nan() { f64::INFINITY } else { loss };
    key(a.0).total_cmp(&key(b.0)).then(a.1.cmp(&b.1))
}

fn shares(counts: &[f64]) -> Vec<f64> {
    let sum: f64 = counts.iter().sum();
    counts.iter().map(|count| count / sum).collect()
}
