//! The project's own chores, so that a newcomer needs cargo alone: `cargo xtask help`.
//!
//! It must not know the product's code: it only runs other programs and reads files. Only how a kernel's text is put
//! together of files is written once for both.

mod bench_browser;
mod browser;
mod command;
mod fuzz;
#[path = "../../shaders/src/kernel/include.rs"]
mod include;
mod mutate;
mod netlab;
mod package;
mod packages;
mod python;
mod steps;
mod tally;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask COMMAND

  test [--seeds N]    all checks: format, tidiness, lints, tests, and N simulated worlds (default 200)
  sim [OPTIONS]       simulated worlds: --seeds N --from K, and what else the example `sim` of core takes
  browser [EXAMPLE]   the page that every node serves: for the stock tasks, or for an example of browser/Cargo.toml
  browser-test        the page in a real browser: tabs that train, come, go and crash; every kernel
  bench-browser [--json]
                      training steps in Chromium: ours, TensorFlow.js and jax-js in turns, which npm fetches
  bench-browser --link
                      bytes a second of a tab's link, by windows and frames
  kernels             what compilers for hardware make of the kernels, where there is no hardware
  prove               the tests that take long, for more than an hour: the same again and again, planted bugs; and `kernels`
  fuzz [SECONDS]      fuzzers that watch coverage, on what strangers send to a peer; each for a minute, or so long
  package             what others install: a tarball, a Debian package, a wheel, their sums
  netlab [WORD [N]]   peers behind routers of all sorts, in network namespaces: which way do they find? (root); those cases
                      alone whose names hold a word, N times each
  mutate [KERNELS]    changes kernels by one token at a time: do their tests notice?
  mutate --drawn N [--seed S] [--tree PATH] [AREA...]
                      N changes of each area, drawn at random: `protocol`, `node`, `kernels`; with --tree, tried in
                      another checkout. It prints where the list of results is, and continues an interrupted list
  mutate --compare OLD NEW
                      two such lists: which changes did only the old tests notice?
  tidy                only what the project believes of its own files
  help                this text
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["test"] => Ok(steps::test(&root(), "200")),
        ["test", "--seeds", seeds] if seeds.parse::<u64>().is_ok() => Ok(steps::test(&root(), seeds)),
        ["sim", options @ ..] => Ok(steps::sim(&root(), options)),
        ["browser-test"] => Ok(steps::browser_test(&root())),
        ["browser"] => browser::build(&root(), None).map(|_| true),
        ["browser", example] => browser::build(&root(), Some(example)).map(|_| true),
        ["bench-browser"] => bench_browser::run(&root(), false),
        ["bench-browser", "--link"] => bench_browser::link(&root()),
        ["bench-browser", "--json"] => bench_browser::run(&root(), true),
        ["kernels"] => Ok(steps::kernels(&root())),
        ["prove"] => Ok(steps::prove(&root())),
        ["netlab"] => netlab::run(&root(), "", 1),
        ["netlab", word] => netlab::run(&root(), word, 1),
        ["netlab", word, times] if times.parse::<u32>().is_ok() => {
            netlab::run(&root(), word, times.parse().unwrap_or(1))
        }
        ["fuzz"] => fuzz::run(&root(), 60),
        ["fuzz", seconds] if seconds.parse::<u64>().is_ok() => {
            fuzz::run(&root(), seconds.parse().unwrap_or(60))
        }
        ["package"] => package::run(&root()),
        ["mutate", options @ ..] => mutate::run(&root(), options),
        ["tidy"] => Ok(steps::tidy(&root())),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => Err(format!("\"{}\" is not understood", other.join(" "))),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

/// The workspace's directory.
fn root() -> PathBuf {
    // Cargo sets it for `cargo run`; the path at compile time would be wrong after a move.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| "xtask".into(), PathBuf::from);
    let parent = package.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.map_or_else(|| ".".into(), PathBuf::from)
}
