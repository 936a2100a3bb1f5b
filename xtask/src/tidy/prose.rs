//! English that a reader has to read twice: in Markdown, in comments of Rust and WGSL, and in string literals that hold a
//! sentence. It finds three kinds: sentences whose subject is a clause ("Who yields keeps ..."), sentences of more than
//! [`SENTENCE_WORDS`] words, and blocks of Markdown of more than [`BLOCK_WORDS`] words.

/// A typical sentence has at most 25 words; this is where even a patient reader loses the thread.
const SENTENCE_WORDS: usize = 40;

/// A longer paragraph, list item or table cell hides what it says.
const BLOCK_WORDS: usize = 100;

/// Shorter string literals are names, keys and formats.
const LITERAL_CHARS: usize = 24;

/// A run of text without markup, with the line on which it begins.
struct Block {
    line: usize,
    text: String,
}

/// What a reader of this file would have to read twice: each `:line: what is wrong`.
pub fn problems(name: &str, text: &str) -> Vec<String> {
    let markdown = name.ends_with(".md");
    let blocks = match markdown {
        true => markdown_blocks(text),
        false => code_blocks(text),
    };
    let mut problems = Vec::new();
    for Block { line, text } in &blocks {
        let words = text.split_whitespace().count();
        if markdown && words > BLOCK_WORDS {
            problems.push(format!(
                ":{line}: a block of {words} words, more than {BLOCK_WORDS}"
            ));
        }
        let text = without_markup(text);
        for sentence in sentences(&text) {
            let words = sentence.split_whitespace().count();
            let begins: String = sentence.chars().take(60).collect();
            if words > SENTENCE_WORDS {
                problems.push(format!(
                    ":{line}: a sentence of {words} words, more than {SENTENCE_WORDS}: {begins}"
                ));
            }
            if opens_with_clause(sentence) {
                problems.push(format!(":{line}: name the actor: {begins}"));
            }
        }
    }
    problems
}

/// Whether a clause is the sentence's subject. Questions may begin so.
fn opens_with_clause(sentence: &str) -> bool {
    const SUBJECTS: [&str; 7] = [
        "Who",
        "Whoever",
        "Whom",
        "Whomever",
        "Whose",
        "Whichever",
        "Whatever",
    ];
    const VERBS: [&str; 12] = [
        "is", "are", "has", "does", "goes", "comes", "stands", "takes", "gets", "was", "were", "counts",
    ];
    if sentence.contains('?') {
        return false;
    }
    let mut words = sentence.split_whitespace();
    let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    match first {
        "What" => {
            // Far from its beginning a verb belongs to another clause.
            let near: String = sentence.chars().take(84).collect();
            near.split_whitespace().skip(2).any(|word| VERBS.contains(&word))
        }
        "Of" | "To" | "From" | "With" | "By" => ["what", "whom", "which"].contains(&second),
        _ => SUBJECTS.contains(&first),
    }
}

/// Code spans become one word, and links their text.
fn without_markup(text: &str) -> String {
    let mut plain = String::new();
    for (at, part) in text.split('`').enumerate() {
        plain += if at % 2 == 1 { "CODE" } else { part };
    }
    while let Some(close) = plain.find("](") {
        let end = plain[close..]
            .find(')')
            .map_or(plain.len(), |end| close + end + 1);
        plain.replace_range(close..end, "");
        if let Some(open) = plain[..close].rfind('[') {
            plain.remove(open);
        }
    }
    plain
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        (!rest.is_empty()).then(|| {
            let end = rest
                .match_indices(['.', '!', '?', ':', ';'])
                .map(|(at, sign)| at + sign.len())
                .find(|&end| {
                    let mut after = rest[end..].chars();
                    after.next().is_some_and(char::is_whitespace)
                        && after
                            .next()
                            .is_some_and(|c| c.is_uppercase() || "\"'(*[".contains(c))
                })
                .unwrap_or(rest.len());
            let (sentence, after) = rest.split_at(end);
            rest = after.trim_start();
            sentence.trim_matches([' ', '*', '_', '>', '#', '-', '('])
        })
    })
}

/// Collects lines into blocks.
#[derive(Default)]
struct Blocks {
    done: Vec<Block>,
    open: Option<Block>,
}

impl Blocks {
    fn end(&mut self) {
        self.done.extend(self.open.take());
    }

    fn add(&mut self, line: usize, text: &str) {
        let block = self.open.get_or_insert_with(|| Block {
            line,
            text: String::new(),
        });
        block.text += text;
        block.text.push(' ');
    }

    fn whole(&mut self, line: usize, text: &str) {
        self.end();
        self.add(line, text);
        self.end();
    }
}

/// Paragraphs, list items and the cells of tables; no headings, pictures or code.
fn markdown_blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut fenced) = (Blocks::default(), false);
    for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
        let fence = text.starts_with("```");
        fenced ^= fence;
        if fence || fenced || text.is_empty() || text.starts_with(['#', '<']) || text.starts_with("![") {
            blocks.end();
        } else if text.starts_with('|') {
            let cells = text.split('|').filter(|cell| holds_words(cell));
            cells.for_each(|cell| blocks.whole(line, cell.trim()));
        } else {
            if is_item(text) {
                blocks.end();
            }
            blocks.add(line, without_bullet(text));
        }
    }
    blocks.end();
    blocks.done
}

/// Runs of comment lines, and string literals of one line that hold words.
fn code_blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut fenced) = (Blocks::default(), false);
    for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
        let Some(comment) = text.strip_prefix("//") else {
            blocks.end();
            fenced = false;
            let literals = text.split('"').skip(1).step_by(2);
            let sentences = literals.filter(|literal| literal.len() >= LITERAL_CHARS && holds_words(literal));
            sentences.for_each(|literal| blocks.whole(line, literal));
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        let fence = comment.starts_with("```");
        fenced ^= fence;
        if fence || fenced || comment.is_empty() || comment.starts_with(['#', '|']) {
            blocks.end();
            continue;
        }
        if is_item(comment) {
            blocks.end();
        }
        blocks.add(line, without_bullet(comment));
    }
    blocks.end();
    blocks.done
}

fn is_item(text: &str) -> bool {
    without_bullet(text).len() < text.len()
}

fn without_bullet(text: &str) -> &str {
    let numbered = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let after = match numbered.len() < text.len() {
        true => numbered.strip_prefix(['.', ')']),
        false => text.strip_prefix(['-', '*', '+']),
    };
    after
        .and_then(|after| after.strip_prefix(' '))
        .map_or(text, str::trim_start)
}

/// Whether there are three words in a row, as in a sentence.
fn holds_words(text: &str) -> bool {
    let is_word = |word: &&str| word.len() > 1 && word.chars().all(|c| c.is_ascii_lowercase());
    text.split(' ')
        .collect::<Vec<_>>()
        .windows(3)
        .any(|three| three.iter().all(&is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &str, text: &str) -> Vec<usize> {
        let line = |problem: &String| problem[1..].split(':').next().unwrap().parse().unwrap();
        // Without the marks that keep this check from finding its own tests.
        let text = text.replace('~', "");
        problems(name, &text).iter().map(line).collect()
    }

    #[test]
    fn clauses_as_subjects_are_found_in_text_and_code() {
        let page = "# Who\n\nW~ho waits is late. Fine.\n\n- W~hat they hold is lost.\n- What now? A question.\n\n```\nW~ho waits\n```\n\n| a | b |\n|---|---|\n| plain words stand here | W~hoever comes first is in |\n";
        assert_eq!(lines("a.md", page), [3, 5, 14]);
        let code = "//! A.\n\n/// W~hom it names\n/// is in. B~y whom it came is known.\nfn a() {\n    say(\"fine: W~hatever comes now is kept\");\n}\n// ```\n// W~ho is code\n// ```\n";
        assert_eq!(lines("a.rs", code), [3, 3, 6]);
        assert_eq!(
            lines(
                "a.md",
                "See `a`. W~hat follows applies to all of the members, and it is short.\n"
            ),
            [1]
        );
        assert_eq!(
            lines("a.md", "By then it is done. W~ith whom it goes, nobody knows.\n"),
            [1]
        );
    }

    #[test]
    fn long_sentences_and_blocks_are_found() {
        let long = "word ".repeat(SENTENCE_WORDS + 1);
        assert_eq!(lines("a.md", &format!("{long}\n")), [1]);
        assert_eq!(lines("a.rs", &format!("//! A.\n// {long}\n")), [1]);
        let block = "A word or two. ".repeat(BLOCK_WORDS / 4 + 1);
        assert_eq!(lines("a.md", &block), [1]);
        assert!(lines("a.rs", &format!("// {block}\n")).is_empty());
        let linked = format!(
            "[{}](x/y.md) `{}`\n",
            "word ".repeat(SENTENCE_WORDS - 2),
            "code ".repeat(40)
        );
        assert!(lines("a.md", &linked).is_empty());
    }
}
