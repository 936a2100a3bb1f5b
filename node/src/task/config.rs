//! A task's settings: from `key=value` pairs, from and to JSON text.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

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
