//! A copy of a checkout in the target folder, in which mutants of Rust files are built and tested. It stays there, so
//! later builds are short. Nothing changes in the checkout itself.

use super::areas;
use super::bench::{Bench, Outcome, Tried};
use super::limit::{End, run_within};
use crate::command::cargo;
use crate::tally::Reader;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// More than the first build takes, and more than all tests of an area: a guess.
const PATIENCE: Duration = Duration::from_secs(2 * 60 * 60);

/// A mutant may slow tests down, and other programs may use the machine. A guess.
const TIMES_LONGER: u32 = 4;
const LONGER: Duration = Duration::from_secs(60);

/// The number of failed tests that are named as those that noticed.
const NAMES: usize = 3;

pub struct Copy {
    tree: PathBuf,
    place: PathBuf,
    /// How long the tests take without any mutant, by what cargo is told.
    usual: HashMap<Vec<String>, Duration>,
}

impl Copy {
    /// A copy of `tree` in the folder `place`.
    pub fn new(tree: &Path, place: &Path) -> Self {
        Self {
            tree: tree.to_path_buf(),
            place: place.to_path_buf(),
            usual: HashMap::new(),
        }
    }

    fn folder(&self) -> PathBuf {
        self.place.join("tree")
    }

    /// What the programs say.
    fn output(&self) -> PathBuf {
        self.place.join("output.txt")
    }

    /// Makes the copy equal to the checkout. Equal files stay as they are, so that cargo does not build them again.
    fn refresh(&self) -> Result<(), String> {
        let files = listed(&self.tree)?;
        let copies = listed_in(&self.folder());
        let wanted: HashSet<&PathBuf> = files.iter().collect();
        let failed = |error: io::Error| format!("the copy in {}: {error}", self.place.display());
        for left in copies.iter().filter(|file| !wanted.contains(file)) {
            fs::remove_file(self.folder().join(left)).map_err(failed)?;
        }
        for file in &files {
            let (from, to) = (self.tree.join(file), self.folder().join(file));
            let text = fs::read(from).map_err(failed)?;
            if fs::read(&to).is_ok_and(|old| old == text) {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(&self.place)).map_err(failed)?;
            fs::write(to, text).map_err(failed)?;
        }
        Ok(())
    }

    /// Sees how long a command takes without any mutant.
    fn time(&mut self, args: &[String]) -> Result<(), String> {
        if self.usual.contains_key(args) {
            return Ok(());
        }
        let all = args.join(" ");
        println!("without any mutant: cargo {all}");
        let fails = format!(
            "without any mutant this fails; see {}: cargo {all}",
            self.output().display()
        );
        if self.cargo(args, true, PATIENCE)? != End::Passed {
            return Err(fails);
        }
        let began = Instant::now();
        if self.cargo(args, false, PATIENCE)? != End::Passed {
            return Err(fails);
        }
        self.usual.insert(args.to_vec(), began.elapsed());
        Ok(())
    }

    /// The first of the commands that fails decides.
    fn judge(&self, commands: &[Vec<String>]) -> Result<Tried, String> {
        for args in commands {
            if self.cargo(args, true, PATIENCE)? != End::Passed {
                return Ok(Tried::new(Outcome::Invalid, ""));
            }
            let limit = self.usual[args] * TIMES_LONGER + LONGER;
            match self.cargo(args, false, limit)? {
                End::Passed => {}
                End::Failed => return Ok(Tried::new(Outcome::Noticed, &self.failures())),
                End::TooLate => return Ok(Tried::new(Outcome::Noticed, "the time limit")),
            }
        }
        Ok(Tried::new(Outcome::Missed, ""))
    }

    fn cargo(&self, args: &[String], only_build: bool, limit: Duration) -> Result<End, String> {
        let failed = |error: io::Error| format!("cargo: {error}");
        let output = File::create(self.output()).map_err(failed)?;
        let mut command = cargo(&self.folder());
        command
            .args(args)
            .args((only_build && args[0] == "test").then_some("--no-run"))
            .env("CARGO_TARGET_DIR", self.place.join("target"))
            .env("CARGO_INCREMENTAL", "1")
            // The same cases for each mutant, also after one that failed.
            .env("PROPTEST_RNG_SEED", "1")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .stdin(Stdio::null())
            .stderr(output.try_clone().map_err(failed)?)
            .stdout(output);
        run_within(command, limit).map_err(failed)
    }

    /// The names of tests that failed in the last run.
    fn failures(&self) -> String {
        let text = fs::read(self.output()).unwrap_or_default();
        let mut reader = Reader::default();
        for line in String::from_utf8_lossy(&text).lines() {
            reader.line(line);
        }
        match reader.failures.as_slice() {
            [] => "a crash".to_string(),
            names => names[..names.len().min(NAMES)].join(", "),
        }
    }
}

impl Bench for Copy {
    fn prove(&mut self, file: &str) -> Result<(), String> {
        self.refresh()?;
        let commands = areas::commands(&self.tree, file);
        commands.iter().try_for_each(|args| self.time(args))
    }

    fn attempt(&mut self, file: &str, mutant: &str) -> Result<Tried, String> {
        let commands = areas::commands(&self.tree, file);
        let failed = |error| format!("{file}: {error}");
        fs::write(self.folder().join(file), mutant).map_err(failed)?;
        let tried = self.judge(&commands);
        self.refresh()?;
        tried
    }
}

/// The files of a checkout that git does not ignore, from its folder on.
fn listed(tree: &Path) -> Result<Vec<PathBuf>, String> {
    let mut git = Command::new("git");
    git.current_dir(tree)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git lists no files of {}: {said}", tree.display()));
    }
    let names = output.stdout.split(|byte| *byte == 0);
    let files = names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()));
    Ok(files.filter(|file| tree.join(file).is_file()).collect())
}

/// All files in a folder, from it on; none if it is not there.
fn listed_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.extend(path.strip_prefix(folder).map(Path::to_path_buf)),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_becomes_equal_to_its_checkout_and_keeps_equal_files() {
        let place = std::env::temp_dir().join(format!("annulus-mutants-copy-{}", std::process::id()));
        let tree = place.join("checkout");
        let write = |folder: &Path, name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let files = [
            ("a/b.rs", "b"),
            ("c.rs", "c"),
            (".gitignore", "target\n"),
            ("target/d", "d"),
        ];
        files.iter().for_each(|(name, text)| write(&tree, name, text));
        let mut git = Command::new("git");
        assert!(
            git.args(["init", "--quiet"])
                .arg(&tree)
                .status()
                .unwrap()
                .success()
        );
        let copy = Copy::new(&tree, &place);
        copy.refresh().unwrap();
        let written = |name: &str| {
            fs::metadata(copy.folder().join(name))
                .unwrap()
                .modified()
                .unwrap()
        };
        let before = written("c.rs");
        write(&copy.folder(), "a/b.rs", "mutant");
        write(&copy.folder(), "left/over.txt", "");
        copy.refresh().unwrap();
        assert_eq!(fs::read(copy.folder().join("a/b.rs")).unwrap(), b"b");
        assert_eq!(written("c.rs"), before);
        let mut all = listed_in(&copy.folder());
        all.sort();
        fs::remove_dir_all(&place).unwrap();
        assert_eq!(all, [".gitignore", "a/b.rs", "c.rs"].map(PathBuf::from));
    }
}
