//! Being found on a local network and let in there by a code: processes on two hosts with a cable between them, each host a
//! network namespace. Needs Linux, `ip`, `unshare` and `nsenter`, and no rights; where there are no namespaces to be had it is
//! skipped with a word.

use crate::common::{Folder, Node, annulus, assert_equal, beside, told};
use annulus::net::nearby::code::Code;
use annulus::net::ticket::Ticket;
use annulus_core::invitation::Role;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const INSIDE: &str = "ANNULUS_TEST_ON_A_LAN";

/// The other host, while this lives.
struct Other(Child);

impl Other {
    /// A host with a cable to this one.
    fn new() -> Self {
        let child = Command::new("unshare").args(["--net", "sleep", "600"]).spawn();
        let other = Self(child.expect("unshare"));
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        let theirs = format!("/proc/{}/ns/net", other.0.id());
        let until = Instant::now() + Duration::from_secs(10);
        while std::fs::read_link(&theirs).is_ok_and(|theirs| theirs == own) {
            assert!(Instant::now() < until, "no namespace of its own");
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = other.0.id();
        sh(&format!(
            "ip link set lo up && ip link add lan0 type veth peer name lan0 netns {pid} && \
             ip addr add 198.51.100.1/24 dev lan0 && nsenter --target {pid} --net sh -c \
             'ip link set lo up && ip addr add 198.51.100.2/24 dev lan0 && ip link set lan0 up' && ip link set lan0 up"
        ));
        // A kernel that is busy may overlook that the cable is plugged in until it is plugged in again.
        sh(&format!(
            "for i in $(seq 20); do for host in '' 'nsenter --target {pid} --net'; do \
               $host ip link show lan0 | grep -q 'state UP' && continue; sleep 0.5; \
               $host ip link show lan0 | grep -q 'state UP' || {{ $host ip link set lan0 down; $host ip link set lan0 up; }}; \
             done; done; ip link show lan0 | grep -q 'state UP'"
        ));
        other
    }

    /// A command of the system there.
    fn sh(&self, script: &str) {
        sh(&format!("nsenter --target {} --net {script}", self.0.id()));
    }

    /// The program there.
    fn annulus(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.0.id().to_string(), "--net"]);
        command.arg(env!("CARGO_BIN_EXE_annulus"));
        for (name, value) in annulus().get_envs() {
            command.env(name, value.expect("set"));
        }
        command
    }

    /// It ends by itself, with nobody at a terminal.
    fn run(&self, args: &[&str]) -> Output {
        let output = self
            .annulus()
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("nsenter");
        eprintln!(
            "--- annulus {}:\n{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sh(script: &str) {
    let done = Command::new("sh").args(["-c", script]).output().expect("sh");
    assert!(
        done.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Runs itself again where it is root of a network of its own; says whether it is there already.
fn on_a_lan(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let ran = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c"])
        .arg("ip link show lo > /dev/null && nsenter --version > /dev/null || exit 9; exec \"$0\" --exact \"$1\" --nocapture")
        .arg(std::env::current_exe().expect("a program"))
        .arg(test)
        .env(INSIDE, "1")
        .output();
    match ran {
        Ok(ran) if ran.status.code() == Some(101) => {
            // Quoted, so that whoever counts results does not count this one twice.
            let said = [ran.stdout, ran.stderr].concat();
            let said = String::from_utf8_lossy(&said).replace('\n', "\n| ");
            panic!("there it failed:\n| {said}")
        }
        Ok(ran) if ran.status.success() => eprint!("{}", String::from_utf8_lossy(&ran.stderr)),
        other => eprintln!("skipped: there are no network namespaces to be had: {other:?}"),
    }
    false
}

/// How all peers here run.
const LOCAL: [&str; 6] = [
    "--device",
    "cpu",
    "--no-page",
    "--no-port-mapping",
    "--listen",
    "0",
];

/// A run on this host, of some 50 rounds a second.
fn founder(folder: &Folder, name: &'static str, more: &[&str]) -> Node {
    let args = [
        "train",
        "--task",
        "digits",
        "train=1000",
        "test=100",
        "epochs=100000",
        // Two that go a thousand rounds a second each keep a slow disk so busy that whoever begins waits a minute for it.
        "--sample-takes",
        "0.3",
    ];
    Node::start(name, folder.join(name), &[&args[..], &LOCAL, more].concat())
}

fn code_of(node: &mut Node) -> Code {
    node.wait("that it is told of", |seen| seen.is("nearby"));
    let text = std::fs::read_to_string(format!("{}/code", node.dir)).expect("a code");
    text.trim().parse().expect("a code")
}

#[test]
fn whoever_is_on_the_network_and_has_the_code_takes_part() {
    if !on_a_lan("whoever_is_on_the_network_and_has_the_code_takes_part") {
        return;
    }
    let (_turn, folder, other) = (beside(), Folder::new("nearby"), Other::new());
    let mut told_of = founder(&folder, "told", &[]);
    let mut quiet = founder(&folder, "quiet", &["--no-announce", "seed=2"]);
    let code = code_of(&mut told_of);
    quiet.rounds(1);

    let join = |name: &'static str, by: &[&str]| {
        let out = folder.join(name);
        let mut command = other.annulus();
        command.args([&["join"], by, &LOCAL, &["--out", &out]].concat());
        Node::spawn(name, out.clone(), command)
    };
    let mut joiner = join("joiner", &["--code", &code.to_string()]);
    told_of.members(2);
    joiner.rounds(3);
    assert!(assert_equal(&[&told_of, &joiner]) > 0);
    assert!(
        joiner.errors().contains("let in with the role contribute"),
        "{}",
        joiner.errors()
    );
    let ticket: Ticket = joiner.ticket().parse().expect("a ticket");
    let grant = ticket.chain.0.last().expect("a grant");
    assert_eq!((grant.role, grant.uses), (Role::Contribute, Some(1)));
    assert!(grant.until_s.is_some());
    let entered = |seen: &crate::common::Seen| {
        seen.is("nearby")
            && seen.event["why"]
                .as_str()
                .is_some_and(|why| why.starts_with("198.51.100.2"))
    };
    told_of.wait("who was let in", entered);
    // A member that may not hand its ticket on announces nothing.
    assert!(!joiner.log().iter().any(|seen| seen.is("nearby")));

    // Once a member always one: by the ticket in its folder, wherever the others are now, and though nobody gives this host
    // an address any more.
    assert!(joiner.leave());
    other.sh("ip addr flush dev lan0 scope global");
    let mut again = join("joiner", &["--run", "digits"]);
    told_of.members(2);
    assert_eq!(again.peer(), joiner.peer());
    assert!(again.leave());
    other.sh("ip addr add 198.51.100.2/24 dev lan0");

    // Nobody guesses it, and what there is to guess is not in the log.
    let wrong = std::iter::repeat_with(|| code.another())
        .find(|other| *other != code)
        .expect("another");
    let out = folder.join("nobody");
    let guess = |code: Code| {
        other.run(&[
            "join",
            "--code",
            &code.to_string(),
            "--listen",
            "0",
            "--out",
            &out,
        ])
    };
    let output = guess(wrong);
    assert!(told(&output).contains("not the code that is shown there"));
    assert_eq!(output.status.code(), Some(1));
    let output = other.run(&["join", "--run", "digits", "--out", &out]);
    let list = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        list.contains("one run on this network") && list.contains("at 198.51.100.1:"),
        "{list}"
    );
    assert!(told(&output).contains("no terminal") && output.status.code() == Some(2));
    let secret = code.to_string()[3..].to_owned();
    for seen in told_of.log() {
        assert!(!seen.event.to_string().contains(&secret), "{}", seen.event);
    }
    assert!(told_of.leave() && quiet.leave());
    assert!(!std::path::Path::new(&format!("{}/code", told_of.dir)).exists());
    assert!(!quiet.log().iter().any(|seen| seen.is("nearby")));
}
