//! Sets up task, data, device and worker, for a new run or for an existing one that they are checked against.

use crate::data::{Data, Stock};
use crate::device::{self, DeviceKind, DeviceRequest, OpenDevice};
use crate::options::{Length, Local, NewRun, SplitRun};
use crate::participant::error::Error;
use crate::participant::gpu_memory::Limit;
use crate::participant::run_data::{
    check_batch, check_computes, load_new, load_of_run, load_to_write, within,
};
use crate::participant::{memory, split};
use crate::task::Rows;
use crate::task_factory::{Drawing, LoadedTask, TaskFactory, WorkerFactory, Writing};
use crate::trainer::span::{self, Inference, MakeSpan, ModelSteps, SplitModel, Weights};
use crate::trainer::{TrainerOptions, Worker};
use annulus_core::config::ManifestError;
use annulus_core::optim::{Moments, Optimizer};
use annulus_core::split::Split;
use annulus_core::{DataSource, Layout, Manifest, PeerId, State};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Everything that computes.
pub(crate) struct RunSetup {
    pub device: OpenDevice,
    pub computes: Computes,
    /// The limit on GPU memory, if there is one.
    pub memory: Option<Limit>,
    /// The files that the data was made from, unless the task makes it itself.
    pub files: Option<Stock>,
    /// Whether only an outside process can compute the model, so that no tab can.
    pub elsewhere: bool,
    /// What the task made of the data, in lines for a person; empty: nothing to tell.
    pub description: String,
    /// How long the whole run may take, or what is left of it; none: as long as it takes.
    pub time: Option<Duration>,
}

/// The part of the model that a peer computes.
pub(crate) enum Computes {
    /// All of it.
    Whole(Whole),
    /// The spans that it is asked to compute, if the model is split.
    Spans {
        spans: Box<SplitModel>,
        /// Draws the initial weights.
        drawing: Drawing,
    },
}

/// The workers of a whole model.
pub(crate) struct Whole {
    pub worker: Box<dyn Worker>,
    pub worker_factory: WorkerFactory,
    /// Where each sample lies in the data set that the data was made from.
    pub rows: Arc<Rows>,
    /// Whether the model can generate text.
    pub writes: bool,
}

impl Computes {
    /// The workers of a split model's spans.
    fn spans(
        loaded: &LoadedTask,
        (device, model): (&OpenDevice, ModelSteps),
        (manifest, split): (&Manifest, &Split),
        memory: Option<u64>,
    ) -> Result<Self, Error> {
        // Checks the room first, before anything is drawn.
        split::room(manifest, split, memory, None)?;
        let (model, seed) = (Arc::new(model), manifest.seed);
        let (make, of, on) = (loaded.span_factory(), model.clone(), device.clone());
        let make = move |steps| make(&on, of.clone(), steps, seed);
        Ok(Self::Spans {
            spans: Box::new(SplitModel::new(model, split.clone(), Box::new(make))),
            drawing: loaded.drawing(),
        })
    }

    /// The workers of the whole model, for callers that need it.
    pub fn whole(self) -> Result<Whole, Error> {
        match self {
            Self::Whole(whole) => Ok(whole),
            Self::Spans { .. } => Err(Error::Split),
        }
    }
}

impl RunSetup {
    /// For an existing run: finds its data here, and checks that data and model are the run's.
    pub fn of(manifest: &Manifest, local: &Local, factories: &[TaskFactory]) -> Result<Self, Error> {
        check_computes(factories, &manifest.task, local.external)?;
        let loaded = load_of_run(manifest, (local.data.as_deref(), local.memory), factories)?;
        Self::with(&loaded, manifest, &local.device, local.memory)
    }

    /// For an existing run whose data is fetched while it is used.
    pub fn on_demand(
        manifest: &Manifest,
        data: Data,
        local: &Local,
        factories: &[TaskFactory],
    ) -> Result<Self, Error> {
        let factory = check_computes(factories, &manifest.task, local.external)?;
        let loaded = (factory.load)(&manifest.task_config, Some(&within(data, local.memory)))?;
        match loaded.data == manifest.data {
            true => Self::with(&loaded, manifest, &local.device, local.memory),
            false => Err(Error::OtherData {
                wanted: manifest.data,
                found: loaded.data,
                data_source: manifest.data_source,
            }),
        }
    }

    /// The workers of the whole model, for callers that do not take part.
    pub fn whole(manifest: &Manifest, given: Means<'_>, factories: &[TaskFactory]) -> Result<Whole, Error> {
        let loaded = load_of_run(manifest, (given.data, given.memory), factories)?;
        Self::all_of(&loaded, manifest, given)
    }

    /// The workers of the whole model, even if members hold it in spans.
    fn all_of(loaded: &LoadedTask, manifest: &Manifest, given: Means<'_>) -> Result<Whole, Error> {
        let manifest = &Manifest {
            split: None,
            ..manifest.clone()
        };
        Self::with(loaded, manifest, given.device, given.memory)?
            .computes
            .whole()
    }

    /// For generating text: without the run's data if that makes no difference.
    pub fn to_write(
        manifest: &Manifest,
        given: Means<'_>,
        factories: &[TaskFactory],
    ) -> Result<Whole, Error> {
        let loaded = load_to_write(manifest, (given.data, given.memory), factories)?;
        Self::all_of(&loaded, manifest, given)
    }

    /// Evaluates a split run's model, with as many steps in memory at a time as fit.
    pub fn inference(
        manifest: &Manifest,
        given: Means<'_>,
        factories: &[TaskFactory],
        weights: Weights,
    ) -> Result<Box<dyn Inference>, Error> {
        let loaded = load_of_run(manifest, (given.data, given.memory), factories)?;
        let (device, model) = steps_of(&loaded, manifest, given.device)?;
        Ok(loaded.inference(&device, Arc::new(model), memory::space(given.memory), weights))
    }

    /// Generates text with a split model, a few steps at a time.
    pub fn inference_to_write(
        manifest: &Manifest,
        given: Means<'_>,
        factories: &[TaskFactory],
        weights: Weights,
    ) -> Result<Box<dyn Inference>, Error> {
        let loaded = load_to_write(manifest, (given.data, given.memory), factories)?;
        let (device, model) = steps_of(&loaded, manifest, given.device)?;
        Ok(loaded.inference(&device, Arc::new(model), memory::space(given.memory), weights))
    }

    /// Makes workers for steps of a split run's model, and draws its initial weights.
    pub fn steps(
        manifest: &Manifest,
        given: Means<'_>,
        factories: &[TaskFactory],
    ) -> Result<(Box<MakeSpan>, Drawing), Error> {
        let loaded = load_of_run(manifest, (given.data, given.memory), factories)?;
        let (device, model) = steps_of(&loaded, manifest, given.device)?;
        let (make, model, seed) = (loaded.span_factory(), Arc::new(model), manifest.seed);
        let make = move |steps| make(&device, model.clone(), steps, seed);
        Ok((Box::new(make), loaded.drawing()))
    }

    /// With the task of an existing run.
    fn with(
        loaded: &LoadedTask,
        manifest: &Manifest,
        device: &str,
        memory: Option<u64>,
    ) -> Result<Self, Error> {
        let device = device::open(device.parse::<DeviceRequest>()?)?;
        let computes = match &manifest.split {
            None => {
                let parameters = manifest.layout.len as u64;
                enough_memory(parameters, (&manifest.optimizer, manifest.moments), memory)?;
                let whole = whole(loaded, &device, manifest.seed, manifest.micro_batch)?;
                if *whole.worker.layout() != manifest.layout {
                    return Err(Error::OtherModel);
                }
                Computes::Whole(whole)
            }
            Some(split) => {
                let model = model_of(loaded, manifest)?;
                Computes::spans(loaded, (&device, model), (manifest, split), memory)?
            }
        };
        Ok(Self {
            computes,
            device,
            memory: None,
            files: loaded.files.clone().map(Stock::new),
            elsewhere: loaded.elsewhere,
            description: loaded.description.clone(),
            time: loaded.time,
        })
    }

    /// The initial state of a run.
    pub fn first_state(&self, manifest: &Manifest) -> State {
        let params = match &self.computes {
            Computes::Whole(whole) => whole.worker.init(),
            Computes::Spans { .. } => Vec::new(),
        };
        State::new(params, manifest)
    }
}

/// The steps of a split run's model.
fn model_of(loaded: &LoadedTask, manifest: &Manifest) -> Result<ModelSteps, Error> {
    let model = loaded.model_steps(manifest.seed)?;
    let is_of = |split: &Split| span::is_of(split, &model);
    match model.layout == manifest.layout && manifest.split.as_ref().is_some_and(is_of) {
        true => Ok(model),
        false => Err(Error::OtherModel),
    }
}

/// The same, with the device that is to compute them.
fn steps_of(
    loaded: &LoadedTask,
    manifest: &Manifest,
    device: &str,
) -> Result<(OpenDevice, ModelSteps), Error> {
    let device = device::open(device.parse::<DeviceRequest>()?)?;
    Ok((device, model_of(loaded, manifest)?))
}

/// The workers of a whole model.
fn whole(loaded: &LoadedTask, device: &OpenDevice, seed: u64, micro_batch: u32) -> Result<Whole, Error> {
    let options = TrainerOptions {
        seed,
        micro_batch: micro_batch as usize,
    };
    let worker_factory = loaded.worker_factory(device.clone(), options);
    Ok(Whole {
        worker: worker_factory()?,
        worker_factory,
        rows: loaded.rows.clone(),
        writes: loaded.writing != Writing::Never,
    })
}

/// Whether there is room for a whole model, where memory is limited: before anything takes it.
fn enough_memory(
    parameters: u64,
    (optimizer, moments): (&Optimizer, Moments),
    memory: Option<u64>,
) -> Result<(), Error> {
    let need = memory::of_whole(parameters, optimizer, moments);
    match memory::most(memory) {
        Some(limit) if need > limit => Err(Error::Memory { need, limit }),
        _ => Ok(()),
    }
}

/// Whether there is room for what a pass over a founder's batch keeps, beside the model.
fn enough_for_batch(run: &NewRun, loaded: &LoadedTask, model: u64, memory: Option<u64>) -> Result<(), Error> {
    let samples = match run.micro_batch {
        0 => run.batch.get(),
        most => most.min(run.batch.get()),
    };
    let need = model.saturating_add((loaded.pass_bytes)(samples));
    match memory::most(memory) {
        Some(limit) if need > limit => Err(Error::PassMemory { samples, need, limit }),
        _ => Ok(()),
    }
}

impl RunSetup {
    /// Limits the workers to this many bytes of GPU memory, if a number is given.
    pub(super) fn limit_memory(&mut self, bytes: Option<u64>, manifest: &Manifest) -> Result<(), Error> {
        if let Some(bytes) = bytes {
            let Self { device, computes, .. } = self;
            let Computes::Whole(Whole {
                worker,
                worker_factory,
                ..
            }) = computes
            else {
                return Err(Error::GpuMemoryOfSpans);
            };
            self.memory = Limit::of(bytes, device, &mut **worker, worker_factory, manifest)?;
        }
        Ok(())
    }
}

/// The resources of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// The path of the data, unless the task makes it.
    pub data: Option<&'a Path>,
    /// The device to use.
    pub device: &'a str,
    /// Bytes of memory that it may use.
    pub memory: Option<u64>,
}

impl<'a> Means<'a> {
    pub(crate) fn of(local: &'a Local) -> Self {
        Self {
            data: local.data.as_deref(),
            device: &local.device,
            memory: local.memory,
        }
    }
}

/// A new run's manifest, and what computes.
pub(crate) fn prepare(
    run: &NewRun,
    key: PeerId,
    given: Means<'_>,
    factories: &[TaskFactory],
) -> Result<(RunSetup, Manifest), Error> {
    let loaded = load_new(run, (given.data, given.memory), factories)?;
    let run = &NewRun {
        batch: loaded.batch.filter(|_| run.any_batch).unwrap_or(run.batch),
        length: loaded
            .rounds
            .filter(|_| run.any_length)
            .map_or(run.length, Length::Rounds),
        ..run.clone()
    };
    check_batch(run.batch, loaded.samples, given.memory)?;
    let optimizer = run.optimizer.parse::<Optimizer>()?;
    let device = device::open(given.device.parse::<DeviceRequest>()?)?;
    let (model, layout, split) = match &run.split {
        SplitRun::Off => {
            if memory::limit(given.memory).is_some() {
                // Drawing one tensor at a time tells the need without the memory.
                let parameters = loaded.layout(run.seed)?.len as u64;
                enough_memory(parameters, (&optimizer, run.moments), given.memory)?;
                if device.kind == DeviceKind::Cpu {
                    enough_for_batch(
                        run,
                        &loaded,
                        memory::of_whole(parameters, &optimizer, run.moments),
                        given.memory,
                    )?;
                }
            }
            let whole = whole(&loaded, &device, run.seed, run.micro_batch)?;
            let layout = whole.worker.layout().clone();
            enough_memory(layout.len as u64, (&optimizer, run.moments), given.memory)?;
            (Model::Whole(whole), layout, None)
        }
        SplitRun::Auto | SplitRun::Spans(_) | SplitRun::Cut(_) => {
            let steps = loaded.model_steps(run.seed)?;
            let split = split::cut(run, &loaded, &steps, given.memory)?;
            let layout = steps.layout.clone();
            (Model::Steps(steps), layout, Some(split))
        }
    };
    let files = loaded.files.clone().map(Stock::new);
    let manifest = manifest(run, key, (&loaded, files.as_ref()), (layout, split))?;
    let setup = RunSetup {
        computes: match (model, &manifest.split) {
            (Model::Steps(steps), Some(split)) => {
                Computes::spans(&loaded, (&device, steps), (&manifest, split), given.memory)?
            }
            (Model::Whole(whole), _) => Computes::Whole(whole),
            (Model::Steps(_), None) => unreachable!("steps are looked at to be split"),
        },
        device,
        memory: None,
        files,
        elsewhere: loaded.elsewhere,
        description: loaded.description.clone(),
        time: loaded.time,
    };
    Ok((setup, manifest))
}

/// A new run's manifest.
pub(super) fn manifest(
    run: &NewRun,
    key: PeerId,
    (loaded, files): (&LoadedTask, Option<&Stock>),
    (layout, split): (Layout, Option<Split>),
) -> Result<Manifest, Error> {
    let copies = run.copies.or(split.as_ref().map(|_| SPLIT_COPIES));
    let manifest = Manifest {
        key,
        title: run.title.clone(),
        about: run.about.clone(),
        task: run.task.clone(),
        task_config: loaded.config.clone(),
        seed: run.seed,
        samples: loaded.samples,
        data: loaded.data,
        data_source: match files.map(Stock::check) {
            Some(Ok(checked)) => DataSource::Given {
                files: checked.listing.digest(),
            },
            Some(Err(why)) => return Err(Error::Task(why.into())),
            None => DataSource::Made,
        },
        target: run.target(loaded.samples),
        early_stop: run.early_stop,
        batch: run.batch,
        chunk: loaded.chunk,
        stripes: stripes(loaded, run)?,
        micro_batch: run.micro_batch,
        layout,
        optimizer: run.optimizer.parse()?,
        moments: run.moments,
        lr: run.lr,
        schedule: run.schedule.over(run.batches(loaded.samples), u64::MAX),
        clip: run.clip,
        local: run.local(),
        overlap: run.overlap(),
        codec: run.codec(),
        // Sums go directly to the members that keep the moments.
        topology: run.topology.or(copies.map(|_| annulus_core::Topology::Direct)),
        piece: Manifest::PIECE,
        min_peers: run.min_peers,
        stand_aside: run.stand_aside,
        copies,
        split,
    };
    manifest.check().map_err(|error| match error {
        ManifestError::Unusable(why) => Error::Settings(why),
        error => Error::Manifest(error),
    })?;
    Ok(manifest)
}

/// A new run's model.
enum Model {
    Whole(Whole),
    Steps(ModelSteps),
}

/// How many members hold each span of a split model by default: one may fail.
pub(super) const SPLIT_COPIES: NonZeroU16 = NonZeroU16::new(2).expect("it is not 0");

/// Chunks that are open at a time. As many as divide the batch, so that a member with the same place in each batch keeps to the same
/// chunks. More than 64 would mix no better, and take more room.
fn stripes(loaded: &LoadedTask, run: &NewRun) -> Result<NonZeroU16, Error> {
    let batch = run.batch.get();
    if loaded.chunk == NonZeroU32::MIN {
        // The task has no data of its own that is large enough.
        return match run.task_config.get("stream") {
            Some(stream) if stream.as_bool() == Some(true) => Err(Error::Settings(
                "stream=true is for data of your own: name it with --data",
            )),
            _ => Ok(NonZeroU16::MIN),
        };
    }
    let divides = |open: &u16| batch.is_multiple_of((*open).into());
    let most = (1..=64).rev().find(divides).unwrap_or(1);
    match u32::from(most) < batch.min(8) {
        true => Err(Error::Settings(
            "with stream=true a batch takes samples of up to 64 places in the data alike, and nothing from 8 to 64 divides this \
             batch: take one near it that is a multiple of 8",
        )),
        false => Ok(NonZeroU16::new(most).unwrap_or(NonZeroU16::MIN)),
    }
}
