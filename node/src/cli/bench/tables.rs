//! The measurements of `annulus bench` as tables for people.

use super::super::human;
use crate::bench::{allreduce, join, kernels, learning, memory, step};
use std::fmt::Write as _;

/// For people to read.
pub fn kernels_table(report: &kernels::KernelsReport) -> String {
    let mut table = Table(format!("operations on {}, forward and backward\n", report.device));
    table.row("best copy", rate(report.bytes_per_second));
    table.row(
        "best product",
        format!("{:.1} GFLOP/s", report.operations_per_second / 1e9),
    );
    let header = format!(
        "{:>9} {:>9} {:>9} {:>7} {:>6}",
        "forward", "both", "Burn's", "faster", "share"
    );
    table.row("", header);
    for row in &report.rows {
        let numbers = format!(
            "{:>6.2} ms {:>6.2} ms {:>6.2} ms {:>5.1} x {:>4.0} %",
            row.forward_seconds * 1e3,
            row.seconds * 1e3,
            row.stock_seconds * 1e3,
            row.stock_seconds / row.seconds,
            100.0 * row.share,
        );
        table.row(&row.name, numbers);
    }
    table.load(report.load);
    table.0
}

/// For people to read.
pub fn learning_table(report: &learning::LearningReport) -> String {
    let members = human::plural(report.members.into(), "member");
    let mut table = Table(format!("what {members} learn, by batches\n"));
    if let Some(batches) = report.batches {
        table.row("batches to the loss", format!("{batches:.0}"));
    }
    if let Some(last) = report.points.last() {
        table.row("held-out loss", format!("{:.4}", last.loss));
        table.row("batches", human::grouped(last.batches));
        table.row("rounds", human::grouped(last.rounds));
    }
    table.0
}

/// For people to read.
pub fn step_table(report: &step::StepReport) -> String {
    let [batch, tokens] = [report.batch, report.tokens];
    let mut table = Table(format!(
        "a training step of {batch} samples of {}\n",
        human::plural(tokens as u64, "token")
    ));
    let Some(ours) = report.contestants.first() else {
        return table.0;
    };
    for steps in &report.contestants {
        let _ = writeln!(table.0, "{}", steps.name);
        table.row(
            "first step, from the start, cold",
            milliseconds(steps.first_seconds),
        );
        table.row("median step", milliseconds(steps.seconds));
        table.row("fastest step", milliseconds(steps.fastest_seconds));
        if let Some(seconds) = steps.cpu_seconds {
            table.row("processor time of a step", milliseconds(seconds));
        }
        table.row(
            "samples x tokens a second",
            human::grouped(steps.per_second as u64),
        );
        table.row("launches", human::grouped(steps.launches as u64));
        if let Some(bytes) = steps.peak_bytes {
            table.row("most memory", human::bytes(bytes as f64));
        }
        if steps.name != ours.name {
            table.row(
                "annulus is faster",
                format!("{:.2} times", steps.seconds / ours.seconds),
            );
            if let (Some(theirs), Some(ours)) = (steps.cpu_seconds, ours.cpu_seconds) {
                table.row("... by processor time", format!("{:.2} times", theirs / ours));
            }
            table.row(
                "... at the first step",
                format!("{:.1} times", steps.first_seconds / ours.first_seconds),
            );
        }
    }
    table.load(report.load);
    table.0
}

/// Rows of a name and its value.
#[derive(Default)]
struct Table(String);

impl Table {
    fn row(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "  {name:<34} {value}");
    }

    fn load(&mut self, load: [Option<f64>; 2]) {
        if let [Some(before), Some(after)] = load {
            self.row(
                "load average, before and after",
                format!("{before:.1}, {after:.1}"),
            );
        }
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

fn rate(bytes_per_s: f64) -> String {
    format!("{:.2} GB/s", bytes_per_s / 1e9)
}

/// For people to read.
pub fn allreduce_table(report: &allreduce::AllreduceReport) -> String {
    let mut table = Table(format!(
        "all-reduce of {} of f32 as {}, {}, over {}, pieces of {} elements\n",
        human::bytes(report.vector_bytes as f64),
        report.codec,
        report.topology,
        human::plural(report.peers.into(), "peer"),
        human::grouped(report.piece.get().into()),
    ));
    table.row(
        "rounds (left out)",
        format!("{} ({})", report.rounds, report.left_out),
    );
    table.row("median", milliseconds(report.median_seconds));
    table.row(
        "fastest, slowest",
        format!(
            "{}, {}",
            milliseconds(report.min_seconds),
            milliseconds(report.max_seconds)
        ),
    );
    table.row("vector bytes over median", rate(report.bytes_per_second));
    table.row("sent per peer and round", human::bytes(report.sent_per_peer));
    table.row(
        "processor time per peer and round",
        milliseconds(report.cpu_seconds_per_peer),
    );
    table.row("commit, not in the median", milliseconds(report.commit_seconds));
    if let Some(bound) = &report.bound {
        bound_rows(&mut table, bound, report.cores);
    }
    table.load(report.load);
    table.0
}

fn bound_rows(table: &mut Table, bound: &allreduce::Bound, cores: usize) {
    match &bound.of {
        allreduce::BoundOf::Network { bits_per_s } => table.row(
            "bound",
            format!(
                "{} at {} Mbit/s per host",
                milliseconds(bound.seconds),
                bits_per_s / 1e6
            ),
        ),
        allreduce::BoundOf::Processor {
            rates,
            seal_and_open_seconds,
            send_and_receive_seconds,
            add_seconds,
        } => {
            let part = |seconds: f64, bytes_per_s: f64| {
                format!("{} (at {})", milliseconds(seconds), rate(bytes_per_s))
            };
            table.row("for all peers, at least", "");
            table.row(
                "  seal and open packets",
                part(*seal_and_open_seconds, rates.seal_and_open),
            );
            table.row(
                "  send and receive datagrams",
                part(*send_and_receive_seconds, rates.send_and_receive),
            );
            table.row("  add, encode, decode", part(*add_seconds, rates.hop));
            table.row(
                "bound",
                format!(
                    "{} on {}",
                    milliseconds(bound.seconds),
                    human::plural(cores as u64, "core")
                ),
            );
            table.row("memory copies, for comparison", rate(rates.copy));
        }
    }
    table.row("reached", human::percent(bound.reached, 0));
}

/// For people to read.
pub fn join_table(report: &join::JoinReport) -> String {
    let mut table = Table(format!(
        "a newcomer joins {} with a state of {}, contributions take {} ms\n",
        human::plural(report.members.into(), "member"),
        human::bytes(report.state_bytes as f64),
        report.compute_ms,
    ));
    let rounds = |count: usize, median: f64| format!("{} ({count} rounds)", milliseconds(median));
    table.row(
        "median round before",
        rounds(report.rounds_before, report.median_before_seconds),
    );
    table.row("longest round before", milliseconds(report.max_before_seconds));
    table.row(
        "median round while it joins",
        rounds(report.rounds_during, report.median_during_seconds),
    );
    table.row(
        "longest round while it joins",
        milliseconds(report.max_during_seconds),
    );
    table.row("longest over median before", format!("{:.2}", report.ratio));
    table.row(
        "median round after",
        rounds(report.rounds_after, report.median_after_seconds),
    );
    table.row("time to join", format!("{:.2} s", report.join_seconds));
    table.row("received to join", human::bytes(report.received_bytes as f64));
    table.load(report.load);
    table.0
}

/// For people to read.
pub fn memory_table(report: &memory::MemoryReport) -> String {
    let mut table = Table(format!(
        "{:<30} {:>10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "resident memory of", "parameters", "rounds", "early", "late", "peak", "allowed", "keeps", "fetched"
    ));
    for peer in &report.peers {
        let bytes = |bytes: u64| human::bytes(bytes as f64);
        let _ = writeln!(
            table.0,
            "{:<30} {:>10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            peer.role,
            bytes(peer.parameter_bytes),
            human::grouped(peer.rounds),
            bytes(peer.early_bytes),
            bytes(peer.late_bytes),
            bytes(peer.peak_bytes),
            bytes(peer.allowed_bytes),
            format!("{} %", (100 * peer.kept[0]).div_ceil(peer.kept[1].max(1))),
            bytes(peer.fetched_bytes)
        );
    }
    if let Some(peer) = report.peers.iter().rfind(|peer| peer.round_s > 0.0) {
        table.row(
            "a round with it, median of a member",
            human::duration(peer.round_s),
        );
    }
    table.row(
        "all within 8 x parameters + 300 MB",
        if report.within { "yes" } else { "no" },
    );
    table.load(report.load);
    table.0
}
