//! `annulus invite`: a ticket for somebody else, made from that of a run's folder.

use super::error::Error;
use super::output::{self, unix_ms};
use crate::net::ticket::Ticket;
use crate::participant::right::Right;
use annulus_core::invitation::{MAX_USES, Role};
use std::path::{Path, PathBuf};

/// Make a ticket for somebody else.
///
/// It allows no more, lasts no longer and lets in no more than the ticket by which this folder's peer takes part; whoever
/// founded the run may allow all. Give each one a ticket of their own: what one of them does wrong binds the others not, and
/// it can be taken back alone (`annulus revoke`).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// What it lets do: watch (follow the run), contribute (compute and sum with the others) or member (besides let others
    /// in, invite them, and keep the run when all others are gone).
    #[arg(long, default_value_t = Role::Contribute)]
    pub role: Role,
    /// For how long it lets somebody in: 30m, 12h, 7d or 4w. Who is in by then stays.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub expires: Option<u64>,
    /// How many peers it lets in. One that comes back is let in again.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_USES)))]
    pub uses: Option<u32>,
}

const EXAMPLES: &str = "\
Examples:
  annulus invite runs/digits
  annulus invite runs/digits --role member --expires 7d --uses 1
  annulus invite runs/digits --role watch > ticket
";

/// Prints a ticket that allows what was asked for.
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
            "the ticket of this folder has expired, and so would each that is made from it: ask a member of the run for a \
             new one",
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

/// What a folder may do.
pub(super) fn right_in(dir: &Path) -> Result<Right, Error> {
    let right = Right::of_folder(dir).map_err(Error::of)?;
    right.ok_or_else(|| {
        let dir = dir.display();
        Error::failed(format!("{dir} holds no ticket of a run: name a run's folder"))
    })
}

/// A time such as 30m, 12h, 7d or 4w, in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no time: write it as 90s, 30m, 12h, 7d or 4w");
    let unit = text.chars().last().and_then(|unit| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3600),
        'd' => Some(24 * 3600),
        'w' => Some(7 * 24 * 3600),
        _ => None,
    });
    let number = text
        .get(..text.len().saturating_sub(1))
        .and_then(|number| number.parse::<u64>().ok());
    let seconds = number
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit));
    seconds.filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ticket::Secret;
    use crate::testing::Scratch;
    use annulus_core::RunId;
    use annulus_core::invitation::Root;

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("7d"), Ok(7 * 86_400));
        for wrong in ["", "d", "7", "7 d", "-1d", "0h", "7y", "99999999999999999w", "7ä"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

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
