//! `annulus quantize`: a trained model in a smaller file.

use super::error::Error;
use super::smaller::{Files, Settings, compared, kept, written};
use crate::offline::quantize::quantized;
use crate::task_factory::TaskFactory;
use annulus_graph::Blocks;

/// Write a trained model into a file of a quarter (8 bits) or a seventh (4 bits) of the size.
///
/// Large weights become blocks of 32 numbers with one scale, as GGML's Q8_0 and Q4_0. `predict`, `serve`, `export` and init= read
/// such a file like any model and unpack it, so only the file shrinks: computing takes as long and as much memory as before. Both
/// models answer the test part of the data, and a table says what was lost. A file that loses more than max_drop is not written.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model and the file.
    #[command(flatten)]
    pub files: Files,
    /// max_drop=POINTS: the most that the accuracy may fall, in points of a percent; of numbers R2, in hundredths (default: 1).
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Bits for each weight: 8 or 4.
    #[arg(long, value_name = "8|4", value_parser = blocks)]
    pub bits: Blocks,
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
    let model = args.files.open(tasks)?;
    let small = quantized(&model, args.bits)?;
    let (compared, bytes) = compared(&model, &small, &args.files, tasks)?;
    let suffix = match args.bits {
        Blocks::Q8_0 => "q8",
        Blocks::Q4_0 => "q4",
    };
    let file = args.files.smaller(&model, suffix);
    let remedy = match args.bits {
        Blocks::Q8_0 => "",
        Blocks::Q4_0 => "use --bits 8, or ",
    };
    kept(compared.as_ref(), settings.get("max_drop")?, (&file, remedy))?;
    written(&file, &bytes)
}
