//! The tickets that were made in a run's folder, and who came by which.

use super::error::Error;
use super::human;
use crate::events::rfc3339;
use crate::net::ticket::Ticket;
use crate::participant::right::{Right, revocations_in};
use crate::store::ledger_file::Entry;
use crate::store::run_dir::RunDir;
use annulus_core::id::TicketId;
use annulus_core::invitation::Chain;
use annulus_core::{PeerId, RunId};
use annulus_net::files::{FileError, read_limited, write_private};
use data_encoding::HEXLOWER;
use std::fmt::Write as _;
use std::path::Path;

/// The file in a run's folder with the grants of the tickets that were made there, one to a line.
const MADE: &str = "invited";

/// Longest file that is read: some thousand tickets.
const LIMIT: usize = 4 << 20;

/// The grants of the tickets that were made in a folder, the oldest first. They let nobody in without the tickets' secrets.
pub fn handed_out(dir: &Path) -> Vec<Chain> {
    let bytes = read_limited(&dir.join(MADE), LIMIT).unwrap_or_default();
    let chain = |line: &str| {
        let bytes = HEXLOWER.decode(line.as_bytes()).ok()?;
        postcard::from_bytes(&bytes).ok().filter(Chain::is_bounded)
    };
    String::from_utf8_lossy(&bytes)
        .lines()
        .filter_map(chain)
        .collect()
}

/// Remembers a ticket that was made in a folder.
pub fn note(dir: &Path, ticket: &Ticket) -> Result<(), FileError> {
    let line = |chain: Chain| {
        let bytes = postcard::to_allocvec(&chain).expect("a chain has only plain data");
        format!("{}\n", HEXLOWER.encode(&bytes))
    };
    let all = handed_out(dir).into_iter().chain([ticket.chain.clone()]);
    write_private(&dir.join(MADE), all.map(line).collect::<String>().as_bytes())
}

/// A ticket's name: the first digits of the hash of its grants. It tells nothing that lets anybody in.
pub fn ticket_name(chain: &Chain, run: RunId) -> String {
    chain.ids(run).last().map(|id| id.to_hex()).unwrap_or_default()
}

/// The tickets that were made in a folder and others by which peers came in there, with those peers.
pub fn list(dir: &Path, right: &Right, now_s: u64) -> Result<String, Error> {
    let run = right.ticket.root.run;
    let own = right.admission(right.ticket.root.key).chain;
    let came = admissions(dir)?;
    let revoked: Vec<TicketId> = revocations_in(dir)
        .iter()
        .filter_map(|(_, revocation)| Some(revocation.ticket(run)?.1))
        .collect();
    let made = handed_out(dir);
    let mut all = made.clone();
    for (_, chain) in &came {
        if !all.contains(chain) && *chain != own {
            all.push(chain.clone());
        }
    }
    if all.is_empty() {
        return Ok("no tickets were made here, and nobody came by another\n".into());
    }
    let mut text = format!(
        "{:<8}  {:<10}  {:<16}  {:>4}  {:<7}  came\n",
        "ticket", "role", "until", "uses", "made"
    );
    for chain in &all {
        let until = match chain.until_s() {
            _ if chain.ids(run).iter().any(|id| revoked.contains(id)) => "revoked".to_owned(),
            Some(until_s) if until_s < now_s => "expired".to_owned(),
            Some(until_s) => rfc3339(until_s * 1000)[..16].replace('T', " "),
            None => "-".to_owned(),
        };
        let role = chain.role().to_string();
        let uses = chain.0.last().and_then(|grant| grant.uses);
        let by = came.iter().filter(|(_, by)| by == chain);
        let peers: Vec<String> = by.map(|(peer, _)| human::id(&peer.to_hex()).to_owned()).collect();
        // Writing to a text cannot fail.
        let _ = writeln!(
            text,
            "{:<8}  {:<10}  {until:<16}  {:>4}  {:<7}  {}",
            human::id(&ticket_name(chain, run)),
            role,
            uses.map_or("-".to_owned(), |uses| uses.to_string()),
            if made.contains(chain) { "invite" } else { "other" },
            if peers.is_empty() {
                "-".to_owned()
            } else {
                peers.join(" ")
            }
        );
    }
    text.push_str("Others are the code, the page's address, and tickets made elsewhere. `annulus revoke DIR NAME` takes one back.\n");
    Ok(text)
}

/// The peers that came in, and their tickets, by the folder's ledger.
pub fn admissions(dir: &Path) -> Result<Vec<(PeerId, Chain)>, Error> {
    let run = RunDir::open(dir).map_err(Error::of)?;
    let mut all: Vec<(PeerId, Chain)> = Vec::new();
    let mut see = |peer: PeerId, chain: &Chain| {
        if !all.iter().any(|(known, by)| *known == peer && by == chain) {
            all.push((peer, chain.clone()));
        }
    };
    for entry in run.entries().map_err(Error::of)? {
        match entry.map_err(Error::of)? {
            Entry::Base { head, .. } => {
                let members = head.members.iter();
                members.for_each(|member| see(member.peer, &member.admission.chain));
            }
            Entry::Round { record, .. } => {
                let newcomers = record.headers.iter().flat_map(|header| &header.ready);
                newcomers.for_each(|newcomer| see(newcomer.peer(), &newcomer.admission.chain));
            }
            Entry::Continued { founder } => see(founder.member.peer, &founder.member.admission.chain),
        }
    }
    Ok(all)
}
