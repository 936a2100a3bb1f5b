//! Peers that take only a part of their machine: how much, and that the ring goes on.

mod common;

use common::*;
use std::time::{Duration, Instant};

/// Seconds of processor time that a process has used.
fn processor_time(node: &Node) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("it runs");
    // The name may hold anything; it ends with the last bracket.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|n| n.parse::<u64>().expect("ticks"))
        .sum();
    // Linux tells it in hundredths everywhere.
    ticks as f64 / 100.0
}

/// A peer of two, one of which may compute for three tenths of the time of one core, and what part of that core it has used
/// in so long.
fn part_of_a_core(seconds: u64) -> f64 {
    let _alone = alone();
    let folder = Folder::new("power");
    let train = [
        "train",
        "--task",
        "digits",
        "--device",
        "cpu",
        "rounds=1000000",
        "batch=4000",
    ];
    let mut first = Node::start("first", folder.join("first"), &train);
    let ticket = first.ticket();
    let modest = [
        "join", &ticket, "--device", "cpu", "--power", "0.3", "--cores", "1",
    ];
    let mut second = Node::start("second", folder.join("second"), &modest);
    second.members(2);
    // Until its share is what it can do.
    second.rounds(10);
    let (begin, before, from) = (Instant::now(), processor_time(&second), second.seen());
    std::thread::sleep(Duration::from_secs(seconds));
    let part = (processor_time(&second) - before) / begin.elapsed().as_secs_f64();
    let name = second.peer();
    let weight = |seen: &Seen, ours: bool| -> u64 {
        let members = seen.event["members"].as_array().expect("members").iter();
        let of = members.filter(|m| (m["peer"] == *name) == ours);
        of.map(|m| m["weight"].as_u64().expect("a weight")).sum()
    };
    let log = second.log();
    let rounds: Vec<&Seen> = log[from..].iter().filter(|s| s.is("round")).collect();
    let (ours, theirs) = rounds.iter().fold((0, 0), |(a, b), seen| {
        (a + weight(seen, true), b + weight(seen, false))
    });
    println!(
        "{part:.3} of a core in {seconds} s, {} rounds, {ours} of {} samples",
        rounds.len(),
        ours + theirs
    );
    assert!(rounds.len() as u64 > seconds / 4, "the ring has stopped");
    assert!(
        ours > 0 && ours < theirs,
        "its share is {ours} of {}",
        ours + theirs
    );
    assert!(log[from..].iter().all(|s| !s.is("member")), "it was put out");
    for node in [&mut second, &mut first] {
        assert!(node.leave(), "{}", node.errors());
        assert_audited(node);
    }
    part
}

#[test]
fn who_may_take_three_tenths_takes_no_more() {
    let part = part_of_a_core(20);
    // Besides the device's there is the protocol's work.
    assert!((0.05..0.35).contains(&part), "{part}");
}
