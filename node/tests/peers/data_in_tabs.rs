//! Browser tabs in runs whose data they have to fetch: real pages in a real Chromium, beside native nodes.

use crate::chromium::{CPU, Tab, assert_same, ready};
use crate::common::*;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

const GPT: [&str; 9] = [
    "--task",
    "gpt",
    "layers=1",
    "heads=2",
    "width=32",
    "context=32",
    "batch=12",
    "vocabulary=characters",
    "rounds=1000000",
];

/// Text in which every line is another.
fn text(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 64);
    for line in 0.. {
        text.push_str(&format!("{line} bottles of żółć on the wall\n"));
        if text.len() >= bytes {
            break;
        }
    }
    text
}

fn train(folder: &Folder, data: &Path, args: &[&str]) -> Node {
    let data = data.display().to_string();
    let args = [&["train", "--device", "cpu", "--data", &data], args].concat();
    Node::start("node", folder.join("node"), &args)
}

/// Opens the page and takes part with the processor: the GPU's compiler of kernels is slow here, and not what is tried.
fn join(browser: &Path, name: &'static str, url: &str) -> Tab {
    crate::chromium::join(browser, name, url, CPU)
}

/// What a tab told of its fetching: bytes and total, in order.
fn fetched(tab: &mut Tab) -> Vec<(u64, u64)> {
    tab.listen();
    let number = |value: &Value| value.as_u64().expect("a number");
    let events = tab.log.iter().map(|message| &message["event"]);
    let told = events.filter(|event| event["event"] == "fetch");
    told.map(|event| (number(&event["bytes"]), number(&event["total"])))
        .collect()
}

#[test]
fn a_tab_fetches_a_text() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("tab-text");
    let data = folder.0.join("book.txt");
    let book = text(20_000_000);
    std::fs::write(&data, &book).expect("writable");
    let mut node = train(&folder, &data, &GPT);
    let mut tab = join(&browser, "tab", &node.url());
    tab.wait("word of the fetching", |message| message["state"] == "fetching");
    let begin = Instant::now();
    tab.until(
        "shown the progress",
        "document.title.startsWith(\"Fetching the run's data\") \
         && / of 20(\\.\\d+)?\\sMB$/.test(document.getElementById('progress-text').textContent)",
    );
    tab.wait("all of the data", |message| {
        message["event"]["event"] == "fetch" && message["event"]["bytes"] == message["event"]["total"]
    });
    let seconds = begin.elapsed().as_secs_f64();
    println!("{:.1} MB/s", book.len() as f64 / 1e6 / seconds);
    tab.members(2);
    node.rounds(20);
    let told = fetched(&mut tab);
    let total = book.len() as u64;
    assert_eq!(
        (told.first(), told.last()),
        (Some(&(0, total)), Some(&(total, total)))
    );
    tab.click("Leave");
    tab.wait("the way out", |message| message["state"] == "left");
    assert!(node.leave(), "{}", node.errors());
    assert!(assert_same(&mut tab, &node) >= 10);
    assert_gapless(&mut node);
    assert_audited(&node);
}

#[test]
fn a_tab_goes_on_from_another_when_its_host_dies() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("tab-death");
    let data = folder.0.join("book.txt");
    let total = 60_000_000;
    std::fs::write(&data, text(total)).expect("writable");
    let mut node = train(&folder, &data, &GPT);
    let ticket = node.ticket();
    let data = data.display().to_string();
    let args = ["join", &ticket, "--device", "cpu", "--data", &data];
    let mut second = Node::start("second", folder.join("second"), &args);
    second.members(2);
    let mut tab = join(&browser, "tab", &node.url());
    tab.wait("some of the data", |message| {
        message["event"]["event"] == "fetch" && message["event"]["bytes"].as_u64() > Some(2_000_000)
    });
    node.kill();
    let told = fetched(&mut tab);
    println!("killed after {:?}", told.last());
    assert!(
        told.last() < Some(&(total as u64, 0)),
        "all was there before the node died"
    );
    tab.members(2);
    second.rounds(10);
    assert!(fetched(&mut tab).is_sorted(), "it began again");
    tab.click("Leave");
    tab.wait("the way out", |message| message["state"] == "left");
    assert!(second.leave(), "{}", second.errors());
    assert!(assert_same(&mut tab, &second) >= 5);
}

#[test]
fn a_tab_fetches_a_set_of_several_files() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("tab-several");
    let data = folder.0.join("set");
    std::fs::create_dir_all(&data).expect("a folder");
    let images = 200u32;
    let be = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
    let pixels = (0..images * 784).map(|i| (i.wrapping_mul(i) >> 7) as u8);
    let file = [be(&[0x0803, images, 28, 28]), pixels.collect()].concat();
    std::fs::write(data.join("images-idx3-ubyte"), file).expect("writable");
    let labels = (0..images).map(|i| (i % 10) as u8);
    let file = [be(&[0x0801, images]), labels.collect()].concat();
    std::fs::write(data.join("labels-idx1-ubyte"), file).expect("writable");
    let mut node = train(&folder, &data, &["rounds=1000000", "hidden=8"]);
    let mut tab = join(&browser, "tab", &node.url());
    tab.members(2);
    node.rounds(20);
    tab.click("Leave");
    tab.wait("the way out", |message| message["state"] == "left");
    assert!(node.leave(), "{}", node.errors());
    assert!(assert_same(&mut tab, &node) >= 10);
}

#[test]
fn a_tab_is_told_what_it_cannot_have() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("tab-refused");
    let data = folder.0.join("book.txt");
    std::fs::write(&data, text(100_000)).expect("writable");
    let mut node = train(&folder, &data, &[&GPT[..], &["--keep-data"]].concat());
    let mut tab = Tab::open(&browser, "kept", &node.url());
    tab.until(
        "warned",
        "document.getElementById('text')?.textContent.includes('processor')",
    );
    tab.click(CPU);
    let failed = tab.wait("the refusal", |message| message["type"] == "failed");
    assert_eq!(failed["kind"], "no-data", "{failed}");
    tab.until("told", "document.title.startsWith('This run keeps its data')");
    drop(tab);
    assert!(node.leave(), "{}", node.errors());
    drop(node);

    // Larger than what a tab takes, though there is hardly anything in it.
    let data = folder.0.join("large");
    let file = std::fs::File::create(&data).expect("writable");
    file.set_len(600 << 20).expect("room for a hole");
    let args = ["--task", "gpt", "preset=pico", "rounds=1000000"];
    std::fs::remove_dir_all(folder.join("node")).expect("removable");
    let mut node = train(&folder, &data, &args);
    let mut tab = Tab::open(&browser, "large", &node.url());
    tab.until(
        "told beforehand",
        "document.title.startsWith(\"This run's data is too large for a tab\")",
    );
    assert_eq!(
        tab.evaluate("document.querySelectorAll('#actions .button').length"),
        1
    );
    assert!(node.leave(), "{}", node.errors());
}
