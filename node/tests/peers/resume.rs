//! Peers that come back: after a power cut, after a crash, by the same commands or by their folders alone. Each has the
//! name that it had, finds the others by itself, and loses at most what it had not saved.

use crate::common::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

/// Rounds between two checkpoints.
const INTERVAL: u64 = 50;

/// A run that outlasts its test.
const FOUND: [&str; 8] = [
    "train",
    "--task",
    "digits",
    "--device",
    "cpu",
    "rounds=1000000",
    "seed=1",
    "checkpoint_every=50",
];

const NAMES: [&str; 3] = ["first", "second", "third"];

/// The commands of a run of three, whose founder has printed this ticket.
fn command(at: usize, ticket: &str) -> Vec<&str> {
    match at {
        0 => FOUND.to_vec(),
        _ => vec!["join", ticket, "--device", "cpu", "checkpoint_every=50"],
    }
}

fn start(folder: &Folder, at: usize, ticket: &str) -> Node {
    Node::start(NAMES[at], folder.join(NAMES[at]), &command(at, ticket))
}

/// One that goes on with what is in its folder, of which nothing else is said.
fn resume(folder: &Folder, at: usize) -> Node {
    let dir = folder.join(NAMES[at]);
    Node::start_as(
        NAMES[at],
        dir.clone(),
        Path::new("."),
        &["resume", &dir, "--device", "cpu", "checkpoint_every=50"],
    )
}

/// A run of three, and the founder's ticket.
fn three(folder: &Folder) -> (Vec<Node>, String) {
    let mut nodes = vec![start(folder, 0, "")];
    let ticket = nodes[0].ticket();
    nodes.extend((1..3).map(|at| start(folder, at, &ticket)));
    for node in &mut nodes {
        node.members(3);
    }
    (nodes, ticket)
}

/// SIGKILL to all of them at once: none may learn of another's end. The last round that any of them committed, and their
/// names.
fn power_cut(mut nodes: Vec<Node>) -> (u64, Vec<String>) {
    let names: Vec<String> = nodes.iter_mut().map(Node::peer).collect();
    let pids: Vec<String> = nodes.iter().map(|node| node.pid().to_string()).collect();
    let done = Command::new("kill").arg("-KILL").args(&pids).status();
    assert!(done.expect("kill").success());
    for node in &mut nodes {
        node.kill();
    }
    let last = nodes.iter().flat_map(Node::log).filter(|s| s.is("round"));
    (last.map(|s| s.round()).max().expect("a round"), names)
}

#[test]
fn a_copy_of_a_folder_is_told_that_its_peer_takes_part_already_and_slows_nobody() {
    let _turn = beside();
    let folder = Folder::new("copied");
    let (mut nodes, _) = three(&folder);
    nodes[2].wait("a checkpoint", |s| s.is("round") && s.round() > 2 * INTERVAL);
    // It says so if a checkpoint went meanwhile, since the peer is at work.
    let copied = Command::new("cp")
        .args(["-a", &folder.join(NAMES[2]), &folder.join("copy")])
        .status();
    copied.expect("cp");
    let from: Vec<usize> = nodes.iter().map(Node::seen).collect();
    let dir = folder.join("copy");
    let mut copy = Node::start_as(
        "copy",
        dir.clone(),
        Path::new("."),
        &["resume", &dir, "--device", "cpu"],
    );
    assert_eq!(copy.end().code(), Some(77));
    let errors = copy.errors();
    // Where lines end depends on the terminal.
    let errors = errors.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        errors.contains("a peer with this identity takes part already"),
        "{errors}"
    );
    assert!(errors.contains("annulus join TICKET"), "{errors}");
    for (node, from) in nodes.iter_mut().zip(from) {
        node.rounds(20);
        let log = node.log();
        let trouble = |s: &&Seen| s.is("member") && s.event["change"] != "joined";
        assert_eq!(log[from..].iter().filter(trouble).count(), 0, "{}", node.name);
    }
}

/// The newest checkpoint in any folder.
fn saved(folder: &Folder) -> u64 {
    let files = NAMES.iter().flat_map(|name| {
        let dir = folder.0.join(name).join("checkpoints");
        std::fs::read_dir(dir).into_iter().flatten().flatten()
    });
    let rounds = files.filter_map(|file| {
        let name = file.file_name().into_string().ok()?;
        let round = name.strip_prefix("round-")?.strip_suffix(".safetensors")?;
        round.parse().ok()
    });
    rounds.max().expect("a checkpoint")
}

/// All have the names that they had, work together, and have begun where the best of them had saved.
fn assert_together(nodes: &mut [Node], names: &[String], saved: u64) {
    for (node, name) in nodes.iter_mut().zip(names) {
        assert_eq!(node.peer(), *name, "{} has another name", node.name);
    }
    let mut firsts = Vec::new();
    for node in nodes.iter_mut() {
        let together = node.members(names.len());
        let members: BTreeSet<String> = together.members().into_iter().collect();
        assert_eq!(members, names.iter().cloned().collect());
        assert!(together.round() > saved, "{} lost what was saved", node.name);
        firsts.push(node.wait("a round", |s| s.is("round")).round());
    }
    assert!(firsts.contains(&(saved + 1)), "{firsts:?}, saved {saved}");
}

#[test]
fn after_a_power_cut_all_meet_again_by_the_same_commands() {
    let _turn = beside();
    let folder = Folder::new("power");
    let (mut nodes, ticket) = three(&folder);
    for node in &mut nodes {
        node.rounds(2 * INTERVAL);
    }
    let port = nodes[0].url();
    until("a checkpoint of the last rounds", || {
        nodes[0].rounds(1).round() < saved(&folder) + 2 * INTERVAL
    });
    let (last, names) = power_cut(nodes);
    let kept = saved(&folder);
    println!("{last} rounds committed, {kept} of them saved");

    // The founder last: nobody needs it to meet.
    let mut nodes: Vec<Node> = [1, 2, 0].map(|at| start(&folder, at, &ticket)).into();
    nodes.rotate_right(1);
    assert_together(&mut nodes, &names, kept);
    assert_eq!(nodes[0].url(), port, "it is found where it was");

    // An old ticket works.
    let mut newcomer = Node::start(
        "newcomer",
        folder.join("newcomer"),
        &["join", &ticket, "--device", "cpu"],
    );
    newcomer.members(4);
    newcomer.rounds(20);
    assert!(newcomer.leave(), "{}", newcomer.errors());

    // Once more, with nothing but the folders.
    for node in &mut nodes {
        node.members(3);
        node.rounds(INTERVAL);
    }
    let (_, names) = power_cut(nodes);
    let kept = saved(&folder);
    let mut nodes: Vec<Node> = (0..3).map(|at| resume(&folder, at)).collect();
    assert_together(&mut nodes, &names, kept);
    for node in &mut nodes {
        node.rounds(20);
    }
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
    }
    assert!(assert_equal(&nodes.iter().collect::<Vec<_>>()) > 10);
    for node in &nodes {
        assert_audited(node);
    }
}

#[test]
fn a_joiner_that_crashed_enters_again() {
    let _turn = beside();
    let folder = Folder::new("crashed");
    let mut first = start(&folder, 0, "");
    let ticket = first.ticket();
    // Before it has anything to keep but its name, most likely.
    let mut second = start(&folder, 1, &ticket);
    let name = second.peer();
    second.kill();
    let mut second = start(&folder, 1, &ticket);
    second.members(2);
    assert_eq!(second.peer(), name);
    // In the middle of the run.
    second.rounds(INTERVAL);
    second.kill();
    let mut second = start(&folder, 1, &ticket);
    second.members(2);
    assert_eq!(second.peer(), name);
    first.members(2);
    first.rounds(20);
    for mut node in [second, first] {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        assert_audited(&node);
    }
}

/// Waits until a peer's folder has another's name: the disk is behind the rounds, and who dies before it has a name does not
/// know it.
fn keeps(folder: &Folder, who: usize, other: &mut Node) {
    let (known, name) = (folder.0.join(NAMES[who]).join("peers.json"), other.peer());
    until(&format!("{name} in the folder"), || {
        std::fs::read_to_string(&known).is_ok_and(|known| known.contains(&name))
    });
}

#[test]
fn who_comes_back_finds_others_than_its_ticket_names() {
    let _turn = beside();
    let folder = Folder::new("founder-gone");
    let (mut nodes, ticket) = three(&folder);
    let name = nodes[2].peer();
    keeps(&folder, 2, &mut nodes[1]);
    nodes[2].kill();
    nodes[0].kill();
    let mut third = start(&folder, 2, &ticket);
    third.members(2);
    assert_eq!(third.peer(), name);
    nodes[1].members(2);
    // One that has not a whole state yet, as if it had been cut off while it caught up.
    third.kill();
    let dir = folder.0.join(NAMES[2]);
    for gone in ["ledger", "manifest.bin", "manifest.json"] {
        std::fs::remove_file(dir.join(gone)).expect("removed");
    }
    std::fs::remove_dir_all(dir.join("checkpoints")).expect("removed");
    let mut third = start(&folder, 2, &ticket);
    third.members(2);
    assert_eq!(third.peer(), name);
    for node in [&mut third, &mut nodes[1]] {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        assert_audited(node);
    }
}

#[test]
fn a_port_that_was_taken_meanwhile_is_done_without() {
    let _turn = beside();
    let folder = Folder::new("port-taken");
    let mut first = start(&folder, 0, "");
    let url = first.url();
    let ticket = first.ticket();
    let mut second = start(&folder, 1, &ticket);
    first.members(2);
    keeps(&folder, 0, &mut second);
    first.kill();
    let port = url.split([':', '/']).find_map(|part| part.parse::<u16>().ok());
    let port = port.expect("a port");
    let _taken = std::net::UdpSocket::bind(("127.0.0.1", port)).expect("it is free again");
    let mut first = start(&folder, 0, "");
    let warning = first.wait("a warning", |s| {
        s.is("warning") && s.event["message"].to_string().contains(&port.to_string())
    });
    let text = warning.event["message"].as_str().expect("words");
    assert!(text.contains("taken") && text.contains("ticket"), "{text}");
    // It still knows where the other is.
    first.members(2);
    second.members(2);
}

#[cfg(unix)]
#[test]
fn what_lets_others_in_is_for_the_owners_eyes() {
    use std::os::unix::fs::PermissionsExt;
    let _turn = beside();
    let folder = Folder::new("private");
    let mut first = start(&folder, 0, "");
    first.rounds(1);
    for name in ["ticket", "peers.json", "identity"] {
        let path = folder.0.join(NAMES[0]).join(name);
        let mode = std::fs::metadata(&path).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn the_usual_folder_of_a_joiner_is_found_again() {
    let _turn = beside();
    let folder = Folder::new("usual");
    let mut first = start(&folder, 0, "");
    let ticket = first.ticket();
    let join = ["join", &ticket, "--device", "cpu", "--listen", "127.0.0.1:0"];
    let join = || Node::start_as("joiner", folder.join("cache"), &folder.0, &join);
    let (mut second, mut third) = (join(), join());
    let names = BTreeSet::from([second.peer(), third.peer()]);
    assert_eq!(names.len(), 2);
    first.members(3);
    second.kill();
    third.kill();
    let (mut second, mut third) = (join(), join());
    assert_eq!(BTreeSet::from([second.peer(), third.peer()]), names);
    first.members(3);
}

/// Kilobytes of memory that a peer's process takes, and its open files.
#[cfg(target_os = "linux")]
fn held(node: &Node) -> [u64; 2] {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = memory.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    let files = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("it runs");
    [memory.expect("a number"), files.count() as u64]
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "takes a quarter of an hour; `cargo xtask prove` runs it"]
fn a_kill_a_minute_fills_neither_disk_nor_memory() {
    const MINUTES: usize = 14;
    const KEEP: usize = 3;
    let _turn = beside();
    let folder = Folder::new("kills");
    let (mut nodes, _) = three(&folder);
    let mut by_minute = Vec::new();
    for minute in 0..MINUTES {
        let at = 1 + minute % 2;
        nodes[at].kill();
        nodes[0].rounds(20);
        nodes[at] = resume(&folder, at);
        nodes[0].members(3);
        let next = Instant::now() + Duration::from_secs(55);
        while Instant::now() < next {
            for name in NAMES {
                let saved = std::fs::read_dir(folder.0.join(name).join("checkpoints")).expect("a folder");
                let saved: Vec<_> = saved.map(|entry| entry.expect("an entry").file_name()).collect();
                let rounds = saved
                    .iter()
                    .filter(|name| name.to_string_lossy().ends_with(".safetensors"));
                assert!(rounds.count() <= KEEP, "{name} after {minute} kills: {saved:?}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        by_minute.push(held(&nodes[0]));
        println!("after {} kills: {:?}", minute + 1, by_minute[minute]);
    }
    // The first minutes fill caches.
    let most = |minutes: &[[u64; 2]], what: usize| minutes.iter().map(|held| held[what]).max().expect("some");
    let (first, last) = (&by_minute[2..MINUTES / 2], &by_minute[MINUTES / 2..]);
    let (memory, files) = (most(first, 0), most(first, 1));
    assert!(most(last, 0) <= memory + memory / 5, "memory: {by_minute:?}");
    assert!(most(last, 1) <= files + 4, "open files: {by_minute:?}");
}
