//! What `train`, `join` and `resume` do at a run's end: write the model file and tell how good the model is, if the task
//! can judge it.

use super::error::{Error, Failure};
use super::messages::Role;
use super::output::{self, Log, LogFormat};
use crate::events::{Event, Ready, Sink};
use crate::offline::export::{FinishedModel, export_finished};
use crate::participant::start::Ending;
use crate::store::folders;
use crate::task_factory::TaskFactory;
use annulus_net::user_folders;
use std::path::Path;

/// Takes part in a run by `work`, and finishes its model if the run has ended. `data`: the run's, as the user named it.
pub fn take_part(
    log: Log,
    role: Role,
    (data, tasks): (Option<&Path>, &[TaskFactory]),
    work: impl FnOnce(Sink<'_>) -> Result<Ending, Failure>,
) -> Result<Ending, Error> {
    let mut model = Ok(None);
    let ending = output::tell(&log, role, |sink| {
        let mut last = None;
        let ending = work(&mut |event| match event {
            Event::Done(done) => last = Some(done),
            event => {
                if let Event::Ready(ready) = &event {
                    remember(ready);
                }
                sink(event);
            }
        });
        // Now it has left the others, who need not wait for the judgement.
        if let Some(done) = last {
            if let Some(folder) = done.dir.as_ref().filter(|_| done.finished) {
                model = export_finished(Path::new(folder), data, tasks);
            }
            if let Ok(Some(model)) = &model {
                sink(told(model));
            }
            sink(Event::Done(done));
        }
        ending
    })?;
    if let (Some(model), LogFormat::Text) = (model.map_err(Error::of)?, log.format) {
        output::print(&format!("{}\n", model.report));
    }
    Ok(ending)
}

/// Remembers the folder of a peer that is up, for `annulus ls`.
fn remember(ready: &Ready) {
    if let (Some(data), Some(folder)) = (user_folders::data(), Path::new(&ready.ticket_file).parent()) {
        // If this fails, a list lacks it.
        let _ = folders::note(&data, folder);
    }
}

fn told(model: &FinishedModel) -> Event {
    let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| text.clone().into());
    let judged = model.judged.iter();
    Event::Model {
        file: model.file.display().to_string(),
        judged: judged
            .map(|(key, text)| ((*key).to_owned(), value(text)))
            .collect(),
    }
}
