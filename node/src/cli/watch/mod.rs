//! `annulus watch`: a run in a terminal, without taking part. It shows what a peer's page answers to `/status`, so that the one
//! fold of the run's events is that peer's.

mod picture;
mod snapshot;

use super::error::Error;
use super::exit::Exit;
use super::invite::right_in;
use super::machine::block_on;
use super::output;
use super::screen::Screen;
use super::terminal::{self, Style};
use super::ticket;
use crate::net::addresses::dialable;
pub(super) use snapshot::Peer;
use snapshot::{Snapshot, fetch};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Watch a run in the terminal: loss, members, speed, and peers that come and go.
///
/// It reads the page of a peer, which must not run with --no-page, and takes no place in the run. Press Ctrl-C to end it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder of a peer that runs on this machine, a ticket (@FILE reads it from a file), or the address of a page, with or
    /// without http://.
    #[arg(value_name = "DIR|TICKET|URL")]
    pub what: String,
    /// Print one picture and end, as it does when standard output is not a terminal.
    #[arg(long)]
    pub once: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus watch runs/digits
  annulus watch http://192.0.2.7:4433
  annulus watch @ticket --once
";

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Most addresses of one machine to ask.
const LOOKS: usize = 4;

/// Shows the run once, or until Ctrl-C.
pub fn run(args: &Args) -> Result<Exit, Error> {
    let places = Arc::new(places(&args.what)?);
    let first = look(&places).map_err(Error::unreachable)?;
    let style = Style::of_stdout();
    if args.once || !style.live {
        // Without a terminal the picture has a size that is easy to read.
        let size = if style.live { terminal::size() } else { (100, 32) };
        output::paint(&as_text(&first, size, style));
    } else {
        block_on(show(places, first, style)).map_err(Error::of)?;
    }
    Ok(Exit::Done)
}

/// Draws until Ctrl-C.
async fn show(places: Arc<Vec<String>>, mut snapshot: Snapshot, style: Style) {
    let screen = Screen::enter(style);
    let mut problem = None;
    loop {
        screen.show(&picture::draw(&snapshot, problem.as_deref(), terminal::size()));
        let asked = places.clone();
        let next = async {
            tokio::time::sleep(LOOK).await;
            tokio::task::spawn_blocking(move || look(&asked)).await
        };
        tokio::select! {
            seen = next => match seen {
                Ok(Ok(seen)) => (snapshot, problem) = (seen, None),
                Ok(Err(why)) => problem = Some(why),
                // It does not panic.
                Err(_) => return,
            },
            _ = tokio::signal::ctrl_c() => return,
        }
    }
}

/// A picture as lines of text.
fn as_text(snapshot: &Snapshot, size: (usize, usize), style: Style) -> String {
    picture::draw(snapshot, None, size).rows(style).join("\n") + "\n"
}

/// The status of the peer that trains in a folder of this machine now, if it serves a page.
pub(super) fn of_folder(dir: &Path) -> Option<Snapshot> {
    let ours: Vec<IpAddr> = if_addrs::get_if_addrs()
        .ok()?
        .iter()
        .map(if_addrs::Interface::ip)
        .collect();
    let ticket = right_in(dir).ok()?.ticket;
    // This machine's own addresses answer at once if nobody is there.
    let here = ticket
        .addrs
        .iter()
        .filter(|address| ours.contains(&address.ip().to_canonical()));
    here.take(LOOKS).find_map(|place| fetch(&place.to_string()).ok())
}

/// Possible places of the page, each `HOST:PORT`.
fn places(what: &str) -> Result<Vec<String>, Error> {
    if let Some(place) = of_url(what).or(ticket::place(what).map(str::to_owned)) {
        return Ok(vec![place]);
    }
    let ticket = match Path::new(what).is_dir() {
        true => right_in(Path::new(what))?.ticket,
        false if is_no_ticket(what) => {
            let told = format!("there is no folder {what}, and it is neither a ticket nor an address");
            return Err(Error::failed(told));
        }
        false => ticket::parse(what)?,
    };
    let dialled = ticket.addrs.into_iter().flat_map(dialable);
    Ok(dialled.map(|at| at.to_string()).collect())
}

/// Whether a word is meant as a folder, and there is none.
fn is_no_ticket(word: &str) -> bool {
    let is_ticket = word.to_ascii_lowercase().contains("annulus") || word == "-" || word.starts_with('@');
    !is_ticket && !Path::new(word).exists()
}

/// The place that an address of a page names. Its port speaks plain HTTP too.
fn of_url(url: &str) -> Option<String> {
    let (plain, rest) = match url.strip_prefix("http://") {
        Some(rest) => (true, rest),
        None => (false, url.strip_prefix("https://")?),
    };
    let place = rest
        .split(['/', '#', '?'])
        .next()
        .filter(|place| !place.is_empty())?;
    let has_port = place
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if plain { 80 } else { 443 };
    Some(if has_port {
        place.to_owned()
    } else {
        format!("{place}:{port}")
    })
}

/// The status from the first page that answers.
fn look(places: &[String]) -> Result<Snapshot, String> {
    let mut problems = Vec::new();
    for place in places {
        match fetch(place) {
            Ok(snapshot) => return Ok(snapshot),
            Err(error) => problems.push(format!("{place}: {error}")),
        }
    }
    Err(format!(
        "no page answers ({}): check that the peer runs, and without --no-page",
        problems.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_found_by_its_address() {
        for (url, place) in [
            ("http://localhost:4433/#annulus2x", Some("localhost:4433")),
            ("https://[2001:db8::1]:4433/", Some("[2001:db8::1]:4433")),
            ("https://train.example.org", Some("train.example.org:443")),
            ("http://192.0.2.7/status", Some("192.0.2.7:80")),
            ("runs/digits", None),
            ("http://", None),
        ] {
            assert_eq!(of_url(url).as_deref(), place, "{url}");
        }
    }

    #[test]
    fn an_address_needs_no_scheme_and_a_misspelt_folder_is_told() {
        assert_eq!(places("127.0.0.1:4433").unwrap(), ["127.0.0.1:4433"]);
        assert_eq!(places("localhost:80").unwrap(), ["localhost:80"]);
        for word in ["runs/tpyo", "nothere"] {
            let error = places(word).unwrap_err().to_string();
            let told = format!("there is no folder {word}, and it is neither a ticket nor an address");
            assert_eq!(error, told);
        }
        let error = places("annulus2xyz").unwrap_err().to_string();
        assert!(error.contains("ticket"), "{error}");
    }

    #[test]
    fn nobody_there_is_told_with_where_it_was_looked() {
        let told = look(&["127.0.0.1:9".into()]).unwrap_err();
        assert!(
            told.contains("127.0.0.1:9") && told.contains("--no-page"),
            "{told}"
        );
    }

    #[test]
    fn the_picture_tells_the_run() {
        const PLAIN: Style = Style {
            live: false,
            color: false,
        };
        let text = as_text(&snapshot::tests::of_a_run(), (100, 28), PLAIN);
        println!("{text}");
        assert_eq!(text.lines().count(), 28);
        assert!(text.lines().all(|line| line.chars().count() <= 100));
        for part in [
            "Digits for all (digits)  run eeeeeeee  101,770 parameters",
            "training  round 40  loss 0.550  128 samples/s  2 peers",
            "peer      share  samples  link",
            "01010101   62 %    1.60k  that peer",
            "02020202   38 %      960  punched",
            "03030303   gone        0",
            "+ 02020202 joined after round 3",
            "x 03030303 failed after round 39: no answer",
            "* round 40: eval loss 0.250, accuracy 97.00 %",
            "Ctrl-C ends this",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let mut learnt = snapshot::tests::of_a_run();
        learnt.losses = vec![(1, Some(0.25)), (40, Some(7.84e-10))];
        let learnt = as_text(&learnt, (100, 28), PLAIN);
        assert!(
            learnt.contains("7.84e-10│") && learnt.contains("   0.250│"),
            "{learnt}"
        );
        // The newest first; a curve that falls from its upper left to its lower right.
        assert!(text.find("eval loss") < text.find("failed after"));
        assert!(text.find("failed after") < text.find("joined after"));
        let dots = |line: &str| line.chars().position(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
        let columns: Vec<usize> = text.lines().filter_map(dots).collect();
        assert!(columns.len() > 8 && columns.is_sorted(), "{columns:?}");
        for size in [(1, 1), (20, 10), (40, 300), (200, 5)] {
            as_text(&snapshot::tests::of_a_run(), size, PLAIN);
        }
    }
}
