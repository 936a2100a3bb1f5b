//! `annulus search`: `annulus train` on a task that trains several models with different settings side by side.

use super::error::Error;
use super::exit::Exit;
use super::train;
use crate::options::TrainOptions;
use crate::task_factory::TaskFactory;

/// Try several settings at once, and make one model of the best.
///
/// The trials train side by side in one run, on the same batches, so others join, leave and fail as in every run. The first trial is
/// the model of `annulus train`, which makes up half of the search's model. The other half are the best of the others, by the
/// validation rows. It takes the options and settings of `annulus train`.
#[derive(Debug, clap::Args)]
#[command(next_line_help = false, after_help = EXAMPLES)]
pub struct Args {
    /// The arguments of `annulus train`.
    #[command(flatten)]
    pub train: train::Args,
}

const EXAMPLES: &str = "\
Examples:
  annulus search --data houses.csv target=price
  annulus search --data houses.csv target=price trials=24 rounds=4000
  annulus search --data houses.csv target=price --listen 4433 --out runs/search
";

/// Founds the run and takes part in it.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    train::carry_out(&args.train, options(args, tasks)?, tasks)
}

/// The options that the arguments mean.
pub fn options(args: &Args, tasks: &[TaskFactory]) -> Result<TrainOptions, Error> {
    let searching = tasks.iter().filter(|task| !task.search_settings.is_empty());
    let searching: Vec<TaskFactory> = searching
        .map(|task| TaskFactory {
            run_settings: task.search_settings,
            ..*task
        })
        .collect();
    train::options(&args.train, &searching)
}
