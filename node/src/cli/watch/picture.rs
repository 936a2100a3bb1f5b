//! A run as a screenful. Pure: what is known of it goes in, a grid comes out.

use super::snapshot::{Sample, Snapshot};
use crate::cli::canvas::{Canvas, Scale};
use crate::cli::human;
use crate::cli::messages::headline;
use crate::cli::progress;
use crate::cli::terminal::Color;
use crate::events::Event;
use annulus_net::printable::printable_line;
use std::cmp::Reverse;

/// The smallest grid that is drawn on: a smaller terminal shows its upper left part.
const SMALLEST: (usize, usize) = (60, 18);

/// Where the list of events begins, beside that of peers.
const EVENTS: i64 = 36;

/// Rows above the curve.
const HEAD: i64 = 4;

/// Draws it for a terminal of that size. A problem is that there is nothing new.
pub fn draw(run: &Snapshot, problem: Option<&str>, size: (usize, usize)) -> Canvas {
    let (width, height) = (size.0.max(SMALLEST.0), size.1.max(SMALLEST.1));
    let mut canvas = Canvas::new(width, height);
    let (width, height) = (width as i64, height as i64);
    let lists = (height - HEAD) * 2 / 5;
    let below = height - lists;
    head(&mut canvas, run, width);
    curve(&mut canvas, run, (HEAD, below - 1), width);
    members(&mut canvas, run, (below, height - 1));
    // Over what a long list left there.
    events(&mut canvas, run, (below, height - 1), EVENTS);
    match problem {
        Some(problem) => canvas.text(0, height - 1, &format!("! {problem}"), Color::Yellow),
        None => canvas.text(0, height - 1, "Ctrl-C ends this, not the run", Color::Dim),
    }
    canvas
}

fn head(canvas: &mut Canvas, run: &Snapshot, width: i64) {
    let words = |text: &Option<String>| printable_line(text.as_deref().unwrap_or_default(), 200);
    let task = match words(&run.title) {
        title if title.is_empty() => words(&run.task),
        title => format!("{title} ({})", words(&run.task)),
    };
    canvas.text(0, 0, &task, Color::Bold);
    let (name, parameters) = (words(&run.run), run.parameters.unwrap_or_default());
    let what = format!(
        "run {}  {} parameters",
        human::id(&name),
        human::grouped(parameters)
    );
    canvas.text(task.chars().count() as i64 + 2, 0, &what, Color::Plain);
    let peer = words(&run.peer);
    let seen = format!("  seen by {} on {}", human::id(&peer), words(&run.device));
    canvas.text(
        (task.chars().count() + 2 + what.chars().count()) as i64,
        0,
        &seen,
        Color::Dim,
    );
    let phase = match &run.waiting {
        Some(why) => format!("waiting: {why}"),
        None => run.phase.clone(),
    };
    let left = run.target.unwrap_or_default().saturating_sub(run.counted);
    let left = match run.samples_per_second {
        rate if rate > 0.0 && run.phase == "training" => {
            format!("  {} left", human::duration(left as f64 / rate))
        }
        _ => String::new(),
    };
    let members = run.peers.iter().filter(|peer| peer.member).count() as u64;
    let text = format!(
        "{phase}  round {}  loss {}  {} samples/s  {}{left}",
        human::grouped(run.round),
        run.loss.map_or("-".into(), |loss| human::loss(loss.into())),
        human::short(run.samples_per_second),
        human::plural(members, "peer"),
    );
    canvas.text(0, 1, &text, Color::Plain);
    let share = run.counted as f64 / run.target.unwrap_or_default().max(1) as f64;
    canvas.text(0, 2, &progress::bar(share, width as usize - 10), Color::Cyan);
    canvas.right(width, 2, &human::percent(share.min(1.0), 1), Color::Plain);
    if let Some(Sample { round, text }) = &run.sample {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = format!(
            "\" round {}: {}",
            human::grouped(*round),
            printable_line(&text, 500)
        );
        canvas.text(0, 3, &text, Color::Magenta);
    }
}

/// The loss over the rounds, from one row to another.
fn curve(canvas: &mut Canvas, run: &Snapshot, (top, end): (i64, i64), width: i64) {
    let finite = |&(round, loss): &(u64, Option<f32>)| Some((round as f64, f64::from(loss?)));
    let points: Vec<(f64, f64)> = run.losses.iter().filter_map(finite).collect();
    let ends = (
        points.first().map_or(0.0, |point| point.0),
        points.last().map_or(0.0, |point| point.0),
    );
    canvas.chart(
        (0, top, width, end - top),
        ends,
        Scale::Linear,
        &[(points, Color::Cyan)],
    );
}

fn members(canvas: &mut Canvas, run: &Snapshot, (top, end): (i64, i64)) {
    canvas.text(0, top, "peer      share  samples  link", Color::Dim);
    let sum: u64 = run.peers.iter().map(|peer| peer.weight).sum();
    for (peer, y) in run.peers.iter().zip(top + 1..end) {
        let (share, color) = match peer.member {
            true => (
                human::percent(peer.weight as f64 / sum.max(1) as f64, 0),
                Color::Plain,
            ),
            false => ("gone".into(), Color::Dim),
        };
        // Links are those of the peer that was asked.
        let link = match run.peer.as_ref() == Some(&peer.peer) {
            true => "that peer",
            false => peer.link.as_deref().unwrap_or_default(),
        };
        let who = match &peer.name {
            Some(name) => printable_line(name, 8),
            None => human::id(&peer.peer).to_owned(),
        };
        let row = format!(
            "{who:<8}  {share:>5}  {:>7}  {link}",
            human::short(peer.samples as f64),
        );
        canvas.text(0, y, &row, color);
    }
}

/// Peers that came and went, and evaluations: the newest first.
fn events(canvas: &mut Canvas, run: &Snapshot, (top, end): (i64, i64), x: i64) {
    let came = run.changes.iter().map(|change| {
        let event = Event::Member {
            peer: change.peer.clone(),
            change: change.change,
            round: change.round,
            reason: change.reason.clone(),
        };
        (change.round, event)
    });
    let tried = run.evaluations.iter().map(|tried| {
        let event = Event::Eval {
            round: tried.round,
            loss: tried.loss.unwrap_or(f32::NAN),
            metrics: tried.metrics.clone(),
        };
        (tried.round, event)
    });
    let mut all: Vec<(u64, Event)> = came.chain(tried).collect();
    all.reverse();
    all.sort_by_key(|(round, _)| Reverse(*round));
    canvas.text(x, top, "events", Color::Dim);
    let name = |peer: &str| match run.peer.as_deref() == Some(peer) {
        true => "that peer".to_owned(),
        false => {
            let named = run.peers.iter().find(|known| known.peer == peer);
            human::called(peer, named.and_then(|known| known.name.as_ref()))
        }
    };
    let lines = all.iter().filter_map(|(_, event)| headline(event, name));
    for (line, y) in lines.zip(top + 1..end) {
        canvas.text(x, y, line.sign, line.color);
        canvas.text(x + 2, y, &line.text, Color::Plain);
    }
}
