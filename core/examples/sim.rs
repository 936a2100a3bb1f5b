//! Runs the seeded worlds on all cores and reports each seed that failed, and why.
//!
//! `cargo run --release -p annulus-core --features sim --example sim -- --seeds 10000`
//!
//! - `--seeds 1 --from 4711 --trace` tells one seed's story.
//! - `--split --seeds 10000` runs only worlds with a split model; with `--liars` there are some from seed
//!   1,000,000,000 on.
//! - `--revoking --seeds 10000` runs only worlds in which tickets are taken back.
//! - `--real-keys --seeds 1000` signs with Ed25519 keys instead of a fast stand-in.
//! - `--liars --seeds 1000` lets some peers break the protocol on purpose, `--lie bar` in this way too.
//! - `--bug all --seeds 1000` plants each bug in up to 1,000 worlds that can bring it to light, and reports the first
//!   seed that does.
//! - `--bug all --seeds 2000 --quickest` prints the table of seeds that the tests run: for each bug and topology up to
//!   three, which find it with the least processor time among the first 2,000 worlds, or the first in which ten find it.

use annulus_core::Topology;
use annulus_core::planted::Bug;
use annulus_core::signature::Scheme;
use annulus_core::sim::{self, Lie, Outcome, Setup, Stats};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: sim [--seeds N] [--from K] [--jobs J] [--bug NAME|all] [--split] [--revoking] [--liars] [--lie NAME] [--real-keys] [--trace] [--keep-going] [--quickest]";

#[derive(Clone)]
struct Options {
    /// How many worlds.
    seeds: u64,
    from: u64,
    jobs: usize,
    bugs: Vec<Bug>,
    setup: Setup,
    /// Only worlds in which a model is split.
    split: bool,
    /// Only worlds in which tickets are taken back.
    revoking: bool,
    keep_going: bool,
    /// Whether to look for the seeds that find a bug with the least processor time.
    quickest: bool,
}

/// A world that broke a promise.
struct Failure {
    seed: u64,
    why: String,
    /// Processor time until it did.
    took: Duration,
}

/// Seeds of a row of that table: another may still find the bug once the protocol has changed.
const KEPT: usize = 3;

/// Worlds of a topology that find a bug, after which no quicker ones are looked for.
const ENOUGH: usize = 10;

/// The first lines of the table of quickest seeds.
const TABLE: &str = "\
# Seeds that find each planted bug with the least processor time, of ring or direct worlds or of any. To search anew:
# cargo xtask sim --bug all --seeds 2000 --quickest > core/tests/protocol/planted.txt";

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // A panic in a peer is reported with its seed, below.
    std::panic::set_hook(Box::new(|_| {}));
    match (options.bugs.is_empty(), options.quickest) {
        (true, _) => check(&options),
        (false, false) => hunt(&options),
        (false, true) => quickest(&options),
    }
}

/// Runs all seeds without a planted bug.
fn check(options: &Options) -> ExitCode {
    let began = Instant::now();
    let (failures, stats, ran) = run_all(options);
    let seconds = began.elapsed().as_secs_f64();
    for Failure { seed, why, .. } in &failures {
        let liars = if options.setup.liars { " --liars" } else { "" };
        println!("FAILED  cargo xtask sim --seeds 1 --from {seed}{liars}  # {why}");
    }
    println!(
        "{ran} seeds in {seconds:.1} s ({:.0} seeds/s), {} failed, {} judged to the end; {} rounds ({} retried), {} joins, {} outcasts, {} punched links, {} went back, {} shifts seen, {} asides, {} passes in another cut, {} messages",
        ran as f64 / seconds,
        failures.len(),
        stats.judged,
        stats.rounds,
        stats.retried,
        stats.joins,
        stats.outcasts,
        stats.punched,
        stats.backs,
        stats.shifts,
        stats.asides,
        stats.recut,
        stats.messages,
    );
    let faults: Vec<String> = stats
        .faults
        .iter()
        .map(|(kind, n)| format!("{n} {kind}"))
        .collect();
    println!("faults: {}", faults.join(", "));
    if options.setup.liars {
        let lies: Vec<String> = stats.lies.iter().map(|(lie, n)| format!("{n} {lie}")).collect();
        println!("lies: {}; liars were out {} times", lies.join(", "), stats.caught);
    }
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Plants each bug and looks for the first seed that finds it.
fn hunt(options: &Options) -> ExitCode {
    let mut all_found = true;
    for bug in &options.bugs {
        let (failures, _, ran) = run_all(&worlds_of(*bug, options));
        match failures.first() {
            Some(Failure { seed, why, .. }) => println!(
                "{bug:?}: found by seed {seed}, by {} of {ran} worlds: {why}",
                failures.len()
            ),
            None => {
                all_found = false;
                println!("{bug:?}: NOT FOUND in {ran} worlds");
            }
        }
    }
    if all_found {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The worlds that can bring a bug to light.
fn worlds_of(bug: Bug, options: &Options) -> Options {
    let (worlds, split, from) = sim::worlds_of(bug);
    let Setup { scheme, trace, .. } = options.setup;
    Options {
        from: from + options.from,
        setup: Setup {
            scheme,
            trace,
            ..worlds
        },
        split,
        ..options.clone()
    }
}

/// Plants each bug and prints the seeds that find it with the least processor time.
fn quickest(options: &Options) -> ExitCode {
    println!("{TABLE}");
    let mut all_found = true;
    for bug in &options.bugs {
        for (topology, seeds) in quickest_of(*bug, options) {
            let name = topology.map_or("any".to_owned(), |topology| topology.to_string());
            all_found &= !seeds.is_empty();
            let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
            println!("{bug:?} {name} {}", seeds.join(" "));
        }
    }
    if all_found {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The quickest seeds of each topology. Their worlds hold without the bug.
fn quickest_of(bug: Bug, options: &Options) -> Vec<(Option<Topology>, Vec<u64>)> {
    let worlds = worlds_of(bug, options);
    let is_of = |topology: Option<Topology>, failure: &&Failure| {
        topology.is_none() || topology == sim::topology(failure.seed)
    };
    let topologies = sim::topologies_of(bug);
    let (mut failures, ..) = run_until(&worlds, |failures| {
        let found = |topology| failures.iter().filter(|f| is_of(topology, f)).count();
        topologies.iter().all(|topology| found(*topology) >= ENOUGH)
    });
    failures.sort_by_key(|failure| failure.took);
    let without = Setup {
        bug: None,
        ..worlds.setup
    };
    let holds = |seed: &u64| sim::run(*seed, without).failure.is_none();
    let of = |topology| {
        let of_it = failures.iter().filter(|failure| is_of(topology, failure));
        of_it
            .map(|failure| failure.seed)
            .filter(holds)
            .take(KEPT)
            .collect()
    };
    topologies
        .iter()
        .map(|topology| (*topology, of(*topology)))
        .collect()
}

/// Runs all seeds, or until one fails.
fn run_all(options: &Options) -> (Vec<Failure>, Stats, u64) {
    run_until(options, |_| !options.keep_going)
}

/// The failures in the order of seeds, counts, and how many worlds ran. It stops once the failures are enough: then
/// the first failing seed is certainly among them, later ones perhaps not.
fn run_until(options: &Options, enough: impl Fn(&[Failure]) -> bool + Sync) -> (Vec<Failure>, Stats, u64) {
    let (next, begun) = (AtomicU64::new(options.from), AtomicU64::new(0));
    let stopped = AtomicBool::new(false);
    let results = Mutex::new((Vec::<Failure>::new(), Stats::default(), 0u64));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_other = options.split && !sim::is_split(seed, options.setup.liars)
                        || options.revoking && !sim::is_revoking(seed);
                    if is_other {
                        continue;
                    }
                    if begun.fetch_add(1, Ordering::Relaxed) >= options.seeds {
                        break;
                    }
                    let began = processor_time();
                    let Outcome { failure, stats } = sim::run(seed, options.setup);
                    let took = processor_time().saturating_sub(began);
                    let mut results = results.lock().expect("no thread panics with the lock");
                    results.1.add(&stats);
                    results.2 += 1;
                    if let Some(why) = failure {
                        results.0.push(Failure { seed, why, took });
                        stopped.fetch_or(enough(&results.0), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (mut failures, stats, ran) = results.into_inner().expect("all threads are done");
    failures.sort_by_key(|failure| failure.seed);
    (failures, stats, ran)
}

/// Processor time of this thread; where the system does not tell it, time since the first question.
fn processor_time() -> Duration {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|told| told.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| FIRST.elapsed(), Duration::from_nanos)
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut options = Options {
        seeds: 100,
        from: 0,
        jobs,
        bugs: Vec::new(),
        setup: Setup::default(),
        split: false,
        revoking: false,
        keep_going: false,
        quickest: false,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match arg.as_str() {
            "--seeds" => options.seeds = number(value()?)?,
            "--from" => options.from = number(value()?)?,
            "--jobs" => options.jobs = number(value()?)?.clamp(1, 1024) as usize,
            "--real-keys" => options.setup.scheme = Scheme::Ed25519,
            "--liars" => options.setup.liars = true,
            "--lie" => {
                options.setup.liars = true;
                options.setup.lie = Some(lie(&value()?)?);
            }
            "--split" => options.split = true,
            "--revoking" => options.revoking = true,
            "--trace" => options.setup.trace = true,
            "--keep-going" => options.keep_going = true,
            "--quickest" => options.quickest = true,
            "--bug" => options.bugs = bugs(&value()?)?,
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    Ok(options)
}

fn lie(name: &str) -> Result<Lie, String> {
    let all = || {
        let drawn = Lie::DRAWN.into_iter();
        drawn
            .chain(Lie::OF_KEEPERS)
            .chain(Lie::OF_SPANS)
            .chain(Lie::OF_PAGES)
    };
    let names = || all().map(|lie| lie.to_string()).collect::<Vec<_>>().join(", ");
    let found = all().find(|lie| lie.to_string().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("no lie is called {name}: use {}", names()))
}

fn bugs(name: &str) -> Result<Vec<Bug>, String> {
    let is_it = |bug: &Bug| name == "all" || format!("{bug:?}").eq_ignore_ascii_case(name);
    let found: Vec<Bug> = Bug::all().filter(is_it).collect();
    if found.is_empty() {
        let names: Vec<String> = Bug::all().map(|bug| format!("{bug:?}")).collect();
        return Err(format!(
            "no planted bug is called {name}: use all, {}",
            names.join(", ")
        ));
    }
    Ok(found)
}
