//! `annulus bench`: what rounds, joining and memory cost on this machine and network.

mod learning;
mod tables;
mod wan;

use super::error::Error;
use super::machine;
use super::output;
use crate::bench::plan::{Pace, Plan, Role, WARM_UP};
use crate::bench::{allreduce, join, kernels, memory, peer, step};
use crate::task_factory::TaskFactory;
use crate::tasks::gpt::GptConfig;
use crate::tasks::gpt::presets::Preset;
use annulus_core::codec::Codec;
use annulus_core::optim::Moments;
use annulus_core::{Manifest, Topology};
use clap::Subcommand;
use clap::builder::TypedValueParser;
use serde::Serialize;
use std::io::{self, Read};
use std::num::NonZeroU32;
use std::path::PathBuf;
use tables::{allreduce_table, join_table, kernels_table, memory_table, step_table};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Measure this machine and network: the all-reduce, a newcomer's cost, memory, a training step.
///
/// Starts synthetic peers with the real protocol, real links and invented gradients. Nothing is written to disk. Stop other
/// programs first for good numbers.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The measurement.
    #[command(subcommand)]
    pub what: What,
}

const EXAMPLES: &str = "\
Examples:
  annulus bench allreduce --peers 4 --mib 64 --codec f32
  annulus bench allreduce --peers 4 --mib 16 --listen 0.0.0.0:4433 --rate-mbit 100
  annulus bench allreduce --join TICKET --rate-mbit 100
  annulus bench join
  annulus bench memory --json
  annulus bench step --task gpt --preset nano --device gpu
  annulus bench device --preset small
  annulus bench wan --line 100mbit/50ms
  annulus bench learning --task gpt --members 4 --until 2.2 batch=48 lr=4e-3 local_steps=4
";

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Time to sum a vector over the members, against the best that the machine or network can do.
    ///
    /// All members begin at the same moment by the clock; a round ends when the slowest member has the last piece.
    /// On several hosts (--listen on one, --join on the others) the clocks must agree to a small fraction of a round.
    Allreduce(Allreduce),
    /// Length of rounds while a newcomer joins.
    Join(Join),
    /// Memory of peers over many rounds, and while a newcomer joins.
    Memory(Memory),
    /// Time of a training step, compared with the same model made of Burn's own layers.
    ///
    /// Burn's side is the program annulus-stock, which `cargo build --release` puts beside this one. To compare with Burn's fusion
    /// and autotune, run `cargo build --release -p annulus-stock --features tuned --target-dir target/tuned`, then add
    /// --stock target/tuned/release/annulus-stock.
    Step(Step),
    /// Time of each operation on a device, compared with Burn's own, and its share of the device's best.
    ///
    /// The best is a copy of 1 GiB and a product of 4,096 x 4,096 matrices; on a software adapter 16 MiB and 512 x 512.
    #[command(alias = "kernels")]
    Device(Kernels),
    /// Batches that a run needs to reach a loss, by its settings and members.
    ///
    /// One process plays all members without links, so it takes as long as all of them together. The result is the same as that of
    /// real members, bit for bit.
    Learning(learning::Args),
    /// Whether training together pays off behind slow lines: one peer alone, several that sum every batch, and several that
    /// exchange as often as the lines allow.
    ///
    /// Runs the three one after the other on this machine, with emulated lines and slow devices. To predict a real network, give
    /// its measured line with --line, and the milliseconds that a sample takes there with --sample-at-least.
    Wan(wan::Args),
    /// Steps of a task, one for each line of standard input, as `bench step` starts it.
    #[command(hide = true)]
    Steps(Steps),
    /// One synthetic peer, as the others start it: its part is a line of JSON on standard input.
    #[command(hide = true)]
    Peer,
}

/// The vector.
#[derive(Debug, clap::Args)]
pub struct Vector {
    /// Bytes of the parameters, in MiB of f32.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=16384))]
    pub mib: u64,
    /// Bytes of the parameters in KiB, for short vectors.
    #[arg(long, conflicts_with = "mib", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub kib: Option<u64>,
    /// Number format on the wire: f32, f16, int8 or int4.
    #[arg(long, default_value = "f32")]
    pub codec: Codec,
    /// Elements in one piece.
    #[arg(long, default_value_t = Manifest::PIECE, value_parser = pieces())]
    pub piece: NonZeroU32,
    /// Write one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
}

fn pieces() -> impl TypedValueParser<Value = NonZeroU32> {
    let range = clap::value_parser!(u32).range(1..=1 << 20);
    range.try_map(NonZeroU32::try_from)
}

impl Vector {
    fn elements(&self) -> usize {
        self.kib.map_or(self.mib << 18, |kib| kib << 8) as usize
    }
}

/// Arguments of `annulus bench allreduce`.
#[derive(Debug, clap::Args)]
pub struct Allreduce {
    /// Members.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub peers: u16,
    /// The vector.
    #[command(flatten)]
    pub vector: Vector,
    /// Topology: ring or direct.
    #[arg(long, default_value = "ring")]
    pub topology: Topology,
    /// Rounds to measure.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub rounds: u64,
    /// Be one member of several hosts: listen here and, without --join, print a ticket and wait for the others.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Be one member of several hosts: join with the ticket that the first host printed, given as to `annulus join`. The other
    /// settings are those of the first host.
    #[arg(long, value_name = "TICKET")]
    pub join: Option<String>,
    /// Rate of each host's line in Mbit/s, to print how much of it was reached.
    #[arg(long, value_name = "MBIT")]
    pub rate_mbit: Option<f64>,
}

/// Arguments of `annulus bench join`.
#[derive(Debug, clap::Args)]
pub struct Join {
    /// Members before the newcomer.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=63))]
    pub members: u16,
    /// Bytes of the parameters, in MiB of f32. Adam's two vectors are there, too.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=16384))]
    pub mib: u64,
    /// How Adam's vectors are kept: f32 or 8bit.
    #[arg(long, default_value_t)]
    pub moments: Moments,
    /// Members that keep each part of them, under the direct plan (default: all keep all, in a ring).
    #[arg(long)]
    pub copies: Option<std::num::NonZeroU16>,
    /// Milliseconds that a contribution takes (it sleeps).
    #[arg(long, default_value_t = 300)]
    pub compute_ms: u64,
    /// Rounds before the newcomer comes, and after it is a member.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Write one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `annulus bench memory`.
#[derive(Debug, clap::Args)]
pub struct Memory {
    /// Members.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=63))]
    pub members: u16,
    /// Bytes of the large vector's parameters, in MiB of f32. Adam's two vectors are there, too.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=16384))]
    pub mib: u64,
    /// How Adam's vectors are kept: f32 or 8bit.
    #[arg(long, default_value_t)]
    pub moments: Moments,
    /// Members that keep each part of them, under the direct plan (default: all keep all).
    #[arg(long)]
    pub copies: Option<std::num::NonZeroU16>,
    /// Topology if every member keeps all of the state: ring or direct.
    #[arg(long, default_value = "ring", conflicts_with = "copies")]
    pub topology: Topology,
    /// Rounds with a vector of 4 KiB.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub rounds: u64,
    /// Rounds with the large vector, before a newcomer joins and after.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub large_rounds: u64,
    /// Write one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `annulus bench step`.
#[derive(Debug, clap::Args)]
pub struct Step {
    /// The task: gpt or digits.
    #[arg(long, default_value = "gpt", value_parser = ["gpt", "digits"])]
    pub task: String,
    /// The model's size, for gpt.
    #[arg(long, default_value = "nano")]
    pub preset: String,
    /// Where to compute: gpu (a software adapter if there is no other) or cpu; gpu+f16, whose products take halves,
    /// is measured beside gpu.
    #[arg(long, default_value = "gpu", value_parser = ["gpu", "gpu+f16", "cpu"])]
    pub device: String,
    /// Samples in a step; by default 12 for gpt, 64 for digits.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: Option<u32>,
    /// Steps before the measured ones.
    #[arg(long, default_value_t = 3)]
    pub warm_up: usize,
    /// Measured steps.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub steps: u64,
    /// The program annulus-stock; more than one may be given.
    #[arg(long, value_name = "FILE")]
    pub stock: Vec<PathBuf>,
    /// Write one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `annulus bench device`.
#[derive(Debug, clap::Args)]
pub struct Kernels {
    /// Where to compute: gpu, gpu:N or cpu; gpu+f16 to multiply halves.
    #[arg(long, default_value = "gpu")]
    pub device: String,
    /// The preset whose sizes are measured: pico, nano, micro, mini, small or gpt2.
    #[arg(long, default_value = "nano", value_parser = preset)]
    pub preset: Preset,
    /// Measurements of each, of which the median counts.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub repeats: u64,
    /// Write one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `annulus bench steps`.
#[derive(Debug, clap::Args)]
pub struct Steps {
    /// The task.
    pub task: String,
    /// Its settings, as JSON.
    pub config: String,
    /// The device.
    pub device: String,
    /// Samples in a step.
    pub batch: usize,
    /// Steps that the device takes itself.
    #[arg(long)]
    pub local: bool,
}

/// Measures what was asked for and prints it.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    match args.what {
        What::Allreduce(args) => run_allreduce(&args),
        What::Join(args) => {
            let report = join::measure(&join::Options {
                members: args.members,
                elements: (args.mib << 18) as usize,
                moments: args.moments,
                copies: args.copies,
                compute_ms: args.compute_ms,
                rounds: args.rounds as usize,
            });
            print(&report.map_err(Error::of)?, join_table, args.json)
        }
        What::Memory(args) => {
            let report = memory::measure(&memory::Options {
                members: args.members,
                elements: (args.mib << 18) as usize,
                moments: args.moments,
                copies: args.copies,
                topology: args.copies.map_or(args.topology, |_| Topology::Direct),
                small_rounds: args.rounds,
                large_rounds: args.large_rounds,
            });
            print(&report.map_err(Error::of)?, memory_table, args.json)
        }
        What::Step(args) => run_step(&args, tasks),
        What::Device(args) => {
            let repeats = args.repeats as usize;
            let report = kernels::measure(&args.device, args.preset, repeats, output::note);
            print(&report.map_err(Error::of)?, kernels_table, args.json)
        }
        What::Learning(args) => args.run(tasks),
        What::Wan(args) => args.run(),
        What::Steps(args) => Ok(step::serve(
            tasks,
            &args.task,
            &args.config,
            &args.device,
            (args.batch, args.local),
        )?),
        What::Peer => run_peer(),
    }
}

fn preset(name: &str) -> Result<Preset, serde_json::Error> {
    serde_json::from_value(name.into())
}

fn run_allreduce(args: &Allreduce) -> Result<(), Error> {
    let plan = Plan {
        peers: args.peers,
        elements: args.vector.elements(),
        codec: args.vector.codec,
        topology: args.topology,
        piece: args.vector.piece,
        adam: None,
        copies: None,
        pace: Pace::Slots,
        // The last round tells of the one before.
        rounds: Some(WARM_UP + args.rounds + 1),
    };
    let (role, listen) = match (&args.join, &args.listen) {
        (None, None) => {
            let report = allreduce::on_this_machine(&plan).map_err(Error::of)?;
            return print(&report, allreduce_table, args.vector.json);
        }
        (None, Some(listen)) => (Role::Found(plan), listen.clone()),
        (Some(ticket), listen) => {
            let any = || "[::]:0".to_owned();
            let ticket = super::ticket::read(ticket)?;
            (Role::Join(ticket), listen.clone().unwrap_or_else(any))
        }
    };
    let founds = args.join.is_none();
    // Nobody tells this one to leave: it stays until all rounds are done.
    let (_stay, leave) = unbounded_channel();
    let rate = args.rate_mbit.map(|mbit| mbit * 1e6);
    let report = block_on(allreduce::on_this_host(role, listen, rate, leave, |ticket| {
        if founds {
            say(&format!("ticket {ticket}"));
        }
    }))?;
    print(&report.map_err(Error::of)?, allreduce_table, args.vector.json)
}

fn run_step(args: &Step, tasks: &[TaskFactory]) -> Result<(), Error> {
    let task = tasks.iter().find(|task| task.name == args.task);
    let mut config = task
        .map(TaskFactory::settings)
        .ok_or_else(|| Error::usage(format!("this program has no task {}", args.task)))?;
    let batch = args.batch.unwrap_or(if args.task == "gpt" { 12 } else { 64 }) as usize;
    let (tokens, mut stock) = if args.task == "gpt" {
        config.insert("preset".to_owned(), args.preset.clone().into());
        let settings: GptConfig = serde_json::from_value(config.clone().into())
            .map_err(|error| Error::usage(format!("--preset {}: {error}", args.preset)))?;
        // Bytes.
        let shape = settings.shape(256).map_err(Error::usage)?;
        let sizes = [
            shape.vocabulary,
            shape.context,
            shape.width,
            shape.layers,
            shape.heads,
        ];
        let mut words = vec!["gpt".to_owned()];
        words.extend(sizes.map(|size| size.to_string()));
        words.push(u8::from(shape.bias).to_string());
        (shape.context, words)
    } else {
        (1, vec!["mlp".to_owned(), "128".to_owned()])
    };
    // What Burn's layers do not know, and the same of ours without it.
    let plain = args.device.strip_suffix("+f16").unwrap_or(&args.device);
    stock.extend([batch.to_string(), plain.to_owned()]);
    let this = std::env::current_exe().map_err(Error::of)?;
    let mut programs = args.stock.clone();
    let beside = this.with_file_name(format!("annulus-stock{}", std::env::consts::EXE_SUFFIX));
    if programs.is_empty() && beside.is_file() {
        programs.push(beside);
    }
    let config = serde_json::Value::from(config).to_string();
    let ours = |name: &str, device: &str, local: Option<&str>| {
        let count = batch.to_string();
        let arguments = ["bench", "steps", &args.task, &config, device, &count];
        step::Contestant {
            name: name.to_owned(),
            program: this.clone(),
            arguments: arguments.into_iter().chain(local).map(str::to_owned).collect(),
        }
    };
    let mut contestants = vec![ours("annulus", &args.device, None)];
    if plain != args.device {
        contestants.push(ours("annulus, all f32", plain, None));
    }
    if plain != "cpu" {
        contestants.push(ours("annulus, a local step", &args.device, Some("--local")));
    }
    for program in programs {
        let program = program.canonicalize().map_err(|error| {
            Error::usage(format!(
                "--stock {}: {error}; build it as `annulus bench step --help` says",
                program.display()
            ))
        })?;
        let about = std::process::Command::new(&program)
            .arg("about")
            .output()
            .map_err(Error::of)?;
        contestants.push(step::Contestant {
            name: String::from_utf8_lossy(&about.stdout).trim().to_owned(),
            program,
            arguments: stock.clone(),
        });
    }
    let options = step::Options {
        contestants,
        batch,
        tokens,
        warm_up: args.warm_up,
        steps: args.steps as usize,
    };
    let report = step::measure(&options, output::note);
    print(&report.map_err(Error::of)?, step_table, args.json)
}

fn run_peer() -> Result<(), Error> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(Error::of)?;
    let spec = serde_json::from_str(&line)
        .map_err(|_| Error::usage("`annulus bench peer` is for the other benchmarks, which start it"))?;
    let leave = end_of_input();
    block_on(peer::run(spec, leave, |told| {
        say(&serde_json::to_string(&told).expect("what peers tell is plain data"));
    }))?
    .map(drop)
    .map_err(Error::of)
}

/// Tells when standard input ends: whoever started this process wants it to leave, or is gone.
fn end_of_input() -> UnboundedReceiver<()> {
    let (end, ended) = unbounded_channel();
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while matches!(io::stdin().read(&mut rest), Ok(1..)) {}
        let _ = end.send(());
        // Kept, so that the receiver does not see it closed again and again.
        std::thread::park();
        drop(end);
    });
    ended
}

fn block_on<F: Future>(work: F) -> Result<F::Output, Error> {
    machine::block_on(work).map_err(Error::of)
}

/// Writes a line at once; if nobody reads any more, ends.
fn say(line: &str) {
    output::print(&format!("{line}\n"));
}

fn print<R: Serialize>(report: &R, table: fn(&R) -> String, json: bool) -> Result<(), Error> {
    say(table(report).trim_end());
    if json {
        say(&serde_json::to_string(report).map_err(Error::of)?);
    }
    Ok(())
}
