//! The steps of `cargo xtask test`, each a program to run or a check of files, and their sum.

use crate::browser;
use crate::tally::{Reader, Show, Tally};
use crate::tidy;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Everything. Ends with one line that sums it all up.
pub fn test(root: &Path, seeds: &str) -> bool {
    let began = Instant::now();
    install();
    let mut tally = Tally::default();
    tally.add(tool(root, "fmt", "format", &["fmt", "--all", "--check"]));
    title("tidiness");
    tally.count(tidy(root));
    let lints = [
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    tally.add(tool(root, "clippy", "lints", &lints));
    tally.add(page(root));
    title("tests");
    tally.add(cargo_test(root, &[]));
    title("simulation");
    tally.count(sim(root, &["--seeds", seeds]));
    println!("\ntook {:.0} s", began.elapsed().as_secs_f64());
    println!("{tally}");
    tally.failed == 0
}

/// The page, and the tests that open it in a real browser.
pub fn browser_test(root: &Path) -> bool {
    install();
    let mut tally = page(root);
    title("tests in a browser");
    let tests = ["tabs", "tabs_asleep", "data_in_tabs", "kernels_in_browser"].map(|name| ["--test", name]);
    tally.add(cargo_test(root, &tests.concat()));
    println!("{tally}");
    tally.failed == 0
}

/// The page that nodes serve, and the one that tries the kernels out.
fn page(root: &Path) -> Tally {
    let mut tally = Tally::default();
    if let Err(why) = browser::can_build(root) {
        title("page");
        println!("skipped: the page, and with it all tests in a browser: {why}");
        tally.skipped += 1;
        return tally;
    }
    for example in [None, Some("kernels")] {
        let built = browser::build(root, example);
        if let Err(why) = &built {
            println!("{why}");
        }
        tally.count(built.is_ok());
    }
    tally
}

/// Simulated worlds. The example is built with the tests' choice of features, so that nothing is compiled for it alone.
pub fn sim(root: &Path, options: &[&str]) -> bool {
    let mut command = cargo(root);
    command
        .args(["run", "--release", "--quiet", "--example", "sim", "--"])
        .args(options);
    succeeds(command)
}

/// What the project believes of its own files.
pub fn tidy(root: &Path) -> bool {
    let problems = tidy::check(root);
    problems.iter().for_each(|problem| println!("{problem}"));
    if problems.is_empty() {
        println!("all files are as they should be");
    }
    problems.is_empty()
}

/// A part of cargo that may not be installed.
fn tool(root: &Path, name: &str, what: &str, args: &[&str]) -> Tally {
    title(what);
    let mut probe = cargo(root);
    probe
        .args([name, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut tally = Tally::default();
    if succeeds(probe) {
        let mut command = cargo(root);
        command.args(args);
        tally.count(succeeds(command));
    } else {
        println!("skipped: {what}: cargo {name} is not installed");
        tally.skipped += 1;
    }
    tally
}

fn cargo_test(root: &Path, which: &[&str]) -> Tally {
    let mut command = cargo(root);
    command
        .args(["test", "--release", "--workspace", "--no-fail-fast"])
        .args(which)
        .args(["--", "--show-output"]);
    command.stdout(Stdio::piped());
    let mut reader = Reader::default();
    let whole = command.spawn().and_then(|mut child| {
        let output = child.stdout.take().expect("it was asked for");
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            if reader.line(&line) == Show::Yes {
                println!("{line}");
            }
        }
        child.wait()
    });
    let mut tally = reader.tally;
    // It may have failed before any test could: while compiling, or by a crash.
    let unexplained = !whole.is_ok_and(|status| status.success()) && tally.failed == 0;
    tally.failed += u64::from(unexplained);
    tally
}

/// Cargo, as if it were called by hand.
pub fn cargo(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root);
    // What cargo told this program about itself is not for the programs that it runs.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR" {
            command.env_remove(name);
        }
    }
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Without it Mesa prints a warning in every process.
        command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    }
    command
}

pub fn succeeds(mut command: Command) -> bool {
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            println!(
                "{} cannot be run: {error}",
                command.get_program().to_string_lossy()
            );
            false
        }
    }
}

pub fn title(text: &str) {
    println!("\n== {text}");
}

/// What some tests need and a bare system lacks, installed where that is possible without asking: a software GPU and a
/// browser.
fn install() {
    if !cfg!(target_os = "linux") {
        return;
    }
    if !has_vulkan() {
        install_packages(
            "software GPU",
            &["mesa-vulkan-drivers", "libvulkan1"],
            "GPU tests",
        );
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let browsers = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let found = std::env::split_paths(&path).any(|dir| browsers.iter().any(|name| dir.join(name).is_file()));
    if !found && std::env::var_os("ANNULUS_CHROMIUM").is_none() {
        install_packages("browser", &["chromium"], "tests in a browser");
    }
}

fn install_packages(what: &str, packages: &[&str], tests: &str) {
    title(what);
    let root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null());
        succeeds(command)
    };
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    let may = root && Path::new("/usr/bin/apt-get").exists();
    let names = packages.join(" ");
    if may && (apt(&install) || (apt(&["update"]) && apt(&install))) {
        println!("installed {names}");
    } else {
        println!("not installed (Debian: {names}): {tests} will be skipped");
    }
}

fn has_vulkan() -> bool {
    let driver = [
        "/usr/share/vulkan/icd.d",
        "/etc/vulkan/icd.d",
        "/usr/local/share/vulkan/icd.d",
    ];
    let driver = driver
        .iter()
        .any(|dir| std::fs::read_dir(dir).is_ok_and(|mut files| files.next().is_some()));
    let library = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"].map(PathBuf::from);
    let library = library.iter().any(|dir| {
        let nested = std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        std::iter::once(dir.clone())
            .chain(nested)
            .any(|dir| dir.join("libvulkan.so.1").exists())
    });
    driver && library
}
