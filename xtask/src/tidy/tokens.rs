//! Rust text as words and signs with their lines: as much of the language's grammar as the checks need, and no more.
//! Comments, lifetimes and what is inside of literals are left out, and so is what is compiled for tests alone.

/// A word, a number, a sign or `::`; a literal with quotes is `""`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    /// The byte that it begins with, in the whole text.
    pub at: usize,
    /// Counted from 1.
    pub line: usize,
}

impl Token<'_> {
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// All tokens of `text` that are not compiled for tests alone.
pub fn product_tokens(text: &str) -> Vec<Token<'_>> {
    without(tokens(text), is_for_tests)
}

/// All tokens of `text` that are compiled always, or under one of these conditions, such as `unix`.
pub fn tokens_under<'a>(text: &'a str, conditions: &[&str]) -> Vec<Token<'a>> {
    without(tokens(text), |attribute| {
        let [_, _, kind, open, .., close, _] = attribute else {
            return is_for_tests(attribute);
        };
        let is_condition = kind.text == "cfg" && open.text == "(";
        is_condition && !conditions.contains(&&text[open.at + 1..close.at])
    })
}

/// How many lines of `text` are not compiled for tests alone.
pub fn product_lines(text: &str) -> usize {
    let all = tokens(text);
    let tests: usize = items(&all, is_for_tests)
        .iter()
        .map(|&(from, to)| all[to - 1].line - all[from].line + 1)
        .sum();
    text.lines().count() - tests
}

/// One past the sign that closes what `tokens[open]` opens.
pub fn after_closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// All tokens of `text`.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (length, kept) = scan(rest, first);
        if let Some(kept) = kept {
            tokens.push(Token { text: kept, at, line });
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    tokens
}

/// How long the thing is that `rest` begins with, and what is kept of it.
fn scan(rest: &str, first: char) -> (usize, Option<&str>) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), None);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), None);
    }
    if let Some(length) = quoted(rest) {
        return (length, Some("\"\""));
    }
    if first == '\'' {
        return apostrophe(rest);
    }
    if first.is_alphanumeric() || first == '_' {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let length = end.unwrap_or(rest.len());
        return (length, Some(&rest[..length]));
    }
    if rest.starts_with("::") {
        return (2, Some("::"));
    }
    let length = first.len_utf8();
    (length, (!first.is_whitespace()).then(|| &rest[..length]))
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let bytes = &rest.as_bytes()[at..];
        match bytes {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of a string literal of any kind, if `rest` begins with one.
fn quoted(rest: &str) -> Option<usize> {
    let prefix = rest.find(|c| !matches!(c, 'b' | 'c' | 'r'))?;
    let raw = rest[..prefix].ends_with('r');
    let hashes = rest[prefix..].find(|c| c != '#')?;
    let open = prefix + hashes + 1;
    if prefix > 2 || !rest[prefix + hashes..].starts_with('"') || (hashes > 0 && !raw) {
        return None;
    }
    if raw {
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(
            rest[open..]
                .find(&close)
                .map_or(rest.len(), |at| open + at + close.len()),
        );
    }
    Some(open + unescaped(&rest[open..], '"'))
}

/// A character in quotes, or a lifetime.
fn apostrophe(rest: &str) -> (usize, Option<&str>) {
    let mut chars = rest[1..].chars();
    let (inside, next) = (chars.next(), chars.next());
    if inside == Some('\\') || next == Some('\'') {
        return (1 + unescaped(&rest[1..], '\''), Some("\"\""));
    }
    let end = rest[1..].find(|c: char| !c.is_alphanumeric() && c != '_');
    (end.map_or(rest.len(), |end| 1 + end), None)
}

/// One past the first `quote` that no backslash stands before.
fn unescaped(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// What is left without the items that have such an attribute.
fn without<'a>(tokens: Vec<Token<'a>>, is_meant: impl Fn(&[Token]) -> bool) -> Vec<Token<'a>> {
    let (mut kept, mut at) = (Vec::new(), 0);
    for (from, to) in items(&tokens, is_meant) {
        kept.extend_from_slice(&tokens[at..from]);
        at = to;
    }
    kept.extend_from_slice(&tokens[at..]);
    kept
}

/// Where items begin and end that have such an attribute.
fn items(tokens: &[Token], is_meant: impl Fn(&[Token]) -> bool) -> Vec<(usize, usize)> {
    let mut items: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_attribute(tokens, at) && is_meant(&tokens[at..after_closing(tokens, at + 1)]) {
            let end = after_item(tokens, at);
            items.push((at, end));
            at = end;
        } else {
            at += 1;
        }
    }
    items
}

fn is_attribute(tokens: &[Token], at: usize) -> bool {
    tokens[at].text == "#" && tokens.get(at + 1).is_some_and(|next| next.text == "[")
}

/// Whether it is `#[test]` or `#[cfg(test)]`.
fn is_for_tests(attribute: &[Token]) -> bool {
    let has = |word| attribute.iter().any(|token| token.text == word);
    match attribute[2].text {
        "test" => attribute.len() == 4,
        "cfg" => has("test") && !has("not"),
        _ => false,
    }
}

/// One past the item whose first attribute begins at `at`.
fn after_item(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() && is_attribute(tokens, at) {
        at = after_closing(tokens, at + 1);
    }
    // These end with a semicolon, whatever is in braces before it.
    let head = tokens[at..]
        .iter()
        .take_while(|token| token.is_word())
        .map(|token| token.text);
    let to_semicolon = head.clone().any(|word| matches!(word, "use" | "static")) || {
        let mut head = head.skip_while(|word| *word == "pub");
        head.next() == Some("const") && head.next() != Some("fn")
    };
    while at < tokens.len() {
        match tokens[at].text {
            ";" => return at + 1,
            "{" if !to_semicolon => return after_closing(tokens, at),
            "(" | "[" | "{" => at = after_closing(tokens, at),
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        let words: Vec<&str> = product_tokens(text).iter().map(|token| token.text).collect();
        words.join(" ")
    }

    #[test]
    fn comments_lifetimes_and_the_inside_of_literals_are_left_out() {
        assert_eq!(words("a::b // c\n/* d /* e */ f */ g"), "a :: b g");
        assert_eq!(
            words(r##"f("x \" {", r#"y " {"#, b"{", br"\", 'z', '\'', '{')"##),
            { r#"f ( "" , "" , "" , "" , "" , "" , "" )"# }
        );
        assert_eq!(words("fn f<'a>(x: &'a str) -> Cow<'static, str>"), {
            "fn f < > ( x : & str ) - > Cow < , str >"
        });
        assert_eq!(
            words("r#type for bright in crate_0"),
            "r # type for bright in crate_0"
        );
        let lines: Vec<usize> = product_tokens("a\n\"\n\n\" b")
            .iter()
            .map(|token| token.line)
            .collect();
        assert_eq!(lines, [1, 2, 4]);
    }

    #[test]
    fn what_is_for_tests_alone_is_left_out() {
        assert_eq!(words("a #[cfg(test)] mod tests { fn f() {} } b"), "a b");
        assert_eq!(
            words("a #[cfg(test)] #[path = \"x\"] pub(super) mod tests; b"),
            "a b"
        );
        assert_eq!(words("#[cfg(all(test, unix))] use a::{b, c}; d"), "d");
        assert_eq!(words("#[cfg(test)] const A: [u8; 2] = { [1, 2] }; b"), "b");
        assert_eq!(words("#[test] fn f() { g(); } #[inline] const fn h() {}"), {
            "# [ inline ] const fn h ( ) { }"
        });
        assert!(words("#[cfg(not(test))] fn f() {}").contains("fn f"));
        assert!(words("#[cfg(feature = \"test\")] fn f() {}").contains("fn f"));
        let under = |conditions: &[&str]| {
            let text =
                "#[cfg(unix)] a; #[cfg(all(x = \"b\"))] fn f() {} #[cfg_attr(c, d)] e; #[test] fn g() {}";
            let tokens = tokens_under(text, conditions);
            tokens
                .iter()
                .filter(|token| "aef".contains(token.text))
                .map(|token| text[token.at..].chars().next().unwrap())
                .collect::<String>()
        };
        assert_eq!(under(&[]), "e");
        assert_eq!(under(&["unix", "all(x = \"b\")"]), "afe");
        assert_eq!(product_lines("a\n\n#[cfg(test)]\nmod tests {\n  b\n}\nc\n"), 3);
    }
}
