//! `annulus resume`: go on with a run from its folder.

use super::error::Error;
use super::exit::Exit;
use super::finish::take_part;
use super::machine::block_on;
use super::messages::Role;
use super::process;
use super::settings;
use super::train::LocalArgs;
use crate::options::{Start, TrainOptions};
use crate::participant::start;
use crate::task_factory::TaskFactory;
use std::path::PathBuf;

/// Go on with a run that was started or joined in a folder.
///
/// The peer keeps its name and, if it is free, its port; earlier tickets stay valid. It also keeps the options that were typed
/// before, in the file `options` of its folder; those that you type now win. Paths, such as --page, are not kept. The peer looks
/// for the others where they were. If nobody is there it goes on alone, and peers that come later follow the one that is furthest.
/// The same `annulus train` or `annulus join` command as before does the same, with the options that it names.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// Options of this peer.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Settings of this peer: eval_every, checkpoint_every, keep and keep_best, as in `annulus train --help`.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  annulus resume run1
  annulus resume run1 --device gpu checkpoint_every=100
";

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
