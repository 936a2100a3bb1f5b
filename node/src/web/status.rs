//! A run's state as watchers see it: a [`Board`], which folds events, and the JSON object that is made of it.
//!
//! The fields are listed in `docs/status.md`; a test holds that page and this code together. It must know nothing of
//! HTTP, and of the run nothing but its events.

use super::curve::Curve;
use crate::events::{Change, Event, Ready, Round, rfc3339};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Changes of membership that are kept.
const CHANGES: usize = 50;

/// Evaluations that are kept.
const EVALUATIONS: usize = 100;

/// Peers that are remembered. Of those that are members no longer, the one gone for longest is forgotten first.
const PEERS: usize = 256;

/// The rate of samples is taken over this time, in milliseconds.
const RATE_WINDOW_MS: u64 = 10_000;

/// What is known of a run at a moment.
#[derive(Debug)]
pub struct Board {
    begun_ms: u64,
    ready: Option<Ready>,
    phase: Phase,
    sync: Option<Sync>,
    round: Option<Round>,
    peers: BTreeMap<String, Peer>,
    changes: VecDeque<MemberChange>,
    evaluations: VecDeque<Evaluation>,
    curve: Curve,
    /// When rounds ended, and how many samples each added.
    recent: VecDeque<(u64, u64)>,
    totals: Totals,
}

/// Sums over this peer's time in the run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Rounds that this peer saw committed.
    pub rounds: u64,
    /// Bytes that it sent for them.
    pub bytes_sent: u64,
    /// Bytes that it received for them.
    pub bytes_received: u64,
    /// How long it computed, in seconds.
    pub compute_seconds: f64,
    /// How long it exchanged and waited, in seconds.
    pub reduce_seconds: f64,
    /// Members that came or went, in the order of [`Change`].
    pub changes: [u64; 4],
    /// Warnings.
    pub warnings: u64,
}

/// What a peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is up, and has no part yet.
    Starting,
    /// It fetches the state.
    Syncing,
    /// It takes part.
    Training,
    /// Its part is over.
    Done,
}

/// How much of the state a newcomer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sync {
    bytes: u64,
    total: u64,
    round: u64,
}

/// One peer's part.
#[derive(Clone, Debug, Default)]
struct Peer {
    member: bool,
    weight: u64,
    samples: u64,
    rounds: u64,
    last_ms: u64,
}

/// A peer that came or went.
#[derive(Clone, Debug, Serialize)]
struct MemberChange {
    time: String,
    peer: String,
    change: Change,
    round: u64,
    reason: String,
}

/// The model tried out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// The round.
    pub round: u64,
    /// Mean loss per sample.
    pub loss: f32,
    /// Share of right answers.
    pub accuracy: Option<f32>,
}

/// What `/status` answers.
#[derive(Serialize)]
pub struct Status<'a> {
    version: &'static str,
    run: Option<&'a str>,
    task: Option<&'a str>,
    parameters: Option<u64>,
    peer: Option<&'a str>,
    device: Option<&'a str>,
    phase: Phase,
    sync: Option<Sync>,
    started: String,
    elapsed_seconds: f64,
    round: u64,
    loss: Option<f32>,
    digest: Option<&'a str>,
    counted: u64,
    target: Option<u64>,
    samples_per_second: f64,
    bytes_sent: u64,
    bytes_received: u64,
    peers: Vec<PeerStatus<'a>>,
    changes: &'a VecDeque<MemberChange>,
    evaluations: &'a VecDeque<Evaluation>,
    losses: Vec<(u64, f32)>,
}

#[derive(Serialize)]
struct PeerStatus<'a> {
    peer: &'a str,
    member: bool,
    weight: u64,
    samples: u64,
    rounds: u64,
}

impl Board {
    /// An empty board, at a time in milliseconds since 1970.
    pub fn new(now_ms: u64) -> Self {
        Self {
            begun_ms: now_ms,
            ready: None,
            phase: Phase::Starting,
            sync: None,
            round: None,
            peers: BTreeMap::new(),
            changes: VecDeque::new(),
            evaluations: VecDeque::new(),
            curve: Curve::default(),
            recent: VecDeque::new(),
            totals: Totals::default(),
        }
    }

    /// Takes an event that happened at this time.
    pub fn take(&mut self, event: &Event, now_ms: u64) {
        match event {
            Event::Ready(ready) => self.ready = Some(ready.clone()),
            // There is no page before the data is here.
            Event::Fetch { .. } => {}
            &Event::Sync { bytes, total, round } => {
                self.phase = Phase::Syncing;
                self.sync = Some(Sync { bytes, total, round });
            }
            Event::Round(round) => self.round(round, now_ms),
            Event::Member {
                peer,
                change,
                round,
                reason,
            } => {
                self.totals.changes[*change as usize] += 1;
                self.peer(peer, now_ms).member = *change == Change::Joined;
                push(
                    &mut self.changes,
                    CHANGES,
                    MemberChange {
                        time: rfc3339(now_ms),
                        peer: peer.clone(),
                        change: *change,
                        round: *round,
                        reason: reason.clone(),
                    },
                );
            }
            &Event::Eval {
                round,
                loss,
                accuracy,
            } => {
                let evaluation = Evaluation {
                    round,
                    loss,
                    accuracy,
                };
                push(&mut self.evaluations, EVALUATIONS, evaluation);
            }
            // Words for the person at this machine; they may name its files.
            Event::Warning { .. } => self.totals.warnings += 1,
            Event::Done(_) => self.phase = Phase::Done,
        }
    }

    fn round(&mut self, round: &Round, now_ms: u64) {
        self.phase = Phase::Training;
        self.sync = None;
        for peer in self.peers.values_mut() {
            (peer.member, peer.weight) = (false, 0);
        }
        for share in &round.members {
            let peer = self.peer(&share.peer, now_ms);
            peer.member = true;
            peer.weight = share.weight;
            peer.samples += share.weight;
            peer.rounds += 1;
        }
        if round.loss.is_finite() {
            self.curve.push(round.round, round.loss);
        }
        self.recent.push_back((now_ms, round.samples));
        // The first only sets the clock, so two at least.
        while self.recent.len() > 2 && self.recent[0].0 + RATE_WINDOW_MS < now_ms {
            self.recent.pop_front();
        }
        let totals = &mut self.totals;
        totals.rounds += 1;
        totals.bytes_sent += round.bytes_sent;
        totals.bytes_received += round.bytes_received;
        for (sum, seconds) in [
            (&mut totals.compute_seconds, round.compute_seconds),
            (&mut totals.reduce_seconds, round.reduce_seconds),
        ] {
            *sum += if seconds.is_finite() { seconds } else { 0.0 };
        }
        self.round = Some(round.clone());
    }

    fn peer(&mut self, name: &str, now_ms: u64) -> &mut Peer {
        if !self.peers.contains_key(name) && self.peers.len() >= PEERS {
            let gone = self.peers.iter().filter(|(_, peer)| !peer.member);
            let oldest = gone
                .min_by_key(|(_, peer)| peer.last_ms)
                .map(|(name, _)| name.clone());
            // A ring has fewer members than that; nobody is left without a place.
            if let Some(oldest) = oldest {
                self.peers.remove(&oldest);
            }
        }
        let peer = self.peers.entry(name.to_owned()).or_default();
        peer.last_ms = now_ms;
        peer
    }

    /// Sums over this peer's time.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The first event, once it has happened.
    pub fn ready(&self) -> Option<&Ready> {
        self.ready.as_ref()
    }

    /// The last round.
    pub fn last_round(&self) -> Option<&Round> {
        self.round.as_ref()
    }

    /// The last evaluation.
    pub fn last_evaluation(&self) -> Option<Evaluation> {
        self.evaluations.back().copied()
    }

    /// How many members the last round had, with those who have come or gone since.
    pub fn members(&self) -> usize {
        self.peers.values().filter(|peer| peer.member).count()
    }

    /// What this peer does.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Samples that the run counted per second, lately.
    pub fn samples_per_second(&self, now_ms: u64) -> f64 {
        let (Some((first, _)), Some((last, _))) = (self.recent.front(), self.recent.back()) else {
            return 0.0;
        };
        let samples: u64 = self.recent.iter().skip(1).map(|(_, samples)| samples).sum();
        // A run that stands still slows down here too, instead of keeping its last speed for ever.
        let end = if now_ms > last + RATE_WINDOW_MS {
            now_ms
        } else {
            *last
        };
        match end - first {
            0 => 0.0,
            ms => samples as f64 * 1000.0 / ms as f64,
        }
    }

    /// All of it, for watchers. It holds no secret.
    pub fn status(&self, now_ms: u64) -> Status<'_> {
        let ready = self.ready.as_ref();
        let round = self.round.as_ref();
        let mut peers: Vec<PeerStatus<'_>> = self
            .peers
            .iter()
            .map(|(name, peer)| PeerStatus {
                peer: name,
                member: peer.member,
                weight: peer.weight,
                samples: peer.samples,
                rounds: peer.rounds,
            })
            .collect();
        // Members first, in ring order.
        let place = |name: &str| {
            let mut members = round.into_iter().flat_map(|round| &round.members);
            members.position(|share| share.peer == name).unwrap_or(usize::MAX)
        };
        peers.sort_by_cached_key(|peer| (!peer.member, place(peer.peer)));
        Status {
            version: env!("CARGO_PKG_VERSION"),
            run: ready.map(|ready| ready.run.as_str()),
            task: ready.map(|ready| ready.task.as_str()),
            parameters: ready.map(|ready| ready.parameters),
            peer: ready.map(|ready| ready.peer.as_str()),
            device: ready.map(|ready| ready.device.as_str()),
            phase: self.phase,
            sync: self.sync,
            started: rfc3339(self.begun_ms),
            elapsed_seconds: now_ms.saturating_sub(self.begun_ms) as f64 / 1000.0,
            round: round.map_or(0, |round| round.round),
            loss: round.map(|round| round.loss),
            digest: round.map(|round| round.digest.as_str()),
            counted: round.map_or(0, |round| round.counted),
            target: ready.map(|ready| ready.target),
            samples_per_second: self.samples_per_second(now_ms),
            bytes_sent: self.totals.bytes_sent,
            bytes_received: self.totals.bytes_received,
            peers,
            changes: &self.changes,
            evaluations: &self.evaluations,
            losses: self.curve.points(),
        }
    }
}

fn push<T>(row: &mut VecDeque<T>, most: usize, value: T) {
    if row.len() == most {
        row.pop_front();
    }
    row.push_back(value);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::events::{Done, Share};
    use serde_json::Value;
    use std::collections::BTreeSet;

    pub(crate) fn name(n: u8) -> String {
        format!("{n:02x}").repeat(32)
    }

    pub(crate) fn ready() -> Event {
        Event::Ready(Ready {
            peer: name(1),
            run: name(0xee),
            ticket: "annulus1secret".into(),
            url: Some("http://localhost:1/#annulus1secret".into()),
            share_url: Some("https://192.0.2.1:1/#annulus1secret".into()),
            task: "digits".into(),
            device: "CPU \"x\"".into(),
            parameters: 101_770,
            target: 6400,
        })
    }

    pub(crate) fn round(number: u64, weights: &[(u8, u64)], loss: f32) -> Event {
        let samples = weights.iter().map(|(_, weight)| weight).sum();
        Event::Round(Round {
            round: number,
            view: "00c0ffee00c0ffee".into(),
            members: weights
                .iter()
                .map(|(n, weight)| Share {
                    peer: name(*n),
                    weight: *weight,
                })
                .collect(),
            loss,
            digest: name(0xcd),
            samples,
            counted: 64 * number,
            compute_seconds: 0.25,
            reduce_seconds: f64::NAN,
            seconds: 0.5,
            bytes_sent: 1000,
            bytes_received: 2000,
        })
    }

    fn member(n: u8, change: Change) -> Event {
        Event::Member {
            peer: name(n),
            change,
            round: 1,
            reason: "why".into(),
        }
    }

    fn json(board: &Board, now_ms: u64) -> Value {
        serde_json::to_value(board.status(now_ms)).unwrap()
    }

    #[test]
    fn a_round_shows_who_did_what() {
        let mut board = Board::new(1000);
        assert_eq!(json(&board, 1000)["phase"], "starting");
        assert_eq!(json(&board, 1000)["loss"], Value::Null);
        board.take(&ready(), 1000);
        board.take(&round(1, &[(2, 40), (1, 24)], 2.5), 2000);
        board.take(&round(2, &[(2, 32), (1, 32)], 2.0), 3000);
        board.take(&member(2, Change::Failed), 3000);
        board.take(&round(3, &[(1, 64)], f32::NAN), 5000);
        let status = json(&board, 6000);
        assert_eq!(status["phase"], "training");
        assert_eq!(status["started"], "1970-01-01T00:00:01.000Z");
        assert_eq!(status["elapsed_seconds"], 5.0);
        assert_eq!((&status["round"], &status["counted"]), (&3.into(), &192.into()));
        assert_eq!(status["loss"], Value::Null);
        assert_eq!(status["losses"], serde_json::json!([[1, 2.5], [2, 2.0]]));
        assert_eq!(status["samples_per_second"], 128.0 / 3.0);
        assert_eq!(status["bytes_received"], 6000);
        let peer = |n, member, weight, samples, rounds| {
            serde_json::json!({"peer": name(n), "member": member, "weight": weight, "samples": samples,
                "rounds": rounds})
        };
        assert_eq!(
            status["peers"],
            Value::Array(vec![peer(1, true, 64, 120, 3), peer(2, false, 0, 72, 2)])
        );
        assert_eq!(status["changes"][0]["change"], "failed");
        assert_eq!(board.totals().compute_seconds, 0.75);
        assert_eq!(board.totals().reduce_seconds, 0.0);
        assert_eq!(board.members(), 1);
    }

    #[test]
    fn nothing_secret_is_told() {
        let mut board = Board::new(0);
        board.take(&ready(), 0);
        board.take(
            &Event::Warning {
                message: "/home/someone".into(),
            },
            0,
        );
        board.take(
            &Event::Done(Done {
                round: 1,
                digest: name(2),
                loss: 0.1,
                accuracy: None,
                dir: "/home/someone".into(),
            }),
            0,
        );
        let text = json(&board, 0).to_string();
        assert!(text.contains("\"done\""));
        assert!(
            !text.contains("annulus1secret") && !text.contains("someone"),
            "{text}"
        );
    }

    #[test]
    fn everything_is_bounded() {
        let mut board = Board::new(0);
        for i in 0..2000u64 {
            let n = (i % 250) as u8;
            board.take(&member(n, Change::Joined), i);
            board.take(&member(n, Change::Left), i);
            board.take(&round(i + 1, &[(n, 1)], 1.0), i);
            board.take(
                &Event::Eval {
                    round: i,
                    loss: 1.0,
                    accuracy: None,
                },
                i,
            );
            let long = Event::Member {
                peer: format!("{i:064}"),
                change: Change::Left,
                round: i,
                reason: String::new(),
            };
            board.take(&long, i);
        }
        let status = json(&board, 2000);
        let len = |field: &str| status[field].as_array().unwrap().len();
        assert_eq!(
            (len("changes"), len("evaluations"), len("peers")),
            (CHANGES, EVALUATIONS, PEERS)
        );
        assert!(len("losses") <= 500 && len("losses") >= 250);
        assert_eq!(status["evaluations"][99]["round"], 1999);
        assert_eq!(status["changes"][49]["round"], 1999);
    }

    #[test]
    fn a_run_that_stands_still_slows_down() {
        let mut board = Board::new(0);
        assert_eq!(board.samples_per_second(5), 0.0);
        board.take(&round(1, &[(1, 64)], 1.0), 0);
        assert_eq!(board.samples_per_second(5), 0.0);
        board.take(&round(2, &[(1, 64)], 1.0), 1000);
        assert_eq!(board.samples_per_second(2000), 64.0);
        assert_eq!(board.samples_per_second(64_000), 1.0);
        for i in 3..100 {
            board.take(&round(i, &[(1, 10)], 1.0), 1000 * i);
        }
        assert_eq!(board.samples_per_second(99_000), 10.0);
    }

    #[test]
    fn the_documentation_lists_just_these_fields() {
        fn collect(prefix: &str, value: &Value, into: &mut BTreeSet<String>) {
            match value {
                Value::Object(map) => {
                    for (key, inner) in map {
                        let name = if prefix.is_empty() {
                            key.clone()
                        } else {
                            format!("{prefix}.{key}")
                        };
                        into.insert(name.clone());
                        collect(&name, inner, into);
                    }
                }
                Value::Array(row) => {
                    let name = format!("{prefix}[]");
                    row.iter()
                        .filter(|value| value.is_object())
                        .for_each(|value| collect(&name, value, into));
                }
                _ => {}
            }
        }
        let mut board = Board::new(0);
        board.take(&ready(), 0);
        board.take(&round(1, &[(1, 64)], 1.0), 0);
        board.take(&member(2, Change::Joined), 0);
        board.take(
            &Event::Eval {
                round: 1,
                loss: 1.0,
                accuracy: Some(0.5),
            },
            0,
        );
        board.take(
            &Event::Sync {
                bytes: 1,
                total: 2,
                round: 3,
            },
            0,
        );
        let mut written = BTreeSet::new();
        collect("", &json(&board, 0), &mut written);
        let text = include_str!("../../../docs/status.md");
        let section = text
            .split("## `/status`")
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        let documented: BTreeSet<String> = section
            .lines()
            .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
            .collect();
        assert_eq!(documented, written);
    }
}
