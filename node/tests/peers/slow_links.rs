//! What slow links ask for, as real processes: members that take local steps between exchanges, and members that compute
//! while sums travel. One dies, others come, and one process alone makes the same bits, each member's chain of moments with
//! it.

use crate::common::*;
use annulus::store::ledger_file::Entry;
use annulus::store::run_dir::RunDir;
use std::path::Path;

/// Lets members come and go; those that were there at the end, the first among them from the beginning.
fn come_and_go(folder: &Folder, settings: &[&str]) -> Vec<Node> {
    let train = [&LONG_DIRECT[..], settings].concat();
    let mut first = Node::start("first", folder.join("first"), &train);
    let ticket = first.ticket();
    first.rounds(10);
    let mut nodes = vec![first];
    nodes.extend(["second", "third"].map(|name| join(folder, name, &ticket)));
    for node in &mut nodes {
        node.members(3);
        node.rounds(20);
    }
    let mut victim = nodes.remove(1);
    let (name, since) = (victim.peer(), victim.kill());
    for node in &mut nodes {
        node.wait("a round without the killed one", |s| {
            s.at >= since && s.is("round") && !s.members().contains(&name)
        });
    }
    // With its name, but without what its device held.
    nodes.push(join(folder, "second", &ticket));
    nodes.push(join(folder, "fourth", &ticket));
    for node in &mut nodes {
        node.members(4);
        node.rounds(20);
    }
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        assert_gapless(node);
        assert_audited(node);
    }
    assert!(assert_equal(&nodes.iter().collect::<Vec<_>>()) > 20);
    nodes
}

fn assert_replays_from_the_beginning(nodes: &[Node]) {
    assert_replays_exactly(&nodes[0]);
    // A later member lacks the local state that the others went on from.
    let (good, text) = replay(&nodes[3]);
    // Where lines end depends on the round's number.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!good && words.contains("what only they know"), "{text}");
}

/// Most contributions have begun while the sums before them travelled.
fn assert_mostly_ahead(node: &Node) {
    let dir = RunDir::open(Path::new(&node.dir)).expect("a run");
    let (mut ahead, mut at_once) = (0, 0);
    for entry in dir.entries().expect("a ledger") {
        let Entry::Round { record, .. } = entry.expect("an entry") else {
            continue;
        };
        for header in record.headers.iter().filter(|h| h.weight > 0) {
            *(if header.ahead { &mut ahead } else { &mut at_once }) += 1;
        }
    }
    println!("{ahead} contributions were begun ahead, {at_once} not");
    assert!(ahead > at_once);
}

#[test]
fn a_replay_follows_the_local_steps_of_members_that_come_and_go() {
    let _turn = beside();
    let folder = Folder::new("local-steps");
    let settings = ["local_steps=6", "overlap=off", "outer_momentum=0.5", "clip=1"];
    let nodes = come_and_go(&folder, &settings);
    let dir = RunDir::open(Path::new(&nodes[0].dir)).expect("a run");
    let steps = dir
        .manifest()
        .local
        .as_ref()
        .and_then(|local| local.steps)
        .map(|steps| steps.get());
    assert_eq!(steps, Some(6));
    assert_replays_from_the_beginning(&nodes);
}

#[test]
fn members_that_take_first_steps_while_sums_travel_come_and_go() {
    let _turn = beside();
    let folder = Folder::new("first-steps");
    let nodes = come_and_go(&folder, &["local_steps=6", "clip=1"]);
    assert_mostly_ahead(&nodes[0]);
    assert_replays_from_the_beginning(&nodes);
}

#[test]
fn four_behind_slow_lines_are_seen_to_race_one() {
    let _turn = beside();
    let output = run(&["demo", "--slow-link", "--seconds", "3", "--plain"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("all four held the same bits"), "{text}");
    assert!(
        text.contains("Four together came to a loss of") || text.contains("too little time"),
        "{text}"
    );
    for who in ["four together", "one alone"] {
        let counts = |line: &str| line.contains(who) && line.contains("after ");
        assert!(text.lines().any(counts), "no windows of {who}: {text}");
    }
}

#[test]
fn the_bench_of_lines_tells_what_each_way_of_exchanging_loses() {
    let _turn = beside();
    // An exchange of all numbers as f32 takes a second of such a line, a batch a tenth of one.
    let line = [
        "--line",
        "5mbit/50ms",
        "--seconds",
        "3",
        "--until",
        "0.1",
        "--json",
    ];
    let output = run(&[&["bench", "wan"][..], &line].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let report: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let number = |run: usize, key: &str| report["runs"][run][key].as_f64().unwrap();
    assert_eq!(
        report["runs"][0]["seconds_to_loss"],
        serde_json::Value::Null,
        "{text}"
    );
    assert!(number(0, "bytes_per_sample") < 1.0, "{text}");
    for run in 1..3 {
        assert!(number(run, "samples_per_second") > 0.0, "{text}");
        assert!((0.0..1.0).contains(&number(run, "lost")), "{text}");
    }
    assert!(
        number(2, "bytes_per_sample") < number(1, "bytes_per_sample") / 4.0,
        "{text}"
    );
}
