//! Predicts a column of a table from the others: a number, or one of some classes.
//!
//! The data is a CSV or TSV file; a Parquet file becomes CSV before the run begins. `annulus-table` reads it, guesses the kinds
//! of columns and divides the rows; this task adds the model and its loss. The model is several small networks in one flat
//! vector, which train side by side on the same batches. At the end the validation rows say how much each counts, and the test
//! rows judge the whole.

mod answers;
mod help;
pub mod model;
mod pruning;
mod rows;

use annulus_table::{
    Features, Judged, Leaderboard, Learnt, Model, Network, Options, Plan, Predictor, Schema, Table, Target,
    card, describe_importance, grouped,
};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor, TensorData};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::Path;
use std::time::Duration;

use super::init;
use crate::task::{
    Data, Finished, Layer, Predict, Pruning, Right, Scores, Task, TaskError, Tensors, TestPart, Tested,
    logarithms,
};
use crate::trainer::with_parameters;
use annulus_core::Digest;
#[cfg(not(target_family = "wasm"))]
use annulus_net::files::read_named;
#[cfg(not(target_family = "wasm"))]
use annulus_table::{as_csv, unpacked};
pub(super) use answers::read;
use answers::{Answers, predictor};
use model::Members;
use rows::{digest, mean_weight, time};

/// Rows to evaluate at once: enough to keep a processor busy.
const EVALUATION_BATCH: usize = 1_000;

/// The table's name in a folder, also of the CSV that a Parquet file becomes.
const TABLE: &str = "table.csv";

/// The endings of files that become CSV before a run begins.
const PACKED: [&str; 2] = ["parquet", "gz"];

/// The most bytes of a file, and of what it unpacks to.
#[cfg(not(target_family = "wasm"))]
const LARGEST: usize = 4 << 30;

/// Rows for one processor core at once; fewer would only wait for each other.
const PIECE: usize = 64;

/// A table, and the shape of its model.
pub struct TableTask {
    data: Rows,
    plans: Vec<Plan>,
    /// The parameters to start from, in the model's order, if the settings name some.
    start: Option<Vec<f32>>,
    time: Option<Duration>,
}

/// The training rows of a table.
pub struct Rows {
    table: Table,
    features: Features,
    /// The weight of each class in the loss; empty: all weigh the same.
    weights: Vec<f32>,
    options: Options,
    /// Of the training rows, by the column that the options name; 1 without.
    mean_weight: f64,
    /// Hidden units that rows leave out at random, and with which probability: those of all members with dropout.
    dropped: Vec<(usize, f32)>,
    digest: Digest,
}

/// Inputs and targets of some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    inputs: Vec<f32>,
    /// For each row one number, or one for each class: the class's weight, the others 0.
    targets: Vec<f32>,
    /// For each row how much it counts, where targets are numbers; empty: all alike.
    weights: Vec<f32>,
    /// For each row, what to multiply each hidden unit of members with dropout by: 0, or so much that the mean is 1. Empty: 1.
    kept: Vec<f32>,
    rows: usize,
}

impl Task for TableTask {
    type Model = Members;
    type Dataset = Rows;
    type Config = Options;

    const NAME: &'static str = "table";
    const ABOUT: &'static str = "a column of a CSV file from the others: --data FILE.csv target=COLUMN";
    // Tried on the tables of docs/benchmarks.md; a tenth of them did worse with half as many rounds.
    const SETTINGS: &'static [&'static str] = &[
        "rounds=1000",
        "optimizer=adamw",
        "lr=2e-3",
        "weight_decay=0.05",
        "schedule=cosine",
        "warmup=50",
    ];
    // Trials share one vector, so the limit on its norm would couple them; Adam's steps are bounded without it.
    const SEARCH: &'static [&'static str] = &[
        "rounds=1000",
        "optimizer=adamw",
        "lr=2e-3",
        "weight_decay=0.05",
        "schedule=cosine",
        "warmup=50",
        "clip=off",
        "trials=12",
    ];
    const PREDICTS: Option<&'static str> = Some("NEW.csv");
    const FILES: &'static [&'static str] = &["csv", "tsv", PACKED[0], "csv.gz", "tsv.gz"];
    const PACKED: Option<&'static str> = Some(TABLE);
    const HELP: &'static [(&'static str, &'static str)] = help::HELP;

    fn packs(data: &Path) -> bool {
        let ending = data.extension().map(|ending| ending.to_ascii_lowercase());
        ending.is_some_and(|ending| PACKED.iter().any(|packed| ending == *packed))
    }

    #[cfg(not(target_family = "wasm"))]
    fn pack(_: &Options, file: &Path, tell: &mut dyn FnMut(u64, u64)) -> Result<Vec<u8>, TaskError> {
        let bytes = read_named(file, LARGEST)?;
        let name = file.display().to_string();
        let bytes = unpacked(&name, &bytes, LARGEST)?;
        Ok(as_csv(&name, &bytes, tell)?.into_owned())
    }

    fn new(options: Options, data: Option<&Data>) -> Result<Self, TaskError> {
        let time = time(&options)?;
        let data = data.ok_or("the task table needs a file: --data FILE.csv target=COLUMN")?;
        let file = match data.is_folder() {
            false => data.single()?,
            true => {
                let absent = || {
                    format!(
                        "{} has no {TABLE}, the table to learn from",
                        data.path().display()
                    )
                };
                data.file(TABLE)?.ok_or_else(absent)?
            }
        };
        let mut bytes = Vec::new();
        file.reader()?.read_to_end(&mut bytes)?;
        let table = Table::read(file.name(), &bytes, &options)?;
        let features = Features::of(&table.schema);
        let outputs = table.schema.target.outputs();
        let plans = Plan::of(&options, &features, outputs)?;
        let model = || Members::new(&plans, outputs, &Device::flex());
        let with_folder = "give --data FOLDER with the table as table.csv";
        let start = init::start(&options.init, (Some(data), with_folder), model)?;
        let (start, weights_file) = start.unzip();
        let with_dropout = plans.iter().filter(|plan| plan.dropout > 0.0);
        Ok(Self {
            start,
            time,
            data: Rows {
                dropped: with_dropout
                    .map(|plan| (plan.hidden.iter().sum(), plan.dropout))
                    .collect(),
                mean_weight: mean_weight(&table)?,
                digest: digest(&table, &options, weights_file.as_deref()),
                weights: options.weights(&table.schema.target),
                features,
                options,
                table,
            },
            plans,
        })
    }

    fn dataset(&self) -> &Rows {
        &self.data
    }

    fn description(&self) -> String {
        let told = self.data.table.describe();
        let inputs = self.data.features.width();
        match self.plans.iter().any(|plan| plan.bins) || self.data.options.model == Model::Linear {
            false if self.plans.len() == Plan::USUAL => format!(
                "{told}\nnote: with {} inputs the usual networks would be too large, so they read no numbers in bins, and have \
                 fewer units where needed. Leave columns out with columns.NAME=ignore, or describe one network with hidden=128-64",
                grouped(inputs as u64)
            ),
            _ => told,
        }
    }

    fn suited_batch(&self) -> Option<NonZeroU32> {
        // A twentieth of the rows between 16 and 256, as the design's measurements; all of a tiny table.
        let rows = self.data.table.rows.train.len();
        NonZeroU32::new((rows / 20).clamp(16, 256).min(rows) as u32)
    }

    fn suited_rounds(&self) -> Option<NonZeroU64> {
        // Tried on the tables of docs/benchmarks.md: 1,000 rounds are many passes over a small table. A large one needs about
        // 20 passes, of the largest suited batch; more than 4,000 rounds take minutes, and a longer run is for the user to
        // ask for.
        let rows = self.data.table.rows.train.len() as u64;
        NonZeroU64::new((20 * rows / 256).clamp(1_000, 4_000))
    }

    fn time(&self) -> Option<Duration> {
        self.time
    }

    fn layers(&self) -> Vec<Layer> {
        vec![Layer::Linear]
    }

    fn model(&self, device: &Device) -> Members {
        let model = Members::new(&self.plans, self.outputs(), device);
        match &self.start {
            Some(values) => with_parameters(model, values, device),
            None => model,
        }
    }

    fn loss(&self, model: &Members, batch: Batch, device: &Device) -> Tensor<1> {
        let weights = (!batch.weights.is_empty()).then(|| batch.weights.clone());
        let (inputs, targets, kept) = self.tensors(batch, device);
        let outputs = model.forward(&self.plans, inputs, kept);
        let count = outputs.len();
        // Over how many networks the gradient is a mean. Beside trials the usual ones learn as they do without: to the bit, so
        // that a search never loses to chance what `annulus train` has.
        let usual = count.min(Plan::USUAL);
        let rows = targets.dims()[0] * usual;
        // All members in one tensor, one below the other.
        let (outputs, targets) = (Tensor::cat(outputs, 0), targets.repeat_dim(0, count));
        let loss = match self.target() {
            Target::Number { .. } => {
                let squares = (outputs - targets).square();
                let squares = match weights {
                    Some(weights) => {
                        let shape = [weights.len(), 1];
                        let weights = Tensor::<2>::from_data(TensorData::new(weights, shape), device);
                        squares * weights.repeat_dim(0, count)
                    }
                    None => squares,
                };
                squares.sum().div_scalar(rows as f32)
            }
            Target::Class { .. } => (log_softmax(outputs, 1) * targets)
                .sum()
                .mul_scalar(-1.0 / rows as f32),
        };
        let loss = match model.penalty(&self.plans) {
            Some(penalty) => loss + penalty.div_scalar(usual as f32),
            None => loss,
        };
        if count == usual {
            return loss;
        }
        // The loss that people see is the mean over all.
        let surplus = 1.0 - usual as f32 / count as f32;
        loss.clone() - loss.detach().mul_scalar(surplus)
    }

    /// The mean over the members of what they say of the validation rows.
    fn evaluate(&self, model: &Members, device: &Device) -> Option<Scores> {
        let rows = &self.data.table.rows.validation;
        let zero = || Tensor::<1>::zeros([1], device);
        let (mut loss, mut right, mut errors) = (zero(), zero(), zero());
        let (mut sum_of, mut squares) = (zero(), zero());
        for part in rows.chunks(EVALUATION_BATCH) {
            let (inputs, targets, kept) = self.tensors(self.data.of(part), device);
            let outputs = model.forward(&self.plans, inputs, kept);
            let count = outputs.len() as f32;
            let sum =
                |of: &dyn Fn(Tensor<2>) -> Tensor<2>| outputs.iter().cloned().map(of).reduce(|a, b| a + b);
            match self.target() {
                Target::Number {
                    learnt, deviation, ..
                } => {
                    let base = learnt.as_ref().map(|learnt| self.bases(learnt, part, device));
                    // In deviations of the target.
                    let natural = |scaled: Tensor<2>| match (learnt, &base) {
                        (Some(learnt), Some(base)) => {
                            let value = scaled.mul_scalar(learnt.deviation) + base.clone();
                            let value = if learnt.log { value.exp() } else { value };
                            value.div_scalar(*deviation)
                        }
                        _ => scaled,
                    };
                    let mean = sum(&natural)?.div_scalar(count);
                    let targets = natural(targets);
                    sum_of = sum_of + targets.clone().sum();
                    squares = squares + targets.clone().square().sum();
                    errors = errors + (mean.clone() - targets.clone()).abs().sum();
                    loss = loss + (mean - targets).square().sum();
                }
                Target::Class { .. } => {
                    let mean = sum(&|outputs| log_softmax(outputs, 1).exp())?.div_scalar(count);
                    let is = targets.clone().argmax(1).equal(mean.clone().argmax(1));
                    right = right + is.float().sum();
                    loss = loss - (mean.clamp_min(1e-12).log() * targets).sum();
                }
            }
        }
        let count = rows.len() as f32;
        let loss = loss / count;
        let scores = Scores::from(loss.clone());
        Some(match self.target() {
            Target::Class { .. } => scores.with("accuracy", right / count),
            // The loss is that of targets divided by their deviation.
            Target::Number { deviation, .. } => {
                let mean = sum_of / count;
                let variance = squares / count - mean.square();
                scores
                    .with("mae", errors / count * *deviation)
                    .with("rmse", loss.clone().sqrt() * *deviation)
                    .with("r2", (loss / variance).neg() + 1.0)
            }
        })
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        vec![
            ("schema", json(&self.data.table.schema)),
            ("options", json(&self.data.options)),
        ]
    }

    fn finish(&self, tensors: &Tensors) -> Result<Option<Finished>, TaskError> {
        let table = &self.data.table;
        let search = self.data.options.trials.is_some();
        let predictor = self.chosen(tensors)?;
        let of = |rows: &[usize]| predictor.judge(table, rows);
        let (validation, test) = (of(&table.rows.validation), of(&table.rows.test));
        let target = self.target();
        let importance = predictor.importance(table);
        let mut report = format!(
            "{}\n{}\n",
            test.describe("test", "rows", target),
            describe_importance(&importance)
        );
        if self.plans.len() > 1 {
            report += "LightGBM or XGBoost often do better on tables; try them too\n";
        }
        let mut finished = Finished {
            report,
            card: card(table.name(), &table.schema, &test, &importance),
            metadata: vec![
                ("weights", json(&predictor.weights())),
                ("decision", json(&predictor.decision())),
                ("importance", json(&importance)),
                ("validation", json::<Judged>(&validation)),
                ("test", json::<Judged>(&test)),
            ],
        };
        if search {
            let trials = predictor.trials(table, &self.plans, Plan::USUAL);
            let board = Leaderboard {
                trials: &trials,
                target,
                name: table.name(),
                options: &self.data.options,
                rows: table.rows.validation.len(),
            };
            finished.report.insert_str(0, &board.describe());
            finished.card += &board.card();
            finished.metadata.push(("trials", json(&trials)));
        }
        Ok(Some(finished))
    }

    fn live(&self, tensors: &Tensors) -> Result<Option<Box<dyn Predict>>, TaskError> {
        Ok(Some(Box::new(Answers(self.chosen(tensors)?))))
    }

    fn test<'a>(
        &'a self,
        metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<TestPart<'a>>, TaskError> {
        let (table, predictor) = (&self.data.table, predictor(metadata, tensors)?);
        let target = self.target();
        let tested = move |rows: &'a [usize]| {
            let answers = rows.iter().map(|row| predictor.answer(table.cells(*row)));
            let right = rows.iter().map(|row| table.target(*row));
            Ok(match target {
                Target::Number { .. } => Tested {
                    answers: answers.map(|answer| answer[0] as f32).collect(),
                    right: Right::Numbers(right.map(|number| number as f32).collect()),
                },
                Target::Class { .. } => Tested {
                    answers: answers
                        .flat_map(|answer| logarithms(&answer).collect::<Vec<_>>())
                        .collect(),
                    right: Right::Classes(right.map(|class| class as usize).collect()),
                },
            })
        };
        let parts = table.rows.test.chunks(EVALUATION_BATCH);
        Ok(Some(Box::new(parts.map(tested))))
    }

    fn predictor(
        metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<Box<dyn Predict>>, TaskError> {
        Ok(Some(Box::new(Answers(predictor(metadata, tensors)?))))
    }

    /// The hidden units of each network.
    fn pruning(
        config: &Options,
        metadata: &BTreeMap<String, String>,
        keep: f64,
    ) -> Result<Option<Pruning<Options>>, TaskError> {
        let smaller = Options {
            width: ((f64::from(config.width) * keep).round() as u32).max(1),
            init: String::new(),
            ..config.clone()
        };
        let schema: Schema = read(metadata, "schema")?;
        let plans = |options| Plan::of(options, &Features::of(&schema), schema.target.outputs());
        let units = pruning::units(&plans(config)?, &plans(&smaller)?);
        // A linear model has none.
        Ok((!units.is_empty()).then(|| Pruning {
            metadata: vec![("options", json(&smaller))],
            config: smaller,
            units,
        }))
    }

    fn pieces(&self, samples: usize) -> usize {
        samples / PIECE
    }
}

impl TableTask {
    fn target(&self) -> &Target {
        &self.data.table.schema.target
    }

    fn outputs(&self) -> usize {
        self.target().outputs()
    }

    /// The networks, which count as the validation rows say.
    fn chosen(&self, tensors: &Tensors) -> Result<Predictor, TaskError> {
        let usual = match self.data.options.trials {
            Some(_) => Plan::USUAL,
            None => self.plans.len(),
        };
        let network = network(&self.plans, self.outputs(), tensors)?;
        Ok(Predictor::chosen(
            &self.data.table,
            network,
            usual,
            &self.data.options,
        )?)
    }

    /// What rows would be without the model: `[rows, 1]`.
    fn bases(&self, learnt: &Learnt, rows: &[usize], device: &Device) -> Tensor<2> {
        let base = |row: &usize| learnt.base(self.data.table.cells(*row)) as f32;
        let bases: Vec<f32> = rows.iter().map(base).collect();
        Tensor::from_data(TensorData::new(bases, [rows.len(), 1]), device)
    }

    /// Inputs `[rows, width]`, targets `[rows, outputs]`, and what hidden units are multiplied by, `[rows, units]`.
    fn tensors(&self, batch: Batch, device: &Device) -> (Tensor<2>, Tensor<2>, Option<Tensor<2>>) {
        let of = |numbers: Vec<f32>| {
            let shape = [batch.rows, numbers.len() / batch.rows];
            Tensor::from_data(TensorData::new(numbers, shape), device)
        };
        let kept = (!batch.kept.is_empty()).then(|| of(batch.kept));
        (of(batch.inputs), of(batch.targets), kept)
    }
}

fn network(plans: &[Plan], outputs: usize, tensors: &Tensors) -> Result<Network, TaskError> {
    let network = Network::of(plans, outputs, |name| tensors.get(name));
    network.ok_or_else(|| "the tensors are not those of the table's model".into())
}

pub(super) fn json<T: Serialize>(value: &T) -> String {
    // Plain data with text keys; numbers that are not finite become null.
    serde_json::to_string(value).expect("plain data can be written as JSON")
}

#[cfg(test)]
mod tests;
