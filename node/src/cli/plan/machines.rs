//! `annulus plan --machine ...`: which machines should hold which parts of the model.

use super::super::amounts;
use super::super::error::Error;
use super::super::human;
use super::{Args, seconds};
use crate::forecast::REACHED;
use crate::options::{NewRun, SplitRun, Steps};
use crate::participant::planning;
use crate::task_factory::TaskFactory;
use annulus_core::stages::plan::{Bottleneck, Job, Machine, Parallelism, Part, Plan};
use annulus_core::stages::span_parameters;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Letters of a picture of the steps, at most.
const WIDEST: usize = 40;

/// A machine, as it is asked about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asked {
    /// Bytes of memory.
    memory: u64,
    /// Samples of the whole model per second.
    speed: f64,
    /// Megabits per second, if they are not those of all.
    mbit: Option<f64>,
}

/// Reads `MEMORY,SPEED[,MBIT]`.
pub fn parse(text: &str) -> Result<Asked, String> {
    let form = "write a machine as MEMORY,SPEED or MEMORY,SPEED,MBIT: 8GB,50 gives 8 GB and computes 50 samples a second";
    let parts: Vec<&str> = text.split(',').collect();
    let (memory, speed, mbit) = match parts[..] {
        [memory, speed] => (memory, speed, None),
        [memory, speed, mbit] => (memory, speed, Some(mbit)),
        _ => return Err(form.into()),
    };
    let number = |text: &str, what: &str| {
        let number = text.trim().parse().ok().filter(|x| (1e-3..=1e12).contains(x));
        number.ok_or_else(|| format!("the {what} must be a number between 0.001 and 1e12: {form}"))
    };
    Ok(Asked {
        memory: amounts::bytes(memory.trim()).map_err(|_| form)?,
        speed: number(speed, "speed")?,
        mbit: mbit.map(|mbit| number(mbit, "rate of the line")).transpose()?,
    })
}

/// The plans to print.
pub struct Plans<'a> {
    args: &'a Args,
    /// Settings of the run without those that follow from the plan.
    words: Vec<&'a str>,
    task: &'a str,
    job: Job,
    machines: Vec<Machine>,
    /// Whether fewer had to hold each part than is usual.
    alone: bool,
    plan: Plan,
    /// The best of what is split, or of what is not, whichever is not the best of all.
    other: Option<Plan>,
    /// With one machine more, like the smallest.
    more: Option<(Asked, Plan)>,
}

impl<'a> Plans<'a> {
    /// Looks at the model, and plans.
    pub fn of(
        args: &'a Args,
        words: &'a [String],
        run: &'a NewRun,
        tasks: &[TaskFactory],
    ) -> Result<Self, Error> {
        if run.local_steps != Steps::None || run.overlap == Some(true) {
            return Err(Error::usage(
                "--machine does not go with local_steps or overlap: leave one of them out",
            ));
        }
        if args.machines.len() > 64 {
            return Err(Error::usage(
                "a run has at most 64 members: give --machine at most 64 times",
            ));
        }
        let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
        let lanes = words.iter().any(|word| key(word) == "lanes").then_some(run.lanes);
        let mut job = planning::job(run, args.data.as_deref(), lanes, tasks).map_err(Error::of)?;
        let machines: Vec<Machine> = args.machines.iter().map(|asked| machine(asked, args)).collect();
        // One may fail, if there is room for that.
        job.copies = run.copies.map_or(2, std::num::NonZeroU16::get);
        let mut plan = job.plan(&machines);
        let alone = plan.is_none() && run.copies.is_none();
        if alone {
            job.copies = 1;
            plan = job.plan(&machines);
        }
        let plan = plan.ok_or_else(|| nothing_fits(&job, &machines))?;
        let is_split = matches!(plan.placement.way, Parallelism::Split { .. });
        let spans = match (is_split, run.split == SplitRun::Off) {
            (_, false) => None,
            (true, true) => Some(1..=1),
            (false, true) => Some(2..=*job.spans.end()).filter(|spans| !spans.is_empty()),
        };
        let other = spans.and_then(|spans| Job { spans, ..job.clone() }.plan(&machines));
        let smallest = args
            .machines
            .iter()
            .min_by_key(|asked| (asked.memory, (asked.speed * 1e3) as u64));
        let more = smallest.and_then(|asked| {
            let more = [&machines[..], &[machine(asked, args)]].concat();
            Some((*asked, job.plan(&more)?))
        });
        let planned = ["lanes", "copies", "split"];
        let words = words.iter().map(String::as_str);
        Ok(Self {
            args,
            words: words.filter(|word| !planned.contains(&&*key(word))).collect(),
            task: &run.task,
            job,
            machines,
            alone,
            plan,
            other,
            more,
        })
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        let with = |more: &(Asked, Plan)| {
            let Asked { memory, speed, mbit } = more.0;
            let line = mbit.unwrap_or(self.args.mbit);
            json!({"memory_bytes": memory, "samples_per_second": speed, "mbit": line, "plan": self.short(&more.1)})
        };
        let all = json!({
            "task": self.task,
            "parameters": span_parameters(&self.job.steps),
            "steps": self.job.steps.len(),
            "batch": self.job.batch,
            "micro_batch": self.job.micro_batch,
            "whole_model_bytes": self.job.whole_bytes,
            "plan": self.short(&self.plan),
            "bottleneck": told(self.plan.forecast.bottleneck),
            "machines": (0..self.machines.len()).map(|at| self.row(at)).collect::<Vec<_>>(),
            "start_in_this_order": self.plan.placement.order().iter().map(|at| at + 1).collect::<Vec<_>>(),
            "otherwise": self.other.as_ref().map(|plan| self.short(plan)),
            "one_more": self.more.as_ref().map(with),
        });
        format!("{all}\n")
    }

    fn short(&self, plan: &Plan) -> Value {
        json!({
            "way": word(plan.placement.way),
            "settings": self.settings(plan),
            "round_seconds": plan.forecast.round,
            "samples_per_second": self.job.batch as f64 / plan.forecast.round,
        })
    }

    fn row(&self, at: usize) -> Value {
        let asked = &self.args.machines[at];
        let part = self.part(at);
        let steps = part.map(|part| &self.plan.placement.spans[part.span].steps);
        json!({
            "memory_bytes": asked.memory,
            "samples_per_second": asked.speed,
            "mbit": asked.mbit.unwrap_or(self.args.mbit),
            "steps": steps.map(|steps| [steps.start, steps.end]),
            "takes_bytes": part.map(|part| part.bytes),
            "samples": part.map(|part| part.samples),
            "computes_seconds": part.map(|part| part.computes),
            "sends_seconds": part.map(|part| part.sends),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let (job, forecast) = (&self.job, &self.plan.forecast);
        let of = match job.steps.len() {
            1 => String::new(),
            steps => format!(" in {steps} steps, microbatches of {}", job.micro_batch),
        };
        let mut text = format!(
            "{}: {} parameters{of}, batches of {}. All of it takes about {} of a machine.\n\n{}: {}. {}\n\n",
            self.task,
            human::grouped(span_parameters(&job.steps)),
            job.batch,
            human::bytes(job.whole_bytes as f64),
            self.way(&self.plan),
            self.pace(&self.plan),
            reason(forecast.bottleneck),
        );
        self.table(&mut text);
        self.commands(&mut text);
        if let Some(other) = &self.other {
            let _ = writeln!(
                text,
                "Otherwise: {}, {}.",
                uncapitalized(&self.way(other)),
                self.pace(other)
            );
        } else if self.job.spans.contains(&1) && matches!(self.plan.placement.way, Parallelism::Split { .. })
        {
            let _ = writeln!(text, "No machine has room for all of the model.");
        }
        if let Some((asked, more)) = &self.more {
            text.push_str(&self.with_one_more(asked, more));
        }
        if self.alone && !matches!(self.plan.placement.way, Parallelism::Replicas) {
            text.push_str(
                "There is no room for two copies of each part: if a machine goes, the run waits until it is back.\n",
            );
        }
        text
    }

    fn with_one_more(&self, asked: &Asked, more: &Plan) -> String {
        let (memory, speed) = (human::bytes(asked.memory as f64), human::short(asked.speed));
        let (way, settings) = (uncapitalized(&self.way(more)), self.settings(more));
        match self.plan.forecast.round / more.forecast.round {
            ..1.01 => format!("One more of {memory} and {speed} samples a second would change nothing.\n"),
            times => format!(
                "With one more of {memory} and {speed} samples a second it would be {times:.2} times as fast, {}: {}.\n",
                self.pace(more),
                [way, settings].join(" ").trim_end()
            ),
        }
    }

    fn pace(&self, plan: &Plan) -> String {
        let round = plan.forecast.round;
        let speed = human::short(self.job.batch as f64 / round);
        format!("{} a round, {speed} samples a second", seconds(round))
    }

    /// The way in words.
    fn way(&self, plan: &Plan) -> String {
        let spans = &plan.placement.spans;
        let (first, last) = (spans[0].holders.len(), spans[spans.len() - 1].holders.len());
        let machines = |count: usize| human::plural(count as u64, "machine");
        match plan.placement.way {
            Parallelism::Replicas if first == 1 => "All of the model on one machine".into(),
            Parallelism::Replicas => {
                format!("All of the model on each of {} (data parallel)", machines(first))
            }
            Parallelism::Sharded => format!(
                "All weights on each of {}, each part of the optimizer's vectors on {} (ZeRO-1)",
                machines(first),
                usize::from(self.job.copies).min(first)
            ),
            Parallelism::Split { .. } if first == last => {
                format!("{} spans, each on {} (pipeline)", spans.len(), machines(first))
            }
            Parallelism::Split { .. } => format!(
                "{} spans, each on {last} or {} (pipeline)",
                spans.len(),
                machines(first)
            ),
        }
    }

    fn part(&self, machine: usize) -> Option<&Part> {
        let mut parts = self.plan.forecast.parts.iter();
        parts.find(|part| part.machine == machine)
    }

    /// Each machine with its part, in the order in which they should join.
    fn table(&self, text: &mut String) {
        let steps = self.job.steps.len();
        let width = steps.min(WIDEST);
        let order = self.plan.placement.order();
        let _ = writeln!(
            text,
            "  {:<9}{:<13}{:<width$}  {:>9} of {:<10}{:>9}{:>11}{:>10}",
            "machine", "steps", "", "memory", "", "samples", "computes", "sends",
        );
        for at in &order {
            let part = self.part(*at).expect("it holds something");
            let held = &self.plan.placement.spans[part.span].steps;
            let is_held = |letter: usize| {
                let (begin, end) = (letter * steps / width, ((letter + 1) * steps).div_ceil(width));
                if held.start < end && begin < held.end {
                    '#'
                } else {
                    '.'
                }
            };
            let name = match (held.len() == steps, held.len()) {
                (true, _) => "all".to_owned(),
                (_, 1) => format!("{}", held.start),
                _ => format!("{} to {}", held.start, held.end - 1),
            };
            let _ = writeln!(
                text,
                "  {:<9}{name:<13}{}  {:>9} of {:<10}{:>9}{:>11}{:>10}",
                at + 1,
                (0..width).map(is_held).collect::<String>(),
                human::bytes(part.bytes as f64),
                human::bytes(self.machines[*at].memory_bytes as f64),
                part.samples,
                seconds(part.computes),
                seconds(part.sends),
            );
        }
        let idle: Vec<String> = (0..self.machines.len())
            .filter(|at| !order.contains(at))
            .map(|at| (at + 1).to_string())
            .collect();
        if !idle.is_empty() {
            let _ = writeln!(
                text,
                "\n  Left out, since rounds are no shorter with it: {}",
                idle.join(", ")
            );
        }
        text.push('\n');
    }

    /// What gives the plan.
    fn commands(&self, text: &mut String) {
        let data = self
            .args
            .data
            .iter()
            .map(|path| format!("--data {}", path.display()));
        let task = self.args.task.iter().map(|task| format!("--task {task}"));
        let words = self.words.iter().map(|word| (*word).to_owned());
        let words: Vec<String> = task
            .chain(data)
            .chain(words)
            .chain([self.settings(&self.plan)])
            .collect();
        let words = words.join(" ");
        let is_split = matches!(self.plan.placement.way, Parallelism::Split { .. });
        let spans = if is_split { " --spans 1" } else { "" };
        let _ = writeln!(text, "  {}{spans}", format!("annulus train {words}").trim_end());
        if self.plan.placement.order().len() > 1 {
            let order = match self.plan.placement.way {
                Parallelism::Replicas => "on the others",
                Parallelism::Sharded => "on the others; begin with the first of the table",
                Parallelism::Split { .. } => "on the others, in this order, each when the last is a member",
            };
            let _ = writeln!(text, "  annulus join TICKET{spans}    {order}");
        }
        text.push('\n');
    }

    /// The settings that give a plan.
    fn settings(&self, plan: &Plan) -> String {
        let spans = &plan.placement.spans;
        match plan.placement.way {
            Parallelism::Replicas => String::new(),
            Parallelism::Sharded => format!("--copies {}", self.job.copies),
            Parallelism::Split { lanes } => {
                let steps: Vec<String> = spans.iter().map(|span| span.steps.len().to_string()).collect();
                let copies = spans.iter().map(|span| span.holders.len()).min().unwrap_or(1);
                format!("--split {} --copies {copies} lanes={lanes}", steps.join("+"))
            }
        }
    }
}

fn machine(asked: &Asked, args: &Args) -> Machine {
    Machine {
        memory_bytes: asked.memory,
        speed: ((asked.speed * 1e3) as u64).max(1),
        rate: (asked.mbit.unwrap_or(args.mbit) * 1e6 / 8.0 * REACHED).max(1.0) as u64,
        round_trip_us: (args.rtt * 1e3) as u64,
    }
}

fn nothing_fits(job: &Job, machines: &[Machine]) -> Error {
    let all: u64 = machines.iter().map(|machine| machine.memory_bytes).sum();
    let lanes = job.lanes.iter().min().copied().unwrap_or(1);
    let split = job.bytes_at_least(lanes);
    let whole = human::bytes(job.whole_bytes as f64);
    Error::failed(match split {
        Some((largest, together)) => format!(
            "nothing fits: all of the model takes about {whole} of a machine; in spans, the largest step takes {} by itself and \
             all of them {} together, where these machines have {}. Add machines or memory, or take a smaller micro_batch or \
             moments=8bit",
            human::bytes(largest as f64),
            human::bytes(together as f64),
            human::bytes(all as f64),
        ),
        None => format!(
            "nothing fits: all of the model takes about {whole} of a machine, and with these settings it is not split. Add a \
             machine with more memory, or see moments=8bit"
        ),
    })
}

fn word(way: Parallelism) -> &'static str {
    match way {
        Parallelism::Replicas => "replicas",
        Parallelism::Sharded => "sharded",
        Parallelism::Split { .. } => "split",
    }
}

fn told(bottleneck: Bottleneck) -> Value {
    let (what, machine) = match bottleneck {
        Bottleneck::Computing(machine) => ("computing", machine),
        Bottleneck::Boundary(machine) => ("boundary", machine),
        Bottleneck::Exchange(machine) => ("exchange", machine),
        Bottleneck::Delays(machine) => ("delays", machine),
    };
    json!({"what": what, "machine": machine + 1})
}

fn reason(bottleneck: Bottleneck) -> String {
    match bottleneck {
        Bottleneck::Computing(at) => format!("The computing of machine {} bounds it.", at + 1),
        Bottleneck::Boundary(at) => {
            format!(
                "The line of machine {} bounds it, with activations: boundary=f16 or int8 makes these smaller.",
                at + 1
            )
        }
        Bottleneck::Exchange(at) => format!(
            "The line of machine {} bounds it, with sums of gradients.",
            at + 1
        ),
        Bottleneck::Delays(at) => format!("Delays on the way from machine {} on bound it.", at + 1),
    }
}

fn uncapitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_memory_speed_and_perhaps_a_line() {
        let asked = |memory, speed, mbit| Ok(Asked { memory, speed, mbit });
        assert_eq!(parse("8GB,50"), asked(8_000_000_000, 50.0, None));
        assert_eq!(parse("512MiB, 0.5, 20"), asked(512 << 20, 0.5, Some(20.0)));
        for bad in [
            "",
            "8GB",
            "8,50",
            "8GB,0",
            "8GB,fast",
            "8GB,50,0",
            "8GB,50,20,5",
            "8GB,nan",
        ] {
            assert!(parse(bad).is_err_and(|why| why.contains("MEMORY,SPEED")), "{bad}");
        }
    }
}
