//! `annulus inspect`: what a run's folder tells of the run.

use super::error::Error;
use super::output;
use super::plot::{self, Curve};
use crate::native::audit::audit;
use crate::native::inspect::{Summary, inspect};
use crate::native::run_dir::RunDir;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Show a run's ledger: rounds, contributors, digests, checkpoints.
///
/// Also checks that the ledger counts each sample exactly once, and that the checkpoints are those that it leads to.
/// Reads only, also while a process trains there.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder; several to compare.
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,
    /// Print one JSON object with everything.
    #[arg(long)]
    pub json: bool,
    /// Draw the losses of all these runs into one picture instead.
    #[arg(long, value_name = "FILE.svg", conflicts_with = "json")]
    pub plot: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  annulus inspect runs/digits
  annulus inspect runs/digits --json | jq .totals
  annulus inspect runs/alone runs/three --plot losses.svg
";

/// Does it. Fails if a ledger does not count each sample once.
pub fn run(args: &Args) -> Result<(), Error> {
    match &args.plot {
        Some(file) => draw(&args.dirs, file),
        None => args.dirs.iter().try_for_each(|dir| tell(dir, args.json)),
    }
}

fn tell(path: &Path, json: bool) -> Result<(), Error> {
    let dir = RunDir::open(path).map_err(Error::of)?;
    let summary = inspect(&dir).map_err(Error::of)?;
    let audit = audit(&dir).map_err(Error::of)?;
    let sound = audit.problems.is_empty();
    if json {
        let mut object = serde_json::to_value(&summary).map_err(Error::of)?;
        if let Value::Object(fields) = &mut object {
            let audited = json!({
                "sound": sound,
                "rounds": audit.rounds,
                "samples": audit.samples,
                "skipped": audit.skipped,
                "checkpoints": audit.checkpoints,
                "problems": audit.problems,
            });
            fields.insert("audit".into(), audited);
        }
        output::print(&format!("{object}\n"));
    } else {
        output::print(&format!(
            "{summary}\naudit: {} rounds gone through, {} samples counted once each\n",
            audit.rounds, audit.samples
        ));
    }
    if sound {
        return Ok(());
    }
    Err(Error::failed(format!(
        "the ledger in {} is not sound: {}. Do not go on from this folder; use another peer's",
        path.display(),
        audit.problems.join("; ")
    )))
}

fn draw(dirs: &[PathBuf], file: &Path) -> Result<(), Error> {
    let mut curves = Vec::new();
    let mut tasks: Vec<String> = Vec::new();
    for path in dirs {
        let dir = RunDir::open(path).map_err(Error::of)?;
        let summary = inspect(&dir).map_err(Error::of)?;
        curves.push(curve(path, &summary));
        if !tasks.contains(&summary.task) {
            tasks.push(summary.task);
        }
    }
    let picture = plot::svg(&tasks.join(", "), &curves).ok_or_else(|| {
        Error::failed("there is no loss to draw yet: no round with samples is in these folders")
    })?;
    std::fs::write(file, picture).map_err(|error| {
        Error::failed(format!(
            "cannot write {}: {error}. Name another file after --plot",
            file.display()
        ))
    })?;
    let names: Vec<&str> = curves.iter().map(|curve| curve.name.as_str()).collect();
    output::print(&format!("{}: {}\n", file.display(), names.join(", ")));
    Ok(())
}

/// A run's losses over the samples that were counted.
fn curve(path: &Path, summary: &Summary) -> Curve {
    // The ledger may begin late: what was counted before is the rest of the whole.
    let mut counted = summary.samples - summary.table.iter().map(|row| row.samples).sum::<u64>();
    let (mut train, mut after) = (Vec::new(), Vec::new());
    for row in &summary.table {
        counted += row.samples;
        after.push((row.round, counted));
        train.extend(row.loss.map(|loss| (counted as f64, f64::from(loss))));
    }
    let place = |round| {
        let found = after.binary_search_by_key(&round, |(of, _)| *of);
        found.ok().map(|i| after[i].1 as f64)
    };
    let evals = summary.evals.iter();
    let name = path.file_name().unwrap_or(path.as_os_str());
    Curve {
        name: name.to_string_lossy().into_owned(),
        train,
        held_out: evals
            .filter_map(|eval| Some((place(eval.round)?, f64::from(eval.loss))))
            .collect(),
    }
}
