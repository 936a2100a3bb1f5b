//! `annulus invite`: a ticket for somebody else, made from that of a run's folder.

use super::amounts::seconds;
use super::error::Error;
use super::output::{self, unix_ms};
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
}

const EXAMPLES: &str = "\
Examples:
  annulus invite runs/digits
  annulus invite runs/digits --role member --expires 7d --uses 1
  annulus invite runs/digits --role watch > ticket
";

/// Prints the ticket.
pub fn run(args: &Args) -> Result<(), Error> {
    output::print(&format!("{}\n", ticket(args, unix_ms() / 1000)?));
    Ok(())
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
