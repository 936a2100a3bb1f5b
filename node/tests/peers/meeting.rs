//! Peers that meet without a person: the same command on every machine, in any order, at once, and again after all have
//! stopped.

use crate::common::*;
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];

/// A peer that is started in a folder where all meet, as the others are.
fn start(folder: &Folder, at: usize, settings: &[&str]) -> Node {
    let shared = [
        "train", "--task", "digits", "--device", "cpu", "--meet", "file:run",
    ];
    let args = [
        &shared[..],
        &["train=500", "test=100", "checkpoint_every=50"],
        settings,
    ]
    .concat();
    Node::start_as(NAMES[at], folder.join(NAMES[at]), &folder.0, &args)
}

/// One that outlasts its test.
fn start_long(folder: &Folder, at: usize) -> Node {
    start(folder, at, &["rounds=1000000"])
}

fn leave(mut nodes: Vec<Node>) {
    for node in &mut nodes {
        node.signal("-TERM");
    }
    for node in &mut nodes {
        assert_eq!(node.end().code(), Some(LEFT), "{}: {}", node.name, node.errors());
    }
}

/// Three come in the same moment: one run, of all three.
fn found_at_once(times: usize) {
    let _turn = beside();
    for time in 0..times {
        let folder = Folder::new("at-once");
        let mut nodes: Vec<Node> = (0..3).map(|at| start_long(&folder, at)).collect();
        let mut runs = BTreeSet::new();
        for node in &mut nodes {
            runs.insert(node.ready().event["run"].to_string());
            node.members(3);
        }
        assert_eq!(runs.len(), 1, "{time}: {runs:?}");
        leave(nodes);
    }
}

#[test]
fn three_that_come_at_once_make_one_run() {
    found_at_once(5);
}

#[test]
#[ignore = "the same for minutes"]
fn three_that_come_at_once_make_one_run_fifty_times() {
    found_at_once(50);
}

#[test]
fn after_a_full_stop_whoever_is_furthest_goes_on() {
    let _turn = beside();
    let folder = Folder::new("full-stop");
    let mut nodes: Vec<Node> = (0..2).map(|at| start_long(&folder, at)).collect();
    let names: BTreeSet<String> = nodes.iter_mut().map(Node::peer).collect();
    nodes.iter_mut().for_each(|node| drop(node.members(2)));
    nodes.iter_mut().for_each(|node| drop(node.rounds(120)));
    // One is left behind.
    nodes[1].kill();
    nodes[0].rounds(120);
    nodes[0].kill();
    let last = nodes[0]
        .log()
        .iter()
        .rfind(|s| s.is("round"))
        .map_or(0, Seen::round);
    // A machine that has never been in the run does not begin another one.
    let mut newcomer = start(&folder, 2, &["rounds=1000000", "--out", "elsewhere"]);
    newcomer.wait("that it waits", |s| {
        s.is("warning")
            && s.event["message"]
                .to_string()
                .contains("none of its members is there")
    });
    // Folders are taken as they are free: whose state is the furthest may be anybody's.
    let mut nodes: Vec<Node> = (0..2).map(|at| start_long(&folder, at)).collect();
    let again: BTreeSet<String> = nodes.iter_mut().map(Node::peer).collect();
    assert_eq!(names, again);
    newcomer.members(3);
    nodes.push(newcomer);
    for node in &mut nodes {
        let together = node.members(3).round();
        assert!(together > last - 50, "{together} {last}");
    }
    leave(nodes);
}

#[test]
fn all_end_with_the_run_and_who_comes_too_late_too() {
    let _turn = beside();
    let folder = Folder::new("to-the-end");
    let short = |at| start(&folder, at, &["rounds=200"]);
    let mut nodes: Vec<Node> = (0..3).map(short).collect();
    for node in &mut nodes {
        assert_eq!(node.end().code(), Some(0), "{}: {}", node.name, node.errors());
    }
    // The same again: three of them have the result, the fourth learns that there is one.
    let mut nodes: Vec<Node> = (0..4).map(short).collect();
    for node in &mut nodes {
        assert_eq!(node.end().code(), Some(0), "{}: {}", node.name, node.errors());
    }
    let told = |node: &Node| {
        node.log()
            .iter()
            .any(|s| s.event.to_string().contains("the run is finished"))
    };
    assert_eq!(nodes.iter().filter(|node| told(node)).count(), 1);
}

#[test]
fn another_command_is_told() {
    let _turn = beside();
    let folder = Folder::new("other-settings");
    let mut first = start_long(&folder, 0);
    first.rounds(1);
    let mut other = start(&folder, 1, &["rounds=1000000", "lr=0.5"]);
    assert_eq!(other.end().code(), Some(1));
    assert!(other.errors().contains("the same command"), "{}", other.errors());
    // A ticket is what the file is: by hand it is good as well.
    let ticket = format!("@{}", folder.join("run"));
    let mut third = Node::start(
        "third",
        folder.join("by-hand"),
        &["join", &ticket, "--device", "cpu"],
    );
    third.members(2);
    leave(vec![first, third]);
}

/// How a peer that was asked to leave ended.
fn asked(node: &mut Node, signals: &[&str]) -> ExitStatus {
    for (times, signal) in signals.iter().enumerate() {
        if times > 0 {
            // Two that come while it has no time to look are one.
            node.wait("that it leaves", |s| {
                s.is("warning") && s.event["message"].to_string().contains("leaving")
            });
        }
        node.signal(signal);
    }
    node.end()
}

#[test]
fn who_is_asked_to_leave_waits_for_no_evaluation_of_what_is_over() {
    let _turn = beside();
    let folder = Folder::new("last-evaluation");
    let settings = ["preset=small", "rounds=1", "batch=1"];
    let train = ["train", "--task", "gpt", "--device", "cpu", "--no-page"];
    let args = [&train[..], &settings].concat();
    let mut node = Node::start("evaluates", folder.join("evaluates"), &args);
    node.rounds(1);
    // It takes many seconds.
    std::thread::sleep(Duration::from_millis(500));
    node.signal("-TERM");
    node.wait("that it is left out", |s| {
        s.event["message"]
            .to_string()
            .contains("without the last evaluation")
    });
    assert!(node.end().success(), "the run is over: {}", node.errors());
}

#[test]
fn who_is_asked_to_leave_says_so_by_its_exit_code() {
    let _turn = beside();
    let folder = Folder::new("signals");
    for (at, signal) in ["-INT", "-TERM", "-USR1"].into_iter().enumerate() {
        let mut node = start_long(&folder, at);
        node.rounds(2);
        let status = asked(&mut node, &[signal]);
        assert_eq!(status.code(), Some(LEFT), "{signal}: {}", node.errors());
    }
    // Even while it has nothing yet, and nobody to ask.
    let mut waits = start(&folder, 3, &["rounds=1000000"]);
    waits.rounds(1);
    waits.kill();
    std::fs::remove_dir_all(folder.join("runs")).expect("removed");
    let mut waits = start(&folder, 3, &["rounds=1000000"]);
    waits.wait("that it waits", |s| s.is("warning"));
    assert_eq!(asked(&mut waits, &["-TERM"]).code(), Some(LEFT));
}

#[test]
fn leaving_takes_no_longer_than_it_may() {
    let _turn = beside();
    let folder = Folder::new("leave-within");
    // A round takes longer than a test waits for an end, and the device does not say how far it is.
    let slow = ["--sample-takes", "1000", "batch=400", "rounds=1000"];
    let mut node = start(&folder, 0, &slow);
    node.ready();
    assert_eq!(
        asked(&mut node, &["-TERM", "-TERM"]).code(),
        Some(LEFT),
        "{}",
        node.errors()
    );
    let mut node = start(&folder, 1, &[&slow[..], &["--leave-within", "2s"]].concat());
    node.ready();
    assert_eq!(
        asked(&mut node, &["-TERM"]).code(),
        Some(LEFT),
        "{}",
        node.errors()
    );
    assert!(!node.log().iter().any(|seen| seen.is("round")));
}

#[test]
fn a_long_round_is_told_of_and_left_at_once() {
    let _turn = beside();
    let folder = Folder::new("long-round");
    let args = [
        "train",
        "--task",
        "gpt",
        "--device",
        "cpu",
        "preset=small",
        "batch=39000",
        "rounds=3",
    ];
    let mut node = Node::start("first", folder.join("first"), &args);
    let told = node.wait("how far its first round is", |s| {
        s.is("computing") && s.event["done"].as_u64().is_some()
    });
    assert_eq!(
        (&told.event["round"], &told.event["samples"]),
        (&1.into(), &39_000.into())
    );
    // To wait for its end would be in vain.
    assert_eq!(
        asked(&mut node, &["-TERM"]).code(),
        Some(LEFT),
        "{}",
        node.errors()
    );
}

#[test]
fn a_meeting_place_that_cannot_be_resolved_is_told() {
    let _turn = beside();
    let folder = Folder::new("unresolved");
    let secret = folder.join("secret");
    std::fs::write(&secret, "not so secret a secret").expect("written");
    let args = [
        "train",
        "--task",
        "digits",
        "--device",
        "cpu",
        "rounds=1000000",
        "train=500",
        "test=100",
        "--meet",
        "host:no..name:4433",
        "--secret-file",
        &secret,
    ];
    let mut node = Node::start("first", folder.join("first"), &args);
    node.wait("that the name cannot be resolved", |s| {
        s.is("warning") && s.event["message"].to_string().contains("no..name:4433")
    });
    assert!(node.leave(), "{}", node.errors());
}

/// A port that is free at several of this machine's addresses.
fn port() -> u16 {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
    socket.local_addr().expect("bound").port()
}

/// A peer as if on a machine of its own, whose address is 127.0.0.1, 127.0.0.2 and so on. It looks for others at these.
fn start_by_names(folder: &Folder, at: usize, port: u16, others: &[usize]) -> Node {
    let names: Vec<String> = others
        .iter()
        .map(|n| format!("127.0.0.{}:{port}", n + 1))
        .collect();
    let (meet, listen) = (
        format!("dns:{}", names.join(",")),
        format!("127.0.0.{}:0", at + 1),
    );
    let secret = folder.join("secret");
    // Only once: to rewrite it for each peer would empty it for a moment, while earlier peers may be reading it.
    if !Path::new(&secret).exists() {
        std::fs::write(&secret, "not so secret a secret").expect("written");
    }
    let args = [
        "train",
        "--task",
        "digits",
        "--device",
        "cpu",
        "--meet",
        &meet,
        "--secret-file",
        &secret,
        "--listen",
        &listen,
        "train=500",
        "test=100",
        "rounds=1000000",
        // A lone member makes thousands of rounds a second. If it saved each thousandth, the disk would keep newcomers
        // waiting.
        "checkpoint_every=100000",
    ];
    Node::start(NAMES[at], folder.join(NAMES[at]), &args)
}

#[test]
fn those_who_know_names_and_a_secret_make_one_run() {
    let _turn = beside();
    let (folder, port) = (Folder::new("names"), port());
    let come = |at| start_by_names(&folder, at, port, &[0, 1, 2]);
    let mut nodes: Vec<Node> = (0..3).map(come).collect();
    let runs: BTreeSet<_> = nodes
        .iter_mut()
        .map(|node| node.ready().event["run"].to_string())
        .collect();
    assert_eq!(runs.len(), 1);
    nodes.iter_mut().for_each(|node| drop(node.members(3)));
    nodes[0].rounds(20);
    for node in &mut nodes {
        node.kill();
    }
    // Again, from what each has.
    let last = nodes[1]
        .log()
        .iter()
        .rfind(|s| s.is("checkpoint") || s.is("round"))
        .map_or(0, Seen::round);
    let mut nodes: Vec<Node> = (0..3).map(come).collect();
    nodes.iter_mut().for_each(|node| drop(node.members(3)));
    println!("round {last} before, {} after", nodes[0].members(3).round());
    leave(nodes);
}

#[test]
fn those_who_have_founded_one_run_apart_become_one() {
    let _turn = beside();
    let (folder, port) = (Folder::new("apart"), port());
    let mut nodes = vec![
        start_by_names(&folder, 0, port, &[0]),
        start_by_names(&folder, 1, port, &[1]),
    ];
    for node in &mut nodes {
        node.rounds(20);
        assert_eq!(node.members(1).members().len(), 1);
    }
    nodes.push(start_by_names(&folder, 2, port, &[0, 1]));
    for node in &mut nodes {
        node.members(3);
    }
    leave(nodes);
    for node in NAMES[..3].iter().map(|name| folder.join(name)) {
        assert_eq!(inspect(&node)["audit"]["sound"], true);
    }
}
