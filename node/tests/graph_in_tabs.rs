//! Browser tabs train a model that comes as a file: real pages in a real Chromium, beside a native peer that has the file.

mod chromium;
mod common;
mod exported;

use chromium::{CPU, GPU, assert_same, ready, weight};
use common::*;
use exported::exported;

/// A tab joins a model's run, contributes and leaves. Both members had the same bits, the record is sound, and a recomputation
/// leads to the state that they committed.
fn in_a_tab(model: &str, times: usize, settings: &[&str], button: &str) {
    let Some(browser) = ready() else { return };
    let _alone = alone();
    let folder = Folder::new(&format!("tab-{model}"));
    let data = exported(&folder.0, model, times).display().to_string();
    let args = ["train", "--device", "cpu", "--task", "graph", "--data", &data];
    let args = [&args[..], &["rounds=1000000", "lr=1e-2"], settings].concat();
    let mut node = Node::start("node", folder.join("node"), &args);
    let mut tab = chromium::join(&browser, "tab", &node.url(), button);
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
