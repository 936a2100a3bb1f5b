//! What `train`, `join` and `resume` do at a run's end: write the model file and tell how good the model is, if the task
//! can judge it.

use super::error::{Error, Failure};
use super::messages::Role;
use super::output::{self, Log, LogFormat};
use crate::events::{Event, Sink};
use crate::offline::export::export_finished;
use crate::participant::start::Ending;
use crate::task_factory::TaskFactory;
use std::path::{Path, PathBuf};

/// Takes part in a run by `work`, and finishes its model if the run has ended. `data`: the run's, as the user named it.
pub fn take_part(
    log: Log,
    role: Role,
    (data, tasks): (Option<&Path>, &[TaskFactory]),
    work: impl FnOnce(Sink<'_>) -> Result<Ending, Failure>,
) -> Result<Ending, Error> {
    let mut folder: Option<PathBuf> = None;
    let ending = output::tell(&log, role, |sink| {
        work(&mut |event| {
            if let Event::Done(done) = &event
                && done.finished
            {
                folder = done.dir.as_ref().map(PathBuf::from);
            }
            sink(event);
        })
    })?;
    if let Some(folder) = folder {
        let report = export_finished(&folder, data, tasks);
        match (report.map_err(Error::of)?, log.format) {
            (Some(report), LogFormat::Text) => output::print(&format!("{report}\n")),
            (Some(_), LogFormat::Json) | (None, _) => {}
        }
    }
    Ok(ending)
}
