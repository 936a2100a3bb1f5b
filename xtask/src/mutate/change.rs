//! A mutant's name, which is the same in two checkouts where the line is the same, and the draw among names.

use super::exchanges::Mutant;
use std::collections::HashMap;
use std::fmt;

/// One change of one file, found again by the text of its line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Change {
    /// From the project's folder on.
    pub file: String,
    /// Without the blanks around it.
    pub line: String,
    /// `old -> new`.
    pub what: String,
    /// Counts the same exchanges on equal lines of the file, from 0.
    pub nth: usize,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what, .. } = self;
        write!(f, "{file}: {what} in: {line}")
    }
}

/// A file's mutants by their names.
pub fn named(file: &str, text: &str, mutants: Vec<Mutant>) -> Vec<(Change, Mutant)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut counts: HashMap<(&str, String), usize> = HashMap::new();
    let named = mutants.into_iter().map(|mutant| {
        let line = lines[mutant.line - 1];
        let count = counts.entry((line, mutant.what.clone())).or_default();
        let change = Change {
            file: file.to_string(),
            line: line.to_string(),
            what: mutant.what.clone(),
            nth: *count,
        };
        *count += 1;
        (change, mutant)
    });
    named.collect()
}

/// The changes in an order drawn from a seed. A change keeps its place among the others if some come or go.
pub fn draw(mut changes: Vec<Change>, seed: u64) -> Vec<Change> {
    changes.sort_by_cached_key(|change| (lot(change, seed), change.clone()));
    changes
}

/// FNV-1a of the name and the seed, then the last steps of SplitMix64: the bits of FNV's end alone are not mixed well.
fn lot(change: &Change, seed: u64) -> u64 {
    let Change {
        file,
        line,
        what,
        nth,
    } = change;
    let name = format!("{file}\t{line}\t{what}\t{nth}");
    let hash = seed.to_le_bytes().into_iter().chain(name.bytes());
    let hash = hash.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::rust::mutants;
    use super::*;

    fn names(text: &str) -> Vec<Change> {
        let named = named("a.rs", text, mutants(text));
        named.into_iter().map(|(change, _)| change).collect()
    }

    #[test]
    fn equal_lines_have_names_of_their_own_that_survive_other_lines() {
        let text = "fn f() {\n    a + b + c;\n    a + b + c;\n}\n";
        let all = names(text);
        let counts: Vec<usize> = all.iter().map(|change| change.nth).collect();
        assert_eq!(counts, [0, 1, 2, 3]);
        assert_eq!(all[3].line, "a + b + c;");
        let moved = names(&text.replace("fn f() {", "fn g() {\n    x - y;\n    if z {\n    }"));
        assert!(all.iter().all(|change| moved.contains(change)));
        assert_eq!(moved.len(), 7);
    }

    #[test]
    fn a_seed_draws_the_same_and_another_seed_something_else() {
        let line = |number| format!("    a{number} + b;\n");
        let text: String = (2..102).map(line).collect();
        let (all, fewer) = (names(&text), names(&text.replace("a7 + b", "a7")));
        assert_eq!(all.len(), 100);
        let drawn = draw(all.clone(), 1);
        let mut backwards = all.clone();
        backwards.reverse();
        assert_eq!(drawn, draw(backwards, 1));
        assert_ne!(drawn[..5], draw(all.clone(), 2)[..5]);
        assert_ne!(drawn, all);
        let without: Vec<Change> = drawn
            .into_iter()
            .filter(|change| change.line != "a7 + b;")
            .collect();
        assert_eq!(without, draw(fewer, 1));
    }

    #[test]
    fn lots_are_spread_evenly() {
        let text: String = (0..1000).map(|number| format!("    a{number} + b;\n")).collect();
        let low = names(&text)
            .iter()
            .filter(|change| lot(change, 3) < u64::MAX / 4)
            .count();
        assert!((200..300).contains(&low), "{low}");
    }
}
