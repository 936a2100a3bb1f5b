//! Generates text with a checkpoint of a run's folder.

use super::parts_on_disk::PartsOnDisk;
use super::saved::Saved;
use super::{note_round, warn};
use crate::participant::error::Error;
use crate::participant::memory;
use crate::participant::run_setup::{Means, RunSetup};
use crate::store::run_dir::RunDir;
use crate::store::which::Which;
use crate::task::Prompt;
use crate::task_factory::TaskFactory;
use burn::tensor::read_sync;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

/// Continues a prompt. Of a split model it loads as many steps at a time as fit in memory. Before anything is written,
/// `begin` is told how many times steps are loaded for a token.
pub fn write(
    (dir, others, which): (&Path, &[PathBuf], Which),
    given: Means<'_>,
    prompt: &Prompt,
    factories: &[TaskFactory],
    emit: &mut dyn FnMut(&str),
    begin: &mut dyn FnMut(usize),
) -> Result<(), Error> {
    let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
        emit(piece);
        Box::pin(ready(()))
    };
    if dir.is_file() {
        let model = Saved::open((dir, which), given.data, factories)?;
        let worker = model.writer(given, factories)?;
        begin(1);
        return Ok(read_sync(worker.generate(prompt, &mut emit))?);
    }
    let run = RunDir::open(dir)?;
    let (mut trainer, params) = if run.manifest().split.is_none() {
        let loaded = run.load_which(which)?;
        let trainer = RunSetup::to_write(&loaded.manifest, given, factories)?;
        warn(&loaded.warnings);
        note_round(loaded.head.round);
        (trainer, loaded.state.params)
    } else {
        which.of_split()?;
        memory::keep_within(given.memory);
        let on_disk = Arc::new(PartsOnDisk::newest(dir, others)?);
        let manifest = &on_disk.manifest;
        let mut inference =
            RunSetup::inference_to_write(manifest, given, factories, on_disk.clone().reader())?;
        warn(&on_disk.warnings);
        note_round(on_disk.label.head.round);
        if let Some(runs) = inference.to_write()? {
            begin(runs);
            return Ok(read_sync(inference.write(prompt, &mut emit))?);
        }
        // The task's model does not write in steps.
        (RunSetup::to_write(manifest, given, factories)?, on_disk.all()?)
    };
    trainer.worker.load(params)?;
    begin(1);
    Ok(read_sync(trainer.worker.generate(prompt, &mut emit))?)
}
