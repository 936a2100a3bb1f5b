//! A run's events as lines that scroll by, above the progress line or beside the demo's picture.
//!
//! Pure: events go in, text comes out.

use super::human;
use super::qr;
use super::terminal::{self, Color, Style};
use crate::events::{Change, Done, Event, Ready};
use crate::net::ticket::Ticket;
use crate::task::{Metrics, in_words};
use crate::view::RunView;
use annulus_net::printable::printable_line;

/// Whether this peer has started the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It did.
    Founder,
    /// It joined.
    Newcomer,
}

/// An event in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    /// The sign of its kind.
    pub sign: &'static str,
    /// How to colour that, or all of it.
    pub color: Color,
    /// The event in words.
    pub text: String,
}

/// The line of an event that deserves one; `name` gives a peer's name.
pub fn headline(event: &Event, name: impl Fn(&str) -> String) -> Option<Headline> {
    let (sign, color, text) = match event {
        Event::Member {
            peer,
            change,
            round,
            reason,
        } => {
            let (sign, color, verb) = match change {
                Change::Joined => ("+", Color::Green, "joined"),
                Change::Aside => ("-", Color::Yellow, "stands aside"),
                Change::Left => ("-", Color::Dim, "left"),
                Change::Failed => ("x", Color::Red, "failed"),
                Change::Evicted => ("x", Color::Red, "was put out"),
            };
            let colon = if reason.is_empty() { "" } else { ": " };
            let round = human::grouped(*round);
            let text = format!("{} {verb} after round {round}{colon}{reason}", name(peer));
            (sign, color, text)
        }
        Event::Eval { round, loss, metrics } => {
            let round = human::grouped(*round);
            let text = format!("round {round}: eval {}", quality(*loss, metrics));
            ("*", Color::Magenta, text)
        }
        Event::Pace(pace) => {
            let steps = match pace.batches {
                1 => String::new(),
                batches => format!(", {batches} batches a round"),
            };
            let round = human::grouped(pace.round);
            let text = format!(
                "after round {round}: {}{steps}, since {}",
                pace.topology, pace.why
            );
            ("~", Color::Cyan, text)
        }
        Event::Shift {
            peer,
            round,
            from,
            to,
            why,
        } => {
            let round = human::grouped(*round);
            let text = format!(
                "after round {round}: {} goes from span {from} to span {to}, since {why}",
                name(peer)
            );
            ("~", Color::Cyan, text)
        }
        Event::Cut {
            round,
            steps,
            before,
            why,
        } => {
            let (steps, before) = (cut(steps), cut(before));
            let round = human::grouped(*round);
            let text = format!(
                "after round {round}: the model is to be cut into {steps} steps instead of {before}, since {why}"
            );
            ("~", Color::Cyan, text)
        }
        Event::Waiting { why } => ("=", Color::Yellow, format!("waiting: {why}")),
        Event::Warning { message } => ("! warning:", Color::Yellow, message.clone()),
        Event::Reach { why, .. } => ("@", Color::Dim, format!("reachable {why}")),
        Event::Nearby { code: None, why } => ("@", Color::Dim, why.clone()),
        Event::Nearby {
            code: Some(code),
            why,
        } => {
            let text = format!("on this network: `{} join`, code {code}: {why}", program());
            ("@", Color::Cyan, text)
        }
        Event::Sample { round, text } => {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let round = human::grouped(*round);
            ("\"", Color::Magenta, format!("round {round} writes: {text}"))
        }
        Event::Ready(_)
        | Event::Named { .. }
        | Event::Data { .. }
        | Event::Model { .. }
        | Event::Pack { .. }
        | Event::Fetch { .. }
        | Event::Sync { .. }
        | Event::Computing { .. }
        | Event::Round(_)
        | Event::Link { .. }
        | Event::Done(_) => return None,
    };
    let text = printable_line(&text, usize::MAX);
    Some(Headline { sign, color, text })
}

/// Lines for an event of the peer that `view` is of.
pub fn lines(event: &Event, view: &RunView, role: Role, style: Style) -> Vec<String> {
    let name = |peer: &str| match view.is_own(peer) {
        true => "this peer".into(),
        false => human::called(peer, view.name_of(peer)),
    };
    match event {
        Event::Ready(ready) => introduction(ready, role, style),
        Event::Done(done) => result(done, style),
        Event::Data { description } => {
            let line = |line| printable_line(line, usize::MAX);
            description.lines().map(line).collect()
        }
        _ => headline(event, name)
            .map(|line| format!("{} {}", style.paint(line.color, line.sign), line.text))
            .into_iter()
            .collect(),
    }
}

/// How a model is cut: `6+2`.
fn cut(steps: &[u64]) -> String {
    let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
    steps.join("+")
}

fn introduction(ready: &Ready, role: Role, style: Style) -> Vec<String> {
    let row = |name: &str, text: &str| {
        let name = style.paint(Color::Dim, &format!("{name:<11}"));
        format!("{name}{}", printable_line(text, usize::MAX))
    };
    let aside = |text: &str| {
        [
            String::new(),
            format!("    {}", style.paint(Color::Bold, text)),
            String::new(),
        ]
    };
    let parameters = human::grouped(ready.parameters);
    let mut lines = vec![
        row("peer", human::id(&ready.peer)),
        row("run", human::id(&ready.run)),
    ];
    let said = [("title", &ready.title), ("about", &ready.about)];
    lines.extend(
        said.iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| row(name, text)),
    );
    lines.extend([
        row("task", &format!("{}, {parameters} parameters", ready.task)),
        row("device", &ready.device),
    ]);
    if let (Some(url), false) = (&ready.url, ready.takes_tabs) {
        let url = url.split('#').next().unwrap_or_default();
        lines.push(row(
            "page",
            &format!(
                "{url} (shows the run; browsers cannot take part, as their page is not built or only PyTorch computes the model)"
            ),
        ));
    }
    if let (Some(url), true) = (&ready.url, ready.takes_tabs) {
        lines.push(row("page", url));
    }
    // Without a ticket in it nobody can take part there.
    let lets_in = |url: &&String| ready.takes_tabs && url.contains('#');
    let is_copy = |url: &str| url.contains("&peer=");
    let share_url = ready.share_url.as_ref();
    if let Some(url) = share_url.filter(|url| lets_in(url) || is_copy(url)) {
        lines.extend([String::new(), "Browsers on other machines take part at".into()]);
        lines.extend(aside(url));
        let further = match is_copy(url) {
            true => "It leads here for eleven days at least; a peer that starts again prints a new one.",
            false => {
                "If the browser warns of the certificate, go on under \"Advanced\": this peer made the certificate itself, and \
                 the ticket in the address proves both ends."
            }
        };
        lines.push(format!(
            "Hand this address only to people whom you would let spoil the run. {further}"
        ));
        let width = terminal::size().0;
        if let Some(code) = style.live.then(|| qr::code(url, width)).flatten() {
            lines.extend(code.lines().map(str::to_owned));
        }
    }
    if role == Role::Founder {
        let ticket = ready.ticket.as_deref().unwrap_or("TICKET");
        let join = format!("{} join", program());
        if let Some(code) = &ready.code {
            lines.extend([
                String::new(),
                "Others on this network take part with this code".into(),
            ]);
            lines.extend(aside(&format!("{join} --code {code}")));
            lines.push("and others elsewhere with this ticket, which is one line".into());
        } else {
            let who = match is_alone(ticket) {
                true => "Others on this machine alone, as --listen says, take part with",
                false => "Others take part with",
            };
            lines.extend([String::new(), who.into()]);
        }
        lines.extend(aside(&format!("{join} {ticket}")));
    }
    lines
}

/// Whether a ticket leads nowhere but to its own machine.
fn is_alone(ticket: &str) -> bool {
    let addrs = ticket.parse::<Ticket>().map(|ticket| ticket.addrs);
    addrs.is_ok_and(|addrs| addrs.iter().all(|at| at.ip().to_canonical().is_loopback()))
}

fn result(done: &Done, style: Style) -> Vec<String> {
    let round = human::grouped(done.round);
    let Some(dir) = &done.dir else {
        return vec!["left before it had caught up; nothing to save".into()];
    };
    let (color, word) = match (done.finished, done.stopped_early) {
        (true, true) if done.out_of_time => (Color::Green, "stopped early, as the time was over,"),
        (true, true) => (Color::Green, "stopped early, as the loss falls no more,"),
        (true, false) => (Color::Green, "done"),
        (false, _) => (Color::Yellow, "left"),
    };
    let (word, quality) = (style.paint(color, word), quality(done.loss, &done.metrics));
    let of = if done.held_out { "held-out " } else { "" };
    let mut lines = vec![format!("{word} after round {round}: {of}{quality}")];
    lines.extend(done.digest.as_ref().map(|digest| {
        let whose = match done.split {
            false => "the same on every peer that committed this round",
            true => "of the parts that this peer holds",
        };
        format!("  state    {}  ({whose})", human::id(digest))
    }));
    lines.push(format!("  saved    {}", printable_line(dir, usize::MAX)));
    lines.extend(done.best.filter(|best| best.round != done.round).map(|best| {
        let (round, loss) = (human::grouped(best.round), human::loss(best.loss.into()));
        format!("  best     after round {round}, loss {loss}: `annulus export` and others take it with --round best")
    }));
    lines
}

fn quality(loss: f32, metrics: &Metrics) -> String {
    let loss = human::loss(f64::from(loss));
    format!("loss {loss}{}", in_words(metrics))
}

/// The name of this program: a model of one's own makes another program.
fn program() -> String {
    let path = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = path.and_then(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| "annulus".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ticket_in;
    use crate::view::testing::{done, eval, link, member, pace, ready};
    use annulus_core::RunId;

    const PLAIN: Style = Style {
        live: false,
        color: false,
    };

    fn told(event: &Event, role: Role) -> String {
        let mut view = RunView::default();
        view.take(&ready(1), 0);
        lines(event, &view, role, PLAIN).join("\n")
    }

    #[test]
    fn a_peer_that_leaves_says_only_what_holds() {
        let end = |finished, split, digest: Option<&str>| {
            let digest = digest.map(str::to_owned);
            let dir = digest.as_ref().map(|_| "out".to_owned());
            let Event::Done(done) = done(12) else {
                unreachable!("it is the end")
            };
            told(
                &Event::Done(Done {
                    finished,
                    split,
                    digest,
                    dir,
                    ..done
                }),
                Role::Newcomer,
            )
        };
        let digest = "abcdef01".repeat(8);
        let shared = "  state    abcdef01  (the same on every peer that committed this round)";
        let lines = |word: &str, state: &str| {
            format!("{word} after round 12: held-out loss 0.500\n{state}\n  saved    out")
        };
        assert_eq!(end(true, false, Some(&digest)), lines("done", shared));
        assert_eq!(end(false, false, Some(&digest)), lines("left", shared));
        let own = "  state    abcdef01  (of the parts that this peer holds)";
        assert_eq!(end(true, true, Some(&digest)), lines("done", own));
        assert_eq!(
            end(false, false, None),
            "left before it had caught up; nothing to save"
        );
    }

    #[test]
    fn every_event_worth_a_line_gets_one() {
        let reach = Event::Reach {
            addresses: Vec::new(),
            why: "from anywhere".into(),
        };
        let nearby = |code: Option<&str>| Event::Nearby {
            code: code.map(str::to_owned),
            why: "why".into(),
        };
        let found = told(&nearby(Some("12-345-678")), Role::Founder);
        assert!(
            found.starts_with("@ on this network: `") && found.ends_with(" join`, code 12-345-678: why"),
            "{found}"
        );
        for (event, text) in [
            (
                Event::Sample {
                    round: 1500,
                    text: "Once\nupon ".into(),
                },
                "\" round 1,500 writes: Once upon",
            ),
            (
                member(2, Change::Joined, 1500, ""),
                "+ 02020202 joined after round 1,500",
            ),
            (
                member(2, Change::Failed, 1500, "no answer"),
                "x 02020202 failed after round 1,500: no answer",
            ),
            (member(2, Change::Left, 3, ""), "- 02020202 left after round 3"),
            (
                member(1, Change::Evicted, 1500, ""),
                "x this peer was put out after round 1,500",
            ),
            (
                eval(9, 0.25, Some(0.9712)),
                "* round 9: eval loss 0.250, accuracy 97.12 %",
            ),
            (eval(9, 0.25, None), "* round 9: eval loss 0.250"),
            (Event::Warning { message: "m".into() }, "! warning: m"),
            (Event::Waiting { why: "w".into() }, "= waiting: w"),
            (reach, "@ reachable from anywhere"),
            (nearby(None), "@ why"),
            (link(2, None), ""),
            (pace(1200), "~ after round 1,200: direct, since why"),
            (Event::Fetch { bytes: 1, total: 2 }, ""),
        ] {
            assert_eq!(told(&event, Role::Founder), text);
        }
        let text = told(&done(1000), Role::Founder);
        assert!(
            text.starts_with("done after round 1,000: held-out loss 0.500\n  state    000003e8  ("),
            "{text}"
        );
        assert!(text.ends_with("\n  saved    /home/someone"), "{text}");
    }

    #[test]
    fn a_peer_goes_by_its_name_and_its_digits() {
        let mut view = RunView::default();
        let peer = crate::view::testing::name(2);
        let name = "Anna".into();
        view.take(&Event::Named { peer, name }, 0);
        let joined = lines(&member(2, Change::Joined, 3, ""), &view, Role::Founder, PLAIN);
        assert_eq!(joined, ["+ Anna (02020202) joined after round 3"]);
    }

    #[test]
    fn the_founder_shows_how_to_join() {
        assert!(told(&ready(1), Role::Founder).contains(" join annulus2secret\n"));
        let Event::Ready(plain) = ready(1) else {
            unreachable!("it is up")
        };
        let with = |ready| told(&Event::Ready(ready), Role::Founder);
        let text = with(Ready {
            code: Some("12-345-678".into()),
            ..plain.clone()
        });
        let place = |part: &str| {
            text.find(part)
                .unwrap_or_else(|| panic!("{part} is not in {text}"))
        };
        assert!(place(" join --code 12-345-678\n") < place(" join annulus2secret\n"));
        let at = |address: &str| {
            let ticket = ticket_in(RunId([1; 32]), vec![address.parse().unwrap()]);
            let ticket = Some(ticket.to_string());
            with(Ready {
                ticket,
                ..plain.clone()
            })
        };
        assert!(at("127.0.0.1:4433").contains("Others on this machine alone"));
        assert!(at("192.0.2.1:4433").contains("Others take part with\n"));
        let text = told(&ready(1), Role::Newcomer);
        assert!(
            !text.contains("join") && text.contains("digits, 101,770 parameters"),
            "{text}"
        );
    }
}
