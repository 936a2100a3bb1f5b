//! A pipeline stage as a process of its own: orders on standard input, answers on standard output.

use std::io::{self, BufReader, BufWriter};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use annulus_core::codec::Codec;
use annulus_core::optim::Optimizer;
use annulus_shaders::cpu::keep_to;
use serde::{Deserialize, Serialize};

use super::super::Error;
use super::super::process::{Memory, memory_of};
use crate::device::{self, DeviceRequest};
use crate::pipeline::{
    Answer, Order, Pipeline, PipelineError, Port, SpanState, Stage, StageSettings, read_frame, write_frame,
};
use crate::task::{Data, TaskError};
use crate::task_factory::TaskFactory;
use crate::trainer::span::{ModelSteps, TimedSpan};

/// What all stages of a pipeline are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Common {
    /// Name of the task.
    pub task: String,
    /// Its settings, as JSON.
    pub config: String,
    /// Its data.
    pub data: Option<PathBuf>,
    /// The device, as text.
    pub device: String,
    /// The model's steps.
    pub model: ModelSteps,
    /// Of the initial parameters.
    pub seed: u64,
    /// The optimizer, as text.
    pub optimizer: String,
    /// How activations and gradients travel.
    pub boundary: Codec,
    /// Microbatches under way beyond those of 1F1B.
    pub more: u32,
    /// Cores that each stage keeps to.
    pub threads: usize,
    /// Milliseconds of a microbatch forward and backward on a device that only sleeps, instead of computing.
    pub sleep_ms: Option<[u64; 2]>,
}

/// What one is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    common: Common,
    steps: Range<usize>,
    span: usize,
    spans: usize,
}

/// Is a stage, until standard input ends.
///
/// # Errors
///
/// If it cannot be made. What goes wrong later is an answer.
pub fn serve(tasks: &[TaskFactory]) -> Result<(), TaskError> {
    let mut input = BufReader::new(io::stdin());
    let spec: Option<Vec<u8>> = read_frame(&mut input)?;
    let spec = spec.ok_or("`annulus bench stage` is for `annulus bench stages`, which starts it")?;
    let Spec {
        common,
        steps,
        span,
        spans,
    } = serde_json::from_slice(&spec)?;
    keep_to(common.threads);
    let factory = tasks.iter().find(|task| task.name == common.task);
    let factory = factory.ok_or_else(|| format!("there is no task {:?}", common.task))?;
    let data = common.data.as_deref().map(Data::open).transpose()?;
    let loaded = (factory.load)(&common.config, data.as_ref())?;
    let device = device::open(common.device.parse::<DeviceRequest>()?)?;
    let mut worker = loaded.span_worker(&device, Arc::new(common.model), steps, common.seed)?;
    if let Some(sleep) = common.sleep_ms {
        let [forward, backward] = sleep.map(Duration::from_millis);
        worker = Box::new(TimedSpan::new(worker, forward, backward));
    }
    let state = SpanState::new(&*worker, Optimizer::parse(&common.optimizer)?);
    let settings = StageSettings {
        span,
        spans,
        boundary: common.boundary,
        more: common.more,
    };
    let stage = Stage::new(worker, state, settings)?;
    let (say, orders) = mpsc::channel();
    // Whoever writes here never waits for the span's computing.
    thread::spawn(move || {
        while let Ok(Some(order)) = read_frame::<Order>(&mut input) {
            if say.send(order).is_err() {
                break;
            }
        }
    });
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64;
    stage.serve(&orders, &now_us, |answer| {
        let mut out = BufWriter::new(io::stdout().lock());
        write_frame(&mut out, &answer).is_ok()
    });
    Ok(())
}

/// Where a stage's process is told something.
pub struct Pipe(ChildStdin);

impl Port for Pipe {
    fn send(&mut self, order: &Order) -> Result<(), PipelineError> {
        let mut pipe = BufWriter::new(&mut self.0);
        write_frame(&mut pipe, order).map_err(|_| PipelineError::Gone)
    }
}

/// A pipeline whose stages are processes.
pub struct Processes {
    /// What they compute.
    pub pipeline: Pipeline<Pipe>,
    children: Vec<Child>,
}

impl Processes {
    /// Starts one for each span, and waits until all are there.
    ///
    /// # Errors
    ///
    /// If they cannot be started, or one fails to make its span.
    pub fn start(common: &Common, spans: &[Range<usize>]) -> Result<Self, Error> {
        let program = std::env::current_exe()?;
        let (say, answers) = mpsc::channel();
        let (mut ports, mut children) = (Vec::new(), Vec::new());
        for (span, steps) in spans.iter().enumerate() {
            let mut child = Command::new(&program)
                .args(["bench", "stage"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (input, output) = (child.stdin.take(), child.stdout.take());
            children.push(child);
            let (Some(mut input), Some(output)) = (input, output) else {
                unreachable!("both were asked for");
            };
            let spec = Spec {
                common: common.clone(),
                steps: steps.clone(),
                span,
                spans: spans.len(),
            };
            write_frame(&mut input, &serde_json::to_vec(&spec).map_err(io::Error::other)?)?;
            listen(span, output, say.clone());
            ports.push(Pipe(input));
        }
        let model = Arc::new(common.model.clone());
        let pipeline = Pipeline::new(model, spans.to_vec(), ports, answers);
        let mut processes = Self { pipeline, children };
        processes
            .pipeline
            .report()
            .map_err(|error| Error::Training(error.to_string()))?;
        Ok(processes)
    }

    /// What each holds.
    pub fn memory(&self) -> Vec<Option<Memory>> {
        self.children.iter().map(|child| memory_of(child.id())).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Passes on what a stage tells; when it ends, that it has.
fn listen(span: usize, output: ChildStdout, say: Sender<(usize, Answer)>) {
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        while let Ok(Some(answer)) = read_frame(&mut output) {
            if say.send((span, answer)).is_err() {
                return;
            }
        }
        let why = "its process has ended: what it says on standard error tells why".to_owned();
        let _ = say.send((span, Answer::Failed(why)));
    });
}
