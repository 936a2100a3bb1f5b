//! What one member's device costs the others, with real processes whose devices sleep or yield nonsense.

mod common;

use common::*;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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

/// Samples per second over so long.
fn rate(node: &mut Node, time: Duration) -> f64 {
    let counted = |node: &Node| {
        let log = node.log();
        let last = log.iter().rfind(|seen| seen.is("round")).expect("a round");
        (last.at, last.event["counted"].as_u64().expect("a count"))
    };
    let (from, before) = counted(node);
    std::thread::sleep(time);
    let (to, after) = counted(node);
    (after - before) as f64 / (to - from).as_secs_f64()
}

#[test]
fn a_device_that_is_a_thousand_times_slower_stands_by() {
    let _alone = alone();
    let folder = Folder::new("slow");
    let mut nodes = three(&folder);
    let alone = rate(&mut nodes[0], Duration::from_secs(6));
    let ticket = nodes[0].ticket();
    let mut slow = start("slow", &folder, 1000 * USUAL, false, &["join", &ticket]);
    slow.members(4);
    let together = rate(&mut nodes[0], Duration::from_secs(6));
    println!(
        "{alone:.0} samples/s of three; {together:.0} with a fourth that is 1,000 times slower: {:.2}",
        together / alone
    );
    // It was 0.02 when each member had a sample in each round.
    assert!(together > 0.5 * alone);
    assert!(nodes[0].members(4).members().len() == 4, "it is still a member");
    nodes.push(slow);
    assert!(assert_equal(&nodes.iter().collect::<Vec<_>>()) > 10);
}

#[test]
fn a_device_that_yields_no_number_skips_no_sample() {
    let _alone = alone();
    let folder = Folder::new("nan");
    let mut nodes = three(&folder);
    let ticket = nodes[0].ticket();
    let mut broken = start("broken", &folder, USUAL / 10, true, &["join", &ticket]);
    broken.members(4);
    let began = Instant::now();
    let before = nodes[0].rounds(1).event["counted"].as_u64().expect("a count");
    let after = nodes[0].rounds(60).event["counted"].as_u64().expect("a count");
    println!(
        "{} samples in {:.1} s beside a device that yields no number",
        after - before,
        began.elapsed().as_secs_f64()
    );
    // It goes first: alone it would say that nothing is finite.
    nodes.insert(0, broken);
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        let report = inspect(&node.dir);
        assert_eq!(report["audit"]["sound"], true, "{}: {report}", node.name);
        assert_eq!(report["skipped"], 0, "{}: {report}", node.name);
    }
}
