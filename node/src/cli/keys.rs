//! The names of all settings: the one table behind parser, help and error messages.

use std::fmt::Write as _;

/// A setting.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What to write after the `=`.
    pub value: &'static str,
    /// What it does, and what happens without it.
    pub about: &'static str,
    /// Whether it concerns one peer alone. Others are the run's own, equal on all peers and fixed at its start.
    pub local: bool,
}

/// All settings that do not belong to a task.
pub const KEYS: &[Key] = &[
    key("epochs", "N", "end after N passes over the data (default 5)"),
    key(
        "rounds",
        "N",
        "end after the samples of N batches, instead of epochs",
    ),
    key("batch", "N", "samples per step, over all peers (default 64)"),
    key(
        "micro_batch",
        "N",
        "samples that a device works on at once (default: its whole share)",
    ),
    key("lr", "X", "learning rate (default 1e-3)"),
    key(
        "schedule",
        "constant|warmup|cosine",
        "the learning rate over the batches (default constant)",
    ),
    key(
        "warmup",
        "N",
        "batches over which the learning rate rises at first (default 0)",
    ),
    key(
        "optimizer",
        "sgd|momentum|nesterov|rmsprop|adam|adamw",
        "the optimizer (default adam)",
    ),
    key(
        "momentum",
        "X",
        "momentum of sgd and its kin (default 0.9 where it applies)",
    ),
    key("weight_decay", "X", "weight decay (default 0, adamw 0.01)"),
    key("beta1", "X", "of adam and adamw (default 0.9)"),
    key("beta2", "X", "of adam and adamw (default 0.999)"),
    key("alpha", "X", "of rmsprop (default 0.99)"),
    key("eps", "X", "of rmsprop, adam and adamw (default 1e-8)"),
    key(
        "moments",
        "f32|8bit",
        "how the optimizer's vectors are kept: 8bit takes a quarter of the memory, and of what newcomers fetch of them \
         (default f32; not with local steps)",
    ),
    key(
        "copies",
        "N",
        "peers that keep each part of the optimizer's vectors, as ZeRO-1 shards them: less memory for each, the more peers \
         there are (default: each keeps all; not with local steps, overlap or topology=ring)",
    ),
    key(
        "split",
        "off|auto|N|A+B+..",
        "cut the model into spans of its steps, each held by some of the peers, for models larger than a machine: auto makes as \
         few as fit the memory of whoever begins the run, N so many, 4+3+3 three of so many steps, as `annulus plan` says (default off; micro_batch is then what of a batch goes \
         through the spans at once, 1 if it is not given)",
    ),
    key(
        "boundary",
        "f32|f16|int8",
        "with split: how activations travel from span to span (default f32)",
    ),
    key(
        "lanes",
        "N",
        "with split: peers that can share the work of a span, each of which holds a sum of gradients (default 2)",
    ),
    key(
        "clip",
        "X",
        "largest norm of the mean gradient (default: no limit)",
    ),
    key(
        "local_steps",
        "N|auto",
        "batches between two exchanges, for slow links: peers step on their own meanwhile (default 1: none; auto: as many as \
         the links ask for)",
    ),
    key(
        "outer_lr",
        "X",
        "with local steps: rate at which the mean of the peers' ways is taken (default 1)",
    ),
    key(
        "outer_momentum",
        "X",
        "with local steps: Nesterov momentum of that (default 0)",
    ),
    key(
        "overlap",
        "on|off",
        "compute for the next round while sums travel, for slow links (default on with local steps, else off: gradients \
         would be one step late)",
    ),
    key(
        "codec",
        "f32|f16|int8|int4|sign",
        "how numbers travel between peers (default f32; with local_steps=N int4, with local_steps=auto sign)",
    ),
    key(
        "topology",
        "auto|ring|direct",
        "around the ring, or straight between any two: quick on slow links (default auto: whichever is measured to be faster)",
    ),
    key("min_peers", "N", "wait while there are fewer members (default 1)"),
    key(
        "seed",
        "N",
        "seed of initial parameters and order of samples (default 1)",
    ),
    local(
        "eval_every",
        "N",
        "evaluate every N rounds (default 0: only at the end)",
    ),
    local(
        "checkpoint_every",
        "N|TIME",
        "save every N rounds and after ten minutes at the latest, or every TIME, as 90s or 30m (default 1000; 0: only at the \
         end)",
    ),
    local("keep", "N", "checkpoints to keep (default 3)"),
];

const fn key(name: &'static str, value: &'static str, about: &'static str) -> Key {
    Key {
        name,
        value,
        about,
        local: false,
    }
}

const fn local(name: &'static str, value: &'static str, about: &'static str) -> Key {
    Key {
        name,
        value,
        about,
        local: true,
    }
}

/// What else people call some keys, for a better hint.
const ALIASES: &[(&str, &str)] = &[
    ("learning_rate", "lr"),
    ("batch_size", "batch"),
    ("wd", "weight_decay"),
    ("grad_clip", "clip"),
    ("max_steps", "rounds"),
    ("steps", "rounds"),
    ("lr_schedule", "schedule"),
    ("opt", "optimizer"),
    ("compression", "codec"),
    ("save_every", "checkpoint_every"),
];

/// The table of keys as help text.
pub fn help() -> String {
    let left = |k: &Key| format!("{}={}", k.name, k.value);
    let mut text = String::from("Settings:\n");
    for key in KEYS {
        let left = left(key);
        if left.len() <= 24 {
            let _ = writeln!(text, "  {left:<24}  {}", key.about);
        } else {
            let _ = writeln!(text, "  {left}\n  {:<24}  {}", "", key.about);
        }
    }
    text.push_str(
        "  task.KEY=VALUE            a setting of the task; without `task.` where no name clashes\n",
    );
    text
}

/// The end of a message on an unknown name: which known one is nearest.
pub fn did_you_mean<'a>(given: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let given = given.to_lowercase().replace('-', "_");
    let others = ALIASES
        .iter()
        .filter(|(_, name)| known.clone().any(|k| k == *name))
        .copied();
    let all = known.clone().map(|name| (name, name)).chain(others);
    let nearest = all.min_by_key(|(written, _)| strsim::damerau_levenshtein(&given, written));
    nearest.map_or_else(|| ".".into(), |(_, name)| format!("; the nearest is `{name}`."))
}
