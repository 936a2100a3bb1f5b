//! Browser tabs as members of the ring: real pages in a real Chromium, beside a native node.

use crate::chromium::{CPU, GPU, assert_same, join_alone, ready, weight};
use crate::common::*;
use annulus::device::OpenDevice;
use annulus::offline::replay::Replay;
use annulus::store::ledger_file::Entry;
use annulus::store::run_dir::RunDir;
use annulus::task_factory::TaskFactory;
use annulus::tasks::digits::Digits;
use annulus::tasks::gpt::Gpt;
use annulus::trainer::TrainerOptions;
use annulus_core::ledger::Record;
use annulus_core::shuffle::Shuffle;
use annulus_core::{PeerId, Round};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Asserts that these tabs' contributions are in the state that all committed. It recomputes rounds between two checkpoints
/// of the node: once as recorded, and once with zeros for the tabs' sums. Only the first may lead to the committed
/// parameters.
fn assert_used(dir: &str, tabs: &[String]) {
    let dir = RunDir::open(Path::new(dir)).expect("a run");
    let manifest = dir.manifest();
    let entries = dir
        .entries()
        .expect("a ledger")
        .map(|entry| entry.expect("whole"));
    let records: BTreeMap<Round, Record> = entries
        .filter_map(|entry| match entry {
            Entry::Round { record, .. } => Some((record.round, record)),
            _ => None,
        })
        .collect();
    let counts = |record: &Record, tab: &String| {
        record
            .headers
            .iter()
            .any(|h| h.peer.to_hex() == *tab && h.weight > 0)
    };
    let saved: Vec<Round> = dir
        .checkpoints()
        .expect("checkpoints")
        .iter()
        .map(|f| f.round)
        .collect();
    let (from, to) = saved
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .find(|(from, to)| {
            tabs.iter()
                .all(|tab| records.range(from + 1..=*to).any(|(_, r)| counts(r, tab)))
        })
        .expect("two checkpoints between which both tabs contributed");
    let start = dir.load(from).expect("a checkpoint");
    let committed = dir.load(to).expect("a checkpoint").state.params;

    let factories = [TaskFactory::of::<Digits>(), TaskFactory::of::<Gpt>()];
    let factory = factories
        .iter()
        .find(|r| r.name == manifest.task)
        .expect("a stock task");
    let task = (factory.load)(&manifest.task_config, None).expect("a task without files");
    let options = TrainerOptions {
        seed: manifest.seed,
        micro_batch: manifest.micro_batch as usize,
    };
    let mut worker = task.worker_factory(OpenDevice::cpu(), options)().expect("a worker");
    let shuffle = Shuffle::of(manifest);
    let mut recompute = |left_out: &[String]| {
        let mut replay = Replay::new(manifest.clone(), start.head.clone(), start.state.clone());
        for (round, record) in records.range(from + 1..=to) {
            // Asked for in this order.
            let mut whose = record.headers.iter().filter(|h| h.weight > 0).map(|h| h.peer);
            let made = replay.round(record, |asked| {
                let peer: PeerId = whose.next().expect("no more than have a weight");
                if left_out.contains(&peer.to_hex()) {
                    return Ok(vec![0.0; asked.params.len()]);
                }
                let samples = shuffle.draws(&asked.positions);
                worker
                    .contribute(asked.params.to_vec(), &samples)
                    .map(|made| made.gradient)
            });
            made.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        replay.state().params.clone()
    };
    let (with, without) = (recompute(&[]), recompute(tabs));
    let distance = |a: &[f32], b: &[f32]| {
        let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let moved = distance(&start.state.params, &committed);
    let off = |params: &[f32]| distance(params, &committed) / moved;
    println!(
        "rounds {} to {to}: recomputed with the tabs the parameters are off by {:.1e} of the way that they moved, without \
         them by {:.1e}",
        from + 1,
        off(&with),
        off(&without)
    );
    // Tabs and this processor round in other ways, and each round makes more of it.
    assert!(
        off(&with) < off(&without) / 30.0 && off(&with) < 1e-5,
        "the record does not lead to what was committed"
    );
}

/// A node and two tabs train; one tab is closed without a word, another's GPU crashes, a third joins late.
fn through_thick_and_thin(name: &'static str, settings: &[&str]) {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new(name);
    let train = [
        &["train", "--device", "cpu", "rounds=1000000", "seed=1"][..],
        // So that what was committed can be recomputed from states close by.
        &["checkpoint_every=5", "keep=100"],
        settings,
    ]
    .concat();
    let mut node = Node::start("node", folder.join("node"), &train);
    let url = node.url();
    let mut first = join_alone(&browser, "first", &url, GPU);
    let mut second = join_alone(&browser, "second", &url, GPU);
    first.members(3);
    second.members(3);
    node.rounds(15);
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

    assert_used(&node.dir, &[first.peer(), second.peer()]);

    let gone = first.peer();
    first.listen();
    first.kill();
    node.wait("the end of a closed tab", |seen| {
        seen.is("member") && seen.event["peer"] == *gone && seen.event["change"] != "joined"
    });
    node.rounds(3);

    let mut third = join_alone(&browser, "third", &url, GPU);
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
    assert!(node.leave(), "{}", node.errors());
    assert!(assert_same(&mut second, &node) >= 10);
    assert!(assert_same(&mut third, &node) >= 3);
    assert_gapless(&mut node);
    assert_audited(&node);
}

#[test]
fn digits_in_tabs() {
    // Rounds so long that a tab can do a sample in one: who cannot stands by.
    through_thick_and_thin("digits", &["--task", "digits", "batch=2048"]);
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
        "batch=192",
    ];
    through_thick_and_thin("gpt", &tiny);
}

/// What a peer's page shows to whoever only watches needs nothing built.
#[test]
fn a_watched_page_shows_where_its_peers_time_goes() {
    let _turn = beside();
    let Some(browser) = crate::chromium::installed() else {
        eprintln!("skipped: no Chromium is installed (Debian: chromium), so no page can be looked at");
        return;
    };
    let folder = Folder::new("watched-time");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../browser/page");
    let page = page.to_string_lossy();
    let train = [&LONG_DIRECT[..], &["--page", &page]].concat();
    let mut node = Node::start("watched", folder.join("watched"), &train);
    let ticket = node.ticket();
    let mut other = crate::common::join(&folder, "other", &ticket);
    node.members(2);
    let mut tab = crate::chromium::Tab::open(&browser, "watching", &node.url());
    let text = |id: &str| format!("document.getElementById('{id}')?.textContent");
    let gain = text("time-reading");
    tab.until(
        "the gain is told",
        &format!("/^[0-9.]+ times as fast as this peer alone, .*B sent for each sample$/.test({gain})"),
    );
    let widths =
        tab.evaluate("[...document.querySelectorAll('.lane i')].map((part) => parseFloat(part.style.width))");
    let widths: Vec<f64> = serde_json::from_value(widths).expect("three widths");
    assert!(widths.len() == 3 && widths[0] > 0.0, "{widths:?}");
    assert!(
        widths[0] + widths[2] <= 100.01 && widths[1] <= widths[0],
        "{widths:?}"
    );
    // A tab that takes part sums its own rounds up as the node does: computing ends after 3 s of 4, the exchange of 2 s with it.
    let shares = tab.evaluate(
        "import('./time.js').then((time) => time.shares([1, 2].map(() => ({seconds: 2, compute_seconds: 1.5, \
         reduce_seconds: 1, samples: 40, members: [{peer: 'a', weight: 10}, {peer: 'b', weight: 30}]})), 'a'))",
    );
    let wanted = serde_json::json!({"compute": 0.75, "exchange": 0.25, "hidden": 0.25, "speed_up": 3});
    assert_eq!(shares, wanted);
    assert!(node.leave() && other.leave());
}

/// Samples that a run counted in a second, over some time from now on.
fn rate(node: &Node, time: Duration) -> f64 {
    let from = Instant::now();
    sleep(time);
    let rounds = node.log().into_iter().filter(|seen| seen.is("round"));
    let members = rounds
        .filter(|seen| seen.at >= from)
        .filter_map(|seen| seen.event["members"].as_array().cloned());
    let weights = members.flatten().filter_map(|member| member["weight"].as_u64());
    weights.sum::<u64>() as f64 / from.elapsed().as_secs_f64()
}

/// Both want the same cores.
#[test]
#[ignore = "measures for six minutes; `cargo xtask prove` runs it"]
fn a_tab_on_the_machine_of_a_peer_costs_the_run_little() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    for button in [CPU, GPU] {
        let folder = Folder::new("beside-a-tab");
        let train = [
            &["train", "--task", "gpt", "rounds=1000000", "--device", "cpu"][..],
            &["stand_aside=on"],
        ]
        .concat();
        let mut node = Node::start("node", folder.join("node"), &train);
        node.rounds(5);
        let before = rate(&node, Duration::from_secs(30));
        let mut tab = join_alone(&browser, "tab", &node.url(), button);
        let peer = tab.peer();
        node.wait("the tab takes part", |seen| {
            seen.is("round") && seen.members().contains(&peer)
        });
        // The run finds out what the tab brings, and tries it again after half a minute, a minute, and two.
        sleep(Duration::from_secs(10));
        let rates: Vec<f64> = (0..12).map(|_| rate(&node, Duration::from_secs(10))).collect();
        let with = rates.iter().sum::<f64>() / rates.len() as f64;
        let computed = weight(&node, &peer);
        tab.kill();
        sleep(Duration::from_secs(5));
        // The machine's own speed drifts by as much as a tenth in minutes.
        let after = rate(&node, Duration::from_secs(30));
        println!(
            "{button}: {before:.0} and {after:.0} samples/s without the tab, {with:.0} with it ({rates:.0?}); it computed \
             {computed} samples"
        );
        assert!(with > 0.8 * (before + after) / 2.0);
    }
}
