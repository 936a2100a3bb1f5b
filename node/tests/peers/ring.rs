//! The ring as real processes over real QUIC: peers die, freeze, come and go; nothing committed is lost.

use crate::common::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// A run that outlasts its test.
const LONG: [&str; 7] = [
    "train",
    "--task",
    "digits",
    "--device",
    "cpu",
    "rounds=1000000",
    "seed=1",
];

fn ring(folder: &Folder, peers: usize) -> Vec<Node> {
    const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];
    let mut nodes = vec![Node::start(NAMES[0], folder.join(NAMES[0]), &LONG)];
    let ticket = nodes[0].ticket();
    for name in &NAMES[1..peers] {
        nodes.push(Node::start(
            name,
            folder.join(name),
            &["join", &ticket, "--device", "cpu"],
        ));
    }
    for node in &mut nodes {
        node.members(peers);
        node.rounds(5);
    }
    nodes
}

/// What a node's page answers.
fn get(node: &mut Node, path: &str) -> (u16, String) {
    let url = node.url();
    let address = url
        .strip_prefix("http://")
        .expect("plain")
        .split('/')
        .next()
        .expect("an address");
    let mut stream = TcpStream::connect(address.replace("localhost", "127.0.0.1")).expect("a server");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.expect("a code"), body.to_owned())
}

#[test]
fn the_page_shows_the_ring_as_the_log_does() {
    let _turn = beside();
    let folder = Folder::new("page");
    let mut nodes = ring(&folder, 2);
    let names: Vec<String> = nodes.iter_mut().map(Node::peer).collect();
    for node in &mut nodes {
        let (code, text) = get(node, "/status");
        let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((code, &status["phase"]), (200, &"training".into()));
        let peers = status["peers"].as_array().expect("peers");
        let members: Vec<_> = peers.iter().filter(|peer| peer["member"] == true).collect();
        assert_eq!(members.len(), 2, "{text}");
        assert!(
            members
                .iter()
                .all(|member| names.iter().any(|name| member["peer"] == *name))
        );
        let round = status["round"].as_u64().expect("a round");
        let seen = node.wait("that round", |s| s.is("round") && s.round() == round);
        assert_eq!(status["digest"], seen.event["digest"]);
        assert_eq!(status["counted"], seen.event["counted"]);
        let (_, text) = get(node, "/metrics");
        assert!(text.contains("\nannulus_members 2\n"), "{text}");
        let (_, text) = get(node, "/peer.json");
        let about: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(about["peer"], node.peer());
        assert_eq!(about["certificates"].as_array().map(Vec::len), Some(2));
        let ticket = node.ticket();
        assert!(![text, get(node, "/").1].concat().contains(&ticket));
        assert!(!node.ready().event.to_string().contains(&ticket));
    }
    assert_sound(&mut nodes);
}

fn assert_sound(nodes: &mut [Node]) {
    for node in nodes.iter_mut() {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
    }
    assert!(assert_equal(&nodes.iter().collect::<Vec<_>>()) > 10);
    for node in nodes {
        assert_gapless(node);
        assert_audited(node);
    }
}

#[test]
fn kill_one_of_four() {
    let _turn = beside();
    let folder = Folder::new("kill");
    let mut nodes = ring(&folder, 4);
    let mut victim = nodes.remove(2);
    let name = victim.peer();
    let since = victim.kill();
    for node in &mut nodes {
        node.goes_on_without(&name, since);
        node.rounds(20);
    }
    assert_sound(&mut nodes);
}

#[test]
fn kill_the_first() {
    let _turn = beside();
    let folder = Folder::new("first");
    let mut nodes = ring(&folder, 3);
    let mut victim = nodes.remove(0);
    let name = victim.peer();
    let since = victim.kill();
    for node in &mut nodes {
        node.goes_on_without(&name, since);
    }
    // Any member's ticket will do.
    let ticket = nodes[0].ticket();
    let newcomer = Node::start(
        "newcomer",
        folder.join("newcomer"),
        &["join", &ticket, "--device", "cpu"],
    );
    nodes.push(newcomer);
    for node in &mut nodes {
        node.members(3);
        node.rounds(20);
    }
    assert_sound(&mut nodes);
}

#[test]
fn a_frozen_member_comes_back_after_its_links_have_ended() {
    let _turn = beside();
    let folder = Folder::new("freeze");
    let mut nodes = ring(&folder, 4);
    let mut frozen = nodes.remove(1);
    let name = frozen.peer();
    frozen.signal("-STOP");
    let since = Instant::now();
    for node in &mut nodes {
        node.goes_on_without(&name, since);
    }
    std::thread::sleep(SILENT);
    let before = frozen.seen();
    frozen.signal("-CONT");
    frozen.wait_from(before, "its way back into a round of four", |s| {
        s.is("round") && s.members().len() == 4
    });
    nodes.push(frozen);
    for node in &mut nodes {
        node.members(4);
        node.rounds(20);
    }
    // What the frozen one slept through it never committed.
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
    }
    for node in &mut nodes {
        assert_gapless(node);
        assert_audited(node);
    }
    let all: Vec<&Node> = nodes.iter().collect();
    assert!(assert_equal(&all) > 10);
}

#[test]
fn join_a_running_one_and_leave_it() {
    let _turn = beside();
    let folder = Folder::new("join");
    let mut nodes = ring(&folder, 2);
    let ticket = nodes[1].ticket();
    let mut newcomer = Node::start(
        "newcomer",
        folder.join("newcomer"),
        &["join", &ticket, "--device", "cpu"],
    );
    newcomer.members(3);
    newcomer.rounds(20);
    assert!(newcomer.leave(), "{}", newcomer.errors());
    for node in &mut nodes {
        node.members(2);
        node.rounds(20);
        let left = node.wait("the goodbye", |s| s.is("member") && s.event["change"] == "left");
        assert_eq!(left.event["peer"], newcomer.ready().event["peer"]);
        // Nobody was taken for dead.
        let failed: Vec<Seen> = node
            .log()
            .into_iter()
            .filter(|s| s.event["change"] == "failed")
            .collect();
        assert!(failed.is_empty(), "{}: {failed:?}", node.name);
    }
    nodes.push(newcomer);
    let all: Vec<&Node> = nodes.iter().collect();
    assert!(assert_equal(&all) > 20);
    nodes.pop();
    assert_sound(&mut nodes);
}

#[test]
fn a_trace_tells_what_became_of_a_frozen_peer() {
    let _turn = beside();
    let folder = Folder::new("trace");
    let mut first = Node::start(
        "first",
        folder.join("first"),
        &[&LONG[..], &["--log", "debug"]].concat(),
    );
    let ticket = first.ticket();
    let mut frozen = Node::start(
        "frozen",
        folder.join("frozen"),
        &["join", &ticket, "--device", "cpu"],
    );
    let name = frozen.peer();
    first.members(2);
    frozen.signal("-STOP");
    first.wait("going on alone", |s| {
        s.is("member") && s.event["change"] == "failed"
    });
    first.members(1);
    frozen.kill();
    assert!(first.leave());
    let trace = first.errors();
    let at = |words: &str| {
        trace
            .lines()
            .position(|line| line.contains(words))
            .unwrap_or_else(|| panic!("{words}:\n{trace}"))
    };
    let short = &name[..8];
    let order = [
        at(&format!("link up peer={short}")),
        at("sends probe"),
        at(&format!("Member {{ peer: {short}, change: Failed")),
    ];
    assert!(order.is_sorted(), "{order:?}\n{trace}");
    at("attempt begins");
    at("committed round");
    // Nobody asked the other for one.
    assert!(!frozen.errors().contains("attempt begins"), "{}", frozen.errors());
}
