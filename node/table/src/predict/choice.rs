//! Chooses how much each member of a model counts, by the validation rows: in f64 and in one order, so that all machines agree.

use super::Predictor;
use crate::network::Network;
use crate::plan::Plan;
use crate::schema::Target;
use crate::search::Trial;
use crate::table::Table;
use std::cmp::Ordering;

/// The members that the choice begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// One of each: they were picked to go well together.
    All,
    /// One of each of the better half: some trials of a search are bad.
    BetterHalf,
}

/// Most steps of the choice.
const STEPS: usize = 50;

impl Predictor {
    /// Chooses how much each member counts by the validation rows: greedily adds, with repetition, the member that lowers
    /// the loss most (Caruana et al. 2004, with their sorted initialization for [`Begin::BetterHalf`]).
    pub fn chosen(table: &Table, network: Network, begin: Begin) -> Self {
        let count = network.members.len();
        let mut predictor = Self::new(table.schema.clone(), network, vec![1.0 / count as f64; count]);
        let answers = Answers::of(&predictor, table);
        let mut counts = match begin {
            Begin::All => vec![1; count],
            Begin::BetterHalf => answers.better_half(),
        };
        let mut best = answers.loss(&counts);
        for _ in 0..STEPS {
            let tried = (0..count).map(|member| {
                let mut more = counts.clone();
                more[member] += 1;
                (answers.loss(&more), member)
            });
            let Some((loss, member)) = tried.min_by(|a, b| order(*a, *b)) else {
                break;
            };
            if loss.partial_cmp(&best) != Some(Ordering::Less) {
                break;
            }
            best = loss;
            counts[member] += 1;
        }
        predictor.weights = shares(&counts);
        predictor
    }

    /// The members as trials of these plans, the best by its validation loss first.
    pub fn trials(&self, table: &Table, plans: &[Plan]) -> Vec<Trial> {
        let answers = Answers::of(self, table);
        let ranked = answers.ranked().into_iter();
        ranked
            .map(|(loss, member)| Trial {
                number: member + 1,
                loss,
                share: self.weights[member],
                settings: plans[member].words(),
            })
            .collect()
    }
}

/// The members' answers to the validation rows, beside the right ones.
struct Answers<'a> {
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
                answers.push(predictor.answer_of(member, &inputs));
            }
        }
        Self {
            target: &predictor.schema.target,
            of_members,
            actual: rows.iter().map(|row| table.target(*row)).collect(),
        }
    }

    /// The loss with these counts of members: the mean squared error, or the log loss.
    fn loss(&self, counts: &[usize]) -> f64 {
        let weights = shares(counts);
        let mixed = |row: usize, output: usize| -> f64 {
            let members = self.of_members.iter().zip(&weights);
            // One that diverged and counts nothing must not make the sum infinite.
            let counting = members.filter(|(_, weight)| **weight > 0.0);
            counting.map(|(of, weight)| of[row][output] * weight).sum()
        };
        let losses = self
            .actual
            .iter()
            .enumerate()
            .map(|(row, actual)| match self.target {
                Target::Number { .. } => {
                    let error = mixed(row, 0) - actual;
                    error * error
                }
                Target::Class { .. } => -libm::log(mixed(row, *actual as usize).max(1e-12)),
            });
        losses.sum::<f64>() / self.actual.len() as f64
    }

    /// Each member's own loss, the least first.
    fn ranked(&self) -> Vec<(f64, usize)> {
        let count = self.of_members.len();
        let own = |member: usize| {
            let mut counts = vec![0; count];
            counts[member] = 1;
            (self.loss(&counts), member)
        };
        let mut ranked: Vec<(f64, usize)> = (0..count).map(own).collect();
        ranked.sort_by(|a, b| order(*a, *b));
        ranked
    }

    /// One of each that is among the better half.
    fn better_half(&self) -> Vec<usize> {
        let mut counts = vec![0; self.of_members.len()];
        let better = counts.len().div_ceil(2);
        for (_, member) in self.ranked().into_iter().take(better) {
            counts[member] = 1;
        }
        counts
    }
}

/// By loss, then by place; a loss that is no number comes last.
fn order(a: (f64, usize), b: (f64, usize)) -> Ordering {
    let key = |loss: f64| if loss.is_nan() { f64::INFINITY } else { loss };
    key(a.0).total_cmp(&key(b.0)).then(a.1.cmp(&b.1))
}

fn shares(counts: &[usize]) -> Vec<f64> {
    let sum: usize = counts.iter().sum();
    counts.iter().map(|count| *count as f64 / sum as f64).collect()
}
