//! `annulus eval`: how good a run's newest checkpoint is.

use super::amounts;
use super::error::Error;
use super::output;
use crate::offline::evaluate::{Evaluated, evaluate};
use crate::participant::run_setup::Means;
use crate::task_factory::TaskFactory;
use serde_json::json;
use std::path::PathBuf;

/// Evaluate a run's newest checkpoint on held-out data.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// Where the model was split over the run's members: another member's folder. May be given more than once.
    #[arg(long, value_name = "DIR")]
    pub with: Vec<PathBuf>,
    /// Data, if it is no longer where the run was started with it.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Where the model was split over the run's members: the most memory to take, such as 3GB or 400MB. Steps of the model that have
    /// no room together are computed one after the other.
    #[arg(long, value_name = "SIZE", value_parser = amounts::bytes)]
    pub memory: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus eval runs/digits
  annulus eval runs/digits --data mnist/ --json
";

/// Prints how good the newest checkpoint is.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let given = Means {
        data: args.data.as_deref(),
        device: &args.device,
        memory: args.memory,
    };
    let found = evaluate((&args.dir, &args.with), given, tasks);
    let Evaluated { round, eval, runs } = found.map_err(Error::of)?;
    output::note_runs(runs, "");
    if args.json {
        let object = json!({"round": round, "loss": eval.loss, "accuracy": eval.accuracy});
        output::print(&format!("{object}\n"));
        return Ok(());
    }
    let accuracy = eval.accuracy.map(|a| format!(", accuracy {:.2} %", 100.0 * a));
    let accuracy = accuracy.unwrap_or_default();
    output::print(&format!("after round {round}: loss {:.4}{accuracy}\n", eval.loss));
    Ok(())
}
