//! How the demo ends: what was seen, what it proves, and where to go from here.

use super::super::human;
use super::super::terminal::{Color, Style};
use super::book::{Agreement, Book, Peer, Phase};

/// The summary, and whether the run has done all that it promises.
pub fn tell(book: &Book, style: Style) -> (String, bool) {
    let lost = book.rounds_lost();
    let agree =
        (0..book.peers.len()).all(|peer| matches!(book.agreement(peer), Agreement::Same | Agreement::Alone));
    let history = book.peers.iter().any(|p| p.phase == Phase::Killed) && book.peers.len() > 3;
    let joined = book.peers.last().is_some_and(|p| !p.spans.is_empty());
    let proven = lost == 0 && agree && book.samples_add_up() && history && joined;

    let verdict = |good: bool| {
        style.paint(
            if good { Color::Green } else { Color::Red },
            if good { "✓" } else { "✗" },
        )
    };
    let mut lines = Vec::new();
    let mut row = |name: &str, text: String| {
        lines.push(format!(
            "  {}{text}",
            style.paint(Color::Dim, &format!("{name:<16}"))
        ))
    };
    if let Some((round, Some(accuracy))) = book.eval {
        let accuracy = style.paint(Color::Bold, &human::percent(f64::from(accuracy), 1));
        row(
            "accuracy",
            format!(
                "{accuracy} after round {}, on data that no peer trained on",
                human::grouped(round)
            ),
        );
    }
    let rate = book.overall_rate().map_or("-".into(), human::short);
    let time = human::duration(book.seconds());
    row(
        "rounds",
        format!("{} in {time}, {rate} per second", human::grouped(book.round())),
    );
    row(
        "rounds lost",
        format!(
            "{} {lost}: each is in the log of every member, with one digest",
            verdict(lost == 0)
        ),
    );
    let counted = human::grouped(book.counted());
    row(
        "samples",
        match book.samples_add_up() {
            true => format!("{} {counted}: each was counted once", verdict(true)),
            false => format!("{} {counted}: they do not add up", verdict(false)),
        },
    );
    if let Some(seconds) = book.recovery() {
        row(
            "after the kill",
            format!("the next round was committed {:.0} ms later", seconds * 1000.0),
        );
    }
    lines.push(String::new());
    for (i, peer) in book.peers.iter().enumerate() {
        let id = peer.id().map_or("", |id| human::id(id));
        let state = peer
            .last
            .as_ref()
            .map_or(String::from("no state"), |(round, digest)| {
                format!(
                    "state {} after round {}",
                    digest.get(..16).unwrap_or(digest),
                    human::grouped(*round)
                )
            });
        lines.push(format!(
            "  {} {id:<8}  {:<33} {} {state}",
            peer.name,
            life(peer),
            match book.agreement(i) {
                Agreement::Alone => style.paint(Color::Yellow, "-"),
                agreement => verdict(agreement == Agreement::Same),
            }
        ));
    }
    lines.push("  ✓: another peer held the very same bits after that round.".into());
    if let Some((name, round)) = book.redone() {
        let round = human::grouped(round);
        lines.push(format!(
            "  -: {name} was killed when it alone had all of round {round}; the others did that round again without it."
        ));
    }
    if !agree {
        let text = "✗: no other peer held the same bits after that round.";
        lines.push(format!("  {}", style.paint(Color::Red, text)));
    }
    let title = if proven {
        "A peer was killed, another joined, and nothing was lost."
    } else {
        "The run is not as it should be."
    };
    let mut text = format!("{}\n\n", style.paint(Color::Bold, title));
    lines.iter().for_each(|line| text.extend([line.as_str(), "\n"]));
    text += &format!(
        "\nNow with your own machines:\n  {}         start a run; it prints a ticket\n  {}   on any other machine\n",
        style.paint(Color::Bold, "annulus train"),
        style.paint(Color::Bold, "annulus join TICKET"),
    );
    (text, proven)
}

/// What a peer went through.
fn life(peer: &Peer) -> String {
    let spans: Vec<String> = peer
        .spans
        .iter()
        .map(|(a, b)| format!("{}-{}", human::grouped(*a), human::grouped(*b)))
        .collect();
    let rounds = if spans.is_empty() {
        "no rounds".into()
    } else {
        format!("rounds {}", spans.join(", "))
    };
    match peer.phase {
        Phase::Killed => format!("{rounds}, killed"),
        Phase::Broken => format!("{rounds}, failed"),
        _ => rounds,
    }
}

/// A line on the run so far.
pub fn progress(book: &Book) -> String {
    let rates = book.rates().map_or(String::new(), |(rounds, samples)| {
        format!(
            ", {} rounds/s, {} samples/s",
            human::short(rounds),
            human::short(samples)
        )
    });
    let loss = book.losses.last().map_or(f64::NAN, |(_, loss)| f64::from(*loss));
    format!(
        "{}, {}, loss {}{rates}",
        book.round_text(),
        human::plural(book.ring().len() as u64, "peer"),
        human::loss(loss)
    )
}

#[cfg(test)]
mod tests {
    use super::super::book::tests::{ready, round, three};
    use super::*;
    use crate::events::Event;

    const PLAIN: Style = Style {
        live: false,
        color: false,
    };

    fn whole(last_of: u64) -> Book {
        let mut book = three(40);
        book.kill(0, 4.0);
        let newcomer = book.start(4.1);
        book.take(newcomer, ready(3), 4.2);
        for n in 41..=100 {
            for peer in [1, 2] {
                book.take(peer, round(n, &[1, 2], ""), n as f64 / 10.0);
            }
            if n > last_of {
                book.take(3, round(n, &[1, 2], ""), n as f64 / 10.0);
            }
        }
        book.take(
            1,
            Event::Eval {
                round: 100,
                loss: 0.1,
                accuracy: Some(0.973),
            },
            10.0,
        );
        book
    }

    #[test]
    fn a_good_run_is_told_with_its_proofs() {
        let (text, proven) = tell(&whole(60), PLAIN);
        assert!(proven, "{text}");
        for part in [
            "nothing was lost",
            "97.3 % after round 100",
            "100 in 9.9 s, 10 per second",
            "✓ 0: each is in the log",
            "✓ 9,600: each was counted once",
            "committed 100 ms later",
            "rounds 1-40, killed",
            "rounds 61-100 ",
            "state 0000006400000064 after round 100",
            "annulus join TICKET",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(
            !text.contains('✗') && text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }

    #[test]
    fn a_round_that_died_with_its_only_holder_is_told() {
        let mut book = three(40);
        book.take(0, round(41, &[0, 1, 2], "alone"), 4.0);
        book.kill(0, 4.0);
        book.start(4.1);
        book.take(3, ready(3), 4.2);
        for n in 41..=100 {
            for peer in 1..=3 {
                book.take(peer, round(n, &[1, 2, 3], ""), n as f64 / 10.0);
            }
        }
        let (text, proven) = tell(&book, PLAIN);
        assert!(proven && !text.contains('✗'), "{text}");
        assert!(text.contains("- state alone after round 41"), "{text}");
        assert!(
            text.contains("A was killed when it alone had all of round 41"),
            "{text}"
        );
    }

    #[test]
    fn a_bad_run_is_not_told_as_a_good_one() {
        assert!(!tell(&three(100), PLAIN).1, "nobody was killed and nobody joined");
        assert!(!tell(&whole(100), PLAIN).1, "the newcomer never took part");
        let mut differs = whole(60);
        differs.take(2, round(101, &[1, 2], ""), 11.0);
        differs.take(1, round(101, &[1, 2], "other"), 11.0);
        let (text, proven) = tell(&differs, PLAIN);
        assert!(
            !proven && text.contains("✗ 1: ") && text.contains("do not add up"),
            "{text}"
        );
    }
}
