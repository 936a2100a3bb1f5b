//! Peers that take only a part of their machine, or take it only at times: how much, when, and that the ring goes on.

use crate::common::*;
use std::io::{Read, Write};
use std::process::Output;
use std::time::Instant;

/// Seconds of processor time that a process has used.
fn processor_time(node: &Node) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("it runs");
    // The name may hold anything; it ends with the last bracket.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|n| n.parse::<u64>().expect("ticks"))
        .sum();
    // Linux tells it in hundredths everywhere.
    ticks as f64 / 100.0
}

/// Runs two peers, one of which may compute for three tenths of the time of one core. Returns the share of that core which it
/// used during `rounds` rounds.
fn part_of_a_core(rounds: u64) -> f64 {
    let _turn = alone();
    let folder = Folder::new("power");
    let train = [
        "train",
        "--task",
        "digits",
        "--device",
        "cpu",
        "rounds=1000000",
        "batch=4000",
        "--nice",
        "0",
    ];
    let mut first = Node::start("first", folder.join("first"), &train);
    let ticket = first.ticket();
    // On a machine that is busy with other things, too, it is to be what it may take that counts.
    let modest = [
        "join", &ticket, "--device", "cpu", "--power", "0.3", "--cores", "1", "--nice", "0",
    ];
    let mut second = Node::start("second", folder.join("second"), &modest);
    second.members(2);
    // Until its share is what it can do.
    second.rounds(10);
    let (begin, before, from) = (Instant::now(), processor_time(&second), second.seen());
    second.rounds(rounds);
    let part = (processor_time(&second) - before) / begin.elapsed().as_secs_f64();
    let name = second.peer();
    let weight = |seen: &Seen, ours: bool| -> u64 {
        let members = seen.event["members"].as_array().expect("members").iter();
        let of = members.filter(|m| (m["peer"] == *name) == ours);
        of.map(|m| m["weight"].as_u64().expect("a weight")).sum()
    };
    let log = second.log();
    let rounds: Vec<&Seen> = log[from..].iter().filter(|s| s.is("round")).collect();
    let (ours, theirs) = rounds.iter().fold((0, 0), |(a, b), seen| {
        (a + weight(seen, true), b + weight(seen, false))
    });
    println!(
        "{part:.3} of a core in {} rounds, {ours} of {} samples",
        rounds.len(),
        ours + theirs
    );
    assert!(
        ours > 0 && 3 * ours < 2 * theirs,
        "its share is {ours} of {}",
        ours + theirs
    );
    assert!(log[from..].iter().all(|s| !s.is("member")), "it was put out");
    for node in [&mut second, &mut first] {
        assert!(node.leave(), "{}", node.errors());
        assert_audited(node);
    }
    part
}

#[test]
fn who_may_take_three_tenths_works_on_fewer_samples_and_stays_a_member() {
    part_of_a_core(10);
}

#[test]
#[ignore = "measures for a minute; `cargo xtask prove` runs it"]
fn who_may_take_three_tenths_takes_no_more_for_a_minute() {
    let part = part_of_a_core(120);
    // Besides the device's there is the protocol's work.
    assert!((0.05..0.35).contains(&part), "{part}");
}

/// Waits until a peer is out of the ring, and gives what it says of that.
fn out_of_the_ring(node: &mut Node, from: usize) -> String {
    let seen = node.wait_from(from, "that it waits", |s| s.is("waiting"));
    seen.event["why"].as_str().expect("words").to_owned()
}

/// What a peer's page answers, without the head.
fn ask(node: &mut Node, request: &str, headers: &str) -> (u16, String) {
    let url = node.ready().event["url"].as_str().expect("a page").to_owned();
    let host = url
        .split('/')
        .nth(2)
        .expect("a host")
        .replace("localhost", "127.0.0.1");
    let mut stream = std::net::TcpStream::connect(&host).expect("a page");
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: {host}\r\n{}Connection: close\r\n\r\n",
        headers.replace("HOST", &host)
    )
    .expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    let code = head.split(' ').nth(1).expect("a code").parse().expect("a number");
    (code, body.to_owned())
}

/// What a peer's page answers to `/status`.
fn status(node: &mut Node) -> serde_json::Value {
    serde_json::from_str(&ask(node, "GET /status", "").1).expect("JSON")
}

/// A peer that may compute only at night, plugged in, and while nobody else does comes and goes as its machine is, and by
/// hand; nobody takes it for dead.
#[test]
fn who_may_not_compute_leaves_the_ring_and_comes_back() {
    let _turn = beside();
    let folder = Folder::new("permission");
    let machine = folder.0.join("machine");
    let is = |minute: u16, on_battery: bool, others: f64| {
        let text =
            serde_json::json!({"minute": minute, "on_battery": on_battery, "others": others}).to_string();
        std::fs::write(folder.0.join("machine.new"), text).expect("written");
        std::fs::rename(folder.0.join("machine.new"), &machine).expect("renamed");
    };
    let train = ["train", "--task", "digits", "--device", "cpu", "rounds=1000000"];
    let mut first = Node::start("first", folder.join("first"), &train);
    let ticket = first.ticket();
    let dir = folder.join("second");
    let mut command = annulus();
    command.args(["join", &ticket, "--device", "cpu", "--out", &dir]);
    command.args(["--hours", "22-7", "--only-plugged-in", "--only-idle"]);
    command.env("ANNULUS_MACHINE", &machine);
    is(12 * 60, false, 0.0);
    let mut second = Node::spawn("second", dir.clone(), command);
    assert_eq!(
        out_of_the_ring(&mut second, 0),
        "only within the hours 22:00-7:00"
    );
    is(23 * 60, false, 0.0);
    second.members(2);
    let (name, from) = (second.peer(), first.seen());
    for (time, (on_battery, others, says)) in [
        (true, 0.0, "this machine is not plugged in"),
        (false, 0.9, "this machine has other work"),
    ]
    .into_iter()
    .enumerate()
    {
        let before = second.seen();
        is(23 * 60, on_battery, others);
        assert_eq!(out_of_the_ring(&mut second, before), says);
        first.members(1);
        let status = status(&mut second);
        assert_eq!(
            (&status["phase"], &status["waiting"]),
            (&"waiting".into(), &says.into()),
            "{time}"
        );
        is(23 * 60, false, 0.1);
        second.members(2);
    }
    let before = second.seen();
    assert!(run(&["pause", &dir]).status.success());
    assert!(out_of_the_ring(&mut second, before).contains("unpause"));
    first.members(1);
    first.rounds(5);
    assert!(run(&["unpause", &dir]).status.success());
    second.members(2);
    first.members(2);
    // `inspect` asks the running peer for its links.
    let link = serde_json::json!([{"peer": first.peer(), "link": "direct"}]);
    assert_eq!(inspect(&dir)["links"], link);
    // The same by the page, for the user of this machine who has it open.
    assert_eq!(
        ask(&mut second, "POST /pause", "Origin: http://evil.example\r\n").0,
        403
    );
    let (own, before) = ("Origin: http://HOST\r\n", second.seen());
    // SAFETY: asks for a number of this process.
    if unsafe { libc::geteuid() } == 0 {
        // Root has no button: anybody may reach the page through what root runs.
        assert_eq!(ask(&mut second, "POST /pause", own).0, 403);
    } else {
        assert_eq!(ask(&mut second, "POST /pause", own).0, 204);
        assert!(out_of_the_ring(&mut second, before).contains("by hand"));
        first.members(1);
        assert_eq!(ask(&mut second, "POST /unpause", own).0, 204);
        second.members(2);
        first.members(2);
    }
    for seen in &first.log()[from..] {
        if seen.is("member") {
            let change = seen.event["change"].as_str().expect("a change");
            assert!(
                matches!(change, "joined" | "left") && seen.event["peer"] == *name,
                "{}",
                seen.event
            );
        }
    }
    // Asked to leave while it waits, it goes.
    let before = second.seen();
    is(23 * 60, true, 0.0);
    out_of_the_ring(&mut second, before);
    second.signal("-TERM");
    assert_eq!(second.end().code(), Some(LEFT));
    assert!(first.leave(), "{}", first.errors());
    assert_audited(&first);
    assert_audited(&second);
    let given = std::fs::read_to_string(format!("{}/annulus/given.json", cache_of(&dir))).expect("kept");
    let given: serde_json::Value = serde_json::from_str(&given).expect("JSON");
    assert!(
        given["samples"].as_u64() > Some(0) && given["runs"] == 1,
        "{given}"
    );
}

/// A peer that may take so much of the GPU's memory, which is the processor's here where there is no other.
fn limited(folder: &Folder, limit: &str) -> Vec<String> {
    let out = folder.join(limit);
    [
        "train",
        "--task",
        "digits",
        "--device",
        "gpu",
        "train=8000",
        "test=100",
        "batch=4000",
        "rounds=5",
        "--no-page",
        "--gpu-memory",
        limit,
        "--out",
        &out,
    ]
    .map(str::to_owned)
    .into()
}

#[test]
fn who_may_take_little_of_the_gpus_memory_works_on_fewer_samples_at_a_time_or_says_no() {
    let _turn = beside();
    if annulus::device::adapters().is_empty() {
        return eprintln!("skipped: this machine has no adapter, not even a software one");
    }
    let folder = Folder::new("memory");
    let run = |limit: &str| {
        let args = limited(&folder, limit);
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let few = told(&run("1MB"));
    assert!(
        few.contains("even with one sample at a time, and --gpu-memory allows 1:"),
        "{few}"
    );
    let (some, all) = (run("12MB"), run("2GB"));
    println!("{}", said(&some));
    assert!(some.status.success() && said(&some).contains("of at most 4000 samples at a time"));
    assert!(
        all.status.success() && !said(&all).contains("samples at a time"),
        "{}",
        said(&all)
    );
}

/// Before the last command to a device is done its process may be: a driver that still compiles is no reason to fall.
#[test]
fn who_ends_while_a_driver_compiles_ends_with_its_own_code() {
    let _turn = beside();
    if annulus::device::adapters().is_empty() {
        return eprintln!("skipped: this machine has no adapter, not even a software one");
    }
    let folder = Folder::new("compiling");
    let mut doctor = annulus();
    // Nothing compiled before is there.
    doctor
        .args(["doctor", "--no-port-mapping", "--device", "gpu"])
        .env("MESA_SHADER_CACHE_DIR", &folder.0);
    let output = doctor.output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}: {said}", output.status);
}
