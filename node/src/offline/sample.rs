//! What a run's model writes, by the newest checkpoint of its folder.

use crate::offline::whole;
use crate::participant::error::Error;
use crate::participant::run_setup::RunSetup;
use crate::task::Prompt;
use crate::task_factory::TaskFactory;
use burn::tensor::read_sync;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::pin::Pin;

/// Goes on after a prompt.
pub fn write(
    (dir, others): (&Path, &[PathBuf]),
    data: Option<&Path>,
    device: &str,
    prompt: &Prompt,
    factories: &[TaskFactory],
    emit: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    let loaded = whole::load(dir, others)?;
    let mut trainer = RunSetup::to_write(&loaded.manifest, data, device, factories)?;
    loaded
        .warnings
        .iter()
        .for_each(|warning| eprintln!("warning: {warning}"));
    trainer.worker.load(loaded.state.params)?;
    let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
        emit(piece);
        Box::pin(ready(()))
    };
    Ok(read_sync(trainer.worker.generate(prompt, &mut emit))?)
}
