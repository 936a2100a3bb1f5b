//! What computes in a run: task, data, device and worker, made for a new run or checked against one that exists.
//! And a plan, which needs nothing else.

use crate::data::cache::{self, Place};
use crate::data::provision::Trouble;
use crate::data::{Data, Stock};
use crate::device::{self, DeviceRequest, OpenDevice};
use crate::net::ticket::Secret;
use crate::options::{self, Local, NewRun, Start, TrainOptions};
use crate::participant::compute::{ComputeResult, warm_up};
use crate::participant::error::Error;
use crate::participant::gpu_memory::Limit;
use crate::store::run_dir::RunDir;
use crate::task_factory::{LoadedTask, TaskFactory, WorkerFactory, Writing};
use crate::trainer::{TrainerOptions, Worker};
use annulus_core::interface::Input;
use annulus_core::optim::{Optimizer, Schedule};
use annulus_core::{DataSource, Digest, Manifest, PeerId};
use burn::tensor::read_sync;
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Instant;

/// What a run would need, without starting it.
pub fn plan(options: &TrainOptions, factories: &[TaskFactory]) -> Result<(Manifest, String), Error> {
    let (manifest, setup) = match &options.start {
        Start::New(run) | Start::Meet(run, ..) => {
            // A run that is begun draws a key of its own.
            let (setup, manifest) = prepare(
                run,
                Secret::generate().key().peer(),
                given(&options.local),
                factories,
            )?;
            (manifest, setup)
        }
        Start::Resume(dir) => {
            let manifest = RunDir::open(dir)?.manifest().clone();
            let setup = RunSetup::of(&manifest, &options.local, factories)?;
            (manifest, setup)
        }
    };
    Ok((manifest, setup.worker.device_name().to_owned()))
}

/// What computes.
pub(crate) struct RunSetup {
    pub device: OpenDevice,
    pub worker: Box<dyn Worker>,
    pub worker_factory: WorkerFactory,
    /// What it may take of the GPU's memory, if that is limited.
    pub memory: Option<Limit>,
    /// What the data was made from, if the task did not make it itself.
    pub files: Option<Stock>,
}

impl RunSetup {
    /// For a run that exists: finds its data here, and checks that data and model are the run's.
    pub fn of(manifest: &Manifest, local: &Local, factories: &[TaskFactory]) -> Result<Self, Error> {
        Self::on(manifest, local.data.as_deref(), &local.device, factories)
    }

    /// As [`of`](Self::of), without what else concerns a participant.
    pub fn on(
        manifest: &Manifest,
        data: Option<&Path>,
        device: &str,
        factories: &[TaskFactory],
    ) -> Result<Self, Error> {
        Self::with(&load_of_run(manifest, data, factories)?, manifest, device)
    }

    /// For a run whose model is to write: without the run's data, if they make no difference.
    pub fn to_write(
        manifest: &Manifest,
        data: Option<&Path>,
        device: &str,
        factories: &[TaskFactory],
    ) -> Result<Self, Error> {
        let factory = find(factories, &manifest.task)?;
        let loaded = match (factory.load)(&manifest.task_config, None) {
            Ok(without) if without.writing != Writing::WithData => without,
            _ => load_of_run(manifest, data, factories)?,
        };
        match loaded.writing {
            Writing::Never => Err(Error::WritesNothing(manifest.task.clone())),
            Writing::WithData | Writing::Always => Self::with(&loaded, manifest, device),
        }
    }

    /// With the task of a run that exists.
    fn with(loaded: &LoadedTask, manifest: &Manifest, device: &str) -> Result<Self, Error> {
        let setup = Self::new(loaded, device, manifest.seed, manifest.micro_batch)?;
        if *setup.worker.layout() != manifest.layout {
            return Err(Error::OtherModel);
        }
        Ok(setup)
    }

    fn new(loaded: &LoadedTask, device: &str, seed: u64, micro_batch: u32) -> Result<Self, Error> {
        let device = device::open(device.parse::<DeviceRequest>()?)?;
        let worker_factory = loaded.worker_factory(
            device.clone(),
            TrainerOptions {
                seed,
                micro_batch: micro_batch as usize,
            },
        );
        Ok(Self {
            worker: worker_factory()?,
            device,
            worker_factory,
            memory: None,
            files: loaded.files.clone().map(Stock::new),
        })
    }
}

impl RunSetup {
    /// Has what computes keep within so many bytes of the GPU's memory, if so many are given.
    pub fn limit_memory(&mut self, bytes: Option<u64>, manifest: &Manifest) -> Result<(), Error> {
        if let Some(bytes) = bytes {
            let Self {
                device,
                worker,
                worker_factory,
                ..
            } = self;
            self.memory = Limit::of(bytes, device, &mut **worker, worker_factory, manifest)?;
        }
        Ok(())
    }
}

/// Loads a run's data: from where the user says, or else from where it may be on this machine.
fn load_of_run(
    manifest: &Manifest,
    data: Option<&Path>,
    factories: &[TaskFactory],
) -> Result<LoadedTask, Error> {
    let factory = find(factories, &manifest.task)?;
    find_data(manifest, data, |path| {
        let data = path
            .map(Data::open)
            .transpose()
            .map_err(|e| Error::Task(e.into()))?;
        let loaded = (factory.load)(&manifest.task_config, data.as_ref())?;
        let found = loaded.data;
        Ok((loaded, found))
    })
}

/// Reads a run's data by `read`, which also gives its hash, from the first place that has the right one: where the user
/// says, or else where data that was fetched is kept and where somebody on this machine had it. No place is one too, if
/// the task makes its own data.
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
            let here = place.map(|place| [place.found(), place.noted()]);
            here.into_iter().flatten().flatten().map(Some).collect()
        }
    };
    let mut why = Error::NoData;
    for place in places {
        match read(place.as_deref()) {
            Ok((data, found)) if found == manifest.data => return Ok(data),
            Ok((_, found)) => {
                let wanted = manifest.data;
                why = Error::OtherData {
                    wanted,
                    found,
                    data_source: manifest.data_source,
                };
            }
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Whether what lies at a path is the run's data.
pub(crate) fn check_data(manifest: &Manifest, path: &Path, factories: &[TaskFactory]) -> Result<(), Trouble> {
    match load_of_run(manifest, Some(path), factories) {
        Ok(_) => Ok(()),
        Err(Error::OtherData { found, .. }) => Err(Trouble::Data(format!(
            "its digest is {found}, not {}",
            manifest.data
        ))),
        Err(error) => Err(Trouble::Data(error.to_string())),
    }
}

fn find<'a>(factories: &'a [TaskFactory], name: &str) -> Result<&'a TaskFactory, Error> {
    let known = || factories.iter().map(|r| r.name).collect();
    let found = factories.iter().find(|r| r.name == name);
    found.ok_or_else(|| Error::UnknownTask {
        name: name.into(),
        known: known(),
    })
}

/// A model tried out on a device.
pub struct TriedOut {
    /// Its parameters.
    pub elements: usize,
    /// Bytes of them and of the optimizer's vectors that each peer of so many holds.
    pub state_bytes: Box<dyn Fn(u64) -> u64>,
    /// Samples per second, if that was asked for.
    pub speed: Option<f64>,
    /// The device, in words.
    pub device: String,
}

/// What a new run would train, with data and device as given, and how fast this machine would.
pub fn try_out(
    run: &NewRun,
    given: (Option<&Path>, &str),
    fast: bool,
    factories: &[TaskFactory],
) -> Result<TriedOut, Error> {
    let (mut setup, manifest) = prepare(run, Secret::generate().key().peer(), given, factories)?;
    let (start, elements) = (Instant::now(), manifest.layout.len);
    let worker = &mut setup.worker;
    let speed = match fast {
        false => None,
        true => {
            let gradient = async |params, samples: &[u64]| worker.gradient(params, samples).await;
            match read_sync(warm_up(
                gradient,
                || start.elapsed(),
                elements,
                manifest.samples.get(),
            )) {
                ComputeResult::Made(Input::Warm { speed }) => Some(speed as f64 / 1000.0),
                ComputeResult::Made(_) => None,
                ComputeResult::Refused(_, error) | ComputeResult::Failed(error) => return Err(error.into()),
            }
        }
    };
    Ok(TriedOut {
        elements,
        state_bytes: Box::new(move |peers| manifest.member_bytes(peers)),
        speed,
        device: worker.device_name().to_owned(),
    })
}

/// Where the data is, and which device computes.
pub(crate) fn given(local: &Local) -> (Option<&Path>, &str) {
    (local.data.as_deref(), &local.device)
}

/// The learning rate over a new run's steps, with data of so many samples.
pub(crate) fn schedule(run: &NewRun, samples: NonZeroU64) -> Schedule {
    match run.schedule {
        options::Schedule::Constant => Schedule::Constant,
        options::Schedule::Warmup => Schedule::Warmup { steps: run.warmup },
        options::Schedule::Cosine => Schedule::Cosine {
            warmup: run.warmup,
            total: run.batches(samples),
            floor: 0.1,
        },
    }
}

/// A new run's manifest, and what computes.
pub(crate) fn prepare(
    run: &NewRun,
    key: PeerId,
    (data, device): (Option<&Path>, &str),
    factories: &[TaskFactory],
) -> Result<(RunSetup, Manifest), Error> {
    let factory = find(factories, &run.task)?;
    let data = data.map(Data::open).transpose();
    let data = data.map_err(|error| Error::Task(error.into()))?;
    let loaded = (factory.load)(&factory.config(&run.task_config), data.as_ref())?;
    let setup = RunSetup::new(&loaded, device, run.seed, run.micro_batch)?;
    let manifest = Manifest {
        key,
        task: run.task.clone(),
        task_config: loaded.config.clone(),
        seed: run.seed,
        samples: loaded.samples,
        data: loaded.data,
        data_source: match setup.files.as_ref().map(Stock::check) {
            Some(Ok(checked)) => DataSource::Given {
                files: checked.listing.digest(),
            },
            Some(Err(why)) => return Err(Error::Task(why.into())),
            None => DataSource::Made,
        },
        target: run.target(loaded.samples),
        batch: run.batch,
        micro_batch: run.micro_batch,
        layout: setup.worker.layout().clone(),
        optimizer: run.optimizer.parse::<Optimizer>()?,
        moments: run.moments,
        lr: run.lr,
        schedule: schedule(run, loaded.samples),
        clip: run.clip,
        local: run.local(),
        overlap: run.overlap(),
        codec: run.codec(),
        // Sums go straight to those who keep the moments.
        topology: run
            .topology
            .or(run.copies.map(|_| annulus_core::Topology::Direct)),
        piece: Manifest::PIECE,
        min_peers: run.min_peers,
        copies: run.copies,
        split: None,
    };
    manifest.check()?;
    Ok((setup, manifest))
}
