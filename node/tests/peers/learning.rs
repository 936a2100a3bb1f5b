//! The purpose of a run: several peers learn what one would, and hold the same bits on any mix of devices. A run that
//! stopped goes on as if it had not.

use crate::common::*;
use std::path::Path;

/// Starts a run of three that begins when all are there, and waits for its end.
fn run_of_three(folder: &Folder, second: &str, settings: &[&str]) -> Vec<Node> {
    let mut args = vec!["train", "--task", "digits", "--device", "cpu", "min_peers=3"];
    args.extend(settings);
    let mut nodes = vec![Node::start("first", folder.join("first"), &args)];
    let ticket = nodes[0].ticket();
    nodes.push(Node::start(
        "second",
        folder.join("second"),
        &["join", &ticket, "--device", second],
    ));
    nodes.push(Node::start(
        "third",
        folder.join("third"),
        &["join", &ticket, "--device", "cpu"],
    ));
    for node in &mut nodes {
        node.wait("the end", |s| s.is("done"));
        assert!(node.end().success(), "{}: {}", node.name, node.errors());
    }
    nodes
}

fn done(node: &mut Node) -> serde_json::Value {
    node.wait("the end", |s| s.is("done")).event
}

/// Every round's digest is the same on all three, and so is the result.
fn assert_same(nodes: &mut [Node], rounds: usize) {
    let shared = assert_equal(&nodes.iter().collect::<Vec<_>>());
    assert!(shared >= 2 * rounds, "{shared} rounds compared");
    let results: Vec<_> = nodes.iter_mut().map(done).collect();
    for result in &results {
        assert_eq!(result["digest"], results[0]["digest"]);
    }
    for node in nodes.iter() {
        assert_audited(node);
    }
}

#[test]
fn three_peers_learn_mnist() {
    let Some(data) = data("mnist") else { return };
    let data = data.display().to_string();
    let _turn = beside();
    let folder = Folder::new("mnist");
    let settings = [
        "--data",
        &data,
        "optimizer=adam",
        "lr=1e-3",
        "batch=64",
        "epochs=5",
        "seed=1",
    ];
    let mut nodes = run_of_three(&folder, "cpu", &settings);
    assert_same(&mut nodes, 620);
    let accuracy = done(&mut nodes[0])["metrics"]["accuracy"]
        .as_f64()
        .expect("an accuracy");
    println!("three peers, MNIST, 5 epochs: {:.2} %", 100.0 * accuracy);
    assert!(accuracy >= 0.94, "{accuracy}");
    // The first peer's folder tells the whole run: alone it gives the same bits.
    assert_replays_exactly(&nodes[0]);
}

#[test]
fn gpu_and_cpu_in_one_run() {
    let adapters = run(&["doctor"]);
    if !String::from_utf8_lossy(&adapters.stdout).contains("gpu:0") {
        eprintln!("skipped: there is no Vulkan adapter, not even a software one");
        return;
    }
    let _turn = beside();
    let folder = Folder::new("mixed");
    let mut nodes = run_of_three(&folder, "gpu", &["rounds=60", "train=2000", "test=500"]);
    assert_same(&mut nodes, 50);
    let gpu = nodes[1].peer();
    let worked = nodes[0].log().iter().any(|s| {
        let shares = s.event["members"].as_array().cloned().unwrap_or_default();
        s.is("round")
            && shares
                .iter()
                .any(|m| m["peer"] == gpu.as_str() && m["weight"].as_u64() > Some(0))
    });
    assert!(worked, "the GPU's contributions count");
}

#[test]
fn a_stopped_run_goes_on_with_the_same_bits() {
    let _turn = beside();
    let folder = Folder::new("resume");
    let settings = [
        "train",
        "--task",
        "digits",
        "--device",
        "cpu",
        "rounds=600",
        "train=2000",
        "test=500",
    ];
    let mut whole = Node::start("whole", folder.join("whole"), &settings);
    let whole = done(&mut whole);
    let mut args = settings.to_vec();
    args.push("checkpoint_every=10");
    let mut first = Node::start("first", folder.join("run"), &args);
    // A slow disk leaves some out.
    let checkpoints = folder.0.join("run/checkpoints");
    let saved = || std::fs::read_dir(&checkpoints).map_or(0, |entries| entries.count());
    first.wait("round 45 and two checkpoints", |s| {
        s.is("round") && s.round() >= 45 && saved() >= 2
    });
    first.kill();
    // The newest checkpoint is damaged: the one before it is used, and says so.
    let mut saved: Vec<_> = std::fs::read_dir(&checkpoints)
        .expect("checkpoints")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    saved.sort();
    let newest = saved.last().expect("a checkpoint");
    let mut bytes = std::fs::read(newest).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(newest, bytes).expect("writable");
    let resume = ["resume", &folder.join("run"), "--device", "cpu"];
    let mut second = Node::start_as("second", folder.join("run"), Path::new("."), &resume);
    let warning = second.wait("a warning", |s| s.is("warning"));
    println!("{}", warning.event["message"]);
    let resumed = done(&mut second);
    assert_eq!(resumed["digest"], whole["digest"]);
    assert_eq!(resumed["round"], whole["round"]);
    assert_eq!(inspect(&folder.join("run"))["audit"]["sound"], true);
}
