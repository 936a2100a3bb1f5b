//! The direct plan as real processes over real QUIC: everybody sends to everybody, one dies, another comes, and one
//! process alone makes the same bits of what they recorded.

use crate::common::*;
use annulus::store::run_dir::RunDir;
use annulus_core::Topology;
use std::path::Path;

#[test]
fn one_of_four_is_killed_and_another_comes() {
    let _turn = beside();
    let folder = Folder::new("direct");
    let mut first = Node::start("first", folder.join("first"), &LONG_DIRECT);
    let ticket = first.ticket();
    let mut nodes = vec![first];
    nodes.extend(["second", "third", "fourth"].map(|name| join(&folder, name, &ticket)));
    for node in &mut nodes {
        node.members(4);
        node.rounds(20);
    }
    let mut victim = nodes.remove(2);
    let (name, since) = (victim.peer(), victim.kill());
    for node in &mut nodes {
        node.goes_on_without(&name, since);
    }
    nodes.push(join(&folder, "newcomer", &ticket));
    for node in &mut nodes {
        node.members(4);
        node.rounds(20);
    }
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        assert_gapless(node);
        assert_audited(node);
    }
    let all: Vec<&Node> = nodes.iter().chain([&victim]).collect();
    assert!(assert_equal(&all) > 100);
    for node in &nodes {
        let dir = RunDir::open(Path::new(&node.dir)).expect("a run");
        assert_eq!(dir.manifest().topology, Some(Topology::Direct));
        assert_replays_exactly(node);
    }
}
