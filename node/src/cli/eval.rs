//! `annulus eval`: the quality of a run's model.

use super::amounts;
use super::error::Error;
use super::output;
use crate::offline::evaluate::{Evaluated, evaluate};
use crate::offline::present::save_present;
use crate::participant::run_setup::Means;
use crate::store::which::Which;
use crate::task::in_words;
use crate::task_factory::TaskFactory;
use serde_json::json;
use std::path::PathBuf;

/// Evaluate a run's newest checkpoint, or another one, on held-out data.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// If the model is split: another member's folder. Can be given more than once.
    #[arg(long, value_name = "DIR")]
    pub with: Vec<PathBuf>,
    /// The checkpoint to evaluate: newest, best (of a run with keep_best=on), or the round after which it was saved.
    #[arg(long, value_name = "ROUND", default_value = "newest")]
    pub round: Which,
    /// The run's data, if it has moved since the run was started.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// If the model is split: the most memory to take, such as 3G or 400M. Steps that do not fit together are computed one after the
    /// other.
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

/// Prints the quality of a checkpoint.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    save_present(&args.dir, args.round).map_err(Error::of)?;
    let given = Means {
        data: args.data.as_deref(),
        device: &args.device,
        memory: args.memory,
    };
    let found = evaluate((&args.dir, &args.with, args.round), given, tasks);
    let Evaluated { round, eval, runs } = found.map_err(Error::of)?;
    output::note_runs(runs, "");
    if args.json {
        let object = json!({"round": round, "loss": eval.loss, "metrics": eval.metrics});
        output::print(&format!("{object}\n"));
        return Ok(());
    }
    let metrics = in_words(&eval.metrics);
    output::print(&format!("after round {round}: loss {:.4}{metrics}\n", eval.loss));
    Ok(())
}
