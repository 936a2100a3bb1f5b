//! Fuzzers that watch coverage: libFuzzer over what strangers send to a peer.
//!
//! The seeded fuzzers among the tests change honest frames at random. This one keeps each input that reaches new code, and
//! goes on from it. Inputs are kept in the target folder, so a later run begins where the last one ended.

use crate::browser::target_dir;
use crate::command::{cargo, succeeds, title};
use std::path::Path;
use std::process::Command;

const FUZZERS: [&str; 2] = ["frames", "manifest"];

/// Counters of coverage, as libFuzzer reads them.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                        -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1";

/// Runs each for this many seconds. Whether none found a fault.
pub fn run(root: &Path, seconds: u64) -> Result<bool, String> {
    let target = target_dir(root)?.join("fuzz");
    let host = host()?;
    title("fuzzers");
    let mut build = cargo(root);
    build
        .args(["build", "--release", "--manifest-path", "core/fuzz/Cargo.toml"])
        // With a target, build scripts and macros are not counted.
        .args(["--target", &host, "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", COVERAGE);
    let mut beginnings = cargo(root);
    let example = [
        "run",
        "--release",
        "--quiet",
        "--example",
        "fuzz",
        "--",
        "--beginnings",
    ];
    let inputs = target.join("inputs");
    beginnings.args(example).arg(&inputs);
    if !succeeds(build) || !succeeds(beginnings) {
        return Ok(false);
    }
    let programs = target.join(host).join("release");
    let ran = FUZZERS.map(|name| {
        title(name);
        let mut fuzzer = Command::new(programs.join(name));
        fuzzer
            .arg(format!("-max_total_time={seconds}"))
            .args([
                "-max_len=16384",
                "-rss_limit_mb=2048",
                "-verbosity=0",
                "-print_final_stats=1",
            ])
            .arg(format!("-artifact_prefix={}/{name}-", target.display()))
            .arg(inputs.join(name));
        succeeds(fuzzer)
    });
    Ok(ran.iter().all(|went_well| *went_well))
}

/// The platform that this program runs on, as the compiler calls it.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "host-tuple"]).output();
    let output = output.map_err(|error| format!("rustc cannot be run: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
