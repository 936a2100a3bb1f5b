//! The demo's picture: the ring, the loss, the peers, the news. Pure: what was [`Observed`] and a time go in, a grid comes out.

use super::super::canvas::{Area, Canvas, Scale};
use super::super::human;
use super::super::progress;
use super::super::terminal::Color;
use super::observed::{Observed, letter};
use crate::events::Change;
use crate::view::{Agreement, Phase};
use std::f64::consts::TAU;

/// The smallest terminal that the picture fits.
pub const SMALLEST: (usize, usize) = (72, 22);
/// No use in becoming larger than this.
const LARGEST: (usize, usize) = (120, 40);
/// Turns per second of what runs around the ring.
const TURNS_PER_SECOND: f64 = 0.35;
/// Milliseconds that rates are taken over.
pub const WINDOW_MS: u64 = 2000;

/// Draws the state of things at a time, for a terminal of that size. Never smaller than [`SMALLEST`].
pub fn draw(demo: &Observed, now_ms: u64, size: (usize, usize)) -> Canvas {
    let width = size.0.clamp(SMALLEST.0, LARGEST.0);
    let height = size.1.clamp(SMALLEST.1, LARGEST.1);
    let mut canvas = Canvas::new(width, height);
    let peers = demo.logs.peers.len().max(4);
    let news = (height - SMALLEST.1) / 3 + 4;
    let top = (height - peers - news - 5) as i64;
    let (width, half) = (width as i64, width as i64 * 9 / 20);
    head(&mut canvas, demo, now_ms, width);
    ring(&mut canvas, demo, now_ms, (0, 2, half, top));
    curve(&mut canvas, demo, (half + 2, 2, width - half - 3, top));
    table(&mut canvas, demo, top + 3);
    latest(&mut canvas, demo, top + 5 + peers as i64, news);
    canvas
}

/// The members on a circle in ring order, what they exchange running around it, the others in the middle.
fn ring(canvas: &mut Canvas, demo: &Observed, now_ms: u64, (x, y, w, h): Area) {
    let center = ((x + w / 2) * 2, y * 4 + h * 2);
    let radius = ((w - 16).min(h * 2 - 2)) as f64;
    let on = |turn: f64| {
        let (sin, cos) = ((turn - 0.25) * TAU).sin_cos();
        (center.0 as f64 + cos * radius, center.1 as f64 + sin * radius)
    };
    let ring = demo.ring();
    if ring.len() > 1 {
        let over = demo.logs.run.phase == Phase::Done;
        let dots = (radius * TAU) as i64;
        for i in 0..dots {
            let turn = i as f64 / dots as f64;
            let (dx, dy) = on(turn);
            // As many bright stretches as members, one chunk each.
            let moved = turn - now_ms as f64 / 1000.0 * TURNS_PER_SECOND;
            let bright = (moved.rem_euclid(1.0) * ring.len() as f64).fract() > 0.6 && !over;
            if bright || i % 3 == 0 {
                let color = if bright { Color::Cyan } else { Color::Dim };
                canvas.dot(dx.round() as i64, dy.round() as i64, color);
            }
        }
    }
    for (place, (peer, share)) in ring.iter().enumerate() {
        let name = letter(*peer);
        let turn = place as f64 / ring.len() as f64;
        let (dx, dy) = on(turn);
        let (cx, cy) = ((dx / 2.0).round() as i64, (dy / 4.0).round() as i64);
        let share = human::percent(*share, 0).replace(' ', "");
        let (x, text) = if (0.55..0.95).contains(&turn) {
            let text = format!("{share} {name} ●");
            (cx + 1 - text.chars().count() as i64, text)
        } else {
            (cx, format!("● {name} {share}"))
        };
        canvas.text(x, cy, &text, demo.doing(*peer).1);
    }
    let others: Vec<_> = (0..demo.logs.peers.len())
        .filter(|i| ring.iter().all(|(p, _)| p != i))
        .collect();
    let (mx, my) = (center.0 / 2, center.1 / 4 - others.len() as i64 / 2);
    if demo.logs.run.last_round() > 0 {
        canvas.centered(mx, my - 1, &human::plural(ring.len() as u64, "peer"), Color::Bold);
    }
    for (i, y) in others.into_iter().zip(my..) {
        let (doing, color) = match demo.doing(i) {
            (_, Color::Green) => ("between rounds".into(), Color::Green),
            doing => doing,
        };
        let cross = if color == Color::Red { "✗ " } else { "" };
        canvas.centered(mx, y, &format!("{cross}{} {doing}", letter(i)), color);
    }
}

fn head(canvas: &mut Canvas, demo: &Observed, now_ms: u64, width: i64) {
    canvas.text(1, 0, "annulus", Color::Bold);
    canvas.text(10, 0, "a ring of peers, no master", Color::Dim);
    let rates = demo
        .logs
        .run
        .rates(WINDOW_MS, now_ms)
        .map_or(String::new(), |rates| {
            let (rounds, samples) = (human::short(rates.rounds), human::short(rates.samples));
            format!("{rounds} rounds/s  {samples} samples/s  ")
        });
    let time = human::duration((now_ms / 1000) as f64);
    canvas.right(width - 1, 0, &format!("{rates}{time}"), Color::Plain);
    let rounds = match demo.logs.run.last_round() {
        0 => String::new(),
        _ => format!(" {}", progress::rounds(&demo.logs.run)),
    };
    let room = width as usize - 4 - rounds.chars().count();
    canvas.text(
        1,
        1,
        &progress::bar(demo.logs.run.share_done(), room),
        Color::Cyan,
    );
    canvas.text(room as i64 + 3, 1, &rounds, Color::Plain);
}

/// The loss over the rounds, with marks below where something happened.
fn curve(canvas: &mut Canvas, demo: &Observed, (x, y, w, h): Area) {
    let run = &demo.logs.run;
    let rounds = run.rounds_expected().unwrap_or(1).max(1);
    let losses = run.losses.points().iter();
    let losses = losses
        .map(|(round, loss)| (*round as f64, f64::from(*loss)))
        .collect();
    let losses = [(losses, Color::Yellow)];
    let Some(column) = canvas.chart((x, y, w, h - 1), (0.0, rounds as f64), Scale::Decades, &losses) else {
        return;
    };
    for change in &run.changes {
        let (sign, color) = match change.change {
            Change::Joined => ("+", Color::Green),
            _ => ("✗", Color::Red),
        };
        canvas.text(column(change.round as f64), y + h - 2, sign, color);
    }
    let accuracy = run
        .evaluations
        .back()
        .and_then(|eval| eval.metrics.get("accuracy"));
    let accuracy = accuracy.map(|a| format!("   accuracy {}", human::percent(f64::from(*a), 1)));
    let loss = human::loss(run.loss.unwrap_or(f64::NAN));
    let text = format!("loss {loss}{}", accuracy.unwrap_or_default());
    canvas.right(x + w, y, &text, Color::Bold);
}

/// A row per peer: who it is, what it does, the rounds that it committed, and the state that it holds.
pub fn table(canvas: &mut Canvas, demo: &Observed, y: i64) {
    let head = format!(
        "   {:<27}{:<14}{:<18}same bits",
        "peer", "rounds", "state (BLAKE3)"
    );
    canvas.text(1, y, &head, Color::Dim);
    for (i, (peer, y)) in demo.logs.peers.iter().zip(y + 1..).enumerate() {
        let id = peer.id().map_or("", human::id);
        canvas.text(1, y, &format!("{}  {id}", letter(i)), Color::Plain);
        let (doing, color) = demo.doing(i);
        canvas.text(14, y, &doing, color);
        let Some(last) = &peer.view.round else {
            continue;
        };
        let span = |(a, b): &(u64, u64)| format!("{}-{}", human::grouped(*a), human::grouped(*b));
        let spans: Vec<String> = peer.spans.iter().map(span).collect();
        canvas.text(31, y, &spans.join(", "), Color::Plain);
        canvas.text(45, y, last.digest.get(..16).unwrap_or(&last.digest), Color::Plain);
        let (mark, color) = match demo.logs.agreement(i) {
            Agreement::Same => ("✓", Color::Green),
            Agreement::Differs => ("✗ differs", Color::Red),
            Agreement::Alone => ("- redone", Color::Yellow),
            Agreement::Pending => ("…", Color::Dim),
        };
        canvas.text(63, y, mark, color);
    }
}

fn latest(canvas: &mut Canvas, demo: &Observed, y: i64, rows: usize) {
    let first = demo.news.len().saturating_sub(rows);
    for ((at_ms, line), y) in demo.news[first..].iter().zip(y..) {
        canvas.text(1, y, &format!("{:>5.1} s", *at_ms as f64 / 1000.0), Color::Dim);
        canvas.text(10, y, &format!("{} {}", line.sign, line.text), line.color);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::terminal::Style;
    use super::super::observed::tests::{join, three};
    use super::*;
    use crate::view::testing::{round_of, sync};

    fn text(demo: &Observed, size: (usize, usize)) -> String {
        let style = Style {
            live: false,
            color: false,
        };
        draw(demo, 3000, size).rows(style).join("\n")
    }

    #[test]
    fn every_stage_fits_every_size() {
        let mut killed = three(40);
        killed.kill(1, 4000);
        killed.hear(0, &round_of(41, &[0, 2], ""), 4200);
        join(&mut killed, 4300);
        killed.hear(3, &sync(43, 100, 41), 4500);
        let mut started = Observed::default();
        started.started(0);
        for demo in [
            &Observed::default(),
            &started,
            &three(0),
            &three(1),
            &three(100),
            &killed,
        ] {
            for size in [SMALLEST, (80, 24), (100, 30), (300, 100)] {
                let picture = text(demo, size);
                assert!(picture.lines().count() <= size.1);
                let fits = |line: &str| line.chars().count() <= size.0;
                assert!(picture.lines().all(fits), "{picture}");
            }
        }
        assert_eq!(text(&killed, (1, 1)), text(&killed, SMALLEST));
        let picture = text(&killed, (80, 24));
        for part in [
            "✗ B killed",
            "D catching up 43 %",
            "2 peers",
            "● A 50%",
            "killed           1-40          0000002800000028  ✓",
            "✗ B is killed without warning",
        ] {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
    }

    #[test]
    fn the_peers_digests_stand_side_by_side() {
        let mut demo = three(60);
        let picture = text(&demo, (80, 24));
        for (part, count) in [
            ("0000003c0000003c", 3),
            ("✓", 3),
            ("round 60/100", 1),
            ("loss 0.665", 1),
        ] {
            assert_eq!(picture.matches(part).count(), count, "{part}\n{picture}");
        }
        demo.hear(0, &round_of(61, &[0, 1, 2], ""), 7000);
        demo.hear(1, &round_of(61, &[0, 1, 2], "other"), 7000);
        let picture = text(&demo, (80, 24));
        assert!(picture.contains("✗ differs"), "{picture}");
    }

    #[test]
    fn the_loss_falls_in_the_plot() {
        let picture = text(&three(100), (100, 30));
        let dots = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
        let first = picture
            .lines()
            .filter_map(|line| line.chars().skip(50).position(dots));
        let first: Vec<usize> = first.collect();
        assert!(first.len() > 5 && first.is_sorted(), "{first:?}\n{picture}");
    }
}
