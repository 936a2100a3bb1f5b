//! Measures training steps in Chromium: ours beside those of other frameworks. Names the tools it lacks, and skips.

use crate::browser;
use crate::command::{cargo, succeeds, title};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The files that tell npm which packages to fetch.
const PACKAGES: [&str; 2] = ["package.json", "package-lock.json"];

/// Builds the page of the bench, fetches the other frameworks into the target folder, and runs both in a browser. With
/// `json`, the last line of the output is the result.
pub fn run(root: &Path, json: bool) -> Result<bool, String> {
    for program in ["node", "npm"] {
        if !installed(program) {
            println!("skipped: {program} is not installed (Debian: `apt-get install nodejs npm`)");
            return Ok(true);
        }
    }
    let sources = root.join("browser/bench");
    let work = browser::target_dir(root)?.join("bench-browser");
    if !fetched(&sources, &work)? {
        println!("skipped: npm could not fetch the other frameworks");
        return Ok(true);
    }
    let site = browser::build(root, Some("bench"))?;
    title("bench");
    let mut node = Command::new("node");
    node.arg(sources.join("run.mjs")).arg(site).arg(work);
    if json {
        node.arg("--json");
    }
    Ok(succeeds(node))
}

/// What a tab's link carries. Needs nothing of npm: the tests' own Chromium does it.
pub fn link(root: &Path) -> Result<bool, String> {
    browser::build(root, Some("link"))?;
    title("link");
    let mut test = cargo(root);
    test.args(["test", "--release", "--test", "peers"]).args([
        "--",
        "--ignored",
        "--nocapture",
        "tab_link::",
    ]);
    Ok(succeeds(test))
}

fn installed(program: &str) -> bool {
    let mut command = npm_like(program);
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    succeeds(command)
}

/// A program of Node.js: on Windows npm is a script, which only the shell finds.
fn npm_like(program: &str) -> Command {
    if !cfg!(windows) {
        return Command::new(program);
    }
    let mut command = Command::new("cmd");
    command.args(["/C", program]);
    command
}

/// Whether the packages are in `work`, as the lock file of `sources` says; fetched if they are not yet.
fn fetched(sources: &Path, work: &Path) -> Result<bool, String> {
    let fail = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let read = |path: PathBuf| fs::read(&path).map_err(|error| fail(&path, error));
    let done = work.join("fetched.json");
    let lock = read(sources.join("package-lock.json"))?;
    if fs::read(&done).is_ok_and(|before| before == lock) {
        return Ok(true);
    }
    title("packages");
    fs::create_dir_all(work).map_err(|error| fail(work, error))?;
    for name in PACKAGES {
        let to = work.join(name);
        fs::write(&to, read(sources.join(name))?).map_err(|error| fail(&to, error))?;
    }
    let mut npm = npm_like("npm");
    npm.current_dir(work).args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]);
    if !succeeds(npm) {
        return Ok(false);
    }
    fs::write(&done, lock).map_err(|error| fail(&done, error))?;
    Ok(true)
}
