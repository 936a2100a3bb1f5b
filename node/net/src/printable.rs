//! Texts from others as a terminal may show them.
//!
//! A peer's reason, a file's name or a model's output can hold escape codes, which a terminal obeys: they set its title, move
//! the cursor, or hide text. Each text that did not originate in this program goes through [`printable`] before it is shown.

/// The text with every character that a terminal obeys replaced, apart from line ends and tabs.
pub fn printable(text: &str) -> String {
    let is_obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t') || turns(c);
    text.chars()
        .map(|c| if is_obeyed(c) { '\u{fffd}' } else { c })
        .collect()
}

/// The text as one line of at most `most` characters, cleaned likewise.
pub fn printable_line(text: &str, most: usize) -> String {
    let line = printable(text).replace(['\n', '\t'], " ");
    line.chars().take(most).collect()
}

/// Whether a character changes the direction of those behind it, so that they read as something else.
fn turns(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let all: String = ('\0'..='\u{2100}').collect();
        let clean = printable(&all);
        let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!clean.contains(obeyed) && clean.contains("abc"));
        assert_eq!(
            printable("\x1b]0;PWNED\x07 a\tb\n\u{9b}31m"),
            "\u{fffd}]0;PWNED\u{fffd} a\tb\n\u{fffd}31m"
        );
        assert_eq!(printable("\u{202e}txt.exe"), "\u{fffd}txt.exe");
        assert_eq!(printable("naïve 🦀"), "naïve 🦀");
        assert_eq!(printable_line("a\nb\x1bc", 4), "a b\u{fffd}");
    }
}
