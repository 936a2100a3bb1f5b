//! `annulus plan`: what training together would give, before anybody starts.

mod machines;

use super::amounts::{milliseconds, positive};
use super::error::Error;
use super::human;
use super::output;
use super::settings;
use crate::forecast::{Conditions, Forecast, Mode};
use crate::options::SplitRun;
use crate::participant::run_setup::Means;
use crate::participant::try_out::{self, TriedOut};
use crate::task_factory::TaskFactory;
use annulus_core::Topology;
use annulus_core::codec::Codec;
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Predict what training together would give on your links, before anybody starts.
///
/// Tries the model on this machine and assumes that all peers are as fast. For each way of training together it prints how long
/// rounds take, how much time is lost, and the speed-up over one machine. It counts samples: late gradients and local steps also
/// cost some learning.
///
/// With --machine, once per machine, it suggests instead which machine should hold which parts of the model. Then it only runs the
/// model's steps, once each, to compare them.
///
/// With split=N it prints a lower bound of a round: filling the pipeline, its slowest part, draining it, and exchanging sums.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The task to train.
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// A machine, such as 8GB,50 or 3GB,20,50: its memory, the samples of the whole model that it computes per second, and its
    /// line in Mbit/s if that differs from --mbit. Give it once per machine.
    #[arg(long = "machine", value_name = "MEMORY,SPEED[,MBIT]", value_parser = machines::parse, conflicts_with_all = ["peers", "speed"])]
    pub machines: Vec<machines::Asked>,
    /// How many peers.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub peers: u8,
    /// Megabits per second that each can send and receive.
    #[arg(long, value_name = "MBIT", default_value_t = 100.0, value_parser = positive)]
    pub mbit: f64,
    /// Round-trip time between two of them, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = positive)]
    pub rtt: f64,
    /// Samples that a peer computes per second (default: measured here).
    #[arg(long, value_name = "SAMPLES", value_parser = positive)]
    pub speed: Option<f64>,
    /// With split, milliseconds of a sample through all spans of devices that only sleep, as for `annulus train`.
    #[arg(long, value_name = "MS", hide = true, conflicts_with_all = ["speed", "machines"], value_parser = milliseconds)]
    pub sample_takes: Option<Duration>,
    /// Where to try the model: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Training data, a folder or a file, if the model's size depends on it.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Settings of the run, as for `annulus train`.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  annulus plan
  annulus plan --task gpt preset=gpt2 --peers 4 --mbit 100 --rtt 50
  annulus plan --task gpt preset=small --speed 6 batch=48
  annulus plan --task gpt preset=gpt2 split=4 boundary=f16 --speed 2 batch=64
  annulus plan --task gpt preset=gpt2 --machine 8GB,3 --machine 6GB,2 --machine 3GB,1,50 batch=48
";

/// The ways that are told of, with the settings that give them.
const WAYS: [(Mode, Topology, Codec, &str); 4] = [
    (
        Mode::EveryStep,
        Topology::Ring,
        Codec::F32,
        "codec=f32 topology=ring",
    ),
    (Mode::EveryStep, Topology::Direct, Codec::F16, "codec=f16"),
    (Mode::EveryStep, Topology::Direct, Codec::Int8, "codec=int8"),
    (
        Mode::LocalSteps,
        Topology::Direct,
        Codec::Sign,
        "local_steps=auto",
    ),
];

/// Prints who should hold what, and how long rounds would take.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let named = (args.task.as_deref(), args.data.as_deref());
    let settings = settings::read(None, &args.settings, named, tasks)?;
    if !args.machines.is_empty() || settings.run.split != SplitRun::Off {
        let plan = machines::Plan::of(args, &args.settings, &settings.run, tasks)?;
        output::print(&if args.json { plan.json() } else { plan.text() });
        return Ok(());
    }
    let given = Means {
        data: args.data.as_deref(),
        device: &args.device,
        memory: None,
    };
    let tried = try_out::try_out(&settings.run, given, args.speed.is_none(), tasks).map_err(Error::of)?;
    let conditions = Conditions {
        elements: tried.elements,
        batch: f64::from(settings.run.batch.get()),
        peers: args.peers.into(),
        speed: args.speed.or(tried.speed).unwrap_or(1.0),
        rate: args.mbit * 1e6 / 8.0,
        round_trip: args.rtt / 1e3,
    };
    let ways = WAYS.map(|(mode, topology, codec, words)| (words, conditions.forecast(mode, topology, codec)));
    output::print(&match args.json {
        true => {
            let way = |(words, forecast): &(&str, Forecast)| json!({"settings": words, "forecast": forecast});
            let ways: Vec<_> = ways.iter().map(way).collect();
            let (parameters, speed) = (conditions.elements, conditions.speed);
            format!(
                "{}\n",
                json!({
                    "parameters": parameters,
                    "state_bytes": (tried.state_bytes)(args.peers.into()),
                    "samples_per_second": speed,
                    "ways": ways,
                })
            )
        }
        false => table(args, &settings.run.task, &tried, &conditions, &ways),
    });
    Ok(())
}

fn table(args: &Args, task: &str, tried: &TriedOut, of: &Conditions, ways: &[(&str, Forecast)]) -> String {
    let state = (tried.state_bytes)(of.peers as u64);
    let mut text = format!(
        "{task}: {} parameters, batches of {}. {} with {} Mbit/s and {} ms between them.\n\
         Each holds {} of parameters and optimizer state, {:.1} bytes a parameter.\n",
        human::grouped(of.elements as u64),
        of.batch,
        human::plural(of.peers as u64, "peer"),
        args.mbit,
        args.rtt,
        human::bytes(state as f64),
        state as f64 / of.elements.max(1) as f64
    );
    let speed = human::short(of.speed);
    let _ = match args.speed {
        None => writeln!(
            text,
            "Each computes {speed} samples a second, as this machine does ({}).\n",
            tried.device
        ),
        Some(_) => writeln!(text, "Each computes {speed} samples a second.\n"),
    };
    let _ = writeln!(
        text,
        "  {:<26}{:>8}{:>11}{:>11}{:>8}{:>12}",
        "settings", "batches", "exchange", "round", "lost", "times one"
    );
    let best = ways.iter().map(|(_, f)| f.speed_up).fold(0.0, f64::max);
    for (words, f) in ways {
        let mark = if f.speed_up == best { "  <" } else { "" };
        let _ = writeln!(
            text,
            "  {words:<26}{:>8}{:>11}{:>11}{:>8}{:>12.2}{mark}",
            f.batches,
            seconds(f.exchange_seconds),
            seconds(f.round_seconds),
            human::percent(f.lost, 0),
            f.speed_up
        );
    }
    let advice = match best {
        ..=1.0 => {
            "One machine alone is as fast: a larger batch, a larger model for as many bytes, or faster lines would help."
        }
        _ => {
            "It counts samples. Late gradients and local steps cost some learning: take the first that is fast enough."
        }
    };
    let _ = writeln!(text, "\n{advice}");
    text
}

fn seconds(seconds: f64) -> String {
    match seconds {
        ..0.9995 => format!("{:.0} ms", seconds * 1e3),
        ..99.95 => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}
