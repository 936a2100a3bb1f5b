//! The options of a peer that its folder keeps, so that the peer goes on as before without being told them again.

use super::error::Error;
use crate::store::options_file;
use annulus_net::printable::printable_line;
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::path::Path;

/// Most characters of these words that are shown.
pub const SHOWN: usize = 1000;

/// What a folder keeps of one option or setting.
struct Keeps {
    name: &'static str,
    form: Form,
    /// Whether a peer takes it from its folder. A folder may come from somebody else, so these make a peer take less of the machine
    /// than it would without them, or change when it saves and evaluates. None opens a port, announces an address, gives others a
    /// right, or fills a disk.
    is_taken: bool,
}

/// How it is typed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `--NAME`.
    Flag,
    /// `--NAME=VALUE`.
    Option,
    /// `NAME=VALUE`.
    Setting,
}

/// All that a folder keeps. Paths are not among it: a folder may come from somebody else, and its peer must not read or show files
/// that its user did not name.
static KEPT: [Keeps; 27] = [
    keeps("keep-data", Form::Flag, true),
    keeps("no-port-mapping", Form::Flag, true),
    keeps("no-announce", Form::Flag, true),
    keeps("no-page", Form::Flag, true),
    keeps("only-plugged-in", Form::Flag, true),
    keeps("only-idle", Form::Flag, true),
    keeps("device", Form::Option, true),
    keeps("name", Form::Option, false),
    keeps("listen", Form::Option, false),
    keeps("advertise", Form::Option, false),
    keeps("code-role", Form::Option, false),
    keeps("host", Form::Option, false),
    keeps("page-copy", Form::Option, false),
    keeps("power", Form::Option, true),
    keeps("memory", Form::Option, true),
    keeps("cache", Form::Option, true),
    keeps("spans", Form::Option, true),
    keeps("gpu-memory", Form::Option, true),
    keeps("cores", Form::Option, true),
    keeps("hours", Form::Option, true),
    keeps("nice", Form::Option, true),
    keeps("leave-within", Form::Option, true),
    keeps("eval_every", Form::Setting, true),
    keeps("checkpoint_every", Form::Setting, true),
    keeps("keep", Form::Setting, false),
    keeps("keep_ledger", Form::Setting, true),
    keeps("keep_best", Form::Setting, true),
];

const fn keeps(name: &'static str, form: Form, is_taken: bool) -> Keeps {
    Keeps { name, form, is_taken }
}

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
    let options = KEPT.iter().filter(|kept| kept.form != Form::Setting);
    for Keeps { name, form, .. } in options.filter(|kept| is_typed(&id(kept.name))) {
        if *form == Form::Flag {
            words.push(format!("--{name}"));
            continue;
        }
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
        match of_word(&word) {
            Some(Keeps { is_taken: true, .. }) => kept.taken.push(word),
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

/// What a word sets, if a folder keeps it.
fn of_word(word: &str) -> Option<&'static Keeps> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let (name, form) = match (name.strip_prefix("--"), value) {
        (Some(flag), None) => (flag, Form::Flag),
        (Some(option), Some(_)) => (option, Form::Option),
        (None, Some(_)) => (name, Form::Setting),
        (None, None) => return None,
    };
    KEPT.iter().find(|kept| kept.name == name && kept.form == form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::keys;

    #[test]
    fn each_setting_of_a_peer_is_kept() {
        let of_peer = keys::KEYS.iter().filter(|key| key.local).map(|key| key.name);
        let kept = KEPT.iter().filter(|kept| kept.form == Form::Setting);
        let (mut of_peer, mut kept): (Vec<_>, Vec<_>) =
            (of_peer.collect(), kept.map(|kept| kept.name).collect());
        of_peer.sort_unstable();
        kept.sort_unstable();
        assert_eq!(of_peer, kept);
    }

    #[test]
    fn a_folder_opens_nothing_and_fills_no_disk() {
        let left = KEPT.iter().filter(|kept| !kept.is_taken).map(|kept| kept.name);
        assert_eq!(
            left.collect::<Vec<_>>(),
            [
                "name",
                "listen",
                "advertise",
                "code-role",
                "host",
                "page-copy",
                "keep"
            ]
        );
    }
}
