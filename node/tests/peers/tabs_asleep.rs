//! Tabs that a browser hides or freezes, that sleep with their machine, or that lose the node whose page they show: the
//! others go on, and the tab comes back by itself.

use crate::chromium::{CPU, Tab, assert_same, join, join_alone, ready};
use crate::common::*;
use std::path::Path;
use std::time::{Duration, Instant};

/// A node that trains until it is told to leave, and its page's address.
fn found(folder: &Folder) -> (Node, String) {
    let train = [
        "train",
        "--task",
        "digits",
        "--device",
        "cpu",
        "rounds=10000000",
        "train=2000",
        "test=200",
        "seed=1",
        // A tab beside a fast processor would stand by.
        "--slower",
        "20",
    ];
    let mut node = Node::start("node", folder.join("node"), &train);
    let url = node.url();
    (node, url)
}

/// Waits until a peer has contributed to a round from here on; says how long that took.
fn contributes(node: &mut Node, peer: &str) -> Duration {
    let (from, start) = (node.seen(), Instant::now());
    node.wait_from(from, "a contribution of the tab", |seen| {
        let members = seen.event["members"].as_array();
        seen.is("round")
            && members.is_some_and(|all| {
                all.iter()
                    .any(|m| m["peer"] == *peer && m["weight"].as_u64() > Some(0))
            })
    });
    start.elapsed()
}

/// Waits until the node has gone on without a peer; says how long that took.
fn goes_on_without(node: &mut Node, from: usize, peer: &str) -> Duration {
    let start = Instant::now();
    node.wait_from(from, "a round without the tab", |seen| {
        seen.is("round") && !seen.members().iter().any(|member| member == peer)
    });
    start.elapsed()
}

/// The run was sound all the while.
fn assert_sound(node: &mut Node, tab: &mut Tab, rounds: usize) {
    tab.listen();
    assert!(node.leave(), "{}", node.errors());
    assert!(assert_same(tab, node) >= rounds);
    assert_gapless(node);
    assert_audited(node);
}

fn join_on_processor(browser: &Path, url: &str) -> (Tab, String) {
    let mut tab = join_alone(browser, "tab", url, CPU);
    let peer = tab.peer();
    tab.members(2);
    (tab, peer)
}

#[test]
fn a_hidden_tab_trains_and_a_frozen_one_comes_back() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("frozen");
    let (mut node, url) = found(&folder);
    let (mut tab, peer) = join_on_processor(&browser, &url);
    contributes(&mut node, &peer);

    tab.hide();
    // A tab that the node's processor leaves little time may stand by, and is tried out again after a while.
    println!("hidden: contributes after {:.2?}", contributes(&mut node, &peer));
    tab.until(
        "the word that it is hidden",
        "document.title.includes('background')",
    );
    tab.until(
        "the word that browsers slow it down",
        "document.getElementById('cause').textContent.includes('in the background')",
    );

    let from = node.seen();
    tab.listen();
    let told = tab.log.len();
    tab.freeze(true);
    let took = goes_on_without(&mut node, from, &peer);
    let word = node.wait("word of its end", |seen| {
        seen.is("member") && seen.event["peer"] == *peer && seen.event["change"] != "joined"
    });
    println!(
        "frozen: {}; the node goes on without it after {took:.2?}",
        word.event["change"]
    );
    node.rounds(50);
    std::thread::sleep(Duration::from_secs(3));
    let from = node.seen();
    node.rounds(5);
    assert!(
        node.log()[from..]
            .iter()
            .all(|s| !s.is("round") || s.members().len() == 1),
        "a frozen tab is no member"
    );
    tab.freeze(false);
    println!("awake: contributes after {:.2?}", contributes(&mut node, &peer));
    println!("states: {:?}", tab.states(told));
    node.rounds(100);
    tab.show();
    tab.until("out of the background", "!document.title.includes('background')");
    assert_sound(&mut node, &mut tab, 100);
}

#[test]
fn a_laptop_sleeps_and_wakes() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("asleep");
    let (mut node, url) = found(&folder);
    let (mut tab, peer) = join_on_processor(&browser, &url);
    contributes(&mut node, &peer);

    tab.listen();
    let (from, told) = (node.seen(), tab.log.len());
    tab.signal("-STOP");
    let took = goes_on_without(&mut node, from, &peer);
    println!("asleep: the node goes on without it after {took:.2?}");
    std::thread::sleep(SILENT);
    node.rounds(5);
    tab.signal("-CONT");
    println!("awake: contributes after {:.2?}", contributes(&mut node, &peer));
    println!("states: {:?}", tab.states(told));
    tab.until("training", "document.body.dataset.state === 'training'");
    node.rounds(50);
    assert_sound(&mut node, &mut tab, 50);
}

#[test]
fn a_tab_outlives_the_node_that_serves_its_page() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("host");
    let (mut host, url) = found(&folder);
    let ticket = host.ticket();
    let other = ["join", &ticket, "--device", "cpu"];
    let mut other = Node::start("other", folder.join("other"), &other);
    other.members(2);
    let mut tab = join(&browser, "tab", &url, CPU);
    let peer = tab.peer();
    tab.members(3);
    contributes(&mut other, &peer);

    let gone = host.peer();
    let from = other.seen();
    host.kill();
    other.wait_from(from, "a round of two without the host", |seen| {
        seen.is("round") && seen.members().len() == 2 && !seen.members().contains(&gone)
    });
    println!(
        "without the host: contributes after {:.2?}",
        contributes(&mut other, &peer)
    );
    // Out of the ring and in again: there is no host to ask for the way.
    tab.click("Pause");
    let from = other.seen();
    goes_on_without(&mut other, from, &peer);
    tab.until("paused", "document.body.dataset.state === 'paused'");
    tab.click("Resume");
    println!("back: contributes after {:.2?}", contributes(&mut other, &peer));
    other.rounds(50);
    assert_sound(&mut other, &mut tab, 50);
}
