//! The results of evaluations in a run's folder: one JSON object per line, in the order in which they were made.
//!
//! A run that continues from an earlier checkpoint evaluates some rounds again; the later line counts.

use crate::task::Metrics;
use annulus_core::id::Round;
use annulus_net::files::{FileError, read_limited};
use annulus_net::open;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

const FILE: &str = "evals.jsonl";

/// At most this much is read: about half a million lines.
const LIMIT: usize = 64 << 20;

/// An evaluation of the state after a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// The round.
    pub round: Round,
    /// Mean loss on the held-out data.
    pub loss: f32,
    /// Named measures, such as accuracy.
    #[serde(default)]
    pub metrics: Metrics,
}

/// Appends a result.
pub fn append(dir: &Path, evaluated: &Evaluated) -> Result<(), FileError> {
    let path = dir.join(FILE);
    let line = serde_json::to_string(evaluated).expect("plain data") + "\n";
    let file = open::own(&path, OpenOptions::new().create(true).append(true));
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|error| FileError::of_new(&path, error))
}

/// All results, ordered by round. Skips lines that are torn or not numbers.
pub fn read(dir: &Path) -> Result<Vec<Evaluated>, FileError> {
    let path = dir.join(FILE);
    let text = match read_limited(&path, LIMIT) {
        Err(FileError::Missing(_)) => return Ok(Vec::new()),
        text => text?,
    };
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Evaluated>(line).ok());
    let by_round: BTreeMap<Round, Evaluated> = lines.map(|e| (e.round, e)).collect();
    Ok(by_round.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn the_last_word_on_a_round_counts() {
        let scratch = Scratch::new();
        let dir = &scratch.0;
        assert_eq!(read(dir).unwrap(), []);
        let of = |round, loss, accuracy: Option<f32>| Evaluated {
            round,
            loss,
            metrics: accuracy.map(|a| ("accuracy".to_owned(), a)).into_iter().collect(),
        };
        for evaluated in [
            of(10, 2.5, None),
            of(20, f32::NAN, None),
            of(5, 3.0, Some(0.5)),
            of(10, 2.25, None),
        ] {
            append(dir, &evaluated).unwrap();
        }
        let mut file = OpenOptions::new().append(true).open(dir.join(FILE)).unwrap();
        file.write_all(b"{\"round\":30,\"lo").unwrap();
        assert_eq!(read(dir).unwrap(), [of(5, 3.0, Some(0.5)), of(10, 2.25, None)]);
        #[cfg(unix)]
        {
            let others = dir.join("others");
            std::fs::rename(dir.join(FILE), &others).unwrap();
            let before = std::fs::read(&others).unwrap();
            std::os::unix::fs::symlink(&others, dir.join(FILE)).unwrap();
            assert!(append(dir, &of(30, 1.0, None)).is_err() && read(dir).is_err());
            assert_eq!(std::fs::read(&others).unwrap(), before);
        }
    }
}
