//! What a run would need, and how fast this machine would be, without starting it.

use crate::net::ticket::Secret;
use crate::options::{NewRun, Start, TrainOptions};
use crate::participant::budget;
use crate::participant::compute::{ComputeResult, warm_up};
use crate::participant::error::Error;
use crate::participant::run_setup::{Computes, Means, RunSetup, Whole, prepare};
use crate::store::run_dir::RunDir;
use crate::task_factory::TaskFactory;
use annulus_core::Manifest;
use annulus_core::interface::Input;
use burn::tensor::read_sync;
use std::time::Instant;

/// What a run would need, without starting it.
pub fn plan(options: &TrainOptions, factories: &[TaskFactory]) -> Result<(Manifest, String), Error> {
    let (manifest, setup) = match &options.start {
        Start::New(run) | Start::Meet(run, ..) => {
            // A real run draws its own key.
            let key = Secret::generate().key().peer();
            let (setup, manifest) = budget::prepare(run, (key, None), &options.local, factories)?;
            (manifest, setup)
        }
        Start::Resume(dir) => {
            let manifest = RunDir::open(dir)?.manifest().clone();
            let setup = RunSetup::of(&manifest, &options.local, factories)?;
            (manifest, setup)
        }
    };
    Ok((manifest, setup.device.name.clone()))
}

/// A model that was tried out on a device.
pub struct TriedOut {
    /// Its parameters.
    pub elements: usize,
    /// Bytes of parameters and optimizer state that each of this many peers holds.
    pub state_bytes: Box<dyn Fn(u64) -> u64>,
    /// Samples per second, if requested.
    pub speed: Option<f64>,
    /// The device, in words.
    pub device: String,
}

/// The model of a new run with these settings, and its speed on this machine.
pub fn try_out(
    run: &NewRun,
    given: Means<'_>,
    fast: bool,
    factories: &[TaskFactory],
) -> Result<TriedOut, Error> {
    let (setup, manifest) = prepare(run, Secret::generate().key().peer(), given, factories)?;
    let (start, elements) = (Instant::now(), manifest.layout.len);
    let speed = match (fast, setup.computes) {
        (false, _) => None,
        (true, Computes::Spans { mut spans, .. }) => {
            let share = read_sync(spans.try_out())?;
            Some(share / start.elapsed().as_secs_f64())
        }
        (true, Computes::Whole(Whole { mut worker, .. })) => {
            let gradient = async |params, samples: &[u64]| worker.gradient(params, samples).await;
            match read_sync(warm_up(
                gradient,
                || start.elapsed(),
                elements,
                manifest.samples.get(),
            )) {
                ComputeResult::Made(Input::Warm { speed }) => Some(speed as f64 / 1000.0),
                ComputeResult::Made(_) => None,
                ComputeResult::Refused(_, error) | ComputeResult::Failed(_, error) => {
                    return Err(error.into());
                }
            }
        }
    };
    Ok(TriedOut {
        elements,
        state_bytes: Box::new(move |peers| manifest.member_bytes(peers)),
        speed,
        device: setup.device.name,
    })
}
