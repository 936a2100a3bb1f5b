//! What a new run would train, as a plan for machines needs it: what its model's steps take. Without drawing its weights.

use super::error::Error;
use super::memory;
use super::room::{SpanTerms, needs};
use super::run_data::find;
use super::split;
use crate::data::Data;
use crate::options::{NewRun, SplitRun};
use crate::task_factory::{LoadedTask, TaskFactory};
use crate::trainer::span::{Cut, ModelSteps};
use annulus_core::codec::Codec;
use annulus_core::optim::Optimizer;
use annulus_core::split::Split;
use annulus_core::stages::StepNeeds;
use annulus_core::stages::plan::Job;
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::RangeInclusive;
use std::path::Path;

/// Lanes that are tried out, if their number is free.
const LANES: [u16; 5] = [1, 2, 4, 8, 16];

/// What a plan needs to know of a new run, with so many lanes, if that is said. Measures its model's steps on this machine's
/// processor, if the task offers them; they only count beside each other.
///
/// # Errors
///
/// If there is no such task, its data or model is no good, or it is to be split and offers no steps.
pub fn job(
    run: &NewRun,
    data: Option<&Path>,
    lanes: Option<NonZeroU16>,
    factories: &[TaskFactory],
) -> Result<Job, Error> {
    let factory = find(factories, &run.task)?;
    let data = data.map(Data::open).transpose();
    let data = data.map_err(|error| Error::Task(error.into()))?;
    let loaded = (factory.load)(&factory.config(&run.task_config), data.as_ref())?;
    let optimizer = run.optimizer.parse::<Optimizer>()?;
    let model = loaded.model_steps(run.seed);
    let (spans, model) = match (spans(run, model.as_ref().map_or(1, ModelSteps::steps)), model) {
        // It offers no steps, and need not.
        (spans, Err(_)) if *spans.start() == 1 => (1..=1, None),
        (spans, model) => (spans, Some(model?)),
    };
    let parameters = match &model {
        Some(model) => model.layout.len,
        None => loaded.layout(run.seed)?.len,
    };
    let micro_batch = NonZeroU32::new(run.micro_batch).unwrap_or(NonZeroU32::MIN);
    let terms = SpanTerms::of(&optimizer, run.moments, 0);
    let (steps, boundaries, terms) = steps(run, (&loaded, model), (parameters, micro_batch), terms)?;
    let elements = parameters as u64;
    Ok(Job {
        steps,
        boundaries,
        terms,
        lanes: lanes.map_or(LANES.to_vec(), |lanes| vec![lanes.get()]),
        whole_bytes: memory::of_whole(elements, &optimizer, run.moments),
        moments_bytes: optimizer.slots() as u64 * run.moments.bytes(elements),
        vector_bytes: run.codec().encoded_len(parameters) as u64,
        batch: run.batch.get().into(),
        micro_batch: micro_batch.get().into(),
        copies: run.copies.map_or(1, NonZeroU16::get),
        spans,
        even: true,
    })
}

/// The cut that a new run's founder would make, and how many parameters the model has. Its steps' costs are microseconds of
/// their forward passes on this machine's processor.
///
/// # Errors
///
/// If there is no such task, its data or model is no good, or no cut fits.
pub fn cut(run: &NewRun, data: Option<&Path>, factories: &[TaskFactory]) -> Result<(Split, usize), Error> {
    let factory = find(factories, &run.task)?;
    let data = data.map(Data::open).transpose();
    let data = data.map_err(|error| Error::Task(error.into()))?;
    let loaded = (factory.load)(&factory.config(&run.task_config), data.as_ref())?;
    let model = loaded.model_steps(run.seed)?;
    Ok((split::cut(run, &loaded, &model, None)?, model.layout.len))
}

/// How many spans a run with these settings may have, of a model of so many steps; one: none has less than the whole model.
fn spans(run: &NewRun, steps: usize) -> RangeInclusive<usize> {
    match &run.split {
        SplitRun::Off if run.codec() != Codec::F32 => 1..=1,
        SplitRun::Off => 1..=steps.max(1),
        SplitRun::Auto => 2..=steps.max(2),
        SplitRun::Spans(count) => usize::from(count.get())..=count.get().into(),
        SplitRun::Cut(cut) => cut.len()..=cut.len(),
    }
}

type Steps = (Vec<StepNeeds>, Vec<u64>, annulus_core::stages::Terms);

/// What the steps take, and what goes on from each; one step, if the task offers none.
fn steps(
    run: &NewRun,
    (loaded, model): (&LoadedTask, Option<ModelSteps>),
    (parameters, micro_batch): (usize, NonZeroU32),
    terms: SpanTerms,
) -> Result<Steps, Error> {
    let Some(model) = model else {
        let one = StepNeeds {
            backward_us: 1,
            tensors: vec![(0, parameters as u64)],
            ..StepNeeds::default()
        };
        let terms = annulus_core::stages::Terms {
            bytes_per_parameter: terms.bytes_per_parameter,
            boundary_bytes: 0,
            fixed_bytes: terms.base,
        };
        return Ok((vec![one], vec![0], terms));
    };
    let cut = Cut {
        spans: &[],
        costs: &model.evened(&loaded.step_costs()?),
        micro_batch,
        boundary: run.boundary,
        lanes: run.lanes,
    };
    let split = cut.of(&model);
    let boundary = |step: &annulus_core::split::Step| {
        let elements = step.boundary as usize * micro_batch.get() as usize;
        run.boundary.encoded_len(elements) as u64
    };
    let boundaries = split.steps.iter().map(boundary).collect();
    let (steps, terms) = needs(&split, terms);
    Ok((steps, boundaries, terms))
}
