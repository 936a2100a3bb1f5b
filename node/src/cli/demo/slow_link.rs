//! `annulus demo --slow-link`: four peers behind slow lines train together beside one that trains alone.
//!
//! All five are processes of this program with a part of the machine each, the same for all; the lines are acted by their
//! sockets. What is shown comes from their logs.

use super::super::error::Error;
use super::super::terminal::{self, Style};
use super::children::{Children, Message};
use super::race::{Race, SIZE, TOGETHER};
use super::stage::{FRAME_MS, LINE_PAUSE_MS, Screen, out};
use crate::net::line::Line;
use std::time::{Duration, Instant};

/// The demo gives up when the four have not begun by then.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a window of text takes each device, in milliseconds: forty times what it takes two cores of today, so that five peers do
/// not get in each other's way, and so much that a batch takes about as long as its exchange. With larger models that is so on
/// faster devices.
const SAMPLE_MS: &str = "20";

/// What is to be seen.
pub struct Options {
    /// Where the peers compute.
    pub device: String,
    /// The line of each.
    pub line: Line,
    /// How long they are looked at, in seconds.
    pub seconds: u64,
    /// Whether as lines.
    pub plain: bool,
}

/// Plays it to its end.
pub fn run(children: Children, options: Options) -> Result<(), Error> {
    let style = Style::of_stdout();
    let conditions = format!(
        "four behind lines of {}, and one alone; a sample takes each {SAMPLE_MS} ms",
        options.line
    );
    let fits = terminal::size().0 >= SIZE.0 && terminal::size().1 >= SIZE.1;
    let mut show = Show {
        children,
        device: options.device,
        line: options.line.to_string(),
        start: Instant::now(),
        race: Race::new(conditions, 1000 * options.seconds),
        started: 0,
        screen: (style.live && fits && !options.plain).then(Screen::enter),
        due_ms: 0,
        style,
    };
    let done = show.play();
    let now_ms = show.now_ms();
    drop(show.children);
    drop(show.screen.take());
    if fits && !options.plain && style.live {
        out(&format!(
            "{}\n\n",
            show.race.draw(now_ms).rows(style).join("\n").trim_end()
        ));
    }
    done?;
    let (text, same) = show.race.summary(style);
    out(&text);
    match same {
        true => Ok(()),
        false => Err(Error::failed(
            "the peers did not agree, as told above: please report it with this output",
        )),
    }
}

struct Show {
    children: Children,
    device: String,
    line: String,
    start: Instant,
    race: Race,
    started: usize,
    screen: Option<Screen>,
    due_ms: u64,
    style: Style,
}

impl Show {
    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn play(&mut self) -> Result<(), Error> {
        loop {
            let wait = Duration::from_millis(self.due_ms.saturating_sub(self.now_ms()));
            match self.children.next(wait) {
                Some(Message::Event(peer, event)) => {
                    let now_ms = self.now_ms();
                    self.race.take(peer, &event, now_ms);
                }
                Some(Message::Ended(peer)) => {
                    let words = self.children.last_words(peer);
                    return Err(Error::failed(format!(
                        "a peer has ended before its time. Its last words: \u{201c}{words}\u{201d}. `annulus doctor` may know why"
                    )));
                }
                Some(Message::Interrupted) => {
                    return Err(Error::failed(
                        "interrupted; all peers of the demo have been ended",
                    ));
                }
                None => {}
            }
            self.start_next()?;
            let now_ms = self.now_ms();
            if self.race.is_over(now_ms) {
                return Ok(());
            }
            if !self.race.has_begun() && self.start.elapsed() > PATIENCE {
                return Err(Error::failed(format!(
                    "four peers have not come together within {} s: try `annulus doctor`",
                    PATIENCE.as_secs()
                )));
            }
            self.show(now_ms);
        }
    }

    /// Starts whoever is to start now: the founder, those who join it, and when they train the one alone.
    fn start_next(&mut self) -> Result<(), Error> {
        let ticket = self.race.ticket_file().map(|file| format!("@{file}"));
        let args: Vec<&str> = match (self.started, &ticket) {
            (0, _) => {
                let settings = ["batch=16", "local_steps=auto", "min_peers=4", "eval_every=4"];
                [&TRAIN[..], &settings].concat()
            }
            (1..TOGETHER, Some(ticket)) => vec!["join", ticket],
            (TOGETHER, _) if self.race.has_begun() => [&TRAIN[..], &["batch=2", "eval_every=16"]].concat(),
            _ => return Ok(()),
        };
        let out = self.children.folder().join(self.started.to_string());
        let out = out.to_string_lossy();
        let common = [
            ["--device", &self.device],
            ["--listen", "127.0.0.1:0"],
            ["--log-format", "json"],
            ["--out", &out],
            ["--sample-at-least", SAMPLE_MS],
            ["--line", &self.line],
            ["--no-page", "checkpoint_every=0"],
        ];
        let args = [&args[..], common.as_flattened()].concat();
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        self.children.start(&args)?;
        self.started += 1;
        Ok(())
    }

    fn show(&mut self, now_ms: u64) {
        if now_ms < self.due_ms {
            return;
        }
        if self.screen.is_some() {
            self.due_ms = now_ms + FRAME_MS;
            let frame = self.race.draw(now_ms).rows(self.style).join("\x1b[K\r\n");
            return out(&format!("\x1b[?2026h\x1b[H{frame}\x1b[J\x1b[?2026l"));
        }
        self.due_ms = now_ms + LINE_PAUSE_MS;
        for (text, color) in self.race.lines(now_ms) {
            let text = self.style.paint(color, &text);
            out(&format!("{:>6.1} s  {text}\n", now_ms as f64 / 1000.0));
        }
    }
}

/// What both runs train: the smallest model of text there is, on the text that is in the program. Batches and rate are the best
/// that were found for each side: docs/benchmarks.md says among which.
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
