//! The rows of a table as training data.

use super::{Batch, Rows, json};
use crate::options::seconds;
use crate::task::{Dataset, Draw, TaskError};
use annulus_core::Digest;
use annulus_core::random::SplitMix;
use annulus_table::{Options, Table, Target};
use std::time::Duration;

impl Rows {
    /// Inputs and targets of these rows of the table.
    pub(super) fn of(&self, rows: &[usize]) -> Batch {
        let target = &self.table.schema.target;
        let mut batch = Batch {
            inputs: Vec::with_capacity(rows.len() * self.features.width()),
            targets: Vec::with_capacity(rows.len() * target.outputs()),
            weights: Vec::new(),
            kept: Vec::new(),
            rows: rows.len(),
        };
        for row in rows {
            self.features.write(self.table.cells(*row), &mut batch.inputs);
            let value = self.table.target(*row);
            let weight = (self.table.weight(*row) / self.mean_weight) as f32;
            match target {
                Target::Number { .. } => {
                    batch.targets.push(target.scaled(value, self.table.cells(*row)));
                    batch.weights.push(weight);
                }
                Target::Class { classes, .. } => batch.targets.extend((0..classes.len()).map(|class| {
                    let is = class as f64 == value;
                    if is {
                        weight * self.weights.get(class).copied().unwrap_or(1.0)
                    } else {
                        0.0
                    }
                })),
            }
        }
        if self.options.weight.is_empty() {
            batch.weights.clear();
        }
        batch
    }
}

impl Dataset for Rows {
    type Batch = Batch;

    fn len(&self) -> u64 {
        self.table.rows.train.len() as u64
    }

    /// Covers all parts, since moving a border between them changes the training rows.
    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, samples: &[u64]) -> Batch {
        let rows: Vec<usize> = samples
            .iter()
            .map(|sample| self.table.rows.train[*sample as usize])
            .collect();
        self.of(&rows)
    }

    /// Draws which hidden units each row leaves out.
    fn drawn(&self, draws: &[Draw]) -> Batch {
        let samples: Vec<u64> = draws.iter().map(|draw| draw.sample).collect();
        let mut batch = self.batch(&samples);
        for draw in draws {
            let mut random = SplitMix(draw.seed);
            for (units, dropout) in &self.dropped {
                let factor = 1.0 / (1.0 - dropout);
                let drawn = (0..*units).map(|_| random.unit() >= f64::from(*dropout));
                batch
                    .kept
                    .extend(drawn.map(|keep| if keep { factor } else { 0.0 }));
            }
        }
        batch
    }
}

/// How long the options let a run take.
pub(super) fn time(options: &Options) -> Result<Option<Duration>, TaskError> {
    let read = |time: &str| seconds(time).map_err(|why| format!("time={time} is not possible: {why}"));
    let time = Some(options.time.as_str()).filter(|time| !time.is_empty());
    Ok(time.map(read).transpose()?.map(Duration::from_secs))
}

/// A hash of all that a peer derives from the file.
pub(super) fn digest(table: &Table, options: &Options, weights: Option<&[u8]>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(json(&table.schema).as_bytes());
    // Settings of the model alone are no part of the data.
    let of_data = Options {
        width: Options::default().width,
        time: String::new(),
        init: String::new(),
        ..options.clone()
    };
    hasher.update(json(&of_data).as_bytes());
    table.identity(|bytes| {
        hasher.update(bytes);
    });
    if let Some(weights) = weights {
        hasher.update(weights);
    }
    Digest(*hasher.finalize().as_bytes())
}

/// The mean weight of the training rows.
pub(super) fn mean_weight(table: &Table) -> Result<f64, TaskError> {
    let rows = &table.rows.train;
    let mean = rows.iter().map(|row| table.weight(*row)).sum::<f64>() / rows.len() as f64;
    match mean > 0.0 {
        true => Ok(mean),
        false => Err(
            "all training rows have the weight 0: name another column after weight, or leave it out".into(),
        ),
    }
}
