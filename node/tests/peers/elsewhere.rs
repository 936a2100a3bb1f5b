//! Peers whose addresses change: while they are away, and under them while they take part. Each has the name that it had,
//! its tickets hold, and nobody has to tell anybody where it is.

use crate::common::*;
use annulus::net::ticket::Ticket;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];

const FOUND: [&str; 9] = [
    "train",
    "--task",
    "digits",
    "--device",
    "cpu",
    "train=500",
    "test=100",
    "rounds=1000000",
    // One machine alone trains so small a model faster than three, and these take part all the same.
    "stand_aside=off",
];

/// A peer of a run of some as if on a machine of its own, whose address is 127.0.0.HOST.
fn start_at(folder: &Folder, at: usize, ticket: &str, host: usize) -> Node {
    let listen = format!("127.0.0.{host}:0");
    let command = match at {
        0 => FOUND.to_vec(),
        _ => vec!["join", ticket, "--device", "cpu"],
    };
    Node::start(
        NAMES[at],
        folder.join(NAMES[at]),
        &[&command[..], &["--listen", &listen, "checkpoint_every=50"]].concat(),
    )
}

/// A ticket but for its addresses.
fn bare(ticket: &str) -> Ticket {
    let ticket: Ticket = ticket.parse().expect("a ticket");
    Ticket {
        addrs: Vec::new(),
        ..ticket
    }
}

/// SIGKILL to one of three, and its command again at another address. How long it was out of the ring.
fn killed_and_elsewhere(who: usize) -> Duration {
    let folder = Folder::new("elsewhere");
    let mut nodes = vec![start_at(&folder, 0, "", 1)];
    let ticket = nodes[0].ticket();
    nodes.extend((1..3).map(|at| start_at(&folder, at, &ticket, at + 1)));
    for node in &mut nodes {
        node.members(3);
    }
    // A checkpoint, and all names on the disk.
    nodes[who].rounds(60);
    let (name, right) = (nodes[who].peer(), bare(&nodes[who].ticket()));
    let killed = nodes[who].kill();
    let mut again = start_at(&folder, who, &ticket, who + 11);
    let back = again.members(3).at - killed;
    assert_eq!(again.peer(), name);
    assert_eq!(bare(&again.ticket()), right);
    nodes[who] = again;
    for node in &mut nodes {
        let members: BTreeSet<String> = node.members(3).members().into_iter().collect();
        assert!(members.contains(&name), "{}", node.name);
    }
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        assert_audited(node);
    }
    back
}

#[test]
fn who_was_killed_comes_back_at_another_address() {
    let _turn = beside();
    for who in [0, 2] {
        println!("{}: back after {:?}", NAMES[who], killed_and_elsewhere(who));
    }
}

#[test]
#[ignore = "the same for minutes"]
fn who_was_killed_comes_back_at_another_address_twenty_times() {
    let _turn = beside();
    for time in 0..20 {
        println!("{time}: back after {:?}", killed_and_elsewhere(time % 3));
    }
}

/// Four that meet at a file, killed at once and started at other addresses. How long after the last start all are one ring.
fn all_killed_and_elsewhere() -> Duration {
    let folder = Folder::new("all-elsewhere");
    let start = |at: usize, host: usize| {
        let listen = format!("127.0.0.{host}:0");
        let args = [
            &FOUND[..],
            &["--meet", "file:run", "--listen", &listen, "checkpoint_every=50"],
        ];
        Node::start_in(NAMES[at], folder.join(NAMES[at]), &folder.0, &args.concat())
    };
    let mut nodes: Vec<Node> = (0..4).map(|at| start(at, at + 1)).collect();
    for node in &mut nodes {
        node.members(4);
    }
    nodes[0].rounds(60);
    let names: Vec<String> = nodes.iter_mut().map(Node::peer).collect();
    let pids: Vec<String> = nodes.iter().map(|node| node.pid().to_string()).collect();
    let done = Command::new("kill").arg("-KILL").args(&pids).status();
    assert!(done.expect("kill").success());
    drop(nodes);
    let mut nodes: Vec<Node> = (0..4).map(|at| start(at, at + 11)).collect();
    let started = Instant::now();
    let together = nodes.iter_mut().map(|node| node.members(4).at).max();
    assert_eq!(nodes.iter_mut().map(Node::peer).collect::<Vec<_>>(), names);
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        assert_audited(node);
    }
    together.expect("there are four") - started
}

#[test]
fn all_who_were_killed_are_one_ring_at_other_addresses() {
    let _turn = beside();
    println!("one ring after {:?}", all_killed_and_elsewhere());
}

#[test]
#[ignore = "the same for minutes"]
fn all_who_were_killed_are_one_ring_at_other_addresses_twenty_times() {
    let _turn = beside();
    for time in 0..20 {
        println!("{time}: one ring after {:?}", all_killed_and_elsewhere());
    }
}

/// Machines at one switch: network namespaces, which go away with this.
struct Machines(usize);

impl Machines {
    /// Makes `count` machines, or says why it cannot.
    fn new(count: usize) -> Result<Self, String> {
        let machines = Self(count);
        let switch = machines.switch();
        ip(&format!("netns add {switch}"))?;
        for setup in [
            "link add name switch type bridge",
            "addr add 10.77.0.254/24 dev switch",
            "link set switch up",
        ] {
            ip(&format!("-n {switch} {setup}"))?;
        }
        for at in 0..count {
            let name = machines.name(at);
            ip(&format!("netns add {name}"))?;
            ip(&format!(
                "-n {name} link add eth0 type veth peer name port{at} netns {switch}"
            ))?;
            ip(&format!("-n {switch} link set port{at} master switch up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            machines.give(at, at + 1)?;
        }
        Ok(machines)
    }

    fn switch(&self) -> String {
        format!("annulus-{}-switch", std::process::id())
    }

    fn name(&self, at: usize) -> String {
        format!("annulus-{}-{at}", std::process::id())
    }

    /// Gives a machine the address 10.77.0.HOST, and no other.
    fn give(&self, at: usize, host: usize) -> Result<(), String> {
        let name = self.name(at);
        ip(&format!("-n {name} addr flush dev eth0 scope global"))?;
        ip(&format!("-n {name} addr add 10.77.0.{host}/24 dev eth0"))?;
        ip(&format!("-n {name} route add default via 10.77.0.254"))
    }

    fn start(&self, folder: &Folder, at: usize, ticket: &str) -> Node {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(at)]);
        command.arg(env!("CARGO_BIN_EXE_annulus"));
        match at {
            0 => command.args(FOUND),
            _ => command.args(["join", ticket, "--device", "cpu"]),
        };
        let dir = folder.join(NAMES[at]);
        command.args(["--out", &dir, "--listen", "0"]);
        Node::spawn(NAMES[at], dir, command)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in (0..self.0).map(|at| self.name(at)).chain([self.switch()]) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(args: &str) -> Result<(), String> {
    let output = Command::new("ip").args(args.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {args}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// Changes the address of one member after another, `times` times: nobody is taken for dead.
fn moves_within(times: usize) {
    let _turn = beside();
    let machines = match Machines::new(4) {
        Ok(machines) => machines,
        Err(why) => return eprintln!("skipped: no network namespaces ({why})"),
    };
    let folder = Folder::new("moves");
    let mut nodes = vec![machines.start(&folder, 0, "")];
    let ticket = nodes[0].ticket();
    nodes.extend((1..3).map(|at| machines.start(&folder, at, &ticket)));
    for node in &mut nodes {
        node.members(3);
    }
    let from: Vec<usize> = nodes.iter().map(Node::seen).collect();
    for time in 0..times {
        let before: Vec<u64> = nodes.iter_mut().map(|node| node.rounds(5).round()).collect();
        machines.give(time % 3, 11 + time).expect("another address");
        let moved = Instant::now();
        // A round that begins after it.
        let next = nodes
            .iter_mut()
            .map(|node| node.rounds(3).at)
            .max()
            .expect("three");
        println!(
            "{time}: after {before:?} the ring stood for at most {:?}",
            next.saturating_duration_since(moved)
        );
    }
    for (node, from) in nodes.iter_mut().zip(from) {
        let lost: Vec<Seen> = node.log()[from..]
            .iter()
            .filter(|s| s.is("member"))
            .cloned()
            .collect();
        assert!(lost.is_empty(), "{}: {lost:?}", node.name);
    }
    // Tickets lead to where their peers are now.
    let mut newcomer = machines.start(&folder, 3, &nodes[0].ticket());
    newcomer.members(4);
    nodes.push(newcomer);
    for node in &mut nodes {
        assert!(node.leave(), "{}: {}", node.name, node.errors());
        assert_audited(node);
    }
}

#[test]
fn an_address_that_changes_under_a_member_costs_nobody_its_place() {
    moves_within(3);
}

#[test]
#[ignore = "the same for minutes"]
fn an_address_that_changes_under_a_member_costs_nobody_its_place_twenty_times() {
    moves_within(20);
}
