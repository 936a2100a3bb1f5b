//! A run's state as watchers see it: the JSON object that is made of a [`RunView`].
//!
//! The fields are listed in `docs/status.md`; a test holds that page and this code together. It must know nothing of
//! HTTP.

use crate::events::{Change, Pace, rfc3339};
use crate::view::{Evaluation, MemberChange, Peer, Phase, RATE_WINDOW_MS, RunView, Sample, TimeShares};
use serde::Serialize;
use std::collections::VecDeque;

/// What `/status` answers.
#[derive(Serialize)]
pub struct Status<'a> {
    version: &'static str,
    run: Option<&'a str>,
    title: Option<&'a str>,
    about: Option<&'a str>,
    task: Option<&'a str>,
    parameters: Option<u64>,
    peer: Option<&'a str>,
    device: Option<&'a str>,
    phase: &'static str,
    sync: Option<SyncStatus>,
    waiting: Option<&'a str>,
    started: String,
    elapsed_seconds: f64,
    round: u64,
    loss: Option<f32>,
    digest: Option<&'a str>,
    counted: u64,
    target: Option<u64>,
    samples_per_second: f64,
    sample_bytes: Option<f64>,
    time: Option<TimeShares>,
    pace: Option<&'a Pace>,
    bytes_sent: u64,
    bytes_received: u64,
    bytes_relayed: u64,
    sample: Option<&'a Sample>,
    peers: Vec<PeerStatus<'a>>,
    changes: Vec<ChangeStatus<'a>>,
    evaluations: &'a VecDeque<Evaluation>,
    losses: &'a [(u64, f32)],
}

#[derive(Serialize)]
struct PeerStatus<'a> {
    peer: &'a str,
    name: Option<&'a str>,
    member: bool,
    weight: u64,
    samples: u64,
    rounds: u64,
    link: Option<&'static str>,
}

#[derive(Serialize)]
struct SyncStatus {
    bytes: u64,
    total: u64,
    round: u64,
}

#[derive(Serialize)]
struct ChangeStatus<'a> {
    time: String,
    peer: &'a str,
    change: Change,
    round: u64,
    reason: &'a str,
}

impl<'a> Status<'a> {
    /// All that watchers may see of a run: it holds no secret. Times are milliseconds since 1970.
    pub fn of(view: &'a RunView, begun_ms: u64, now_ms: u64) -> Self {
        let ready = view.ready.as_ref();
        let round = view.round.as_ref();
        let rates = view.rates(RATE_WINDOW_MS, now_ms);
        let (phase, sync) = match view.phase {
            // There is no page before the data is here.
            Phase::Starting | Phase::Packing { .. } | Phase::Fetching { .. } => ("starting", None),
            Phase::Syncing { bytes, total, round } => ("syncing", Some(SyncStatus { bytes, total, round })),
            Phase::Waiting => ("waiting", None),
            Phase::Training => ("training", None),
            Phase::Done if view.done.as_ref().is_some_and(|done| !done.finished) => ("left", None),
            Phase::Done => ("done", None),
        };
        let change = |change: &'a MemberChange| ChangeStatus {
            time: rfc3339(change.at_ms),
            peer: &change.peer,
            change: change.change,
            round: change.round,
            reason: &change.reason,
        };
        Status {
            version: env!("CARGO_PKG_VERSION"),
            run: ready.map(|ready| ready.run.as_str()),
            title: ready.map(|ready| ready.title.as_str()),
            about: ready.map(|ready| ready.about.as_str()),
            task: ready.map(|ready| ready.task.as_str()),
            parameters: ready.map(|ready| ready.parameters),
            peer: ready.map(|ready| ready.peer.as_str()),
            device: ready.map(|ready| ready.device.as_str()),
            phase,
            sync,
            waiting: view.waiting.as_deref(),
            started: rfc3339(begun_ms),
            elapsed_seconds: now_ms.saturating_sub(begun_ms) as f64 / 1000.0,
            round: view.last_round(),
            loss: round.map(|round| round.loss),
            digest: round
                .map(|round| round.digest.as_str())
                .filter(|digest| !digest.is_empty()),
            counted: view.counted(),
            target: ready.map(|ready| ready.target),
            samples_per_second: rates.map_or(0.0, |rates| rates.samples),
            sample_bytes: rates
                .filter(|rates| rates.samples > 0.0)
                .map(|rates| rates.bytes_sent / rates.samples),
            time: rates.map(|rates| rates.time),
            pace: view.pace.as_ref(),
            bytes_sent: view.totals.bytes_sent,
            bytes_received: view.totals.bytes_received,
            bytes_relayed: view.totals.bytes_relayed,
            sample: view.sample.as_ref(),
            peers: peers(view),
            changes: view.changes.iter().map(change).collect(),
            evaluations: &view.evaluations,
            losses: view.losses.points(),
        }
    }
}

/// Members first, in ring order.
fn peers<'a>(view: &'a RunView) -> Vec<PeerStatus<'a>> {
    let mut peers: Vec<_> = view.peers.iter().collect();
    let place = |name: &str| {
        let mut members = view.round.iter().flat_map(|round| &round.members);
        members.position(|share| share.peer == name).unwrap_or(usize::MAX)
    };
    peers.sort_by_cached_key(|(name, peer)| (!peer.member, place(name)));
    let status = |(peer, part): (&'a String, &'a Peer)| PeerStatus {
        peer,
        name: part.name.as_deref(),
        member: part.member,
        weight: part.weight,
        samples: part.samples,
        rounds: part.rounds,
        link: view.way_to(peer),
    };
    peers.into_iter().map(status).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Event;
    use crate::net::link::LinkKind;
    use crate::view::testing::{committed, done, eval, link, member, name, pace, ready, sync};
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    fn status(events: &[(u64, Event)], now_ms: u64) -> Value {
        let mut view = RunView::default();
        events.iter().for_each(|(at_ms, event)| view.take(event, *at_ms));
        serde_json::to_value(Status::of(&view, 1000, now_ms)).unwrap()
    }

    #[test]
    fn a_run_is_told_with_all_its_peers() {
        let before = status(&[], 1000);
        assert_eq!(
            (&before["phase"], &before["loss"]),
            (&json!("starting"), &Value::Null)
        );
        let status = status(
            &[
                (1000, ready(1)),
                (2000, committed(1, &[(2, 40), (1, 24)], 2.5)),
                (3000, committed(2, &[(2, 32), (1, 32)], 2.0)),
                (3000, member(2, Change::Failed, 2, "why")),
                (5000, committed(3, &[(3, 24), (1, 40), (4, 0)], f32::NAN)),
                (5000, link(2, Some(LinkKind::Direct))),
                (5000, link(3, Some(LinkKind::Punched))),
                (5100, link(2, None)),
            ],
            6000,
        );
        for (field, value) in [
            ("phase", json!("training")),
            ("sync", Value::Null),
            ("started", json!("1970-01-01T00:00:01.000Z")),
            ("elapsed_seconds", json!(5.0)),
            ("round", json!(3)),
            ("counted", json!(192)),
            ("target", json!(6400)),
            ("loss", Value::Null),
            ("losses", json!([[1, 2.5], [2, 2.0]])),
            ("samples_per_second", json!(128.0 / 3.0)),
            ("sample_bytes", json!(2000.0 / 128.0)),
            ("bytes_sent", json!(3000)),
            ("bytes_received", json!(6000)),
            ("bytes_relayed", json!(900)),
        ] {
            assert_eq!(status[field], value, "{field}");
        }
        let peer = |n, member, (weight, samples, rounds), link: Option<&str>| json!({"peer": name(n), "name": Value::Null, "member": member, "weight": weight, "samples": samples, "rounds": rounds, "link": link});
        let peers = [
            peer(3, true, (24, 24, 1), Some("punched")),
            peer(1, true, (40, 96, 3), None),
            peer(4, true, (0, 0, 1), Some("relayed")),
            peer(2, false, (0, 72, 2), None),
        ];
        assert_eq!(status["peers"], json!(peers), "members first, in ring order");
        let change = json!({"time": "1970-01-01T00:00:03.000Z", "peer": name(2), "change": "failed", "round": 2,
            "reason": "why"});
        assert_eq!(status["changes"], json!([change]));
    }

    #[test]
    fn who_is_out_of_the_ring_has_no_links() {
        let round = [
            (0, ready(1)),
            (1, committed(1, &[(1, 1), (2, 1), (3, 1)], 1.0)),
            (2, link(2, Some(LinkKind::Punched))),
        ];
        let links = |more: Event| {
            let all = [&round[..], &[(3, more)]].concat();
            let peers = status(&all, 4)["peers"].as_array().unwrap().clone();
            peers.iter().map(|peer| peer["link"].clone()).collect::<Vec<_>>()
        };
        let word = |word: &str| Value::from(word);
        assert_eq!(
            links(link(3, Some(LinkKind::Mapped))),
            [Value::Null, word("punched"), word("mapped")]
        );
        let waiting = Event::Waiting { why: "why".into() };
        assert_eq!(links(waiting), vec![Value::Null; 3]);
        assert_eq!(links(done(1)), vec![Value::Null; 3]);
    }

    #[test]
    fn nothing_secret_is_told() {
        let warning = Event::Warning {
            message: "/home/someone".into(),
        };
        let text = status(&[(0, ready(1)), (0, warning), (0, done(1))], 0).to_string();
        assert!(text.contains("\"done\""));
        assert!(
            !text.contains("annulus2secret") && !text.contains("someone"),
            "{text}"
        );
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
        let events = [
            ready(1),
            committed(1, &[(1, 64)], 1.0),
            member(2, Change::Joined, 1, "why"),
            eval(1, 1.0, Some(0.5)),
            pace(1),
            Event::Sample {
                round: 1,
                text: "Once".into(),
            },
            committed(2, &[(1, 64)], 1.0),
            sync(1, 2, 3),
        ];
        let mut written = BTreeSet::new();
        collect(
            "",
            &status(&(0..).zip(events).collect::<Vec<_>>(), 7),
            &mut written,
        );
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
