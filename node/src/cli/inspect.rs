//! `annulus inspect`: what a run's folder tells of the run.

use super::error::Error;
use super::human;
use super::output;
use super::plot::{self, Curve};
use super::watch::{Peer, of_folder};
use crate::offline::audit::audit;
use crate::offline::inspect::{Loss, inspect, losses};
use crate::store::evals;
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::Round;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Show a run's ledger: rounds, contributors, digests, checkpoints.
///
/// Also checks that the ledger counts each sample exactly once, and that the checkpoints are those that it leads to.
/// Reads only, also while a process trains there, which it asks (where that serves a page) how it reaches the others.
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

/// Prints what the run was, or the machine's part in it. Fails if a ledger does not count each sample once.
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
    let links = links(path, &summary.run);
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
            fields.insert("links".into(), json!(links));
        }
        output::print(&format!("{object}\n"));
    } else {
        output::print(&format!(
            "{summary}{}\naudit: {} rounds gone through, {} samples counted once each\n",
            as_text(&links),
            audit.rounds,
            audit.samples
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

/// How frames get to another peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Link {
    /// Its name in full.
    peer: String,
    /// As in `docs/status.md`.
    link: String,
}

/// The links of the peer that trains in a folder now; none if nobody does who says.
fn links(dir: &Path, run: &str) -> Vec<Link> {
    let told = of_folder(dir).filter(|told| told.run.as_deref() == Some(run));
    let peers = told.map(|told| told.peers).unwrap_or_default().into_iter();
    let link = |peer: Peer| {
        Some(Link {
            link: peer.link?,
            peer: peer.peer,
        })
    };
    peers.filter_map(link).collect()
}

fn as_text(links: &[Link]) -> String {
    let mut text = String::new();
    for Link { peer, link } in links {
        if text.is_empty() {
            text += "\nlinks now\n";
        }
        text += &format!("  {}  {link}\n", human::id(peer));
    }
    text
}

fn draw(dirs: &[PathBuf], file: &Path) -> Result<(), Error> {
    let mut curves = Vec::new();
    let mut tasks: Vec<String> = Vec::new();
    for path in dirs {
        let dir = RunDir::open(path).map_err(Error::of)?;
        curves.push(curve(&dir).map_err(Error::of)?);
        let task = &dir.manifest().task;
        if !tasks.contains(task) {
            tasks.push(task.clone());
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
fn curve(dir: &RunDir) -> Result<Curve, CheckpointError> {
    let losses = losses(dir)?;
    let point = |of: &Loss| Some((of.samples as f64, f64::from(of.loss?)));
    let held_out = evals::read(dir.path())?;
    let name = dir.path().file_name().unwrap_or(dir.path().as_os_str());
    Ok(Curve {
        name: name.to_string_lossy().into_owned(),
        train: losses.iter().filter_map(point).collect(),
        held_out: held_out
            .iter()
            .filter_map(|eval| Some((place(&losses, eval.round)?, f64::from(eval.loss))))
            .collect(),
    })
}

/// Samples counted after a round; between rounds that the ledger has, on the line from one to the other.
fn place(losses: &[Loss], round: Round) -> Option<f64> {
    let at = losses.partition_point(|of| of.round < round);
    let after = losses.get(at)?;
    if after.round == round {
        return Some(after.samples as f64);
    }
    let before = losses.get(at.checked_sub(1)?)?;
    let share = (round - before.round) as f64 / (after.round - before.round) as f64;
    Some(before.samples as f64 + share * (after.samples as f64 - before.samples as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_where_there_are_any() {
        let link = |peer: &str, link: &str| Link {
            peer: peer.repeat(32),
            link: link.into(),
        };
        assert_eq!(as_text(&[]), "");
        assert_eq!(
            as_text(&[link("ab", "direct"), link("cd", "relayed")]),
            "\nlinks now\n  abababab  direct\n  cdcdcdcd  relayed\n"
        );
    }

    #[test]
    fn a_round_that_the_ledger_lacks_lies_between_its_neighbours() {
        let of = |round, samples| Loss {
            round,
            samples,
            loss: None,
        };
        let losses = [of(4, 40), of(5, 52), of(9, 100)];
        let places = [3, 4, 5, 6, 9, 10].map(|round| place(&losses, round));
        assert_eq!(
            places,
            [None, Some(40.0), Some(52.0), Some(64.0), Some(100.0), None]
        );
        assert_eq!(place(&[], 1), None);
    }
}
