//! Draws mutants, has them tried, and keeps a list of what became of them.

use super::areas::{self, Area};
use super::bench::{Bench, Outcome, Tried};
use super::change::{Change, draw};
use super::copy::Copy;
use super::kernels;
use super::list::{List, summary};
use crate::browser::target_dir;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to draw, and where to try it.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// Mutants of each area.
    count: usize,
    seed: u64,
    /// Another checkout, in which they are tried instead.
    tree: Option<PathBuf>,
    areas: Vec<Area>,
}

impl Options {
    /// Reads `--drawn N [--seed S] [--tree PATH] [AREA...]`.
    pub fn read(args: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            count: 0,
            seed: 1,
            tree: None,
            areas: Vec::new(),
        };
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            let no_number = |_| format!("{arg} needs a number");
            match arg {
                "--drawn" => options.count = value()?.parse().map_err(no_number)?,
                "--seed" => options.seed = value()?.parse().map_err(no_number)?,
                "--tree" => options.tree = Some(value()?.into()),
                name => {
                    let area = Area::by_name(name);
                    let names = Area::ALL.map(Area::name).join(", ");
                    let unknown = format!("there is no area \"{name}\": choose from {names}");
                    options.areas.push(area.ok_or(unknown)?);
                }
            }
        }
        if options.count == 0 {
            return Err("say how many mutants of each area: --drawn N".to_string());
        }
        if options.areas.is_empty() {
            options.areas = Area::ALL.to_vec();
        }
        Ok(options)
    }
}

/// Tries the mutants drawn. Mutants that survive are no error: the result is a measure.
///
/// # Errors
///
/// If the tests cannot be built, or fail without any mutant.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    let place = target_dir(root)?.join("mutants");
    for area in &options.areas {
        run_area(root, &place, *area, options)?;
    }
    Ok(true)
}

fn run_area(root: &Path, place: &Path, area: Area, options: &Options) -> Result<(), String> {
    let (tree, own) = match &options.tree {
        Some(tree) => (absolute(tree)?, folder_name(tree)?),
        None => (root.to_path_buf(), "here".to_string()),
    };
    let (place, path) = (
        place.join(&own),
        place.join(format!("{}-{}-{own}.tsv", area.name(), options.seed)),
    );
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let mut list = List::open(&path)?;
    println!(
        "{}: {} results are in {}; to try them again, delete it",
        area.name(),
        list.len(),
        path.display()
    );
    let mut bench: Option<Box<dyn Bench>> = None;
    let mut outcomes = Vec::new();
    for change in drawn(root, area, options.seed) {
        let valid = outcomes.iter().filter(|outcome| **outcome != Outcome::Invalid);
        if valid.count() == options.count {
            break;
        }
        if let Some(outcome) = list.outcome(&change) {
            outcomes.push(outcome);
            continue;
        }
        let (text, mutants) = areas::mutants(&tree, &change.file);
        let mutant = mutants.into_iter().find(|(name, _)| *name == change);
        let (tried, seconds) = match mutant {
            None => (Tried::new(Outcome::Absent, ""), 0),
            Some((_, mutant)) => {
                let bench = match &mut bench {
                    Some(bench) => bench,
                    none => none.insert(open(area, &tree, &place)?),
                };
                bench.prove(&change.file)?;
                let began = Instant::now();
                let tried = bench.attempt(&change.file, &mutant.apply(&text))?;
                (tried, began.elapsed().as_secs())
            }
        };
        list.add(&change, &tried, seconds)?;
        outcomes.push(tried.outcome);
        println!("{}: {change}", tried.outcome.name());
    }
    println!("{}: {}", area.name(), summary(outcomes.into_iter()));
    Ok(())
}

/// All changes of an area, in the order of the draw.
fn drawn(root: &Path, area: Area, seed: u64) -> Vec<Change> {
    let files = area.files(root);
    let named = files.iter().flat_map(|file| areas::mutants(root, file).1);
    draw(named.map(|(change, _)| change).collect(), seed)
}

fn open(area: Area, tree: &Path, place: &Path) -> Result<Box<dyn Bench>, String> {
    Ok(match area {
        Area::Kernels => Box::new(kernels::Programs::build(tree)?),
        Area::Protocol | Area::Node => Box::new(Copy::new(tree, place)),
    })
}

fn absolute(tree: &Path) -> Result<PathBuf, String> {
    fs::canonicalize(tree).map_err(|error| format!("{}: {error}", tree.display()))
}

/// The name of a checkout's folder, which tells its list from others.
fn folder_name(tree: &Path) -> Result<String, String> {
    let name = absolute(tree)?;
    let name = name.file_name().ok_or("a checkout is a folder with a name")?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_any_order() {
        let read = |line: &str| Options::read(&line.split(' ').collect::<Vec<_>>());
        let all = read("--drawn 20").unwrap();
        assert_eq!((all.count, all.seed, all.areas.len()), (20, 1, 3));
        let some = read("node --tree ../old --seed 7 --drawn 2 protocol").unwrap();
        let expected = Options {
            count: 2,
            seed: 7,
            tree: Some("../old".into()),
            areas: vec![Area::Node, Area::Protocol],
        };
        assert_eq!(some, expected);
        for wrong in ["--seed 2", "--drawn", "--drawn x", "--drawn 2 kernel", "--dawn 2"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_project_draws_the_same_from_the_same_seed() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let first = drawn(root, Area::Protocol, 5);
        assert_eq!(first, drawn(root, Area::Protocol, 5));
        assert_ne!(first[..20], drawn(root, Area::Protocol, 6)[..20]);
    }
}
