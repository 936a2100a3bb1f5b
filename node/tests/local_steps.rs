//! Local steps as real processes: members step on their own between exchanges, one dies, another comes, and one process
//! alone makes the same bits, each member's chain of moments with it.

mod common;

use annulus::store::run_dir::RunDir;
use common::*;
use std::path::Path;

const CPU: [&str; 2] = ["--device", "cpu"];

/// A run that outlasts its test.
const LONG: [&str; 10] = [
    "train",
    "--task",
    "digits",
    "train=2000",
    "test=500",
    "rounds=1000000",
    "topology=direct",
    "local_steps=6",
    "outer_momentum=0.5",
    "clip=1",
];

fn join(folder: &Folder, name: &'static str, ticket: &str) -> Node {
    Node::start(name, folder.join(name), &[&["join", ticket][..], &CPU].concat())
}

fn replay(node: &Node) -> (bool, String) {
    let output = run(&["replay", &node.dir, "--json"]);
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn members_come_and_go_and_a_replay_follows_each_ones_steps() {
    let _alone = alone();
    let folder = Folder::new("local-steps");
    let mut first = Node::start("first", folder.join("first"), &[&LONG[..], &CPU].concat());
    let ticket = first.ticket();
    first.rounds(10);
    let mut nodes = vec![first];
    nodes.extend(["second", "third"].map(|name| join(&folder, name, &ticket)));
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
    // With its name, but what its optimizer held is gone.
    nodes.push(join(&folder, "second", &ticket));
    nodes.push(join(&folder, "fourth", &ticket));
    for node in &mut nodes {
        node.members(4);
        node.rounds(20);
    }
    for node in &mut nodes {
        assert!(node.leave().success(), "{}: {}", node.name, node.errors());
        assert_gapless(node);
        assert_audited(node);
    }
    assert!(assert_equal(&nodes.iter().collect::<Vec<_>>()) > 20);

    let dir = RunDir::open(Path::new(&nodes[0].dir)).expect("a run");
    let steps = dir.manifest().local.as_ref().map(|local| local.steps.get());
    assert_eq!(steps, Some(6));
    let (good, text) = replay(&nodes[0]);
    assert!(good && text.contains("\"verdict\":\"exact\""), "{text}");
    // Who came later does not have what the others' optimizers had come to.
    let (good, text) = replay(&nodes[3]);
    assert!(!good && text.contains("from the beginning"), "{text}");
}
