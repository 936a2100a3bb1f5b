//! Peers behind routers of all sorts, in network namespaces of this machine: which way each pair finds to each other, and
//! how long that takes, and what others pass on for it before and after. Needs Linux, root, `ip` and `nft`; for ports that a router passes on `miniupnpd`.
//!
//! All hosts are on one wire, the internet: each with an address of its own there, or behind a router, or two. It must know
//! of the product only what its JSON log says.

mod told;
mod wires;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::command::{cargo, succeeds};
use told::{Log, Pair};
use wires::{Host, Wires};

/// How long a case may take to have all of its pairs linked, or given up: as long as a dial and some more attempts.
const CASE: Duration = Duration::from_secs(30);

/// After the last pair has found a way, for a better one to be found.
const AFTER: Duration = Duration::from_secs(6);

/// A case: who is there, the founder first, and what is expected of pairs.
struct Case {
    name: &'static str,
    hosts: &'static [Host],
    /// The way in for the other peers.
    by: By,
    /// Positions, and the way.
    expected: &'static [(usize, usize, &'static str)],
}

/// How a peer gets in: the file in the founder's folder that it uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Ticket,
    /// By nothing else: the founder is found on the network that all are on.
    Code,
}

impl By {
    fn file(self) -> &'static str {
        match self {
            Self::Ticket => "ticket",
            Self::Code => "code",
        }
    }

    fn join(self, text: &str) -> Vec<&str> {
        match self {
            Self::Ticket => vec!["join", text],
            Self::Code => vec!["join", "--code", text],
        }
    }
}

const CASES: [Case; 10] = [
    Case {
        name: "two homes",
        hosts: &[Host::Public, Host::Home, Host::Home],
        by: By::Ticket,
        expected: &[(0, 1, "direct"), (0, 2, "direct"), (1, 2, "punched")],
    },
    Case {
        name: "two homes, ports at random",
        hosts: &[Host::Public, Host::RandomHome, Host::RandomHome],
        by: By::Ticket,
        expected: &[(1, 2, "relayed")],
    },
    Case {
        name: "a home behind two routers",
        hosts: &[Host::Public, Host::DoubleHome, Host::Home],
        by: By::Ticket,
        expected: &[(1, 2, "punched")],
    },
    Case {
        name: "firewalls that let no UDP in",
        hosts: &[Host::Public, Host::Firewalled, Host::Firewalled],
        by: By::Ticket,
        // At their own addresses, with each firewall taking the other's dial for an answer.
        expected: &[(1, 2, "direct")],
    },
    Case {
        name: "IPv6 alone, and both",
        hosts: &[Host::Public, Host::OnlyIpv6, Host::Home],
        by: By::Ticket,
        expected: &[(0, 1, "direct"), (1, 2, "relayed")],
    },
    Case {
        name: "no path between two of three",
        hosts: &[Host::Public, Host::Apart, Host::Apart],
        by: By::Ticket,
        expected: &[(1, 2, "relayed")],
    },
    Case {
        name: "a founder behind a router that takes UPnP",
        hosts: &[Host::MappedHome, Host::Public, Host::Home],
        by: By::Ticket,
        expected: &[(0, 1, "mapped"), (0, 2, "mapped")],
    },
    Case {
        name: "one network, and no ticket",
        hosts: &[Host::Public, Host::Public, Host::OnlyIpv6],
        by: By::Code,
        expected: &[(0, 1, "direct"), (0, 2, "direct"), (1, 2, "direct")],
    },
    Case {
        name: "one network without addresses, and no ticket",
        hosts: &[Host::Unaddressed, Host::Unaddressed, Host::Unaddressed],
        by: By::Code,
        // At the addresses that machines give themselves.
        expected: &[(0, 1, "direct"), (0, 2, "direct"), (1, 2, "direct")],
    },
    Case {
        name: "a founder with IPv6 alone, behind a router that takes PCP",
        hosts: &[Host::PinholeHome, Host::OnlyIpv6],
        by: By::Ticket,
        // Dialled at its own address.
        expected: &[(0, 1, "direct")],
    },
];

/// How soon a pair that can find a link must have one.
const SOON: f64 = 10.0;

/// Runs the cases whose names contain `word`, `times` times each, and prints a table. Returns false if a pair connected in
/// another way than expected, or if a member relayed traffic without need.
pub fn run(root: &Path, word: &str, times: u32) -> Result<bool, String> {
    if let Err(why) = wires::possible() {
        println!("skipped: {why}");
        return Ok(true);
    }
    let program = program(root)?;
    let mut good = true;
    println!("| case | pair | way | seconds | passed on by others | |\n|---|---|---|---|---|---|");
    let cases = CASES.iter().filter(|case| case.name.contains(word));
    for case in cases.flat_map(|case| (0..times).map(move |_| case)) {
        let asks = |host: &Host| matches!(host, Host::MappedHome | Host::PinholeHome);
        if case.hosts.iter().any(asks) && !wires::has("miniupnpd") {
            println!("| {} | | | | | skipped: there is no miniupnpd |", case.name);
            continue;
        }
        good &= case.run(&program)?;
    }
    Ok(good)
}

/// The program as it is now, or another one that `ANNULUS` names.
fn program(root: &Path) -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("ANNULUS") {
        return Ok(given.into());
    }
    let mut build = cargo(root);
    build.args(["build", "--release", "--bin", "annulus"]);
    if !succeeds(build) {
        return Err("the program does not build".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/annulus"))
}

impl Case {
    fn run(&self, program: &Path) -> Result<bool, String> {
        let scratch = std::env::temp_dir().join(format!("annulus-netlab-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
        let wires = Wires::lay(self.hosts, &scratch)?;
        let mut peers = Peers(Vec::new());
        let found = self.play(program, &wires, &scratch, &mut peers);
        // Before they leave: without the one that passes frames on, others lose each other.
        let logs = self.said(&scratch);
        peers.end();
        let given_back = wires.mapped();
        let result = found.map(|pairs| self.report(&pairs, &logs, given_back.as_deref()));
        if !matches!(result, Ok(true)) {
            eprintln!("what the peers said is in {}", scratch.display());
        } else {
            let _ = std::fs::remove_dir_all(&scratch);
        }
        result
    }

    /// Starts the peers one after the other and waits until every pair has found a way.
    fn play(
        &self,
        program: &Path,
        wires: &Wires,
        scratch: &Path,
        peers: &mut Peers,
    ) -> Result<Vec<Pair>, String> {
        let mut ticket: Option<String> = None;
        let file = scratch.join("0").join(self.by.file());
        for at in 0..self.hosts.len() {
            let join = ticket.as_deref().map(|text| self.by.join(text));
            peers.start(program, wires, scratch, at, join)?;
            if at == 0 {
                let until = Instant::now() + CASE;
                ticket = loop {
                    let told = std::fs::read_to_string(&file);
                    match told {
                        Ok(text) if !text.trim().is_empty() => break Some(text.trim().to_owned()),
                        _ if Instant::now() > until => return Err("the founder is not ready".into()),
                        _ => sleep(Duration::from_millis(100)),
                    }
                };
            }
        }
        let (until, mut since) = (Instant::now() + CASE, None);
        loop {
            let logs = self.said(scratch);
            let pairs = told::pairs(&logs);
            let all = pairs.iter().all(|pair| pair.way.is_some());
            since = since.filter(|_| all).or(all.then(Instant::now));
            let settled = since.is_some_and(|since: Instant| since.elapsed() > AFTER);
            if settled || Instant::now() > until {
                return Ok(pairs);
            }
            sleep(Duration::from_millis(500));
        }
    }

    /// What all have said so far.
    fn said(&self, scratch: &Path) -> Vec<Log> {
        let logs = (0..self.hosts.len()).map(|at| scratch.join(format!("{at}.log")));
        logs.map(|log| Log::read(&log)).collect()
    }

    /// Rows of the table. Whether all is as expected.
    fn report(&self, pairs: &[Pair], logs: &[Log], mapped: Option<&str>) -> bool {
        let mut good = true;
        // Relayed bytes can be attributed to a pair only if no other pair needs a relay.
        let alone = pairs
            .iter()
            .filter(|pair| !matches!(pair.way, Some("direct" | "mapped")))
            .count()
            == 1;
        for pair in pairs {
            let (a, b) = pair.ends;
            let way = pair.way.unwrap_or("none");
            let expected = self.expected.iter().find(|(c, d, _)| (*c, *d) == (a, b));
            let fits = expected.is_none_or(|(_, _, expected)| *expected == way) && way != "none";
            let relayed = (alone && way != "direct" && way != "mapped").then(|| told::relayed(logs, pair));
            let (soon, still) = (
                pair.seconds <= SOON,
                relayed.is_none_or(|relayed| relayed.stands_still(way)),
            );
            good &= fits && soon && still;
            let remark = match expected {
                Some((_, _, expected)) if !fits => format!("expected: {expected}"),
                _ if !fits => "nothing".to_owned(),
                _ if !soon => "too late".to_owned(),
                _ if !still => "more than it needs".to_owned(),
                _ => String::new(),
            };
            let relayed = relayed.map(|relayed| relayed.to_string()).unwrap_or_default();
            let (name_a, name_b) = (self.hosts[a].name(), self.hosts[b].name());
            println!(
                "| {} | {name_a} - {name_b} | {way} | {:.1} | {relayed} | {remark} |",
                self.name, pair.seconds
            );
        }
        match told::agreed(logs) {
            Ok(rounds) => println!(
                "| {} | all | {rounds} rounds, equal states, nobody lost | | | |",
                self.name
            ),
            Err(why) => {
                good = false;
                println!("| {} | all | {why} | | | |", self.name);
            }
        }
        if let Some(left) = mapped {
            let gone = left.is_empty();
            good &= gone;
            let words = if gone { "given back" } else { left };
            println!(
                "| {} | the router's port after the end | {words} | | | |",
                self.name
            );
        }
        good
    }
}

/// Processes, ended with the case whatever happens.
struct Peers(Vec<Child>);

impl Peers {
    fn start(
        &mut self,
        program: &Path,
        wires: &Wires,
        scratch: &Path,
        at: usize,
        join: Option<Vec<&str>>,
    ) -> Result<(), String> {
        let file =
            |name: String| std::fs::File::create(scratch.join(name)).map_err(|error| error.to_string());
        let mut command = wires.command(at, program);
        match join {
            None => command.args(["train", "--task", "digits", "epochs=100000", "local_steps=4"]),
            Some(join) => command.args(join),
        };
        command
            .args([
                "--device",
                "cpu",
                "--listen",
                "4433",
                "--no-page",
                "--log-format",
                "json",
                "--out",
            ])
            .arg(scratch.join(at.to_string()))
            .stdin(Stdio::null())
            .stdout(file(format!("{at}.log"))?)
            .stderr(file(format!("{at}.err"))?);
        self.0.push(
            command
                .spawn()
                .map_err(|error| format!("{}: {error}", program.display()))?,
        );
        Ok(())
    }

    /// Asks all to leave, and does not wait for ever.
    fn end(&mut self) {
        for child in &self.0 {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
        }
        let until = Instant::now() + Duration::from_secs(10);
        for child in &mut self.0 {
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > until {
                    let _ = child.kill();
                }
                sleep(Duration::from_millis(50));
            }
        }
        self.0.clear();
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.end();
    }
}
