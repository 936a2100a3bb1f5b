//! Where a ticket comes from: the command line, a file or standard input.

use super::error::Error;
use crate::net::ticket::Ticket;
use crate::open;
use crate::store::files::FileError;
use std::fmt::Display;
use std::io::{self, Read};
use std::path::Path;

/// Longest that is read: no ticket is longer.
const LIMIT: u64 = 4096;

/// The ticket that an argument means.
pub fn read(argument: &str) -> Result<String, Error> {
    let failed = |why: &dyn Display| {
        Error::failed(format!(
            "cannot read a ticket: {why}. Name a file that holds one after @, or say - to read it from standard \
             input"
        ))
    };
    let text = match argument.strip_prefix('@') {
        Some(path) => open::named(Path::new(path))
            .and_then(text)
            .map_err(|error| failed(&FileError::new(Path::new(path), error)))?,
        None if argument == "-" => text(io::stdin()).map_err(|error| failed(&error))?,
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
/// other.
pub fn folder_name(ticket: &str) -> String {
    let name = ticket.parse::<Ticket>().map(|ticket| ticket.root.run.to_string());
    // Whoever takes part with it will say what is wrong with it.
    format!("joined-{}", name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::quic::tests::ticket_in;
    use crate::testing::Scratch;
    use annulus_core::RunId;

    #[test]
    fn a_ticket_comes_from_a_file_as_from_the_command_line() {
        let scratch = Scratch::new();
        let path = scratch.0.join("ticket");
        std::fs::write(&path, " annulus2xyz\n").unwrap();
        assert_eq!(read("annulus2xyz").unwrap(), "annulus2xyz");
        assert_eq!(read(&format!("@{}", path.display())).unwrap(), "annulus2xyz");
        let error = read("@/no/such/file").unwrap_err().to_string();
        assert!(error.contains("/no/such/file"), "{error}");
    }

    #[test]
    fn the_folder_is_named_by_the_run_and_not_by_who_invites() {
        let name = |addresses: &[&str], run: u8| {
            let addrs = addresses.iter().map(|address| address.parse().unwrap());
            folder_name(&ticket_in(RunId([run; 32]), addrs.collect()).to_string())
        };
        let one = name(&["192.0.2.1:1"], 1);
        assert_eq!(one, name(&["192.0.2.2:2", "192.0.2.1:1"], 1));
        assert_ne!(one, name(&["192.0.2.1:1"], 2));
    }
}
