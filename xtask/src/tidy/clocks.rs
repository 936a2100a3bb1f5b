//! Asserts on elapsed time. A busy machine breaks them without a fault: a test waits for an event and asserts an order of
//! events. Comparisons of speed are measurements, which have programs of their own.

use super::tokens::{self, Token};
use std::collections::HashSet;

/// What gives a span of real time.
const CLOCKS: [&str; 2] = ["elapsed", "duration_since"];

/// Lines of asserts on how long something took.
pub fn timed_asserts(text: &str) -> Vec<usize> {
    let tokens = tokens::tokens(text);
    let mut lines = Vec::new();
    let mut spans = HashSet::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].text {
            // Names of one function mean other things in the next.
            "fn" => spans.clear(),
            "let" => {
                let (names, value) = binding(&tokens, at);
                if tells_time(value, &spans) {
                    spans.extend(names);
                }
            }
            word if word.starts_with("assert") && tokens.get(at + 1).is_some_and(|t| t.text == "!") => {
                let asserted = &tokens[at..tokens::after_closing(&tokens, at + 2)];
                if tells_time(asserted, &spans) || is_within(asserted) {
                    lines.push(tokens[at].line);
                }
            }
            _ => {}
        }
        at += 1;
    }
    lines
}

/// The names that a `let` at a place binds, and their value's tokens.
fn binding<'a, 'b>(tokens: &'b [Token<'a>], at: usize) -> (Vec<&'a str>, &'b [Token<'a>]) {
    let until = |sign: &str, from: usize| {
        let found = tokens[from..].iter().position(|token| token.text == sign);
        found.map_or(tokens.len(), |found| from + found)
    };
    let equals = until("=", at);
    let end = until(";", equals);
    // Without the type.
    let pattern = &tokens[at + 1..equals.min(until(":", at))];
    let names = pattern
        .iter()
        .filter(|token| token.is_word() && token.text != "mut");
    (names.map(|token| token.text).collect(), &tokens[equals..end])
}

fn tells_time(tokens: &[Token], spans: &HashSet<&str>) -> bool {
    tokens
        .iter()
        .any(|token| CLOCKS.contains(&token.text) || spans.contains(token.text))
}

/// Whether something is to be less than a duration.
fn is_within(tokens: &[Token]) -> bool {
    let texts: Vec<&str> = tokens.iter().map(|token| token.text).collect();
    let is_less = |texts: &[&str]| texts == ["<", "Duration", "::"];
    texts.windows(3).any(is_less)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asserts_on_elapsed_time_are_found_and_deadlines_are_not() {
        let text = "\
fn a() {
    assert!(begin.elapsed() < LIMIT);
    let took = next.duration_since(begin);
    println!(\"{took:?}\");
    assert!((1..3).contains(&took.as_secs()), \"late\");
    let count = || { let all: u64 = 4; all };
    assert_eq!(count(), 4);
    assert!(wait < Duration::from_secs(3));
}
fn b(took: u64) {
    let deadline = Instant::now() + PATIENCE;
    assert!(Instant::now() < deadline, \"never\");
    assert_eq!(took, 4);
    assert_eq!(pace.rest(at(9)), Duration::ZERO);
}
";
        assert_eq!(timed_asserts(text), [2, 5, 8]);
    }
}
