//! Running other programs, cargo above all.

use crate::tally::Times;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Cargo, as if it were called by hand.
pub fn cargo(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root);
    // Cargo's variables describe this program; the programs that it runs must not take them for theirs.
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

/// Whether it could be run and all went well; says so if it could not.
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

/// The steps so far, and when each began.
static STEPS: Mutex<Vec<(Instant, String)>> = Mutex::new(Vec::new());

/// Announces a step.
pub fn title(text: &str) {
    println!("\n== {text}");
    let mut steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    steps.push((Instant::now(), text.to_owned()));
}

/// Ends the last step: how many seconds each took, in their order, and all together.
pub fn steps() -> Times {
    let mut steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    steps.push((Instant::now(), "all".to_owned()));
    let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
    let each = steps
        .windows(2)
        .map(|pair| (seconds(pair[0].0, pair[1].0), pair[0].1.clone()));
    let mut all: Vec<_> = each.collect();
    if let [(first, _), .., (last, name)] = &steps[..] {
        all.push((seconds(*first, *last), name.clone()));
    }
    all
}
