//! `annulus ls`: the runs on this machine.

use super::error::Error;
use super::human;
use super::output;
use super::watch;
use crate::participant::permission;
use crate::store::folders;
use crate::store::lock::is_up;
use crate::store::run_dir::RunDir;
use annulus_net::printable::printable_line;
use annulus_net::user_folders;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// List the runs on this machine, and which are up.
///
/// It looks in `runs` here, in the folders that you name, and wherever your peers have trained on this machine before.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Other places to look: folders of runs, or folders that hold some.
    #[arg(value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  annulus ls
  annulus ls /mnt/disk/runs
";

/// Most folders that are looked at in one place. A guess.
const MOST: usize = 1_000;

/// A run in a folder.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    is_up: bool,
    state: String,
    run: String,
    task: String,
    round: u64,
    dir: PathBuf,
}

/// Prints the list.
pub fn run(args: &Args) -> Result<(), Error> {
    let noted = user_folders::data().map(|data| folders::noted(&data));
    let usual = [PathBuf::from("runs")];
    let dirs = usual.iter().chain(&args.dirs).flat_map(|dir| within(dir));
    let rows = rows(dirs.chain(noted.into_iter().flatten()));
    output::print(&match rows.is_empty() {
        true => "no runs on this machine yet: `annulus train` starts one\n".to_owned(),
        false => table(&rows),
    });
    Ok(())
}

/// A folder and those in it.
fn within(dir: &Path) -> Vec<PathBuf> {
    let inside = std::fs::read_dir(dir).into_iter().flatten().flatten().take(MOST);
    let mut inside: Vec<PathBuf> = inside.map(|entry| entry.path()).collect();
    inside.sort();
    inside.insert(0, dir.to_owned());
    inside
}

/// The runs in these folders, each once: first those that are up.
fn rows(dirs: impl Iterator<Item = PathBuf>) -> Vec<Row> {
    let (mut seen, mut rows) = (Vec::new(), Vec::new());
    for dir in dirs {
        let Ok(place) = dir.canonicalize() else { continue };
        if !seen.contains(&place) {
            seen.push(place);
            rows.extend(row(dir));
        }
    }
    rows.sort_by_key(|row| !row.is_up);
    rows
}

/// The run in a folder, if there is one.
fn row(dir: PathBuf) -> Option<Row> {
    let folder = RunDir::open(&dir).ok()?;
    let manifest = folder.manifest();
    let saved = folder.checkpoints().ok()?.last().map(|file| file.round);
    let is_paused = permission::file(&dir).exists();
    let is_up = is_up(&dir);
    let seen = is_up.then(|| watch::of_folder(&dir)).flatten();
    let state = match &seen {
        _ if is_up && is_paused => "paused".to_owned(),
        Some(seen) => seen.phase.clone(),
        None if is_up => "up".to_owned(),
        None => {
            let head = saved.and_then(|round| Some(folder.label(round).ok()?.head));
            let is_complete = head.is_some_and(|head| head.finished(manifest));
            if is_complete { "complete" } else { "stopped" }.to_owned()
        }
    };
    Some(Row {
        is_up,
        state,
        run: human::id(&manifest.run_id().to_hex()).to_owned(),
        task: manifest.task.clone(),
        round: seen.map(|seen| seen.round).max(saved).unwrap_or_default(),
        dir,
    })
}

fn table(rows: &[Row]) -> String {
    let width = |of: &dyn Fn(&Row) -> usize, least: usize| rows.iter().map(of).max().unwrap_or(0).max(least);
    let (state, task) = (
        width(&|row| row.state.len(), "state".len()),
        width(&|row| row.task.len(), "task".len()),
    );
    let mut text = format!(
        "{:<3} {:<state$}  {:<8}  {:<task$}  {:>9}  folder\n",
        "up", "state", "run", "task", "round"
    );
    for row in rows {
        let up = if row.is_up { "yes" } else { "-" };
        let dir = printable_line(&row.dir.display().to_string(), 4096);
        // Writing to a text cannot fail.
        let _ = writeln!(
            text,
            "{up:<3} {:<state$}  {:<8}  {:<task$}  {:>9}  {dir}",
            row.state,
            row.run,
            row.task,
            human::grouped(row.round)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::checkpoint::RunWriter;
    use crate::store::lock::RunLock;
    use crate::testing::{Run, Scratch};

    #[test]
    fn runs_are_listed_once_with_those_that_are_up_first() {
        let scratch = Scratch::new();
        let dir = |name: &str| scratch.0.join(name);
        for name in ["a", "b"] {
            let mut run = Run::new();
            let mut writer = RunWriter::create(&dir(name), &run.manifest, &run.head, &run.state).unwrap();
            let (record, digest) = run.round();
            writer.append(&record, digest).unwrap();
            writer.saver().save(&run.head, &run.state, digest).unwrap();
        }
        std::fs::create_dir(dir("empty")).unwrap();
        let _lock = RunLock::take(&dir("b")).unwrap();
        let found = rows(within(&scratch.0).into_iter().chain([dir("a"), dir("gone")]));
        let short = |row: &Row| (row.dir.clone(), row.is_up, row.state.clone(), row.round);
        assert_eq!(
            found.iter().map(short).collect::<Vec<_>>(),
            [
                (dir("b"), true, "up".to_owned(), 1),
                (dir("a"), false, "stopped".to_owned(), 1)
            ]
        );
        let text = table(&found);
        assert!(
            text.lines().nth(1).is_some_and(|line| line.starts_with("yes up")),
            "{text}"
        );
    }
}
