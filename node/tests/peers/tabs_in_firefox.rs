//! Tabs of other browsers than Chromium: a Firefox trains beside it, and WebKit is told why it cannot.

use crate::chromium::{CPU, GPU, Tab, assert_same, installed, join, ready, weight};
use crate::common::*;
use std::path::Path;

#[test]
#[ignore = "takes minutes; `cargo xtask prove` runs it"]
fn tabs_of_two_browsers_train_together() {
    let (Some(chromium), Some(firefox)) = (ready(), crate::firefox::ready()) else {
        return;
    };
    let _turn = beside();
    let folder = Folder::new("two-browsers");
    let train = [
        "train",
        "--task",
        "gpt",
        "--device",
        "cpu",
        "layers=1",
        "heads=2",
        "width=32",
        "context=32",
        "batch=32",
        "stand_aside=off",
        "rounds=1000000",
    ];
    let mut node = Node::start("node", folder.join("node"), &train);
    let url = node.url();
    let mut tabs = vec![join(&chromium, "Chromium", &url, CPU)];
    for (name, gpu, button) in [
        ("Firefox", false, CPU),
        ("Firefox with a software GPU", true, GPU),
    ] {
        let mut tab = crate::firefox::open(&firefox, name, &url, gpu);
        tab.click(button);
        tabs.push(tab);
    }
    node.members(4);
    node.rounds(220);
    for tab in &mut tabs {
        // A round that the node has committed is on its way to the tab.
        tab.members(4);
        let (peer, shared) = (tab.peer(), assert_same(tab, &node));
        let device = tab.wait("ready", |message| message["event"]["event"] == "ready");
        let computed = weight(&node, &peer);
        println!(
            "{}: {shared} rounds, {computed} samples, {}",
            tab.name, device["event"]["device"]
        );
        assert!(shared >= 200 && computed > 0, "{}: {}", tab.name, tab.story());
    }
    if let Some(pictures) = std::env::var_os("ANNULUS_SCREENSHOTS") {
        for (tab, file) in tabs
            .iter_mut()
            .zip(["chromium.png", "firefox.png", "firefox-gpu.png"])
        {
            tab.screenshot(&Path::new(&pictures).join(file));
        }
    }
    drop(tabs);
    assert!(node.leave(), "{}", node.errors());
    assert_gapless(&mut node);
}

/// The page of a real node, by scripts alone.
#[test]
fn a_browser_of_webkit_is_told_why_it_only_watches() {
    let Some(browser) = installed() else {
        eprintln!("skipped: no Chromium is installed (Debian: chromium), so no page can be looked at");
        return;
    };
    let _turn = beside();
    let folder = Folder::new("webkit");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../browser/page");
    let page = page.to_string_lossy();
    let train = [&LONG_DIRECT[..], &["--page", &page]].concat();
    let mut node = Node::start("node", folder.join("node"), &train);
    let url = node.url();
    let mut tab = Tab::open(&browser, "WebKit", "about:blank");
    tab.before_scripts(
        "Object.defineProperty(Navigator.prototype, 'vendor', {get: () => 'Apple Computer, Inc.'})",
    );
    tab.navigate(&url);
    tab.until("told", "document.title.startsWith('This browser can only watch')");
    let told = tab.evaluate("document.getElementById('text').textContent");
    assert!(told.as_str().is_some_and(|told| told.contains("16 MB")), "{told}");
    let buttons = "[...document.querySelectorAll('#actions button')].map((button) => button.textContent)";
    assert_eq!(tab.evaluate(buttons), serde_json::json!(["Only watch"]));
    assert!(node.leave(), "{}", node.errors());
}
