//! The list of what became of mutants: a line for each, written as it comes, so that an interrupted run goes on.

use super::bench::{Outcome, Tried};
use super::change::Change;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

const HEAD: &str = "outcome\tnoticed by\tseconds\tfile\tchange\tnth\tline";

/// A list in a file.
pub struct List {
    file: File,
    known: HashMap<Change, Outcome>,
}

impl List {
    /// Opens a list, or begins one.
    pub fn open(path: &Path) -> Result<Self, String> {
        let failed = |error| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(failed)?;
        if text.is_empty() {
            writeln!(file, "{HEAD}").map_err(failed)?;
        } else if !text.ends_with('\n') {
            // The last line was not written to its end.
            writeln!(file).map_err(failed)?;
        }
        let known = read(&text).into_iter().collect();
        Ok(Self { file, known })
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn outcome(&self, change: &Change) -> Option<Outcome> {
        self.known.get(change).copied()
    }

    pub fn add(&mut self, change: &Change, tried: &Tried, seconds: u64) -> Result<(), String> {
        self.known.insert(change.clone(), tried.outcome);
        writeln!(self.file, "{}", row(change, tried, seconds)).map_err(|error| format!("the list: {error}"))
    }
}

/// Says which mutants only the old tests noticed. Whether there is none.
pub fn compare(old: &Path, new: &Path) -> Result<bool, String> {
    let [before, after] = [old, new].map(|path| {
        let text = fs::read_to_string(path);
        text.map(|text| read(&text))
            .map_err(|error| format!("{}: {error}", path.display()))
    });
    let (before, after) = (before?, after?);
    for (path, list) in [(old, &before), (new, &after)] {
        println!(
            "{}: {}",
            path.display(),
            summary(list.iter().map(|(_, outcome)| *outcome))
        );
    }
    let lost = lost(&before, &after);
    lost.iter()
        .for_each(|change| println!("no longer noticed: {change}"));
    println!("{} noticed by the old tests alone", lost.len());
    Ok(lost.is_empty())
}

/// How many mutants had which outcome.
pub fn summary(outcomes: impl Iterator<Item = Outcome> + Clone) -> String {
    let count = |outcome| outcomes.clone().filter(|one| *one == outcome).count();
    format!(
        "{} noticed, {} missed, {} not in this checkout, {} did not compile",
        count(Outcome::Noticed),
        count(Outcome::Missed),
        count(Outcome::Absent),
        count(Outcome::Invalid)
    )
}

/// The changes that were noticed before and are missed after.
fn lost(before: &[(Change, Outcome)], after: &[(Change, Outcome)]) -> Vec<Change> {
    let is_missed = |change: &Change| after.contains(&(change.clone(), Outcome::Missed));
    let noticed = before.iter().filter(|(_, outcome)| *outcome == Outcome::Noticed);
    let lost = noticed.filter(|(change, _)| is_missed(change));
    lost.map(|(change, _)| change.clone()).collect()
}

fn row(change: &Change, tried: &Tried, seconds: u64) -> String {
    let Change {
        file,
        line,
        what,
        nth,
    } = change;
    let (outcome, by) = (tried.outcome.name(), &tried.by);
    format!("{outcome}\t{by}\t{seconds}\t{file}\t{what}\t{nth}\t{line}")
}

/// All whole lines of a list.
fn read(text: &str) -> Vec<(Change, Outcome)> {
    let rows = text
        .split_inclusive('\n')
        .filter_map(|row| row.strip_suffix('\n'));
    rows.filter_map(|row| {
        let mut columns = row.splitn(7, '\t');
        let outcome = Outcome::by_name(columns.next()?)?;
        let (file, what) = (columns.nth(2)?.to_string(), columns.next()?.to_string());
        let nth = columns.next()?.parse().ok()?;
        let line = columns.next()?.to_string();
        Some((
            Change {
                file,
                line,
                what,
                nth,
            },
            outcome,
        ))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(line: &str) -> Change {
        Change {
            file: "core/src/a.rs".to_string(),
            line: line.to_string(),
            what: "+ -> -".to_string(),
            nth: 2,
        }
    }

    #[test]
    fn a_list_goes_on_where_it_was_interrupted() {
        let path = std::env::temp_dir().join(format!("annulus-mutants-list-{}.tsv", std::process::id()));
        let [first, second, third] = ["a + b\t+ c", "d", "e"].map(change);
        let mut list = List::open(&path).unwrap();
        list.add(&first, &Tried::new(Outcome::Noticed, "a::b, c"), 7)
            .unwrap();
        list.file.write_all(b"missed\t\t3\tcore").unwrap();
        let mut list = List::open(&path).unwrap();
        assert_eq!(list.outcome(&first), Some(Outcome::Noticed));
        list.add(&second, &Tried::new(Outcome::Missed, ""), 7).unwrap();
        let list = List::open(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(list.outcome(&second), Some(Outcome::Missed));
        assert_eq!(list.outcome(&third), None);
        assert_eq!(
            read(&text),
            [(first, Outcome::Noticed), (second, Outcome::Missed)]
        );
    }

    #[test]
    fn only_what_was_noticed_before_and_is_missed_now_is_lost() {
        use Outcome::{Absent, Missed, Noticed};
        let list = |outcomes: &[(&str, Outcome)]| -> Vec<(Change, Outcome)> {
            outcomes
                .iter()
                .map(|(line, outcome)| (change(line), *outcome))
                .collect()
        };
        let before = list(&[
            ("a", Noticed),
            ("b", Noticed),
            ("c", Missed),
            ("d", Missed),
            ("e", Noticed),
            ("f", Noticed),
        ]);
        let after = list(&[
            ("a", Missed),
            ("b", Noticed),
            ("c", Missed),
            ("d", Noticed),
            ("e", Absent),
        ]);
        assert_eq!(lost(&before, &after), [change("a")]);
        assert_eq!(lost(&after, &before), [change("d")]);
        assert_eq!(
            summary(after.iter().map(|(_, outcome)| *outcome)),
            "2 noticed, 2 missed, 1 not in this checkout, 0 did not compile"
        );
    }
}
