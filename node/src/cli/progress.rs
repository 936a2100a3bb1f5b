//! A run's progress as one line that suits any width. Pure: what is known of the run and a time go in, text comes out.

use super::human;
use super::terminal::{Color, Style};
use crate::events::{Round, Share};
use crate::view::{Phase, RunView, TimeShares};

/// Rates are taken over so many milliseconds.
const WINDOW_MS: u64 = 5000;

/// The line of progress in at most `width` columns; none before there is any.
pub fn line(view: &RunView, now_ms: u64, width: usize, style: Style) -> Option<String> {
    match view.phase {
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
    let round = view.round.as_ref()?;
    let number = human::grouped(round.round);
    let of = view
        .rounds_expected()
        .map(|all| format!("/{}", human::grouped(all)));
    let mut parts = vec![
        Part::new(
            0,
            Color::Bold,
            format!("round {number}{}", of.unwrap_or_default()),
        ),
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
    parts.push(members(view, round));
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
    Some(fit(parts, width, style))
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
    let of = view.rounds_expected();
    let of = of.map_or(String::new(), |all| format!("/{}", human::grouped(all)));
    format!("round {}{of}", human::grouped(view.last_round()))
}

/// Who contributes how much: each by name while there are few, or how many there are.
fn members(view: &RunView, round: &Round) -> Part {
    if !(2..=6).contains(&round.members.len()) {
        let count = human::plural(round.members.len() as u64, "peer");
        return Part::new(4, Color::Plain, count);
    }
    let share = |member: &Share| {
        let name = match view.is_own(&member.peer) {
            true => "me",
            false => &human::id(&member.peer)[..4],
        };
        let percent = 100.0 * member.weight as f64 / round.samples.max(1) as f64;
        format!("{name} {percent:.0}%")
    };
    let shares: Vec<String> = round.members.iter().map(share).collect();
    Part::new(8, Color::Plain, shares.join(" "))
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
             me 25% 0202 25% 0303 25% 0404 25%  5.00 kB/s sent  1m 40s left"
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
        assert!(plain(&after(3, 32), 600, 120).unwrap().contains("32 peers"));
    }

    #[test]
    fn there_is_no_line_before_there_is_progress() {
        let mut view = RunView::default();
        assert_eq!(plain(&view, 0, 80), None);
        for (event, text) in [
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
