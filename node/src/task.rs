//! What a user implements to train a model of their own: [`Task`].
//!
//! A task knows its data, its model and its loss. It knows nothing of peers, rounds, gradients or
//! optimizers, nor which device it runs on.

use std::pin::Pin;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use crate::data::{Data, DataFile};
pub use annulus_core::Digest;

/// Why a task could not be set up; whatever the task says, for a person to read.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// A model, the data it learns from, and the loss that says how well.
///
/// All peers of a run must build the same model from the same data; [`digest`](Self::digest) and
/// [`Config`](Self::Config) are how they notice if they do not.
pub trait Task: Send + Sync + Sized + 'static {
    /// A Burn module. Its float parameters are what is trained.
    type Model: Module;

    /// The task's settings: a struct with `#[serde(default, deny_unknown_fields)]`, each field of
    /// which can be set by `key=value`; `()` if there are none.
    type Config: Serialize + DeserializeOwned + Default;

    /// The name under which the task is chosen, such as `digits`.
    const NAME: &'static str;

    /// One line about it, for help texts.
    const ABOUT: &'static str = "";

    /// Settings of a run that suit it, where they differ from the program's: `key=value` as on the command line.
    /// What a user sets wins.
    const SETTINGS: &'static [&'static str] = &[];

    /// Loads the data; `data` is the file or folder that the user gave, if any: on disk, or in the memory of a tab that
    /// has fetched it from a peer. Only the files that are asked for here are handed to peers that lack them.
    ///
    /// # Errors
    ///
    /// If the settings make no sense or the data cannot be read.
    fn new(config: Self::Config, data: Option<&Data>) -> Result<Self, TaskError>;

    /// Samples to train on: they are called 0 to `samples() - 1`.
    fn samples(&self) -> u64;

    /// A hash of the training data. A peer with another one is refused.
    fn digest(&self) -> Digest;

    /// A fresh model on `device`. Random initial parameters come from Burn's initializers, which
    /// are seeded before the call.
    fn model(&self, device: &Device) -> Self::Model;

    /// The mean loss over `samples` (never empty), as a tensor of one element that gradients can be
    /// taken of.
    fn loss(&self, model: &Self::Model, samples: &[u64], device: &Device) -> Tensor<1>;

    /// How many pieces a batch of so many samples is cut into, for the cores of a processor to work on at once. It must
    /// depend on nothing else: sums are rounded piece by piece, and every machine is to get the same bits. It must be 1
    /// where the loss draws random numbers.
    fn pieces(&self, samples: usize) -> usize {
        let _ = samples;
        1
    }

    /// Whether to keep less of the way forward in memory and to compute it again on the way back: slower, for where
    /// memory is short. The result is the same.
    fn recompute(&self) -> bool {
        false
    }

    /// Goes on after a prompt, for tasks that learn to write: hands text out as it comes, and says whether it can at all.
    fn write<'a>(
        &'a self,
        model: &'a Self::Model,
        prompt: &'a Prompt,
        device: &'a Device,
        emit: Emit<'a>,
    ) -> Writing<'a> {
        let _ = (model, prompt, device, emit);
        Box::pin(async { Ok(false) })
    }

    /// How good `model` is on held-out data. Without held-out data, nothing.
    fn evaluate(&self, model: &Self::Model, device: &Device) -> Option<Scores> {
        let _ = (model, device);
        None
    }
}

/// Takes pieces of text, one after the other: the next is asked for once the future is done.
pub type Emit<'a> = &'a mut dyn FnMut(&str) -> Pin<Box<dyn Future<Output = ()>>>;

/// What [`Task::write`] is at.
pub type Writing<'a> = Pin<Box<dyn Future<Output = Result<bool, TaskError>> + 'a>>;

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The text to go on from.
    pub text: String,
    /// How many tokens.
    pub tokens: usize,
    /// Below 1 the likely becomes likelier; 0 always takes the likeliest.
    pub temperature: f64,
    /// Picks one of the texts.
    pub seed: u64,
}

/// What [`Task::evaluate`] measures, still on the device: tensors of one element.
#[derive(Debug)]
pub struct Scores {
    /// Mean loss.
    pub loss: Tensor<1>,
    /// Share of right answers, 0 to 1, for tasks that have such a thing.
    pub accuracy: Option<Tensor<1>>,
}

/// Scores as numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eval {
    /// Mean loss.
    pub loss: f32,
    /// Share of right answers, 0 to 1.
    pub accuracy: Option<f32>,
}

/// Why settings were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The task has no setting of this name.
    #[error("unknown setting {key:?}: this task {}", known_settings(.known))]
    UnknownKey {
        /// The name that was given.
        key: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// A value is of the wrong kind or out of bounds, or the text is no JSON at all.
    #[error("bad task setting: {problem}")]
    BadValue {
        /// What is wrong.
        problem: String,
    },
}

fn known_settings(known: &[String]) -> String {
    match known {
        [] => "has no settings".into(),
        known => format!("knows {}", known.join(", ")),
    }
}

/// The default settings, changed by `key=value` pairs in order.
///
/// A value is read as JSON where that fits (`3`, `0.5`, `true`), and as plain text otherwise.
///
/// # Errors
///
/// If a key is unknown or a value does not fit its key.
pub fn config_from_pairs<C>(pairs: &[(String, String)]) -> Result<C, ConfigError>
where
    C: Serialize + DeserializeOwned + Default,
{
    let mut value = to_value(&C::default());
    for (key, text) in pairs {
        let known = value.as_object_mut();
        let Some(slot) = known.and_then(|fields| fields.get_mut(key)) else {
            return Err(ConfigError::UnknownKey {
                key: key.clone(),
                known: keys(&value),
            });
        };
        // What is text by default stays text, so that a name made of digits is a name.
        *slot = match serde_json::from_str(text) {
            Ok(parsed) if !slot.is_string() => parsed,
            _ => Value::String(text.clone()),
        };
        // At once, so that the message can name the key.
        serde_json::from_value::<C>(value.clone()).map_err(|error| ConfigError::BadValue {
            problem: format!("{key}={text}: {error}"),
        })?;
    }
    from_value(value)
}

/// Settings from the JSON text that [`config_to_json`] wrote, perhaps on another peer.
///
/// # Errors
///
/// If the text is not JSON or does not fit the settings.
pub fn config_from_json<C: DeserializeOwned>(text: &str) -> Result<C, ConfigError> {
    serde_json::from_str(text).map_err(|error| ConfigError::BadValue {
        problem: error.to_string(),
    })
}

/// Settings as JSON text, all keys included: the same text for the same settings.
pub fn config_to_json<C: Serialize>(config: &C) -> String {
    to_value(config).to_string()
}

fn to_value<C: Serialize>(config: &C) -> Value {
    // Only a map with keys that are not text, or a type that refuses, cannot be written.
    serde_json::to_value(config).expect("a task's settings can be written as JSON")
}

fn from_value<C: DeserializeOwned>(value: Value) -> Result<C, ConfigError> {
    serde_json::from_value(value).map_err(|error| ConfigError::BadValue {
        problem: error.to_string(),
    })
}

fn keys(value: &Value) -> Vec<String> {
    let fields = value.as_object();
    fields.map_or_else(Vec::new, |fields| fields.keys().cloned().collect())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Sample {
        model: String,
        hidden: usize,
        rate: f32,
    }

    impl Default for Sample {
        fn default() -> Self {
            Self {
                model: "mlp".to_owned(),
                hidden: 128,
                rate: 0.5,
            }
        }
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
        pairs.iter().map(owned).collect()
    }

    fn sample(given: &[(&str, &str)]) -> Result<Sample, ConfigError> {
        config_from_pairs(&pairs(given))
    }

    #[test]
    fn pairs_change_the_defaults() {
        let config = sample(&[("hidden", "7"), ("model", "8"), ("hidden", "9")]).unwrap();
        assert_eq!(
            config,
            Sample {
                model: "8".to_owned(),
                hidden: 9,
                rate: 0.5
            }
        );
    }

    #[test]
    fn an_unknown_key_names_the_known_ones() {
        let error = sample(&[("width", "7")]).unwrap_err().to_string();
        assert!(error.contains("\"width\"") && error.contains("hidden, model, rate"));
        let error = config_from_pairs::<()>(&pairs(&[("width", "7")])).unwrap_err();
        assert!(error.to_string().contains("no settings"));
    }

    #[test]
    fn a_bad_value_names_its_key() {
        for text in ["-1", "many", "1.5", "[]"] {
            let error = sample(&[("hidden", text)]).unwrap_err().to_string();
            assert!(error.contains(&format!("hidden={text}")), "{error}");
        }
    }

    #[test]
    fn settings_survive_the_way_through_text() {
        let config = sample(&[("rate", "0.1")]).unwrap();
        let text = config_to_json(&config);
        assert_eq!(config_from_json::<Sample>(&text).unwrap(), config);
        assert_eq!(config_from_json::<()>(&config_to_json(&())), Ok(()));
        let unknown = config_from_json::<Sample>(r#"{"depth":3}"#).unwrap_err();
        assert!(unknown.to_string().contains("depth"));
        assert!(config_from_json::<Sample>("{").is_err());
    }
}
