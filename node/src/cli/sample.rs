//! `annulus sample`: text by a trained model.

use super::amounts;
use super::error::Error;
use super::output;
use crate::offline::present::save_present;
use crate::offline::sample;
use crate::participant::run_setup::Means;
use crate::store::which::Which;
use crate::task::Prompt;
use crate::task_factory::TaskFactory;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

/// Write text with a run's newest checkpoint, or with the model of a file.
///
/// The run's task must be one that writes, as `gpt` does. The same seed on the same device writes the same text.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder, or a file that `annulus export` or `annulus quantize` wrote.
    pub dir: PathBuf,
    /// If the model is split: another member's folder. Can be given more than once.
    #[arg(long, value_name = "DIR")]
    pub with: Vec<PathBuf>,
    /// The text to continue (default: the beginning of a line).
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prompt: String,
    /// Tokens to write.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub tokens: usize,
    /// Sampling temperature: below 1 likely tokens become likelier, and 0 always takes the likeliest.
    #[arg(long, value_name = "X", default_value_t = 0.8)]
    pub temperature: f64,
    /// Sample from the K likeliest tokens only.
    #[arg(long, value_name = "K", default_value_t = 200)]
    pub top_k: usize,
    /// Seed of the text.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The checkpoint to write with: newest, best (of a run with keep_best=on), or the round after which it was saved.
    #[arg(long, value_name = "ROUND", default_value = "newest")]
    pub round: Which,
    /// The run's data, if writing needs it (`gpt` with vocabulary=characters does) and it is not found here.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N. Append +f16 to let a GPU multiply halves.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// If the model is split: the most memory to take, such as 3G or 400M. Steps that do not fit together are computed one after the
    /// other.
    #[arg(long, value_name = "SIZE", value_parser = amounts::bytes)]
    pub memory: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  annulus sample runs/gpt
  annulus sample runs/gpt --prompt ROMEO: --tokens 1000 --temperature 0.7 --seed 7
";

/// Prints what the model writes.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    if !(args.temperature >= 0.0 && args.temperature.is_finite()) {
        return Err(Error::usage(format!(
            "--temperature {} is not possible: it must be a finite number, at least 0",
            args.temperature
        )));
    }
    save_present(&args.dir, args.round).map_err(Error::of)?;
    let prompt = Prompt {
        text: args.prompt.clone(),
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
    };
    let given = Means {
        data: args.data.as_deref(),
        device: &args.device,
        memory: args.memory,
    };
    // A model may write escape codes. A file gets what it wrote, a terminal nothing to obey.
    let write: fn(&str) = match io::stdout().is_terminal() {
        true => output::print,
        false => output::paint,
    };
    let mut emit = |piece: &str| write(piece);
    sample::write(
        (&args.dir, &args.with, args.round),
        given,
        &prompt,
        tasks,
        &mut emit,
        &mut |runs| {
            output::note_runs(runs, " for each token");
            write(&args.prompt);
        },
    )
    .map_err(Error::of)?;
    output::print("\n");
    Ok(())
}
