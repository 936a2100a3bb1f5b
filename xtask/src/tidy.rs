//! What the project believes of its own files, as checks: text only, no compiler.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders with code of ours.
const FOLDERS: [&str; 6] = ["core", "shaders", "node", "browser", "examples", "xtask"];

/// Longer files, not counting the tests at their end, are split: nobody reads them.
const LINE_LIMIT: usize = 700;

/// What stands for work that is not done. In two halves, so that this list does not find itself.
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

/// All that is not as it should be, each with its place.
pub fn check(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files);
    }
    files.sort();
    let mut problems = Vec::new();
    for path in &files {
        let name = path
            .strip_prefix(root)
            .unwrap_or(path)
            .display()
            .to_string()
            .replace('\\', "/");
        let Ok(text) = fs::read_to_string(path) else {
            problems.push(format!("{name}: is not text"));
            continue;
        };
        problems.extend(
            check_text(&name, &text)
                .into_iter()
                .map(|problem| format!("{name}{problem}")),
        );
        if name.ends_with(".rs") && is_orphan(path) {
            problems.push(format!("{name}: no module declares it"));
        }
    }
    problems.extend(kernels_without_twin(root));
    let mut pages: Vec<PathBuf> = entries(root);
    FOLDERS
        .iter()
        .for_each(|folder| collect_all(&root.join(folder), &mut pages));
    collect_all(&root.join("docs"), &mut pages);
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|e| e == "md"))
    {
        problems.extend(broken_links(root, page));
    }
    problems
}

fn check_text(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if name.ends_with(".rs") && !text.starts_with("//!") {
        problems.push(":1: does not open with //! and what the module is for".to_string());
    }
    let tests = ["", "pub(super) "].map(|whose| text.find(&format!("\n#[cfg(test)]\n{whose}mod tests {{")));
    let end = tests.into_iter().flatten().min().unwrap_or(text.len());
    let lines = text[..end].lines().count();
    if lines > LINE_LIMIT {
        problems.push(format!(
            ": has {lines} lines before its tests, more than {LINE_LIMIT}"
        ));
    }
    let ignored = ignored_by(name);
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        for (front, back) in UNFINISHED {
            if line.contains(&format!("{front}{back}")) {
                problems.push(format!(":{number}: says {front}{back}"));
            }
        }
        let code = line.split("//").next().unwrap_or("");
        for word in ignored.iter().filter(|word| has_word(code, word)) {
            problems.push(format!(":{number}: must not know {word}"));
        }
    }
    problems
}

fn ignored_by(name: &str) -> &'static [&'static str] {
    if name.starts_with("core/src/") && !name.starts_with("core/src/sim") {
        &CORE_IGNORES
    } else if name.starts_with("shaders/src/") {
        &SHADERS_IGNORE
    } else {
        &[]
    }
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

/// Links of a page to files that are not there.
fn broken_links(root: &Path, page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap_or_default();
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#', ' ']).next());
    let own = targets.filter(|target| !target.is_empty() && !target.contains(':'));
    let name = page.strip_prefix(root).unwrap_or(page).display().to_string();
    let broken = own.filter(|target| page.parent().is_none_or(|folder| !folder.join(target).exists()));
    broken
        .map(|target| format!("{name}: links to {target}, which is not there"))
        .collect()
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

/// What is in a folder; nothing if there is no such folder.
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
        assert!(find("node/src/a.rs", &format!("//! A.\n// TO{}: later\n", "DO")).contains(":2: says"));
        assert!(find("node/src/a.rs", &format!("//! A.\n{}", "\n".repeat(700))).contains("701 lines"));
        for whose in ["", "pub(super) "] {
            let tested = format!(
                "//! A.\n\n#[cfg(test)]\n{whose}mod tests {{{}}}\n",
                "\n".repeat(700)
            );
            assert_eq!(find("node/src/a.rs", &tested), "");
        }
        assert!(find("core/src/a.rs", "//! A.\nuse std::fs::File;\n").contains(":2: must not know std::fs"));
        assert!(find("core/src/a.rs", "//! A.\nuse std::time::{Duration, Instant};\n").contains("Instant"));
        assert!(find("shaders/src/a.rs", "//! A.\nuse annulus_core::Time;\n").contains("annulus_core"));
        assert_eq!(
            find("core/src/a.rs", "//! No tokio.\nlet instants = 1; // std::fs\n"),
            ""
        );
        assert_eq!(find("core/src/sim/a.rs", "//! A.\nuse std::thread;\n"), "");
    }

    #[test]
    fn dead_files_broken_links_and_lonely_kernels_are_found() {
        let root = std::env::temp_dir().join(format!("annulus-tidy-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("core/src/lib.rs", "//! A.\nmod a;\nmod b;\n");
        write("core/src/a.rs", "//! A.\nmod inner;\n");
        write("core/src/a/inner.rs", "//! A.\n");
        write("core/src/b/mod.rs", "//! A.\n#[cfg(test)]\nmod tests;\n");
        write("core/src/b/tests.rs", "//! A.\n");
        write("core/tests/any.rs", "//! A.\n");
        write(
            "README.md",
            "[code](core/src/a.rs#L1) [web](https://example.org/x) [gone](docs/gone.md)\n",
        );
        write("shaders/wgsl/add.wgsl", "// add\n");
        write("shaders/wgsl/add_in_place.wgsl", "// add\n");
        write("shaders/wgsl/mul.wgsl", "// mul\n");
        write("shaders/src/cpu/add.rs", "//! A.\n");
        write("core/src/dead.rs", "//! A.\n");
        write("core/target/x.rs", "no\n");
        let mut problems = check(&root);
        problems.sort();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            problems,
            [
                "README.md: links to docs/gone.md, which is not there",
                "core/src/dead.rs: no module declares it",
                "shaders/src/cpu/add.rs: no module declares it",
                "shaders/wgsl/mul: has no twin shaders/src/cpu/mul.rs",
            ]
        );
    }
}
