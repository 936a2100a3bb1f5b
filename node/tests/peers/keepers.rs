//! Optimizer-parallel training with real processes. Two members hold each part of the moments. One is killed, and a new
//! one fetches what is missing. Replay by one process gives the same bits.

use crate::common::*;
use annulus::store::run_dir::RunDir;
use std::path::Path;

/// Bytes of the optimizer's vectors in a folder's newest checkpoint, and of all of them together.
fn kept(node: &Node) -> (u64, u64) {
    let dir = RunDir::open(Path::new(&node.dir)).expect("a run");
    let run = dir.load_latest().expect("a checkpoint");
    (run.state.kept.bytes() as u64, dir.manifest().moments_bytes())
}

#[test]
fn four_share_the_moments_one_is_killed_and_another_comes() {
    let _turn = beside();
    let folder = Folder::new("keepers");
    let settings: Vec<&str> = LONG_DIRECT
        .iter()
        .copied()
        .chain(["copies=2", "checkpoint_every=5", "clip=1"])
        .collect();
    let mut first = Node::start("first", folder.join("first"), &settings);
    let ticket = first.ticket();
    let mut nodes = vec![first];
    nodes.extend(["second", "third", "fourth"].map(|name| join(&folder, name, &ticket)));
    for node in &mut nodes {
        node.members(4);
        node.rounds(40);
    }
    let mut victim = nodes.remove(2);
    let (name, since) = (victim.peer(), victim.kill());
    for node in &mut nodes {
        node.wait("a round without the killed one", |s| {
            s.at >= since && s.is("round") && !s.members().contains(&name)
        });
    }
    nodes.push(join(&folder, "newcomer", &ticket));
    for node in &mut nodes {
        node.members(4);
        node.rounds(40);
    }
    // Each keeps what others leave behind.
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        assert_gapless(node);
        assert_audited(node);
    }
    // The others let a member leave only when they hold each part twice, and its ledger says so.
    let told = inspect(&nodes[0].dir)["keeps"].clone();
    let rows = told.as_array().expect("one for each member");
    let sum = |name: &str| {
        rows.iter()
            .map(|row| row[name].as_u64().expect("a number"))
            .sum::<u64>()
    };
    assert_eq!(rows.len(), 3, "{told}");
    assert!(3 * sum("parts") >= 2 * sum("of"), "{told}");
    // Of four each keeps a half.
    let (of_first, of_all) = kept(&nodes[0]);
    println!("{} keeps {of_first} of {of_all} bytes", nodes[0].name);
    assert!(
        3 * of_first > of_all && 3 * of_first < 2 * of_all,
        "{of_first} of {of_all}"
    );
    let all: Vec<&Node> = nodes.iter().chain([&victim]).collect();
    assert!(assert_equal(&all) > 100);
    assert_replays_exactly(&nodes[0]);
    // The last one to leave holds all parts, and goes on alone.
    let last = nodes.last().expect("four");
    let (kept, all) = kept(last);
    assert_eq!(kept, all);
    let resume = ["resume", &last.dir, "--device", "cpu"];
    let mut again = Node::start_as("again", last.dir.clone(), Path::new("."), &resume);
    again.rounds(10);
    assert!(again.leave(), "{}", again.errors());
    assert!(
        !again.errors().contains("no member here holds the optimizer"),
        "{}",
        again.errors()
    );
}
