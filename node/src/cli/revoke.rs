//! `annulus revoke`: takes a ticket back, through the peer of a run's folder.

use super::error::Error;
use super::invite::right_in;
use super::output;
use super::ticket;
use crate::net::ticket::Ticket;
use crate::participant::right::leave_revocation;
use crate::store::ledger_file::Entry;
use crate::store::run_dir::RunDir;
use annulus_core::PeerId;
use annulus_core::invitation::Chain;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Take a ticket back.
///
/// It lets in nobody any more, nor does what was made from it, and who came by either is out after the next round. This
/// folder must be above it: the one where `annulus invite` made it, or where what it was made from came from; or where the
/// run was founded. The peer that runs there tells the others; if none does, it tells them when it runs again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// The ticket (@FILE: it is in that file; -: it comes on standard input), or the name of a peer that came by it, or its
    /// first eight or more digits.
    #[arg(value_name = "TICKET|NAME")]
    pub what: String,
}

const EXAMPLES: &str = "\
Examples:
  annulus revoke runs/digits @ticket
  annulus revoke runs/digits 1f3a09c7
";

/// How long the run may take to hear of it, before that is told.
const PATIENCE: Duration = Duration::from_secs(15);

/// Fewest digits by which a peer is named: as many as are shown everywhere.
const DIGITS: usize = 8;

/// Has the run's members take back the ticket.
pub fn run(args: &Args) -> Result<(), Error> {
    let right = right_in(&args.dir)?;
    let root = right.ticket.root;
    let chain = match is_name(&args.what) {
        true => chain_of(&args.dir, &args.what.to_ascii_lowercase())?,
        false => {
            let ticket: Ticket = ticket::read(&args.what)?.parse().map_err(Error::of)?;
            if ticket.root != root {
                return Err(Error::failed("that ticket is of another run than this folder"));
            }
            ticket.chain
        }
    };
    if chain == right.admission(root.key).chain {
        return Err(Error::failed("that is by what this folder's own peer takes part"));
    }
    let revocation = right.invitation().revoke(root, chain).map_err(Error::of)?;
    let file = leave_revocation(&args.dir, &revocation, root).map_err(Error::of)?;
    let until = Instant::now() + PATIENCE;
    while file.exists() && Instant::now() < until {
        sleep(Duration::from_millis(100));
    }
    output::print(&match file.exists() {
        true => format!(
            "The run has not heard of it yet: it does once the peer of {} takes part as a member again.\n",
            args.dir.display()
        ),
        false => "Revoked: the run knows.\n".to_owned(),
    });
    Ok(())
}

fn is_name(text: &str) -> bool {
    (DIGITS..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// What the peer of this name came by last, as the folder's ledger tells.
fn chain_of(dir: &Path, name: &str) -> Result<Chain, Error> {
    let run = RunDir::open(dir).map_err(Error::of)?;
    let mut found: Option<(PeerId, Chain)> = None;
    let mut see = |peer: PeerId, chain: &Chain| {
        if !peer.to_hex().starts_with(name) {
            return Ok(());
        }
        if found.as_ref().is_some_and(|(other, _)| *other != peer) {
            return Err(Error::failed(format!(
                "{name} begins the names of several peers: write more of it"
            )));
        }
        found = Some((peer, chain.clone()));
        Ok(())
    };
    for entry in run.entries().map_err(Error::of)? {
        match entry.map_err(Error::of)? {
            Entry::Base { head, .. } => {
                for member in &head.members {
                    see(member.peer, &member.admission.chain)?;
                }
            }
            Entry::Round { record, .. } => {
                for newcomer in record.headers.iter().flat_map(|header| &header.ready) {
                    see(newcomer.peer(), &newcomer.admission.chain)?;
                }
            }
            Entry::Continued { founder } => see(founder.member.peer, &founder.member.admission.chain)?,
        }
    }
    let none = || {
        let dir = dir.display();
        Error::failed(format!(
            "the ledger in {dir} knows nobody of the name {name}, nor is it a ticket"
        ))
    };
    found.map(|(_, chain)| chain).ok_or_else(none)
}
