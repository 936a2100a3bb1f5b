//! `annulus bench stages`.

use super::super::amounts::bytes;
use super::super::error::Error;
use super::super::{human, output, settings};
use super::print;
use crate::bench::stages;
use crate::task_factory::TaskFactory;
use annulus_core::codec::Codec;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Arguments of `annulus bench stages`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to train: a task that offers its steps.
    #[arg(long, value_name = "NAME", default_value = "gpt")]
    pub task: String,
    /// The task's preset, as the setting preset=NAME.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Training data, a folder or a file.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// Spans, a process each; by default as few as fit --memory.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub spans: Option<u16>,
    /// What each span's process may take, such as 400MB.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Samples of a microbatch.
    #[arg(long, value_name = "SAMPLES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub microbatch: u32,
    /// How activations and gradients travel from span to span: f32, f16 or int8.
    #[arg(long, value_name = "CODEC", default_value = "f32")]
    pub boundary: Codec,
    /// Microbatches under way beyond those of 1F1B, for links that take time.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub more: u32,
    /// Cores that each span keeps to; 0: those of this machine, shared out.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: u16,
    /// Let devices sleep this many milliseconds for a microbatch forward and backward instead of computing, to try the schedule with
    /// more spans than there are cores.
    #[arg(long, value_name = "MS,MS", value_parser = pair)]
    pub sleep_ms: Option<[u64; 2]>,
    /// Rounds to measure, each a step of the optimizer.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Put the whole model together in the end and evaluate it on held-out data.
    #[arg(long)]
    pub evaluate: bool,
    /// Write one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
    /// Settings of the run, as for `annulus train`.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

fn pair(text: &str) -> Result<[u64; 2], String> {
    let parts = text.split_once(',');
    let numbers = parts.and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
    numbers.ok_or_else(|| "write two numbers of milliseconds, such as 42,85".into())
}

impl Args {
    /// Trains over stages, each a process, and prints what was measured.
    pub fn run(&self, tasks: &[TaskFactory]) -> Result<(), Error> {
        let preset = self.preset.iter().map(|name| format!("preset={name}"));
        let words: Vec<String> = preset.chain(self.settings.iter().cloned()).collect();
        let settings = settings::read(None, &words, Some(&self.task), tasks)?;
        let options = stages::Options {
            run: settings.run,
            data: self.data.clone(),
            device: self.device.clone(),
            spans: self.spans.map(usize::from),
            memory: self.memory,
            microbatch: self.microbatch as usize,
            boundary: self.boundary,
            more: self.more,
            threads: self.threads.into(),
            sleep_ms: self.sleep_ms,
            rounds: self.rounds,
            evaluate: self.evaluate,
        };
        let report = stages::measure(&options, tasks, output::note);
        print(&report.map_err(Error::of)?, table, self.json)
    }
}

/// For people to read.
fn table(report: &stages::StagesReport) -> String {
    let mut text = format!(
        "{}: {} parameters in {}, {} of {}, boundary {}\n\
         {:>9} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12}\n",
        report.task,
        human::grouped(report.parameters),
        human::plural(report.spans.len() as u64, "span"),
        human::plural(report.microbatches as u64, "microbatch"),
        human::plural(report.samples as u64, "sample"),
        report.boundary,
        "steps",
        "parameters",
        "memory",
        "forward",
        "backward",
        "together",
        "boundary",
        "stash"
    );
    for span in &report.spans {
        let _ = writeln!(
            text,
            "{:>9} {:>12} {:>10} {:>7.1} ms {:>7.1} ms {:>7.1} ms {:>10} {:>12}",
            format!("{}..{}", span.steps.start, span.steps.end),
            human::grouped(span.parameters),
            span.peak_bytes
                .map_or_else(|| "?".into(), |peak| human::bytes(peak as f64)),
            span.forward_ms,
            span.backward_ms,
            span.busy_ms,
            human::bytes(span.boundary_bytes as f64),
            format!("{} = {}", span.stashed, human::bytes(span.stash_bytes as f64)),
        );
    }
    let _ = writeln!(
        text,
        "a round: {:.3} s (median of {}), {} of what can be. 1F1B takes {:.3} s if each span has a machine that is as \
         fast as this one is for it alone",
        report.seconds,
        report.rounds,
        human::percent(report.reached, 0),
        report.pipeline_seconds,
    );
    let [cores, each] = report.cores;
    if report.cores_seconds > 0.0 {
        let _ = writeln!(
            text,
            "here {} have {:.3} s of computing to do, {each} for each span",
            human::plural(cores as u64, "core"),
            report.cores_seconds,
        );
    }
    let [first, last] = report.loss;
    let _ = writeln!(text, "loss {first:.4} in the first round, {last:.4} in the last");
    if let Some(loss) = report.held_out {
        let _ = writeln!(text, "loss on held-out data {loss:.4}");
    }
    text
}
