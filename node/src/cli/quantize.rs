//! `annulus quantize`: a trained model in a smaller file.

use super::error::Error;
use super::smaller::{Settings, compared, kept, written};
use crate::offline::quantize::quantized;
use crate::offline::saved::Saved;
use crate::store::which::Which;
use crate::task_factory::TaskFactory;
use annulus_graph::Blocks;
use std::path::PathBuf;

/// Write a trained model into a file of a quarter (8 bits) or a seventh (4 bits) of the size.
///
/// Large weights become blocks of 32 numbers with one scale, as GGML's Q8_0 and Q4_0. `predict`, `serve`, `export` and init= read
/// such a file like any model and unpack it, so only the file shrinks: computing takes as long and as much memory as before. Both
/// models answer the test part of the data, and a table says what was lost. A file that loses more than max_drop is not written.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model: a file that `annulus export` wrote, or a run's folder.
    pub model: PathBuf,
    /// max_drop=POINTS: the most that the accuracy may fall, in points of a percent; of numbers R2, in hundredths (default: 1).
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Bits for each weight: 8 or 4.
    #[arg(long, value_name = "8|4", value_parser = blocks)]
    pub bits: Blocks,
    /// The file to write (default: beside the model, as model-q8.safetensors). An existing file is replaced.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The data that the model was trained on, if it is not found here.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The checkpoint of a run's folder: newest, best (of a run with keep_best=on), or the round after which it was saved.
    #[arg(long, value_name = "ROUND", default_value = "newest")]
    pub round: Which,
}

const EXAMPLES: &str = "\
Examples:
  annulus quantize runs/table/model.safetensors --bits 8
  annulus quantize runs/digits --bits 4 -o digits-q4.safetensors max_drop=0.5
";

fn blocks(text: &str) -> Result<Blocks, String> {
    let bits = text.parse().ok();
    bits.and_then(Blocks::of_bits)
        .ok_or_else(|| "choose 8 or 4".into())
}

/// Writes the file and tells what it costs.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let settings = Settings::read(&args.settings, &["max_drop"])?;
    let data = args.data.as_deref();
    let model = Saved::open((&args.model, args.round), data, tasks).map_err(Error::of)?;
    let small = quantized(&model, args.bits)?;
    let (compared, bytes) = compared(&model, &small, data, tasks)?;
    let suffix = match args.bits {
        Blocks::Q8_0 => "q8",
        Blocks::Q4_0 => "q4",
    };
    let file = args.out.clone().unwrap_or_else(|| model.beside(suffix));
    let remedy = match args.bits {
        Blocks::Q8_0 => "",
        Blocks::Q4_0 => "use --bits 8, or ",
    };
    kept(compared.as_ref(), settings.get("max_drop")?, (&file, remedy))?;
    written(&file, &bytes)
}
