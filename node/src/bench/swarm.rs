//! Synthetic peers as processes of this machine, seen from the process that started them.

use super::Error;
use super::plan::{PeerMessage, Plan, Role, RoundTiming, Spec};
use super::process::Memory;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Silence of all peers after which the measurement is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Processes, each a peer, that end with this.
pub struct Swarm {
    children: Vec<Child>,
    told: Receiver<(usize, Result<PeerMessage, String>)>,
    to_us: Sender<(usize, Result<PeerMessage, String>)>,
    ticket: String,
    every: u64,
    done: Vec<Option<Memory>>,
}

/// What one of the peers told.
#[derive(Debug)]
pub enum News {
    /// It is a member and holds the state.
    Entered {
        /// Which peer.
        peer: usize,
        /// Bytes of frames received until then.
        received: u64,
    },
    /// It has committed a round.
    Round {
        /// Which peer.
        peer: usize,
        /// The round.
        round: Box<RoundTiming>,
    },
    /// All are done.
    End,
}

impl Swarm {
    /// Starts the peer that founds a run; it tells of every so manieth round.
    pub fn found(plan: &Plan, every: u64) -> Result<Self, Error> {
        let (to_us, told) = channel();
        let mut swarm = Self {
            children: Vec::new(),
            told,
            to_us,
            ticket: String::new(),
            every,
            done: Vec::new(),
        };
        swarm.start(Role::Found(plan.clone()))?;
        match swarm.told.recv_timeout(PATIENCE) {
            Ok((_, Ok(PeerMessage::Ready { ticket, .. }))) => swarm.ticket = ticket,
            Ok((number, told)) => {
                let why = told.map_or_else(|why| why, |told| format!("{told:?} before it was ready"));
                return Err(Error::Peer { number, why });
            }
            Err(_) => return Err(silent(0)),
        }
        Ok(swarm)
    }

    /// Starts a peer that joins; its number.
    pub fn join(&mut self) -> Result<usize, Error> {
        self.start(Role::Join(self.ticket.clone()))
    }

    /// Processes started so far.
    pub fn len(&self) -> usize {
        self.children.len()
    }

    /// Whether none was started.
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// Tells all peers to leave the run, and waits until they have.
    pub fn leave(mut self) -> Result<Vec<Memory>, Error> {
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        while !matches!(self.news()?, News::End) {}
        Ok(self.memories())
    }

    /// Each peer's memory at its end; zero where that is not known.
    pub fn memories(&self) -> Vec<Memory> {
        self.done
            .iter()
            .map(|memory| memory.unwrap_or_default())
            .collect()
    }

    /// Waits for the next news.
    pub fn news(&mut self) -> Result<News, Error> {
        while !self.done.iter().all(Option::is_some) {
            let until = Instant::now() + PATIENCE;
            let told = self.told.recv_timeout(until - Instant::now());
            let (peer, told) = told.map_err(|error| match error {
                RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected => silent(self.len()),
            })?;
            match told.map_err(|why| Error::Peer { number: peer, why })? {
                PeerMessage::Entered { received, .. } => return Ok(News::Entered { peer, received }),
                PeerMessage::Round(round) => return Ok(News::Round { peer, round }),
                PeerMessage::Done { memory } => self.done[peer] = Some(memory),
                // Members that leave one after the other leave a lone one behind, which is no trouble.
                PeerMessage::Trouble(why) if self.done.iter().all(Option::is_none) => {
                    return Err(Error::Disturbed(format!("peer {peer}: {why}")));
                }
                PeerMessage::Ready { .. } | PeerMessage::Trouble(_) => {}
            }
        }
        Ok(News::End)
    }

    fn start(&mut self, role: Role) -> Result<usize, Error> {
        let number = self.children.len();
        let spec = Spec {
            role,
            listen: "127.0.0.1:0".into(),
            every: self.every,
        };
        let spec = serde_json::to_string(&spec).expect("a spec is plain data");
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "peer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = child.stdin.take().expect("it was piped");
        let output = child.stdout.take().expect("it was piped");
        self.children.push(child);
        self.done.push(None);
        writeln!(input, "{spec}")?;
        self.children[number].stdin = Some(input);
        let to_us = self.to_us.clone();
        thread::spawn(move || {
            let mut ended = false;
            for line in BufReader::new(output).lines() {
                let line = line.unwrap_or_default();
                let told = serde_json::from_str(&line).map_err(|_| format!("it wrote {line:?}"));
                ended = matches!(told, Ok(PeerMessage::Done { .. }));
                if to_us.send((number, told)).is_err() {
                    return;
                }
            }
            if !ended {
                let _ = to_us.send((number, Err("its process ended".into())));
            }
        });
        Ok(number)
    }
}

fn silent(number: usize) -> Error {
    Error::Peer {
        number,
        why: format!("nothing was heard for {} s", PATIENCE.as_secs()),
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It has ended already, or it ends now.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
