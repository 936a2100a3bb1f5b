//! A run's progress as one line that suits any width, and messages that scroll by above it.
//!
//! Pure: events and times go in, text comes out.

use super::human;
use super::output::Role;
use super::qr;
use super::terminal::{self, Color, Style};
use crate::events::{Change, Event, Ready, Round, Share};
use std::collections::VecDeque;

/// What is known of a run from its events.
#[derive(Debug)]
pub struct Progress {
    role: Role,
    me: String,
    target: u64,
    fetch: Option<(u64, u64)>,
    sync: Option<(u64, u64, u64)>,
    last: Option<Round>,
    loss: Option<f64>,
    recent: VecDeque<Moment>,
    rate: Option<f64>,
}

/// A committed round as far as rates need it.
#[derive(Debug)]
struct Moment {
    at: f64,
    samples: u64,
    mine: u64,
    sent: u64,
}

/// Rates are taken over so many seconds.
const WINDOW_SECONDS: f64 = 5.0;
/// And over at least so many rounds, of which the first only sets the clock.
const WINDOW_ROUNDS: usize = 4;
/// Weight of the newest loss in the smoothed one.
const SMOOTHING: f64 = 0.1;

impl Progress {
    /// Before the first event.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            me: String::new(),
            target: 0,
            fetch: None,
            sync: None,
            last: None,
            loss: None,
            recent: VecDeque::new(),
            rate: None,
        }
    }

    /// Takes an event at a time in seconds; returns what is to scroll by.
    pub fn take(&mut self, event: &Event, now: f64, style: Style) -> Vec<String> {
        match event {
            Event::Ready(ready) => self.ready(ready, style),
            Event::Fetch { bytes, total } => {
                self.fetch = Some((*bytes, *total));
                Vec::new()
            }
            Event::Sync { bytes, total, round } => {
                self.sync = Some((*bytes, *total, *round));
                Vec::new()
            }
            Event::Round(round) => {
                self.round(round, now);
                Vec::new()
            }
            Event::Member {
                peer,
                change,
                round,
                reason,
            } => vec![self.member(peer, *change, *round, reason, style)],
            Event::Eval {
                round,
                loss,
                accuracy,
            } => {
                let accuracy = accuracy.map(|a| format!(", accuracy {}", human::percent(f64::from(a), 2)));
                let text = format!(
                    "eval loss {}{}",
                    human::loss(f64::from(*loss)),
                    accuracy.unwrap_or_default()
                );
                vec![format!(
                    "{} round {round}: {text}",
                    style.paint(Color::Magenta, "*")
                )]
            }
            Event::Warning { message } => {
                vec![format!("{} {message}", style.paint(Color::Yellow, "! warning:"))]
            }
            Event::Done(done) => {
                self.sync = None;
                let accuracy = done
                    .accuracy
                    .map(|a| format!(", accuracy {}", human::percent(f64::from(a), 2)));
                vec![
                    format!(
                        "{} after round {}: loss {}{}",
                        style.paint(Color::Green, "done"),
                        human::grouped(done.round),
                        human::loss(f64::from(done.loss)),
                        accuracy.unwrap_or_default()
                    ),
                    format!(
                        "  state    {}  (the same on every peer that committed this round)",
                        human::id(&done.digest)
                    ),
                    format!("  saved    {}", done.dir),
                ]
            }
        }
    }

    fn ready(&mut self, ready: &Ready, style: Style) -> Vec<String> {
        self.fetch = None;
        self.me = ready.peer.clone();
        self.target = ready.target;
        let name = |text: &str| style.paint(Color::Dim, &format!("{text:<11}"));
        let mut lines = vec![
            format!("{}{}", name("peer"), human::id(&ready.peer)),
            format!("{}{}", name("run"), human::id(&ready.run)),
            format!(
                "{}{}, {} parameters",
                name("task"),
                ready.task,
                human::grouped(ready.parameters)
            ),
            format!("{}{}", name("device"), ready.device),
        ];
        if let Some(url) = &ready.url {
            lines.push(format!("{}{url}", name("page")));
        }
        if let Some(url) = &ready.share_url {
            lines.push(String::new());
            lines.push("Browsers on other machines take part at".into());
            lines.push(String::new());
            lines.push(format!("    {}", style.paint(Color::Bold, url)));
            lines.push(String::new());
            lines.push(
                "If the browser warns of the certificate: this peer made it itself. Go on under \"Advanced\"; the link \
                 proves both ends to each other by the ticket."
                    .into(),
            );
            let width = terminal::size().0;
            if let Some(code) = style.live.then(|| qr::code(url, width)).flatten() {
                lines.extend(code.lines().map(str::to_owned));
            }
        }
        if self.role == Role::Founder {
            lines.push(String::new());
            lines.push("Others take part with".into());
            lines.push(String::new());
            lines.push(format!(
                "    {}",
                style.paint(Color::Bold, &format!("{} join {}", program(), ready.ticket))
            ));
            lines.push(String::new());
        }
        lines
    }

    fn round(&mut self, round: &Round, now: f64) {
        let mine = round
            .members
            .iter()
            .filter(|m| m.peer == self.me)
            .map(|m| m.weight)
            .sum();
        self.recent.push_back(Moment {
            at: now,
            samples: round.samples,
            mine,
            sent: round.bytes_sent,
        });
        while self.recent.len() > WINDOW_ROUNDS && now - self.recent[0].at > WINDOW_SECONDS {
            self.recent.pop_front();
        }
        self.rate = self.per_second(|m| m.samples);
        if round.loss.is_finite() && round.samples > 0 {
            let loss = f64::from(round.loss);
            self.loss = Some(self.loss.map_or(loss, |old| old + SMOOTHING * (loss - old)));
        }
        self.sync = None;
        self.last = Some(round.clone());
    }

    /// The oldest moment only says when the window begins.
    fn per_second(&self, what: impl Fn(&Moment) -> u64) -> Option<f64> {
        let seconds = self.recent.back()?.at - self.recent.front()?.at;
        let sum: u64 = self.recent.iter().skip(1).map(what).sum();
        (seconds > 0.0).then(|| sum as f64 / seconds)
    }

    fn member(&self, peer: &str, change: Change, round: u64, reason: &str, style: Style) -> String {
        let who = if peer == self.me {
            "this peer".into()
        } else {
            human::id(peer).to_owned()
        };
        let (sign, color, verb) = match change {
            Change::Joined => ("+", Color::Green, "joined"),
            Change::Left => ("-", Color::Dim, "left"),
            Change::Failed => ("x", Color::Red, "failed"),
            Change::Evicted => ("x", Color::Red, "was put out"),
        };
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        format!(
            "{} {who} {verb} after round {}{reason}",
            style.paint(color, sign),
            human::grouped(round)
        )
    }

    /// The line of progress in at most `width` columns; none before there is any.
    pub fn line(&self, now: f64, width: usize, style: Style) -> Option<String> {
        if let Some((bytes, total)) = self.fetch {
            let what = "fetching the run's data ".to_owned();
            return Some(part_of_bytes(what, bytes, total, width, style));
        }
        if let Some((bytes, total, round)) = self.sync {
            let what = format!("catching up with round {} ", human::grouped(round));
            return Some(part_of_bytes(what, bytes, total, width, style));
        }
        let round = self.last.as_ref()?;
        let share = round.counted as f64 / self.target.max(1) as f64;
        let left = self.target.saturating_sub(round.counted);
        let mut parts = Vec::new();
        let rounds = match round.samples {
            0 => human::grouped(round.round),
            n => format!(
                "{}/{}",
                human::grouped(round.round),
                human::grouped(round.round + left.div_ceil(n))
            ),
        };
        parts.push(Part::new(0, Color::Bold, format!("round {rounds}")));
        parts.push(Part::new(5, Color::Cyan, bar(share, 16)));
        if let Some(loss) = self.loss {
            parts.push(Part::new(1, Color::Plain, format!("loss {}", human::loss(loss))));
        }
        if let Some(rate) = self.rate {
            parts.push(Part::new(
                2,
                Color::Plain,
                format!("{} samples/s", human::short(rate)),
            ));
            if round.members.len() > 1
                && let Some(mine) = self.per_second(|m| m.mine)
            {
                parts.push(Part::new(6, Color::Dim, format!("({} here)", human::short(mine))));
            }
        }
        self.members(round, &mut parts);
        if let Some(rate) = self.per_second(|m| m.sent).filter(|rate| *rate > 0.0) {
            parts.push(Part::new(7, Color::Dim, format!("{}/s sent", human::bytes(rate))));
        }
        if let Some(rate) = self.rate.filter(|rate| *rate > 0.0) {
            // Count down between rounds too.
            let since = self.recent.back().map_or(0.0, |m| now - m.at);
            let eta = (left as f64 / rate - since).max(0.0);
            parts.push(Part::new(
                3,
                Color::Plain,
                format!("{} left", human::duration(eta)),
            ));
        }
        Some(fit(parts, width, style))
    }

    /// Who contributes how much: each by name while there are few, and how many in any case.
    fn members(&self, round: &Round, parts: &mut Vec<Part>) {
        let total: u64 = round.members.iter().map(|m| m.weight).sum();
        let percent = |m: &Share| format!("{:.0}%", 100.0 * m.weight as f64 / total.max(1) as f64);
        if (2..=6).contains(&round.members.len()) {
            let name = |m: &Share| {
                if m.peer == self.me {
                    "me".into()
                } else {
                    human::id(&m.peer)[..4].to_owned()
                }
            };
            let shares: Vec<String> = round
                .members
                .iter()
                .map(|m| format!("{} {}", name(m), percent(m)))
                .collect();
            parts.push(Part::new(8, Color::Plain, shares.join(" ")));
        } else {
            parts.push(Part::new(
                4,
                Color::Plain,
                human::plural(round.members.len() as u64, "peer"),
            ));
        }
    }
}

/// What is fetched, a bar, and how much of it is here.
fn part_of_bytes(what: String, bytes: u64, total: u64, width: usize, style: Style) -> String {
    let share = bytes as f64 / total.max(1) as f64;
    let amount = format!("{} of {}", human::bytes(bytes as f64), human::bytes(total as f64));
    let parts = vec![
        Part::new(0, Color::Plain, what),
        Part::new(2, Color::Cyan, bar(share, 20)),
        Part::new(1, Color::Plain, amount),
    ];
    fit(parts, width, style)
}

/// A piece of the line. The higher `rank`, the sooner it is dropped where there is no room.
struct Part {
    rank: u8,
    color: Color,
    text: String,
}

impl Part {
    fn new(rank: u8, color: Color, text: String) -> Self {
        Self { rank, color, text }
    }
}

/// Joins the parts with two blanks, dropping the least important until the line fits.
fn fit(mut parts: Vec<Part>, width: usize, style: Style) -> String {
    let columns = |parts: &[Part]| {
        parts
            .iter()
            .map(|p| p.text.chars().count() + 2)
            .sum::<usize>()
            .saturating_sub(2)
    };
    while columns(&parts) > width && parts.len() > 1 {
        let least = (0..parts.len())
            .max_by_key(|i| parts[*i].rank)
            .expect("there are parts");
        parts.remove(least);
    }
    for part in &mut parts {
        part.text = part.text.chars().take(width).collect();
    }
    let texts: Vec<String> = parts.iter().map(|p| style.paint(p.color, &p.text)).collect();
    texts.join("  ")
}

/// A bar of `width` columns, in eighths of a column.
pub fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (width * 8) as f64) as usize;
    let mut text = "█".repeat(eighths / 8);
    if eighths / 8 < width {
        text.push([' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % 8]);
        text.extend(std::iter::repeat_n(' ', width - eighths / 8 - 1));
    }
    format!("▕{text}▏")
}

/// What this program is called here: a model of one's own makes a program of another name.
fn program() -> String {
    let path = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = path.and_then(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| "annulus".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style {
        live: false,
        color: false,
    };
    const COLOR: Style = Style {
        live: true,
        color: true,
    };

    fn peer(i: usize) -> String {
        format!("{i:08x}").repeat(8)
    }

    fn ready() -> Event {
        Event::Ready(Ready {
            peer: peer(1),
            run: "ef".repeat(32),
            ticket: "TICKET".into(),
            url: None,
            share_url: None,
            task: "digits".into(),
            device: "CPU, 8 threads".into(),
            parameters: 101_770,
            target: 64_000,
        })
    }

    fn round(n: u64, peers: usize, loss: f32) -> Event {
        Event::Round(Round {
            round: n,
            view: "0".into(),
            members: (1..=peers)
                .map(|i| Share {
                    peer: peer(i),
                    weight: 64 / peers as u64,
                })
                .collect(),
            loss,
            digest: "cd".repeat(32),
            samples: 64,
            counted: 64 * n,
            compute_seconds: 0.1,
            reduce_seconds: 0.1,
            seconds: 0.2,
            bytes_sent: 500_000,
            bytes_received: 500_000,
        })
    }

    fn after(rounds: u64, peers: usize) -> Progress {
        let mut progress = Progress::new(Role::Founder);
        progress.take(&ready(), 0.0, PLAIN);
        for n in 1..=rounds {
            assert!(
                progress
                    .take(&round(n, peers, 0.5), n as f64 * 0.2, PLAIN)
                    .is_empty()
            );
        }
        progress
    }

    #[test]
    fn the_line_tells_all_where_there_is_room() {
        let progress = after(500, 4);
        assert_eq!(
            progress.line(100.0, 160, PLAIN).unwrap(),
            "round 500/1,000  ▕████████        ▏  loss 0.500  320 samples/s  (80 here)  \
             me 25% 0000 25% 0000 25% 0000 25%  2.50 MB/s sent  1m 40s left"
        );
    }

    #[test]
    fn the_line_fits_every_width_and_keeps_what_matters() {
        for peers in [1, 2, 6, 40] {
            let progress = after(500, peers);
            for width in 1..200 {
                let line = progress.line(100.0, width, PLAIN).unwrap();
                assert!(line.chars().count() <= width, "{width}: {line}");
                assert!(width < 30 || line.contains("loss 0.500"), "{width}: {line}");
                assert!(width < 60 || line.contains("left"), "{width}: {line}");
                let colored = progress.line(100.0, width, COLOR).unwrap();
                assert_eq!(
                    colored.matches("\x1b[0m").count() * 2,
                    colored.matches('\x1b').count()
                );
            }
        }
        assert!(after(3, 40).line(1.0, 120, PLAIN).unwrap().contains("40 peers"));
    }

    #[test]
    fn there_is_no_line_before_there_is_progress() {
        let mut progress = Progress::new(Role::Newcomer);
        assert!(progress.line(0.0, 80, PLAIN).is_none());
        let (bytes, total) = (3_100_000, 12_400_000);
        progress.take(&Event::Fetch { bytes, total }, 0.0, PLAIN);
        assert_eq!(
            progress.line(0.0, 80, PLAIN).unwrap(),
            "fetching the run's data   ▕█████               ▏  3.10 MB of 12.4 MB"
        );
        progress.take(&ready(), 0.0, PLAIN);
        assert!(progress.line(0.0, 80, PLAIN).is_none());
        progress.take(
            &Event::Sync {
                bytes: 500_000,
                total: 1_000_000,
                round: 1234,
            },
            0.0,
            PLAIN,
        );
        assert_eq!(
            progress.line(0.0, 80, PLAIN).unwrap(),
            "catching up with round 1,234   ▕██████████          ▏  500 kB of 1.00 MB"
        );
        progress.take(&round(1235, 2, 0.5), 0.1, PLAIN);
        assert!(progress.line(0.1, 80, PLAIN).unwrap().starts_with("round 1,235/"));
    }

    #[test]
    fn a_strange_round_does_no_harm() {
        let mut progress = after(10, 1);
        for (n, loss) in [(11, f32::NAN), (12, f32::INFINITY)] {
            progress.take(&round(n, 1, loss), 2.0, PLAIN);
        }
        let Event::Round(empty) = round(13, 1, 0.0) else {
            unreachable!()
        };
        let empty = Round {
            samples: 0,
            members: Vec::new(),
            ..empty
        };
        progress.take(&Event::Round(empty), 2.0, PLAIN);
        let line = progress.line(2.0, 160, PLAIN).unwrap();
        assert!(
            line.contains("round 13 ") && line.contains("loss 0.500") && line.contains("0 peers"),
            "{line}"
        );
    }

    #[test]
    fn messages_scroll_by() {
        let mut progress = after(3, 2);
        let mut say = |event| progress.take(&event, 1.0, PLAIN).join("\n");
        let member = |i, change, reason: &str| Event::Member {
            peer: peer(i),
            change,
            round: 1500,
            reason: reason.into(),
        };
        assert_eq!(
            say(member(2, Change::Joined, "")),
            "+ 00000002 joined after round 1,500"
        );
        assert_eq!(
            say(member(2, Change::Failed, "no answer")),
            "x 00000002 failed after round 1,500: no answer"
        );
        assert_eq!(
            say(member(1, Change::Evicted, "")),
            "x this peer was put out after round 1,500"
        );
        assert_eq!(
            say(Event::Eval {
                round: 9,
                loss: 0.25,
                accuracy: Some(0.9712)
            }),
            "* round 9: eval loss 0.250, accuracy 97.12 %"
        );
        assert_eq!(say(Event::Warning { message: "m".into() }), "! warning: m");
    }

    #[test]
    fn the_founder_shows_how_to_join() {
        let text = |role| Progress::new(role).take(&ready(), 0.0, PLAIN).join("\n");
        assert!(text(Role::Founder).contains(" join TICKET\n"));
        assert!(!text(Role::Newcomer).contains("join"));
        assert!(text(Role::Newcomer).contains("digits, 101,770 parameters"));
    }

    #[test]
    fn bars() {
        assert_eq!(bar(0.0, 2), "▕  ▏");
        assert_eq!(bar(0.5, 3), "▕█▌ ▏");
        assert_eq!(bar(1.0, 2), "▕██▏");
        assert_eq!(bar(f64::NAN, 2), "▕  ▏");
        assert_eq!(bar(7.0, 2), "▕██▏");
    }
}
