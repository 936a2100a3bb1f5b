//! Optimizers as text: a name, then settings that differ from PyTorch's defaults.

use std::fmt;
use std::str::FromStr;

use super::{OptimError, Optimizer};

/// All names that [`Optimizer::parse`] knows.
pub(super) const NAMES: [&str; 6] = ["sgd", "momentum", "nesterov", "rmsprop", "adam", "adamw"];

impl Optimizer {
    /// The optimizer of that name with the defaults of `torch.optim`. PyTorch has no default for the momentum;
    /// 0.9 is the usual one, also of DiLoCo's outer Nesterov (Douillard et al. 2023).
    fn with_defaults(name: &str) -> Option<Self> {
        Some(match name {
            "sgd" => Self::Sgd { weight_decay: 0.0 },
            "momentum" | "nesterov" => Self::Momentum {
                momentum: 0.9,
                nesterov: name == "nesterov",
                weight_decay: 0.0,
            },
            "rmsprop" => Self::RmsProp {
                alpha: 0.99,
                eps: 1e-8,
                weight_decay: 0.0,
            },
            "adam" => Self::Adam {
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.0,
            },
            "adamw" => Self::AdamW {
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.01,
            },
            _ => return None,
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Momentum { nesterov: false, .. } => "momentum",
            Self::Momentum { nesterov: true, .. } => "nesterov",
            Self::RmsProp { .. } => "rmsprop",
            Self::Adam { .. } => "adam",
            Self::AdamW { .. } => "adamw",
        }
    }

    /// The hyper-parameters that are numbers, by name.
    pub(super) fn settings(&self) -> Vec<(&'static str, f32)> {
        let mut copy = self.clone();
        copy.settings_mut()
            .into_iter()
            .map(|(name, value)| (name, *value))
            .collect()
    }

    /// Takes one `name=number`.
    fn set(&mut self, text: &str) -> Option<()> {
        let (name, number) = text.split_once('=')?;
        let number = number.parse().ok()?;
        let mut settings = self.settings_mut();
        let (_, value) = settings.iter_mut().find(|(known, _)| *known == name)?;
        **value = number;
        Some(())
    }

    fn settings_mut(&mut self) -> Vec<(&'static str, &mut f32)> {
        match self {
            Self::Sgd { weight_decay } => vec![("weight_decay", weight_decay)],
            Self::Momentum {
                momentum,
                weight_decay,
                ..
            } => vec![("momentum", momentum), ("weight_decay", weight_decay)],
            Self::RmsProp {
                alpha,
                eps,
                weight_decay,
            } => vec![("alpha", alpha), ("eps", eps), ("weight_decay", weight_decay)],
            Self::Adam {
                beta1,
                beta2,
                eps,
                weight_decay,
            }
            | Self::AdamW {
                beta1,
                beta2,
                eps,
                weight_decay,
            } => vec![
                ("beta1", beta1),
                ("beta2", beta2),
                ("eps", eps),
                ("weight_decay", weight_decay),
            ],
        }
    }
}

impl FromStr for Optimizer {
    type Err = OptimError;

    fn from_str(text: &str) -> Result<Self, OptimError> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let mut optimizer =
            Self::with_defaults(name).ok_or_else(|| OptimError::UnknownName(name.to_owned()))?;
        for word in words {
            optimizer.set(word).ok_or_else(|| OptimError::BadSetting {
                text: word.to_owned(),
                known: optimizer.settings().into_iter().map(|(name, _)| name).collect(),
            })?;
        }
        optimizer.check()?;
        Ok(optimizer)
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for (name, value) in self.settings() {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}
