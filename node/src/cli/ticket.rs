//! Where a ticket comes from: the command line, a file or standard input.

use super::error::Error;
use crate::net::ticket::Ticket;
use annulus_core::Digest;
use std::fs::File;
use std::io::{self, Read};

/// Longest that is read: no ticket is longer.
const LIMIT: u64 = 4096;

/// The ticket that an argument means.
pub fn read(argument: &str) -> Result<String, Error> {
    let failed = |place: &str, error: io::Error| {
        Error::failed(format!(
            "cannot read a ticket from {place}: {error}. See `annulus join --help`"
        ))
    };
    let text = match argument.strip_prefix('@') {
        Some(path) => File::open(path)
            .and_then(text)
            .map_err(|error| failed(path, error))?,
        None if argument == "-" => text(io::stdin()).map_err(|error| failed("standard input", error))?,
        None => argument.to_owned(),
    };
    Ok(text.trim().to_owned())
}

fn text(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(LIMIT).read_to_string(&mut text)?;
    Ok(text)
}

/// What to call the folder of a peer that joins with this ticket, if nobody says: the same for the same run, and for no
/// other, even if that has the same settings and therefore the same name.
pub fn folder_name(ticket: &str) -> String {
    let name = ticket.parse::<Ticket>().map(|Ticket { run, secret, .. }| {
        let hash = blake3::derive_key(
            "annulus 1 name of a joined run",
            &[run.0.as_slice(), &secret.0].concat(),
        );
        Digest(hash).to_string()
    });
    // Whoever takes part with it will say what is wrong with it.
    format!("joined-{}", name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ticket::Secret;
    use crate::testing::Scratch;
    use annulus_core::RunId;

    #[test]
    fn a_ticket_comes_from_a_file_as_from_the_command_line() {
        let scratch = Scratch::new();
        let path = scratch.0.join("ticket");
        std::fs::write(&path, " annulus1xyz\n").unwrap();
        assert_eq!(read("annulus1xyz").unwrap(), "annulus1xyz");
        assert_eq!(read(&format!("@{}", path.display())).unwrap(), "annulus1xyz");
        let error = read("@/no/such/file").unwrap_err().to_string();
        assert!(error.contains("/no/such/file"), "{error}");
    }

    #[test]
    fn the_folder_is_named_by_the_run_and_not_by_who_invites() {
        let ticket = |addresses: &[&str], run, secret| Ticket {
            addrs: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            run: RunId([run; 32]),
            secret: Secret([secret; 16]),
        };
        let name = |addresses: &[&str], run, secret| folder_name(&ticket(addresses, run, secret).to_string());
        let one = name(&["192.0.2.1:1"], 1, 1);
        assert_eq!(one, name(&["192.0.2.2:2", "192.0.2.1:1"], 1, 1));
        assert_ne!(one, name(&["192.0.2.1:1"], 2, 1));
        assert_ne!(one, name(&["192.0.2.1:1"], 1, 2));
    }
}
