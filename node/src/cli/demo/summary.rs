//! How the demo ends: what was seen, what it proves, and where to go from here.

use super::super::canvas::Canvas;
use super::super::human;
use super::super::terminal::{Color, Style};
use super::observed::{Observed, letter};
use super::picture;
use crate::view::Agreement;

/// The summary, and whether the run has done all that it promises.
pub fn summary(demo: &Observed, style: Style) -> (String, bool) {
    let peers = &demo.logs.peers;
    let agree =
        (0..peers.len()).all(|p| matches!(demo.logs.agreement(p), Agreement::Same | Agreement::Alone));
    let joined = peers.len() > 3 && peers.last().is_some_and(|p| !p.spans.is_empty());
    let killed = peers.iter().any(|p| p.killed);
    let proven = demo.logs.rounds_lost() == 0 && demo.logs.samples_add_up() && agree && killed && joined;

    let title = match proven {
        true => "A peer was killed, another joined, and nothing was lost.",
        false => "The run is not as it should be.",
    };
    let mut lines = vec![style.paint(Color::Bold, title), String::new()];
    for (name, row) in rows(demo, style) {
        lines.push(format!(
            "  {}{row}",
            style.paint(Color::Dim, &format!("{name:<16}"))
        ));
    }
    lines.push(String::new());
    let mut canvas = Canvas::new(100, peers.len() + 1);
    picture::table(&mut canvas, demo, 0);
    lines.extend(canvas.rows(style).iter().map(|row| format!(" {row}")));
    lines.push("  ✓: another peer held the very same bits after its last round.".into());
    if let Some(peer) = demo.logs.redone() {
        let (name, round) = (letter(peer), human::grouped(peers[peer].view.last_round()));
        let alone = format!("{name} was killed when it alone had all of round {round}");
        lines.push(format!(
            "  -: {alone}; the others did that round again without it."
        ));
    }
    if !agree {
        let differs = "✗: no other peer held the same bits after its last round.";
        lines.push(format!("  {}", style.paint(Color::Red, differs)));
    }
    let bold = |text| style.paint(Color::Bold, text);
    let (train, join) = (bold("annulus train"), bold("annulus join TICKET"));
    lines.extend([
        String::new(),
        "Now with your own machines:".into(),
        format!("  {train}         start a run; it prints a ticket"),
        format!("  {join}   on any other machine\n"),
    ]);
    (lines.join("\n"), proven)
}

/// What can be said of the run as a whole: names and values.
fn rows(demo: &Observed, style: Style) -> Vec<(&'static str, String)> {
    let verdict = |good: bool| match good {
        true => style.paint(Color::Green, "✓"),
        false => style.paint(Color::Red, "✗"),
    };
    let (logs, mut rows) = (&demo.logs, Vec::new());
    let eval = logs.run.evaluations.back();
    if let Some((eval, accuracy)) = eval.and_then(|eval| Some((eval, eval.metrics.get("accuracy")?))) {
        let accuracy = style.paint(Color::Bold, &human::percent(f64::from(*accuracy), 1));
        let round = human::grouped(eval.round);
        let text = format!("{accuracy} after round {round}, on data that no peer trained on");
        rows.push(("accuracy", text));
    }
    let rounds = logs.run.last_round();
    let (first_ms, last_ms) = demo.span_ms.unwrap_or_default();
    let seconds = (last_ms - first_ms) as f64 / 1000.0;
    let rate = human::short(rounds.saturating_sub(1) as f64 / seconds);
    let (rounds, time) = (human::grouped(rounds), human::duration(seconds));
    rows.push(("rounds", format!("{rounds} in {time}, {rate} per second")));
    let lost = logs.rounds_lost();
    let text = format!(
        "{} {lost}: each is in the log of every member, with one digest",
        verdict(lost == 0)
    );
    rows.push(("rounds lost", text));
    let (whole, counted) = (logs.samples_add_up(), human::grouped(logs.run.counted()));
    let told = if whole {
        "each was counted once"
    } else {
        "they do not add up"
    };
    rows.push(("samples", format!("{} {counted}: {told}", verdict(whole))));
    if let Some(ms) = demo.recovery_ms {
        rows.push((
            "after the kill",
            format!("the next round was committed {ms} ms later"),
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::observed::tests::{join, three};
    use super::*;
    use crate::view::testing::{eval, round_of};

    /// A kill after round 40, and a newcomer that takes part from round `from` on. Rounds are numbered to 100.
    fn whole(mut demo: Observed, from: u64) -> Observed {
        demo.kill(0, 4000);
        join(&mut demo, 4050);
        for n in 41..=100 {
            let members: &[usize] = if n < from { &[1, 2] } else { &[1, 2, 3] };
            members
                .iter()
                .for_each(|p| demo.hear(*p, &round_of(n, members, ""), 100 * n));
        }
        demo.hear(1, &eval(100, 0.1, Some(0.973)), 10_000);
        demo
    }

    fn told(demo: &Observed) -> (String, bool) {
        let (live, color) = (false, false);
        summary(demo, Style { live, color })
    }

    #[test]
    fn a_good_run_is_told_with_its_proofs() {
        let (text, proven) = told(&whole(three(40), 61));
        assert!(proven, "{text}");
        for part in [
            "nothing was lost",
            "97.3 % after round 100",
            "✓ 0: each is in the log",
            "✓ 9,600: each was counted once",
            "committed 100 ms later",
            "A  00000000  killed           1-40          0000002800000028  ✓",
            "D  03030303  member           61-100        0000006400000064  ✓",
            "annulus join TICKET",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let fits = |line: &str| line.chars().count() <= 80;
        assert!(!text.contains('✗') && text.lines().all(fits), "{text}");
    }

    #[test]
    fn a_round_that_died_with_its_only_holder_is_told() {
        let mut demo = three(40);
        demo.hear(0, &round_of(41, &[0, 1, 2], "alone"), 4000);
        let (text, proven) = told(&whole(demo, 61));
        assert!(proven && !text.contains('✗'), "{text}");
        for part in [
            "- redone",
            "A was killed when it alone had all of round 41; the others",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_bad_run_is_not_told_as_a_good_one() {
        assert!(!told(&three(100)).1, "nobody was killed and nobody joined");
        assert!(!told(&whole(three(40), 101)).1, "the newcomer never took part");
        let mut differs = whole(three(40), 61);
        differs.hear(2, &round_of(101, &[1, 2], ""), 11_000);
        differs.hear(1, &round_of(101, &[1, 2], "other"), 11_000);
        let (text, proven) = told(&differs);
        assert!(!proven, "{text}");
        for part in ["✗ 1: ", "do not add up", "no other peer held the same bits"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
