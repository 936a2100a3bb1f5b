//! What the demo of slow links knows and shows: a run of several peers beside one of a peer alone, over time.
//!
//! Pure: events and times go in, a picture and a summary come out. Times are milliseconds since the demo's start.

use super::super::canvas::{Canvas, Scale};
use super::super::human;
use super::super::terminal::{Color, Style};
use crate::events::Event;
use crate::view::{Agreement, Logs, PeerLog, RATE_WINDOW_MS, Rates, RunView};
use std::collections::VecDeque;

/// Peers of the run that trains together.
pub const TOGETHER: usize = 4;

/// The size of the picture.
pub const SIZE: (usize, usize) = (78, 22);

/// A point of a curve is the median of so many evaluations: single ones are noise.
const MEDIAN_OF: usize = 3;

/// Rounds for which an evaluation may still come.
const RECENT: usize = 256;

const COLORS: [Color; 2] = [Color::Green, Color::Yellow];
const NAMES: [&str; 2] = ["four together", "one alone"];

/// Both runs.
#[derive(Debug)]
pub struct Race {
    /// What each of the peers has behind it, and how long a sample takes it, in milliseconds.
    pub line: String,
    sample_ms: &'static str,
    /// Peers that were started.
    pub started: usize,
    /// How long each run is looked at.
    length_ms: u64,
    /// When something was last heard.
    last_ms: u64,
    together: Logs,
    alone: RunView,
    /// Of each run: when its first round was committed, and the loss on text held out since then.
    curves: [Curve; 2],
}

/// A loss that both have come to, and how long that took each.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    loss: f64,
    together_ms: u64,
    alone_ms: u64,
}

/// The loss of a run on text held out, over time.
#[derive(Debug, Default)]
pub struct Curve {
    began_ms: Option<u64>,
    /// Milliseconds since the first round, and the loss.
    points: Vec<(u64, f64)>,
    /// The last rounds, and when they were committed: their evaluations come later.
    recent: VecDeque<(u64, u64)>,
    /// The last evaluations.
    evaluated: VecDeque<f64>,
}

impl Curve {
    /// A round of a run of so many.
    pub fn take(&mut self, view: &RunView, members: usize, now_ms: u64) {
        let Some(round) = view.round.as_ref().filter(|round| round.members.len() == members) else {
            return;
        };
        if round.samples > 0 {
            let ms = now_ms - *self.began_ms.get_or_insert(now_ms);
            self.recent.push_back((round.round, ms));
            self.recent.drain(..self.recent.len().saturating_sub(RECENT));
        }
    }

    /// A loss on text that nobody trains on. It counts from when the round was committed whose parameters were tried.
    pub fn evaluate(&mut self, round: u64, loss: f64) {
        let committed = self.recent.iter().find(|(recent, _)| *recent == round);
        let Some((_, ms)) = committed.filter(|_| loss.is_finite()) else {
            return;
        };
        self.evaluated.push_back(loss);
        self.evaluated
            .drain(..self.evaluated.len().saturating_sub(MEDIAN_OF));
        if self.evaluated.len() == MEDIAN_OF {
            let mut sorted: Vec<f64> = self.evaluated.iter().copied().collect();
            sorted.sort_by(f64::total_cmp);
            self.points.push((*ms, sorted[MEDIAN_OF / 2]));
        }
    }

    /// How long ago its first round was.
    pub fn elapsed_ms(&self, now_ms: u64) -> u64 {
        self.began_ms.map_or(0, |began_ms| now_ms - began_ms)
    }

    fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, loss)| *loss)
    }

    fn least(&self) -> Option<f64> {
        self.points.iter().map(|(_, loss)| *loss).min_by(f64::total_cmp)
    }

    /// When the loss was first so low.
    pub fn reaches(&self, loss: f64) -> Option<u64> {
        let mut points = self.points.iter();
        points.find(|(_, here)| *here <= loss).map(|(ms, _)| *ms)
    }
}

impl Race {
    /// Before anything has happened.
    pub fn new(line: String, sample_ms: &'static str, length_ms: u64) -> Self {
        let mut together = Logs::default();
        together.peers.resize_with(TOGETHER, PeerLog::default);
        Self {
            line,
            sample_ms,
            started: 0,
            length_ms,
            last_ms: 0,
            together,
            alone: RunView::default(),
            curves: Default::default(),
        }
    }

    /// The file that holds the ticket of the run that trains together, once it has one.
    pub fn ticket_file(&self) -> Option<&str> {
        let ready = self.together.peers[0].view.ready.as_ref()?;
        Some(&ready.ticket_file)
    }

    /// Whether the run that trains together does so.
    pub fn has_begun(&self) -> bool {
        self.curves[0].began_ms.is_some()
    }

    /// Whether both have been looked at for long enough.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.curves
            .iter()
            .all(|curve| curve.elapsed_ms(now_ms) >= self.length_ms)
    }

    /// An event of a peer: of the run that trains together, or the one alone after these.
    pub fn hear(&mut self, peer: usize, event: &Event, now_ms: u64) {
        self.last_ms = now_ms;
        let is_round = matches!(event, Event::Round(_));
        if let &Event::Eval { round, loss, .. } = event {
            self.curves[usize::from(peer >= TOGETHER)].evaluate(round, loss.into());
        }
        if peer < TOGETHER {
            let is_news = self.together.take(peer, event, now_ms);
            if is_round && is_news {
                self.curves[0].take(&self.together.run, TOGETHER, now_ms);
            }
        } else {
            self.alone.take(event, now_ms);
            if is_round {
                self.curves[1].take(&self.alone, 1, now_ms);
            }
        }
    }

    fn views(&self) -> [&RunView; 2] {
        [&self.together.run, &self.alone]
    }

    /// How long each took to come to the least loss that both have come to.
    fn meeting(&self) -> Option<Meeting> {
        let [together, alone] = &self.curves;
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
            let (curve, view) = (&self.curves[i], self.views()[i]);
            let text = match curve.last() {
                None => "starting".into(),
                Some(loss) => {
                    let samples = view.rates(super::picture::WINDOW_MS, now_ms);
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
        let rates = self.rates(&self.together.peers[0].view)?;
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
        let pace = self.together.run.pace.as_ref();
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
            let points = self.curves[i].points.iter();
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
        let agree = |peer: usize| self.together.agreement(peer) != Agreement::Differs;
        let same = (0..TOGETHER).all(agree) && self.together.rounds_lost() == 0;
        let mut lines = Vec::new();
        for i in 0..2 {
            let (view, curve) = (self.views()[i], &self.curves[i]);
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
