//! `annulus gradient`: what one pass over a model from a file computes, for a comparison with another program.

use super::error::Error;
use super::output;
use crate::device::DeviceChoice;
use crate::offline::gradient::{Asked, gradient};
use std::path::PathBuf;

/// Write the loss and the gradient of a few samples of an exported model, with dropout off.
///
/// The file has the gradient of each trained parameter under its name in the state_dict, the tensor `loss`, and `logits` if the
/// model has them. The Python package's `check` compares it with PyTorch's.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder that `annulus.export` has written.
    pub folder: PathBuf,
    /// How many samples, from the first on.
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: u32,
    /// The file to write. An existing file is replaced.
    #[arg(long, value_name = "FILE.safetensors")]
    pub out: PathBuf,
    /// Where to compute: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceChoice,
    /// Batch norm uses the statistics of these samples, as in training.
    #[arg(long)]
    pub training: bool,
    /// Take an ONNX file that was made for inference as it is.
    #[arg(long)]
    pub as_is: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus gradient exported/ --out gradient.safetensors
  annulus gradient exported/ --samples 8 --out gradient.safetensors --device gpu --training
";

/// Writes the file and tells the loss.
pub fn run(args: &Args) -> Result<(), Error> {
    let asked = Asked {
        samples: args.samples as usize,
        device: args.device,
        training: args.training,
        as_is: args.as_is,
    };
    let done = gradient(&args.folder, asked, &args.out).map_err(Error::of)?;
    output::print(&format!(
        "{}: loss {} of {} samples on {}\n",
        args.out.display(),
        done.loss,
        done.samples,
        done.device
    ));
    Ok(())
}
