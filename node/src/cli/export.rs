//! `annulus export`: a trained model for other tools.

use super::error::Error;
use super::human;
use super::output;
use crate::offline::export::{export, export_onnx};
use crate::offline::present::save_present;
use crate::offline::saved::{Saved, write};
use crate::offline::{note_round, warn};
use crate::participant::run_data::find;
use crate::store::which::Which;
use crate::task_factory::TaskFactory;
use std::path::PathBuf;

/// Write the parameters of a run's newest checkpoint as one safetensors file, or into the model's own ONNX file.
///
/// The metadata of a safetensors file holds the model's sizes and, for `gpt`, the characters in the order of their tokens.
/// docs/training.md explains names and layout. A run of task `graph` also writes FILE.onnx: the model that it trains, with
/// the trained parameters in it. A `gpt` model also becomes FILE.gguf, which llama.cpp runs; it can be made of a model file too, and
/// takes over the blocks of a quantized one.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder; for FILE.gguf also a model file.
    pub dir: PathBuf,
    /// The file to write: FILE.safetensors, FILE.onnx or FILE.gguf. An existing file is replaced.
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
    /// For FILE.gguf: write matrices as halves, which takes half of the size.
    #[arg(long)]
    pub f16: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus export runs/digits digits.safetensors
  annulus export runs/graph model.onnx
  annulus export runs/gpt gpt.gguf
  annulus export member1 gpt.safetensors --with member2 --with member3
";

/// Writes the file and prints its contents in short.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    save_present(&args.dir, args.round).map_err(Error::of)?;
    let (data, round) = (args.data.as_deref(), args.round);
    let ending = args.file.extension().and_then(|ending| ending.to_str());
    if ending == Some("gguf") {
        return gguf(args, tasks);
    }
    if args.f16 {
        return Err(Error::usage(
            "--f16 is for FILE.gguf: leave it out, or write such a file",
        ));
    }
    let done = match ending == Some("onnx") {
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

fn gguf(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    if !args.with.is_empty() {
        let how = "a split model becomes GGUF in two steps: export it as FILE.safetensors, and that file as FILE.gguf";
        return Err(Error::usage(how));
    }
    let model = Saved::open((&args.dir, args.round), args.data.as_deref(), tasks).map_err(Error::of)?;
    let task = find(tasks, &model.task).map_err(Error::of)?;
    let bytes = (task.gguf)(&model.metadata, &model.tensors, args.f16)?;
    let none = || {
        format!(
            "llama.cpp has no models like those of the task {}: export FILE.safetensors",
            task.name
        )
    };
    let bytes = bytes.ok_or_else(|| Error::failed(none()))?;
    write(&args.file, &bytes).map_err(Error::of)?;
    let size = human::bytes(bytes.len() as f64);
    output::print(&format!(
        "{}: {size} in {}\n",
        args.file.display(),
        model.quantized().unwrap_or("floats")
    ));
    Ok(())
}
