//! Browser tabs train models that come as a file, and models of pictures: real pages in a real Chromium, beside a native peer
//! that has the files.

use crate::chromium::{CPU, GPU, assert_same, ready, weight};
use crate::common::*;
use crate::exported::exported;
use crate::png::colour_png;
use std::path::Path;

/// A tab joins a run of a model from a file.
fn in_a_tab(model: &str, times: usize, settings: &[&str], button: &str) {
    let folder = Folder::new(&format!("tab-{model}"));
    let data = exported(&folder.0, model, times).display().to_string();
    let args = ["--task", "graph", "--data", &data];
    joined(model, &folder, &[&args[..], settings].concat(), button);
}

/// A tab joins a run, contributes and leaves. Both members had the same bits, the record is sound, and a recomputation leads to
/// the state that they committed.
fn joined(model: &str, folder: &Folder, settings: &[&str], button: &str) {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let args = ["train", "--device", "cpu", "rounds=1000000", "lr=1e-2"];
    let args = [&args[..], settings].concat();
    let mut node = Node::start("node", folder.join("node"), &args);
    let mut tab = crate::chromium::join(&browser, "tab", &node.url(), button);
    tab.members(2);
    let peer = tab.peer();
    let (from, mut rounds) = (node.seen(), 0);
    while rounds < 5 || weight(&node, &peer) == 0 {
        node.wait_from(from + rounds, "a round", |seen| seen.is("round"));
        rounds += 1;
        assert!(rounds < 2_000, "the tab contributed nothing\n{}", tab.story());
    }
    let device = &tab.wait("its device", |message| message["event"]["event"] == "ready")["event"]["device"];
    println!(
        "{model} on {device}: {} samples in {rounds} rounds",
        weight(&node, &peer)
    );
    tab.listen();
    tab.click("Leave");
    tab.wait("the way out", |message| message["state"] == "left");
    assert!(node.leave(), "{}", node.errors());
    assert!(assert_same(&mut tab, &node) >= 5);
    assert_gapless(&mut node);
    assert_audited(&node);
    let (good, text) = replay(&node);
    println!("{text}");
    let verdicts = ["exact", "within"].map(|verdict| format!("\"verdict\":\"{verdict}\""));
    assert!(
        good && verdicts.iter().any(|verdict| text.contains(verdict)),
        "{text}"
    );
}

#[test]
fn a_perceptron_on_a_tabs_processor() {
    in_a_tab("mlp", 1_000, &["batch=4096"], CPU);
}

#[test]
fn a_perceptron_on_a_tabs_gpu() {
    in_a_tab("mlp", 1_000, &["batch=4096"], GPU);
}

/// Batch norm, tables of rows and integers; half of the samples are held out.
#[test]
fn a_table_with_batch_norm_on_a_tabs_processor() {
    in_a_tab("tabular", 1_000, &["batch=1024", "held_out=0.5"], CPU);
}

/// Convolutions and max-pooling are Burn's own kernels, which a tab compares with the processor's.
#[test]
fn convolutions_on_a_tabs_gpu() {
    in_a_tab("cnn", 100, &["batch=128"], GPU);
}

/// The native peer packs the pictures, and the tab fetches the packed file.
#[test]
fn pictures_on_a_tabs_processor() {
    let folder = Folder::new("tab-pictures");
    let top = folder.join("flowers");
    for (class, red) in [("rose", 200), ("leaf", 60)] {
        let place = Path::new(&top).join(class);
        std::fs::create_dir_all(&place).expect("writable");
        for at in 0..60u32 {
            let picture = colour_png(20, 20, |x, y| [red, 100, ((x * 7 + y * 13 + at * 29) % 80) as u8]);
            std::fs::write(place.join(format!("{at}.png")), picture).expect("writable");
        }
    }
    joined("pictures", &folder, &["--data", &top, "batch=96"], CPU);
}
