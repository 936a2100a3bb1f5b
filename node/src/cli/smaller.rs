//! What `quantize` and `prune` share: their settings, the table of what a smaller model costs, and whether it costs too much.

use super::error::Error;
use super::human;
use super::keys::did_you_mean;
use super::output;
use crate::offline::compare::{Alike, Compared, compare};
use crate::offline::present::save_present;
use crate::offline::saved::{Saved, write};
use crate::store::which::Which;
use crate::task_factory::TaskFactory;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Most points that a score may fall where the user names none. A guess, and what the tests ask of 4 bits.
const MAX_DROP: f64 = 1.0;

/// The model that becomes smaller, and the file that it becomes.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// The model: a file that `annulus export` wrote, or a run's folder.
    pub model: PathBuf,
    /// The file to write (default: beside the model, as model-q8.safetensors or model-pruned.safetensors). An existing file is replaced.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The data that the model was trained on, if it is not found here.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The checkpoint of a run's folder: newest, best (of a run with keep_best=on), or the round after which it was saved.
    #[arg(long, value_name = "ROUND", default_value = "newest")]
    pub round: Which,
}

impl Files {
    /// Reads the model.
    pub(super) fn open(&self, tasks: &[TaskFactory]) -> Result<Saved, Error> {
        save_present(&self.model, self.round).map_err(Error::of)?;
        Saved::open((&self.model, self.round), self.data.as_deref(), tasks).map_err(Error::of)
    }

    /// The file to write.
    pub(super) fn smaller(&self, model: &Saved, suffix: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| model.beside(suffix))
    }
}

/// Settings by name.
pub(super) struct Settings<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Settings<'a> {
    /// Reads `KEY=VALUE` words with these keys.
    pub(super) fn read(words: &'a [String], known: &[&str]) -> Result<Self, Error> {
        let mut settings = BTreeMap::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return Err(Error::usage(format!(
                    "`{word}` is not understood: settings are KEY=VALUE"
                )));
            };
            if !known.contains(&key) {
                let meant = did_you_mean(key, known.iter().copied());
                return Err(Error::usage(format!("there is no setting {key} here{meant}")));
            }
            settings.insert(key, value);
        }
        Ok(Self(settings))
    }

    /// A number, at least 0; none if it is not given.
    pub(super) fn get(&self, key: &str) -> Result<Option<f64>, Error> {
        let number = |text: &&str| {
            let number = text.parse().ok().filter(|number: &f64| *number >= 0.0);
            number.ok_or_else(|| {
                Error::usage(format!(
                    "{key}={text} is not possible: it must be a number, at least 0"
                ))
            })
        };
        self.0.get(key).map(number).transpose()
    }
}

/// Has both models answer the test part of the data, if that is here, and prints the table. Also the smaller model's file.
pub(super) fn compared(
    before: &Saved,
    after: &Saved,
    files: &Files,
    tasks: &[TaskFactory],
) -> Result<(Option<Compared>, Vec<u8>), Error> {
    let bytes = |model: &Saved| model.to_bytes().map_err(Error::of);
    let (first, second) = (bytes(before)?.len(), bytes(after)?);
    let loaded = before
        .load_task(files.data.as_deref(), tasks)
        .map_err(Error::of)?;
    let compared = match &loaded {
        None => None,
        Some(loaded) => {
            let of_after = after.load_like(loaded, tasks).map_err(Error::of)?;
            compare((before, loaded), (after, &of_after))?
        }
    };
    output::print(&table((first, second.len()), compared.as_ref()));
    if compared.is_none() {
        let why = match loaded {
            None => {
                "the data that the model was trained on is not here: name it by --data to see what was lost"
            }
            Some(_) => "the task has no test part with right answers to compare the models by",
        };
        output::note(&format!("note: {why}"));
    }
    Ok((compared, second))
}

/// Writes the smaller model.
pub(super) fn written(file: &Path, bytes: &[u8]) -> Result<(), Error> {
    write(file, bytes).map_err(Error::of)?;
    output::print(&format!("model: {}\n", file.display()));
    Ok(())
}

/// What became of the model, before and after.
fn table((before, after): (usize, usize), compared: Option<&Compared>) -> String {
    let share = after as f64 / before as f64;
    let mut rows = vec![(
        "bytes",
        human::grouped(before as u64),
        human::grouped(after as u64),
        human::percent(share, 1),
    )];
    if let Some(compared) = compared {
        let of_classes = compared.alike.is_some();
        let loss = if of_classes { "loss" } else { "rmse" };
        let score = |score: f64| match of_classes {
            true => human::percent(score, 2),
            false => format!("{score:.4}"),
        };
        let (first, second) = (compared.before, compared.after);
        let more = format!("{:+.2} %", 100.0 * (second.loss / first.loss - 1.0));
        rows.push((
            loss,
            format!("{:.4}", first.loss),
            format!("{:.4}", second.loss),
            more,
        ));
        // Not -0.00.
        let points = format!("{:+.2} points", 0.0 - (100.0 * compared.drop()).round() / 100.0);
        rows.push((compared.score(), score(first.score), score(second.score), points));
        if let Some(Alike { same, divergence }) = compared.alike {
            rows.push((
                "same answers",
                String::new(),
                human::percent(same, 2),
                String::new(),
            ));
            rows.push((
                "mean KL",
                String::new(),
                format!("{divergence:.6}"),
                String::new(),
            ));
        }
    }
    let mut text = format!("{:<12} {:>13} {:>13}\n", "", "before", "after");
    for (name, first, second, change) in rows {
        let line = format!("{name:<12} {first:>13} {second:>13}  {change}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if let Some(compared) = compared {
        let _ = writeln!(
            text,
            "on {} of the test part",
            human::plural(compared.samples, "sample")
        );
    }
    text
}

/// Fails if the model lost more than it may. `remedy`: what to do instead, before another limit.
pub(super) fn kept(
    compared: Option<&Compared>,
    most: Option<f64>,
    (file, remedy): (&Path, &str),
) -> Result<(), Error> {
    let Some(compared) = compared else {
        return match most {
            None => Ok(()),
            Some(_) => Err(Error::failed(
                "max_drop cannot be checked without the data: name it by --data, or leave max_drop out",
            )),
        };
    };
    let (most, drop) = (most.unwrap_or(MAX_DROP), compared.drop());
    // Also if the drop is no number.
    if drop <= most {
        return Ok(());
    }
    let (file, score) = (file.display(), compared.score());
    Err(Error::failed(format!(
        "{file} is not written: {score} falls by {drop:.2} points, and max_drop={most} allows no more than that. To go on, \
         {remedy}allow it with max_drop={}",
        (drop * 10.0).ceil() / 10.0
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::compare::Quality;

    fn compared(after: f64) -> Compared {
        Compared {
            samples: 1_000,
            before: Quality {
                loss: 0.1,
                score: 0.975,
            },
            after: Quality {
                loss: 0.12,
                score: after,
            },
            alike: Some(Alike {
                same: 0.99,
                divergence: 0.00125,
            }),
        }
    }

    #[test]
    fn a_table_tells_before_and_after() {
        let text = table((407_080, 113_220), Some(&compared(0.9725)));
        for part in [
            "bytes              407,080       113,220  27.8 %\n",
            "loss                0.1000        0.1200  +20.00 %\n",
            "accuracy           97.50 %       97.25 %  -0.25 points\n",
            "same answers                     99.00 %\n",
            "mean KL                         0.001250\n",
            "on 1,000 samples of the test part\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn a_model_that_lost_too_much_is_not_kept() {
        let file = (Path::new("m-q4.safetensors"), "use --bits 8, or ");
        assert!(kept(Some(&compared(0.9651)), None, file).is_ok());
        assert!(kept(Some(&compared(0.98)), Some(0.0), file).is_ok());
        let error = kept(Some(&compared(0.9523)), None, file).unwrap_err().to_string();
        assert!(
            error.contains("falls by 2.27 points") && error.contains("max_drop=2.3"),
            "{error}"
        );
        assert!(kept(Some(&compared(f64::NAN)), Some(100.0), file).is_err());
        // Nothing was measured.
        assert!(kept(None, None, file).is_ok());
        assert!(
            kept(None, Some(1.0), file)
                .unwrap_err()
                .to_string()
                .contains("--data")
        );
    }

    #[test]
    fn settings_that_make_no_sense_are_told() {
        let read = |word: &str| {
            let words = [word.to_owned()];
            Settings::read(&words, &["max_drop"]).and_then(|settings| settings.get("max_drop"))
        };
        assert_eq!(read("max_drop=0.5").unwrap(), Some(0.5));
        for (word, told) in [
            ("0.5", "KEY=VALUE"),
            ("max_drops=1", "max_drop"),
            ("max_drop=-1", "at least 0"),
            ("max_drop=NaN", "at least 0"),
        ] {
            let error = read(word).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
