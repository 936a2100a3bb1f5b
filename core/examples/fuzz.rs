//! Sends hostile frames to peers on all cores, and reports the world in which one panicked or held too much.
//!
//! `cargo run --release -p annulus-core --features sim --example fuzz -- --frames 100000000` `... -- --from 4711
//! --frames 4000` runs one world again. `... -- --beginnings FOLDER` writes frames of a run that goes well, where a fuzzer
//! that watches coverage begins.

use annulus_core::sim::fuzz::{FRAMES, Fuzzed, beginnings, fuzz};
use annulus_core::{Layout, Manifest};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut frames, mut from) = (1_000_000u64, 0u64);
    while let Some(arg) = args.next() {
        let value = args.next();
        if let ("--beginnings", Some(folder)) = (arg.as_str(), &value) {
            return write_beginnings(Path::new(folder)).map_or_else(
                |error| {
                    eprintln!("{folder}: {error}");
                    ExitCode::FAILURE
                },
                |()| ExitCode::SUCCESS,
            );
        }
        match (arg.as_str(), value.and_then(|text| text.parse().ok())) {
            ("--frames", Some(n)) => frames = n,
            ("--from", Some(n)) => from = n,
            _ => {
                eprintln!("usage: fuzz [--frames N] [--from SEED] | fuzz --beginnings FOLDER");
                return ExitCode::from(2);
            }
        }
    }
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    let (next, worlds) = (AtomicU64::new(from), frames.div_ceil(FRAMES));
    let all = Mutex::new((Fuzzed::default(), Vec::new()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + worlds {
                        break;
                    }
                    let caught = std::panic::catch_unwind(|| fuzz(seed, FRAMES));
                    let told = caught.unwrap_or_else(|_| Err("a peer panicked".into()));
                    let (sum, failures) = &mut *all.lock().expect("no thread panics with the lock");
                    match told {
                        Ok(told) => {
                            sum.frames += told.frames;
                            sum.read += told.read;
                            sum.honest += told.honest;
                            sum.rounds += told.rounds;
                            sum.kept = sum.kept.max(told.kept);
                        }
                        Err(why) => {
                            println!("FAILED  --from {seed} --frames {FRAMES}  # {why}");
                            failures.push(seed);
                        }
                    }
                }
            });
        }
    });
    let (sum, failures) = all.into_inner().expect("all threads are done");
    println!(
        "{} hostile frames in {worlds} worlds in {:.0} s, {} read; {} honest ones, {} rounds; at most {} bytes kept; {} worlds failed",
        sum.frames,
        began.elapsed().as_secs_f64(),
        sum.read,
        sum.honest,
        sum.rounds,
        sum.kept,
        failures.len()
    );
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Writes what the fuzzers of coverage begin with, a folder for each.
fn write_beginnings(folder: &Path) -> std::io::Result<()> {
    let frames = (0..4).flat_map(beginnings).collect();
    let manifest = Manifest::new(Layout::flat(3)).encode();
    for (name, files) in [("frames", frames), ("manifest", vec![manifest])] {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        for (number, bytes) in files.iter().enumerate() {
            std::fs::write(folder.join(number.to_string()), bytes)?;
        }
    }
    Ok(())
}
