//! Running other programs, cargo above all.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

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

/// Announces a step.
pub fn title(text: &str) {
    println!("\n== {text}");
}
