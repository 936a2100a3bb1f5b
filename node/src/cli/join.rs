//! `annulus join`: take part in a run.

use super::error::Error;
use super::exit::Exit;
use super::finish::take_part;
use super::keys::KEYS;
use super::machine::block_on;
use super::messages::Role;
use super::nearby::{self, Wanted};
use super::process;
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
/// Use any member's ticket. Without a ticket, the runs announced on this network are listed, and the code that a member shows lets
/// you in; a run that this machine took part in before needs no code. If the run's data is not here, members send it, and it is
/// kept in your cache folder. The run goes on while this peer catches up and enters at the end of a round. Ctrl-C leaves after the
/// current round. Run the same command again to go on from this peer's folder, as `annulus resume` does.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The ticket that a member printed. @FILE reads it from a file and - from standard input, so that other users of this machine
    /// do not see it in the list of processes. Without a ticket, join looks for runs on this network.
    pub ticket: Option<String>,
    /// Without a ticket: the run, by its name in the list or by its task. Needed if there are several runs and no terminal.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// Without a ticket: the code that a member shows, such as 12-345-678; @FILE and - as for a ticket.
    #[arg(long)]
    pub code: Option<String>,
    /// Options of this peer.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Settings of this peer: eval_every, checkpoint_every, keep, keep_ledger and keep_best, as in `annulus train --help`.
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

/// How it comes to a run.
#[derive(Clone, Debug, PartialEq)]
pub enum By {
    /// This ticket.
    Ticket(String),
    /// As it finds runs on this network.
    Network(Wanted),
}

/// Takes part in the run until it is over, or the user stops it.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    let (by, settings) = read(&args, tasks)?;
    let (ticket, out) = match by {
        By::Ticket(ticket) => (ticket::parse(&ticket)?.to_string(), None),
        By::Network(wanted) => {
            let chosen = nearby::choose(&wanted, args.local.out.as_deref())?;
            (chosen.ticket.to_string(), chosen.folder)
        }
    };
    let options = options(&args, ticket, out, &settings);
    let data = args.local.data.clone();
    let ending = take_part(
        args.local.log(),
        Role::Newcomer,
        (data.as_deref(), tasks),
        |sink| {
            let requests = process::prepare(&options.local)?;
            Ok(block_on(start::join(options, tasks, &requests, sink))??)
        },
    )?;
    Ok(Exit::of(ending))
}

/// The meaning of the arguments, before the network is asked.
pub fn read(args: &Args, tasks: &[TaskFactory]) -> Result<(By, Settings), Error> {
    // Settings alone stand where a ticket would, and the words of a pasted line where settings would.
    let is_setting = |text: &&String| KEYS.iter().any(|key| text.starts_with(&format!("{}=", key.name)));
    let words = args.ticket.iter().chain(&args.settings);
    let is_pasted = words.clone().any(|word| ticket::is_in(word));
    let (keys, pasted): (Vec<String>, Vec<String>) = args
        .settings
        .iter()
        .cloned()
        .partition(|word| !is_pasted || word.contains('='));
    let keys: Vec<String> = args
        .ticket
        .iter()
        .filter(is_setting)
        .cloned()
        .chain(keys)
        .collect();
    let settings = settings::read(None, &keys, (None, None), tasks)?;
    if let Some(key) = settings.of_run {
        return Err(Error::usage(format!(
            "`{key}` is the same on all peers of a run, and fixed when it begins: leave it out"
        )));
    }
    let first = args.ticket.iter().filter(|text| !is_setting(text));
    let words: Vec<&str> = first.chain(&pasted).map(String::as_str).collect();
    let ticket = (!words.is_empty()).then(|| words.join(" "));
    let by = match &ticket {
        Some(_) if args.code.is_some() || args.run.is_some() => {
            return Err(Error::usage(
                "a ticket names its run and needs no code: leave out --run and --code, or the ticket",
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
