//! The leaderboard of a search: which settings did how well, and how to train the best of them alone.

use crate::number::{grouped, short};
use crate::options::Options;
use crate::schema::Target;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::Write;

/// One of the networks of a search, and how well it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its number, from 1.
    pub number: usize,
    /// Its own loss on the validation rows: the mean squared error, or the log loss.
    pub loss: f64,
    /// How much it counts in the model, between 0 and 1.
    pub share: f64,
    /// The settings that train it alone, as a person types them; none of the usual model.
    pub settings: Vec<String>,
}

impl Trial {
    fn words(&self) -> String {
        match self.settings.is_empty() {
            true => "the networks of annulus train".into(),
            false => self.settings.join(" "),
        }
    }
}

/// The trials of a search.
#[derive(Clone, Debug)]
pub struct Leaderboard<'a> {
    /// The best first.
    pub trials: &'a [Trial],
    /// What they predict.
    pub target: &'a Target,
    /// The file with their table.
    pub name: &'a str,
    /// The search's options.
    pub options: &'a Options,
    /// How many validation rows there are.
    pub rows: usize,
}

impl Leaderboard<'_> {
    /// In lines, for people.
    pub fn describe(&self) -> String {
        let (metric, _) = self.metric();
        let rows = grouped(self.rows as u64);
        let mut text = format!(
            "trials by their loss on {rows} validation rows, and how much each counts in the model:\n"
        );
        let _ = writeln!(text, "  trial {metric:>10}  share  settings");
        for trial in self.trials {
            let (score, share) = (short(self.metric().1(trial.loss)), share(trial));
            let (number, settings) = (trial.number, trial.words());
            let _ = writeln!(text, "  {number:>5} {score:>10} {share:>6}  {settings}");
        }
        let _ = writeln!(text, "the best alone: {}", self.command());
        text
    }

    /// As Markdown, for the model card.
    pub fn card(&self) -> String {
        let mut text = format!(
            "\n## Search\n\nThe model is a mean of these trials. The validation rows say how much each counts.\n\n\
             | trial | {} on {} validation rows | share | settings |\n|---|---|---|---|\n",
            self.metric().0,
            grouped(self.rows as u64)
        );
        for trial in self.trials {
            let score = short(self.metric().1(trial.loss));
            let (share, settings) = (share(trial), trial.words());
            let _ = writeln!(text, "| {} | {score} | {share} | `{settings}` |", trial.number);
        }
        let _ = writeln!(text, "\nTo train the best alone: `{}`", self.command());
        text
    }

    /// The name of the score that people know, and how it follows from the loss.
    fn metric(&self) -> (&'static str, fn(f64) -> f64) {
        match self.target {
            Target::Number { .. } => ("rmse", f64::sqrt),
            Target::Class { .. } => ("log_loss", |loss| loss),
        }
    }

    /// Trains the best alone.
    fn command(&self) -> String {
        let alone = Options {
            trials: None,
            ..self.options.clone()
        };
        let mut words = vec!["--data".to_owned(), quoted(self.name)];
        words.extend(changed_settings(&fields(&alone), &fields(&Options::default())));
        words.extend(
            self.trials
                .first()
                .into_iter()
                .flat_map(|best| best.settings.clone()),
        );
        format!("annulus train {}", words.join(" "))
    }
}

/// The settings that differ from the usual ones, as words for a shell: `KEY=VALUE`, or `KEY.ENTRY=VALUE` of maps.
pub fn changed_settings(settings: &Map<String, Value>, usual: &Map<String, Value>) -> Vec<String> {
    let mut words = Vec::new();
    for (key, value) in settings {
        match value {
            _ if usual.get(key) == Some(value) => {}
            Value::Object(entries) => {
                words.extend(
                    entries
                        .iter()
                        .map(|(entry, value)| format!("{key}.{entry}={}", bare(value))),
                );
            }
            value => words.push(format!("{key}={}", bare(value))),
        }
    }
    words.iter().map(|word| quoted(word)).collect()
}

fn share(trial: &Trial) -> String {
    match trial.share {
        0.0 => "-".into(),
        share => format!("{:.0} %", 100.0 * share),
    }
}

fn fields(options: &Options) -> Map<String, Value> {
    match serde_json::to_value(options) {
        Ok(Value::Object(fields)) => fields,
        // Options are plain data with text keys.
        _ => Map::new(),
    }
}

fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=./+:,%@".contains(letter);
    match word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
