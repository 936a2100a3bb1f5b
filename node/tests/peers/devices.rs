//! What one member's device costs the others, with real processes whose devices sleep or yield nonsense.

use crate::common::*;
use std::path::Path;
use std::process::Command;

/// Microseconds for a sample: what sleeps costs two cores nothing.
const USUAL: u64 = 500;

/// A peer with such a device.
fn start(name: &'static str, folder: &Folder, sleep_us: u64, nan: bool, args: &[&str]) -> Node {
    let program = Path::new(env!("CARGO_BIN_EXE_annulus")).with_file_name("examples/faulty_task");
    let mut command = Command::new(program);
    command.env("FAULTY_SLEEP_US", sleep_us.to_string());
    if nan {
        command.env("FAULTY_NAN", "1");
    }
    let dir = folder.join(name);
    command.args(args).args(["--device", "cpu", "--out", &dir]);
    Node::spawn(name, dir, command)
}

fn three(folder: &Folder) -> Vec<Node> {
    let settings = [
        "train",
        "rounds=1000000",
        "batch=240",
        "optimizer=sgd",
        "lr=0.0001",
        "seed=1",
        // A trial of rounds of milliseconds may fail by chance.
        "stand_aside=off",
    ];
    let mut nodes = vec![start("first", folder, USUAL, false, &settings)];
    let ticket = nodes[0].ticket();
    for name in ["second", "third"] {
        nodes.push(start(name, folder, USUAL, false, &["join", &ticket]));
    }
    for node in &mut nodes {
        node.members(3);
        node.rounds(20);
    }
    nodes
}

#[test]
fn a_device_that_is_a_thousand_times_slower_stands_by() {
    let _turn = beside();
    let folder = Folder::new("slow");
    let mut nodes = three(&folder);
    let ticket = nodes[0].ticket();
    let mut slow = start("slow", &folder, 1000 * USUAL, false, &["join", &ticket]);
    let name = slow.peer();
    let from = nodes[0].members(4).round();
    nodes[0].rounds(100);
    // Where each member has a sample in each round, all wait for the slow one in each.
    let log = nodes[0].log();
    let rounds: Vec<&Seen> = log
        .iter()
        .filter(|seen| seen.is("round") && seen.round() >= from)
        .collect();
    let waits = |seen: &&&Seen| {
        let members = seen.event["members"].as_array().expect("members");
        members
            .iter()
            .any(|member| member["peer"] == *name && member["weight"] != 0)
    };
    let waited = rounds.iter().filter(waits).count();
    println!(
        "{waited} of {} rounds had samples of one that is 1,000 times slower",
        rounds.len()
    );
    assert!(10 * waited < rounds.len());
    assert_eq!(
        rounds.last().expect("a round").members().len(),
        4,
        "it is still a member"
    );
    nodes.push(slow);
    assert!(assert_equal(&nodes.iter().collect::<Vec<_>>()) > 10);
}

#[test]
fn a_device_that_yields_no_number_skips_no_sample() {
    let _turn = beside();
    let folder = Folder::new("nan");
    let mut nodes = three(&folder);
    let ticket = nodes[0].ticket();
    let mut broken = start("broken", &folder, USUAL / 10, true, &["join", &ticket]);
    broken.members(4);
    let before = nodes[0].rounds(1).event["counted"].as_u64().expect("a count");
    let after = nodes[0].rounds(60).event["counted"].as_u64().expect("a count");
    println!("{} samples beside a device that yields no number", after - before);
    // It goes first: alone it would say that nothing is finite.
    nodes.insert(0, broken);
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        let report = inspect(&node.dir);
        assert_eq!(report["audit"]["sound"], true, "{}: {report}", node.name);
        assert_eq!(report["skipped"], 0, "{}: {report}", node.name);
    }
}
