//! The run's task in this tab: found among those that the page was built for, made of the run's data, and its gradient
//! compared with the CPU's before it counts.

use crate::js;
use crate::page::{Failure, Kind};
use annulus::data::Data;
use annulus::participant::room::NoRoom;
use annulus::task::TaskError;
use annulus::task_factory::{LoadedTask, TaskFactory};
use annulus::trainer::{LocalStep, TrainerOptions, Worker, WorkerError};
use annulus_core::local::first_step;
use annulus_core::split::Split;
use annulus_core::{Manifest, Room};
use std::cell::RefCell;

/// Samples whose gradients the device and the CPU are compared on.
const TRIAL_SAMPLES: u64 = 4;

/// How far the device's gradient may be from the CPU's, relative to its length. Sums in another order differ by about
/// 1e-6 to 1e-5 here; what is wrong differs by more than one.
const TRIAL_TOLERANCE: f64 = 1e-3;

/// How far parameters may be after a first step: where a gradient is next to nothing, Adam makes a full step of its rounding.
const STEP_TOLERANCE: f64 = 3e-2;

/// WASM's memory ends at 4 GiB; what is not the model's needs some of it.
const MEMORY: u64 = 3 << 30;

/// Copies of the parameters beside the state: contribution, sum, pieces under way, and those of the trainer.
const COPIES: u64 = 6;

thread_local! {
    static FACTORIES: RefCell<Vec<TaskFactory>> = const { RefCell::new(Vec::new()) };
}

/// Says which tasks the page knows.
pub fn set_factories(factories: Vec<TaskFactory>) {
    FACTORIES.set(factories);
}

/// The tasks that the page knows.
pub fn factories() -> Vec<TaskFactory> {
    FACTORIES.with_borrow(Clone::clone)
}

/// How the run's task is made.
pub fn find<'a>(factories: &'a [TaskFactory], manifest: &Manifest) -> Result<&'a TaskFactory, Failure> {
    let factory = factories
        .iter()
        .find(|factory| factory.name == manifest.task)
        .ok_or_else(|| {
            let known: Vec<_> = factories.iter().map(|factory| factory.name).collect();
            let message = format!(
                "this page was built for {}, and the run trains {}: the program that founded the run has to serve a page \
                 of its own",
                known.join(", "),
                manifest.task
            );
            Failure::new(Kind::OtherPage, message)
        })?;
    match factory.elsewhere {
        Some(why) => Err(Failure::new(Kind::Elsewhere, why)),
        None => Ok(factory),
    }
}

/// The task with this data, or with what it makes itself.
pub fn load(factory: &TaskFactory, manifest: &Manifest, data: Option<&Data>) -> Result<LoadedTask, Failure> {
    let loaded = (factory.load)(&manifest.task_config, data)
        .map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    if loaded.data != manifest.data {
        let message = "the task generates other data in this page than the run's: page and run are of different releases";
        return Err(Failure::new(Kind::OtherPage, message));
    }
    Ok(loaded)
}

/// The task of a run whose model is split, for who computes only steps between the ends; with the files that those need.
pub fn load_inner(
    factory: &TaskFactory,
    manifest: &Manifest,
    data: Option<&Data>,
) -> Result<LoadedTask, TaskError> {
    (factory.load_inner)(&manifest.task_config, &manifest.layout, data)
}

/// What trainers of a run need to know.
pub fn trainer_options(manifest: &Manifest) -> TrainerOptions {
    TrainerOptions {
        seed: manifest.seed,
        micro_batch: manifest.micro_batch as usize,
    }
}

/// Whether a model of this size has room in WASM's memory; if so, how many bytes are left for data.
pub fn fits(manifest: &Manifest) -> Result<u64, Failure> {
    // With local steps the optimizer of the members' own steps is there, too, and where they began.
    let own = manifest
        .local
        .as_ref()
        .map_or(0, |_| 1 + manifest.optimizer.slots() as u64);
    let need = manifest.state_bytes() + manifest.layout.len as u64 * 4 * (own + COPIES);
    if need <= MEMORY {
        // Data that is not a text lies there twice for a while: as its files, and as what they hold.
        return Ok((MEMORY - need) / 2);
    }
    let what = format!(
        "the model has {:.0} million parameters",
        manifest.layout.len as f64 / 1e6
    );
    Err(too_large(&what, need))
}

fn too_large(what: &str, need: u64) -> Failure {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let message = format!(
        "{what}, for which a tab needs {:.1} GiB; it has {:.1} GiB. The native program has no such limit",
        gib(need),
        gib(MEMORY)
    );
    Failure::new(Kind::TooLarge, message)
}

/// For how many spans of a model that is split there is room in WASM's memory. A tab takes only such as lie between the ends,
/// which need no data.
pub fn room(manifest: &Manifest, split: &Split) -> Result<Room, Failure> {
    let spans = split.spans.len();
    if Room::inner(1).within(spans).spans == 0 {
        let message = format!(
            "the run's model is split into {}, and a tab can only hold a span between the first and the last, which need the \
             run's data. Take part with the native program instead: annulus join, with the same ticket",
            if spans == 1 {
                "a single span".to_owned()
            } else {
                format!("{spans} spans")
            }
        );
        return Err(Failure::new(Kind::NoMiddle, message));
    }
    let room = annulus::participant::room::room(manifest, split, MEMORY, (u16::MAX, true));
    room.map_err(|NoRoom { need }| too_large("the largest span of the model is such", need))
}

/// Whether the device computes what the CPU does. A browser's driver may skip what it cannot do without a word, and what
/// is read then is garbage, which would spoil the model of all.
pub async fn compare(
    device: &mut dyn Worker,
    twin: &mut dyn Worker,
    manifest: &Manifest,
) -> Result<(), Failure> {
    let samples: Vec<u64> = (0..manifest.samples.get().min(TRIAL_SAMPLES)).collect();
    let params = twin.init();
    let expected = twin.gradient(params.clone(), &samples).await.map_err(failed)?;
    js::next_task().await;
    let found = device.gradient(params.clone(), &samples).await.map_err(differs)?;
    let loss_off = f64::from((expected.loss_sum - found.loss_sum).abs());
    let off = distance(&expected.gradient, &found.gradient);
    if off > TRIAL_TOLERANCE {
        return Err(wrong(format!("its gradient is off by {off:.1e}")));
    }
    if loss_off > TRIAL_TOLERANCE * f64::from(expected.loss_sum.abs()) {
        return Err(wrong(format!(
            "its loss is {} and not {}",
            found.loss_sum, expected.loss_sum
        )));
    }
    if manifest.local.is_some() {
        compare_step(device, manifest, (params, &samples), &found.gradient).await?;
    }
    Ok(())
}

/// Whether a step that the device takes itself leads where the CPU's does.
async fn compare_step(
    device: &mut dyn Worker,
    manifest: &Manifest,
    (params, samples): (Vec<f32>, &[u64]),
    sum: &[f32],
) -> Result<(), Failure> {
    let Some(stepper) = device.stepper(&manifest.optimizer) else {
        return Ok(());
    };
    stepper.begin_anew();
    let mut expected = params.clone();
    first_step(manifest, &mut expected, (sum, samples.len() as u32));
    device.load(params.clone()).map_err(differs)?;
    device.accumulate(samples).map_err(differs)?;
    let step = LocalStep {
        number: 1,
        rate: manifest.lr,
        clip: None,
    };
    let gone = "it has just taken steps itself";
    device
        .stepper(&manifest.optimizer)
        .expect(gone)
        .step(&step)
        .await
        .map_err(differs)?;
    let found = device
        .stepper(&manifest.optimizer)
        .expect(gone)
        .stepped()
        .await
        .map_err(differs)?;
    let way = |to: &[f32]| {
        to.iter()
            .zip(&params)
            .map(|(to, from)| to - from)
            .collect::<Vec<f32>>()
    };
    let off = distance(&way(&expected), &way(&found));
    match off > STEP_TOLERANCE {
        true => Err(wrong(format!("a step of its optimizer is off by {off:.1e}"))),
        false => Ok(()),
    }
}

/// How far apart two vectors are, relative to the length of the first.
fn distance(expected: &[f32], found: &[f32]) -> f64 {
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let off = length(&mut expected.iter().zip(found).map(|(a, b)| f64::from(a - b)));
    off / length(&mut expected.iter().map(|a| f64::from(*a)))
}

fn wrong(how: String) -> Failure {
    let message = format!(
        "this device computes something else than the CPU does ({how}), so it stays out of the run: its driver or the \
         browser is at fault. Another browser may do, or the CPU"
    );
    Failure::new(Kind::WrongResults, message)
}

/// What it means where the device fails at what the CPU can do.
fn differs(error: WorkerError) -> Failure {
    match error {
        WorkerError::Device { reason } => Failure::new(Kind::GpuLost, reason),
        error => wrong(error.to_string()),
    }
}

/// What a worker's failure means for the tab.
pub fn failed(error: WorkerError) -> Failure {
    let kind = match error {
        WorkerError::Device { .. } => Kind::GpuLost,
        _ => Kind::Internal,
    };
    Failure::new(kind, error.to_string())
}
