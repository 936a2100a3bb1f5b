//! `annulus export`: a trained model for other tools.

use super::error::Error;
use super::human;
use super::output;
use crate::offline::export::export;
use crate::offline::warn;
use std::path::PathBuf;

/// Write the parameters of a run's newest checkpoint as one safetensors file.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// The file to write, replaced if it is there.
    #[arg(value_name = "FILE.safetensors")]
    pub file: PathBuf,
    /// Where the model was split over the run's members: another member's folder. May be given more than once.
    #[arg(long, value_name = "DIR")]
    pub with: Vec<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  annulus export runs/digits digits.safetensors
  annulus export member1 gpt.safetensors --with member2 --with member3
";

/// Writes the file and says what is in it.
pub fn run(args: &Args) -> Result<(), Error> {
    let done = export(&args.dir, &args.with, &args.file).map_err(Error::of)?;
    warn(&done.warnings);
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
