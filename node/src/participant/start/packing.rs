//! Packs the data of a run that is founded here, if its task packs folders: once, into this peer's folder. Refuses a task that is not
//! computed here.

use super::{Errand, Folder};
use crate::events::{Event, Sink};
use crate::options::Local;
use crate::participant::error::Error;
use crate::participant::run_data::check_computes;
use crate::task_factory::TaskFactory;
use annulus_net::files::write_atomic;
use std::io::Write as _;

/// Packs a folder of data into a file in this peer's folder, which becomes the data.
pub(super) fn pack(
    folder: &Folder,
    local: &mut Local,
    errand: &Errand,
    factories: &[TaskFactory],
    sink: Sink<'_>,
) -> Result<(), Error> {
    let (Errand::Begin(run) | Errand::Meet(run, ..)) = errand else {
        return Ok(());
    };
    let factory = check_computes(factories, &run.task, local.external)?;
    let Some((data, name)) = local
        .data
        .as_ref()
        .and_then(|data| Some((data, factory.packs(data)?)))
    else {
        return Ok(());
    };
    let mut told = None;
    let mut tell = |done: u64, total: u64| {
        // One line per percent is enough.
        if told.replace(done * 100 / total.max(1)) != Some(done * 100 / total.max(1)) {
            sink(Event::Pack { done, total });
        }
    };
    let packed = (factory.pack)(&factory.config(&run.task_config), data, &mut tell)?;
    let path = folder.path().join(name);
    // A run that began here learns from what was packed then.
    if folder.has_run()? && std::fs::read(&path).is_ok_and(|former| former != packed) {
        return Err(folder.occupied());
    }
    write_atomic(&path, |out| out.write_all(&packed)).map_err(Error::File)?;
    local.data = Some(path);
    Ok(())
}
