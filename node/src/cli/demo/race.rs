//! What the demo of slow links knows and shows: a run of several peers beside one of a peer alone, over time.
//!
//! Pure: events and times go in, a picture and a summary come out. Times are milliseconds since the demo's start.

use super::super::canvas::{Canvas, Scale};
use super::super::contender::Contender;
use super::super::human;
use super::super::terminal::{Color, Style};
use crate::events::Event;
use crate::view::{RATE_WINDOW_MS, Rates, RunView};

/// Peers of the run that trains together.
pub const TOGETHER: usize = 4;

/// The size of the picture.
pub const SIZE: (usize, usize) = (78, 22);

const COLORS: [Color; 2] = [Color::Green, Color::Yellow];
const NAMES: [&str; 2] = ["four together", "one alone"];

/// Both runs.
#[derive(Debug)]
pub struct Race {
    /// Each peer's line, and the milliseconds that a sample takes it.
    pub line: String,
    sample_ms: &'static str,
    /// Peers that were started.
    pub started: usize,
    /// How long each run is looked at.
    length_ms: u64,
    /// When something was last heard.
    last_ms: u64,
    together: Contender,
    alone: Contender,
}

/// A loss that both have come to, and how long that took each.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    loss: f64,
    together_ms: u64,
    alone_ms: u64,
}

impl Race {
    /// Before anything has happened.
    pub fn new(line: String, sample_ms: &'static str, length_ms: u64) -> Self {
        Self {
            line,
            sample_ms,
            started: 0,
            length_ms,
            last_ms: 0,
            together: Contender::new(TOGETHER),
            alone: Contender::new(1),
        }
    }

    /// The file that holds the ticket of the run that trains together, once it has one.
    pub fn ticket_file(&self) -> Option<&str> {
        self.together.ticket_file()
    }

    /// Whether the run that trains together does so.
    pub fn has_begun(&self) -> bool {
        self.together.curve.has_begun()
    }

    /// Whether both have been looked at for long enough.
    pub fn is_over(&self, now_ms: u64) -> bool {
        let is_over = |run: &Contender| run.curve.elapsed_ms(now_ms) >= self.length_ms;
        self.runs().into_iter().all(is_over)
    }

    /// An event of a peer: of the run that trains together, or the one alone after these.
    pub fn hear(&mut self, peer: usize, event: &Event, now_ms: u64) {
        self.last_ms = now_ms;
        match peer.checked_sub(TOGETHER) {
            None => self.together.hear(peer, event, now_ms),
            Some(_) => self.alone.hear(0, event, now_ms),
        }
    }

    fn runs(&self) -> [&Contender; 2] {
        [&self.together, &self.alone]
    }

    /// How long each took to come to the least loss that both have come to.
    fn meeting(&self) -> Option<Meeting> {
        let [together, alone] = self.runs().map(|run| &run.curve);
        let loss = together.least()?.max(alone.least()?);
        let (together_ms, alone_ms) = (together.reaches(loss)?, alone.reaches(loss)?);
        (together_ms > 0).then_some(Meeting {
            loss,
            together_ms,
            alone_ms,
        })
    }

    /// One line for each run.
    pub fn lines(&self, now_ms: u64) -> Vec<(String, Color)> {
        let line = |i: usize| {
            let Contender { curve, logs } = self.runs()[i];
            let text = match curve.last() {
                None => "starting".into(),
                Some(loss) => {
                    let samples = logs.run.rates(super::picture::WINDOW_MS, now_ms);
                    let samples = samples.map_or(0.0, |rates| rates.samples);
                    format!(
                        "loss on text held out {}   {} windows of text a second",
                        human::loss(loss),
                        human::short(samples)
                    )
                }
            };
            (format!("{:<14} {text}", NAMES[i]), COLORS[i])
        };
        (0..2).map(line).collect()
    }

    /// Of late.
    fn rates(&self, view: &RunView) -> Option<Rates> {
        view.rates(RATE_WINDOW_MS, self.last_ms)
    }

    /// Where the time of one of the four goes, and what it has from the others.
    fn time_of_a_member(&self) -> Option<String> {
        let rates = self.rates(&self.together.logs.peers[0].view)?;
        let percent = |share| human::percent(share, 0);
        let (compute, hidden) = (percent(rates.time.compute), percent(rates.time.hidden));
        let (waits, sent) = (
            percent(rates.time.exchange),
            human::bytes(rates.bytes_sent / rates.samples),
        );
        let gain = rates.time.speed_up.map_or_else(String::new, |times| {
            format!("; {times:.1} times as many windows as it computes alone")
        });
        Some(format!(
            "  One of the four: {compute} computing, {hidden} exchanging meanwhile, {waits} waiting; {sent} sent for each \
             window{gain}."
        ))
    }

    /// How the members of the run that trains together exchange.
    fn pace(&self) -> String {
        let pace = self.together.logs.run.pace.as_ref();
        pace.map_or_else(String::new, |pace| {
            let batches = human::plural(pace.batches, "batch");
            format!("they exchange {}, after {batches}: {}", pace.topology, pace.why)
        })
    }

    /// The loss of both over time.
    pub fn picture(&self, now_ms: u64) -> Canvas {
        let mut canvas = Canvas::new(SIZE.0, SIZE.1);
        canvas.text(1, 0, "annulus", Color::Bold);
        let conditions = format!(
            "four behind lines of {}, and one alone; a sample takes each {} ms",
            self.line, self.sample_ms
        );
        canvas.text(10, 0, &conditions, Color::Dim);
        for (line, y) in self.lines(now_ms).into_iter().zip(2..) {
            canvas.text(1, y, &line.0, line.1);
        }
        canvas.text(1, 4, &self.pace(), Color::Dim);
        let (width, height, length_s) = (SIZE.0 as i64, SIZE.1 as i64, self.length_ms as f64 / 1000.0);
        let of = |i: usize| {
            let points = self.runs()[i].curve.points().iter();
            let points = points.map(|(ms, loss)| (*ms as f64 / 1000.0, *loss));
            (points.collect(), COLORS[i])
        };
        let area = (1, 6, width - 1, height - 7);
        if canvas
            .chart(area, (0.0, length_s), Scale::Linear, &[of(1), of(0)])
            .is_some()
        {
            let time = format!("time, {} in all", human::duration(length_s));
            canvas.right(width, height - 1, &time, Color::Dim);
        }
        canvas
    }

    /// How it ended, in a sentence.
    fn outcome(&self) -> String {
        let Some(Meeting {
            loss,
            together_ms,
            alone_ms,
        }) = self.meeting()
        else {
            return "There was too little time to compare them.".into();
        };
        let seconds = |ms: u64| human::duration(ms as f64 / 1000.0);
        let (loss, fast, slow) = (human::loss(loss), seconds(together_ms), seconds(alone_ms));
        let factor = alone_ms as f64 / together_ms as f64;
        match factor > 1.0 {
            true => format!(
                "Four together came to a loss of {loss} in {fast}, one alone in {slow}: {factor:.1} times as fast."
            ),
            false => format!(
                "Four together came to a loss of {loss} in {fast}, one alone in {slow}: together they were no faster."
            ),
        }
    }

    /// What was seen, and whether all peers of the run held the same bits.
    pub fn told(&self, style: Style) -> (String, bool) {
        let same = self.together.logs.agree() && self.together.logs.rounds_lost() == 0;
        let mut lines = Vec::new();
        for i in 0..2 {
            let Contender { curve, logs } = self.runs()[i];
            let view = &logs.run;
            let loss = curve.last().map_or("none".into(), human::loss);
            let samples = human::grouped(view.counted());
            let rate = self.rates(view).map_or(0.0, |rates| rates.samples);
            lines.push(style.paint(
                COLORS[i],
                &format!(
                    "  {:<14} loss on text held out {loss} after {samples} windows of text, {} a second",
                    NAMES[i],
                    human::short(rate)
                ),
            ));
        }
        lines.extend(self.time_of_a_member());
        let pace = self.pace();
        if !pace.is_empty() {
            lines.push(format!("  At the end {pace}."));
        }
        lines.push(match same {
            true => format!(
                "  {} all four held the same bits after each round",
                style.paint(Color::Green, "✓")
            ),
            false => format!(
                "  {} the four did not hold the same bits",
                style.paint(Color::Red, "✗")
            ),
        });
        lines.extend([
            String::new(),
            style.paint(Color::Bold, &self.outcome()),
            String::new(),
        ]);
        (lines.join("\n"), same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::{eval, ready_for, round};

    const PLAIN: Style = Style {
        live: false,
        color: false,
    };

    fn seen(digest: &str) -> Race {
        let mut race = Race::new("20mbit/50ms".into(), "20", 10_000);
        assert!(race.ticket_file().is_none());
        (0..=TOGETHER).for_each(|peer| race.hear(peer, &ready_for(peer as u8, 1_000_000), 10));
        assert!(race.ticket_file().is_some());
        let members = [(0, 12), (1, 12), (2, 12), (3, 12)];
        for n in 1..=100u64 {
            let now_ms = 2000 + 100 * n;
            for peer in 0..TOGETHER {
                let mut round = round(n, &members, 9.0);
                if peer == 3 && n == 100 {
                    round.digest = digest.repeat(64);
                }
                race.hear(peer, &Event::Round(round), now_ms);
            }
            // However late it is told.
            race.hear(0, &eval(n, 4.0 / (1.0 + 0.1 * n as f32), None), now_ms + 700);
            race.hear(TOGETHER, &Event::Round(round(n, &[(4, 12)], 9.0)), 3000 + 100 * n);
            race.hear(
                TOGETHER,
                &eval(n, 4.0 / (1.0 + 0.04 * n as f32), None),
                3000 + 100 * n,
            );
            assert!(!race.is_over(now_ms), "{n}");
        }
        assert!(race.has_begun() && race.is_over(13_100));
        race
    }

    #[test]
    fn the_faster_is_seen_to_be_so() {
        let last = round(100, &[], 1.0).digest;
        let race = seen(&last[..1]);
        let met = race.meeting().unwrap();
        // The loss that one has after round 99 of a hundred, the median of the last three, four have after round 40 of them.
        assert!((0.8..0.81).contains(&met.loss), "{met:?}");
        assert_eq!((met.together_ms, met.alone_ms), (4000, 9900));
        let text = race.told(PLAIN).0;
        let last = text.trim_end().lines().last().unwrap();
        assert_eq!(
            last,
            "Four together came to a loss of 0.806 in 4.0 s, one alone in 9.9 s: 2.5 times as fast."
        );
        let picture = race.picture(13_000).rows(PLAIN).join("\n");
        assert!(
            picture.contains("four together") && picture.contains("lines of 20mbit/50ms"),
            "{picture}"
        );
        assert!(
            picture
                .chars()
                .filter(|c| ('\u{2801}'..='\u{28ff}').contains(c))
                .count()
                > 60,
            "{picture}"
        );
    }

    #[test]
    fn other_bits_are_told() {
        let (text, same) = seen("e").told(PLAIN);
        assert!(!same && text.contains("did not hold the same bits"), "{text}");
    }

    #[test]
    fn before_anything_has_happened_there_is_a_picture_too() {
        let race = Race::new(String::new(), "20", 10_000);
        assert!(race.picture(0).rows(PLAIN).join("\n").contains("will be drawn"));
        assert!(race.told(PLAIN).0.contains("too little time"));
    }
}
