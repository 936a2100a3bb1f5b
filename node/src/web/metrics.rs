//! A run's numbers in Prometheus' text format. It must know nothing of HTTP.

use super::status::{Board, Phase};
use crate::events::Change;
use std::fmt::{Display, Write};

/// The content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics, at a time in milliseconds since 1970.
pub fn metrics(board: &Board, now_ms: u64) -> String {
    let mut page = Page(String::new());
    let totals = board.totals();
    if let Some(ready) = board.ready() {
        page.family("annulus_info", "gauge", "What this peer takes part in; always 1.");
        page.sample(
            "annulus_info",
            &[
                ("version", env!("CARGO_PKG_VERSION")),
                ("run", &ready.run),
                ("peer", &ready.peer),
                ("task", &ready.task),
                ("device", &ready.device),
            ],
            1,
        );
        page.gauge("annulus_parameters", "Parameters of the model.", ready.parameters);
        page.gauge(
            "annulus_target_samples",
            "Samples after which the run ends.",
            ready.target,
        );
    }
    let training = u8::from(board.phase() == Phase::Training);
    page.gauge(
        "annulus_training",
        "Whether this peer is a member of the ring.",
        training,
    );
    page.gauge("annulus_members", "Members of the ring.", board.members());
    if let Some(round) = board.last_round() {
        page.gauge("annulus_round", "The last committed round.", round.round);
        if round.loss.is_finite() {
            page.gauge(
                "annulus_loss",
                "Mean loss per sample of the last round.",
                round.loss,
            );
        }
        page.counter(
            "annulus_samples_total",
            "Samples that the run has counted.",
            round.counted,
        );
        page.gauge(
            "annulus_round_seconds",
            "From the last commit but one to the last one, at this peer.",
            round.seconds,
        );
    }
    let rate = board.samples_per_second(now_ms);
    page.gauge(
        "annulus_samples_per_second",
        "Samples that the run counts per second.",
        rate,
    );
    page.counter(
        "annulus_rounds_total",
        "Rounds that this peer saw committed.",
        totals.rounds,
    );
    page.counter(
        "annulus_bytes_sent_total",
        "Bytes that this peer sent for rounds.",
        totals.bytes_sent,
    );
    page.counter(
        "annulus_bytes_received_total",
        "Bytes that this peer received for rounds.",
        totals.bytes_received,
    );
    page.counter(
        "annulus_compute_seconds_total",
        "Time that this peer computed.",
        totals.compute_seconds,
    );
    page.counter(
        "annulus_reduce_seconds_total",
        "Time that this peer exchanged contributions and waited for others.",
        totals.reduce_seconds,
    );
    page.counter(
        "annulus_warnings_total",
        "Warnings of this peer.",
        totals.warnings,
    );
    page.family(
        "annulus_member_changes_total",
        "counter",
        "Members that came or went.",
    );
    for (change, word) in [
        (Change::Joined, "joined"),
        (Change::Left, "left"),
        (Change::Failed, "failed"),
        (Change::Evicted, "evicted"),
    ] {
        let count = totals.changes[change as usize];
        page.sample("annulus_member_changes_total", &[("change", word)], count);
    }
    if let Some(evaluation) = board.last_evaluation() {
        page.gauge(
            "annulus_evaluation_round",
            "The round that was last evaluated.",
            evaluation.round,
        );
        if evaluation.loss.is_finite() {
            page.gauge(
                "annulus_evaluation_loss",
                "Mean loss per sample held out.",
                evaluation.loss,
            );
        }
        if let Some(accuracy) = evaluation.accuracy {
            page.gauge(
                "annulus_evaluation_accuracy",
                "Share of right answers, 0 to 1.",
                accuracy,
            );
        }
    }
    page.0
}

struct Page(String);

impl Page {
    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
            .collect();
        match labels.as_slice() {
            [] => self.line(format_args!("{name} {value}")),
            _ => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{text}").expect("text can always grow");
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::status::tests::{ready, round};
    use super::*;
    use crate::events::Event;
    use std::collections::BTreeMap;

    /// Reads the text format, strictly: each family has its help and its type before its samples, and none comes twice.
    fn parse(text: &str) -> BTreeMap<String, f64> {
        assert!(text.ends_with('\n'));
        let is_name = |name: &str| {
            name.starts_with("annulus_")
                && name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        let (mut samples, mut kinds, mut helped) = (BTreeMap::new(), BTreeMap::new(), None);
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && help.ends_with('.'), "{line}");
                helped = Some(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(helped.take().as_deref(), Some(name));
                assert!(["gauge", "counter"].contains(&kind));
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert_eq!(kinds.insert(name.to_owned(), kind), None, "{name} comes twice");
                current = name.to_owned();
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = match series.split_once('{') {
                    Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
                    None => (series, ""),
                };
                assert_eq!(name, current);
                let mut rest = labels;
                while !rest.is_empty() {
                    let (key, after) = rest.split_once("=\"").unwrap();
                    assert!(key.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
                    let mut end = None;
                    let mut escape = false;
                    for (i, c) in after.char_indices() {
                        match c {
                            _ if escape => escape = false,
                            '\\' => escape = true,
                            '"' => {
                                end = Some(i);
                                break;
                            }
                            _ => {}
                        }
                    }
                    rest = &after[end.unwrap() + 1..];
                    rest = rest.strip_prefix(',').unwrap_or(rest);
                }
                let value: f64 = value.parse().unwrap();
                assert!(value.is_finite());
                assert_eq!(samples.insert(series.to_owned(), value), None);
            }
        }
        samples
    }

    #[test]
    fn every_line_is_in_prometheus_format() {
        let mut board = Board::new(0);
        assert_eq!(parse(&metrics(&board, 0))["annulus_members"], 0.0);
        board.take(&ready(), 0);
        board.take(&round(1, &[(1, 40), (2, 24)], f32::NAN), 1000);
        assert!(!metrics(&board, 1000).contains("annulus_loss"));
        board.take(&round(2, &[(1, 40), (2, 24)], 0.5), 2000);
        board.take(
            &Event::Eval {
                round: 2,
                loss: 0.25,
                accuracy: Some(0.75),
            },
            2000,
        );
        board.take(
            &Event::Member {
                peer: "aa".into(),
                change: Change::Joined,
                round: 2,
                reason: String::new(),
            },
            2000,
        );
        let samples = parse(&metrics(&board, 2000));
        for (name, value) in [
            ("annulus_round", 2.0),
            ("annulus_loss", 0.5),
            ("annulus_members", 3.0),
            ("annulus_samples_total", 128.0),
            ("annulus_samples_per_second", 64.0),
            ("annulus_bytes_sent_total", 2000.0),
            ("annulus_compute_seconds_total", 0.5),
            ("annulus_evaluation_accuracy", 0.75),
            ("annulus_training", 1.0),
            ("annulus_member_changes_total{change=\"joined\"}", 1.0),
            ("annulus_member_changes_total{change=\"evicted\"}", 0.0),
        ] {
            assert_eq!(samples[name], value, "{name}");
        }
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
