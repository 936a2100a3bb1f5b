//! Every WGSL kernel in a real Chromium against its twin, and bad texts that the page must name.
//!
//! The page is the example `kernels` of the crate `annulus-browser`; build it with `cargo xtask browser kernels`.

use crate::chromium::Tab;
use crate::common::*;
use serde_json::Value;
use std::path::Path;

#[test]
fn every_kernel_agrees_with_its_twin_in_a_browser() {
    let Some(browser) = crate::chromium::installed() else {
        eprintln!("skipped: no Chromium is installed (Debian: chromium), so no kernel can be tried in one");
        return;
    };
    let page = Path::new(env!("CARGO_BIN_EXE_annulus"))
        .ancestors()
        .nth(2)
        .expect("a target folder")
        .join("browser-kernels");
    if !page.join("index.html").exists() {
        eprintln!(
            "skipped: {} is not there; `cargo xtask browser kernels` builds the page",
            page.display()
        );
        return;
    }
    let _turn = beside();
    let folder = Folder::new("kernels");
    let page = page.display().to_string();
    let train = ["train", "--device", "cpu", "--task", "digits", "rounds=1000000"];
    let args = [train.as_slice(), &["--page", &page]].concat();
    let mut node = Node::start("node", folder.join("node"), &args);
    let url = node.url();
    let mut tab = Tab::open(&browser, "kernels", &url);
    tab.wait("a start", |message| message["type"] == "started");
    // It has served all that the page needs, and would take the processor from it.
    node.signal("-STOP");

    let compiled = tab.wait("all texts", |message| message["type"] == "compiled");
    assert!(compiled["failed"].is_null(), "{compiled}");
    for part in ["products", "layers", "vectors", "emulated", "gpu"] {
        let ended = tab.wait(part, |message| {
            assert_ne!(message["type"], "failed", "{message}");
            message["type"] == "part" && message["name"] == part
        });
        println!("{part}: after {} s", ended["seconds"]);
    }
    let done = tab.wait("the end", |message| message["type"] == "done");
    node.kill();

    let of = |kind: &str| -> Vec<&Value> { tab.log.iter().filter(|m| m["type"] == kind).collect() };
    let planted = of("planted");
    assert_eq!(planted.len(), 4);
    for text in planted {
        let (failed, name) = (&text["failed"], &text["name"]);
        // Without a name it is good.
        assert_eq!(failed["name"], *name, "{text}");
        if let Some(line) = text["line"].as_u64() {
            let problem = failed["problem"].as_str().unwrap_or_default();
            assert!(problem.starts_with(&format!("line {line}: ")), "{text}");
        }
        // So that it is known what only a browser sees.
        assert_eq!(text["naga"], text["naga_expected"], "{text}");
    }

    let results = of("result");
    let wrong: Vec<&&Value> = results.iter().filter(|result| result["ok"] != true).collect();
    wrong.iter().for_each(|result| println!("wrong: {result}"));
    println!("{} kernels and operations, {} wrong", results.len(), wrong.len());
    assert!(wrong.is_empty());
    // Each kernel of the table, and every operation with both choices of kernels.
    let (operations, kernels): (Vec<_>, Vec<_>) = results
        .into_iter()
        .partition(|result| result["name"].as_str().is_some_and(|name| name.ends_with(')')));
    assert_eq!(kernels.len(), annulus_shaders::KERNELS.len());
    assert!(
        !operations.is_empty() && operations.len().is_multiple_of(2),
        "{}",
        operations.len()
    );
    assert_eq!(done["strangers"].as_array().map(Vec::len), Some(0), "{done}");
}
