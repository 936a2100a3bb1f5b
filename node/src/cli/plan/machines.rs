//! `annulus plan --machine ...`: which machines should hold which parts of the model.

use super::super::amounts;
use super::super::error::Error;
use super::super::human;
use super::{Args, seconds};
use crate::forecast::REACHED;
use crate::forecast::members::{Part, Sample};
use crate::options::{NewRun, SplitRun, Steps};
use crate::participant::planning::{self, Held, Machine, Plans, Way};
use crate::task_factory::TaskFactory;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::ops::Range;

/// Letters of a picture of the steps, at most.
const WIDEST: usize = 40;

/// Other ways that are told of, at most.
const OTHERS: usize = 5;

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

/// The plan to print.
pub struct Plan<'a> {
    args: &'a Args,
    /// Settings of the run without those that follow from the plan.
    words: Vec<&'a str>,
    run: &'a NewRun,
    machines: Vec<Machine>,
    plans: Plans,
}

impl<'a> Plan<'a> {
    /// Looks at the model, and plans.
    pub fn of(
        args: &'a Args,
        words: &'a [String],
        run: &'a NewRun,
        tasks: &[TaskFactory],
    ) -> Result<Self, Error> {
        if run.local_steps != Steps::None {
            return Err(Error::usage(
                "--machine and split do not go with local_steps: leave one of them out",
            ));
        }
        if args.machines.len() > 64 {
            return Err(Error::usage(
                "a run has at most 64 members: give --machine at most 64 times",
            ));
        }
        let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
        let machines = machines(args, run);
        let asked = planning::Asked {
            run,
            lanes: words.iter().any(|word| key(word) == "lanes"),
            machines: &machines,
            round_trip: args.rtt / 1e3,
        };
        let plans = planning::plan(&asked, args.data.as_deref(), tasks).map_err(Error::of)?;
        if plans.ways.is_empty() {
            return Err(nothing_fits(&plans, &machines));
        }
        let planned = ["lanes", "copies", "split"];
        let words = words.iter().map(String::as_str);
        Ok(Self {
            args,
            words: words.filter(|word| !planned.contains(&&*key(word))).collect(),
            run,
            machines,
            plans,
        })
    }

    /// The way with the shortest rounds.
    fn best(&self) -> &Way {
        &self.plans.ways[0]
    }

    /// The others that are told of: of those that differ in lanes alone the best.
    fn others(&self) -> Vec<&Way> {
        let kind = |way: &Way| way.settings.split(" lanes=").next().map(str::to_owned);
        let mut told: Vec<&Way> = Vec::new();
        for way in &self.plans.ways {
            if told.len() <= OTHERS && told.iter().all(|other| kind(other) != kind(way)) {
                told.push(way);
            }
        }
        told.split_off(1)
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        let best = self.best();
        let all = json!({
            "task": self.run.task,
            "parameters": self.plans.parameters,
            "steps": self.plans.steps,
            "batch": self.run.batch,
            "whole_model_bytes": self.plans.whole_bytes,
            "plan": self.short(best),
            "bound": best.round,
            "stages": best.spans.iter().map(|steps| [steps.start, steps.end]).collect::<Vec<_>>(),
            "machines": (0..self.machines.len()).map(|at| self.row(at)).collect::<Vec<_>>(),
            "start_in_this_order": best.members.iter().map(|held| held.machine + 1).collect::<Vec<_>>(),
            "otherwise": self.others().into_iter().map(|way| self.short(way)).collect::<Vec<_>>(),
        });
        format!("{all}\n")
    }

    fn short(&self, way: &Way) -> Value {
        json!({
            "settings": way.settings,
            "round_seconds": way.round.seconds,
            "samples_per_second": self.samples_per_second(way),
        })
    }

    fn samples_per_second(&self, way: &Way) -> f64 {
        f64::from(self.run.batch.get()) / way.round.seconds
    }

    fn row(&self, at: usize) -> Value {
        let machine = &self.machines[at];
        let held = self.members().find(|(held, _)| held.machine == at);
        let spans = |held: &Held| held.spans.iter().map(|span| span + 1).collect::<Vec<_>>();
        json!({
            "memory_bytes": (machine.memory < u64::MAX).then_some(machine.memory),
            "samples_per_second": machine.sample.map(|sample| 1.0 / sample.seconds()),
            "stages": held.map(|(held, _)| spans(held)),
            "takes_bytes": held.map(|(held, _)| held.bytes),
            "samples": held.map(|(_, part)| part.samples),
            "computes_seconds": held.map(|(_, part)| part.computes),
            "sends_seconds": held.map(|(_, part)| part.sends),
        })
    }

    /// What each member holds and does.
    fn members(&self) -> impl Iterator<Item = (&Held, &Part)> {
        let best = self.best();
        best.members.iter().zip(&best.round.parts)
    }

    /// For people.
    pub fn text(&self) -> String {
        let (best, plans) = (self.best(), &self.plans);
        let steps = match plans.steps {
            Some(steps) if self.is_split() => format!(" in {}", human::plural(steps as u64, "step")),
            _ => String::new(),
        };
        let mut text = format!(
            "{}: {} parameters{steps}, batches of {}. A machine that holds all of it needs about {}.\n\n{}: {}.\n{}\n\n",
            self.run.task,
            human::grouped(plans.parameters),
            self.run.batch,
            human::bytes(plans.whole_bytes as f64),
            self.way(),
            self.pace(best),
            self.reason(),
        );
        self.table(&mut text);
        self.commands(&mut text);
        for (at, other) in self.others().iter().enumerate() {
            let name = if at == 0 { "Other settings:" } else { "" };
            let settings = if other.settings.is_empty() {
                "all of the model on each"
            } else {
                &other.settings
            };
            let _ = writeln!(text, "{name:<16}{settings:<34}{}", self.pace(other));
        }
        if self.holders().min() == Some(1) && best.members.len() > 1 {
            text.push_str(
                "Some parts are on one machine alone: if it fails, the run waits until it is back. \
                 More memory or another machine would help.\n",
            );
        }
        text
    }

    fn is_split(&self) -> bool {
        !self.best().spans.is_empty()
    }

    /// How many hold each span; all hold the whole model otherwise.
    fn holders(&self) -> impl Iterator<Item = usize> {
        let best = self.best();
        let of_span = |span| {
            best.members
                .iter()
                .filter(|held| held.spans.contains(&span))
                .count()
        };
        (0..best.spans.len()).map(of_span)
    }

    fn pace(&self, way: &Way) -> String {
        let speed = human::short(self.samples_per_second(way));
        format!(
            "at least {} a round, at most {speed} samples a second",
            seconds(way.round.seconds)
        )
    }

    /// The way in words.
    fn way(&self) -> String {
        let best = self.best();
        let machines = human::plural(best.members.len() as u64, "machine");
        match (self.is_split(), best.manifest.copies) {
            (true, _) => format!(
                "The model in {} stages on {machines} (pipeline)",
                best.spans.len()
            ),
            (false, Some(copies)) => format!(
                "All weights on each of {machines}, each part of the optimizer's vectors on {} (ZeRO-1)",
                usize::from(copies.get()).min(best.members.len())
            ),
            (false, None) if best.members.len() == 1 => "All of the model on one machine".into(),
            (false, None) => format!("All of the model on each of {machines} (data parallel)"),
        }
    }

    /// What a round waits for.
    fn reason(&self) -> String {
        let round = &self.best().round;
        let machine = self.best().members[round.busiest.member].machine + 1;
        match (round.exchange > round.seconds / 2.0, round.busiest.line) {
            (true, _) => {
                "The exchange of gradients takes most of it: faster lines or a larger batch would help."
                    .into()
            }
            (false, true) => format!(
                "It waits for the line of machine {machine}, with activations: boundary=f16 or int8 makes these smaller."
            ),
            (false, false) => format!("It waits for the computing of machine {machine}."),
        }
    }

    /// Each machine with its part, in the order in which they should join.
    fn table(&self, text: &mut String) {
        let steps = self.plans.steps.filter(|_| self.is_split());
        let width = steps.unwrap_or(0).min(WIDEST);
        let _ = writeln!(
            text,
            "  {:<9}{:<13}{:<width$}  {:>9} {:<13}{:>9}{:>11}{:>10}",
            "machine", "steps", "", "memory", "", "samples", "computes", "sends",
        );
        for (held, part) in self.members() {
            let (names, picture) = self.steps_of(held, steps);
            let of = match self.machines[held.machine].memory {
                u64::MAX => String::new(),
                memory => format!("of {}", human::bytes(memory as f64)),
            };
            let _ = writeln!(
                text,
                "  {:<9}{names:<13}{picture}  {:>9} {of:<13}{:>9}{:>11}{:>10}",
                held.machine + 1,
                human::bytes(held.bytes as f64),
                part.samples,
                seconds(part.computes),
                seconds(part.sends),
            );
        }
        let names = |machines: &mut dyn Iterator<Item = usize>| {
            let names: Vec<String> = machines.map(|at| (at + 1).to_string()).collect();
            names.join(", ")
        };
        let left_out = names(&mut self.best().left_out.iter().copied());
        if !left_out.is_empty() {
            let _ = writeln!(text, "\n  Has no room for its part and is left out: {left_out}");
        }
        text.push('\n');
    }

    /// The steps that a member holds, in words and as a picture of all.
    fn steps_of(&self, held: &Held, steps: Option<usize>) -> (String, String) {
        let Some(steps) = steps else {
            return ("all".into(), String::new());
        };
        let spans = &self.best().spans;
        let ranges: Vec<&Range<usize>> = held.spans.iter().map(|span| &spans[*span]).collect();
        let name = |range: &&Range<usize>| match range.len() {
            1 => range.start.to_string(),
            _ => format!("{}-{}", range.start, range.end - 1),
        };
        let names: Vec<String> = ranges.iter().map(name).collect();
        let width = steps.min(WIDEST);
        let letter = |letter: usize| {
            let (begin, end) = (letter * steps / width, ((letter + 1) * steps).div_ceil(width));
            match ranges.iter().any(|range| range.start < end && begin < range.end) {
                true => '#',
                false => '.',
            }
        };
        let names = if names.is_empty() {
            "none".into()
        } else {
            names.join(",")
        };
        (names, (0..width).map(letter).collect())
    }

    /// What gives the plan.
    fn commands(&self, text: &mut String) {
        if self.args.machines.is_empty() {
            return;
        }
        let data = self
            .args
            .data
            .iter()
            .map(|path| format!("--data {}", path.display()));
        let task = self.args.task.iter().map(|task| format!("--task {task}"));
        let words = self.words.iter().map(|word| (*word).to_owned());
        let settings = std::iter::once(self.best().settings.clone());
        let words: Vec<String> = task.chain(data).chain(words).chain(settings).collect();
        let order: Vec<String> = self
            .members()
            .map(|(held, _)| (held.machine + 1).to_string())
            .collect();
        let train = format!("annulus train {}", words.join(" "));
        let (train, join) = (train.trim_end(), "annulus join TICKET");
        let width = train.len().max(join.len());
        let _ = writeln!(text, "  {train}  on machine {}", order[0]);
        match &order[1..] {
            [] => {}
            [other] => {
                let _ = writeln!(text, "  {join:<width$}  on machine {other}");
            }
            others => {
                let others = others.join(", ");
                let _ = writeln!(text, "  {join:<width$}  on machines {others}, in this order");
            }
        }
        if self.is_split() {
            text.push_str("  Give each --memory. Speeds are known after some rounds, and the model is cut by them then.\n");
        }
        text.push('\n');
    }
}

/// The machines that are asked about; with --peers alone as many equal ones with enough memory.
fn machines(args: &Args, run: &NewRun) -> Vec<Machine> {
    let rate = |mbit: f64| (mbit * 1e6 / 8.0 * REACHED).max(1.0);
    if args.machines.is_empty() {
        let sample = match (args.sample_takes, args.speed) {
            (Some(takes), _) => Some(Sample::Acted(takes.as_secs_f64())),
            (None, speed) => speed.map(|speed| Sample::Computed(1.0 / speed)),
        };
        let spans = match &run.split {
            SplitRun::Spans(count) => count.get().into(),
            SplitRun::Cut(steps) => steps.len(),
            SplitRun::Off | SplitRun::Auto => 1,
        };
        let machine = Machine {
            memory: u64::MAX,
            spans: None,
            sample,
            rate: rate(args.mbit),
        };
        return vec![machine; spans.max(args.peers.into())];
    }
    let machine = |asked: &Asked| Machine {
        memory: asked.memory,
        spans: None,
        sample: Some(Sample::Computed(1.0 / asked.speed)),
        rate: rate(asked.mbit.unwrap_or(args.mbit)),
    };
    args.machines.iter().map(machine).collect()
}

fn nothing_fits(plans: &Plans, machines: &[Machine]) -> Error {
    let bytes = |bytes: u64| human::bytes(bytes as f64);
    let whole = bytes(plans.whole_bytes);
    let largest = bytes(machines.iter().map(|machine| machine.memory).max().unwrap_or(0));
    Error::failed(match plans.step_bytes {
        Some(step) => format!(
            "nothing fits: a machine that holds all of the model needs about {whole}, one that holds its largest step alone {}, and \
             the largest of these has {largest}. Add machines or memory, or take a smaller micro_batch or moments=8bit",
            bytes(step)
        ),
        None => format!(
            "nothing fits: a machine that holds the model needs about {whole}, the largest of these has {largest}, and this task \
             cannot be split. Add a machine with more memory, or see moments=8bit"
        ),
    })
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
