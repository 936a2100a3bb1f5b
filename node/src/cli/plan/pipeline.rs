//! `annulus plan split=...`: what a round takes at least where the model is split, and of what that is made.

use super::super::human;
use super::{Args, seconds};
use crate::cli::error::Error;
use crate::forecast::split::{Least, Part, Pipeline, Sample};
use crate::options::NewRun;
use crate::participant::planning;
use crate::task_factory::TaskFactory;
use annulus_core::split::Split;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The bounds to print.
pub struct Bounds<'a> {
    args: &'a Args,
    run: &'a NewRun,
    split: Split,
    parameters: usize,
    peers: usize,
    least: Least,
}

impl<'a> Bounds<'a> {
    /// Looks at the model, and cuts it as a run with these settings would.
    pub fn of(args: &'a Args, run: &'a NewRun, tasks: &[TaskFactory]) -> Result<Self, Error> {
        let (split, parameters) = planning::cut(run, args.data.as_deref(), tasks).map_err(Error::of)?;
        let peers = usize::from(args.peers).max(split.spans.len());
        let pipeline = Pipeline {
            split: &split,
            batch: run.batch.get().into(),
            peers,
            sample: match (args.sample_takes, args.speed) {
                (Some(takes), _) => Sample::Acted(takes.as_secs_f64()),
                (None, Some(speed)) => Sample::Computed(1.0 / speed),
                (None, None) => Sample::measured(&split),
            },
            rate: args.mbit * 1e6 / 8.0,
            round_trip: args.rtt / 1e3,
        };
        Ok(Self {
            least: pipeline.least(),
            args,
            run,
            split,
            parameters,
            peers,
        })
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        let all = json!({
            "task": self.run.task,
            "parameters": self.parameters,
            "batch": self.run.batch,
            "micro_batch": self.split.micro_batch,
            "peers": self.peers,
            "mbit": self.args.mbit,
            "rtt_ms": self.args.rtt,
            "bound": told(&self.least),
        });
        format!("{all}\n")
    }

    /// For people.
    pub fn text(&self) -> String {
        let bound = self.least.seconds();
        let mut text = format!(
            "{}: {} parameters in {}, batches of {} in microbatches of {}, activations as {}. {} with {} Mbit/s and {} ms between \
             them.\n\n",
            self.run.task,
            human::grouped(self.parameters as u64),
            human::plural(self.split.steps.len() as u64, "step"),
            self.run.batch,
            self.split.micro_batch,
            self.split.boundary,
            human::plural(self.peers as u64, "peer"),
            self.args.mbit,
            self.args.rtt,
        );
        let _ = writeln!(
            text,
            "  {:<6}{:<11}{:>18}{:>10}{:>11}{:>21}",
            "span", "steps", "of the computing", "forward", "backward", "sends a microbatch"
        );
        for (at, part) in self.least.spans.iter().enumerate() {
            let _ = writeln!(text, "  {}", row(at, part));
        }
        let _ = writeln!(
            text,
            "\nThe bound of a round: {}.\nNo more than {} samples a second: no order of work over these lines is faster.",
            self.least,
            human::short(f64::from(self.run.batch.get()) / bound),
        );
        text
    }
}

fn row(at: usize, part: &Part) -> String {
    let ms = |us: u64| seconds(us as f64 / 1e6);
    format!(
        "{:<6}{:<11}{:>18}{:>10}{:>11}{:>21}",
        at + 1,
        format!("{}..{}", part.steps.start, part.steps.end),
        human::percent(part.share, 1),
        ms(part.time.forward_us),
        ms(part.time.backward_us),
        human::bytes(part.sends as f64),
    )
}

/// The bound of a round, for programs.
pub fn told(least: &Least) -> Value {
    let of = least.pipeline;
    let seconds = |us: u64| us as f64 / 1e6;
    let span = |part: &Part| {
        json!({
            "steps": [part.steps.start, part.steps.end],
            "share": part.share,
            "forward_seconds": seconds(part.time.forward_us),
            "backward_seconds": seconds(part.time.backward_us),
            "sends_bytes": part.sends,
        })
    };
    json!({
        "round_seconds": least.seconds(),
        "filling_seconds": seconds(of.filling_us),
        "microbatches": of.microbatches,
        "slowest_seconds": seconds(of.slowest_us),
        "draining_seconds": seconds(of.draining_us),
        "exchange_seconds": least.exchange,
        "slowest": {"span": of.span + 1, "what": if of.line { "line" } else { "computing" }},
        "spans": least.spans.iter().map(span).collect::<Vec<_>>(),
    })
}
