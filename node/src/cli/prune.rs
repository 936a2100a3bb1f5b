//! `annulus prune`: a trained model with fewer units.

use super::error::Error;
use super::output;
use super::smaller::{Files, Settings, compared, kept, written};
use crate::offline::prune::pruned;
use crate::participant::run_data::find;
use crate::task_factory::TaskFactory;
use annulus_table::changed_settings;
use serde_json::{Map, Value};

/// Take the least important hidden units, channels or attention heads out of a trained model.
///
/// File, memory and computing time all shrink: each unit goes with its rows and columns. The units with the largest weights in and
/// out stay. The model loses more than by `quantize`, so train the result a little further: the last line says how. The metadata of
/// the file has the settings of the smaller model.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model and the file.
    #[command(flatten)]
    pub files: Files,
    /// keep=X: the share of the units that stays (default: 0.5). max_drop=POINTS: the most that the accuracy may fall, in points
    /// of a percent; of numbers R2, in hundredths. By default any, as training brings back most of it.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  annulus prune digits.safetensors keep=0.5
  annulus prune runs/gpt keep=0.7 -o smaller.safetensors
";

/// Writes the file and tells what it costs.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let settings = Settings::read(&args.settings, &["keep", "max_drop"])?;
    let keep = settings.get("keep")?.unwrap_or(0.5);
    if !(keep > 0.0 && keep < 1.0) {
        return Err(Error::usage(format!(
            "keep={keep} is not possible: it must be above 0 and below 1"
        )));
    }
    let model = args.files.open(tasks)?;
    let task = find(tasks, &model.task).map_err(Error::of)?;
    let pruning = (task.pruning)(&model.metadata, keep)?.ok_or_else(|| {
        Error::failed(format!(
            "the settings of the task {} have no smaller model: nothing can be taken out of this one",
            task.name
        ))
    })?;
    let smaller = pruned(&model, &pruning)?;
    let most = settings.get("max_drop")?.unwrap_or(f64::INFINITY);
    let (compared, bytes) = compared(&model, &smaller, &args.files, tasks)?;
    let file = args.files.smaller(&model, "pruned");
    if most.is_finite() {
        kept(compared.as_ref(), Some(most), (&file, "keep more, or "))?;
    }
    written(&file, &bytes)?;
    let usual = task.settings();
    if usual.contains_key("init") {
        let config = smaller.metadata.get("task_config");
        let config: Map<String, Value> = config
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let settings = changed_settings(&config, &usual).join(" ");
        let name = file.file_name().unwrap_or_default().display();
        output::print(&format!(
            "next: put {name} beside the data in one folder, then annulus train --task {} --data FOLDER {settings} \
             init={name}\n",
            task.name
        ));
    }
    Ok(())
}
