//! The demo's picture: the ring, the loss, the peers, the news. Pure: a [`Book`] and a time go in, a grid comes out.

use super::super::human;
use super::super::progress;
use super::super::terminal::Color;
use super::book::{Agreement, Book, Phase};
use super::canvas::Canvas;
use std::f64::consts::TAU;

/// The smallest terminal that the picture fits.
pub const SMALLEST: (usize, usize) = (72, 22);
/// No use in becoming larger than this.
const LARGEST: (usize, usize) = (120, 40);
/// Turns per second of what runs around the ring.
const TURNS_PER_SECOND: f64 = 0.35;

/// What moves by itself.
#[derive(Debug, Default)]
pub struct Picture {
    angles: Vec<Option<f64>>,
}

impl Picture {
    /// Draws the state of things at a time in seconds, for a terminal of that size. Never smaller than [`SMALLEST`].
    pub fn draw(&mut self, book: &Book, now: f64, size: (usize, usize)) -> Canvas {
        let width = size.0.clamp(SMALLEST.0, LARGEST.0);
        let height = size.1.clamp(SMALLEST.1, LARGEST.1);
        let mut canvas = Canvas::new(width, height);
        let peers = book.peers.len().max(4);
        let news = (height - SMALLEST.1) / 3 + 4;
        let top = height - 1 - peers - 1 - news - 3;
        let half = width as i64 * 9 / 20;
        head(&mut canvas, book, now, width);
        self.ring(&mut canvas, book, now, (0, 2, half, top as i64));
        curve(
            &mut canvas,
            book,
            (half + 2, 2, width as i64 - half - 3, top as i64),
        );
        let mut y = top as i64 + 3;
        table(&mut canvas, book, y);
        y += peers as i64 + 2;
        latest(&mut canvas, book, y, news);
        canvas
    }

    /// The members on a circle in ring order, what they exchange running around it, the others in the middle.
    fn ring(&mut self, canvas: &mut Canvas, book: &Book, now: f64, (x, y, w, h): (i64, i64, i64, i64)) {
        let center = ((x + w / 2) * 2, y * 4 + h * 2);
        let radius = ((w - 16).min(h * 2 - 2)) as f64;
        let on = |turn: f64| {
            let (sin, cos) = ((turn - 0.25) * TAU).sin_cos();
            (center.0 as f64 + cos * radius, center.1 as f64 + sin * radius)
        };
        let ring = book.ring();
        self.angles.resize(book.peers.len(), None);
        for (i, angle) in self.angles.iter_mut().enumerate() {
            let place = ring
                .iter()
                .position(|(p, _)| *p == i)
                .map(|place| place as f64 / ring.len() as f64);
            // Glide to a new place instead of jumping there.
            *angle = place.map(|to| angle.map_or(to, |from| from + (to - from) * 0.2));
        }
        if ring.len() > 1 {
            let dots = (radius * TAU) as i64;
            for i in 0..dots {
                let turn = i as f64 / dots as f64;
                let (dx, dy) = on(turn);
                // As many bright stretches as members, one chunk each.
                let phase = (turn - now * TURNS_PER_SECOND).rem_euclid(1.0) * ring.len() as f64;
                let bright = phase.fract() > 0.6 && !over(book);
                let color = if bright { Color::Cyan } else { Color::Dim };
                if bright || i % 3 == 0 {
                    canvas.dot(dx.round() as i64, dy.round() as i64, color);
                }
            }
        }
        for (i, share) in &ring {
            let peer = &book.peers[*i];
            let turn = self.angles[*i].unwrap_or(0.0);
            let (dx, dy) = on(turn);
            let (cx, cy) = ((dx / 2.0).round() as i64, (dy / 4.0).round() as i64);
            let share = human::percent(*share, 0).replace(' ', "");
            let color = color_of(peer.phase);
            if (0.55..0.95).contains(&turn.rem_euclid(1.0)) {
                let text = format!("{share} {} ●", peer.name);
                canvas.text(cx + 1 - text.chars().count() as i64, cy, &text, color);
            } else {
                canvas.text(cx, cy, &format!("● {} {share}", peer.name), color);
            }
        }
        let others = book
            .peers
            .iter()
            .enumerate()
            .filter(|(i, _)| ring.iter().all(|(p, _)| p != i));
        let others: Vec<_> = others.map(|(_, peer)| peer).collect();
        let (mx, mut my) = (center.0 / 2, center.1 / 4 - others.len() as i64 / 2);
        if book.round() > 0 {
            canvas.centered(mx, my - 1, &human::plural(ring.len() as u64, "peer"), Color::Bold);
        }
        for peer in others {
            let text = match peer.phase {
                Phase::Starting => format!("{} starting", peer.name),
                Phase::Waiting => format!("{} waiting", peer.name),
                Phase::Syncing(share) => format!("{} catching up {}", peer.name, human::percent(share, 0)),
                Phase::Member | Phase::Done => format!("{} between rounds", peer.name),
                Phase::Killed => format!("✗ {} killed", peer.name),
                Phase::Broken => format!("✗ {} ended", peer.name),
            };
            canvas.centered(mx, my, &text, color_of(peer.phase));
            my += 1;
        }
    }
}

fn over(book: &Book) -> bool {
    book.peers.iter().any(|p| p.phase == Phase::Done)
}

fn color_of(phase: Phase) -> Color {
    match phase {
        Phase::Starting | Phase::Waiting => Color::Dim,
        Phase::Syncing(_) => Color::Yellow,
        Phase::Member | Phase::Done => Color::Green,
        Phase::Killed | Phase::Broken => Color::Red,
    }
}

fn head(canvas: &mut Canvas, book: &Book, now: f64, width: usize) {
    canvas.text(1, 0, "annulus", Color::Bold);
    canvas.text(10, 0, "a ring of peers, no master", Color::Dim);
    let rates = book.rates().map(|(rounds, samples)| {
        format!(
            "{} rounds/s  {} samples/s  ",
            human::short(rounds),
            human::short(samples)
        )
    });
    let right = format!("{}{}", rates.unwrap_or_default(), human::duration(now.floor()));
    canvas.text(
        width as i64 - 1 - right.chars().count() as i64,
        0,
        &right,
        Color::Plain,
    );
    let rounds = match book.round() {
        0 => String::new(),
        _ => format!(" {}", book.round_text()),
    };
    let room = width - 4 - rounds.chars().count();
    canvas.text(1, 1, &progress::bar(book.share(), room), Color::Cyan);
    canvas.text(room as i64 + 3, 1, &rounds, Color::Plain);
}

/// The loss over the rounds on a logarithmic scale, with marks below where something happened.
fn curve(canvas: &mut Canvas, book: &Book, (x, y, w, h): (i64, i64, i64, i64)) {
    let (left, rows) = (x + 6, h - 2);
    let expected = book.rounds_expected().unwrap_or(1).max(1) as f64;
    let (dots_x, dots_y) = (((w - 7) * 2) as f64, (rows * 4 - 1) as f64);
    let column = |round: u64| round as f64 / expected * dots_x;
    // One point per column of dots: the mean, so that noise does not fill the plot.
    let mut columns: Vec<(f64, f64, f64)> = Vec::new();
    let losses = book.losses.iter().map(|(n, l)| (*n, f64::from(*l)));
    for (round, loss) in losses.filter(|(_, l)| l.is_finite() && *l > 0.0) {
        let at = column(round).floor();
        match columns.last_mut() {
            Some(last) if last.0 == at => *last = (at, last.1 + loss, last.2 + 1.0),
            _ => columns.push((at, loss, 1.0)),
        }
    }
    let points: Vec<(f64, f64)> = columns.iter().map(|(at, sum, n)| (*at, sum / n)).collect();
    let Some((_, newest)) = points.last() else {
        canvas.centered(x + w / 2, y + h / 2, "the loss will be drawn here", Color::Dim);
        return;
    };
    let high = points.iter().map(|(_, l)| *l).fold(0.0, f64::max);
    // At least a decade, so that the first rounds do not fill the plot.
    let low = points.iter().map(|(_, l)| *l).fold(high / 10.0, f64::min);
    canvas.text(x, y, &format!("{:>5}", human::loss(high)), Color::Dim);
    canvas.text(x, y + rows - 1, &format!("{:>5}", human::loss(low)), Color::Dim);
    for row in 0..rows {
        canvas.text(left - 1, y + row, "│", Color::Dim);
    }
    canvas.text(
        left - 1,
        y + rows,
        &format!("└{}", "─".repeat((w - 6).max(0) as usize)),
        Color::Dim,
    );
    let place = |(at, loss): (f64, f64)| {
        let depth = (high / loss).ln() / (high / low).ln();
        ((left * 2) as f64 + at, (y * 4) as f64 + dots_y * depth)
    };
    for pair in points.windows(2) {
        canvas.line(place(pair[0]), place(pair[1]), Color::Yellow);
    }
    for (round, sign, color) in &book.marks {
        canvas.text(
            left + (column(*round) / 2.0) as i64,
            y + rows,
            &sign.to_string(),
            *color,
        );
    }
    let accuracy = book.eval.and_then(|(_, accuracy)| accuracy);
    let accuracy = accuracy.map(|a| format!("   accuracy {}", human::percent(f64::from(a), 1)));
    let text = format!("loss {}{}", human::loss(*newest), accuracy.unwrap_or_default());
    canvas.text(x + w - text.chars().count() as i64, y, &text, Color::Bold);
}

/// A row per peer: who it is, what it does, and the state that it holds.
fn table(canvas: &mut Canvas, book: &Book, y: i64) {
    let head = format!(
        "   {:<10}{:<16}{:>7}  {:<18}same bits",
        "peer", "", "round", "state (BLAKE3)"
    );
    canvas.text(1, y, &head, Color::Dim);
    for (i, peer) in book.peers.iter().enumerate() {
        let y = y + 1 + i as i64;
        let doing = match peer.phase {
            Phase::Starting => "starting".into(),
            Phase::Waiting => "waiting".into(),
            Phase::Syncing(share) => format!("catching up {}", human::percent(share, 0)),
            Phase::Member => "member".into(),
            Phase::Killed => "killed".into(),
            Phase::Done => "done".into(),
            Phase::Broken => "ended".into(),
        };
        let id = peer.id().map_or("", |id| human::id(id));
        canvas.text(1, y, &format!("{}  {id:<10}", peer.name), Color::Plain);
        canvas.text(14, y, &doing, color_of(peer.phase));
        let Some((round, digest)) = &peer.last else {
            continue;
        };
        canvas.text(30, y, &format!("{:>7}", human::grouped(*round)), Color::Plain);
        canvas.text(39, y, digest.get(..16).unwrap_or(digest), Color::Plain);
        let (mark, color) = match book.agreement(i) {
            Agreement::Same => ("✓", Color::Green),
            Agreement::Differs => ("✗ differs", Color::Red),
            Agreement::Alone => ("- redone by the others", Color::Yellow),
            Agreement::Pending => ("…", Color::Dim),
        };
        canvas.text(57, y, mark, color);
    }
}

fn latest(canvas: &mut Canvas, book: &Book, y: i64, rows: usize) {
    let first = book.news.len().saturating_sub(rows);
    for (row, news) in book.news[first..].iter().enumerate() {
        let y = y + row as i64;
        canvas.text(1, y, &format!("{:>5.1} s", news.at), Color::Dim);
        canvas.text(10, y, &news.text, news.color);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::terminal::Style;
    use super::super::book::tests::{ready, round, three};
    use super::*;
    use crate::events::Event;

    const PLAIN: Style = Style {
        live: false,
        color: false,
    };

    fn text(book: &Book, size: (usize, usize)) -> String {
        Picture::default().draw(book, 3.0, size).rows(PLAIN).join("\n")
    }

    #[test]
    fn every_stage_fits_every_size() {
        let mut killed = three(40);
        killed.kill(1, 4.0);
        killed.take(0, round(41, &[0, 2], ""), 4.2);
        let newcomer = killed.start(4.3);
        killed.take(newcomer, ready(3), 4.4);
        killed.take(
            newcomer,
            Event::Sync {
                bytes: 43,
                total: 100,
                round: 41,
            },
            4.5,
        );
        let mut started = Book::default();
        started.start(0.0);
        for book in [
            &Book::default(),
            &started,
            &three(0),
            &three(1),
            &three(100),
            &killed,
        ] {
            for size in [SMALLEST, (80, 24), (100, 30), (300, 100)] {
                let picture = text(book, size);
                assert!(picture.lines().count() <= size.1);
                assert!(
                    picture.lines().all(|line| line.chars().count() <= size.0),
                    "{picture}"
                );
            }
        }
        assert_eq!(text(&killed, (1, 1)), text(&killed, SMALLEST));
        let picture = text(&killed, (80, 24));
        for part in [
            "✗ B killed",
            "D catching up 43 %",
            "2 peers",
            "● A 50%",
            "B is killed without warning",
        ] {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
    }

    #[test]
    fn the_peers_digests_stand_side_by_side() {
        let picture = text(&three(60), (80, 24));
        assert_eq!(picture.matches("0000003c0000003c").count(), 3, "{picture}");
        assert_eq!(picture.matches('✓').count(), 3, "{picture}");
        assert!(
            picture.contains("round 60/100") && picture.contains("loss 0.579"),
            "{picture}"
        );
        let mut book = three(60);
        book.take(0, round(61, &[0, 1, 2], ""), 7.0);
        book.take(1, round(61, &[0, 1, 2], "other"), 7.0);
        let picture = text(&book, (80, 24));
        assert!(picture.contains("✗ differs"), "{picture}");
    }

    #[test]
    fn the_loss_falls_in_the_plot() {
        let picture = text(&three(100), (100, 30));
        let lines: Vec<&str> = picture.lines().collect();
        let braille = |line: &str| {
            line.chars()
                .skip(50)
                .position(|c| ('\u{2801}'..='\u{28ff}').contains(&c))
        };
        let first: Vec<usize> = lines.iter().filter_map(|line| braille(line)).collect();
        assert!(first.len() > 5, "{picture}");
        assert!(
            first.windows(2).all(|pair| pair[0] <= pair[1]),
            "{first:?}\n{picture}"
        );
    }
}
