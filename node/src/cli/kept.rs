//! The options of a peer that its folder keeps, so that the peer goes on as before without being told them again.

use super::error::Error;
use super::keys;
use crate::store::options_file;
use annulus_net::printable::printable_line;
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::path::Path;

/// Most characters of these words that are shown.
pub const SHOWN: usize = 1000;

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

/// Options and settings that a peer takes from its folder. A folder may come from somebody else, so these make a peer take less of
/// the machine than it would without them, or change when it saves and evaluates. None opens a port, announces an address, gives
/// others a right, or fills a disk.
const TAKEN: [&str; 19] = [
    "keep-data",
    "no-port-mapping",
    "no-announce",
    "no-page",
    "only-plugged-in",
    "only-idle",
    "device",
    "power",
    "memory",
    "spans",
    "gpu-memory",
    "cores",
    "hours",
    "nice",
    "leave-within",
    "eval_every",
    "checkpoint_every",
    "keep_ledger",
    "keep_best",
];

/// The options that a folder keeps, as words.
#[derive(Debug, Default)]
pub struct Kept {
    /// Those that the peer takes.
    pub taken: Vec<String>,
    /// Those that its user has to type again.
    pub left: Vec<String>,
}

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

/// The options that a folder keeps.
pub fn read(dir: &Path) -> Result<Kept, Error> {
    let mut kept = Kept::default();
    for word in options_file::load(dir).map_err(Error::of)? {
        match name_of(&word) {
            Some(name) if TAKEN.contains(&name) => kept.taken.push(word),
            Some(_) => kept.left.push(word),
            None => {
                return Err(Error::failed(format!(
                    "{} may not contain `{}`: remove that line, and give it on the command line if you want it",
                    options_file::path(dir).display(),
                    printable_line(&word, SHOWN)
                )));
            }
        }
    }
    Ok(kept)
}

/// The name of the option or setting that a word sets, if it is one that a folder keeps.
fn name_of(word: &str) -> Option<&str> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    match (name.strip_prefix("--"), value) {
        (Some(flag), None) => Some(flag).filter(|flag| FLAGS.contains(flag)),
        (Some(option), Some(_)) => Some(option).filter(|option| VALUES.contains(option)),
        (None, Some(_)) => keys::find(name).filter(|key| key.local).map(|key| key.name),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kept_option_is_taken_from_a_folder_or_known_to_be_typed_again() {
        let settings = keys::KEYS.iter().filter(|key| key.local).map(|key| key.name);
        let all: Vec<&str> = FLAGS.into_iter().chain(VALUES).chain(settings).collect();
        assert!(TAKEN.iter().all(|name| all.contains(name)));
        let left: Vec<&str> = all.into_iter().filter(|name| !TAKEN.contains(name)).collect();
        assert_eq!(left, ["listen", "advertise", "code-role", "host", "keep"]);
    }
}
