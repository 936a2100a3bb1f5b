//! Browser tabs as members of the ring: real pages in a real Chromium, beside a native node.

mod chromium;
mod common;

use chromium::Tab;
use common::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What both need, or the reason to skip.
fn ready() -> Option<PathBuf> {
    let Some(browser) = chromium::installed() else {
        eprintln!("skipped: no Chromium is installed (Debian: chromium), so no tab can be tried");
        return None;
    };
    let page = Path::new(env!("CARGO_BIN_EXE_annulus"))
        .ancestors()
        .nth(2)
        .expect("a target folder")
        .join("browser");
    if !page.join("index.html").exists() {
        eprintln!(
            "skipped: {} is not there; `cargo xtask browser` builds the page",
            page.display()
        );
        return None;
    }
    Some(browser)
}

fn join(browser: &Path, name: &'static str, url: &str) -> Tab {
    let mut tab = Tab::open(browser, name, url);
    // The adapter here is a program, so the page offers to watch first.
    tab.click("Train all the same");
    tab
}

/// Asserts that a tab's rounds have the digests that the node has; returns how many they share.
fn assert_same(tab: &mut Tab, node: &Node) -> usize {
    let theirs = tab.digests();
    let ours = digests(node);
    let mut shared = 0;
    for (round, digest) in &theirs {
        if let Some(other) = ours.get(round) {
            assert_eq!(
                digest, other,
                "round {round}: {} and {} differ",
                tab.name, node.name
            );
            shared += 1;
        }
    }
    shared
}

/// Samples of a peer that the node's ledger counts.
fn weight(node: &Node, peer: &str) -> u64 {
    let log = node.log();
    let shares = log
        .iter()
        .filter_map(|seen| seen.event["members"].as_array())
        .flatten();
    let ours = shares.filter(|share| share["peer"] == *peer);
    ours.filter_map(|share| share["weight"].as_u64()).sum()
}

/// A node and two tabs train; one tab is closed without a word, another's GPU crashes, a third joins late.
fn through_thick_and_thin(name: &'static str, settings: &[&str]) {
    let Some(browser) = ready() else { return };
    let _alone = alone();
    let folder = Folder::new(name);
    let train = [
        &["train", "--device", "cpu", "rounds=1000000", "seed=1"],
        settings,
    ]
    .concat();
    let mut node = Node::start("node", folder.join("node"), &train);
    let url = node.ready().event["url"].as_str().expect("a page").to_owned();
    let mut first = join(&browser, "first", &url);
    let mut second = join(&browser, "second", &url);
    first.members(3);
    second.members(3);
    node.rounds(30);
    for tab in [&mut first, &mut second] {
        let peer = tab.peer();
        let weight = weight(&node, &peer);
        println!(
            "{}: {weight} samples of {}",
            tab.name,
            tab.log
                .iter()
                .find(|m| m["event"]["event"] == "ready")
                .map_or(Value::Null, |m| m["event"]["device"].clone())
        );
        assert!(weight > 0, "{} contributed nothing", tab.name);
    }

    let gone = first.peer();
    first.listen();
    first.kill();
    node.wait("the end of a closed tab", |seen| {
        seen.is("member") && seen.event["peer"] == *gone && seen.event["change"] != "joined"
    });
    node.rounds(3);

    let mut third = join(&browser, "third", &url);
    third.members(3);
    let crashed = second.peer();
    second.crash_gpu();
    node.wait("the end of a tab without a GPU", |seen| {
        seen.is("member") && seen.event["peer"] == *crashed && seen.event["change"] != "joined"
    });
    let failed = second.wait("word of the lost GPU", |message| message["type"] == "failed");
    println!("second: {failed}");
    let from = node.seen();
    node.wait_from(from, "a round of two", |seen| {
        seen.is("round") && seen.members().len() == 2
    });
    node.rounds(5);

    third.listen();
    third.click("Leave");
    third.wait("the way out", |message| message["state"] == "left");
    assert!(node.leave().success(), "{}", node.errors());
    assert!(assert_same(&mut second, &node) >= 30);
    assert!(assert_same(&mut third, &node) >= 3);
    assert_gapless(&mut node);
    let report = inspect(&node.dir);
    assert_eq!(report["audit"]["sound"], true, "{report}");
}

#[test]
fn digits_in_tabs() {
    through_thick_and_thin("digits", &["--task", "digits"]);
}

#[test]
fn a_tiny_gpt_in_tabs() {
    let tiny = [
        "--task",
        "gpt",
        "layers=1",
        "heads=2",
        "width=32",
        "context=32",
        "batch=12",
    ];
    through_thick_and_thin("gpt", &tiny);
}
