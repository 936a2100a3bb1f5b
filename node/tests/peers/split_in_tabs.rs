//! A browser tab that holds a span of a model which is split over the members of a run: a real page in a real Chromium, between
//! two native processes that hold the ends.

use crate::chromium::{CPU, ready};
use crate::common::*;
use annulus::store::ledger_file::Entry;
use annulus::store::run_dir::RunDir;
use annulus_core::ledger::{Header, Record};
use annulus_core::parts::{PartSet, Parts};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A small language model, of six blocks, and how it is trained here.
const MODEL: [&str; 13] = [
    "train",
    "--task",
    "gpt",
    "--device",
    "cpu",
    "preset=pico",
    "layers=6",
    "context=16",
    "batch=8",
    "micro_batch=1",
    "clip=1",
    "copies=1",
    "boundary=f32",
];

/// The records of the rounds that counted samples.
fn trained(node: &Node) -> Vec<Record> {
    let dir = RunDir::open(Path::new(&node.dir)).expect("a run");
    let entries = dir.entries().expect("a ledger");
    let records = entries.filter_map(|entry| match entry.expect("whole") {
        Entry::Round { record, .. } => Some(record),
        _ => None,
    });
    records.filter(|record| record.weight() > 0).collect()
}

/// The digest of each part, weights and moments, before a round, as its headers tell.
fn parts(record: &Record) -> BTreeMap<u16, u64> {
    let of = |header: &Header| {
        let kept: Vec<u16> = header.keeps.kept.iter().collect();
        kept.into_iter()
            .zip(header.keeps.digests.clone())
            .collect::<Vec<_>>()
    };
    record.headers.iter().flat_map(|header| of(header)).collect()
}

#[test]
fn a_tab_holds_the_middle_between_two_processes() {
    holds_the_middle("split-tab", &MODEL, None);
}

/// The tab fetches the model, and leaves the samples where they are.
#[test]
fn a_tab_holds_the_middle_of_a_model_from_a_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/fixtures/nanogpt");
    let data = folder.display().to_string();
    let model = ["train", "--task", "graph", "--data", &data, "--device", "cpu"];
    let settings = ["batch=8", "micro_batch=1", "clip=1", "copies=1", "boundary=f32"];
    let size = |file: &str| folder.join(file).metadata().expect("a fixture").len();
    let bytes = size("model.onnx") + size("weights.safetensors");
    holds_the_middle("split-tab-file", &[&model[..], &settings].concat(), Some(bytes));
}

/// A run of this model in three spans, of which a tab holds the second. It fetches this many bytes of the run's data.
fn holds_the_middle(name: &str, model: &[&str], fetched: Option<u64>) {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new(name);
    let found = |name: &'static str, more: &[&str]| {
        let args = [model, &["split=3", "rounds=12"], more].concat();
        Node::start(name, folder.join(name), &args)
    };
    let mut lone = found("lone", &["--no-page"]);
    assert!(lone.end().success(), "{}", lone.errors());

    let mut first = found("first", &["--spans", "1", "--log-tickets"]);
    // The link that it shows to guests of its page.
    let url = first.ready().event["url"].as_str().expect("a page").to_owned();
    // Once the tab is in, no more rounds are made until there is somebody for the last span.
    let before = first.seen();
    let mut tab = crate::chromium::join(&browser, "tab", &url, CPU);
    let name = tab.peer();
    first.wait_from(before, "a round of two", |seen| {
        seen.is("round") && seen.members().len() == 2
    });
    let join = [
        "join",
        &first.ticket(),
        "--device",
        "cpu",
        "--no-page",
        "--spans",
        "1",
    ];
    let mut last = Node::start("last", folder.join("last"), &join);
    tab.wait("training", |message| message["state"] == "training");
    for node in [&mut first, &mut last] {
        assert!(node.end().success(), "{}: {}", node.name, node.errors());
        assert_gapless(node);
        assert_audited(node);
    }
    tab.wait("the end", |message| message["state"] == "ended");
    let fetches = |message: &&Value| message["event"]["event"] == "fetch";
    let last = tab.log.iter().rfind(fetches);
    let got = last.map(|message| [&message["event"]["bytes"], &message["event"]["total"]].map(Value::as_u64));
    assert_eq!(got, fetched.map(|bytes| [Some(bytes); 2]));

    // By the ledger it holds the middle, and neither end.
    let manifest = RunDir::open(Path::new(&first.dir))
        .expect("a run")
        .manifest()
        .clone();
    let (split, all) = (manifest.split.as_ref().unwrap(), Parts::of(&manifest).unwrap());
    let (with, without) = (trained(&first), trained(&lone));
    for record in &with {
        let holds = |header: &Header, span: usize| {
            let needs: PartSet = split.parts(all, span);
            needs.without(&header.keeps.kept).is_empty()
        };
        for header in &record.headers {
            let held = [0, 1, 2].map(|span| holds(header, span));
            let of_tab = header.peer.to_hex() == name;
            assert_eq!((header.keeps.room.inner, held[1]), (of_tab, of_tab), "{held:?}");
            assert!(!of_tab || (!held[0] && !held[2]), "{held:?}");
        }
    }
    // One process alone gives the same: the tab's initial weights to the bit, later values nearly, because WASM has no fused
    // multiply-add and so rounds products twice.
    assert_eq!((with.len(), without.len()), (12, 12));
    assert_eq!(parts(&with[0]), parts(&without[0]));
    assert_eq!(parts(&with[0]).len(), all.count());
    let mut off = 0.0f32;
    for (ours, theirs) in with.iter().zip(&without) {
        let (ours, theirs) = (ours.loss(), theirs.loss());
        off = off.max((ours - theirs).abs() / theirs);
    }
    println!("losses are off by {off:.1e}");
    assert!(off < 1e-5, "losses are off by {off:.1e}");
}

#[test]
fn a_tab_is_told_where_there_is_no_middle() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("split-no-middle");
    let args = [&MODEL[..], &["split=2", "--spans", "1"]].concat();
    let mut node = Node::start("ends", folder.join("ends"), &args);
    node.wait("a word to whoever has founded it", |seen| {
        let message = seen.event["message"].as_str().unwrap_or_default();
        message.contains("tabs can take no part") && message.contains("split=3")
    });
    let mut tab = crate::chromium::Tab::open(&browser, "tab", &node.url());
    tab.until(
        "told",
        "document.body?.textContent.includes('This run has no part for a tab')",
    );
    // So is a page that does not know.
    tab.evaluate("self.__worker.postMessage({type: 'start', ticket: location.hash.slice(1), backend: 'cpu', power: 1})");
    let failed = tab.wait("a refusal", |message| message["type"] == "failed");
    assert_eq!(failed["kind"], "no-middle", "{failed}");
    assert!(
        failed["message"].as_str().unwrap_or_default().contains("2 spans"),
        "{failed}"
    );
    node.kill();
}
