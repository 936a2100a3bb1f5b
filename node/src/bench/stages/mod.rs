//! What a model costs as a pipeline: its steps measured, split into spans that fit, each span a process of its own, and
//! rounds of microbatches through all of them, with real activations over pipes.

mod process;

use std::ops::Range;
use std::path::PathBuf;

use annulus_core::codec::Codec;
use annulus_core::optim::Optimizer;
use annulus_core::shuffle::Shuffle;
use annulus_core::stages::{
    LinkTime, Machine, SpanTime, StepNeeds, Terms, fewest_spans, in_flight_limit, simulate, span_parameters,
    split,
};
use serde::Serialize;

use super::process::Memory;
use super::{Error, median};
use crate::device;
use crate::options::NewRun;
use crate::participant::run_setup;
use crate::pipeline::{StageReport, Update};
use crate::task::Data;
use crate::task_factory::{LoadedTask, TaskFactory};
use crate::trainer::{TrainerOptions, Worker};
use process::{Common, Processes};

pub use process::serve;

/// Microbatches that measure a step or a span by itself, after one that warms up.
const ALONE: usize = 5;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Task, batch, optimizer, seed.
    pub run: NewRun,
    /// Its data.
    pub data: Option<PathBuf>,
    /// Where to compute.
    pub device: String,
    /// Spans; none: as few as fit.
    pub spans: Option<usize>,
    /// Bytes that each span's process may take.
    pub memory: Option<u64>,
    /// Samples of a microbatch.
    pub microbatch: usize,
    /// How activations and gradients travel.
    pub boundary: Codec,
    /// Microbatches under way beyond those of 1F1B.
    pub more: u32,
    /// Cores that each span keeps to; 0: those of the machine, shared out.
    pub threads: usize,
    /// Milliseconds of a microbatch forward and backward on devices that only sleep, instead of computing.
    pub sleep_ms: Option<[u64; 2]>,
    /// Rounds to measure: steps of the optimizer.
    pub rounds: u64,
    /// Whether to put the whole model together in the end and evaluate it.
    pub evaluate: bool,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct StagesReport {
    /// Always "stages".
    pub bench: &'static str,
    /// What was trained.
    pub task: String,
    /// Parameters of the whole model.
    pub parameters: u64,
    /// Microbatches of a round, and samples of each.
    pub microbatches: usize,
    /// Samples of each.
    pub samples: usize,
    /// How activations and gradients travelled.
    pub boundary: Codec,
    /// Rounds.
    pub rounds: u64,
    /// The spans, in their order.
    pub spans: Vec<SpanReport>,
    /// Median seconds from a round's first forward pass to its last backward pass.
    pub seconds: f64,
    /// Seconds that 1F1B takes at least with the times that spans took by themselves, filling and draining included, if each
    /// had a machine of its own and links took no time.
    pub pipeline_seconds: f64,
    /// Seconds that the same computing takes at least on this machine's cores.
    pub cores_seconds: f64,
    /// The larger of the two over what was measured.
    pub reached: f64,
    /// Cores of this machine, and those that each span kept to.
    pub cores: [usize; 2],
    /// Mean loss of the first and the last round.
    pub loss: [f64; 2],
    /// Loss of the whole model on held-out data in the end, if it was asked for.
    pub held_out: Option<f64>,
    /// The machine's load average over a minute before and after, if it is known.
    pub load: [Option<f64>; 2],
}

/// One span.
#[derive(Clone, Debug, Serialize)]
pub struct SpanReport {
    /// Its steps.
    pub steps: Range<usize>,
    /// Parameters that it holds.
    pub parameters: u64,
    /// Most memory resident at once; Linux only.
    pub peak_bytes: Option<u64>,
    /// Milliseconds of a microbatch's forward pass by itself; 0 in the last span.
    pub forward_ms: f64,
    /// Milliseconds of its backward pass by itself, with the forward pass done again.
    pub backward_ms: f64,
    /// Milliseconds of both while all spans worked.
    pub busy_ms: f64,
    /// Bytes of a microbatch's activations to the next span.
    pub boundary_bytes: u64,
    /// Most microbatches stashed at once.
    pub stashed: usize,
    /// Most bytes of stashes at once.
    pub stash_bytes: usize,
}

/// Measures it; tells what is going on.
///
/// # Errors
///
/// If the task cannot be made or offers no steps, nothing fits, or a process fails.
pub fn measure(
    options: &Options,
    tasks: &[TaskFactory],
    mut tell: impl FnMut(&str),
) -> Result<StagesReport, Error> {
    let load = super::process::load();
    let run = &options.run;
    let factory = tasks.iter().find(|task| task.name == run.task);
    let factory = factory.ok_or_else(|| failed(format!("there is no task {:?}", run.task)))?;
    let data = options
        .data
        .as_deref()
        .map(Data::open)
        .transpose()
        .map_err(failed)?;
    let loaded = (factory.load)(&factory.config(&run.task_config), data.as_ref()).map_err(failed)?;
    let model = loaded.model_steps(run.seed).map_err(failed)?;
    let cores = super::process::cores();
    let mut common = Common {
        task: run.task.clone(),
        config: loaded.config.clone(),
        data: options.data.clone(),
        device: options.device.clone(),
        model,
        seed: run.seed,
        optimizer: run.optimizer.clone(),
        boundary: options.boundary,
        more: options.more,
        threads: options.threads.max(1),
        sleep_ms: options.sleep_ms,
    };
    if options.threads == 0 {
        common.threads = (cores / options.spans.unwrap_or(cores)).max(1);
    }
    let spans = choose_spans(options, &common, &loaded, &mut tell)?;
    tell(&format!("{} spans", spans.len()));
    let mut processes = Processes::start(&common, &spans)?;
    let samples = Samples::new(run, &loaded);
    let alone = alone(&mut processes, &samples.microbatches(0, options.microbatch))?;
    let trained = train(&mut processes, options, &samples, &loaded, &mut tell)?;
    let microbatches = samples.microbatches(0, options.microbatch).len();
    // Who sleeps needs no core.
    let threads = if options.sleep_ms.is_some() {
        0
    } else {
        common.threads
    };
    let bounds = bounds(&alone, microbatches, options.more, cores, threads);
    let held_out = match options.evaluate {
        false => None,
        true => Some(evaluate(&mut processes, options, &loaded)?),
    };
    let seconds = median(&trained.seconds);
    let loss = |loss: Option<&f64>| loss.copied().unwrap_or(f64::NAN);
    Ok(StagesReport {
        bench: "stages",
        task: run.task.clone(),
        parameters: common.model.layout.len as u64,
        microbatches,
        samples: options.microbatch,
        boundary: options.boundary,
        rounds: options.rounds,
        spans: span_reports(&common, &spans, &alone, &trained, &processes.memory()),
        seconds,
        pipeline_seconds: bounds.0,
        cores_seconds: bounds.1,
        reached: bounds.0.max(bounds.1) / seconds,
        cores: [cores, common.threads],
        loss: [loss(trained.losses.first()), loss(trained.losses.last())],
        held_out,
        load: [load, super::process::load()],
    })
}

/// What came of the rounds.
struct Trained {
    /// Of each round.
    seconds: Vec<f64>,
    losses: Vec<f64>,
    reports: Vec<StageReport>,
    /// Bytes of a microbatch's activations at each boundary.
    boundaries: Vec<u64>,
}

/// All rounds, each a step of the optimizer.
fn train(
    processes: &mut Processes,
    options: &Options,
    samples: &Samples,
    loaded: &LoadedTask,
    mut tell: impl FnMut(&str),
) -> Result<Trained, Error> {
    let (run, pipeline) = (&options.run, &mut processes.pipeline);
    let schedule = run_setup::schedule(run, loaded.samples);
    let before = pipeline.passed().to_vec();
    let (mut seconds, mut losses, mut sent) = (Vec::new(), Vec::new(), 0);
    for round in 0..options.rounds {
        let microbatches = samples.microbatches(round, options.microbatch);
        sent += microbatches.len() as u64;
        let summed = pipeline.gradient(&microbatches).map_err(failed)?;
        let update = Update {
            lr: schedule.rate(run.lr, round + 1),
            step: round + 1,
            clip: run.clip,
        };
        pipeline.apply(&summed, &update).map_err(failed)?;
        let loss = f64::from(summed.loss_sum) / summed.samples as f64;
        seconds.push(summed.seconds);
        losses.push(loss);
        if options.rounds <= 20 || (round + 1) % (options.rounds / 20) == 0 {
            tell(&format!(
                "round {}: loss {loss:.4}, {:.2} s",
                round + 1,
                summed.seconds
            ));
        }
    }
    let reports = pipeline.report().map_err(failed)?;
    let passed = pipeline.passed().iter().zip(&before);
    let boundaries = passed.map(|(after, before)| (after[0] - before[0]) / sent.max(1));
    Ok(Trained {
        seconds,
        losses,
        reports,
        boundaries: boundaries.collect(),
    })
}

fn span_reports(
    common: &Common,
    spans: &[Range<usize>],
    alone: &[StageReport],
    trained: &Trained,
    memory: &[Option<Memory>],
) -> Vec<SpanReport> {
    let report = |(span, steps): (usize, &Range<usize>)| {
        let (alone, together) = (&alone[span], &trained.reports[span]);
        let tensors = common.model.tensors_of(steps.clone());
        let parameters = tensors
            .iter()
            .map(|tensor| common.model.layout.tensors[*tensor].len());
        SpanReport {
            steps: steps.clone(),
            parameters: parameters.sum::<usize>() as u64,
            peak_bytes: memory[span].map(|memory| memory.peak),
            forward_ms: middle(&alone.forward_us) / 1e3,
            backward_ms: middle(&alone.backward_us) / 1e3,
            busy_ms: (middle(&together.forward_us) + middle(&together.backward_us)) / 1e3,
            boundary_bytes: trained.boundaries.get(span).copied().unwrap_or(0),
            stashed: together.stashed,
            stash_bytes: together.stash_bytes,
        }
    };
    spans.iter().enumerate().map(report).collect()
}

/// The run's samples, in its order.
struct Samples {
    shuffle: Shuffle,
    batch: u64,
}

impl Samples {
    fn new(run: &NewRun, loaded: &LoadedTask) -> Self {
        Self {
            shuffle: Shuffle {
                seed: run.seed,
                samples: loaded.samples,
            },
            batch: run.batch.get().into(),
        }
    }

    /// A round's, cut into microbatches.
    fn microbatches(&self, round: u64, size: usize) -> Vec<Vec<u64>> {
        let positions = round * self.batch..(round + 1) * self.batch;
        let all = self.shuffle.samples(&[positions]);
        all.chunks(size).map(<[u64]>::to_vec).collect()
    }
}

/// The spans that were asked for, or as few as fit, by what each step takes by itself.
fn choose_spans(
    options: &Options,
    common: &Common,
    loaded: &LoadedTask,
    mut tell: impl FnMut(&str),
) -> Result<Vec<Range<usize>>, Error> {
    let steps = common.model.steps();
    if options.spans == Some(1) && options.memory.is_none() {
        return Ok(vec![0..steps; 1]);
    }
    tell(&format!("measuring {steps} steps, one by one"));
    let singly: Vec<Range<usize>> = (0..steps).map(|step| step..step + 1).collect();
    let mut processes = Processes::start(common, &singly)?;
    let microbatches = Samples::new(&options.run, loaded).microbatches(0, options.microbatch);
    let reports = alone(&mut processes, &microbatches)?;
    // A step by nothing, for the memory that moments take once they are used.
    let one = &microbatches[..1];
    let summed = processes.pipeline.gradient(one).map_err(failed)?;
    let nothing = Update {
        lr: 0.0,
        step: 1,
        clip: None,
    };
    processes.pipeline.apply(&summed, &nothing).map_err(failed)?;
    let slots = Optimizer::parse(&common.optimizer).map_err(failed)?.slots() as u64;
    // Parameters on the host and on the device, sums of gradients, what is combined of them, moments.
    let bytes_per_parameter = 4 * (4 + slots);
    let mut needs = needs(common, &reports);
    let peaks: Vec<u64> = processes
        .memory()
        .iter()
        .map(|memory| memory.map_or(0, |memory| memory.peak))
        .collect();
    let beside = |(peak, step): (&u64, &StepNeeds)| {
        peak.saturating_sub(bytes_per_parameter * span_parameters(std::slice::from_ref(step)))
    };
    let beside: Vec<u64> = peaks.iter().zip(&needs).map(beside).collect();
    let fixed_bytes = beside.iter().copied().min().unwrap_or(0);
    for (step, beside) in needs.iter_mut().zip(beside) {
        step.working_bytes = beside - fixed_bytes;
    }
    let passed = processes.pipeline.passed().iter().map(|passed| passed[0]).max();
    let terms = Terms {
        bytes_per_parameter,
        boundary_bytes: passed.unwrap_or(0) / (ALONE as u64 + 2),
        fixed_bytes,
    };
    let machine = Machine {
        memory_bytes: options.memory.unwrap_or(u64::MAX),
        speed: 1000,
    };
    let spans = match options.spans {
        Some(count) => split(&needs, &vec![machine; count], &terms),
        None => fewest_spans(&needs, machine, steps, &terms),
    };
    spans.ok_or_else(|| {
        let largest = needs
            .iter()
            .map(|step| {
                terms.fixed_bytes
                    + step.working_bytes
                    + bytes_per_parameter * span_parameters(std::slice::from_ref(step))
            })
            .max();
        failed(format!(
            "no split of {steps} steps fits: the largest step alone takes {} MB",
            largest.unwrap_or(0) / 1_000_000
        ))
    })
}

/// What each step takes, where each is a span of its own; its working memory is not known yet.
fn needs(common: &Common, reports: &[StageReport]) -> Vec<StepNeeds> {
    let elements = |tensor: &usize| (*tensor, common.model.layout.tensors[*tensor].len() as u64);
    let need = |step: usize| StepNeeds {
        forward_us: middle(&reports[step].forward_us) as u64,
        backward_us: middle(&reports[step].backward_us) as u64,
        tensors: common.model.uses[step].iter().map(elements).collect(),
        working_bytes: 0,
    };
    (0..common.model.steps()).map(need).collect()
}

/// Sends some microbatches through, each when the one before it is done, so that no span disturbs another. The parameters
/// stay as they are.
fn alone(processes: &mut Processes, microbatches: &[Vec<u64>]) -> Result<Vec<StageReport>, Error> {
    for turn in 0..=ALONE {
        let one = std::slice::from_ref(&microbatches[turn % microbatches.len()]);
        processes.pipeline.gradient(one).map_err(failed)?;
        if turn == 0 {
            processes.pipeline.report().map_err(failed)?;
        }
    }
    processes.pipeline.report().map_err(failed)
}

/// Seconds of a round: by 1F1B with spans as fast as by themselves, and by this machine's cores.
fn bounds(alone: &[StageReport], microbatches: usize, more: u32, cores: usize, threads: usize) -> (f64, f64) {
    let time = |report: &StageReport| SpanTime {
        forward_us: middle(&report.forward_us) as u64,
        backward_us: middle(&report.backward_us) as u64,
    };
    let times: Vec<SpanTime> = alone.iter().map(time).collect();
    let limits: Vec<u32> = (0..times.len())
        .map(|span| in_flight_limit(span, times.len(), more))
        .collect();
    let links = vec![LinkTime::default(); times.len() - 1];
    let timeline = simulate(&times, &links, &limits, microbatches as u32);
    let all: u64 = times.iter().map(|t| t.forward_us + t.backward_us).sum();
    let cores = microbatches as f64 * all as f64 * threads.min(cores) as f64 / cores as f64;
    (timeline.total_us as f64 / 1e6, cores / 1e6)
}

/// The loss of the whole model on held-out data.
fn evaluate(processes: &mut Processes, options: &Options, loaded: &LoadedTask) -> Result<f64, Error> {
    let params = processes.pipeline.export(false).map_err(failed)?;
    let request = options.device.parse::<device::DeviceRequest>().map_err(failed)?;
    let device = device::open(request).map_err(failed)?;
    let trainer = TrainerOptions {
        seed: options.run.seed,
        micro_batch: 0,
    };
    let mut worker: Box<dyn Worker> = loaded.worker_factory(device, trainer)().map_err(failed)?;
    let eval = worker.score(params).map_err(failed)?;
    let eval = eval.ok_or_else(|| failed("the task holds nothing out to evaluate on"))?;
    Ok(eval.loss.into())
}

/// The median; 0 of nothing.
fn middle(us: &[u64]) -> f64 {
    match us {
        [] => 0.0,
        us => median(&us.iter().map(|us| *us as f64).collect::<Vec<_>>()),
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::Training(why.to_string())
}
