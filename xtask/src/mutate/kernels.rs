//! Mutation tests of the kernels: changes each kernel by one token at a time, and expects its tests to fail. Text that
//! several kernels include is changed in each kernel on its own.
//!
//! Nothing is compiled for a mutant, and no file of the project changes: the tests read the kernels from a folder of
//! mutants. A mutant that is invalid WGSL, crashes or hangs counts as noticed. A kernel takes about a minute, most of it
//! to find the tests that run it.

use super::bench::{Bench, Outcome, Tried};
use super::exchanges::{Mutant, WGSL, blanks};
use super::limit::{End, run_within};
use crate::include;
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where the tests look for the texts of kernels; `annulus_shaders::kernel::FOLDER_VARIABLE`.
const FOLDER_VARIABLE: &str = "ANNULUS_WGSL";

/// Where the kernels are.
pub const FOLDER: &str = "shaders/wgsl";

/// Mutants per kernel, spread over its text: a guess at what one waits for.
const AT_MOST: usize = 12;

/// Longer than any of the kernels' tests takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// These tests see only whether a text is valid.
const ONLY_VALIDITY: [&str; 3] = ["check", "needs", "offline"];

/// Reasons that several mutants have.
const SAME_NUMBER: &str = "the other invocations would write the same number";
const NOT_STORED: &str = "what is computed from what lies outside is not stored";
const NOT_USED: &str = "what is read of a place without a tensor is not used";
const ALONE: &str = "a lane that is alone finds its own number";
const LAST_AGAIN: &str = "rows too many repeat the last one, with the same numbers";

/// Mutants that compute the same: kernel, line, what is exchanged, and why nobody can notice.
const EQUIVALENT: [(&str, &str, &str, &str); 23] = [
    (
        "f16_encode",
        "if lane == 0u && run < params.runs {",
        "== -> !=",
        SAME_NUMBER,
    ),
    ("squared_norm_total", "if lane == 0u {", "== -> !=", SAME_NUMBER),
    (
        "squared_norm_total",
        "if lane < distance {",
        "< -> <=",
        "one sum too many, of which nothing more is read; a race that emulated adapters do not have",
    ),
    (
        "squared_norm_total",
        "for (var distance = 32u; distance > 0u; distance /= 2u) {",
        "> -> >=",
        "emulated adapters end endless loops",
    ),
    (
        "pack",
        "let end = min(first + 256u, place.padded);",
        "+ -> -",
        "the first workgroup of a place does it all",
    ),
    (
        "pack",
        "let last = max(place.length / 4u, 1u) - 1u;",
        "1u -> 0u",
        NOT_USED,
    ),
    (
        "pack_any",
        "return min(4u * at + vec4(0u, 1u, 2u, 3u), vec4(max(place.length, 1u) - 1u));",
        "1u -> 0u",
        NOT_USED,
    ),
    (
        "attention_forward_unrolled",
        "let last = vec4(params.width - 1u);",
        "1u -> 0u",
        NOT_STORED,
    ),
    (
        "attention_forward_tiled",
        "for (var column = 0u; column < params.width; column += 8u) {",
        "< -> <=",
        "one slice more, of zeros",
    ),
    ("gemm_nt", "let end = params.n - 1u;", "1u -> 0u", NOT_STORED),
    ("gemm_tn", "let top = min(row, rows - 1u);", "- -> +", NOT_STORED),
    (
        "gemm_tn",
        "let left = min(column, columns - 1u);",
        "1u -> 0u",
        NOT_STORED,
    ),
    (
        "gemm_tn",
        "for (var k = 0u; k < params.k; k += 4u) {",
        "< -> <=",
        "one step more, times 0",
    ),
    (
        "gemm_tn",
        "let pieces = min(16u, 16u * params.m);",
        "* -> +",
        "the number is there so that no compiler knows it",
    ),
    ("norm", "if params.lanes > 1u {", "> -> >=", ALONE),
    ("softmax", "if lanes > 1u {", "> -> >=", ALONE),
    ("softmax", "if lanes > 1u {", "1u -> 0u", ALONE),
    ("softmax", "if row >= params.rows {", ">= -> >", LAST_AGAIN),
    ("softmax_backward", "if lanes > 1u {", "> -> >=", ALONE),
    ("softmax_backward", "if lanes > 1u {", "1u -> 0u", ALONE),
    (
        "softmax_backward",
        "if row >= params.rows {",
        ">= -> >",
        LAST_AGAIN,
    ),
    (
        "softmax_backward",
        "if row >= params.rows {",
        "row >= params.rows -> false",
        LAST_AGAIN,
    ),
    ("norm_backward", "if row >= params.rows {", ">= -> >", LAST_AGAIN),
];

/// Tries mutants of the kernels named, or of all; says which survived.
///
/// # Errors
///
/// If a kernel does not exist, or the tests cannot be built or fail without any mutant.
pub fn mutate(root: &Path, names: &[&str]) -> Result<bool, String> {
    let folder = root.join(FOLDER);
    let mut kernels = all(root);
    if let Some(unknown) = names
        .iter()
        .find(|name| !kernels.iter().any(|kernel| kernel == *name))
    {
        return Err(format!(
            "there is no kernel \"{unknown}\": choose from {}",
            kernels.join(", ")
        ));
    }
    kernels.retain(|kernel| names.is_empty() || names.contains(&kernel.as_str()));
    try_all(&folder, &kernels, &Programs::build(root)?)
}

fn try_all(folder: &Path, kernels: &[String], programs: &Programs) -> Result<bool, String> {
    let (mut tried, mut survivors) = (0, 0);
    for kernel in kernels {
        let text = whole_text(folder, kernel)?;
        // A test runs the kernel if it fails without it.
        programs.write(kernel, "not a kernel")?;
        let own: Vec<&Test> = programs
            .tests
            .iter()
            .filter(|test| !programs.passes(test))
            .collect();
        if own.is_empty() {
            survivors += 1;
            println!("survived: {kernel}: no test runs it");
        }
        let began = Instant::now();
        let mutants = spread(mutants(&text), AT_MOST);
        let before = survivors;
        for mutant in &mutants {
            tried += 1;
            programs.write(kernel, &mutant.apply(&text))?;
            if own.iter().any(|test| !programs.passes(test)) {
                continue;
            }
            let line = text.lines().nth(mutant.line - 1).unwrap_or("").trim();
            match why_equivalent(kernel, line, &mutant.what) {
                Some(why) => println!(
                    "  {kernel}:{}: {} computes the same: {why}",
                    mutant.line, mutant.what
                ),
                None => {
                    survivors += 1;
                    println!("survived: {kernel}:{}: {} in: {line}", mutant.line, mutant.what);
                }
            }
        }
        programs.remove(kernel)?;
        let survived = survivors - before;
        println!(
            "{kernel}: {survived} of {} survived, {:.0} s",
            mutants.len(),
            began.elapsed().as_secs_f64()
        );
    }
    println!("{tried} mutants, {survivors} unnoticed");
    Ok(survivors == 0)
}

/// Why nobody can notice this change of a kernel, if that is known.
pub fn why_equivalent(kernel: &str, line: &str, what: &str) -> Option<&'static str> {
    let known = EQUIVALENT
        .iter()
        .find(|(name, on, exchange, _)| (*name, *on, *exchange) == (kernel, line, what));
    known.map(|(.., why)| *why)
}

/// The kernels of a project, sorted.
pub fn all(root: &Path) -> Vec<String> {
    stems(&root.join(FOLDER), "wgsl")
}

/// A kernel's text with what it includes.
pub fn whole_text(folder: &Path, kernel: &str) -> Result<String, String> {
    let file = folder.join(kernel).with_extension("wgsl");
    let text = fs::read_to_string(file).map_err(|error| format!("{kernel}: {error}"))?;
    let shared = |name: &str| {
        let file = folder.join("shared").join(name).with_extension("wgsl");
        fs::read_to_string(file).ok().map(Cow::Owned)
    };
    include::expand(&text, &shared).map_err(|problem| format!("{kernel}: {problem}"))
}

/// All mutants of a kernel. Comments, declarations and constants are left alone.
pub fn mutants(text: &str) -> Vec<Mutant> {
    WGSL.mutants(text, &code(text))
}

/// The text with blanks in place of all that is outside of functions or in comments.
fn code(text: &str) -> String {
    let mut inside = false;
    let lines = text.split_inclusive('\n').map(|line| {
        let code = line.split("//").next().unwrap_or("");
        let kept = if inside { code } else { "" };
        match code {
            _ if code.starts_with("fn ") => inside = true,
            _ if code.starts_with('}') => inside = false,
            _ => {}
        }
        format!("{kept}{}", blanks(&line[kept.len()..]))
    });
    lines.collect()
}

/// At most `at_most` of the mutants, spread evenly.
fn spread(mutants: Vec<Mutant>, at_most: usize) -> Vec<Mutant> {
    let count = mutants.len();
    let chosen = |index: &usize| count <= at_most || index * at_most / count != (index + 1) * at_most / count;
    mutants
        .into_iter()
        .enumerate()
        .filter(|(index, _)| chosen(index))
        .map(|(_, mutant)| mutant)
        .collect()
}

/// The tests of one module.
struct Test {
    program: PathBuf,
    module: String,
}

/// The kernels' tests, and the folder of mutants that they read.
pub struct Programs {
    tests: Vec<Test>,
    place: PathBuf,
}

impl Programs {
    /// Builds the tests, and runs them without any mutant.
    ///
    /// # Errors
    ///
    /// If they cannot be built, or one fails.
    pub fn build(root: &Path) -> Result<Self, String> {
        let place = std::env::temp_dir().join(format!("annulus-mutants-{}", std::process::id()));
        let tests = build(root)?;
        fs::create_dir_all(&place).map_err(|error| format!("the folder of mutants: {error}"))?;
        let this = Self { tests, place };
        match this.first_failure() {
            Some(test) => Err(format!("the tests of {} fail without any mutant", test.module)),
            None => Ok(this),
        }
    }

    fn first_failure(&self) -> Option<&Test> {
        self.tests.iter().find(|test| !self.passes(test))
    }

    fn passes(&self, test: &Test) -> bool {
        let mut command = Command::new(&test.program);
        command
            .arg(format!("{}::", test.module))
            .env(FOLDER_VARIABLE, &self.place)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        matches!(run_within(command, PATIENCE), Ok(End::Passed))
    }

    fn write(&self, kernel: &str, text: &str) -> Result<(), String> {
        fs::write(self.copy(kernel), text).map_err(|error| format!("a mutant: {error}"))
    }

    fn remove(&self, kernel: &str) -> Result<(), String> {
        fs::remove_file(self.copy(kernel)).map_err(|error| format!("a mutant: {error}"))
    }

    fn copy(&self, kernel: &str) -> PathBuf {
        self.place.join(kernel).with_extension("wgsl")
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        // Only a few small texts: if they stay behind, nothing is lost.
        let _ = fs::remove_dir_all(&self.place);
    }
}

impl Bench for Programs {
    fn prove(&mut self, _file: &str) -> Result<(), String> {
        // All kernels' tests have passed when this was made.
        Ok(())
    }

    fn attempt(&mut self, file: &str, mutant: &str) -> Result<Tried, String> {
        let kernel = stem(Path::new(file)).ok_or("a kernel without a name")?;
        self.write(&kernel, mutant)?;
        let tried = match self.first_failure() {
            Some(test) => Tried::new(Outcome::Noticed, &test.module),
            None => Tried::new(Outcome::Missed, ""),
        };
        self.remove(&kernel)?;
        Ok(tried)
    }
}

/// The kernels' tests, built.
fn build(root: &Path) -> Result<Vec<Test>, String> {
    let mut command = crate::command::cargo(root);
    command.args(["test", "--release", "--no-run", "--test", "kernels"]);
    let output = command.output().map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("the tests cannot be built:\n{said}"));
    }
    // "Executable tests/kernels/main.rs (/place/kernels-0123456789abcdef)"
    let mut lines = said
        .lines()
        .filter(|line| line.trim_start().starts_with("Executable"));
    let program = lines.find_map(|line| line.rsplit_once('(')?.1.strip_suffix(')'));
    let program = root.join(program.ok_or("cargo names no test program")?);
    let mut modules = stems(&root.join("shaders/tests/kernels"), "rs");
    modules.retain(|module| module != "main" && !ONLY_VALIDITY.contains(&module.as_str()));
    let test = |module| Test {
        program: program.clone(),
        module,
    };
    Ok(modules.into_iter().map(test).collect())
}

/// Names of the files in a folder with this extension, sorted.
fn stems(folder: &Path, extension: &str) -> Vec<String> {
    let files = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|e| e == extension));
    let mut stems: Vec<String> = files.filter_map(|path| stem(&path)).collect();
    stems.sort();
    stems
}

fn stem(path: &Path) -> Option<String> {
    Some(path.file_stem()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// a + b\nconst K = 4u;\nfn main() {\n    if i >= n {\n        return;\n    }\n    \
                        x[i] = min(a.x, 14u) + 4u; // c + d\n}\n";

    #[test]
    fn each_mutant_differs_by_one_token_within_a_function() {
        let found = mutants(TEXT);
        let what: Vec<String> = found.iter().map(|m| format!("{} {}", m.line, m.what)).collect();
        assert_eq!(
            what,
            [
                "4 >= -> >",
                "4 i >= n -> false",
                "7 + -> -",
                "7 min( -> max(",
                "7 4u -> 3u",
                "7 .x -> .y"
            ]
        );
        assert_eq!(found[1].apply(TEXT), TEXT.replace("i >= n", "false"));
        assert_eq!(found[2].apply(TEXT), TEXT.replace(") + 4u", ") - 4u"));
    }

    #[test]
    fn each_that_is_said_to_compute_the_same_can_be_tried() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FOLDER);
        let is_mutant = |(kernel, line, what, _): &(&str, &str, &str, &str)| {
            let text = whole_text(&folder, kernel).unwrap();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            let mut all = mutants(&text).into_iter();
            all.any(|mutant| mutant.what == *what && lines[mutant.line - 1] == *line)
        };
        let stale: Vec<_> = EQUIVALENT.iter().filter(|named| !is_mutant(named)).collect();
        assert!(stale.is_empty(), "{stale:#?}");
    }

    #[test]
    fn those_chosen_come_from_all_over() {
        let lines = |count, at_most| -> Vec<usize> {
            let text = format!("fn main() {{\n{}}}\n", "a + b\n".repeat(count));
            spread(mutants(&text), at_most)
                .iter()
                .map(|mutant| mutant.line - 2)
                .collect()
        };
        assert_eq!(lines(3, 12), [0, 1, 2]);
        assert_eq!(lines(100, 4), [24, 49, 74, 99]);
    }
}
