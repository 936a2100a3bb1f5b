//! `annulus demo --slow-link`: four peers behind slow lines train together beside one that trains alone.
//!
//! All five are processes of this program, each with an equal part of the machine; their sockets emulate the lines. The picture is
//! drawn from their logs.

use super::super::canvas::Canvas;
use super::super::messages::Headline;
use super::super::terminal::Style;
use super::race::{Race, SIZE, TOGETHER};
use super::{Next, Play};
use crate::events::Event;
use crate::net::line::Line;

/// Milliseconds that a window of text takes each device: forty times what two cores of today need. Five peers then do not get in
/// each other's way, and a batch takes about as long as its exchange, as it does with larger models on faster devices.
const SAMPLE_MS: &str = "20";

/// The training of both runs: the smallest text model, on the text in the program. Batches and rate are the best that were found
/// for each side; docs/benchmarks.md lists the candidates.
const TRAIN: [&str; 9] = [
    "train",
    "--task",
    "gpt",
    "preset=pico",
    "lr=2e-3",
    "rounds=20000",
    "schedule=warmup",
    "warmup=20",
    "eval_windows=70",
];

/// The demo before it begins: behind which lines, and how many seconds each run is looked at.
pub fn race(line: &Line, seconds: u64) -> Race {
    Race::new(line.to_string(), SAMPLE_MS, 1000 * seconds)
}

impl Play for Race {
    /// The founder, those who join it, and when they train the one alone.
    fn next(&self, now_ms: u64) -> Next {
        match self.started {
            0 => Next::Start,
            1..TOGETHER if self.ticket_file().is_some() => Next::Start,
            TOGETHER if self.has_begun() => Next::Start,
            _ if self.is_over(now_ms) => Next::End,
            _ => Next::Wait,
        }
    }

    fn start(&mut self, _now_ms: u64) -> Vec<String> {
        let ticket = format!("@{}", self.ticket_file().unwrap_or_default());
        let run: &[&str] = match self.started {
            0 => &["batch=16", "local_steps=auto", "min_peers=4", "eval_every=4"],
            TOGETHER => &["batch=2", "eval_every=16"],
            _ => &["join", &ticket],
        };
        let train = if matches!(self.started, 0 | TOGETHER) {
            &TRAIN[..]
        } else {
            &[]
        };
        let conditions = ["--sample-at-least", SAMPLE_MS, "--line", &self.line, "--no-page"];
        self.started += 1;
        let args = [train, run, &conditions].concat();
        args.into_iter().map(str::to_owned).collect()
    }

    fn killed(&mut self, _peer: usize, _now_ms: u64) {}

    fn take(&mut self, peer: usize, event: &Event, now_ms: u64) {
        self.hear(peer, event, now_ms);
    }

    /// None ends before the demo does.
    fn ended(&mut self, _peer: usize, _now_ms: u64) -> bool {
        true
    }

    fn smallest(&self) -> (usize, usize) {
        SIZE
    }

    fn draw(&self, now_ms: u64, _size: (usize, usize)) -> Canvas {
        self.picture(now_ms)
    }

    fn news(&self) -> &[(u64, Headline)] {
        &[]
    }

    fn progress(&self, now_ms: u64, _width: usize, style: Style) -> Vec<String> {
        let lines = self.lines(now_ms).into_iter();
        lines.map(|(text, color)| style.paint(color, &text)).collect()
    }

    fn summary(&self, style: Style) -> (String, bool) {
        self.told(style)
    }
}
