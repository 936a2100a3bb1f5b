//! `annulus join`: take part in a run.

use super::error::Error;
use super::exit::Exit;
use super::keys::KEYS;
use super::machine::block_on;
use super::messages::Role;
use super::output;
use super::settings;
use super::ticket;
use super::train::LocalArgs;
use crate::options::JoinOptions;
use crate::participant::start;
use crate::task_factory::TaskFactory;
use std::path::PathBuf;

/// Take part in a run.
///
/// Any member's ticket will do. Data that the run learns from and that is not here is fetched from the members, and kept
/// in the user's cache folder for the next time. The run goes on while this peer catches up; it enters at the end of a
/// round. Ctrl-C leaves after the current round; the others go on. The same command once more goes on from what is in this
/// peer's folder, as `annulus resume` does.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What a member of the run printed; @FILE: it is in that file; -: it comes on standard input. Others on this machine can
    /// read what a program was started with, but not those.
    pub ticket: String,
    /// What concerns this peer alone.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Settings of this peer: eval_every, checkpoint_every and keep, as in `annulus train --help`.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  annulus join TICKET
  annulus join TICKET --device gpu --data mnist/ --out run1
  annulus join @run1/ticket --keep-data
  annulus join - --out run1 < ticket
  annulus join TICKET --device cpu --listen 127.0.0.1:0 --log-format json checkpoint_every=100
";

/// Does it.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    let options = options(&args, tasks)?;
    let ending = output::tell(args.local.log(), Role::Newcomer, |sink| {
        Ok(block_on(start::join(options, tasks, sink))??)
    })?;
    Ok(Exit::of(ending))
}

/// The options that the arguments mean.
pub fn options(args: &Args, tasks: &[TaskFactory]) -> Result<JoinOptions, Error> {
    if args.ticket.contains('=')
        && KEYS
            .iter()
            .any(|key| args.ticket.starts_with(&format!("{}=", key.name)))
    {
        return Err(Error::usage(
            "the ticket is missing: write it first, as in `annulus join TICKET --device cpu`",
        ));
    }
    let settings = settings::read(None, &args.settings, None, tasks)?;
    if let Some(key) = settings.of_run {
        return Err(Error::usage(format!(
            "`{key}` is the same on all peers of a run and cannot be chosen when joining: leave it out"
        )));
    }
    let ticket = ticket::read(&args.ticket)?;
    // Named by the run, so that the same command finds it again.
    let usual = PathBuf::from("runs").join(ticket::folder_name(&ticket));
    Ok(JoinOptions {
        ticket,
        numbered: args.local.out.is_none(),
        local: args.local.to_local(usual, &settings),
    })
}
