//! Tickets as they are typed: on the command line, in a file or on standard input.

use super::error::Error;
use crate::net::ticket::{START, Ticket, TicketError};
use crate::store::run_dir::RunDir;
use annulus_net::files::FileError;
use annulus_net::open;
use std::fmt::Display;
use std::io::{self, Read};
use std::net::Ipv6Addr;
use std::path::Path;

/// Longest text that is read: a ticket with some words around it.
const LIMIT: u64 = 64 << 10;

/// The ticket that an argument means, in full; or what to write instead.
pub fn parse(argument: &str) -> Result<Ticket, Error> {
    let text = read(argument)?;
    Ticket::in_text(&text).map_err(|error: TicketError| {
        let path = Path::new(argument);
        if error != TicketError::NoTicket || argument == "-" || argument.starts_with('@') {
            return Error::of(error);
        }
        Error::failed(if RunDir::open(path).is_ok() {
            format!("{argument} is the folder of a run, not a ticket: `annulus resume {argument}` goes on with it")
        } else if path.is_file() {
            format!("{argument} is a file: write @{argument} if a ticket is in it")
        } else if place(argument).is_some() {
            format!("{argument} is an address, not a ticket: `annulus invite DIR` prints one on a machine of the run")
        } else if looks_like_path(argument) {
            format!("there is no folder {argument}, and it is not a ticket")
        } else {
            error.to_string()
        })
    })
}

/// Whether a word holds a ticket or the beginning of one.
pub fn is_in(word: &str) -> bool {
    word.to_ascii_lowercase().contains(START)
}

/// Whether a word was meant as a path.
pub fn looks_like_path(word: &str) -> bool {
    word.contains(['/', '\\']) || word.starts_with('.')
}

/// `HOST:PORT`, if a word is one.
pub fn place(word: &str) -> Option<&str> {
    let (host, port) = word.rsplit_once(':')?;
    let is_host = match host.strip_prefix('[') {
        Some(host) => host
            .strip_suffix(']')
            .is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok()),
        None => {
            !host.is_empty()
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        }
    };
    (is_host && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(word)
}

/// The text of the ticket that an argument means.
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
    let mut bytes = Vec::new();
    from.take(LIMIT).read_to_end(&mut bytes)?;
    decoded(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is not text"))
}

/// A text in UTF-8 or UTF-16, with or without the mark that tells which. PowerShell writes UTF-16.
fn decoded(bytes: &[u8]) -> Option<String> {
    let words = |bytes: &[u8], word: fn([u8; 2]) -> u16| {
        let words = bytes.as_chunks().0.iter().map(|two| word(*two));
        String::from_utf16(&words.collect::<Vec<_>>()).ok()
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => words(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => words(rest, u16::from_be_bytes),
        // ASCII has no zeros.
        [_, 0, ..] => words(bytes, u16::from_le_bytes),
        [0, ..] => words(bytes, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8(rest.to_vec()).ok(),
        _ => String::from_utf8(bytes.to_vec()).ok(),
    }
}

/// The usual folder name of a peer that joins with this ticket: the same for each ticket of one run.
pub fn folder_name(ticket: &str) -> String {
    let name = ticket.parse::<Ticket>().map(|ticket| ticket.root.run.to_string());
    // Taking part with it reports what is wrong with it.
    format!("joined-{}", name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use crate::testing::ticket_in;
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
    fn a_ticket_is_found_in_what_people_paste() {
        let scratch = Scratch::new();
        let ticket = ticket_in(RunId([1; 32]), vec!["192.0.2.1:1".parse().unwrap()]);
        let text = ticket.to_string();
        let (head, tail) = text.split_at(100);
        let file = scratch.0.join("ticket");
        for pasted in [
            format!("annulus join {text}"),
            format!("  Others take part with\n\n    annulus join {text}\n\n@ on this network: 12-345-678\n"),
            format!("https://192.0.2.1:4433/#{text}"),
            format!("\u{201c}{text}\u{201d}."),
            format!("'{text}',"),
            format!("{head}\r\n{tail}\r\n"),
            format!("> {head}\n> {tail}"),
            text.to_ascii_uppercase(),
        ] {
            assert_eq!(parse(&pasted).unwrap(), ticket, "{pasted}");
            let words: Vec<u16> = pasted.encode_utf16().collect();
            let of = |bytes: fn(&u16) -> [u8; 2]| words.iter().flat_map(bytes).collect::<Vec<u8>>();
            let (little, big) = (of(|word| word.to_le_bytes()), of(|word| word.to_be_bytes()));
            for bytes in [
                pasted.clone().into_bytes(),
                [b"\xef\xbb\xbf", pasted.as_bytes()].concat(),
                [b"\xff\xfe", &little[..]].concat(),
                [b"\xfe\xff", &big[..]].concat(),
            ] {
                std::fs::write(&file, bytes).unwrap();
                assert_eq!(
                    parse(&format!("@{}", file.display())).unwrap(),
                    ticket,
                    "{pasted}"
                );
            }
        }
        std::fs::write(
            &file,
            text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>(),
        )
        .unwrap();
        assert_eq!(parse(&format!("@{}", file.display())).unwrap(), ticket);
        let told = parse(&format!("annulus join {head} please"))
            .unwrap_err()
            .to_string();
        assert!(told.contains("ticket") && !told.contains("no ticket"), "{told}");
    }

    #[test]
    fn what_is_no_ticket_is_told_with_what_it_is() {
        let scratch = Scratch::new();
        let file = scratch.0.join("notes");
        std::fs::write(&file, "").unwrap();
        for (given, told) in [
            ("runs/tpyo", "there is no folder runs/tpyo"),
            ("127.0.0.1:4433", "is an address, not a ticket"),
            ("[::1]:4433", "is an address, not a ticket"),
            (file.to_str().unwrap(), "is a file: write @"),
        ] {
            let error = parse(given).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        assert_eq!(place("node-1.lan:80"), Some("node-1.lan:80"));
        for bad in ["host", "host:", ":80", "host:0", "a b:80", "[x]:80", "host:99999"] {
            assert_eq!(place(bad), None, "{bad}");
        }
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
