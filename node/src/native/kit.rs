//! What computes in a run: task, data, device and worker, made for a new run or checked against one that exists.
//! And what needs nothing else: a plan, an evaluation, a replay.

use super::failure::Error;
use super::recompute::{self, Progress, recompute};
use super::run_dir::RunDir;
use crate::device::{self, DeviceRequest, OpenDevice};
use crate::options::{self, Length, Local, NewRun, Start, TrainOptions};
use crate::recipe::{Loaded, Maker, Recipe};
use crate::task::Eval;
use crate::trainer::{TrainerOptions, Worker};
use annulus_core::codec::Codec;
use annulus_core::optim::{Optimizer, Schedule};
use annulus_core::shuffle::Shuffle;
use annulus_core::{Manifest, Round};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What a run would need, without starting it.
pub fn plan(options: &TrainOptions, recipes: &[Recipe]) -> Result<(Manifest, String), Error> {
    let (manifest, kit) = match &options.start {
        Start::New(run) => {
            let (kit, manifest) = prepare(run, &options.local, recipes)?;
            (manifest, kit)
        }
        Start::Resume(dir) => {
            let manifest = RunDir::open(dir)?.manifest().clone();
            let kit = Kit::of(&manifest, &options.local, recipes)?;
            (manifest, kit)
        }
    };
    Ok((manifest, kit.worker.device_name().to_owned()))
}

/// Evaluates the newest checkpoint of a run's folder.
pub fn evaluate(
    dir: &Path,
    data: Option<&Path>,
    device: &str,
    recipes: &[Recipe],
) -> Result<(Round, Eval), Error> {
    let loaded = RunDir::open(dir)?.load_latest()?;
    let mut kit = Kit::on(&loaded.manifest, data, device, recipes)?;
    let eval = kit.worker.evaluate(&loaded.state.params)?;
    eval.map(|eval| (loaded.head.round, eval))
        .ok_or(Error::NothingHeldOut(loaded.manifest.task))
}

/// Recomputes the run in a folder from its ledger.
pub fn replay(
    dir: &Path,
    data: Option<&Path>,
    device: &str,
    tolerance: f32,
    recipes: &[Recipe],
    progress: &mut dyn FnMut(&Progress),
) -> Result<recompute::Report, Box<dyn std::error::Error + Send + Sync>> {
    let dir = RunDir::open(dir)?;
    let mut kit = Kit::on(dir.manifest(), data, device, recipes)?;
    let shuffle = Shuffle::of(dir.manifest());
    let contribute = |params: &[f32], positions: &[Range<u64>]| {
        let samples: Vec<u64> = positions
            .iter()
            .cloned()
            .flatten()
            .map(|p| shuffle.index(p))
            .collect();
        kit.worker
            .contribute(params.to_vec(), &samples)
            .map(|made| made.gradient)
    };
    Ok(recompute(&dir, tolerance, contribute, progress)?)
}

/// What computes.
pub(super) struct Kit {
    pub device: OpenDevice,
    pub worker: Box<dyn Worker>,
    pub maker: Maker,
}

impl Kit {
    /// For a run that exists: checks that data and model here are the run's.
    pub fn of(manifest: &Manifest, local: &Local, recipes: &[Recipe]) -> Result<Self, Error> {
        Self::on(manifest, local.data.as_deref(), &local.device, recipes)
    }

    fn on(manifest: &Manifest, data: Option<&Path>, device: &str, recipes: &[Recipe]) -> Result<Self, Error> {
        let recipe = find(recipes, &manifest.task)?;
        let data = find_data(manifest, data)?;
        let loaded = (recipe.load)(&manifest.task_config, data.as_deref())?;
        if loaded.data != manifest.data {
            let (wanted, found) = (manifest.data, loaded.data);
            return Err(Error::OtherData {
                wanted,
                found,
                hint: manifest.data_hint.clone(),
            });
        }
        let kit = Self::new(&loaded, device, manifest.seed, manifest.micro_batch)?;
        if *kit.worker.layout() != manifest.layout {
            return Err(Error::OtherModel);
        }
        Ok(kit)
    }

    fn new(loaded: &Loaded, device: &str, seed: u64, micro_batch: u32) -> Result<Self, Error> {
        let device = device::open(device.parse::<DeviceRequest>()?)?;
        let maker = loaded.maker(
            device.clone(),
            TrainerOptions {
                seed,
                micro_batch: micro_batch as usize,
            },
        );
        Ok(Self {
            worker: maker()?,
            device,
            maker,
        })
    }
}

/// Where a run's data is: as given, or else where the run was started with it. None if the task makes its own.
pub(super) fn find_data(manifest: &Manifest, given: Option<&Path>) -> Result<Option<PathBuf>, Error> {
    let hint = PathBuf::from(&manifest.data_hint);
    match given {
        Some(path) => Ok(Some(path.to_path_buf())),
        None if manifest.data_hint.is_empty() => Ok(None),
        None if hint.exists() => Ok(Some(hint)),
        None => Err(Error::NoData {
            hint: manifest.data_hint.clone(),
        }),
    }
}

fn find<'a>(recipes: &'a [Recipe], name: &str) -> Result<&'a Recipe, Error> {
    let known = || recipes.iter().map(|r| r.name).collect();
    let found = recipes.iter().find(|r| r.name == name);
    found.ok_or_else(|| Error::UnknownTask {
        name: name.into(),
        known: known(),
    })
}

/// A new run's manifest, and what computes.
pub(super) fn prepare(run: &NewRun, local: &Local, recipes: &[Recipe]) -> Result<(Kit, Manifest), Error> {
    let recipe = find(recipes, &run.task)?;
    let loaded = (recipe.load)(&recipe.config(&run.task_config), local.data.as_deref())?;
    let kit = Kit::new(&loaded, &local.device, run.seed, run.micro_batch)?;
    let target = match run.length {
        Length::Epochs(n) => n.saturating_mul(loaded.samples),
        Length::Rounds(n) => n.saturating_mul(u64::from(run.batch)),
    };
    let steps = target.div_ceil(u64::from(run.batch.max(1)));
    let data_hint = match &local.data {
        Some(path) => std::path::absolute(path)
            .unwrap_or_else(|_| path.clone())
            .display()
            .to_string(),
        None => String::new(),
    };
    let manifest = Manifest {
        task: run.task.clone(),
        task_config: loaded.config.clone(),
        seed: run.seed,
        samples: loaded.samples,
        data: loaded.data,
        data_hint,
        target,
        batch: run.batch,
        micro_batch: run.micro_batch,
        layout: kit.worker.layout().clone(),
        optimizer: run.optimizer.parse::<Optimizer>()?,
        lr: run.lr,
        schedule: match run.schedule {
            options::Schedule::Constant => Schedule::Constant,
            options::Schedule::Warmup => Schedule::Warmup { steps: run.warmup },
            options::Schedule::Cosine => Schedule::Cosine {
                warmup: run.warmup,
                total: steps,
                floor: 0.1,
            },
        },
        clip: run.clip,
        codec: match run.codec {
            options::Codec::F32 => Codec::F32,
            options::Codec::F16 => Codec::F16,
        },
        piece: Manifest::PIECE,
        min_peers: run.min_peers,
    };
    manifest.check()?;
    Ok((kit, manifest))
}
