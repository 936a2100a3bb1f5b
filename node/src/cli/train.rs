//! `annulus train`: start a run.

mod dry_run;

use self::dry_run::{Plan, tell_plan};
use super::amounts::{bytes, milliseconds, peer_name, power, seconds, times, web_address};
use super::error::Error;
use super::exit::Exit;
use super::finish::take_part;
use super::keys;
use super::machine::block_on;
use super::messages;
use super::output::{self, Log, LogFormat};
use super::process;
use super::settings::{self, Settings};
use crate::options::{ActedSpeed, Hours, Local, Meet, Page, SplitRun, Start, TrainOptions, When};
use crate::participant::{start, try_out};
use crate::store::run_dir::RunDir;
use crate::task_factory::TaskFactory;
use annulus_core::invitation::Role;
use annulus_net::files::read_named;
use annulus_net::user_folders;
use std::fmt::Display;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest configuration that is read.
const CONFIG_LIMIT: usize = 1 << 20;

/// Start a run that others can join, or go on with one that has stopped.
///
/// The run starts at once with whoever is there. Others join whenever they like, with the ticket that is printed, and any peer may
/// leave, this one too. Ctrl-C leaves after the current round. Run the same command again to go on from the last checkpoint, as
/// `annulus resume` does.
#[derive(Debug, clap::Args)]
#[command(next_line_help = false)]
pub struct Args {
    /// The task to train.
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// What the run trains, in at most 80 characters: "Fairy tales by a small model". Pages and logs show it.
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "resume")]
    pub title: String,
    /// What for and by whom, in at most 500 characters. The page shows it to visitors.
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "resume")]
    pub about: String,
    /// Options of this peer.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Where the peers of this run meet, for clusters where nobody hands tickets on: run the same command on every machine. The
    /// first peer there founds the run and the others join it. WHERE is file:PATH (a file that all machines see),
    /// host:NAME:PORT (a machine that all can reach), or dns:NAME:PORT (a name with the addresses of all; more names after
    /// commas).
    #[arg(long, value_name = "WHERE")]
    pub meet: Option<Meet>,
    /// With host: or dns:, a file with the same secret on every machine. Anybody who knows the secret can take part.
    #[arg(long, value_name = "FILE", requires = "meet")]
    pub secret_file: Option<PathBuf>,
    /// Read settings from a TOML file. Settings on the command line override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print what the run would need, and do not start it.
    #[arg(long)]
    pub dry_run: bool,
    /// Settings, as `annulus help settings` lists them.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

/// Options of one peer, however it comes to take part.
#[derive(Debug, clap::Args)]
pub struct LocalArgs {
    /// Training data, a folder or a file. Without it the task generates its own data, and a peer that joins fetches the run's from
    /// another. Peers that hold a ticket and lack the data fetch it from this one.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Do not send the data to other peers: they must have it already.
    #[arg(long)]
    pub keep_data: bool,
    /// Folder for checkpoints and the ledger.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N, as `annulus doctor` lists them. Append +f16 (gpu+f16) to let
    /// a GPU multiply halves, by its matrix units if it has them. Gradients then differ by the rounding.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// How this peer calls itself, in at most 24 characters. The others see it beside the digits that they know it by.
    #[arg(long, value_name = "NAME", value_parser = peer_name)]
    pub name: Option<String>,
    /// UDP address to listen on, and TCP address for the page. A port alone means all addresses of this machine, IPv4 and IPv6;
    /// port 0 takes any free one.
    #[arg(long, value_name = "[HOST:]PORT", default_value = "0")]
    pub listen: String,
    /// Another address at which others can reach this peer. Can be given more than once.
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Vec<String>,
    /// Disable automatic port mapping (PCP, NAT-PMP, UPnP). Without this option, a router that gave this machine a private IPv4
    /// address is asked to forward a port until the peer ends.
    #[arg(long)]
    pub no_port_mapping: bool,
    /// Do not announce the run on this network. Without this option, `annulus join` without a ticket lists it there, and the code
    /// shown here lets people in. A run with --meet is not announced either.
    #[arg(long)]
    pub no_announce: bool,
    /// What a peer may do that joins with that code: watch, contribute or member, as in `annulus invite`.
    #[arg(long, value_name = "ROLE", default_value_t = Role::Contribute, conflicts_with = "no_announce")]
    pub code_role: Role,
    /// Let the process that started this one compute the gradients, at the other end of the Unix socket that is this one's standard
    /// input. `annulus.member` of the Python package does so with PyTorch. Such a peer evaluates nothing.
    #[arg(long, conflicts_with_all = ["slower", "sample_at_least", "sample_takes"])]
    pub external: bool,
    /// Pretend that the device is this many times slower, to see on one machine what a run of slow devices is like.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = times)]
    pub slower: f64,
    /// Pretend that the device takes this many milliseconds per sample, or longer if it needs longer: the same on any machine.
    /// Unlike with `sample_takes` its gradients are real.
    #[arg(long, value_name = "MS", hide = true, conflicts_with = "slower", value_parser = milliseconds)]
    pub sample_at_least: Option<Duration>,
    /// Compute nothing: take this many milliseconds per sample and contribute zeros, to see how links limit a run of machines
    /// that do not exist.
    #[arg(long, value_name = "MS", hide = true, conflicts_with_all = ["slower", "sample_at_least"], value_parser = milliseconds)]
    pub sample_takes: Option<Duration>,
    /// Pretend to be behind a line with this rate and round-trip time, such as 20mbit/50ms, to see on one machine what slow links
    /// do to a run.
    #[arg(long, value_name = "RATE/RTT")]
    pub line: Option<String>,
    /// Folder of the page on which browsers take part (default: where `cargo xtask browser` puts it).
    #[arg(long, value_name = "DIR")]
    pub page: Option<PathBuf>,
    /// A name under which browsers may visit the page. Can be given more than once. IP addresses, localhost, names in --advertise
    /// and names in the certificate of --tls-cert always work; the page does not answer to other names, as another site could
    /// use them to reach this machine.
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// Address of a copy of the page's files on another web server, such as https://example.org/train/. The link for others then
    /// leads there, where no browser warns of a certificate.
    #[arg(long, value_name = "URL", value_parser = web_address)]
    pub page_copy: Option<String>,
    /// Serve no page, and nothing else over HTTP.
    #[arg(long, conflicts_with_all = ["page", "tls_cert", "tls_key", "host", "page_copy"])]
    pub no_page: bool,
    /// The page's certificate chain, PEM. Without it this peer makes its own, which browsers warn about.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Fraction of time that the device may compute, between 0.01 and 1. It rests in between, and this peer's share of the run
    /// shrinks accordingly.
    #[arg(long, value_name = "PART", default_value = "1", value_parser = power)]
    pub power: f64,
    /// The most memory that this peer may take, such as 3G or 400M. Of a split model it then holds as many spans as fit; a whole
    /// model that does not fit is not started. Without it: the least of `ulimit -d`, the limit of the container, service or job,
    /// and what is free.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<u64>,
    /// The most disk for data fetched from other peers, such as 20G (default: 64 GiB). The least recently used data goes first;
    /// a run whose data is larger needs a copy by --data.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub cache: Option<u64>,
    /// Of a split model, the most spans that this peer holds, even if more fit.
    #[arg(long, value_name = "N")]
    pub spans: Option<NonZeroU16>,
    /// The most GPU memory for this peer's buffers, such as 4G or 800M. If a batch takes more, the device works on fewer samples at
    /// a time; if one sample does, the peer does not start. The driver takes some more.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub gpu_memory: Option<u64>,
    /// The most processor cores to use (Linux).
    #[arg(long, value_name = "N")]
    pub cores: Option<NonZeroUsize>,
    /// Compute only at these hours, such as 22-7 or 9:30-17, by this machine's clock. Outside of them the peer leaves the ring and
    /// frees the device; it comes back by itself.
    #[arg(long, value_name = "FROM-UNTIL")]
    pub hours: Option<Hours>,
    /// Compute only while this machine is plugged in (Linux).
    #[arg(long)]
    pub only_plugged_in: bool,
    /// Compute only while other processes use less than a quarter of this machine's processors (Linux).
    #[arg(long)]
    pub only_idle: bool,
    /// Niceness of the computing threads, from 0 (not nice) to 19 (Linux).
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u8).range(..=19))]
    pub nice: u8,
    /// How long leaving may take after Ctrl-C, SIGTERM or SIGUSR1, such as 25s or 2m. After that, or on a second signal, the peer
    /// ends at once, and its work since the last checkpoint is done again.
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = seconds)]
    pub leave_within: u64,
    /// How to log what happens.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Write the ticket into the JSON log too. Anybody who reads the log can then take part. The ticket is also in the file
    /// `ticket` of the run's folder, which only its owner can read.
    #[arg(long)]
    pub log_tickets: bool,
    /// Also write loss and scores into this folder, for TensorBoard: `tensorboard --logdir DIR`.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// The options among these that were typed and that the folder keeps.
    #[arg(skip)]
    pub typed: Vec<String>,
}

impl LocalArgs {
    /// How to log, and how much.
    pub fn log(&self) -> Log {
        Log {
            format: self.log_format,
            tickets: self.log_tickets,
            tensorboard: self.tensorboard.clone(),
        }
    }

    /// As options; `out` is the folder if none was given.
    pub fn to_local(&self, out: PathBuf, settings: &Settings) -> Local {
        settings.of_peer(Local {
            data: self.data.clone(),
            keep_data: self.keep_data,
            out: self.out.clone().unwrap_or(out),
            device: self.device.clone(),
            name: self.name.clone(),
            listen: self.listen.clone(),
            line: self.line.clone(),
            slower: (self.sample_at_least.map(ActedSpeed::Sample))
                .or((self.slower > 1.0).then_some(ActedSpeed::Times(self.slower))),
            external: self.external,
            sample_takes: self.sample_takes,
            advertise: self.advertise.clone(),
            map_port: !self.no_port_mapping,
            announce: (!self.no_announce).then_some(self.code_role),
            page: (!self.no_page).then(|| Page {
                dir: self.page.clone(),
                tls: self.tls_cert.clone().zip(self.tls_key.clone()),
                hosts: self.host.clone(),
                copy: self.page_copy.clone(),
            }),
            power: self.power,
            memory: self.memory,
            cache: self.cache,
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
            tally: user_folders::data(),
            kept: Some(self.typed.iter().chain(&settings.given).cloned().collect()),
            ..Local::default()
        })
    }
}

/// The end of the short help.
pub(super) const EXAMPLES: &str = "\
Examples:
  annulus train --data houses.csv target=price
  annulus train --data flowers/
  annulus train --task gpt --data words.txt rounds=2000
";

/// The end of the help: settings and examples.
pub(super) fn after_help(tasks: &[TaskFactory]) -> String {
    format!(
        "{}
A file for --config has the same keys, those of the task in a table:
  lr = 3e-4
  epochs = 10
  [task]
  name = \"digits\"
  model = \"cnn\"

Examples:
  annulus train
  annulus train --task digits --data mnist/ --out run1 optimizer=adam lr=1e-3 batch=64 epochs=5
  annulus train --task gpt --data shakespeare.txt vocabulary=characters
  annulus train --data houses.csv target=price
  annulus train --device gpu:1 --listen 4433 --advertise 203.0.113.7:4433 min_peers=2
  annulus train --config run.toml lr=1e-4 --dry-run
  annulus train --task gpt --meet file:/shared/words
  annulus train --task gpt --meet dns:trainers:4433 --secret-file secret
  annulus train --device cpu --listen 127.0.0.1:0 --log-format json rounds=100
",
        keys::help(tasks)
    )
}

/// Founds the run and takes part in it, or only prints what that would take.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    let options = options(&args, tasks)?;
    carry_out(&args, options, tasks)
}

/// Does what the options say, which the arguments mean.
pub(super) fn carry_out(args: &Args, options: TrainOptions, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    if args.dry_run {
        let (manifest, device) = try_out::plan(&options, tasks).map_err(Error::of)?;
        let plan = Plan::of(&manifest, &options.local, device);
        output::print(&tell_plan(&plan, &options, args.local.log_format));
        return Ok(Exit::Done);
    }
    let given = (args.local.data.as_deref(), tasks);
    let ending = take_part(args.local.log(), messages::Role::Founder, given, |sink| {
        let requests = process::prepare(&options.local)?;
        Ok(block_on(start::train(options, tasks, &requests, sink))??)
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
    let named = (args.task.as_deref(), args.local.data.as_deref());
    let mut settings = settings::read(toml.as_deref(), &args.settings, named, tasks)?;
    settings.run.title.clone_from(&args.title);
    settings.run.about.clone_from(&args.about);
    if args.meet.is_some() && settings.run.split != SplitRun::Off {
        return Err(Error::usage(
            "--meet does not go with a split model, since its founder measures how to split it: leave --meet out, and let the \
             others join with the ticket",
        ));
    }
    match (&args.meet, &args.secret_file) {
        (Some(Meet::Host(_) | Meet::Names(_)), None) => {
            return Err(Error::usage(
                "with --meet host: or dns: anybody could take part: put the same secret into a file on all machines, and name it \
                 with --secret-file FILE. `head -c 32 /dev/urandom | base64 > FILE` makes one",
            ));
        }
        (Some(Meet::File(_)), Some(_)) => {
            return Err(Error::usage(
                "--secret-file does not go with --meet file: anybody who can read that file may take part. Leave it out",
            ));
        }
        _ => {}
    }
    let usual = PathBuf::from("runs").join(&settings.run.task);
    let out = match args.local.out.is_none() && args.meet.is_none() && !args.dry_run {
        true => free_folder(usual),
        false => usual,
    };
    let mut local = args.local.to_local(out, &settings);
    if args.meet.is_some() {
        // In a cluster nobody reads the code, and hundreds of peers would announce the run.
        local.announce = None;
    }
    Ok(TrainOptions {
        local,
        start: match args.meet.clone() {
            Some(meet) => Start::Meet(Box::new(settings.run), meet, args.secret_file.clone()),
            None => Start::New(Box::new(settings.run)),
        },
    })
}

/// The usual folder, or the first with a number behind its name that has no run yet.
fn free_folder(usual: PathBuf) -> PathBuf {
    let is_taken = |folder: &Path| RunDir::is_begun(folder).unwrap_or(false);
    if !is_taken(&usual) {
        return usual;
    }
    let numbered = |number: u32| PathBuf::from(format!("{}-{number}", usual.display()));
    let free = (2..=MOST_FOLDERS).map(numbered).find(|folder| !is_taken(folder));
    let free = free.unwrap_or_else(|| usual.clone());
    output::note(&format!(
        "note: {} holds an earlier run, which annulus resume goes on with; this one goes into {}",
        usual.display(),
        free.display()
    ));
    free
}

/// Runs of one task in their usual folders, at most; a guess.
const MOST_FOLDERS: u32 = 1_000;
