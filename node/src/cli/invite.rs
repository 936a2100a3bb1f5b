//! `annulus invite`: a ticket for somebody else, made from that of a run's folder.

use super::amounts::seconds;
use super::error::Error;
use super::human;
use super::invited;
use super::output::{self, unix_ms};
use crate::events::rfc3339;
use crate::net::ticket::Ticket;
use crate::participant::right::Right;
use crate::store::run_dir::CheckpointError;
use annulus_core::invitation::{MAX_USES, Role};
use std::path::{Path, PathBuf};

/// Make a ticket for somebody else.
///
/// A ticket can never grant more rights, time or uses than your own; the founder of a run can grant all. Give each person a ticket
/// of their own: you can take it back alone (`annulus revoke`), and a fault of one person then does not affect the others.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// What its holder may do: watch (follow the run), contribute (compute and sum with the others) or member (also let others in,
    /// invite them, and keep the run going when all others are gone).
    #[arg(long, default_value_t = Role::Contribute)]
    pub role: Role,
    /// How long it can be used to join: 30m, 12h, 7d or 4w. Peers that joined by then stay.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub expires: Option<u64>,
    /// How many peers can join with it. A peer that comes back does not count again.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_USES)))]
    pub uses: Option<u32>,
    /// Make none: list the tickets that were made here, and who came by which.
    #[arg(long, conflicts_with_all = ["role", "expires", "uses"])]
    pub list: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus invite runs/digits
  annulus invite runs/digits --role member --expires 7d --uses 1
  annulus invite runs/digits --role watch > ticket
  annulus invite runs/digits --list
";

/// Prints the ticket, or the list of those that were made.
pub fn run(args: &Args) -> Result<(), Error> {
    let now_s = unix_ms() / 1000;
    if args.list {
        let right = right_in(&args.dir)?;
        output::print(&invited::list(&args.dir, &right, now_s)?);
        return Ok(());
    }
    let ticket = ticket(args, now_s)?;
    invited::note(&args.dir, &ticket).map_err(Error::of)?;
    output::note(&allows(&ticket, &args.dir));
    output::print(&format!("{ticket}\n"));
    Ok(())
}

/// What a ticket allows, and how to take it back.
fn allows(ticket: &Ticket, dir: &Path) -> String {
    let chain = &ticket.chain;
    let peers = match chain.0.last().and_then(|grant| grant.uses) {
        Some(uses) => human::plural(uses.into(), "peer"),
        None => "any number of peers".into(),
    };
    let until = chain.until_s().map(|until_s| rfc3339(until_s * 1000));
    let until = until.map_or_else(String::new, |until| {
        format!(" until {}", until[..16].replace('T', " "))
    });
    let name = invited::ticket_name(chain, ticket.root.run);
    format!(
        "lets in {peers}{until} with the role {}; `annulus revoke {} {}` takes it back",
        chain.role(),
        dir.display(),
        human::id(&name)
    )
}

/// The ticket that the arguments mean, at a time in seconds since 1970.
fn ticket(args: &Args, now_s: u64) -> Result<Ticket, Error> {
    let right = right_in(&args.dir)?;
    let invitation = right.invitation();
    if invitation.chain.has_expired(now_s) {
        return Err(Error::failed(
            "the ticket of this folder has expired, so it can make no others: ask a member of the run for a new one",
        ));
    }
    let until_s = args.expires.map(|seconds| now_s.saturating_add(seconds));
    let made = Ticket::made_from(&invitation, right.ticket.root, args.role, until_s, args.uses);
    let addrs = right.ticket.addrs;
    Ok(Ticket {
        addrs,
        ..made.map_err(Error::of)?
    })
}

/// The right to take part that lies in a folder.
pub(super) fn right_in(dir: &Path) -> Result<Right, Error> {
    if !dir.is_dir() {
        return Err(Error::of(CheckpointError::NoRun(dir.to_path_buf())));
    }
    let right = Right::of_folder(dir).map_err(Error::of)?;
    right.ok_or_else(|| {
        let dir = dir.display();
        Error::failed(format!(
            "the folder {dir} holds no ticket of a run: name the folder of one"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ticket::Secret;
    use crate::testing::Scratch;
    use annulus_core::RunId;
    use annulus_core::invitation::Root;

    #[test]
    fn a_ticket_is_no_wider_than_the_folders() {
        let (founder, guest) = (Scratch::new(), Scratch::new());
        let run_key = Secret::generate();
        let root = Root {
            run: RunId([1; 32]),
            key: run_key.key().peer(),
        };
        let mut right = Right::of_founder(run_key, root).unwrap();
        right.ticket.addrs = vec!["192.0.2.1:1".parse().unwrap()];
        right.keep(&founder.0).unwrap();
        let made = |dir: &Scratch, role, expires, uses| {
            let dir = dir.0.clone();
            let args = Args {
                dir,
                role,
                expires,
                uses,
                list: false,
            };
            ticket(&args, 1000)
        };
        let given = made(&founder, Role::Member, Some(100), Some(2)).unwrap();
        assert_eq!(given.to_string().parse(), Ok(given.clone()));
        assert_eq!(given.addrs, right.ticket.addrs);
        assert_eq!(given.chain.until_s(), Some(1100));
        let own = Right {
            ticket: given,
            run_key: None,
        };
        own.keep(&guest.0).unwrap();
        let handed_on = made(&guest, Role::Contribute, None, None).unwrap();
        invited::note(&founder.0, &handed_on).unwrap();
        let told = allows(&handed_on, Path::new("run"));
        assert!(
            told.starts_with("lets in 2 peers until 1970-01-01 00:18 with the role contribute; "),
            "{told}"
        );
        invited::note(&founder.0, &own.ticket).unwrap();
        assert_eq!(
            invited::handed_out(&founder.0),
            [handed_on.chain.clone(), own.ticket.chain.clone()]
        );
        let last = &handed_on.chain.0[1];
        assert_eq!(
            (last.role, last.until_s, last.uses),
            (Role::Contribute, Some(1100), Some(2))
        );
        let told = |made: Result<Ticket, Error>| made.unwrap_err().to_string();
        assert!(told(made(&guest, Role::Member, Some(101), None)).contains("longer"));
        assert!(told(made(&guest, Role::Member, None, Some(3))).contains("lets in 2"));
        let poor = Right {
            ticket: handed_on,
            run_key: None,
        };
        poor.keep(&guest.0).unwrap();
        assert!(told(made(&guest, Role::Watch, None, None)).contains("role contribute"));
        let nowhere = Scratch::new();
        assert!(told(made(&nowhere, Role::Watch, None, None)).contains("no ticket"));
    }
}
