//! `annulus bench wan`: whether training together pays off behind slow lines. It runs one peer alone, several that sum every
//! batch, and several that exchange as often as the lines allow, one after the other.
//!
//! All are processes of this program; their sockets emulate the lines, and their devices wait. The results come from their logs.

use super::super::children::{Children, Message};
use super::super::contender::Contender;
use super::super::error::Error;
use super::super::{human, output};
use super::print;
use crate::events::Event;
use crate::net::line::Line;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A run has failed if its peers have not come together by then.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device that takes longer than it should by this factor shows that the machine is too small for all peers.
const OVERLOADED: f64 = 1.15;

/// Arguments of `annulus bench wan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The task to train.
    #[arg(long, value_name = "NAME", default_value = "gpt")]
    pub task: String,
    /// Training data, a folder or a file.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The line of each peer: its rate, and the round-trip time between any two.
    #[arg(long, value_name = "RATE/RTT", default_value = "20mbit/50ms")]
    pub line: Line,
    /// Members that train together.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub peers: u32,
    /// Samples in a batch of all members; one alone takes its part of that.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: u32,
    /// Learning rate of one alone and of local steps. Where batches are summed it is larger by the square root of the members.
    #[arg(long, default_value_t = 2e-3)]
    pub lr: f32,
    /// Least milliseconds that a sample takes each device: enough that this machine can play all of them.
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    pub sample_at_least: f64,
    /// The loss on held-out data at which each ends.
    #[arg(long, value_name = "LOSS", default_value_t = 2.45)]
    pub until: f64,
    /// Seconds after which each ends in any case.
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// A setting for one alone, such as a batch of its own.
    #[arg(long, value_name = "KEY=VALUE")]
    pub alone: Vec<String>,
    /// A setting for where every batch is summed.
    #[arg(long, value_name = "KEY=VALUE")]
    pub summed: Vec<String>,
    /// Write one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
    /// Settings of all runs, as for `annulus train`. Without any: the smallest model of text, at a constant rate.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct WanReport {
    bench: &'static str,
    line: String,
    until: f64,
    sample_ms: f64,
    runs: Vec<Measured>,
}

/// One run, from its first round with all members on.
#[derive(Debug, Serialize)]
struct Measured {
    name: &'static str,
    samples_per_second: f64,
    seconds_to_loss: Option<f64>,
    /// Bytes that a member sent for each sample of the run.
    bytes_per_sample: f64,
    /// Fraction lost of the samples that the same number of peers would have counted, each alone.
    lost: f64,
    /// Milliseconds that a sample took the first member's device.
    sample_ms: f64,
}

impl Args {
    /// Runs all three and prints the table.
    pub fn run(&self) -> Result<(), Error> {
        let batch = |batch: u32| format!("batch={batch}");
        let lr = |times: f32| format!("lr={}", self.lr * times);
        let alone = [batch((self.batch / self.peers).max(1)), lr(1.0)];
        let summed = [batch(self.batch), lr((self.peers as f32).sqrt())];
        let local = [batch(self.batch), lr(1.0), "local_steps=auto".to_owned()];
        let mut runs = vec![
            Trial::new(1)?.run(self, "one alone", &[&alone[..], &self.alone[..]].concat())?,
            Trial::new(self.peers as usize)?.run(
                self,
                "every batch summed",
                &[&summed[..], &self.summed[..]].concat(),
            )?,
            Trial::new(self.peers as usize)?.run(self, "local_steps=auto", &local)?,
        ];
        let apart = f64::from(self.peers) * runs[0].samples_per_second;
        (runs[1..].iter_mut()).for_each(|run| run.lost = 1.0 - run.samples_per_second / apart);
        let report = WanReport {
            bench: "wan",
            line: self.line.to_string(),
            until: self.until,
            sample_ms: self.sample_at_least,
            runs,
        };
        print(&report, table, self.json)
    }

    /// The command line of one peer: of the first without a ticket.
    fn command(&self, members: usize, ticket: Option<&str>, own: &[String]) -> Vec<String> {
        let mut all = match ticket {
            Some(ticket) => format!("join {ticket}"),
            // Evaluations about as many samples apart in all runs.
            None => {
                let every = 4 * if members == 1 { self.peers } else { 1 };
                format!(
                    "train --task {} rounds=1000000 min_peers={members} eval_every={every}",
                    self.task
                )
            }
        };
        if ticket.is_none() && self.settings.is_empty() {
            all += " preset=pico schedule=warmup warmup=20 eval_windows=70";
        }
        all += " --no-page --no-announce";
        all += &format!(" --line {} --sample-at-least {}", self.line, self.sample_at_least);
        let mut all: Vec<String> = all.split(' ').map(str::to_owned).collect();
        if ticket.is_none() {
            all.extend(self.settings.iter().chain(own).cloned());
        }
        let data = self
            .data
            .iter()
            .flat_map(|data| ["--data".into(), data.to_string_lossy().into_owned()]);
        all.into_iter().chain(data).collect()
    }
}

/// A run as it goes.
struct Trial {
    children: Children,
    told: Contender,
    /// When the first of its rounds was committed and how many samples were counted by then, and the same of the last.
    counted: Option<[(u64, u64); 2]>,
    /// Of the first member since then: seconds of computing, samples, bytes sent.
    own: (f64, u64, u64),
}

impl Trial {
    fn new(members: usize) -> Result<Self, Error> {
        Ok(Self {
            children: Children::new()?,
            told: Contender::new(members),
            counted: None,
            own: (0.0, 0, 0),
        })
    }

    fn run(mut self, args: &Args, name: &'static str, settings: &[String]) -> Result<Measured, Error> {
        output::note(&format!("{name}: {}", settings.join(" ")));
        let members = self.told.logs.peers.len();
        let (start, mut started) = (Instant::now(), 0);
        loop {
            let ticket = self.told.ticket_file().map(|file| format!("@{file}"));
            while started < members && (started == 0 || ticket.is_some()) {
                let ticket = ticket.as_deref().filter(|_| started > 0);
                self.children
                    .start(args.command(members, ticket, settings), "cpu")?;
                started += 1;
            }
            let message = self.children.next(Duration::from_millis(100));
            let now_ms = start.elapsed().as_millis() as u64;
            match message {
                Some(Message::Event(peer, event)) => self.take(peer, &event, now_ms),
                Some(Message::Ended(peer)) => return Err(self.children.failure(peer)),
                Some(Message::Interrupted) => {
                    return Err(Error::failed("interrupted; all peers have been ended"));
                }
                None => {}
            }
            if self.counted.is_none() && start.elapsed() > PATIENCE {
                return Err(Error::failed(
                    "the peers have not come together: try `annulus doctor`",
                ));
            }
            let over = self.told.curve.elapsed_ms(now_ms) >= 1000 * args.seconds;
            if over || self.told.curve.reaches(args.until).is_some() {
                return self.measured(args, name);
            }
        }
    }

    fn take(&mut self, peer: usize, event: &Event, now_ms: u64) {
        self.told.hear(peer, event, now_ms);
        let Event::Round(round) = event else {
            return;
        };
        let Contender { logs, .. } = &self.told;
        if peer > 0 || self.counted.is_none() && round.members.len() < logs.peers.len() {
            return;
        }
        let now = (now_ms, round.counted);
        let Some([_, last]) = &mut self.counted else {
            self.counted = Some([now, now]);
            return;
        };
        *last = now;
        let is_own = |name: &str| logs.peers[0].view.is_own(name);
        let share = round.members.iter().find(|share| is_own(&share.peer));
        self.own.0 += round.compute_seconds;
        self.own.1 += share.map_or(0, |share| share.weight);
        self.own.2 += round.bytes_sent;
    }

    fn measured(self, args: &Args, name: &'static str) -> Result<Measured, Error> {
        if !self.told.logs.agree() {
            return Err(Error::failed(
                "the peers did not hold the same bits: please report it",
            ));
        }
        let [(first_ms, first), (last_ms, last)] = self.counted.unwrap_or_default();
        let samples = (last - first) as f64;
        Ok(Measured {
            name,
            samples_per_second: samples / ((last_ms - first_ms) as f64 / 1e3),
            seconds_to_loss: self.told.curve.reaches(args.until).map(|ms| ms as f64 / 1e3),
            bytes_per_sample: self.own.2 as f64 / samples,
            lost: 0.0,
            sample_ms: 1e3 * self.own.0 / self.own.1 as f64,
        })
    }
}

fn table(report: &WanReport) -> String {
    let line = |name: &str, rest: [&str; 6]| {
        let rest = rest.map(|text| format!("{text:>11}")).concat();
        format!("{name:<18}{}\n", rest.trim_end())
    };
    let mut text = format!(
        "lines of {}, a sample takes each device {} ms; seconds until a loss of {}, bytes sent by a member for each sample\n",
        report.line, report.sample_ms, report.until
    );
    text += &line("", ["samples/s", "seconds", "faster", "sent", "lost", "a sample"]);
    let alone = report.runs[0].seconds_to_loss;
    for run in &report.runs {
        let seconds = run.seconds_to_loss;
        let times = alone
            .zip(seconds)
            .map(|(alone, here)| format!("{:.2} x", alone / here));
        let numbers = [
            format!("{:.1}", run.samples_per_second),
            seconds.map_or("never".into(), |seconds| format!("{seconds:.1}")),
            times.unwrap_or_default(),
            human::bytes(run.bytes_per_sample),
            human::percent(run.lost, 0),
            format!("{:.1} ms", run.sample_ms),
        ];
        text += &line(run.name, numbers.each_ref().map(String::as_str));
    }
    let is_slow = |run: &Measured| run.sample_ms > OVERLOADED * report.sample_ms;
    if report.runs.iter().any(is_slow) {
        text += "This machine is too busy to act these devices: take a larger --sample-at-least.\n";
    }
    text
}
