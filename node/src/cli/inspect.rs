//! `annulus inspect`: what a run's folder tells of the run.

use super::error::Error;
use super::output;
use crate::native::audit::audit;
use crate::native::inspect::inspect;
use crate::native::run_dir::RunDir;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Show a run's ledger: rounds, contributors, digests, checkpoints.
///
/// Also checks that the ledger counts each sample exactly once, and that the checkpoints are those that it leads to.
/// Reads only, also while a process trains there.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// Print one JSON object with everything.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus inspect runs/digits
  annulus inspect runs/digits --json | jq .totals
";

/// Does it. Fails if the ledger does not count each sample once.
pub fn run(args: &Args) -> Result<(), Error> {
    let dir = RunDir::open(&args.dir).map_err(Error::of)?;
    let summary = inspect(&dir).map_err(Error::of)?;
    let audit = audit(&dir).map_err(Error::of)?;
    let sound = audit.problems.is_empty();
    if args.json {
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
        args.dir.display(),
        audit.problems.join("; ")
    )))
}
