//! `annulus export`: a trained model for other tools.

use super::error::Error;
use super::human;
use super::output;
use crate::offline::export::{export, export_onnx};
use crate::offline::{note_round, warn};
use crate::store::which::Which;
use crate::task_factory::TaskFactory;
use std::path::PathBuf;

/// Write the parameters of a run's newest checkpoint as one safetensors file, or into the model's own ONNX file.
///
/// The metadata of a safetensors file holds the model's sizes and, for `gpt`, the characters in the order of their tokens.
/// docs/training.md explains names and layout. A run of task `graph` also writes FILE.onnx: the model that it trains, with
/// the trained parameters in it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// The file to write: FILE.safetensors or FILE.onnx. An existing file is replaced.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// If the model is split: another member's folder. Can be given more than once.
    #[arg(long, value_name = "DIR")]
    pub with: Vec<PathBuf>,
    /// The checkpoint to export: newest, best (of a run with keep_best=on), or the round after which it was saved.
    #[arg(long, value_name = "ROUND", default_value = "newest")]
    pub round: Which,
    /// The run's data, if the metadata needs it (`gpt` with vocabulary=characters does) and it is not found here.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  annulus export runs/digits digits.safetensors
  annulus export runs/graph model.onnx
  annulus export member1 gpt.safetensors --with member2 --with member3
";

/// Writes the file and prints its contents in short.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let (data, round) = (args.data.as_deref(), args.round);
    let done = match args.file.extension().is_some_and(|ending| ending == "onnx") {
        true => export_onnx((&args.dir, round), data, tasks, &args.file).map_err(Error::of)?,
        false => export((&args.dir, &args.with, round), data, tasks, &args.file).map_err(Error::of)?,
    };
    warn(&done.warnings);
    note_round(done.round);
    output::print(&format!(
        "{}: {} parameters in {} after round {}, state {}\n",
        args.file.display(),
        human::grouped(done.parameters as u64),
        human::plural(done.tensors as u64, "tensor"),
        done.round,
        done.digest
    ));
    Ok(())
}
