//! `annulus sample`: text by a trained model.

use super::amounts;
use super::error::Error;
use super::output;
use crate::offline::sample;
use crate::participant::run_setup::Means;
use crate::task::Prompt;
use crate::task_factory::TaskFactory;
use std::path::PathBuf;

/// Let a run's newest checkpoint write: what comes after a text.
///
/// The run's task must be one that writes, as `gpt` does. Prints while it writes; the same seed on the same device writes the same.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// Where the model was split over the run's members: another member's folder. May be given more than once.
    #[arg(long, value_name = "DIR")]
    pub with: Vec<PathBuf>,
    /// The text to go on from; without it, the beginning of a line.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prompt: String,
    /// Tokens to write.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub tokens: usize,
    /// How daring: below 1 the likely becomes likelier, 0 always takes the likeliest.
    #[arg(long, value_name = "X", default_value_t = 0.8)]
    pub temperature: f64,
    /// Choose from the K likeliest tokens only.
    #[arg(long, value_name = "K", default_value_t = 200)]
    pub top_k: usize,
    /// Another seed, another text.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The run's data, if it takes them to write (for `gpt` where tokens are characters) and they are not found here.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N; with +f16 behind it, weights are kept as halves there.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Where the model was split over the run's members: the most memory to take, such as 3GB or 400MB. Steps of the model that have
    /// no room together are computed one after the other.
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
    let mut emit = |piece: &str| output::print(piece);
    sample::write(
        (&args.dir, &args.with),
        given,
        &prompt,
        tasks,
        &mut emit,
        &mut |runs| {
            output::note_runs(runs, " for each token");
            output::print(&args.prompt);
        },
    )
    .map_err(Error::of)?;
    output::print("\n");
    Ok(())
}
