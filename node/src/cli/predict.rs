//! `annulus predict`: what a trained model says of new rows or pictures.

use super::error::Error;
use super::output;
use crate::offline::predict::predictor;
use crate::store::which::Which;
use crate::task_factory::TaskFactory;
use annulus_net::files::read_named;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

/// Largest file that is read.
const LIMIT: usize = 4 << 30;

/// Predict the rows of a CSV, TSV or Parquet file, a picture, or a folder of pictures with a trained model.
///
/// Writes CSV to standard output: a table's rows with the prediction behind each, or a row for each picture; for classes also a
/// probability for each. Columns may be in another order, and there may be more of them. The model file alone is enough, on any
/// machine, and gives the same bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder, or a file that `annulus export` wrote.
    pub model: PathBuf,
    /// What to predict: rows as CSV, TSV or Parquet, a PNG or JPEG file, or a folder of such.
    #[arg(value_name = "FILE|FOLDER")]
    pub input: PathBuf,
    /// The checkpoint to predict with: newest, best (of a run with keep_best=on), or the round after which it was saved.
    #[arg(long, value_name = "ROUND", default_value = "newest")]
    pub round: Which,
    /// The data of the run in the folder, if it is not found here.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  annulus predict runs/table new.csv > predicted.csv
  annulus predict model.safetensors new.csv
  annulus predict runs/images holiday.jpg
";

/// Prints the predictions.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let model = predictor((&args.model, args.round), args.data.as_deref(), tasks).map_err(Error::of)?;
    let predicted = match args.input.is_dir() {
        true => model.predict_folder(&args.input),
        false => {
            let bytes = read_named(&args.input, LIMIT);
            let bytes = bytes.map_err(|error| Error::failed(error.to_string()))?;
            model.predict(&args.input.display().to_string(), &bytes)
        }
    };
    let predicted = predicted.map_err(|error| Error::failed(error.to_string()))?;
    // A file gets the cells as they are, a terminal nothing to obey.
    match io::stdout().is_terminal() {
        true => output::print(&predicted),
        false => output::paint(&predicted),
    }
    Ok(())
}
