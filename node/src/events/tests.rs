//! Events as lines of JSON, and back.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

fn samples() -> Vec<Event> {
    let round = Round {
        round: 7,
        view: "00c0ffee00c0ffee".into(),
        members: vec![Share {
            peer: "ab".repeat(32),
            weight: 64,
        }],
        loss: 0.1,
        digest: "cd".repeat(32),
        samples: 64,
        counted: 448,
        compute_seconds: 0.004,
        reduce_seconds: 0.001,
        seconds: 0.005,
        bytes_sent: 1000,
        bytes_received: 2000,
        bytes_relayed: 300,
    };
    let ready = Ready {
        peer: "ab".repeat(32),
        run: "ef".repeat(32),
        code: Some("annulus2 in digits".into()),
        ticket: Some("annulus2xyz".into()),
        ticket_file: "out/ticket".into(),
        url: Some("http://localhost:4433/#annulus2xyz".into()),
        share_url: Some("https://192.0.2.1:4433/#annulus2xyz".into()),
        takes_tabs: true,
        title: "Digits for all".into(),
        about: "By a test.".into(),
        task: "digits".into(),
        device: "CPU".into(),
        parameters: 101_770,
        target: 300_000,
    };
    let done = Done {
        round: 8,
        finished: true,
        stopped_early: true,
        out_of_time: false,
        split: false,
        digest: Some("cd".repeat(32)),
        loss: 0.2,
        held_out: true,
        metrics: [("accuracy".to_owned(), 0.97)].into(),
        dir: Some("out".into()),
        best: Some(Best { round: 4, loss: 0.1 }),
    };
    let member = |change, reason: &str| Event::Member {
        peer: "ab".repeat(32),
        change,
        round: 7,
        reason: reason.into(),
    };
    vec![
        Event::Ready(ready.clone()),
        Event::Ready(Ready {
            url: None,
            share_url: None,
            ..ready
        }),
        Event::Data {
            description: "t.csv: 20 rows\n  number x".into(),
        },
        Event::Model {
            file: "out/model.safetensors".into(),
            judged: [("test".to_owned(), serde_json::json!({"rows": 30}))]
                .into_iter()
                .collect(),
        },
        Event::Named {
            peer: "ab".repeat(32),
            name: "Anna".into(),
        },
        Event::Sample {
            round: 7,
            text: "Once upon".into(),
        },
        Event::Pack { done: 1, total: 2 },
        Event::Fetch { bytes: 1, total: 2 },
        Event::Waiting { why: "why".into() },
        Event::Reach {
            addresses: vec!["192.0.2.1:4433".into()],
            why: "why".into(),
        },
        Event::Nearby {
            code: Some("annulus2 in digits".into()),
            why: "why".into(),
        },
        Event::Link {
            peer: "ab".repeat(32),
            way: Some(LinkKind::Punched),
            rtt_ms: 25.5,
        },
        Event::Link {
            peer: "ab".repeat(32),
            way: None,
            rtt_ms: 0.0,
        },
        Event::Pace(Pace {
            round: 7,
            topology: "direct".into(),
            batches: 3,
            why: "why".into(),
        }),
        Event::Shift {
            peer: "ab".repeat(32),
            round: 7,
            from: 0,
            to: 2,
            why: "why".into(),
        },
        Event::Cut {
            round: 7,
            steps: vec![6, 2],
            before: vec![4, 4],
            why: "why".into(),
        },
        Event::Sync {
            bytes: 1,
            total: 2,
            round: 3,
        },
        Event::Computing {
            round: 7,
            samples: 1000,
            done: Some(100),
            seconds: 12.5,
        },
        Event::Computing {
            round: 7,
            samples: 0,
            done: None,
            seconds: 12.5,
        },
        Event::Round(round),
        member(Change::Joined, ""),
        member(Change::Left, ""),
        member(Change::Failed, "the link closed"),
        member(Change::Evicted, "its state differed"),
        Event::Eval {
            round: 7,
            loss: 0.3,
            metrics: Metrics::new(),
        },
        Event::Warning {
            message: "a \"quoted\"\nwarning".into(),
        },
        Event::Done(done),
    ]
}

#[test]
fn every_event_survives_the_way_there_and_back_on_one_line() {
    for event in samples() {
        let line = LogLine::new(1_763_644_800_250, event);
        let json = line.to_json();
        assert!(!json.contains('\n'));
        assert_eq!(LogLine::from_json(&json).unwrap(), line, "{json}");
    }
}

#[test]
fn a_ticket_that_may_not_be_told_is_nowhere() {
    let told = |event: &Event| LogLine::new(0, event.clone()).to_json().contains("annulus2");
    for event in samples() {
        let bare = event.clone().without_ticket();
        assert!(!told(&bare), "{bare:?}");
        assert_eq!(bare == event, !told(&event));
    }
}

#[test]
fn a_line_starts_with_time_and_event() {
    let line = LogLine::new(
        0,
        Event::Sync {
            bytes: 1,
            total: 2,
            round: 3,
        },
    );
    assert_eq!(
        line.to_json(),
        r#"{"time":"1970-01-01T00:00:00.000Z","event":"sync","bytes":1,"total":2,"round":3}"#
    );
}

#[test]
fn numbers_that_are_not_finite_are_null() {
    for loss in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let json = LogLine::new(
            0,
            Event::Eval {
                round: 1,
                loss,
                metrics: Metrics::new(),
            },
        )
        .to_json();
        assert!(json.contains(r#""loss":null,"metrics":{}"#), "{json}");
        let Event::Eval { loss, .. } = LogLine::from_json(&json).unwrap().event else {
            panic!("{json}")
        };
        assert!(loss.is_nan());
    }
}

#[test]
fn unknown_fields_are_ignored_and_missing_ones_are_not() {
    let json = r#"{"time":"x","event":"sync","bytes":1,"total":2,"round":3,"later":4}"#;
    assert!(LogLine::from_json(json).is_ok());
    assert!(LogLine::from_json(r#"{"time":"x","event":"sync","bytes":1,"total":2}"#).is_err());
    assert!(LogLine::from_json(r#"{"time":"x","event":"unheard"}"#).is_err());
}

#[test]
fn times_are_those_of_the_calendar() {
    for (unix_ms, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_399_999, "2000-02-28T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (1_709_251_199_001, "2024-02-29T23:59:59.001Z"),
        (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
        (1_767_225_599_000, "2025-12-31T23:59:59.000Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
    ] {
        assert_eq!(rfc3339(unix_ms), text);
    }
}

/// Field names of each event as `docs/events.md` lists them, and as the code writes them.
#[test]
fn the_documentation_lists_just_these_fields() {
    let mut written: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in samples() {
        let json = serde_json::to_value(&event).unwrap();
        let fields = written
            .entry(json["event"].as_str().unwrap().to_owned())
            .or_default();
        for (name, value) in json
            .as_object()
            .unwrap()
            .iter()
            .filter(|(name, _)| *name != "event")
        {
            fields.insert(name.clone());
            for inner in value
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|v| v.as_object())
            {
                fields.extend(inner.keys().map(|key| format!("{name}[].{key}")));
            }
        }
    }

    let mut documented: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut section = None;
    for line in include_str!("../../../docs/events.md").lines() {
        if let Some(name) = line.strip_prefix("## `").and_then(|rest| rest.strip_suffix('`')) {
            documented.insert(name.to_owned(), BTreeSet::new());
            section = Some(name.to_owned());
        } else if line.starts_with("## ") {
            section = None;
        } else if let (Some(section), Some(row)) = (&section, line.strip_prefix("| `")) {
            let columns: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            assert_eq!(columns.len(), 4, "field, type, unit, meaning: {line}");
            assert!(columns.iter().all(|c| !c.is_empty()), "{line}");
            let field = row.split('`').next().unwrap().to_owned();
            documented.get_mut(section).unwrap().insert(field);
        }
    }
    assert_eq!(documented, written);

    let text = include_str!("../../../docs/events.md");
    for change in [
        Change::Joined,
        Change::Aside,
        Change::Left,
        Change::Failed,
        Change::Evicted,
    ] {
        let word = serde_json::to_value(change).unwrap();
        assert!(text.contains(&format!("`{}`", word.as_str().unwrap())));
    }
}
