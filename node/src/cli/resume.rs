//! `annulus resume`: go on with a run from its folder.

use super::error::Error;
use super::exit::Exit;
use super::finish::take_part;
use super::kept::{self, Kept};
use super::machine::block_on;
use super::messages::Role;
use super::train::LocalArgs;
use super::{Cli, Command, output, parser, process, settings};
use crate::options::{Start, TrainOptions};
use crate::participant::start;
use crate::store::options_file;
use crate::task_factory::TaskFactory;
use annulus_net::printable::printable_line;
use std::ffi::OsString;
use std::path::PathBuf;

/// Go on with a run that was started or joined in a folder.
///
/// The peer keeps its name and, if it is free, its port; earlier tickets stay valid. It also keeps the options that were typed
/// before, in the file `options` of its folder; those that you type now win. Type paths again, such as --page, and what opens this
/// machine to others or fills its disk: --listen, --advertise, --host, --code-role and keep. The peer looks for the others where they
/// were. If nobody is there it goes on alone, and peers that come later follow the one that is furthest.
/// The same `annulus train` or `annulus join` command as before does the same, with the options that it names.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// Options of this peer.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Settings of this peer: eval_every, checkpoint_every, keep, keep_ledger and keep_best, as in `annulus train --help`.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  annulus resume run1
  annulus resume run1 --device gpu checkpoint_every=100
";

/// The same command, with the options of its folder if it goes on there. Those that are typed win.
pub fn with_kept(cli: Cli, args: &[OsString], tasks: &[TaskFactory]) -> Result<Cli, Error> {
    let Command::Resume(Args { dir, .. }) = &cli.command else {
        return Ok(cli);
    };
    let Kept { taken, left } = kept::read(dir)?;
    let path = options_file::path(dir);
    let tell = |words: &[String], before: &str, after: &str| {
        if !words.is_empty() {
            let words = printable_line(&words.join(" "), kept::SHOWN);
            output::note(&format!("{before} {}: {words}{after}", path.display()));
        }
    };
    tell(
        &left,
        "not taken from",
        ". They would open this machine to others or fill its disk, and a folder may come from somebody else: type them if you \
         want them",
    );
    let Some(at) = args
        .iter()
        .position(|arg| arg == "resume")
        .filter(|_| !taken.is_empty())
    else {
        return Ok(cli);
    };
    let (options, settings): (Vec<String>, Vec<String>) =
        taken.iter().cloned().partition(|word| word.starts_with("--"));
    let mut args = args.to_vec();
    args.splice(at + 1..at + 1, options.into_iter().map(OsString::from));
    let mut cli = parser::parse_with_kept(&args, "resume", tasks).map_err(|error| {
        let problem = parser::explain(&error, &args, tasks);
        Error::usage(format!(
            "with the options that {} keeps: {problem} You may change that file, or remove it.",
            path.display()
        ))
    })?;
    // Settings stand behind the folder.
    if let Command::Resume(Args { settings: typed, .. }) = &mut cli.command {
        typed.splice(0..0, settings);
    }
    tell(&taken, "with the options kept in", "");
    Ok(cli)
}

/// Goes on with the run.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    let options = options(&args, tasks)?;
    let data = args.local.data.clone();
    let ending = take_part(
        args.local.log(),
        Role::Founder,
        (data.as_deref(), tasks),
        |sink| {
            let requests = process::prepare(&options.local)?;
            Ok(block_on(start::train(options, tasks, &requests, sink))??)
        },
    )?;
    Ok(Exit::of(ending))
}

/// The options that the arguments mean.
pub fn options(args: &Args, tasks: &[TaskFactory]) -> Result<TrainOptions, Error> {
    if args.local.out.is_some() {
        return Err(Error::usage("a run goes on in its own folder: leave --out out"));
    }
    let settings = settings::read(None, &args.settings, (None, None), tasks)?;
    if let Some(key) = settings.of_run {
        return Err(Error::usage(format!(
            "`{key}` cannot change in a run that has begun: leave it out, or start a new run with `annulus train`"
        )));
    }
    Ok(TrainOptions {
        local: args.local.to_local(args.dir.clone(), &settings),
        start: Start::Resume(args.dir.clone()),
    })
}
