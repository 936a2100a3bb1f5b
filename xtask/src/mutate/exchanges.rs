//! Which tokens are exchanged, and by what: a list for each language. It knows lines of code, and no files.

/// A text with one change.
#[derive(Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Counted from 1.
    pub line: usize,
    /// `old -> new`.
    pub what: String,
    /// Where the change begins in the text, and how many bytes it replaces.
    at: usize,
    length: usize,
    new: String,
}

impl Mutant {
    /// The changed text.
    pub fn apply(&self, text: &str) -> String {
        let (before, after) = (&text[..self.at], &text[self.at + self.length..]);
        [before, &self.new, after].concat()
    }
}

/// What may be exchanged in a language.
pub struct Exchanges {
    pairs: [&'static [(&'static str, &'static str)]; 2],
    /// What takes the place of a condition; `{}` is the condition.
    conditions: &'static [&'static str],
}

const BOTH: &[(&str, &str)] = &[
    (" + ", " - "),
    (" - ", " + "),
    (" * ", " + "),
    (" / ", " * "),
    (" += ", " -= "),
    (" < ", " <= "),
    (" >= ", " > "),
    (" > ", " >= "),
    (" == ", " != "),
    (" != ", " == "),
    (" && ", " || "),
    ("min(", "max("),
    ("max(", "min("),
];

/// Within functions of kernels.
pub const WGSL: Exchanges = Exchanges {
    pairs: [
        BOTH,
        &[
            (" | ", " & "),
            ("4u", "3u"),
            (".x", ".y"),
            ("1u", "0u"),
            ("fma(", "-fma("),
        ],
    ],
    conditions: &["false"],
};

/// There is no ` | `, because most of these part patterns: a mutant that does not compile costs a build.
pub const RUST: Exchanges = Exchanges {
    pairs: [
        BOTH,
        &[
            (" <= ", " < "),
            (" -= ", " += "),
            (" || ", " && "),
            (" % ", " / "),
            ("0", "1"),
            ("1", "0"),
            ("true", "false"),
            ("false", "true"),
            ("is_some()", "is_none()"),
            ("is_none()", "is_some()"),
            ("any(", "all("),
            ("all(", "any("),
            ("saturating_sub(", "saturating_add("),
        ],
    ],
    conditions: &["false", "!({})"],
};

impl Exchanges {
    /// All mutants of a text. `code` is the text with blanks in place of all that is left alone.
    pub fn mutants(&self, text: &str, code: &str) -> Vec<Mutant> {
        let mut found = Vec::new();
        let mut start = 0;
        for (number, line) in code.split_inclusive('\n').enumerate() {
            let whole = &text[start..start + line.len()];
            let mut add = |at: usize, length: usize, new: &str| {
                let at = start + at;
                found.push(Mutant {
                    line: number + 1,
                    what: format!("{} -> {}", text[at..at + length].trim(), new.trim()),
                    at,
                    length,
                    new: new.to_string(),
                });
            };
            for (old, new) in self.pairs.iter().copied().flatten() {
                let places = line.match_indices(old).map(|(at, _)| at);
                // The blanks around a sign may be those of what is left alone.
                let is_there = |at: usize| whole.as_bytes()[at..].starts_with(old.as_bytes());
                places
                    .filter(|at| is_whole(line, *at, old) && is_there(*at))
                    .for_each(|at| add(at, old.len(), new));
            }
            if let Some((at, length)) = condition(line, whole) {
                let old = &whole[at..at + length];
                let news = self.conditions.iter().map(|new| new.replace("{}", old));
                news.for_each(|new| add(at, length, &new));
            }
            start += line.len();
        }
        found
    }
}

/// Whether a name or a number begins and ends where `word` does. Signs, and what begins with one, are always whole.
fn is_whole(line: &str, at: usize, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    if !word.starts_with(is_name) {
        return true;
    }
    let (before, after) = (&line[..at], &line[at + word.len()..]);
    let is_number = word.starts_with(|c: char| c.is_ascii_digit());
    let is_field = is_number && before.ends_with('.') && !before.ends_with("..");
    let is_fraction = is_number
        && after
            .strip_prefix('.')
            .is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()));
    let goes_on = word.ends_with(is_name) && after.starts_with(is_name);
    !before.ends_with(is_name) && !is_field && !is_fraction && !goes_on
}

/// Where the condition of an `if` stands that fills its line, and its length. Its code may begin or end with blanks.
fn condition(code: &str, line: &str) -> Option<(usize, usize)> {
    let at = code.find("if ").filter(|at| is_whole(code, *at, "if "))? + "if ".len();
    let end = code.trim_end().strip_suffix('{')?.len();
    let inside = code.get(at..end)?;
    let is_plain = !["let ", "=>", "{"].iter().any(|part| inside.contains(part));
    is_plain.then(|| (at, line[at..end].trim_end().len()))
}

/// As many blanks as the text has bytes, but for the ends of lines.
pub fn blanks(text: &str) -> String {
    let blank = |byte| if byte == b'\n' { '\n' } else { ' ' };
    text.bytes().map(blank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(line: &str) -> Vec<String> {
        let found = RUST.mutants(line, line);
        found.iter().map(|mutant| mutant.apply(line)).collect()
    }

    #[test]
    fn each_token_is_exchanged_alone() {
        assert_eq!(
            rust("let a = b + c.min(d) + 1;"),
            [
                "let a = b - c.min(d) + 1;",
                "let a = b + c.min(d) - 1;",
                "let a = b + c.max(d) + 1;",
                "let a = b + c.min(d) + 0;"
            ]
        );
        assert_eq!(
            rust("} else if a < b {"),
            ["} else if a <= b {", "} else if false {", "} else if !(a < b) {"]
        );
    }

    #[test]
    fn names_and_numbers_are_exchanged_as_a_whole() {
        assert_eq!(
            rust("f(0..n, x.0, 10, 1_000, 1.5, 0.1, u1, 0x1, x..1)"),
            [
                "f(1..n, x.0, 10, 1_000, 1.5, 0.1, u1, 0x1, x..1)",
                "f(0..n, x.0, 10, 1_000, 1.5, 0.1, u1, 0x1, x..0)"
            ]
        );
        assert!(rust("argmin(a), is_true, small(b), T: A<B>, a => b").is_empty());
    }

    #[test]
    fn conditions_with_patterns_are_left_alone() {
        assert!(rust("if let Some(a) = b {").is_empty());
        assert!(rust("if a.is_empty() { b } else {").is_empty());
        assert!(rust("A if b => {").is_empty());
        assert!(rust("iff b {").is_empty());
        let text = "if \"é\" == \"} {\" { // {\n";
        let found = RUST.mutants(text, "if      ==       {     \n");
        assert_eq!(
            found.last().unwrap().apply(text),
            "if !(\"é\" == \"} {\") { // {\n"
        );
    }

    #[test]
    fn blanks_in_the_code_leave_the_text_alone() {
        let (text, code) = (
            "a + b; // c + d\n\"x + y\" + é + 1 'a> x",
            "a + b;         \n        + é + 1   > x",
        );
        let found = RUST.mutants(text, code);
        let all: Vec<String> = found.iter().map(|mutant| mutant.apply(text)).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(all[3], "a + b; // c + d\n\"x + y\" + é + 0 'a> x");
        assert_eq!((found[3].line, found[3].what.as_str()), (2, "1 -> 0"));
    }
}
