//! A run's numbers in Prometheus' text format. It must know nothing of HTTP.

use crate::events::Change;
use crate::view::{Phase, RATE_WINDOW_MS, RunView};

/// The content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics, at a time in milliseconds since 1970.
pub fn metrics(view: &RunView, now_ms: u64) -> String {
    let mut page = Page(String::new());
    if let Some(ready) = &view.ready {
        page.family(
            "annulus_info",
            "gauge",
            "The run that this peer takes part in; always 1.",
        );
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("run", &ready.run),
            ("peer", &ready.peer),
            ("task", &ready.task),
            ("device", &ready.device),
        ];
        page.sample("annulus_info", &labels, "1");
    }
    for (name, help, value) in numbers(view, now_ms) {
        if let Some(value) = value {
            let kind = if name.ends_with("_total") {
                "counter"
            } else {
                "gauge"
            };
            page.family(name, kind, help);
            page.sample(name, &[], &value);
        }
    }
    let evaluated = view.evaluations.back().map(|eval| &eval.metrics);
    if let Some(metrics) = evaluated.filter(|metrics| !metrics.is_empty()) {
        page.family(EVALUATED, "gauge", "Named measures of the last evaluation.");
        for (name, value) in metrics {
            page.sample(EVALUATED, &[("metric", name)], &value.to_string());
        }
    }
    page.family(CHANGES, "counter", "Members that came or went.");
    for (change, word) in [
        (Change::Joined, "joined"),
        (Change::Aside, "aside"),
        (Change::Left, "left"),
        (Change::Failed, "failed"),
        (Change::Evicted, "evicted"),
    ] {
        let count = view.totals.changes[change as usize];
        page.sample(CHANGES, &[("change", word)], &count.to_string());
    }
    page.0
}

const EVALUATED: &str = "annulus_evaluation_metric";
const CHANGES: &str = "annulus_member_changes_total";

/// The metrics that are one number each: name, help, and the value if there is one.
#[rustfmt::skip] // a table
fn numbers(view: &RunView, now_ms: u64) -> [(&'static str, &'static str, Option<String>); 23] {
    let of = |value: u64| Some(value.to_string());
    let float = |value: f64| Some(value.to_string());
    let finite = |value: f32| value.is_finite().then(|| value.to_string());
    let (ready, round, totals) = (view.ready.as_ref(), view.round.as_ref(), &view.totals);
    let eval = view.evaluations.back();
    let rates = view.rates(RATE_WINDOW_MS, now_ms);
    let rate = rates.map_or(0.0, |rates| rates.samples);
    let time = rates.map(|rates| rates.time);
    let sent = round.filter(|r| r.samples > 0).map(|r| r.bytes_sent as f64 / r.samples as f64);
    let training = u64::from(view.phase == Phase::Training);
    [
        ("annulus_parameters", "Parameters of the model.", ready.and_then(|r| of(r.parameters))),
        ("annulus_target_samples", "Samples after which the run ends.", ready.and_then(|r| of(r.target))),
        ("annulus_training", "Whether this peer is a member of the ring.", of(training)),
        ("annulus_members", "Members of the ring.", of(view.members() as u64)),
        ("annulus_round", "The last committed round.", round.and_then(|r| of(r.round))),
        ("annulus_loss", "Mean loss per sample of the last round.", round.and_then(|r| finite(r.loss))),
        ("annulus_samples_total", "Samples that the run has counted.", round.and_then(|r| of(r.counted))),
        ("annulus_round_seconds", "From the last commit but one to the last one, at this peer.", round.and_then(|r| float(r.seconds))),
        ("annulus_samples_per_second", "Samples that the run counts per second.", float(rate)),
        ("annulus_compute_share", "Part of the time that this peer computes.", time.and_then(|t| float(t.compute))),
        ("annulus_exchange_share", "Part of the time that it exchanges, or waits, and does nothing else.", time.and_then(|t| float(t.exchange))),
        ("annulus_hidden_share", "Part of the time that it exchanges while it computes.", time.and_then(|t| float(t.hidden))),
        ("annulus_speed_up", "How many times as fast the run is as this peer alone.", time.and_then(|t| t.speed_up).and_then(float)),
        ("annulus_sample_bytes", "Bytes that this peer sent for each sample of the last round.", sent.and_then(float)),
        ("annulus_rounds_total", "Rounds that this peer saw committed.", of(totals.rounds)),
        ("annulus_bytes_sent_total", "Bytes that this peer sent for rounds.", of(totals.bytes_sent)),
        ("annulus_bytes_received_total", "Bytes that this peer received for rounds.", of(totals.bytes_received)),
        ("annulus_bytes_relayed_total", "Bytes of those sent that this peer passed on for others.", of(totals.bytes_relayed)),
        ("annulus_compute_seconds_total", "Time that this peer computed.", float(totals.compute_seconds)),
        ("annulus_reduce_seconds_total", "Time that this peer exchanged contributions and waited for others.", float(totals.reduce_seconds)),
        ("annulus_warnings_total", "Warnings of this peer.", of(totals.warnings)),
        ("annulus_evaluation_round", "The round that was last evaluated.", eval.and_then(|e| of(e.round))),
        ("annulus_evaluation_loss", "Mean loss per sample held out.", eval.and_then(|e| finite(e.loss))),
    ]
}

/// The text as it grows.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.0 += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        let label = |(key, value): &(&str, &str)| format!("{key}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        self.0 += &match labels.as_slice() {
            [] => format!("{name} {value}\n"),
            _ => format!("{name}{{{}}} {value}\n", labels.join(",")),
        };
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
    use super::*;
    use crate::view::testing::{committed, eval, member, ready};
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
        let mut view = RunView::default();
        assert_eq!(parse(&metrics(&view, 0))["annulus_members"], 0.0);
        view.take(&ready(1), 0);
        view.take(&committed(1, &[(1, 40), (2, 24)], f32::NAN), 1000);
        assert!(!metrics(&view, 1000).contains("annulus_loss"));
        view.take(&committed(2, &[(1, 40), (2, 24)], 0.5), 2000);
        view.take(&eval(2, 0.25, Some(0.75)), 2000);
        view.take(&member(3, Change::Joined, 2, ""), 2000);
        let samples = parse(&metrics(&view, 2000));
        for (name, value) in [
            ("annulus_round", 2.0),
            ("annulus_loss", 0.5),
            ("annulus_members", 3.0),
            ("annulus_samples_total", 128.0),
            ("annulus_samples_per_second", 64.0),
            ("annulus_bytes_sent_total", 2000.0),
            ("annulus_compute_seconds_total", 0.5),
            ("annulus_evaluation_metric{metric=\"accuracy\"}", 0.75),
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
