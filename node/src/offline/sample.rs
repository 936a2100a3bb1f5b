//! What a run's model writes, by the newest checkpoint of its folder.

use crate::participant::error::Error;
use crate::participant::run_setup::RunSetup;
use crate::store::run_dir::RunDir;
use crate::task::Prompt;
use crate::task_factory::TaskFactory;
use burn::tensor::read_sync;
use std::future::ready;
use std::path::Path;
use std::pin::Pin;

/// Goes on after a prompt.
pub fn write(
    dir: &Path,
    data: Option<&Path>,
    device: &str,
    prompt: &Prompt,
    factories: &[TaskFactory],
    emit: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    let dir = RunDir::open(dir)?;
    let mut whole = RunSetup::to_write(dir.manifest(), data, device, factories)?;
    let loaded = dir.load_latest()?;
    loaded
        .warnings
        .iter()
        .for_each(|warning| eprintln!("warning: {warning}"));
    whole.worker.load(loaded.state.params)?;
    let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
        emit(piece);
        Box::pin(ready(()))
    };
    Ok(read_sync(whole.worker.generate(prompt, &mut emit))?)
}
