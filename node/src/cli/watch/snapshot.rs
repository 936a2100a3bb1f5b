//! What a page's `/status` says of a run, as far as the picture shows it, and how to ask for it.

use crate::events::Change;
use crate::task::Metrics;
use serde::Deserialize;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a page may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Longest answer that is read: several times the longest there is.
const LIMIT: u64 = 8 << 20;

/// A run at a moment. The fields are those of `docs/status.md`.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    pub run: Option<String>,
    /// What is trained, in words; empty: nobody said.
    #[serde(default)]
    pub title: Option<String>,
    /// The newest text by the model.
    #[serde(default)]
    pub sample: Option<Sample>,
    pub task: Option<String>,
    pub device: Option<String>,
    pub parameters: Option<u64>,
    pub peer: Option<String>,
    pub phase: String,
    pub waiting: Option<String>,
    pub round: u64,
    pub loss: Option<f32>,
    pub counted: u64,
    pub target: Option<u64>,
    pub samples_per_second: f64,
    pub peers: Vec<Peer>,
    pub changes: Vec<MemberChange>,
    pub evaluations: Vec<Evaluation>,
    pub losses: Vec<(u64, Option<f32>)>,
}

/// A text by the model as it stood after a round.
#[derive(Clone, Debug, Deserialize)]
pub struct Sample {
    pub round: u64,
    pub text: String,
}

/// One of its peers.
#[derive(Clone, Debug, Deserialize)]
pub struct Peer {
    pub peer: String,
    /// How it calls itself.
    #[serde(default)]
    pub name: Option<String>,
    pub member: bool,
    pub weight: u64,
    pub samples: u64,
    /// How frames get there from the one that tells this; none: they do not, or need not.
    #[serde(default)]
    pub link: Option<String>,
}

/// One that came or went.
#[derive(Clone, Debug, Deserialize)]
pub struct MemberChange {
    pub peer: String,
    pub change: Change,
    pub round: u64,
    pub reason: String,
}

/// The model tried out.
#[derive(Clone, Debug, Deserialize)]
pub struct Evaluation {
    pub round: u64,
    pub loss: Option<f32>,
    #[serde(default)]
    pub metrics: Metrics,
}

/// Asks the page at `HOST:PORT`.
pub fn fetch(place: &str) -> io::Result<Snapshot> {
    let address = place.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // This machine's number of a network is nobody else's business.
    let at = place.parse::<SocketAddr>();
    let host = at.map_or(place.to_owned(), |at| {
        SocketAddr::new(at.ip(), at.port()).to_string()
    });
    write!(
        stream,
        "GET /status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(LIMIT).read_to_end(&mut answer)?;
    parse(&answer)
}

/// The body of an answer that says that all is well.
fn parse(answer: &[u8]) -> io::Result<Snapshot> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let end = end.ok_or_else(|| io::Error::other("no page of a peer"))?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let line = head.lines().next().unwrap_or_default();
    let body = &answer[end + 4..];
    match line.split(' ').nth(1) {
        Some("200") => {
            serde_json::from_slice(body).map_err(|_| io::Error::other("no page of a peer of this release"))
        }
        // It says what to do about that.
        Some("421") => Err(io::Error::other(String::from_utf8_lossy(body).trim().to_owned())),
        _ => Err(io::Error::other(format!("no page of a peer ({line})"))),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::net::link::LinkKind;
    use crate::view::RunView;
    use crate::view::testing::{committed, eval, link, member, ready};
    use crate::web::status::Status;

    /// A run of some rounds, as its page tells it.
    pub fn of_a_run() -> Snapshot {
        let mut view = RunView::default();
        view.take(&ready(1), 0);
        view.take(&member(2, Change::Joined, 3, ""), 1000);
        for round in 1..=40 {
            let weights = [(1, 40), (2, 24)];
            view.take(&committed(round, &weights, 0.5 + 2.0 / round as f32), 500 * round);
        }
        view.take(&member(3, Change::Failed, 39, "no answer"), 20_000);
        view.take(&link(2, Some(LinkKind::Punched)), 20_000);
        view.take(&eval(40, 0.25, Some(0.97)), 20_000);
        let body = serde_json::to_vec(&Status::of(&view, 0, 20_000)).unwrap();
        parse(&[b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n".as_slice(), &body].concat()).unwrap()
    }

    #[test]
    fn what_a_page_answers_is_understood() {
        let snapshot = of_a_run();
        assert_eq!((snapshot.round, snapshot.phase.as_str()), (40, "training"));
        assert_eq!(snapshot.peers.len(), 3);
        let told = |answer: &str| parse(answer.as_bytes()).unwrap_err().to_string();
        assert!(told("HTTP/1.1 421 Misdirected\r\n\r\nUse its address\n").contains("Use its address"));
        assert!(told("HTTP/1.1 404 Not Found\r\n\r\n").contains("404"));
        assert!(told("SSH-2.0-OpenSSH\r\n").contains("no page"));
        assert!(told("HTTP/1.1 200 OK\r\n\r\n<html>").contains("release"));
    }
}
