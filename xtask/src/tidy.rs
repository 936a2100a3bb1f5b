//! What the project believes of its own files, as checks: text only, no compiler.

mod circles;
mod clocks;
mod exceptions;
mod functions;
pub mod modules;
mod prose;
mod rooms;
pub mod tokens;

use exceptions::Exceptions;
use modules::Crate;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with code of ours.
const FOLDERS: [&str; 8] = [
    "core", "graph", "shaders", "stock", "node", "browser", "examples", "xtask",
];

/// Longer files, not counting tests, are split: nobody reads them.
const FILE_LINES: usize = 500;

/// Longer tests of a file stand beside it in a file of their own.
const TEST_LINES: usize = 200;

/// Longer functions, not counting tests, are split: nobody can say what they do.
const FUNCTION_LINES: usize = 100;

/// Marks of unfinished work. In two halves, so that this list does not find itself.
const UNFINISHED: [(&str, &str); 6] = [
    ("TO", "DO"),
    ("FIX", "ME"),
    ("XX", "X:"),
    ("todo", "!("),
    ("unimple", "mented!("),
    ("dbg", "!("),
];

/// What the protocol must not know, and where: sockets, files, clocks, threads and tensors. The simulation may.
const CORE_IGNORES: [&str; 12] = [
    "tokio",
    "quinn",
    "rustls",
    "burn",
    "wgpu",
    "std::net",
    "std::fs",
    "std::env",
    "std::thread",
    "std::process",
    "Instant",
    "SystemTime",
];

/// What the kernels must not know.
const SHADERS_IGNORE: [&str; 5] = ["tokio", "quinn", "rustls", "annulus_core", "std::net"];

/// What links and data must not know, so that they build without Burn.
const NET_IGNORES: [&str; 4] = ["burn", "cubecl", "wgpu", "annulus_shaders"];

/// What a model from a file must not know: it makes values of bytes, also in a tab.
const GRAPH_IGNORES: [&str; 7] = [
    "tokio",
    "annulus_core",
    "std::net",
    "std::fs",
    "std::env",
    "std::thread",
    "std::process",
];

/// The crates that must not know something, by their folders.
const IGNORANT: [(&str, &[&str]); 4] = [
    ("core", &CORE_IGNORES),
    ("graph", &GRAPH_IGNORES),
    ("shaders", &SHADERS_IGNORE),
    ("node/net", &NET_IGNORES),
];

/// What measures time or keeps its own.
const MEASURES: [&str; 3] = ["node/src/bench", "node/src/cli/bench", "core/"];

/// How a doc comment begins that says nothing without the one above it.
const LEANING: [&str; 13] = [
    "And ",
    "Does it.",
    "The same.",
    "The same before ",
    "The same by ",
    "The same for ",
    "The same if ",
    "The same in ",
    "The same of ",
    "The same when ",
    "The same where ",
    "The same with ",
    "The same without ",
];

/// The result: each broken rule with its place, and the size of the code that was read.
pub struct Findings {
    pub problems: Vec<String>,
    /// Files with code that is not for tests alone, and their lines without tests.
    pub files: usize,
    pub lines: usize,
}

/// Looks at everything.
pub fn check(root: &Path) -> Findings {
    check_but(root, exceptions::FILES, exceptions::FUNCTIONS)
}

/// Looks at everything but the length of these files and functions.
fn check_but(root: &Path, long_files: &Exceptions, long_functions: &Exceptions) -> Findings {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files);
    }
    files.sort();
    let relative = |path: &Path| {
        let path = path.strip_prefix(root).unwrap_or(path);
        path.display().to_string().replace('\\', "/")
    };
    let mut problems = Vec::new();
    let is_root = |path: &&PathBuf| path.ends_with("lib.rs") || path.ends_with("main.rs");
    let crates: Vec<Crate> = files
        .iter()
        .filter(is_root)
        .map(|path| Crate::read(path))
        .collect();
    problems.extend(
        crates
            .iter()
            .flat_map(circles::circles)
            .map(|circle| circle.display(relative)),
    );
    problems.extend(crates.iter().flat_map(|all| rooms::misplaced(all, relative)));
    let product: HashSet<&PathBuf> = crates.iter().flat_map(|all| &all.files).collect();
    let (mut long, mut product_files, mut product_lines) = (Long::default(), 0, 0);
    for path in &files {
        let name = relative(path);
        let Ok(text) = fs::read_to_string(path) else {
            problems.push(format!("{name}: is not text"));
            continue;
        };
        let found = check_text(&name, &text);
        problems.extend(found.into_iter().map(|problem| format!("{name}{problem}")));
        if name.ends_with(".rs") && is_orphan(path) {
            problems.push(format!("{name}: no module declares it"));
        }
        // In `src`, what no crate reaches without its tests is for tests.
        let for_tests = name.contains("/tests/") || (name.contains("/src/") && !product.contains(path));
        if !for_tests || name.ends_with(".wgsl") {
            product_files += 1;
            product_lines += long.read(&name, &text);
        }
    }
    problems.extend(unexcused(long.files, long_files));
    problems.extend(unexcused(long.functions, long_functions));
    problems.extend(kernels_without_twin(root));
    problems.extend(forbidden_dependencies(root));
    for page in pages(root) {
        problems.extend(broken_links(root, &page));
        let (name, text) = (relative(&page), fs::read_to_string(&page).unwrap_or_default());
        problems.extend(hard_to_read(&name, &text).map(|problem| format!("{name}{problem}")));
    }
    Findings {
        problems,
        files: product_files,
        lines: product_lines,
    }
}

/// Files and functions that are too long: the name as in [`exceptions`], and the message.
#[derive(Default)]
struct Long {
    files: Vec<(String, String)>,
    functions: Vec<(String, String)>,
}

impl Long {
    /// Reads a file; how many lines it has without tests.
    fn read(&mut self, name: &str, text: &str) -> usize {
        if !name.ends_with(".rs") {
            return text.lines().count();
        }
        let lines = tokens::product_lines(text);
        let tests = text.lines().count() - lines;
        if tests > TEST_LINES {
            let said =
                format!("{name}: has {tests} lines of tests, more than {TEST_LINES}: they go beside it");
            self.files.push((name.to_string(), said));
        }
        if lines > FILE_LINES {
            let said = format!("{name}: has {lines} lines without its tests, more than {FILE_LINES}");
            self.files.push((name.to_string(), said));
        }
        let long = functions::functions(text)
            .into_iter()
            .filter(|function| function.lines > FUNCTION_LINES);
        self.functions.extend(long.map(|function| {
            let functions::Function {
                name: own,
                line,
                lines,
            } = function;
            let said = format!("{name}:{line}: `{own}` has {lines} lines, more than {FUNCTION_LINES}");
            (format!("{name} {own}"), said)
        }));
        lines
    }
}

/// What is said about all that no exception names, and exceptions that name nothing.
fn unexcused(long: Vec<(String, String)>, excused: &Exceptions) -> Vec<String> {
    let is_excused = |name: &str| excused.iter().any(|(excused, _)| *excused == name);
    let needless = excused
        .iter()
        .filter(|(name, _)| !long.iter().any(|(long, _)| long == name));
    let needless = needless.map(|(name, _)| format!("{name}: is not long, so it needs no exception"));
    let needless: Vec<String> = needless.collect();
    let said = long
        .iter()
        .filter(|(name, _)| !is_excused(name))
        .map(|(_, said)| said.clone());
    said.chain(needless).collect()
}

fn check_text(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if name.ends_with(".rs") && !text.starts_with("//!") {
        problems.push(":1: does not open with //! and what the module is for".to_string());
    }
    problems.extend(hard_to_read(name, text));
    if !MEASURES.iter().any(|folder| name.starts_with(folder)) {
        let timed = clocks::timed_asserts(text).into_iter();
        problems.extend(timed.map(|line| format!(":{line}: asserts elapsed time")));
    }
    let ignored = ignored_by(name);
    let mut above = "";
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        for (front, back) in UNFINISHED {
            if line.contains(&format!("{front}{back}")) {
                problems.push(format!(":{number}: says {front}{back}"));
            }
        }
        let (doc, before) = (
            line.trim_start().strip_prefix("/// "),
            std::mem::replace(&mut above, line),
        );
        if let Some(doc) = doc.filter(|_| !before.trim_start().starts_with("///"))
            && LEANING.iter().any(|words| doc.starts_with(words))
        {
            problems.push(format!(":{number}: leans on the comment above it: {doc}"));
        }
        let code = line.split("//").next().unwrap_or("");
        for word in ignored.iter().filter(|word| has_word(code, word)) {
            problems.push(format!(":{number}: must not know {word}"));
        }
    }
    problems
}

/// The places of prose that a reader would have to read twice.
fn hard_to_read(name: &str, text: &str) -> impl Iterator<Item = String> {
    // Headers of kernels list shapes and formulas.
    let is_prose = !name.ends_with(".wgsl");
    prose::problems(name, text).into_iter().filter(move |_| is_prose)
}

fn ignored_by(name: &str) -> &'static [&'static str] {
    let inside = |folder: &str| {
        let file = name.strip_prefix(folder)?.strip_prefix("/src/")?;
        Some(file).filter(|file| folder != "core" || !file.starts_with("sim"))
    };
    let found = IGNORANT.iter().find(|(folder, _)| inside(folder).is_some());
    found.map_or(&[], |(_, ignored)| ignored)
}

/// Lines of manifests by which a crate depends on something that it must not know.
fn forbidden_dependencies(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for (folder, ignored) in IGNORANT {
        let name = format!("{folder}/Cargo.toml");
        let text = fs::read_to_string(root.join(&name)).unwrap_or_default();
        for (number, line) in (1..).zip(text.lines()) {
            let names = line.split('#').next().unwrap_or("").replace('-', "_");
            let known = ignored.iter().filter(|word| has_word(&names, word));
            problems.extend(known.map(|word| format!("{name}:{number}: must not depend on {word}")));
        }
    }
    problems
}

/// Whether a path such as `std::fs`, or a name, occurs as a whole.
fn has_word(code: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

/// Whether a module's file is one that nothing declares: dead code that no compiler sees.
fn is_orphan(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("");
    let Some(folder) = path.parent() else { return false };
    let inside_src = path.components().any(|part| part.as_os_str() == "src");
    if !inside_src || matches!(stem, "lib" | "main") || folder.ends_with("src/bin") {
        return false;
    }
    // The file or folder whose parent module must declare it.
    let (stem, folder) = match (stem, folder.file_name().and_then(|f| f.to_str()), folder.parent()) {
        ("mod", Some(name), Some(above)) => (name, above),
        _ => (stem, folder),
    };
    let beside = folder
        .file_name()
        .and_then(|f| f.to_str())
        .map(|name| folder.with_file_name(format!("{name}.rs")));
    let parents = ["lib.rs", "main.rs", "mod.rs"]
        .map(|name| folder.join(name))
        .into_iter()
        .chain(beside);
    let declaration = format!("mod {stem};");
    !parents
        .into_iter()
        .any(|parent| fs::read_to_string(parent).is_ok_and(|text| text.contains(&declaration)))
}

fn kernels_without_twin(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for kernel in entries(&root.join("shaders/wgsl")) {
        let Some(stem) = kernel
            .file_stem()
            .filter(|_| kernel.extension().is_some_and(|e| e == "wgsl"))
        else {
            continue;
        };
        let stem = stem.to_string_lossy();
        let twin = |name: &str| Path::new("shaders/src/cpu").join(name).with_extension("rs");
        // One may serve a family, as gemm those that begin with gemm_.
        let mut family = std::iter::successors(Some(&*stem), |name| Some(name.rsplit_once('_')?.0));
        let exists =
            |name: &str| root.join(twin(name)).exists() || root.join(twin(name)).with_extension("").is_dir();
        if !family.any(exists) {
            problems.push(format!(
                "shaders/wgsl/{stem}: has no twin {}",
                twin(&stem).display()
            ));
        }
    }
    problems
}

/// All pages of text for people.
fn pages(root: &Path) -> Vec<PathBuf> {
    let mut pages = entries(root);
    for folder in FOLDERS.iter().chain(&["docs"]) {
        collect_all(&root.join(folder), &mut pages);
    }
    pages.retain(|page| page.extension().is_some_and(|e| e == "md"));
    pages
}

/// Links of a page to files, or headings of pages, that are not there.
fn broken_links(root: &Path, page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap_or_default();
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next());
    let own = targets.filter(|target| !target.is_empty() && !target.contains(':'));
    let name = page.strip_prefix(root).unwrap_or(page).display().to_string();
    let broken = own.filter(|target| {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let path = match file {
            "" => page.to_path_buf(),
            _ => page.with_file_name(file),
        };
        let is_page = path.extension().is_some_and(|e| e == "md");
        let lacks = || !fs::read_to_string(&path).is_ok_and(|text| anchors(&text).any(|a| a == heading));
        !path.exists() || is_page && !heading.is_empty() && lacks()
    });
    broken
        .map(|target| format!("{name}: links to {target}, which is not there"))
        .collect()
}

/// Names of a page's headings in links, as GitHub makes them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let mut is_code = false;
    let headings = text.lines().filter(move |line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    headings.map(|line| {
        let letters = line.trim_start_matches('#').trim().chars();
        let kept = letters.filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
            .collect()
    })
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut all = Vec::new();
    collect_all(folder, &mut all);
    files.extend(
        all.into_iter()
            .filter(|path| path.extension().is_some_and(|e| e == "rs" || e == "wgsl")),
    );
}

fn collect_all(folder: &Path, files: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let built = path.ends_with("target") || path.ends_with("node_modules") || path.ends_with("pkg");
        match path.is_dir() {
            true if !hidden && !built => collect_all(&path, files),
            true => {}
            false => files.push(path),
        }
    }
}

/// The entries of a folder; none if there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_what_breaks_it() {
        let find = |name: &str, text: &str| check_text(name, text).join("\n");
        assert_eq!(find("node/src/a.rs", "//! A.\nuse std::fs;\n"), "");
        assert!(find("node/src/a.rs", "fn main() {}\n").contains("does not open"));
        let leans = "//! A.\n/// Most.\nconst A: u8 = 2;\n\n/// And least.\nconst B: u8 = 1;\n";
        assert!(find("node/src/a.rs", leans).contains(":5: leans on"));
        assert_eq!(
            find(
                "node/src/a.rs",
                "//! A.\n/// Most of it,\n/// And so on.\nfn a() {}\n"
            ),
            ""
        );
        assert!(find("node/src/a.rs", &format!("//! A.\n// TO{}: later\n", "DO")).contains(":2: says"));
        assert!(find("core/src/a.rs", "//! A.\nuse std::fs::File;\n").contains(":2: must not know std::fs"));
        assert!(find("core/src/a.rs", "//! A.\nuse std::time::{Duration, Instant};\n").contains("Instant"));
        assert!(find("shaders/src/a.rs", "//! A.\nuse annulus_core::Time;\n").contains("annulus_core"));
        assert!(find("node/net/src/a.rs", "//! A.\nuse burn::tensor::Tensor;\n").contains("burn"));
        assert_eq!(
            find("core/src/a.rs", "//! No tokio.\nlet instants = 1; // std::fs\n"),
            ""
        );
        assert_eq!(find("core/src/sim/a.rs", "//! A.\nuse std::thread;\n"), "");
    }

    /// What is found in a project of these files.
    fn planted(name: &str, files: &[(&str, &str)], long: [&Exceptions; 2]) -> Vec<String> {
        let root = std::env::temp_dir().join(format!("annulus-tidy-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut problems = check_but(&root, long[0], long[1]).problems;
        problems.sort();
        fs::remove_dir_all(&root).unwrap();
        problems
    }

    #[test]
    fn dead_files_broken_links_lonely_kernels_and_circles_are_found() {
        let page = "# A `b`, c-d\n[code](node/src/a.rs#L1) [web](https://example.org/x) [gone](docs/gone.md#a)\n\
                    [b](#a-b-c-d) [lost](#a-b) [there](docs/b.md#b) [not](docs/b.md#no)\n```\n# no\n```\n";
        let files = [
            ("node/src/lib.rs", "//! A.\nmod a;\nmod b;\n"),
            ("node/src/a.rs", "//! A.\nmod inner;\nuse crate::b::B;\n"),
            ("node/src/a/inner.rs", "//! A.\n"),
            (
                "node/src/b/mod.rs",
                "//! A.\nuse crate::a::A;\n#[cfg(test)]\nmod tests;\n",
            ),
            ("node/src/b/tests.rs", "//! A.\n"),
            ("node/tests/any.rs", "//! A.\n"),
            ("README.md", page),
            ("docs/b.md", "## B\n```\n# no\n```\n"),
            ("shaders/wgsl/add.wgsl", "// add\n"),
            ("shaders/wgsl/add_in_place.wgsl", "// add\n"),
            ("shaders/wgsl/mul.wgsl", "// mul\n"),
            ("shaders/src/cpu/add.rs", "//! A.\n"),
            ("node/src/dead.rs", "//! A.\n"),
            ("node/target/x.rs", "no\n"),
            (
                "node/net/Cargo.toml",
                "[dependencies]\n# No burn.\nburn.workspace = true\nannulus-shaders = \"1\"\n",
            ),
        ];
        let expected = [
            "README.md: links to #a-b, which is not there",
            "README.md: links to docs/b.md#no, which is not there",
            "README.md: links to docs/gone.md#a, which is not there",
            "imports in a circle: node/src/a.rs, node/src/b/mod.rs\n    node/src/a.rs:3: crate::b::B\n    \
             node/src/b/mod.rs:2: crate::a::A",
            "node/net/Cargo.toml:3: must not depend on burn",
            "node/net/Cargo.toml:4: must not depend on annulus_shaders",
            "node/src/dead.rs: no module declares it",
            "shaders/src/cpu/add.rs: no module declares it",
            "shaders/wgsl/mul: has no twin shaders/src/cpu/mul.rs",
        ];
        assert_eq!(planted("files", &files, [&[], &[]]), expected);
    }

    #[test]
    fn an_import_from_a_room_above_is_found_and_a_file_outside_of_all_rooms() {
        let files = [
            ("core/src/lib.rs", "//! A.\nmod base;\nmod run;\nmod extra;\n"),
            ("core/src/base/mod.rs", "//! A.\nmod id;\npub use id::Id;\n"),
            (
                "core/src/base/id.rs",
                "//! A.\nuse crate::run::Run;\npub struct Id;\n",
            ),
            (
                "core/src/run/mod.rs",
                "//! A.\nmod config;\npub use config::{Manifest, Run};\n",
            ),
            (
                "core/src/run/config.rs",
                "//! A.\nuse crate::base;\npub struct Run;\npub struct Manifest;\n",
            ),
            ("core/src/extra.rs", "//! A.\nuse crate::base::Id;\n"),
        ];
        let expected = [
            "core/src/base/id.rs:2: crate::run::Run is in `run`, above `base`: move the name down, or the import up",
            "core/src/extra.rs: is in no room of xtask/src/tidy/rooms.rs",
        ];
        assert_eq!(planted("rooms", &files, [&[], &[]]), expected);
    }

    #[test]
    fn what_is_long_is_found_unless_it_is_excused_or_a_test() {
        let lines = |count: usize| "\n".repeat(count);
        let whole = format!("//! A.\nmod tests;\n{}", lines(499));
        let tested = format!(
            "//! A.\n#[cfg(test)]\nmod tests {{{}}}\n#[cfg(test)]\nmod only;\n{}",
            lines(190),
            lines(490)
        );
        let untidy = format!("//! A.\n#[cfg(test)]\nmod tests {{{}}}\n", lines(199));
        let only = format!("//! A.\nfn f() {{{}}}\n{}", lines(100), lines(500));
        let functions = format!(
            "//! A.\nfn short() {{{}}}\nfn f() {{{}}}\n",
            lines(99),
            lines(100)
        );
        let files = [
            (
                "node/src/lib.rs",
                "//! A.\nmod whole;\nmod tested;\nmod untidy;\nmod functions;\n",
            ),
            ("node/src/whole.rs", &whole),
            ("node/src/whole/tests.rs", "//! A.\n"),
            ("node/src/tested.rs", &tested),
            ("node/src/untidy.rs", &untidy),
            ("node/src/tested/only.rs", &only),
            ("node/src/functions.rs", &functions),
            ("node/tests/any.rs", &only),
        ];
        let expected = [
            "node/src/functions.rs:102: `f` has 101 lines, more than 100",
            "node/src/untidy.rs: has 201 lines of tests, more than 200: they go beside it",
            "node/src/whole.rs: has 501 lines without its tests, more than 500",
        ];
        assert_eq!(planted("long", &files, [&[], &[]]), expected);
        let excused: [&Exceptions; 2] = [
            &[
                ("node/src/whole.rs", "a table"),
                ("node/src/untidy.rs", "a table"),
            ],
            &[("node/src/functions.rs f", "a table")],
        ];
        assert!(planted("excused", &files, excused).is_empty());
        assert_eq!(
            planted("needless", &files[..1], [&[], &[("node/src/lib.rs f", "it was")]]),
            ["node/src/lib.rs f: is not long, so it needs no exception"]
        );
    }
}
