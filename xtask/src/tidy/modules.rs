//! A crate's files as modules: what each declares, imports and hands on, read from its text.

use super::tokens::{self, Token};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// One module: a file, or a `mod x { .. }` within one.
#[derive(Default)]
pub struct Module {
    /// The file that it stands in, by its number.
    pub file: usize,
    pub parent: usize,
    pub children: HashMap<String, usize>,
    /// What it defines itself.
    pub items: HashSet<String>,
    pub imports: Vec<Import>,
    /// Paths in its code, outside of imports.
    pub paths: Vec<(Vec<String>, usize)>,
    /// All words of its code, outside of imports.
    pub words: HashSet<String>,
}

/// One name that a `use` brings.
pub struct Import {
    /// Without the `*` at the end of a glob.
    pub path: Vec<String>,
    /// Its name here; `*` for a glob.
    pub name: String,
    pub line: usize,
    /// Handed on by `pub use`.
    pub is_public: bool,
}

/// Chooses the tokens that count of a file's text.
pub type Choose = fn(&str) -> Vec<Token<'_>>;

/// All modules from a root file (`lib.rs`, `main.rs`) on, without those that only tests have.
pub struct Crate {
    pub files: Vec<PathBuf>,
    /// The first is the root.
    pub modules: Vec<Module>,
    choose: Choose,
}

impl Crate {
    pub fn read(root: &Path) -> Self {
        Self::read_only(root, tokens::product_tokens)
    }

    /// Only the modules that are declared in the tokens chosen.
    pub fn read_only(root: &Path, choose: Choose) -> Self {
        let mut all = Self {
            files: Vec::new(),
            modules: Vec::new(),
            choose,
        };
        let folder = root.parent().unwrap_or(Path::new("")).to_path_buf();
        all.read_file(root.to_path_buf(), 0, &folder);
        all
    }

    /// Reads a file as a module whose children lie in `folder`.
    fn read_file(&mut self, path: PathBuf, parent: usize, folder: &Path) -> usize {
        let text = fs::read_to_string(&path).unwrap_or_default();
        self.files.push(path);
        let file = self.files.len() - 1;
        let tokens = (self.choose)(&text);
        self.read_module(file, parent, &tokens, folder)
    }

    fn read_module(&mut self, file: usize, parent: usize, tokens: &[Token], folder: &Path) -> usize {
        let this = self.modules.len();
        self.modules.push(Module {
            file,
            parent,
            ..Module::default()
        });
        let (mut at, mut depth) = (0, 0);
        while at < tokens.len() {
            at = match (tokens[at].text, tokens.get(at + 1)) {
                ("mod", Some(name)) if name.is_word() => self.read_child(this, tokens, at, folder),
                ("use", Some(next)) if next.is_word() || matches!(next.text, "{" | "::") => {
                    let is_public = at > 0 && matches!(tokens[at - 1].text, "pub" | ")");
                    let mut tree = Tree::new(&tokens[at + 1..], is_public);
                    tree.read(&[]);
                    self.modules[this].imports.append(&mut tree.imports);
                    at + 1 + tree.at
                }
                _ => self.modules[this].read_code(tokens, at, &mut depth),
            };
        }
        this
    }

    /// Reads `mod x;` or `mod x { .. }` at `at`; one past it.
    fn read_child(&mut self, this: usize, tokens: &[Token], at: usize, folder: &Path) -> usize {
        let name = tokens[at + 1].text;
        let below = folder.join(name);
        let (child, end) = if tokens.get(at + 2).is_some_and(|token| token.text == "{") {
            let end = tokens::after_closing(tokens, at + 2);
            let file = self.modules[this].file;
            let inside = &tokens[at + 3..end - 1];
            (self.read_module(file, this, inside, &below), end)
        } else {
            let beside = below.with_extension("rs");
            let path = if beside.exists() {
                beside
            } else {
                below.join("mod.rs")
            };
            (self.read_file(path, this, &below), at + 2)
        };
        self.modules[this].children.insert(name.to_string(), child);
        end
    }
}

impl Module {
    /// Reads one token of code, or a path; one past it.
    fn read_code(&mut self, tokens: &[Token], at: usize, depth: &mut usize) -> usize {
        let token = tokens[at];
        match token.text {
            "{" => *depth += 1,
            "}" => *depth = depth.saturating_sub(1),
            _ => {}
        }
        if !token.is_word() {
            return at + 1;
        }
        const DEFINE: [&str; 8] = [
            "fn", "struct", "enum", "trait", "type", "const", "static", "union",
        ];
        let before = at.checked_sub(1).map_or("", |before| tokens[before].text);
        if *depth == 0 && DEFINE.contains(&before) {
            self.items.insert(token.text.to_string());
        }
        let mut path = vec![token.text.to_string()];
        let mut end = at + 1;
        while end + 1 < tokens.len() && tokens[end].text == "::" && tokens[end + 1].is_word() {
            path.push(tokens[end + 1].text.to_string());
            end += 2;
        }
        if before != "::" && before != "." {
            self.words.insert(path[0].clone());
            if path.len() > 1 {
                self.paths.push((path, token.line));
            }
        }
        end
    }
}

/// A `use` tree, from after its `use` on.
struct Tree<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    is_public: bool,
    imports: Vec<Import>,
}

impl<'a> Tree<'a> {
    fn new(tokens: &'a [Token<'a>], is_public: bool) -> Self {
        Self {
            tokens,
            at: 0,
            is_public,
            imports: Vec::new(),
        }
    }

    fn text(&self) -> &'a str {
        self.tokens.get(self.at).map_or(";", |token| token.text)
    }

    /// Reads one branch, up to the `,`, `}` or `;` after it.
    fn read(&mut self, prefix: &[String]) {
        let mut path = prefix.to_vec();
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        let mut name = None;
        loop {
            match self.text() {
                "," | "}" | ";" => break,
                "::" => {}
                "*" => name = Some("*".to_string()),
                "as" => {
                    self.at += 1;
                    name = Some(self.text().to_string());
                }
                "{" => return self.read_group(&path),
                "self" if !path.is_empty() => {}
                word => path.push(word.to_string()),
            }
            self.at += 1;
        }
        if let Some(last) = path.last() {
            self.imports.push(Import {
                name: name.unwrap_or_else(|| last.clone()),
                path,
                line,
                is_public: self.is_public,
            });
        }
    }

    fn read_group(&mut self, prefix: &[String]) {
        while matches!(self.text(), "{" | ",") {
            self.at += 1;
            self.read(prefix);
        }
        self.at += 1;
    }
}
