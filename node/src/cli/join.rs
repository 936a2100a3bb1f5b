//! `annulus join`: take part in a run.

use super::error::Error;
use super::exit::Exit;
use super::keys::KEYS;
use super::machine::block_on;
use super::messages::Role;
use super::nearby::{self, Wanted};
use super::output;
use super::settings::{self, Settings};
use super::ticket;
use super::train::LocalArgs;
use crate::net::nearby::code::Code;
use crate::options::JoinOptions;
use crate::participant::start;
use crate::task_factory::TaskFactory;
use std::path::PathBuf;

/// Take part in a run.
///
/// Any member's ticket will do. Without one, the runs that are told of on this network are listed, and the code that a member
/// of one shows lets in; a run that this machine took part in before needs none. Data that the run learns from and that is not
/// here is fetched from the members, and kept in the user's cache folder for the next time. The run goes on while this peer
/// catches up; it enters at the end of a round. Ctrl-C leaves after the current round; the others go on. The same command once
/// more goes on from what is in this peer's folder, as `annulus resume` does.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What a member of the run printed; @FILE: it is in that file; -: it comes on standard input. Others on this machine can
    /// read what a program was started with, but not those. Without it, runs on this network are looked for.
    pub ticket: Option<String>,
    /// Without a ticket: the run, as it is listed, or what it trains. Needed where there is nobody to ask and more than one.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// Without a ticket: the code that a member shows, as 12-345-678; @FILE and - as for a ticket.
    #[arg(long)]
    pub code: Option<String>,
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
  annulus join
  annulus join --code 12-345-678 --out run1
  annulus join TICKET --device gpu --data mnist/ --out run1
  annulus join @run1/ticket --keep-data
  annulus join - --out run1 < ticket
  annulus join TICKET --device cpu --listen 127.0.0.1:0 --log-format json checkpoint_every=100
";

/// By what it comes to a run.
#[derive(Clone, Debug, PartialEq)]
pub enum By {
    /// This ticket.
    Ticket(String),
    /// Whatever it finds on this network.
    Network(Wanted),
}

/// Takes part in the run until it is over, or the user stops it.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    let (by, settings) = read(&args, tasks)?;
    let (ticket, out) = match by {
        By::Ticket(ticket) => (ticket, None),
        By::Network(wanted) => {
            let chosen = nearby::choose(&wanted, args.local.out.as_deref())?;
            (chosen.ticket.to_string(), chosen.folder)
        }
    };
    let options = options(&args, ticket, out, &settings);
    let ending = output::tell(args.local.log(), Role::Newcomer, |sink| {
        Ok(block_on(start::join(options, tasks, sink))??)
    })?;
    Ok(Exit::of(ending))
}

/// What the arguments mean, before anybody is asked.
pub fn read(args: &Args, tasks: &[TaskFactory]) -> Result<(By, Settings), Error> {
    // Settings alone stand where a ticket would.
    let is_setting = |text: &&String| KEYS.iter().any(|key| text.starts_with(&format!("{}=", key.name)));
    let first = args.ticket.iter().filter(is_setting);
    let keys: Vec<String> = first.chain(&args.settings).cloned().collect();
    let settings = settings::read(None, &keys, None, tasks)?;
    if let Some(key) = settings.of_run {
        return Err(Error::usage(format!(
            "`{key}` is the same on all peers of a run and cannot be chosen when joining: leave it out"
        )));
    }
    let ticket = args.ticket.as_ref().filter(|text| !is_setting(text));
    let by = match ticket {
        Some(_) if args.code.is_some() || args.run.is_some() => {
            return Err(Error::usage(
                "a ticket says which run it is, and needs no code: leave out --run and --code, or the ticket",
            ));
        }
        Some(ticket) => By::Ticket(ticket::read(ticket)?),
        None => {
            let code = args.code.as_deref().map(ticket::read).transpose()?;
            let code = code.map(|text| text.parse::<Code>()).transpose();
            By::Network(Wanted {
                run: args.run.clone(),
                code: code
                    .map_err(|error| Error::usage(format!("{error}, as a member of the run shows it")))?,
            })
        }
    };
    Ok((by, settings))
}

/// The options that the arguments and a ticket mean, with a folder that has been found for it.
pub fn options(args: &Args, ticket: String, out: Option<PathBuf>, settings: &Settings) -> JoinOptions {
    // Named by the run, so that the same command finds it again.
    let usual = out.unwrap_or_else(|| PathBuf::from("runs").join(ticket::folder_name(&ticket)));
    JoinOptions {
        ticket,
        numbered: args.local.out.is_none(),
        local: args.local.to_local(usual, settings),
    }
}
