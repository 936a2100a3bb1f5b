//! Two peers of a run within one process, which a program starts, watches and stops by handles, and which leave the process
//! as it was.

use crate::common::{Folder, PATIENCE, computing};
use annulus::burn::module::Module;
use annulus::burn::nn::{Linear, LinearConfig};
use annulus::burn::tensor::{Device, Tensor};
use annulus::{Data, Error, Event, InMemory, Run, RunOptions, Scores, Task, TaskError, burn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[derive(Module, Debug)]
struct Line {
    linear: Linear,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// How long the data takes to be read, in milliseconds.
    reading: u64,
}

/// Learns to double a number, slowly enough that others can join.
struct Double(InMemory<f32>);

impl Task for Double {
    type Model = Line;
    type Dataset = InMemory<f32>;
    type Config = Config;
    const NAME: &'static str = "double";

    fn new(config: Config, _: Option<&Data>) -> Result<Self, TaskError> {
        std::thread::sleep(Duration::from_millis(config.reading));
        Ok(Self(InMemory::new((0..512).map(|i| i as f32 / 512.0).collect())))
    }

    fn dataset(&self) -> &InMemory<f32> {
        &self.0
    }

    fn model(&self, device: &Device) -> Line {
        let linear = LinearConfig::new(1, 1).init(device);
        Line { linear }
    }

    fn loss(&self, model: &Line, batch: Vec<f32>, device: &Device) -> Tensor<1> {
        std::thread::sleep(Duration::from_millis(2));
        let x = Tensor::<1>::from_floats(batch.as_slice(), device).unsqueeze_dim::<2>(1);
        (model.linear.forward(x.clone()) - x * 2.0).powi_scalar(2).mean()
    }

    fn evaluate(&self, model: &Line, device: &Device) -> Option<Scores> {
        Some(self.loss(model, vec![0.25, 0.75], device).into())
    }
}

/// A peer, and the digest after each of its rounds.
struct Peer {
    run: Run,
    digests: BTreeMap<u64, String>,
}

impl Peer {
    fn new(run: Result<Run, Error>) -> Self {
        let digests = BTreeMap::new();
        Self {
            run: run.expect("a run"),
            digests,
        }
    }

    /// Reads events up to the first one for which `found` has an answer.
    fn wait<T>(&mut self, what: &str, found: impl Fn(&Event) -> Option<T>) -> T {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            let Some(event) = self.run.next_event(Duration::from_millis(100)) else {
                assert!(!self.run.is_over(), "the run ended before {what}");
                continue;
            };
            if let Event::Round(round) = &event {
                self.digests.insert(round.round, round.digest.clone());
            }
            if let Some(found) = found(&event) {
                return found;
            }
        }
        panic!("no {what} in time");
    }

    /// Waits for this number of rounds of two members.
    fn rounds_of_two(&mut self, count: usize) {
        for _ in 0..count {
            self.wait("a round of two", |event| {
                matches!(event, Event::Round(round) if round.members.len() == 2).then_some(())
            });
        }
    }

    /// Stops it: the last round, the state's digest after it, and those after all rounds.
    fn stop(mut self) -> (u64, String, BTreeMap<u64, String>) {
        self.run.stop();
        self.wait("goodbye", |event| matches!(event, Event::Done(_)).then_some(()));
        let done = self.run.wait().expect("nothing failed").expect("it took part");
        assert!(!done.finished);
        (done.round, done.digest.expect("it held the state"), self.digests)
    }
}

fn options(folder: &Folder, name: &str) -> RunOptions {
    RunOptions::new(folder.join(name))
        .device("cpu")
        .listen("127.0.0.1:0")
}

fn start(folder: &Folder) -> Peer {
    let options = options(folder, "first")
        .set("rounds", 100_000)
        .set("batch", 16)
        .set("stand_aside", "off");
    Peer::new(Run::start::<Double>(options))
}

/// What a library must leave alone: the environment, and what signals do.
fn of_the_process() -> (Vec<(std::ffi::OsString, std::ffi::OsString)>, Vec<usize>) {
    #[cfg(unix)]
    let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGHUP].map(|signal| {
        // SAFETY: with a null pointer the call changes nothing, and it writes the present action to a structure of plain
        // numbers.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(signal, std::ptr::null(), &mut now), 0);
            now.sa_sigaction
        }
    });
    #[cfg(not(unix))]
    let signals = [];
    (std::env::vars_os().collect(), signals.to_vec())
}

#[test]
fn a_program_starts_watches_and_stops_two_peers_of_one_process() {
    let _turn = computing();
    let folder = Folder::new("program");
    let before = of_the_process();
    let mut first = start(&folder);
    let ticket = first.wait("ticket", |event| match event {
        Event::Ready(ready) => ready.ticket.clone(),
        _ => None,
    });
    let mut second = Peer::new(Run::join::<Double>(&ticket, options(&folder, "second")));
    first.rounds_of_two(10);
    second.rounds_of_two(10);
    let (round, digest, of_second) = second.stop();
    first.wait("a round alone", |event| {
        matches!(event, Event::Round(round) if round.members.len() == 1).then_some(())
    });
    assert_eq!(first.digests.get(&round), Some(&digest), "after round {round}");
    let both: Vec<_> = of_second
        .iter()
        .filter(|(round, _)| first.digests.contains_key(round))
        .collect();
    assert!(both.len() >= 10, "{} rounds", both.len());
    for (round, digest) in both {
        assert_eq!(first.digests[round], *digest, "round {round}");
    }
    let (last, digest, _) = first.stop();
    assert!(last > round);

    // The same start goes on where it left.
    let mut again = start(&folder);
    let next = again.wait("a round", |event| match event {
        Event::Round(round) => Some(round.round),
        _ => None,
    });
    assert_eq!(next, last + 1);
    let (end, other, _) = again.stop();
    assert!(end > last && other != digest);
    assert!(of_the_process() == before, "the process is not as it was");
}

#[test]
fn a_run_that_is_stopped_while_its_data_is_read_does_not_begin() {
    let _turn = computing();
    let folder = Folder::new("program-reading");
    let options = options(&folder, "stopped").set("reading", 500);
    let run = Run::start::<Double>(options).expect("it starts");
    std::thread::sleep(Duration::from_millis(100));
    run.stop();
    assert!(run.wait().expect("nothing failed").is_none(), "it took part");
    let left: Vec<_> = std::fs::read_dir(folder.join("stopped"))
        .into_iter()
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_setting_that_is_not_possible_is_told_at_once_and_a_ticket_that_is_none_later() {
    let _turn = computing();
    let folder = Folder::new("program-refused");
    let refused = |run: Result<Run, Error>| run.expect_err("it cannot be").to_string();
    let told = refused(Run::start::<Double>(options(&folder, "a").set("lr", "fast")));
    assert!(told.contains("lr=fast is not possible"), "{told}");
    let told = refused(Run::start::<Double>(options(&folder, "a").set("speed", 1)));
    assert!(told.contains("unknown setting `speed`"), "{told}");
    let told = refused(Run::join::<Double>("x", options(&folder, "a").set("lr", 1)));
    assert!(told.contains("`lr` is the same on all peers"), "{told}");
    let run = Run::join::<Double>("x", options(&folder, "a")).expect("it starts");
    assert!(matches!(run.wait(), Err(Error::Ticket(_))));
}
