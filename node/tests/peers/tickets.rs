//! Tickets as real peers know them: what each lets do, for how long, for how many, and until it is taken back.

use crate::common::*;
use annulus::net::ticket::Ticket;
use annulus_core::invitation::Role;
use std::time::Duration;

const LONG: [&str; 8] = [
    "train",
    "--task",
    "digits",
    "--device",
    "cpu",
    "rounds=1000000",
    "train=500",
    "test=100",
];

/// What a command prints, if it succeeds.
fn say(args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether a peer's samples are in a round.
fn computes(seen: &Seen, peer: &str) -> bool {
    let members = seen.event["members"].as_array().expect("members");
    members
        .iter()
        .any(|m| m["peer"] == peer && m["weight"].as_u64() > Some(0))
}

#[test]
fn who_was_invited_does_what_its_ticket_allows() {
    let _turn = beside();
    let folder = Folder::new("roles");
    let mut first = Node::start("first", folder.join("first"), &LONG);
    first.rounds(2);
    let invite = |dir: &str, role| say(&["invite", dir, "--role", role]);
    let contributes = invite(&first.dir, "contribute");
    let mut second = join(&folder, "second", &contributes);
    let name = second.peer();
    first.wait("what it has computed", |s| s.is("round") && computes(s, &name));
    second.rounds(3);
    assert!(refusal(&["invite", &second.dir]).contains("role contribute"));
    // One that follows.
    let mut third = join(&folder, "third", &invite(&first.dir, "watch"));
    third.rounds(1);
    third.rounds(5);
    let name = third.peer();
    let others = digests(&first);
    let seen: Vec<_> = digests(&third)
        .into_iter()
        .filter(|(round, _)| others.contains_key(round))
        .collect();
    assert!(seen.len() > 2 && seen.iter().all(|(round, digest)| others[round] == *digest));
    assert!(
        first
            .log()
            .iter()
            .all(|s| !s.is("round") || !s.members().contains(&name))
    );
    assert!(third.leave(), "{}", third.errors());
    // The one that only contributes keeps no run.
    let from = second.seen();
    first.kill();
    let member = |reason: &'static str| {
        move |s: &Seen| {
            s.is("member")
                && s.event["reason"]
                    .as_str()
                    .is_some_and(|told| told.contains(reason))
        }
    };
    second.wait_from(from, "that nobody keeps the run", member("no full member"));
    let rounds = |node: &Node| node.log().iter().filter(|s| s.is("round")).count();
    let before = rounds(&second);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(rounds(&second), before);
    // Until somebody does.
    let mut first = Node::start_as(
        "first",
        folder.join("first"),
        ".".as_ref(),
        &["resume", &folder.join("first"), "--device", "cpu"],
    );
    first.rounds(1);
    let from = second.seen();
    second.wait_from(from, "another round", |s| s.is("round"));
    assert!(second.leave(), "{}", second.errors());
    assert!(first.leave(), "{}", first.errors());
}

#[test]
fn a_ticket_is_for_so_many_and_for_so_long() {
    let _turn = beside();
    let folder = Folder::new("uses");
    let mut first = Node::start("first", folder.join("first"), &LONG);
    first.rounds(2);
    let once = say(&["invite", &first.dir, "--role", "member", "--uses", "1"]);
    let mut second = join(&folder, "second", &once);
    second.members(2);
    assert!(refused(&folder, "third", &once).contains("used up"));
    // A ticket made from a used-up one is used up too.
    let on = say(&["invite", &second.dir]);
    assert!(refused(&folder, "third", &on).contains("used up"));
    assert!(second.leave(), "{}", second.errors());
    second = join(&folder, "second", &once);
    second.members(2);
    let short = say(&["invite", &first.dir, "--expires", "1s"]);
    std::thread::sleep(Duration::from_secs(3));
    assert!(refused(&folder, "fourth", &short).contains("expired"));
    assert!(second.leave(), "{}", second.errors());
    assert!(first.leave(), "{}", first.errors());
}

#[test]
fn a_revoked_ticket_lets_nobody_in_and_puts_out_who_came_by_it() {
    let _turn = beside();
    let folder = Folder::new("revoked");
    let mut first = Node::start("first", folder.join("first"), &LONG);
    first.rounds(2);
    let invite = || say(&["invite", &first.dir, "--role", "member"]);
    let (one, other) = (invite(), invite());
    let mut second = join(&folder, "second", &one);
    let mut third = join(&folder, "third", &other);
    first.members(3);
    third.members(3);
    // The ledger on the disk is a little behind.
    let (second_name, third_name) = (second.peer(), third.peer());
    until("who came by which ticket", || {
        let list = say(&["invite", &first.dir, "--list"]);
        let rows: Vec<&str> = list.lines().filter(|line| line.contains("  member ")).collect();
        rows.len() == 2 && rows[0].ends_with(&second_name[..8]) && rows[1].ends_with(&third_name[..8])
    });
    // Only who is above it takes it back.
    assert!(refusal(&["revoke", &third.dir, &one]).contains("was not made from this folder"));
    let name = second.peer();
    // The ledger on the disk is a little behind.
    let revoke = ["revoke", &first.dir, &name[..8]];
    until("its name in the ledger", || {
        let output = run(&revoke);
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("revoked: the run knows")
    });
    let kept = std::fs::read_dir(folder.join("first/revocations/known"));
    assert_eq!(kept.expect("it stays in the folder").count(), 1);
    assert!(!second.end().success());
    assert!(second.errors().contains("revoked"), "{}", second.errors());
    assert!(refused(&folder, "fourth", &one).contains("revoked"));
    third.members(2);
    assert!(third.leave(), "{}", third.errors());
    // Said while nobody runs there, it is passed on later. The list has its name.
    assert!(first.leave(), "{}", first.errors());
    let list = say(&["invite", &first.dir, "--list"]);
    let row = list.lines().nth(2).expect("the other ticket");
    let told = say(&["revoke", &first.dir, &row[..8]]);
    assert!(told.contains("not revoked yet"), "{told}");
    let dir = folder.join("first");
    let resume = ["resume", &dir, "--device", "cpu"];
    let mut first = Node::start_as("first", dir.clone(), ".".as_ref(), &resume);
    first.rounds(20);
    let late = || refused(&folder, "fifth", &other);
    // Its address is another now, perhaps: a ticket made now leads there.
    let port = first.ticket().parse::<Ticket>().expect("a ticket").addrs;
    let named = other.parse::<Ticket>().expect("a ticket").addrs;
    assert_eq!(port, named, "it listens where it did");
    assert!(late().contains("revoked"));
    assert!(first.leave(), "{}", first.errors());
}

#[test]
fn the_page_lets_in_contributors_and_no_members() {
    let _turn = beside();
    let folder = Folder::new("guests");
    let args = [&LONG[..], &["--log-tickets"]].concat();
    let mut first = Node::start("first", folder.join("first"), &args);
    let ready = first.ready().event;
    let role = |text: &str| text.parse::<Ticket>().expect("a ticket").chain.role();
    let url = ready["url"].as_str().expect("a page");
    let (_, of_page) = url.split_once('#').expect("a ticket");
    assert_eq!(role(of_page), Role::Contribute);
    assert_eq!(role(ready["ticket"].as_str().expect("a ticket")), Role::Member);
    let args = ["join", of_page, "--device", "cpu", "--log-tickets"];
    let mut second = Node::start("second", folder.join("second"), &args);
    second.members(2);
    let ready = second.ready().event;
    assert!(ready["ticket"].is_null());
    let url = ready["url"].as_str().expect("a page");
    assert!(!url.contains('#'), "a contributor's page lets nobody in: {url}");
    assert!(second.leave(), "{}", second.errors());
    assert!(first.leave(), "{}", first.errors());
}
