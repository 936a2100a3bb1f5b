//! The learning-rate schedule, which several settings make up.

use super::values::{number, real};
use crate::cli::error::Error;
use crate::cli::keys::Key;
use annulus_core::optim::Schedule;
use std::num::NonZeroU64;
use std::str::FromStr;

/// The schedules, and which settings each of them has.
const SCHEDULES: &[(&str, &[&str])] = &[
    ("constant", &["warmup"]),
    ("warmup", &["warmup"]),
    ("cosine", &["warmup", "floor"]),
    ("linear", &["warmup", "floor"]),
    ("step", &["warmup", "step_size", "gamma"]),
    ("one-cycle", &["pct_start"]),
];

fn settings_of(schedule: &str) -> Option<&'static [&'static str]> {
    let mut all = SCHEDULES.iter();
    all.find(|(name, _)| *name == schedule)
        .map(|(_, settings)| *settings)
}

/// Its settings as they were given: the layer that each comes from, its name and its value.
#[derive(Default)]
pub(super) struct Said(Vec<(usize, &'static str, String)>);

impl Said {
    /// Takes a setting; or why it cannot have that value.
    pub fn add(&mut self, layer: usize, key: &Key, text: &str) -> Result<(), String> {
        match key.name {
            "schedule" if settings_of(text).is_none() => {
                return Err(format!("choose one of {}", key.value.replace('|', ", ")));
            }
            "warmup" => drop(number::<u64>(text)?),
            "step_size" => drop(number::<NonZeroU64>(text)?),
            "floor" | "gamma" | "pct_start" => drop(real(text, |x| (0.0..=1.0).contains(&x), "from 0 to 1")?),
            _ => {}
        }
        self.0.retain(|(_, name, _)| *name != key.name);
        self.0.push((layer, key.name, text.to_owned()));
        Ok(())
    }

    fn get<T: FromStr>(&self, name: &str) -> Option<T> {
        let (.., text) = self.0.iter().find(|(_, of, _)| *of == name)?;
        text.parse().ok()
    }

    /// The schedule; its length is not known yet.
    pub fn schedule(mut self) -> Result<Schedule, Error> {
        let kind = self.get("schedule").unwrap_or_else(|| "constant".to_owned());
        let has = settings_of(&kind).unwrap_or_default();
        // The task's own values suit its own schedule only.
        self.0
            .retain(|(layer, name, _)| *layer > 0 || *name == "schedule" || has.contains(name));
        let other = self.0.iter().map(|(_, name, _)| *name);
        if let Some(other) = other
            .filter(|name| *name != "schedule")
            .find(|name| !has.contains(name))
        {
            let takes = SCHEDULES.iter().filter(|(_, settings)| settings.contains(&other));
            let takes: Vec<&str> = takes.map(|(name, _)| *name).collect();
            return Err(Error::usage(format!(
                "{other} does not go with schedule={kind}: leave it out, or write schedule={}",
                takes.join(" or schedule=")
            )));
        }
        let (warmup, floor, total) = (self.get("warmup").unwrap_or(0), self.get("floor"), 0);
        Ok(match kind.as_str() {
            "cosine" => Schedule::Cosine {
                warmup,
                total,
                floor: floor.unwrap_or(0.1),
            },
            "linear" => Schedule::Linear {
                warmup,
                total,
                floor: floor.unwrap_or(0.0),
            },
            "step" => Schedule::Step {
                warmup,
                size: self.get("step_size").ok_or_else(|| {
                    Error::usage("schedule=step needs the batches at one rate: add step_size=N")
                })?,
                gamma: self.get("gamma").unwrap_or(0.1),
            },
            "one-cycle" => Schedule::OneCycle {
                total,
                rise: self.get("pct_start").unwrap_or(0.3),
            },
            "warmup" if warmup == 0 => {
                return Err(Error::usage("schedule=warmup needs a length: add warmup=N"));
            }
            _ if warmup == 0 => Schedule::Constant,
            _ => Schedule::Warmup { steps: warmup },
        })
    }
}
