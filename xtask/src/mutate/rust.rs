//! Which parts of a Rust file are code that its tests run.

use super::exchanges::{Mutant, RUST, blanks};
use crate::tidy::modules::Crate;
use crate::tidy::tokens::{Token, after_closing, tokens_under};
use std::path::{Path, PathBuf};

/// Code under any other condition may be no part of the tests, and nobody would notice a change.
const CONDITIONS: [&str; 5] = [
    "unix",
    "not(target_family = \"wasm\")",
    "feature = \"native\"",
    "all(unix, feature = \"native\")",
    "feature = \"decode\"",
];

/// Statements that tests in the profile `release` do not run.
const NOT_IN_RELEASE: &str = "debug_assert";

/// Lines that ask for a planted bug or for what the build is like have only one answer in real programs, and how much
/// memory a list begins with changes no result.
const UNSEEN: [&str; 3] = ["Bug::", "cfg!", "with_capacity"];

/// All mutants of a file.
pub fn mutants(text: &str) -> Vec<Mutant> {
    RUST.mutants(text, &code(text))
}

/// The files of a crate, from its root file on, that its tests compile.
pub fn files(root: &Path) -> Vec<PathBuf> {
    Crate::read_only(root, tested).files
}

fn tested(text: &str) -> Vec<Token<'_>> {
    tokens_under(text, &CONDITIONS)
}

/// The text with blanks in place of all that is left alone: comments, literals in quotes, attributes, imports, tests.
fn code(text: &str) -> String {
    let tokens = tested(text);
    let mut code = blanks(text).into_bytes();
    let mut at = 0;
    while at < tokens.len() {
        let end = after_left_alone(&tokens[at..]).map(|length| at + length);
        if end.is_none() && text[tokens[at].at..].starts_with(tokens[at].text) {
            let Token { text, at: from, .. } = tokens[at];
            code[from..from + text.len()].copy_from_slice(text.as_bytes());
        }
        at = end.unwrap_or(at + 1);
    }
    let code = String::from_utf8(code).expect("tokens are whole characters");
    let is_unseen = |line: &str| UNSEEN.iter().any(|word| line.contains(word));
    let lines = code.split_inclusive('\n').map(|line| match is_unseen(line) {
        true => blanks(line),
        false => line.to_string(),
    });
    lines.collect()
}

/// How many tokens the attribute, import or statement has that begins here, if it is left alone.
fn after_left_alone(tokens: &[Token]) -> Option<usize> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    match (text(0), text(1), text(2)) {
        ("#", "[", _) => Some(after_closing(tokens, 1)),
        ("#", "!", "[") => Some(after_closing(tokens, 2)),
        (word, "!", "(") if word.starts_with(NOT_IN_RELEASE) => Some(after_closing(tokens, 2)),
        ("use", next, _) if next != "<" => {
            let end = tokens.iter().position(|token| token.text == ";")?;
            Some(end + 1)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_that_tests_run_is_left() {
        let text = "//! 1 + 1\n#![allow(a1 = 1)]\nuse a::{b, c};\n#[cfg(windows)]\nfn f() { 0 }\n#[inline]\nfn g() {\n    \
                    h(\"0 + 1\", '1', 1); // 0\n    debug_assert!(0 < 1, \"{}\", 1);\n    if planted(Bug::A) || true {\n    \
                    }\n    let a = 2;\n}\n#[cfg(test)]\nmod tests {\n    const A: u8 = 1;\n}\n";
        let code = code(text);
        assert_eq!(code.len(), text.len());
        let left: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(left.join(" "), "fn g() { h( , , 1); ; } let a = 2; }");
        let found = mutants(text);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].what.as_str()), (8, "1 -> 0"));
        assert_eq!(found[0].apply(text), text.replace("', 1)", "', 0)"));
    }

    #[test]
    fn modules_that_tests_do_not_compile_are_no_files() {
        let root = std::env::temp_dir().join(format!("annulus-mutants-files-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let text =
            "mod a;\n#[cfg(unix)]\nmod b;\n#[cfg(feature = \"sim\")]\nmod sim;\n#[cfg(test)]\nmod tests;\n";
        std::fs::write(root.join("lib.rs"), text).unwrap();
        let found = files(&root.join("lib.rs"));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found,
            ["lib.rs", "a/mod.rs", "b/mod.rs"].map(|name| root.join(name))
        );
    }
}
