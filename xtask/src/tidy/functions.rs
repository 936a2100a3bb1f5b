//! How long functions are.

use super::tokens::{self, Token};

/// A function's name, the line that it begins in, and how many lines it has.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

/// All functions with a body in a file, without tests; those within another one too.
pub fn functions(text: &str) -> Vec<Function> {
    let tokens = tokens::product_tokens(text);
    let bodies = tokens.windows(2).enumerate();
    bodies
        .filter(|(_, pair)| pair[0].text == "fn" && pair[1].is_word())
        .filter_map(|(at, pair)| {
            let last = tokens[after_body(&tokens, at)? - 1].line;
            Some(Function {
                name: pair[1].text.to_string(),
                line: pair[0].line,
                lines: last - pair[0].line + 1,
            })
        })
        .collect()
}

/// One past the body of the function that begins at `at`, if it has one.
fn after_body(tokens: &[Token], mut at: usize) -> Option<usize> {
    loop {
        match tokens.get(at)?.text {
            "{" => return Some(tokens::after_closing(tokens, at)),
            ";" => return None,
            "(" | "[" => at = tokens::after_closing(tokens, at),
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_measured_and_tests_are_not() {
        let text = "\
trait A { fn none(&self) -> [u8; 2]; }
pub async fn long(a: fn(u8) -> u8)
where
    u8: Copy,
{
    // }
    let inner = \"}\";
}
#[test]
fn not_this() {
}
";
        let found = functions(text);
        let expected = Function {
            name: "long".to_string(),
            line: 2,
            lines: 7,
        };
        assert_eq!(found, [expected]);
    }
}
