//! The options of a peer that its folder keeps, so that the peer goes on as before without being told them again.

use super::error::Error;
use super::keys;
use crate::store::options_file;
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::path::Path;

/// Options without a value that are kept.
const FLAGS: [&str; 6] = [
    "keep-data",
    "no-port-mapping",
    "no-announce",
    "no-page",
    "only-plugged-in",
    "only-idle",
];

/// Options with a value that are kept. Paths are not: a folder may come from somebody else, and its peer must not read or
/// show files that its user did not name.
const VALUES: [&str; 13] = [
    "device",
    "listen",
    "advertise",
    "code-role",
    "host",
    "power",
    "memory",
    "spans",
    "gpu-memory",
    "cores",
    "hours",
    "nice",
    "leave-within",
];

/// The options among a command's arguments that are kept, as words.
pub fn typed(matches: &ArgMatches) -> Vec<String> {
    let is_typed = |id: &str| {
        matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let mut words = Vec::new();
    for name in FLAGS.iter().filter(|name| is_typed(&id(name))) {
        words.push(format!("--{name}"));
    }
    for name in VALUES.iter().filter(|name| is_typed(&id(name))) {
        let values = matches.get_raw(&id(name)).into_iter().flatten();
        for value in values {
            let word = format!("--{name}={}", value.to_string_lossy());
            // Some may be given more than once, and were kept before.
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    words
}

/// Under which name the argument parser knows an option.
fn id(name: &str) -> String {
    name.replace('-', "_")
}

/// The options that a folder keeps, as words.
pub fn read(dir: &Path) -> Result<Vec<String>, Error> {
    let words = options_file::load(dir).map_err(Error::of)?;
    match words.iter().find(|word| !is_kept(word)) {
        None => Ok(words),
        Some(word) => Err(Error::failed(format!(
            "{} may not contain `{word}`: remove that line, and give it on the command line if you want it",
            options_file::path(dir).display()
        ))),
    }
}

/// Whether a word is one that a folder may keep.
fn is_kept(word: &str) -> bool {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    match (name.strip_prefix("--"), value) {
        (Some(flag), None) => FLAGS.contains(&flag),
        (Some(option), Some(_)) => VALUES.contains(&option),
        (None, Some(_)) => keys::find(name).is_some_and(|key| key.local),
        (None, None) => false,
    }
}
