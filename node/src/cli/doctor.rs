//! `annulus doctor`: what this machine offers to a run, and what stands in its way.

use self::loopback::loopback;
use super::error::{Error, Failure};
use super::human;
use super::machine::{self, Adapter};
use super::output::{self, unix_ms};
use super::terminal::{Color, Style};
use super::ticket;
use crate::events::rfc3339;
use crate::net::addresses::{everywhere, own_addresses};
use crate::net::mapping::{Mapping, Outside};
use crate::net::reach;
use crate::store::given::Given;
use crate::task_factory::TaskFactory;
use annulus_net::printable::printable_line;
use annulus_net::user_folders;
use serde::Serialize;
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::num::NonZeroU16;
use std::time::Duration;

mod loopback;
mod of_run;

/// Check this machine: graphics adapters and kernels, processor, memory, ports, clock. With a ticket, also that run.
///
/// The exit code is 0 if the machine can take part in a run. It can without a graphics adapter.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run's ticket, or @FILE: whether a member answers, and whether this program can take part.
    pub ticket: Option<String>,
    /// The port to check, UDP and TCP; 0 takes any free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Where a run would compute: auto, cpu or gpu. With gpu the kernels are compiled for a software adapter too, which takes minutes.
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = ["auto", "cpu", "gpu"])]
    pub device: String,
    /// Do not ask the router to forward a port (PCP, NAT-PMP, UPnP).
    #[arg(long)]
    pub no_port_mapping: bool,
    /// Write one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus doctor
  annulus doctor annulus2...
  annulus doctor --port 4433
  annulus doctor --device gpu
  annulus doctor --json
";

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub name: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// The finding, and what to do if it is not good.
    pub text: String,
}

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// A run works without it, but less well.
    Poor,
    /// No run works like this.
    Bad,
}

#[derive(Serialize)]
struct Findings {
    version: &'static str,
    findings: Vec<Finding>,
    adapters: Vec<Adapter>,
}

/// Looks the machine over and prints what it found, each as soon as it is found.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let style = Style::of_stdout();
    let ticket = args.ticket.as_deref().map(ticket::parse).transpose()?;
    let tell = |text: &str| {
        if !args.json {
            output::paint(text);
        }
    };
    tell(&format!("annulus {}\n", env!("CARGO_PKG_VERSION")));
    let mut findings = Vec::new();
    let mut found = |finding: Finding| {
        tell(&finding.line(style));
        findings.push(finding);
    };
    found(processor());
    found(memory());
    found(clock(unix_ms()));
    found(folder());
    found(loopback("loopback IPv4", Ipv4Addr::LOCALHOST.into()));
    found(loopback("loopback IPv6", Ipv6Addr::LOCALHOST.into()).softened());
    found(port(args.port));
    found(address().softened());
    found(outside(args.port, args.no_port_mapping).softened());
    found(given());
    if let Some(ticket) = &ticket {
        found(of_run::run_of(ticket, tasks));
    }
    let adapters = machine::adapters();
    found(graphics(&adapters));
    if compiles(&adapters, &args.device) {
        output::note("compiling the kernels, which can take half a minute the first time");
        if let Some(finding) = kernels(machine::compile_kernels(tasks)) {
            found(finding);
        }
    }
    adapters
        .iter()
        .for_each(|adapter| tell(&adapter_lines(adapter, style)));
    let bad = findings.iter().filter(|f| f.verdict == Verdict::Bad).count();
    let report = Findings {
        version: env!("CARGO_PKG_VERSION"),
        findings,
        adapters,
    };
    if args.json {
        output::print(
            &(serde_json::to_string(&report).expect("a report is plain data with text keys") + "\n"),
        );
    }
    match bad {
        0 => Ok(()),
        n => Err(Error::failed(format!(
            "this machine cannot take part in a run yet: {} marked `bad`, each with what to do about it",
            human::plural(n as u64, "finding")
        ))),
    }
}

/// Whether the kernels are compiled: for hardware, and for what imitates it where somebody asks for that.
fn compiles(adapters: &[Adapter], device: &str) -> bool {
    match device {
        "gpu" => !adapters.is_empty(),
        "cpu" => false,
        _ => adapters.iter().any(|adapter| adapter.auto),
    }
}

fn adapter_lines(adapter: &Adapter, style: Style) -> String {
    let kind = if adapter.software { "software" } else { "hardware" };
    let auto = if adapter.auto {
        ", taken by --device auto"
    } else {
        ""
    };
    let mut text = format!(
        "--device {}: {} ({}, {kind}{auto})\n",
        adapter.device, adapter.name, adapter.backend
    );
    for (name, value) in &adapter.limits {
        let line = format!("    {name:<44} {:>14}", human::grouped(*value));
        text += &style.paint(Color::Dim, &line);
        text.push('\n');
    }
    text
}

impl Finding {
    fn line(&self, style: Style) -> String {
        let (color, word) = match self.verdict {
            Verdict::Good => (Color::Green, "good"),
            Verdict::Poor => (Color::Yellow, "poor"),
            Verdict::Bad => (Color::Red, "bad "),
        };
        let word = style.paint(color, word);
        // Some of it is the word of other peers.
        let text = printable_line(&self.text, usize::MAX);
        format!("  {word} {:<14} {text}\n", self.name)
    }

    fn new(name: &'static str, verdict: Verdict, text: impl Into<String>) -> Self {
        Self {
            name,
            verdict,
            text: text.into(),
        }
    }

    /// For what a run can do without.
    fn softened(mut self) -> Self {
        if self.verdict == Verdict::Bad {
            self.verdict = Verdict::Poor;
        }
        self
    }
}

fn graphics(adapters: &[Adapter]) -> Finding {
    let name = "graphics";
    if let Some(adapter) = adapters.iter().find(|a| a.auto) {
        return Finding::new(
            name,
            Verdict::Good,
            format!("{} ({})", adapter.name, adapter.backend),
        );
    }
    let text = match adapters.first() {
        Some(adapter) if !adapter.software => format!("{} cannot be opened: update its driver", adapter.name),
        Some(adapter) => format!(
            "only {}, which is software: --device auto takes the processor itself, which is faster. `annulus doctor --device gpu` \
             tries it",
            adapter.name
        ),
        None => "no adapter: --device auto takes the processor. If there is a graphics card, install its Vulkan driver"
            .to_owned(),
    };
    Finding::new(name, Verdict::Poor, text)
}

fn kernels(compiled: Result<Option<usize>, Failure>) -> Option<Finding> {
    let name = "kernels";
    match compiled {
        Ok(None) => None,
        Ok(Some(count)) => {
            let text = format!("the adapter takes all {count} that the tasks need");
            Some(Finding::new(name, Verdict::Good, text))
        }
        Err(error) => {
            let text = format!("{error}: update the graphics driver, or train with --device cpu");
            Some(Finding::new(name, Verdict::Poor, text))
        }
    }
}

fn processor() -> Finding {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let model = proc_value("/proc/cpuinfo", "model name")
        .map(|m| format!(", {m}"))
        .unwrap_or_default();
    let features = cpu_features().join(" ");
    let text = format!(
        "{} of {}{model} {features}",
        human::plural(threads, "thread"),
        std::env::consts::ARCH
    );
    Finding::new("processor", Verdict::Good, text.trim_end())
}

/// Extensions that make training faster, of those that this processor has.
fn cpu_features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let found = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let found: [(&str, bool); 0] = [];
    found
        .into_iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| name)
        .collect()
}

/// Less free memory than this is too little for the smallest run, with a wide margin.
const MEMORY_LOW_BYTES: f64 = 256e6;

fn memory() -> Finding {
    let kib = |key| -> Option<f64> {
        proc_value("/proc/meminfo", key)?
            .strip_suffix(" kB")?
            .trim()
            .parse()
            .ok()
    };
    match (kib("MemTotal"), kib("MemAvailable")) {
        (Some(total), Some(free)) => {
            let text = format!(
                "{} free of {}",
                human::bytes(free * 1024.0),
                human::bytes(total * 1024.0)
            );
            match free * 1024.0 < MEMORY_LOW_BYTES {
                false => Finding::new("memory", Verdict::Good, text),
                true => Finding::new("memory", Verdict::Poor, format!("{text}: close other programs")),
            }
        }
        _ => Finding::new("memory", Verdict::Good, "not known on this system"),
    }
}

/// The value behind `key :` in one of Linux's text files.
fn proc_value(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Nobody runs this program before the day it was written: 2026-11-20.
const CLOCK_AT_LEAST_UNIX_MS: u64 = 1_795_132_800_000;

fn clock(unix_ms: u64) -> Finding {
    let now = rfc3339(unix_ms);
    if unix_ms < CLOCK_AT_LEAST_UNIX_MS {
        let text =
            format!("{now} is in the past: set the clock, or browsers will refuse this peer's certificates");
        return Finding::new("clock", Verdict::Bad, text);
    }
    Finding::new("clock", Verdict::Good, now)
}

/// Peers use UDP, pages TCP, of one number.
fn port(wanted: u16) -> Finding {
    let tried = UdpSocket::bind(everywhere(wanted))
        .map_err(|e| ("UDP", e))
        .and_then(|udp| {
            let port = udp.local_addr().map_err(|e| ("UDP", e))?.port();
            TcpListener::bind(everywhere(port)).map_err(|e| ("TCP", e))?;
            Ok(port)
        });
    match tried {
        Ok(port) => Finding::new("port", Verdict::Good, format!("{port} is free, UDP and TCP")),
        Err((protocol, e)) => Finding::new(
            "port",
            Verdict::Bad,
            format!("{protocol} port {wanted} cannot be had ({e}): choose another with --listen PORT"),
        ),
    }
}

/// The addresses that others in the same network would use.
fn address() -> Finding {
    let own = own_addresses(everywhere(0))
        .into_iter()
        .map(|address| address.ip());
    let own: Vec<String> = own
        .filter(|ip| !ip.is_loopback())
        .map(|ip| ip.to_string())
        .collect();
    match own.is_empty() {
        false => Finding::new(
            "address",
            Verdict::Good,
            format!(
                "{}; let UDP to the port of --listen pass the firewall",
                own.join(" and ")
            ),
        ),
        true => Finding::new(
            "address",
            Verdict::Bad,
            "no route to other machines: peers on this machine work, others need a network",
        ),
    }
}

/// From where others could reach a peer, for which a router is asked for a port, and given it back.
fn outside(port: u16, unasked: bool) -> Finding {
    let port = NonZeroU16::new(port).unwrap_or(USUAL_PORT);
    let outside = match unasked {
        true => Outside::Unasked,
        false => ask_router(port),
    };
    let verdict = match outside {
        Outside::Open { .. } | Outside::Needless => Verdict::Good,
        _ => Verdict::Poor,
    };
    let own = own_addresses(everywhere(port.get()));
    Finding::new("reached", verdict, reach::words(&own, &outside))
}

/// Any will do, to ask with.
const USUAL_PORT: NonZeroU16 = NonZeroU16::new(4433).expect("not zero");

/// Longer than all that a router is asked.
const ROUTER: Duration = Duration::from_secs(8);

fn ask_router(port: NonZeroU16) -> Outside {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else {
        return Outside::Unasked;
    };
    runtime.block_on(async {
        let mut mapping = Mapping::begin(port);
        let outside = mapping.settle(ROUTER).await;
        mapping.end().await;
        outside
    })
}

/// Checkpoints need a folder that can be written.
fn folder() -> Finding {
    let dir = std::env::temp_dir();
    let tried = tempfile::tempfile_in(&dir).and_then(|mut file| {
        let mut bytes = [0; 4];
        file.write_all(b"ring")?;
        file.rewind()?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    });
    match tried {
        Ok(bytes) if bytes == *b"ring" => Finding::new(
            "folder",
            Verdict::Good,
            format!("{} can be written", dir.display()),
        ),
        Ok(_) => Finding::new(
            "folder",
            Verdict::Bad,
            format!("{} loses what is written to it", dir.display()),
        ),
        Err(e) => Finding::new(
            "folder",
            Verdict::Poor,
            format!(
                "{} cannot be written ({e}): the demo needs it, runs need only --out",
                dir.display()
            ),
        ),
    }
}

/// What this user's peers have given on this machine.
fn given() -> Finding {
    let given = user_folders::data()
        .map(|folder| Given::load(&folder))
        .unwrap_or_default();
    let text = match given.samples {
        0 => "nothing to any run yet".into(),
        samples => format!(
            "{} samples in {} of computing, to {}",
            human::grouped(samples),
            human::duration(given.seconds),
            human::plural(given.runs, "run")
        ),
    };
    Finding::new("given", Verdict::Good, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(software: bool) -> Adapter {
        Adapter {
            device: "gpu:0".into(),
            name: "Some Adapter".into(),
            backend: "Vulkan".into(),
            software,
            auto: !software,
            limits: vec![("max_storage_buffer_binding_size".into(), 134_217_728)],
        }
    }

    #[test]
    fn what_others_say_is_one_line_without_codes_for_the_terminal() {
        let task = "\u{1b}]0;own\u{7}\n  good all";
        let plain = Style {
            live: false,
            color: false,
        };
        let line = Finding::new("run", Verdict::Bad, task).line(plain);
        assert_eq!(line.matches('\n').count(), 1, "{line:?}");
        assert!(!line.contains('\u{1b}'), "{line:?}");
    }

    #[test]
    fn hardware_is_good_and_nothing_is_bad_without_it() {
        assert_eq!(graphics(&[adapter(true), adapter(false)]).verdict, Verdict::Good);
        // The one that a run would take, and not the first.
        let (mut first, second) = (adapter(false), adapter(false));
        (first.name, first.auto) = ("Other".into(), false);
        assert_eq!(graphics(&[first, second]).text, "Some Adapter (Vulkan)");
        assert_eq!(graphics(&[adapter(true)]).verdict, Verdict::Poor);
        assert_eq!(graphics(&[]).verdict, Verdict::Poor);
    }

    #[test]
    fn kernels_are_compiled_for_hardware_and_for_software_only_on_request() {
        for (adapters, device, expected) in [
            (vec![adapter(false)], "auto", true),
            (vec![adapter(true)], "auto", false),
            (vec![adapter(true)], "gpu", true),
            (vec![adapter(false)], "cpu", false),
            (vec![], "gpu", false),
        ] {
            assert_eq!(compiles(&adapters, device), expected, "{adapters:?} {device}");
        }
    }

    #[test]
    fn a_wrong_clock_is_found() {
        assert_eq!(clock(0).verdict, Verdict::Bad);
        assert_eq!(clock(CLOCK_AT_LEAST_UNIX_MS).verdict, Verdict::Good);
    }

    #[test]
    fn a_port_in_use_is_found() {
        assert_eq!(port(0).verdict, Verdict::Good);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let taken = port(socket.local_addr().unwrap().port());
        assert_eq!(taken.verdict, Verdict::Bad);
        assert!(taken.text.starts_with("UDP port"), "{}", taken.text);
    }

    #[test]
    fn loopback_is_reached() {
        let finding = loopback("loopback IPv4", Ipv4Addr::LOCALHOST.into());
        assert_eq!(finding.verdict, Verdict::Good, "{}", finding.text);
        // Documentation addresses belong to nobody, so nothing can be bound to one.
        let nowhere = loopback("nowhere", Ipv4Addr::new(192, 0, 2, 1).into());
        assert_eq!(nowhere.verdict, Verdict::Bad);
        assert_eq!(nowhere.softened().verdict, Verdict::Poor);
    }

    #[test]
    fn a_kernel_that_the_adapter_refuses_is_named() {
        assert!(kernels(Ok(None)).is_none());
        assert_eq!(kernels(Ok(Some(3))).unwrap().verdict, Verdict::Good);
        let refused = kernels(Err("kernel gemm_nn: the device refuses it".into())).unwrap();
        assert_eq!(refused.verdict, Verdict::Poor);
        assert!(refused.text.contains("gemm_nn") && refused.text.contains("--device cpu"));
    }

    #[test]
    fn the_report_lists_findings_adapters_and_limits() {
        let report = Findings {
            version: "1.2.3",
            findings: vec![processor(), memory()],
            adapters: vec![adapter(false)],
        };
        let style = Style {
            live: false,
            color: false,
        };
        let text = report.findings[0].line(style);
        assert!(text.starts_with("  good processor"), "{text}");
        let text = adapter_lines(&report.adapters[0], style);
        assert!(
            text.contains("--device gpu:0: Some Adapter (Vulkan, hardware, taken by --device auto)"),
            "{text}"
        );
        assert!(text.contains("max_storage_buffer_binding_size"), "{text}");
        assert!(text.contains("134,217,728"), "{text}");
        assert!(
            serde_json::to_string(&report)
                .unwrap()
                .contains(r#""verdict":"good""#)
        );
    }
}
