//! `annulus predict`: what a trained model says of new rows or pictures.

use super::error::Error;
use super::output;
use crate::offline::predict::predictor;
use crate::offline::present::save_present;
use crate::store::which::Which;
use crate::task::Predict;
use crate::task_factory::TaskFactory;
use annulus_net::files::read_named;
use annulus_table::unpacked;
use std::fmt::Display;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

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
    /// What to predict: rows as CSV, TSV or Parquet, also with gzip; - for standard input; a PNG or JPEG file, or a folder of such.
    #[arg(value_name = "FILE|FOLDER")]
    pub input: PathBuf,
    /// Tell how good the predictions are instead of writing them: the rows also have the column that is predicted.
    #[arg(long)]
    pub score: bool,
    /// With --score: print the metrics as JSON.
    #[arg(long, requires = "score")]
    pub json: bool,
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
  psql --csv -c 'select * from orders' | annulus predict model.safetensors -
  annulus predict model.safetensors last_month.csv --score
  annulus predict runs/images holiday.jpg
";

/// Prints the predictions.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    save_present(&args.model, args.round).map_err(Error::of)?;
    let model = predictor((&args.model, args.round), args.data.as_deref(), tasks).map_err(Error::of)?;
    let predicted = match args.input.is_dir() {
        true => model.predict_folder(&args.input).map_err(failed)?,
        false => {
            let name = match is_standard_input(&args.input) {
                true => "standard input".into(),
                false => args.input.display().to_string(),
            };
            let bytes = whole(&args.input)?;
            let bytes = unpacked(&name, &bytes, LIMIT).map_err(failed)?;
            if args.score {
                return score(&*model, (&name, &bytes), args.json);
            }
            model.predict(&name, &bytes).map_err(failed)?
        }
    };
    for note in &predicted.notes {
        warn(note);
    }
    // A file gets the cells as they are, a terminal nothing to obey.
    match io::stdout().is_terminal() {
        true => output::print(&predicted.text),
        false => output::paint(&predicted.text),
    }
    Ok(())
}

/// Prints how good the model is on these rows.
fn score(model: &dyn Predict, (name, bytes): (&str, &[u8]), json: bool) -> Result<(), Error> {
    let (scored, notes) = model.score(name, bytes).map_err(failed)?;
    notes.iter().for_each(|note| warn(note));
    output::print(&match json {
        true => format!("{}\n", scored.metrics),
        false => format!("{}\n", scored.report),
    });
    Ok(())
}

fn warn(note: &str) {
    output::note(&format!("warning: {note}"));
}

fn is_standard_input(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn whole(file: &Path) -> Result<Vec<u8>, Error> {
    if !is_standard_input(file) {
        return read_named(file, LIMIT).map_err(failed);
    }
    let mut bytes = Vec::new();
    let read = io::stdin().take(LIMIT as u64 + 1).read_to_end(&mut bytes);
    match read.map_err(failed)? > LIMIT {
        true => Err(Error::failed("standard input has more than 4 GiB: divide it")),
        false => Ok(bytes),
    }
}

fn failed(error: impl Display) -> Error {
    Error::failed(error.to_string())
}
