//! `annulus revoke`: takes a ticket back, through the peer of a run's folder.

use super::error::Error;
use super::invite::right_in;
use super::invited::{admissions, handed_out, ticket_name};
use super::{output, ticket};
use crate::participant::right::leave_revocation;
use annulus_core::invitation::Chain;
use annulus_core::{PeerId, RunId};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Take a ticket back.
///
/// Nobody can join with it any more, nor with tickets made from it, and peers that joined with one are put out after the next
/// round. Use the folder where `annulus invite` made the ticket, one that its rights came from, or the founder's. The peer of that
/// folder tells the others as soon as it runs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// The ticket (@FILE reads it from a file, - from standard input); its name, as `annulus invite --list` tells it; or the name of a
    /// peer that joined with it. At least the first eight digits of a name.
    #[arg(value_name = "TICKET|NAME")]
    pub what: String,
}

const EXAMPLES: &str = "\
Examples:
  annulus revoke runs/digits @ticket
  annulus revoke runs/digits 1f3a09c7
  annulus invite runs/digits --list
";

/// How long to wait until the run has heard of it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Fewest digits that name a peer: as many as are shown everywhere.
const DIGITS: usize = 8;

/// Has the run's members take back the ticket.
pub fn run(args: &Args) -> Result<(), Error> {
    let right = right_in(&args.dir)?;
    let root = right.ticket.root;
    let chain = match is_name(&args.what) {
        true => chain_of(&args.dir, root.run, &args.what.to_ascii_lowercase())?,
        false => {
            let ticket = ticket::parse(&args.what)?;
            if ticket.root != root {
                return Err(Error::failed("that ticket is for another run than this folder's"));
            }
            ticket.chain
        }
    };
    if chain == right.admission(root.key).chain {
        return Err(Error::failed(
            "this folder's own peer takes part with that ticket: it cannot take it back",
        ));
    }
    let revocation = right.invitation().revoke(root, chain).map_err(Error::of)?;
    let file = leave_revocation(&args.dir, &revocation, root).map_err(Error::of)?;
    let until = Instant::now() + PATIENCE;
    while file.exists() && Instant::now() < until {
        sleep(Duration::from_millis(100));
    }
    output::print(&match file.exists() {
        true => format!(
            "not revoked yet: the run hears of it when the peer of {} takes part as a member again\n",
            args.dir.display()
        ),
        false => "revoked: the run knows\n".to_owned(),
    });
    Ok(())
}

fn is_name(text: &str) -> bool {
    (DIGITS..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// The ticket of this name that was handed out in the folder, or that the peer of this name joined with last, by the ledger.
fn chain_of(dir: &Path, run: RunId, name: &str) -> Result<Chain, Error> {
    let mut handed = handed_out(dir).into_iter();
    if let Some(chain) = handed.rfind(|chain| ticket_name(chain, run).starts_with(name)) {
        return Ok(chain);
    }
    let mut found: Option<(PeerId, Chain)> = None;
    for (peer, chain) in admissions(dir)? {
        if !peer.to_hex().starts_with(name) {
            continue;
        }
        if found.as_ref().is_some_and(|(other, _)| *other != peer) {
            return Err(Error::failed(format!(
                "the names of several peers begin with {name}: write more digits"
            )));
        }
        found = Some((peer, chain));
    }
    let none = || {
        let dir = dir.display();
        Error::failed(format!(
            "{name} is neither a ticket nor the name of one, nor of a peer in the ledger of {dir}"
        ))
    };
    found.map(|(_, chain)| chain).ok_or_else(none)
}
