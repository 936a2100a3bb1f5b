//! The names of all settings: the one table behind parser, help and error messages.

use super::error::wrap;
use super::terminal;
use crate::task_factory::TaskFactory;
use std::fmt::Write as _;

/// A setting.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The form of its value.
    pub value: &'static str,
    /// Its effect.
    pub about: &'static str,
    /// Its default, unless the task has another. Empty if there is none.
    default: &'static str,
    /// Whether it concerns one peer alone. Others are the run's own, equal on all peers and fixed at its start.
    pub local: bool,
}

/// All settings that do not belong to a task.
pub const KEYS: &[Key] = &[
    key("epochs", "N", "end after N passes over the data", "5"),
    key("rounds", "N", "end after N batches, instead of epochs", ""),
    key(
        "patience",
        "N",
        "end early once most members see no lower loss in N evaluations; needs eval_every, and keeps the best checkpoint",
        "",
    ),
    key("batch", "N", "samples per step, over all peers", "64"),
    key(
        "micro_batch",
        "N",
        "samples that a device works on at once",
        "its whole share of a batch; with split 1",
    ),
    key("lr", "X", "learning rate", "1e-3"),
    key(
        "schedule",
        "constant|warmup|cosine|linear|step|one-cycle",
        "how the learning rate changes over the run",
        "constant",
    ),
    key(
        "warmup",
        "N",
        "batches over which the learning rate rises at the start; not with one-cycle, which rises by itself",
        "0",
    ),
    key(
        "floor",
        "X",
        "where cosine and linear end, as a share of the learning rate",
        "cosine 0.1, linear 0",
    ),
    key("step_size", "N", "of step: batches at one learning rate", ""),
    key(
        "gamma",
        "X",
        "of step: factor from one learning rate to the next",
        "0.1",
    ),
    key(
        "pct_start",
        "X",
        "of one-cycle: share of the run in which the learning rate rises",
        "0.3",
    ),
    key(
        "optimizer",
        "sgd|momentum|nesterov|rmsprop|adam|adamw",
        "the optimizer",
        "adam",
    ),
    key("momentum", "X", "momentum of sgd, momentum and nesterov", "0.9"),
    key("weight_decay", "X", "weight decay", "0, adamw 0.01"),
    key("beta1", "X", "of adam and adamw", "0.9"),
    key("beta2", "X", "of adam and adamw", "0.999"),
    key("alpha", "X", "of rmsprop", "0.99"),
    key("eps", "X", "of rmsprop, adam and adamw", "1e-8"),
    key(
        "moments",
        "f32|8bit",
        "how the optimizer state is kept: 8bit takes a quarter of the bytes, so newcomers fetch half as much; not with local steps",
        "f32",
    ),
    key(
        "copies",
        "N",
        "shard the optimizer state as ZeRO-1 does, with N peers holding each shard; not with local steps or topology=ring",
        "every peer holds all of it",
    ),
    key(
        "split",
        "off|auto|N|A+B+..",
        "for a model larger than a machine: cut it into stages (spans) of layers, each held by some peers. auto cuts as few spans as fit \
         the founder's memory, N cuts N, 4+3+3 cuts three of 4, 3 and 3 steps, as `annulus plan` suggests",
        "off",
    ),
    key(
        "boundary",
        "f32|f16|int8",
        "with split: number format of activations between spans",
        "f32",
    ),
    key(
        "lanes",
        "N",
        "with split: peers that can share the work of a span, each of which holds a sum of gradients",
        "2",
    ),
    key(
        "clip",
        "X|off",
        "largest norm of the mean gradient; off: no limit, and one wrong gradient can spoil the model for good",
        "10",
    ),
    key(
        "local_steps",
        "N|auto",
        "for slow links: batches that each peer steps on its own between two exchanges; auto chooses as many as the links ask for",
        "1, every batch is exchanged",
    ),
    key(
        "outer_lr",
        "X",
        "with local steps: outer learning rate, applied to the averaged parameter delta",
        "1",
    ),
    key(
        "outer_momentum",
        "X",
        "with local steps: Nesterov momentum of the outer step",
        "0",
    ),
    key(
        "overlap",
        "on|off",
        "with local steps: take the first step of the next round while sums travel",
        "on",
    ),
    key(
        "codec",
        "f32|f16|int8|int4|sign",
        "number format of what peers exchange",
        "f32; with local_steps=N int4, with local_steps=auto sign",
    ),
    key(
        "topology",
        "auto|ring|direct",
        "all-reduce around a ring, or directly between peers, which is faster on slow links",
        "auto, the one that is measured to be faster",
    ),
    key("min_peers", "N", "wait while there are fewer members", "1"),
    key(
        "stand_aside",
        "on|off",
        "a member that would slow the run down stands aside: it keeps the state, and is tried again",
        "on",
    ),
    key(
        "seed",
        "N",
        "seed of the initial parameters and of the order of samples",
        "1",
    ),
    local("eval_every", "N", "evaluate every N rounds", "0, only at the end"),
    local(
        "checkpoint_every",
        "N|TIME",
        "save every N rounds and after ten minutes at the latest, or every TIME, as 90s or 30m; 0: only at the end",
        "1000",
    ),
    local("keep", "N", "checkpoints to keep", "3"),
    local(
        "keep_ledger",
        "SIZE|all",
        "a ledger of this size, such as 2G, restarts at the next checkpoint; earlier rounds can no longer be inspected or replayed",
        "all",
    ),
    local(
        "keep_best",
        "on|off",
        "save at each evaluation, and keep the checkpoint with the lowest loss too: export and others take it by --round best",
        "off",
    ),
];

const fn key(name: &'static str, value: &'static str, about: &'static str, default: &'static str) -> Key {
    Key {
        name,
        value,
        about,
        default,
        local: false,
    }
}

const fn local(name: &'static str, value: &'static str, about: &'static str, default: &'static str) -> Key {
    Key {
        local: true,
        ..key(name, value, about, default)
    }
}

impl Key {
    /// Its default in a run of this task.
    pub fn default_of(&self, task: &TaskFactory) -> &'static str {
        let of = |name: &str| {
            let mut settings = task.run_settings.iter().filter_map(|word| word.split_once('='));
            settings.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        match self.name {
            // Either says when a run ends.
            "epochs" if of("rounds").is_some() => "",
            name => of(name).unwrap_or(self.default),
        }
    }
}

/// Other names that people use for some keys.
const ALIASES: &[(&str, &str)] = &[
    ("learning_rate", "lr"),
    ("learn_rate", "lr"),
    ("rate", "lr"),
    ("num_epochs", "epochs"),
    ("max_epochs", "epochs"),
    ("batch_size", "batch"),
    ("wd", "weight_decay"),
    ("grad_clip", "clip"),
    ("max_steps", "rounds"),
    ("steps", "rounds"),
    ("early_stopping", "patience"),
    ("early_stopping_patience", "patience"),
    ("lr_schedule", "schedule"),
    ("opt", "optimizer"),
    ("compression", "codec"),
    ("save_every", "checkpoint_every"),
];

/// The key of this name, or of one that people use for it.
pub fn find(name: &str) -> Option<&'static Key> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let name = alias.map_or(name, |(_, name)| name);
    KEYS.iter().find(|key| key.name == name)
}

/// The table of keys as help text, with the defaults of each task, and each task's own.
pub fn help(tasks: &[TaskFactory]) -> String {
    let width = terminal::size().0.min(100);
    let mut text =
        String::from("Settings of every run, fixed when it begins, and of this peer (the last five):\n");
    for key in KEYS {
        let of = |task: &TaskFactory| key.default_of(task);
        let usual = tasks.first().map_or(key.default, of);
        let differs = tasks
            .iter()
            .filter(|task| of(task) != usual && !of(task).is_empty());
        let others = differs.map(|task| format!("{}: {}", task.name, of(task)));
        let usual = Some(format!("default: {usual}")).filter(|_| !usual.is_empty());
        let defaults: Vec<String> = usual.into_iter().chain(others).collect();
        let about = match defaults.is_empty() {
            true => key.about.to_owned(),
            false => format!("{} ({})", key.about, defaults.join("; ")),
        };
        entry(
            &mut text,
            (&format!("{}={}", key.name, key.value), LEFT),
            &about,
            width,
        );
    }
    for task in tasks {
        let defaults = task.settings();
        if defaults.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\nSettings of the task {}:", task.name);
        for (name, default) in &defaults {
            let told = task
                .help
                .iter()
                .find(|(key, _)| key.split('=').next() == Some(name));
            let (left, about) = match told {
                Some((key, about)) => ((*key).to_owned(), *about),
                None => (format!("{name}=VALUE"), ""),
            };
            let default = default
                .as_str()
                .map_or_else(|| default.to_string(), str::to_owned);
            let about = match default.as_str() {
                // The text says what happens without the setting.
                "null" | "" => about.to_owned(),
                _ if about.contains("(default: ") => about.to_owned(),
                _ => format!("{about} (default: {default})"),
            };
            entry(&mut text, (&left, LEFT), about.trim_start(), width);
        }
    }
    text.push_str("\nWrite task.KEY=VALUE if a setting of the task has the name of one of the run.\n");
    text
}

/// Columns of a setting with its value.
const LEFT: usize = 24;

/// One line, or some that go on below where the first began. The left part has `column` columns.
pub fn entry(text: &mut String, (left, column): (&str, usize), about: &str, width: usize) {
    let lines = wrap(about, width.saturating_sub(column + 4).max(20));
    let mut lines = lines.lines();
    let first = match left.len() <= column {
        true => lines.next().unwrap_or_default(),
        false => "",
    };
    let _ = writeln!(text, "{}", format!("  {left:<column$}  {first}").trim_end());
    lines.for_each(|line| {
        let _ = writeln!(text, "  {:<column$}  {line}", "");
    });
}

/// The meaning of the name that is most like one that was typed, of pairs of names and meanings; none if all are too unlike, as a
/// wrong hint is worse than none.
pub fn nearest<'a>(given: &str, known: impl Iterator<Item = (&'a str, &'a str)>) -> Option<&'a str> {
    let given = given.to_lowercase().replace('-', "_");
    let most = match given.chars().count() {
        ..=2 => 0,
        3..=5 => 1,
        letters => 1 + letters / 4,
    };
    let far = |name: &str| strsim::damerau_levenshtein(&name.replace('-', "_"), &given);
    let (name, meaning) = known.min_by_key(|(name, _)| far(name))?;
    (far(name) <= most).then_some(meaning)
}

/// The end of a message on an unknown name: which known one is nearest.
pub fn did_you_mean<'a>(given: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let others = ALIASES
        .iter()
        .filter(|(_, name)| known.clone().any(|k| k == *name))
        .copied();
    let all = known.clone().map(|name| (name, name)).chain(others);
    nearest(given, all).map_or_else(|| ".".into(), |name| format!("; the nearest is `{name}`."))
}
