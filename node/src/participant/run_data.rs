//! Loads a run's task with its data, wherever on this machine the data is.

use crate::data::Data;
use crate::data::cache::{self, Place};
use crate::options::NewRun;
use crate::participant::error::Error;
use crate::participant::memory;
use crate::task::Tensors;
use crate::task_factory::{LoadedTask, TaskFactory, Writing};
use crate::trainer::WorkerError;
use annulus_core::{DataSource, Digest, Manifest};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::Path;

/// Loads a run's data from the user's path, or from other places on this machine. Also takes the bytes of memory that the user
/// allows.
pub(crate) fn load_of_run(
    manifest: &Manifest,
    (data, memory): (Option<&Path>, Option<u64>),
    factories: &[TaskFactory],
) -> Result<LoadedTask, Error> {
    let factory = find(factories, &manifest.task)?;
    find_data(manifest, data, |path| {
        let data = path.map(|path| open(path, memory)).transpose()?;
        let loaded = (factory.load)(&manifest.task_config, data.as_ref())?;
        let found = loaded.data;
        Ok((loaded, found))
    })
}

/// Loads the task of a new run. A folder that the task packs is packed in memory.
pub(crate) fn load_new(
    run: &NewRun,
    (data, memory): (Option<&Path>, Option<u64>),
    factories: &[TaskFactory],
) -> Result<LoadedTask, Error> {
    let factory = find(factories, &run.task)?;
    let config = factory.config(&run.task_config);
    let data = match (data, data.and_then(|data| factory.packs(data))) {
        (Some(folder), Some(name)) => {
            let packed = (factory.pack)(&config, folder, &mut |_, _| {})?;
            Some(Data::file_in_memory(name, packed))
        }
        (Some(path), _) => Some(open(path, memory)?),
        (None, _) => None,
    };
    Ok((factory.load)(&config, data.as_ref())?)
}

/// Loads the task of a run for generating text: without its data if that makes no difference.
pub(super) fn load_to_write(
    manifest: &Manifest,
    given: (Option<&Path>, Option<u64>),
    factories: &[TaskFactory],
) -> Result<LoadedTask, Error> {
    let factory = find(factories, &manifest.task)?;
    let loaded = match (factory.load)(&manifest.task_config, None) {
        Ok(without) if without.writing != Writing::WithData => without,
        _ => load_of_run(manifest, given, factories)?,
    };
    match loaded.writing {
        Writing::Never => Err(Error::WritesNothing(manifest.task.clone())),
        Writing::WithData | Writing::Always => Ok(loaded),
    }
}

/// What a reader of a run's exported model needs to know.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// For the file's metadata.
    pub metadata: Vec<(&'static str, String)>,
    /// Those among it that judge the model.
    pub judged: Vec<(&'static str, String)>,
    /// The task's judgement of the model, in lines; empty: it gives none.
    pub report: String,
    /// The task's card of the model, as Markdown.
    pub card: String,
    /// What of this cannot be said, if anything, with why.
    pub lacks: Option<String>,
}

/// What a reader of a run's exported model needs to know. `params`: the whole model's, if it is not split.
pub(crate) fn about(
    manifest: &Manifest,
    params: Option<&[f32]>,
    data: Option<&Path>,
    factories: &[TaskFactory],
) -> About {
    let Ok(factory) = find(factories, &manifest.task) else {
        let task = &manifest.task;
        return About {
            lacks: Some(format!(
                "this program has no task {task}: the file says nothing of its model's settings"
            )),
            ..About::default()
        };
    };
    let without = (factory.load)(&manifest.task_config, None);
    let loaded = match without {
        Ok(without) if data.is_none() && without.writing != Writing::WithData => Ok(without),
        _ => load_of_run(manifest, (data, None), factories),
    };
    match loaded {
        Ok(loaded) => {
            let params = params.filter(|_| factory.predicts.is_some());
            let finished = params.map(|params| loaded.finish(&Tensors::of(&manifest.layout, params)));
            let mut about = About {
                metadata: loaded.metadata,
                ..About::default()
            };
            match finished {
                Some(Ok(Some(finished))) => {
                    about.metadata.extend(finished.metadata.clone());
                    about.judged = finished.metadata;
                    about.report = finished.report;
                    about.card = finished.card;
                }
                Some(Err(why)) => about.lacks = Some(format!("the model cannot be judged: {why}")),
                Some(Ok(None)) | None => {}
            }
            about
        }
        Err(why) => {
            let inner = (factory.load_inner)(&manifest.task_config, &manifest.layout, None);
            let warning = format!(
                "what the file would tell of the run's data, such as a vocabulary, is not in it: {why}"
            );
            About {
                metadata: inner.map(|inner| inner.metadata).unwrap_or_default(),
                lacks: Some(warning),
                ..About::default()
            }
        }
    }
}

/// The data at a path, for a task that may take this much memory, if the user has said.
fn open(path: &Path, memory: Option<u64>) -> Result<Data, Error> {
    let data = Data::open(path).map_err(|error| Error::Task(error.into()))?;
    Ok(within(data, memory))
}

/// The data for a task that may take this much memory, if the user has said.
pub(super) fn within(data: Data, memory: Option<u64>) -> Data {
    data.within(memory::spare(memory))
}

/// Reads a run's data by `read`, which also gives its hash, from the first place that has the right data. The user's
/// path comes first, then the cache of fetched data, then paths that runs on this machine used. Without any place, the task
/// may make its own data.
fn find_data<T>(
    manifest: &Manifest,
    given: Option<&Path>,
    mut read: impl FnMut(Option<&Path>) -> Result<(T, Digest), Error>,
) -> Result<T, Error> {
    let places = match (given, manifest.data_source) {
        (Some(path), _) => vec![Some(path.to_path_buf())],
        (None, DataSource::Made) => vec![None],
        (None, DataSource::Given { .. }) => {
            let place = cache::folder().map(|folder| Place::new(folder, manifest.data));
            let here = place.map(|place| place.found().into_iter().chain(place.noted()));
            here.into_iter().flatten().map(Some).collect()
        }
    };
    let mut looked = Vec::new();
    let mut why = None;
    for place in places {
        // The data was there once, and has been moved since.
        if given.is_none()
            && let Some(place) = place.as_ref().filter(|place| !place.exists())
        {
            looked.push(place.clone());
            continue;
        }
        match read(place.as_deref()) {
            Ok((data, found)) if found == manifest.data => return Ok(data),
            Ok((_, found)) => {
                let wanted = manifest.data;
                why = Some(Error::OtherData {
                    wanted,
                    found,
                    data_source: manifest.data_source,
                });
            }
            Err(Error::Task(error)) if given.is_some() && manifest.data_source != DataSource::Made => {
                let advice =
                    "Without --data the run's own is taken, which a peer that joins fetches from a member";
                why = Some(Error::Task(format!("{error}. {advice}").into()));
            }
            Err(error) => why = Some(error),
        }
    }
    Err(why.unwrap_or(Error::NoData(looked)))
}

/// Whether the data at a path is the run's, or why not.
pub(crate) fn check_data(
    manifest: &Manifest,
    (path, memory): (&Path, Option<u64>),
    factories: &[TaskFactory],
) -> Result<(), String> {
    match load_of_run(manifest, (Some(path), memory), factories) {
        Ok(_) => Ok(()),
        Err(Error::OtherData { found, .. }) => Err(format!(
            "the run's files have the digest {found}, and its manifest names {}: ask its founder for the right ones",
            manifest.data
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// How a task is made, if this program can compute it, with a process outside or without.
pub(super) fn check_computes<'a>(
    factories: &'a [TaskFactory],
    task: &str,
    external: bool,
) -> Result<&'a TaskFactory, Error> {
    let factory = find(factories, task)?;
    match factory.elsewhere {
        Some(why) if !external => Err(WorkerError::Elsewhere(why).into()),
        _ => Ok(factory),
    }
}

/// The task of this name.
pub(crate) fn find<'a>(factories: &'a [TaskFactory], name: &str) -> Result<&'a TaskFactory, Error> {
    let known = || factories.iter().map(|r| r.name).collect();
    let found = factories.iter().find(|r| r.name == name);
    found.ok_or_else(|| Error::UnknownTask {
        name: name.into(),
        known: known(),
    })
}

/// Whether the data has as many samples as a batch, and memory room for their numbers: before anything takes it.
pub(super) fn check_batch(batch: NonZeroU32, samples: NonZeroU64, memory: Option<u64>) -> Result<(), Error> {
    let (count, samples) = (u64::from(batch.get()), samples.get());
    if count > samples {
        return Err(Error::Batch {
            batch: count,
            samples,
        });
    }
    match memory::most(memory) {
        // Each is held in two lists.
        Some(limit) if 16 * count > limit => Err(Error::BatchMemory { batch: count, limit }),
        _ => Ok(()),
    }
}
