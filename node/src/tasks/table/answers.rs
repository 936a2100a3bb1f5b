//! A trained model of a table that answers new rows.

use super::network;
use crate::task::{Predict, Predicted, Scored, TaskError, Tensors};
use annulus_table::{Decision, Features, Options, Plan, Predictor, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// What predicts rows as a model file says.
pub(super) fn predictor(
    metadata: &BTreeMap<String, String>,
    tensors: &Tensors,
) -> Result<Predictor, TaskError> {
    let schema: Schema = read(metadata, "schema")?;
    let options: Options = read(metadata, "options")?;
    let weights: Vec<f64> = read(metadata, "weights")?;
    let outputs = schema.target.outputs();
    let plans = Plan::of(&options, &Features::of(&schema), outputs)?;
    let network = network(&plans, outputs, tensors)?;
    if weights.len() != plans.len() {
        return Err("the model file has weights for another number of members: export it again".into());
    }
    // Files of earlier versions lack it.
    let decision = match metadata.contains_key("decision") {
        true => read(metadata, "decision")?,
        false => Decision::default(),
    };
    Ok(Predictor::new(schema, network, weights, decision))
}

/// A model file's predictor.
pub(super) struct Answers(pub Predictor);

impl Predict for Answers {
    fn predict(&self, name: &str, rows: &[u8]) -> Result<Predicted, TaskError> {
        Ok(self.0.predict(name, rows)?)
    }

    fn score(&self, name: &str, rows: &[u8]) -> Result<(Scored, Vec<String>), TaskError> {
        let (judged, notes) = self.0.score(name, rows)?;
        let named = judged
            .metrics
            .iter()
            .map(|metric| (metric.name.clone(), metric.value.into()));
        let scored = Scored {
            report: judged.describe(name, "rows", &self.0.schema().target),
            metrics: Value::Object(named.collect()),
        };
        Ok((scored, notes))
    }

    fn answer(&self, rows: &Value) -> Result<Value, TaskError> {
        Ok(self.0.answer_json(rows)?)
    }

    fn inputs(&self) -> Value {
        self.0.inputs_json()
    }
}

/// What a model file's metadata says under a key.
pub(in crate::tasks) fn read<T: DeserializeOwned>(
    metadata: &BTreeMap<String, String>,
    key: &str,
) -> Result<T, TaskError> {
    let text = metadata.get(key).ok_or_else(|| {
        format!(
            "the model file says nothing of its {key}: export it with the run's data at hand (--data FILE)"
        )
    })?;
    serde_json::from_str(text)
        .map_err(|error| format!("the model file's {key} cannot be read: {error}").into())
}
