//! What a run's model writes, by the newest checkpoint of its folder.

use crate::cli::sample::Args;
use crate::participant::error::Error;
use crate::participant::run_setup::RunSetup;
use crate::store::run_dir::RunDir;
use crate::task::Prompt;
use crate::task_factory::TaskFactory;
use burn::tensor::read_sync;
use std::future::ready;
use std::pin::Pin;

/// Goes on after a prompt.
pub fn write(args: &Args, factories: &[TaskFactory], emit: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let dir = RunDir::open(&args.dir)?;
    let mut setup = RunSetup::to_write(dir.manifest(), args.data.as_deref(), &args.device, factories)?;
    let loaded = dir.load_latest()?;
    loaded
        .warnings
        .iter()
        .for_each(|warning| eprintln!("warning: {warning}"));
    setup.worker.load(loaded.state.params)?;
    let prompt = Prompt {
        text: args.prompt.clone(),
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
    };
    let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
        emit(piece);
        Box::pin(ready(()))
    };
    Ok(read_sync(setup.worker.generate(&prompt, &mut emit))?)
}
