//! `annulus train`: start a run, or go on with one.

mod dry_run;

use self::dry_run::{Plan, tell_plan};
use super::amounts::{bytes, milliseconds, power, times};
use super::error::Error;
use super::exit::Exit;
use super::invite;
use super::keys;
use super::machine::block_on;
use super::messages;
use super::output::{self, Log, LogFormat};
use super::settings::{self, Settings};
use crate::options::{ActedSpeed, Hours, Local, Meet, Page, SplitRun, Start, TrainOptions, When};
use crate::participant::{run_setup, start};
use crate::store::files::read_named;
use crate::task_factory::TaskFactory;
use annulus_core::invitation::Role;
use std::fmt::Display;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

/// Longest configuration that is read.
const CONFIG_LIMIT: usize = 1 << 20;

/// Start a run that others can join, or go on with one that has stopped.
///
/// The run goes on at once, with whoever is there; others join whenever they like, and it does not matter who leaves,
/// this peer included. What it needs to join is printed as a ticket. Ctrl-C leaves the run after the current round. The
/// same command once more goes on with the run from its last checkpoint, as `annulus resume` does.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help(), next_line_help = false)]
pub struct Args {
    /// What to train: `digits` (handwritten digits) or `gpt` (a small language model), for example.
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// What concerns this peer alone.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Meet the run's other peers there: the same command on every machine, in any order and again after a stop. Whoever
    /// comes first founds the run, the others join it. WHERE is file:PATH, a file that all machines see; host:NAME:PORT, a
    /// machine that all can reach; or dns:NAME:PORT, a name that has the addresses of all (several names with commas between
    /// them do too).
    #[arg(long, value_name = "WHERE", conflicts_with = "resume")]
    pub meet: Option<Meet>,
    /// With host: or dns:, a file with the same secret on every machine: whoever knows it may take part.
    #[arg(long, value_name = "FILE", requires = "meet")]
    pub secret_file: Option<PathBuf>,
    /// Go on with the run whose checkpoints are in DIR, with its settings.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["task", "out"])]
    pub resume: Option<PathBuf>,
    /// Read settings from a TOML file; those on the command line win.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Split the model over the peers: the same as the setting `split`, off, auto, a number of spans, or the steps of each.
    #[arg(long, value_name = "off|auto|N|A+B+..")]
    pub split: Option<String>,
    /// With --split, how many peers hold each span: the same as the setting `copies`.
    #[arg(long, value_name = "N")]
    pub copies: Option<String>,
    /// With --split, how activations travel: the same as the setting `boundary`.
    #[arg(long, value_name = "f32|f16|int8")]
    pub boundary: Option<String>,
    /// Say what the run would need, and do not start it.
    #[arg(long)]
    pub dry_run: bool,
    /// Settings, as listed below.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

/// Options of one peer, however it comes to take part.
#[derive(Debug, clap::Args)]
pub struct LocalArgs {
    /// Training data, a folder or a file. Without it the task makes its own; a peer that joins fetches the run's from
    /// another. What the task reads of it is handed to whoever holds a ticket and lacks it.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Hand the data to nobody: whoever joins has to have it already.
    #[arg(long)]
    pub keep_data: bool,
    /// Folder for checkpoints and the ledger.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N, as `annulus doctor` lists them. With +f16 behind it (gpu+f16), linear
    /// layers keep their weights as halves on the GPU: less to load, and gradients that differ by the rounding.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// UDP address to listen on, and TCP address for the page. A port alone means all of this machine's addresses, IPv4 and
    /// IPv6; port 0 takes any free one.
    #[arg(long, value_name = "[HOST:]PORT", default_value = "0")]
    pub listen: String,
    /// Another address under which others can reach this peer. May be given more than once.
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Vec<String>,
    /// Ask no router to pass a port on. Else one that has given this machine a private IPv4 address is asked, by PCP,
    /// NAT-PMP or UPnP, and told at the end that it need not any more.
    #[arg(long)]
    pub no_port_mapping: bool,
    /// Do not tell others on this network of the run. Else they find it by `annulus join` without a ticket, and come in by the
    /// code that is shown here. A run whose peers meet by themselves (--meet) is not told of either.
    #[arg(long)]
    pub no_announce: bool,
    /// What whoever comes in by that code may do, as in `annulus invite`.
    #[arg(long, value_name = "ROLE", default_value_t = Role::Contribute, conflicts_with = "no_announce")]
    pub code_role: Role,
    /// Seem to have a device that is so many times slower: to see on one machine what a run of slow ones is like.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = times)]
    pub slower: f64,
    /// Seem to have a device that takes so many milliseconds for each sample, or as long as it needs if that is longer: the
    /// same on whatever machine. Unlike with `sample_takes` its gradients are real.
    #[arg(long, value_name = "MS", hide = true, conflicts_with = "slower", value_parser = milliseconds)]
    pub sample_at_least: Option<Duration>,
    /// Compute nothing: take so many milliseconds for each sample and contribute zeros, to see what links make of a run of
    /// machines that are not there.
    #[arg(long, value_name = "MS", hide = true, conflicts_with_all = ["slower", "sample_at_least"], value_parser = milliseconds)]
    pub sample_takes: Option<Duration>,
    /// Seem to be behind a line of this rate and round-trip time, such as 20mbit/50ms: to see on one machine what slow
    /// links do to a run.
    #[arg(long, value_name = "RATE/RTT")]
    pub line: Option<String>,
    /// Folder of the page on which browsers take part; without it, where `cargo xtask browser` puts it.
    #[arg(long, value_name = "DIR")]
    pub page: Option<PathBuf>,
    /// A name under which browsers may visit the page. May be given more than once. Addresses, localhost, names in
    /// --advertise and what an authority's certificate (--tls-cert) proves are taken anyway; other names are not answered
    /// to, as they may be another site's that leads here.
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// Serve no page, and nothing else over HTTP.
    #[arg(long, conflicts_with_all = ["page", "tls_cert", "tls_key", "host"])]
    pub no_page: bool,
    /// The page's certificate chain, PEM; without it this peer makes one, which browsers ask about.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// For how much of the time this peer's device computes: 0.3 is three tenths. In between it rests, and the peer's share
    /// of the run is smaller for it.
    #[arg(long, value_name = "PART", default_value = "1", value_parser = power)]
    pub power: f64,
    /// The most memory that this peer gives, such as 3GB or 400MB: of a model that is split it takes as many spans as fit, and
    /// a whole model that does not fit is not begun. Without it, what its user's limits (`ulimit -d`) allow, or what is free.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Of a model that is split, hold so many spans at most, also where there is room for more.
    #[arg(long, value_name = "N")]
    pub spans: Option<NonZeroU16>,
    /// The most that this peer's buffers may take of the GPU's memory, such as 4GB or 800MB. Where a batch takes more, it
    /// works on fewer samples at a time; where one sample does, it does not start. Drivers take something besides.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub gpu_memory: Option<u64>,
    /// Keep to so many cores of the processor (Linux).
    #[arg(long, value_name = "N")]
    pub cores: Option<NonZeroUsize>,
    /// Compute at these hours alone, as 22-7 or 9:30-17, by the clock of this machine. Outside of them the peer leaves the
    /// ring, frees the device, and comes back by itself.
    #[arg(long, value_name = "FROM-UNTIL")]
    pub hours: Option<Hours>,
    /// Compute only while this machine is plugged in (Linux).
    #[arg(long)]
    pub only_plugged_in: bool,
    /// Compute only while other processes take less than a quarter of this machine's processors (Linux).
    #[arg(long)]
    pub only_idle: bool,
    /// How far computing stands back behind other processes: 0 is not at all, 19 the most (Linux).
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u8).range(..=19))]
    pub nice: u8,
    /// How long leaving may take once the peer is asked to (Ctrl-C, SIGTERM, SIGUSR1): as 25s or 2m. After that, or when it
    /// is asked a second time, it goes at once, and what it did since its last checkpoint is done again.
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = invite::seconds)]
    pub leave_within: u64,
    /// How to tell what happens.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Write the ticket into the JSON log too: whoever reads the log can then take part. It also lies in the file `ticket`
    /// of the run's folder, which only its owner can read.
    #[arg(long)]
    pub log_tickets: bool,
}

impl LocalArgs {
    /// How to tell what happens, and how much of it.
    pub fn log(&self) -> Log {
        Log {
            format: self.log_format,
            tickets: self.log_tickets,
        }
    }

    /// As options, with a folder for the case that none was given.
    pub fn to_local(&self, out: PathBuf, settings: &Settings) -> Local {
        Local {
            data: self.data.clone(),
            keep_data: self.keep_data,
            out: self.out.clone().unwrap_or(out),
            device: self.device.clone(),
            listen: self.listen.clone(),
            line: self.line.clone(),
            slower: (self.sample_at_least.map(ActedSpeed::Sample))
                .or((self.slower > 1.0).then_some(ActedSpeed::Times(self.slower))),
            sample_takes: self.sample_takes,
            advertise: self.advertise.clone(),
            map_port: !self.no_port_mapping,
            announce: (!self.no_announce).then_some(self.code_role),
            page: (!self.no_page).then(|| Page {
                dir: self.page.clone(),
                tls: self.tls_cert.clone().zip(self.tls_key.clone()),
                hosts: self.host.clone(),
            }),
            checkpoint_every: settings.checkpoint_every,
            keep: settings.keep,
            eval_every: settings.eval_every,
            power: self.power,
            memory: self.memory,
            spans: self.spans,
            gpu_memory: self.gpu_memory,
            cores: self.cores,
            leave_within: Duration::from_secs(self.leave_within),
            when: When {
                hours: self.hours,
                plugged_in: self.only_plugged_in,
                idle: self.only_idle,
            },
            nice: self.nice,
        }
    }
}

fn after_help() -> String {
    format!(
        "{}
A file for --config has the same keys, the task's in a table:
  lr = 3e-4
  epochs = 10
  [task]
  name = \"digits\"
  model = \"cnn\"

Examples:
  annulus train
  annulus train --task digits --data mnist/ --out run1 optimizer=adam lr=1e-3 batch=64 epochs=5
  annulus train --task gpt --data shakespeare.txt vocabulary=characters
  annulus train --device gpu:1 --listen 4433 --advertise 203.0.113.7:4433 min_peers=2
  annulus train --config run.toml lr=1e-4 --dry-run
  annulus train --resume run1
  annulus train --task gpt --meet file:/shared/words
  annulus train --task gpt --meet dns:trainers:4433 --secret-file secret
  annulus train --device cpu --listen 127.0.0.1:0 --log-format json rounds=100
",
        keys::help()
    )
}

/// Founds the run and takes part in it, or only says what that would take.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    let options = options(&args, tasks)?;
    if args.dry_run {
        let (manifest, device) = run_setup::plan(&options, tasks).map_err(Error::of)?;
        let plan = Plan::of(&manifest, &options.local, device);
        output::print(&tell_plan(&plan, &options, args.local.log_format));
        return Ok(Exit::Done);
    }
    let ending = output::tell(args.local.log(), messages::Role::Founder, |sink| {
        Ok(block_on(start::train(options, tasks, sink))??)
    })?;
    Ok(Exit::of(ending))
}

/// The options that the arguments mean. Reads the configuration file, if one is named.
pub fn options(args: &Args, tasks: &[TaskFactory]) -> Result<TrainOptions, Error> {
    let toml = match &args.config {
        None => None,
        Some(path) => {
            let failed = |why: &dyn Display| {
                Error::failed(format!(
                    "cannot read the configuration: {why}. Check the path after --config"
                ))
            };
            let bytes = read_named(path, CONFIG_LIMIT).map_err(|error| failed(&error))?;
            Some(String::from_utf8(bytes).map_err(|error| failed(&error))?)
        }
    };
    let flags = [
        ("split", &args.split),
        ("copies", &args.copies),
        ("boundary", &args.boundary),
    ];
    let flags = flags
        .iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
    let words: Vec<String> = args.settings.iter().cloned().chain(flags).collect();
    let settings = settings::read(toml.as_deref(), &words, args.task.as_deref(), tasks)?;
    if args.meet.is_some() && settings.run.split != SplitRun::Off {
        return Err(Error::usage(
            "how a model is cut is measured by whoever begins the run, so not all can begin it by the same command: leave --meet \
             out, and have the others join by the ticket",
        ));
    }
    match (&args.meet, &args.secret_file) {
        (Some(Meet::Host(_) | Meet::Names(_)), None) => {
            return Err(Error::usage(
                "with --meet host: or dns: anybody could come: give all machines the same secret in a file, and name it with \
                 --secret-file FILE. `head -c 32 /dev/urandom | base64 > FILE` makes one",
            ));
        }
        (Some(Meet::File(_)), Some(_)) => {
            return Err(Error::usage(
                "with --meet file: whoever can read the file may take part: leave --secret-file out",
            ));
        }
        _ => {}
    }
    let Some(dir) = &args.resume else {
        let out = PathBuf::from("runs").join(&settings.run.task);
        let mut local = args.local.to_local(out, &settings);
        if args.meet.is_some() {
            // Nobody there reads a code, and of hundreds each would tell.
            local.announce = None;
        }
        return Ok(TrainOptions {
            local,
            start: match args.meet.clone() {
                Some(meet) => Start::Meet(Box::new(settings.run), meet, args.secret_file.clone()),
                None => Start::New(Box::new(settings.run)),
            },
        });
    };
    if let Some(key) = settings.of_run {
        return Err(Error::usage(format!(
            "`{key}` cannot change in a run that has begun: leave it out, or start a new run without --resume"
        )));
    }
    Ok(TrainOptions {
        local: args.local.to_local(dir.clone(), &settings),
        start: Start::Resume(dir.clone()),
    })
}
