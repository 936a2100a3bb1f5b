//! A run's progress as one line that suits any width. Pure: what is known of the run and a time go in, text comes out.

use super::human;
use super::terminal::{Color, Style};
use crate::events::{Round, Share};
use crate::view::{Computing, Phase, RunView, TimeShares};
use annulus_net::printable::printable_line;

/// Milliseconds that rates are taken over.
const WINDOW_MS: u64 = 5000;

/// The line of progress in at most `width` columns; none before there is any.
pub fn line(view: &RunView, now_ms: u64, width: usize, style: Style) -> Option<String> {
    match view.phase {
        Phase::Packing { done, total } => {
            let percent = human::percent(done as f64 / total.max(1) as f64, 0);
            let parts = vec![Part::new(0, Color::Plain, format!("reading the data: {percent}"))];
            return Some(fit(parts, width, style));
        }
        Phase::Fetching { bytes, total } => {
            let what = "fetching the run's data ".to_owned();
            return Some(part_of_bytes(what, bytes, total, width, style));
        }
        Phase::Syncing { bytes, total, round } => {
            let what = format!("catching up with round {} ", human::grouped(round));
            return Some(part_of_bytes(what, bytes, total, width, style));
        }
        Phase::Waiting => {
            let why = view.waiting.as_deref().unwrap_or_default();
            let parts = vec![Part::new(0, Color::Yellow, format!("waiting: {why}"))];
            return Some(fit(parts, width, style));
        }
        Phase::Starting | Phase::Training | Phase::Done => {}
    }
    let Some(round) = view.round.as_ref() else {
        let parts = vec![Part::new(0, Color::Plain, computing(view.computing?))];
        return Some(fit(parts, width, style));
    };
    let number = human::grouped(round.round);
    let mut parts = vec![
        Part::new(0, Color::Bold, format!("round {number}{}", of_rounds(view))),
        Part::new(5, Color::Cyan, bar(view.share_done(), 16)),
    ];
    if let Some(loss) = view.loss {
        parts.push(Part::new(1, Color::Plain, format!("loss {}", human::loss(loss))));
    }
    let rates = view.rates(WINDOW_MS, now_ms);
    if let Some(rates) = &rates {
        let samples = human::short(rates.samples);
        parts.push(Part::new(2, Color::Plain, format!("{samples} samples/s")));
        if round.members.len() > 1 {
            let own = human::short(rates.own_samples);
            parts.push(Part::new(6, Color::Dim, format!("({own} here)")));
        }
        if let Some(speed_up) = rates.time.speed_up.filter(|_| round.members.len() > 1) {
            parts.push(Part::new(9, Color::Green, format!("{speed_up:.1}x alone")));
            parts.push(Part::new(10, Color::Dim, time(&rates.time)));
        }
    }
    parts.extend(members(view, round));
    if let Some(rates) = rates {
        if rates.bytes_sent > 0.0 {
            let sent = human::bytes(rates.bytes_sent);
            parts.push(Part::new(7, Color::Dim, format!("{sent}/s sent")));
        }
        if rates.samples > 0.0 {
            // Count down between rounds too.
            let since = view.since_round_ms(now_ms) as f64 / 1000.0;
            let left = human::duration((view.remaining() as f64 / rates.samples - since).max(0.0));
            parts.push(Part::new(3, Color::Plain, format!("{left} left")));
        }
    }
    if let Some(next) = view.computing {
        parts.push(Part::new(2, Color::Yellow, computing(next)));
    }
    Some(fit(parts, width, style))
}

/// How far a long round is.
fn computing(part: Computing) -> String {
    let Computing {
        round,
        samples,
        done,
        seconds,
    } = part;
    let round = human::grouped(round);
    let begun = human::duration(seconds);
    match done.filter(|done| *done > 0) {
        Some(done) => {
            let share = done as f64 / samples as f64;
            let left = human::duration(seconds / share - seconds);
            let samples = human::grouped(samples);
            format!(
                "round {round}: {:.0} % of {samples} samples, {left} left",
                100.0 * share
            )
        }
        None if samples > 0 => format!(
            "round {round}: computing {} samples, {begun} so far",
            human::grouped(samples)
        ),
        None => format!("round {round}: computing, {begun} so far"),
    }
}

/// Where a peer's time goes.
fn time(shares: &TimeShares) -> String {
    let percent = |share: f64| format!("{:.0}%", 100.0 * share);
    let hidden = match shares.hidden {
        0.0..0.005 => String::new(),
        hidden => format!(" and {} hidden", percent(hidden)),
    };
    format!(
        "{} computing, {}{hidden} exchanging",
        percent(shares.compute),
        percent(shares.exchange)
    )
}

/// The last round's number, and of how many where that can be told.
pub fn rounds(view: &RunView) -> String {
    format!("round {}{}", human::grouped(view.last_round()), of_rounds(view))
}

/// The expected number of rounds. It is an estimate (`~`) once a round had fewer samples than the others, as when a member failed:
/// those samples are counted in later rounds.
fn of_rounds(view: &RunView) -> String {
    let about = match view.rounds_are_alike() {
        true => "",
        false => "~",
    };
    let of = view.rounds_expected();
    of.map_or(String::new(), |all| format!("/{about}{}", human::grouped(all)))
}

/// How many contribute, and while they are few, how much each does.
fn members(view: &RunView, round: &Round) -> Vec<Part> {
    let count = human::plural(round.members.len() as u64, "peer");
    let mut parts = vec![Part::new(4, Color::Plain, count)];
    if !(2..=6).contains(&round.members.len()) {
        return parts;
    }
    let share = |member: &Share| {
        let name = match view.name_of(&member.peer) {
            _ if view.is_own(&member.peer) => "me".to_owned(),
            Some(name) => printable_line(name, 10),
            None => human::id(&member.peer)[..4].to_owned(),
        };
        let percent = 100.0 * member.weight as f64 / round.samples.max(1) as f64;
        format!("{name} {percent:.0}%")
    };
    let shares: Vec<String> = round.members.iter().map(share).collect();
    parts.push(Part::new(8, Color::Plain, shares.join(" ")));
    parts
}

/// A transfer: its name, a bar, and the bytes that are here.
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
        let text = printable_line(&text, usize::MAX);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Event;
    use crate::view::testing::{committed, ready_for, sync};

    const PLAIN: Style = Style {
        live: false,
        color: false,
    };
    const COLOR: Style = Style {
        live: true,
        color: true,
    };

    fn after(rounds: u64, peers: u8) -> RunView {
        let mut view = RunView::default();
        view.take(&ready_for(1, 64_000), 0);
        let weights: Vec<(u8, u64)> = (1..=peers).map(|n| (n, 64 / u64::from(peers))).collect();
        for n in 1..=rounds {
            view.take(&committed(n, &weights, 0.5), n * 200);
        }
        view
    }

    fn plain(view: &RunView, now_ms: u64, width: usize) -> Option<String> {
        line(view, now_ms, width, PLAIN)
    }

    #[test]
    fn the_line_tells_all_where_there_is_room() {
        assert_eq!(
            plain(&after(500, 4), 100_000, 160).unwrap(),
            "round 500/1,000  ▕████████        ▏  loss 0.500  320 samples/s  (80 here)  5.0x alone  \
             4 peers  me 25% 0202 25% 0303 25% 0404 25%  5.00 kB/s sent  1m 40s left"
        );
    }

    #[test]
    fn the_line_fits_every_width_and_keeps_what_matters() {
        for peers in [1, 2, 4, 32] {
            let view = after(500, peers);
            for width in 1..200 {
                let text = plain(&view, 100_000, width).unwrap();
                assert!(text.chars().count() <= width, "{width}: {text}");
                assert!(width < 30 || text.contains("loss 0.500"), "{width}: {text}");
                assert!(width < 60 || text.contains("left"), "{width}: {text}");
                let colored = line(&view, 100_000, width, COLOR).unwrap();
                let ends = colored.matches("\x1b[0m").count();
                assert_eq!(2 * ends, colored.matches('\x1b').count());
            }
        }
        for peers in [1, 3, 32] {
            let count = human::plural(peers.into(), "peer");
            let text = plain(&after(500, peers), 100_000, 80).unwrap();
            assert!(text.contains(&count), "{text}");
        }
    }

    #[test]
    fn there_is_no_line_before_there_is_progress() {
        let mut view = RunView::default();
        assert_eq!(plain(&view, 0, 80), None);
        for (event, text) in [
            (Event::Pack { done: 1, total: 4 }, Some("reading the data: 25 %")),
            (
                Event::Fetch {
                    bytes: 3_100_000,
                    total: 12_400_000,
                },
                Some("fetching the run's data   ▕█████               ▏  3.10 MB of 12.4 MB"),
            ),
            (ready_for(1, 64_000), None),
            (
                sync(500_000, 1_000_000, 1234),
                Some("catching up with round 1,234   ▕██████████          ▏  500 kB of 1.00 MB"),
            ),
        ] {
            view.take(&event, 0);
            assert_eq!(plain(&view, 0, 80).as_deref(), text);
        }
        let why = "this machine is not plugged in".into();
        view.take(&Event::Waiting { why }, 0);
        assert_eq!(
            plain(&view, 0, 80).as_deref(),
            Some("waiting: this machine is not plugged in")
        );
        view.take(&ready_for(1, 64_000), 0);
        assert_eq!(plain(&view, 0, 80), None);
        view.take(&committed(1235, &[(1, 32), (2, 32)], 0.5), 100);
        assert!(plain(&view, 100, 80).unwrap().starts_with("round 1,235/"));
    }

    #[test]
    fn a_long_first_round_says_how_far_it_is() {
        let mut view = RunView::default();
        view.take(&ready_for(1, 64_000), 0);
        for (samples, done, text) in [
            (
                5_000_000,
                Some(500_000),
                "round 1: 10 % of 5,000,000 samples, 3m 00s left",
            ),
            (
                5_000_000,
                None,
                "round 1: computing 5,000,000 samples, 20 s so far",
            ),
            (0, None, "round 1: computing, 20 s so far"),
        ] {
            let event = Event::Computing {
                round: 1,
                samples,
                done,
                seconds: 20.0,
            };
            view.take(&event, 0);
            assert_eq!(plain(&view, 0, 80).as_deref(), Some(text));
        }
        view.take(&committed(1, &[(1, 64)], 0.5), 100);
        assert!(plain(&view, 100, 80).unwrap().starts_with("round 1/1,000 "));
    }

    #[test]
    fn a_strange_round_does_no_harm() {
        let mut view = after(10, 1);
        for (n, loss) in [(11, f32::NAN), (12, f32::INFINITY)] {
            view.take(&committed(n, &[(1, 64)], loss), 2000);
        }
        view.take(&committed(13, &[], 0.0), 2000);
        let text = plain(&view, 2000, 160).unwrap();
        for part in ["round 13 ", "loss 0.500", "0 peers"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn bars() {
        for (share, width, text) in [
            (0.0, 2, "▕  ▏"),
            (0.5, 3, "▕█▌ ▏"),
            (1.0, 2, "▕██▏"),
            (f64::NAN, 2, "▕  ▏"),
            (7.0, 2, "▕██▏"),
        ] {
            assert_eq!(bar(share, width), text);
        }
    }
}
