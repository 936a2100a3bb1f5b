//! Settings as `KEY=VALUE` words and as TOML: one parser for both. The keys are those of [`super::keys`].

mod by_file;
mod schedule;
mod sources;
mod typed;
mod values;

use self::by_file::{a_table_in, ending, unknown_ending};
use self::sources::{file_assignments, word_assignments};
use self::typed::{bare, typed};
use self::values::{all_or_bytes, at_most, every, number, on, real, steps};
use super::error::Error;
use super::keys::{KEYS, Key, did_you_mean};
use crate::options::{Every, Length, Local, NewRun, SplitRun, Steps};
use crate::task_factory::TaskFactory;
use annulus_core::codec::Codec;
use annulus_core::config::MAX_PEERS;
use annulus_core::optim::{Moments, Optimizer};
use annulus_core::{EarlyStop, Topology};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::Path;

/// Settings taken together.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Of a new run.
    pub run: NewRun,
    /// Of this peer: when it saves its state.
    pub checkpoint_every: Every,
    /// Checkpoints to keep.
    pub keep: NonZeroU32,
    /// Whether to keep the best one too.
    pub keep_best: bool,
    /// Bytes at which the ledger restarts.
    pub keep_ledger: Option<u64>,
    /// Rounds from one evaluation to the next.
    pub eval_every: u64,
    /// The first key that was given and is the run's own.
    pub of_run: Option<String>,
    /// The settings of this peer that were given, as words.
    pub given: Vec<String>,
}

impl Settings {
    /// A peer's options with its settings.
    pub fn of_peer(&self, local: Local) -> Local {
        Local {
            checkpoint_every: self.checkpoint_every,
            keep: self.keep,
            keep_best: self.keep_best,
            keep_ledger: self.keep_ledger,
            eval_every: self.eval_every,
            ..local
        }
    }
}

/// Reads settings: the defaults, then the task's, then a TOML text, then `KEY=VALUE` words, the later winning.
///
/// `task` is the task's name as a flag gave it. Without one it is the TOML text's `task` (or `name` in its table
/// `[task]`). Without that it is the task for files or folders like `data`, or else the first task.
pub fn read(
    toml: Option<&str>,
    words: &[String],
    (task, data): (Option<&str>, Option<&Path>),
    tasks: &[TaskFactory],
) -> Result<Settings, Error> {
    let (named, from_file) = match toml {
        Some(text) => file_assignments(text)?,
        None => (None, Vec::new()),
    };
    let ending = data.and_then(ending);
    let reads = |task: &&TaskFactory| {
        ending
            .as_ref()
            .is_some_and(|ending| task.files.contains(&ending.as_str()))
    };
    let is_folder = data.is_some_and(Path::is_dir);
    let reads = |task: &&TaskFactory| match data {
        Some(folder) if is_folder => (task.is_for)(folder),
        _ => reads(task),
    };
    let by_file = tasks.iter().find(reads).map(|task| task.name.to_owned());
    if let (None, None, None, Some(folder)) = (task, &named, &by_file, data.filter(|_| is_folder))
        && let Some(table) = a_table_in(folder, tasks)
    {
        return Err(Error::usage(format!(
            "{} is a folder, and a table is one file: write --data {}",
            folder.display(),
            table.display()
        )));
    }
    if let (None, None, None, Some(file)) = (task, &named, &by_file, data.filter(|data| data.is_file())) {
        return Err(Error::usage(unknown_ending(file, ending.as_deref(), tasks)));
    }
    let named = task.map(str::to_owned).or(named).or(by_file);
    let task = match &named {
        None => tasks.first(),
        Some(name) => tasks.iter().find(|t| t.name == *name),
    };
    let Some(task) = task else {
        let name = named.unwrap_or_default();
        let names: Vec<&str> = tasks.iter().map(|t| t.name).collect();
        return Err(Error::usage(format!(
            "there is no task `{name}`{} This program knows: {}.",
            did_you_mean(&name, names.iter().copied()),
            names.join(", ")
        )));
    };
    let mut reader = Reader {
        task,
        defaults: task.settings(),
        optimizer: "adam".into(),
        optimizer_settings: Vec::new(),
        schedule: schedule::Said::default(),
        length: None,
        patience: None,
        settings: Settings {
            run: NewRun {
                task: task.name.to_owned(),
                ..NewRun::default()
            },
            checkpoint_every: Every::default(),
            keep: Local::default().keep,
            keep_best: false,
            keep_ledger: None,
            eval_every: 0,
            of_run: None,
            given: Vec::new(),
        },
    };
    let suited: Vec<String> = task.run_settings.iter().map(|&word| word.to_owned()).collect();
    let typed = word_assignments(words, &reader.defaults, tasks)?;
    let layers = [
        word_assignments(&suited, &reader.defaults, tasks)?,
        from_file,
        typed,
    ];
    for (layer, assignments) in layers.into_iter().enumerate() {
        for (key, value) in assignments {
            reader.assign(layer, &key, value)?;
        }
        if layer == 0 {
            // Nobody has asked for those.
            reader.settings.of_run = None;
        }
    }
    reader.finish()
}

struct Reader<'a> {
    task: &'a TaskFactory,
    /// The task's own settings, with their default values.
    defaults: Map<String, Value>,
    settings: Settings,
    optimizer: String,
    /// Each with the layer that it comes from.
    optimizer_settings: Vec<(usize, String, String)>,
    schedule: schedule::Said,
    length: Option<(usize, Length)>,
    patience: Option<NonZeroU32>,
}

impl Reader<'_> {
    fn assign(&mut self, layer: usize, key: &str, value: Value) -> Result<(), Error> {
        if let Some(of_task) = key.strip_prefix("task.") {
            return self.assign_task(key, of_task, value);
        }
        let Some(known) = KEYS.iter().find(|k| k.name == key) else {
            // `columns.zip=category` sets an entry of the task's setting `columns`.
            let own = key.split_once('.').map_or(key, |(table, _)| table);
            return match self.defaults.contains_key(own) {
                true => self.assign_task(key, key, value),
                false => Err(self.unknown(key)),
            };
        };
        if !known.local {
            self.settings.of_run.get_or_insert_with(|| key.to_owned());
        }
        let (text, done) = match &value {
            Value::String(text) => (text.clone(), self.assign_own(layer, known, text)),
            Value::Number(number) => (
                number.to_string(),
                self.assign_own(layer, known, &number.to_string()),
            ),
            _ => (
                value.to_string(),
                Err("that is neither a number nor a word".into()),
            ),
        };
        done.map_err(|why| self.bad(known, &text, &why))?;
        if known.local {
            let given = &mut self.settings.given;
            given.retain(|word| word.split('=').next() != Some(known.name));
            given.push(format!("{}={text}", known.name));
        }
        Ok(())
    }

    /// The error for a value that a setting cannot have.
    fn bad(&self, key: &Key, given: &str, why: &str) -> Error {
        let Key {
            name, value, about, ..
        } = key;
        let default = match key.default_of(self.task) {
            "" => String::new(),
            default => format!(" (default: {default})"),
        };
        Error::usage(format!(
            "{name}={given} is not possible: {why}. Write {name}={value}: {about}{default}."
        ))
    }

    /// Takes a setting of a run or of this peer; or why it cannot have that value.
    fn assign_own(&mut self, layer: usize, key: &Key, text: &str) -> Result<(), String> {
        let words = || format!("choose one of {}", key.value.replace('|', ", "));
        let run = &mut self.settings.run;
        match key.name {
            "epochs" => self.length(layer, Length::Epochs(number(text)?))?,
            "rounds" => self.length(layer, Length::Rounds(number(text)?))?,
            "patience" => self.patience = Some(number(text)?),
            "batch" => {
                run.batch = number(text)?;
                run.any_batch &= layer == 0;
            }
            "micro_batch" => run.micro_batch = number(text)?,
            "lr" => run.lr = real(text, |x| x >= 0.0, "at least 0")?,
            "schedule" | "warmup" | "floor" | "step_size" | "gamma" | "pct_start" => {
                self.schedule.add(layer, key, text)?
            }
            "optimizer" => {
                if !key.value.split('|').any(|name| name == text) {
                    return Err(words());
                }
                if layer > 0 && self.optimizer != text {
                    // The task's own values suit its own optimizer only.
                    self.optimizer_settings.retain(|(of, ..)| *of > 0);
                }
                self.optimizer = text.to_owned();
            }
            "momentum" | "weight_decay" | "beta1" | "beta2" | "alpha" | "eps" => {
                real(text, |x| x >= 0.0, "at least 0")?;
                self.optimizer_settings.retain(|(_, name, _)| name != key.name);
                self.optimizer_settings
                    .push((layer, key.name.to_owned(), text.to_owned()));
            }
            "moments" => {
                let moments = text.parse();
                run.moments = moments.map_err(|_| words())?;
            }
            "copies" => run.copies = Some(number(text)?),
            "split" => {
                run.split = match text {
                    "off" => SplitRun::Off,
                    "auto" => SplitRun::Auto,
                    _ if text.contains('+') => {
                        let steps = text.split('+').map(number);
                        SplitRun::Cut(steps.collect::<Result<_, _>>()?)
                    }
                    _ => SplitRun::Spans(number(text)?),
                }
            }
            "boundary" => {
                let boundary = text
                    .parse()
                    .ok()
                    .filter(|codec: &Codec| codec.carries_activations());
                run.boundary = boundary.ok_or_else(&words)?;
            }
            "lanes" => run.lanes = number(text)?,
            "clip" => {
                run.clip = match text {
                    "off" => None,
                    _ => Some(real(text, |x| x > 0.0, "greater than 0")?),
                }
            }
            "local_steps" => run.local_steps = steps(text)?,
            "outer_lr" => run.outer_lr = real(text, |x| x > 0.0, "greater than 0")?,
            "outer_momentum" => {
                run.outer_momentum = real(text, |x| (0.0..1.0).contains(&x), "at least 0 and below 1")?;
            }
            "overlap" => run.overlap = Some(on(text).ok_or_else(&words)?),
            "codec" => {
                let codec = text.parse();
                run.codec = Some(codec.map_err(|_| words())?);
            }
            "topology" => {
                run.topology = match text {
                    "auto" => None,
                    _ => Some(text.parse().map_err(|_| words())?),
                }
            }
            "min_peers" => {
                run.min_peers = number(text)?;
                at_most(run.min_peers.get().into(), MAX_PEERS as u64)?;
            }
            "stand_aside" => run.stand_aside = on(text).ok_or_else(&words)?,
            "seed" => run.seed = number(text)?,
            "eval_every" => self.settings.eval_every = number(text)?,
            "checkpoint_every" => self.settings.checkpoint_every = every(text)?,
            "keep" => self.settings.keep = number(text)?,
            "keep_ledger" => self.settings.keep_ledger = all_or_bytes(text)?,
            "keep_best" => self.settings.keep_best = on(text).ok_or_else(&words)?,
            name => unreachable!("key {name} is in the table and has no reader"),
        }
        Ok(())
    }

    /// A later layer's length replaces an earlier one's; two in one layer contradict each other.
    fn length(&mut self, layer: usize, length: Length) -> Result<(), String> {
        if let Some((of, other)) = self.length
            && of == layer
            && std::mem::discriminant(&other) != std::mem::discriminant(&length)
        {
            return Err("epochs and rounds both say when the run ends: give one of them".into());
        }
        self.length = Some((layer, length));
        self.settings.run.any_length &= layer == 0;
        Ok(())
    }

    fn assign_task(&mut self, key: &str, name: &str, value: Value) -> Result<(), Error> {
        if let Some((table, entry)) = name.split_once('.')
            && self.defaults.get(table).is_some_and(Value::is_object)
        {
            let set = &mut self.settings.run.task_config;
            let all = set.entry(table).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(all) = all {
                all.insert(entry.to_owned(), value);
            }
            self.settings.of_run.get_or_insert_with(|| key.to_owned());
            return Ok(());
        }
        let Some(default) = self.defaults.get(name) else {
            return Err(self.unknown(key));
        };
        let value = typed(name, value, default)?;
        self.settings.run.task_config.insert(name.to_owned(), value);
        self.settings.of_run.get_or_insert_with(|| key.to_owned());
        Ok(())
    }

    fn unknown(&self, key: &str) -> Error {
        let of_task = key.starts_with("task.");
        let plain = key.strip_prefix("task.").unwrap_or(key);
        let own = KEYS.iter().map(|k| k.name).filter(|_| !of_task);
        let tasks = self.defaults.keys().map(String::as_str);
        let mut text = format!(
            "unknown setting `{key}`{}",
            did_you_mean(plain, own.clone().chain(tasks.clone()))
        );
        if !of_task {
            let _ = write!(
                text,
                " Settings of a run: {}.",
                own.collect::<Vec<_>>().join(", ")
            );
        }
        let _ = match self.defaults.is_empty() {
            true => write!(text, " The task {} has none of its own.", self.task.name),
            false => write!(
                text,
                " Settings of the task {}: {}.",
                self.task.name,
                tasks.collect::<Vec<_>>().join(", ")
            ),
        };
        Error::usage(text)
    }

    /// Whether the task can read its settings; if not, which of them it cannot, if one alone is to blame.
    fn check_task(&self) -> Result<(), Error> {
        let (task, set) = (self.task, &self.settings.run.task_config);
        let Err(why) = (task.check)(&task.config(set)) else {
            return Ok(());
        };
        let alone = |(name, value): (&String, &Value)| {
            let one = Map::from_iter([(name.clone(), value.clone())]);
            let why = (task.check)(&task.config(&one)).err()?;
            Some(format!("{name}={} is not possible: {why}", bare(value)))
        };
        let blamed = set.iter().find_map(alone);
        Err(Error::usage(blamed.unwrap_or_else(|| {
            format!(
                "these settings of the task {} are not possible together: {why}",
                task.name
            )
        })))
    }

    fn finish(mut self) -> Result<Settings, Error> {
        self.check_task()?;
        if let Some((_, length)) = self.length {
            self.settings.run.length = length;
        }
        // Many know gradient descent with momentum as a setting of sgd.
        if self.optimizer == "sgd"
            && self
                .optimizer_settings
                .iter()
                .any(|(_, name, _)| name == "momentum")
        {
            self.optimizer = "momentum".into();
        }
        let every = u32::try_from(self.settings.eval_every)
            .ok()
            .and_then(NonZeroU32::new);
        let needs_it = match self.patience {
            Some(_) => "patience",
            None => "keep_best=on",
        };
        if every.is_none() && (self.settings.keep_best || self.patience.is_some()) {
            return Err(Error::usage(format!(
                "{needs_it} needs eval_every=N, since the model is evaluated only at the end otherwise: add eval_every=100, for example"
            )));
        }
        let run = &mut self.settings.run;
        run.early_stop = every
            .zip(self.patience)
            .map(|(every, patience)| EarlyStop { every, patience });
        run.optimizer = self.optimizer;
        for (_, name, value) in &self.optimizer_settings {
            let _ = write!(run.optimizer, " {name}={value}");
        }
        let known: Result<Optimizer, _> = run.optimizer.parse();
        known.map_err(|error| Error::usage(error.to_string()))?;
        if run.moments == Moments::EightBit && run.local_steps != Steps::None {
            return Err(Error::usage(
                "moments=8bit does not go with local steps, where each peer has f32 moments of its own: leave one of them out",
            ));
        }
        if run.codec == Some(Codec::Sign) && run.local_steps == Steps::None {
            return Err(Error::usage(
                "codec=sign needs local steps, as the signs of one batch's gradients teach too little: add local_steps=auto, or use \
                 codec=int4",
            ));
        }
        if run.overlap == Some(true) && run.local_steps == Steps::None {
            return Err(Error::usage(
                "overlap=on needs local_steps: gradients of a single batch would be one step late, which costs much learning. Add \
                 local_steps=auto, or leave overlap out",
            ));
        }
        let (needed, word) = match run.split {
            SplitRun::Off => (run.copies.is_some(), "copies"),
            SplitRun::Auto | SplitRun::Spans(_) | SplitRun::Cut(_) => (true, "split"),
        };
        if run.split != SplitRun::Off && run.codec() != Codec::F32 {
            return Err(Error::usage(format!(
                "codec={} does not go with a split model, whose gradients are exchanged as f32: leave one of them out",
                run.codec()
            )));
        }
        if needed {
            let why = match () {
                () if run.local_steps != Steps::None => {
                    "local_steps gives each peer an optimizer state of its own, so it cannot be sharded: leave local_steps"
                }
                () if run.topology == Some(Topology::Ring) => {
                    "topology=ring does not go with sharding, where sums go directly to the holders: leave topology=ring"
                }
                () if run.optimizer.split(' ').next() == Some("sgd") => {
                    "optimizer=sgd without momentum has no state to shard: leave optimizer=sgd"
                }
                () => "",
            };
            if !why.is_empty() {
                return Err(Error::usage(format!("{why} or {word} out")));
            }
        }
        run.schedule = self.schedule.schedule()?;
        Ok(self.settings)
    }
}

#[cfg(test)]
mod tests;
