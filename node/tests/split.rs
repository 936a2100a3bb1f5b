//! A model split over the members of a run, as real processes: the same bits whoever holds which span, members that are killed
//! in the middle of a round, and machines that are too small for the whole model.

mod common;

use annulus::store::run_dir::RunDir;
use common::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// A small language model, and how it is trained here.
const MODEL: [&str; 13] = [
    "train",
    "--task",
    "gpt",
    "--device",
    "cpu",
    "--no-page",
    "preset=pico",
    "context=16",
    "batch=8",
    "micro_batch=1",
    "clip=1",
    "keep=9",
    "--boundary=f32",
];

/// Starts a run with these settings.
fn found(folder: &Folder, name: &'static str, settings: &[&str]) -> Node {
    Node::start(name, folder.join(name), &[&MODEL, settings].concat())
}

/// One that joins, and holds so many spans at most.
fn holder(folder: &Folder, name: &'static str, ticket: &str, spans: &str) -> Node {
    let limits = ["--spans", spans, "checkpoint_every=1"];
    let args = [&["join", ticket, "--device", "cpu", "--no-page"], &limits[..]].concat();
    Node::start(name, folder.join(name), &args)
}

/// The digest of each part in the newest checkpoint of a folder: its weights and moments.
fn parts(node: &Node) -> BTreeMap<u16, u64> {
    let dir = RunDir::open(Path::new(&node.dir)).expect("a run");
    let kept = dir.load_latest().expect("a checkpoint").state.kept;
    let of = |part| (part, kept.digest(part).expect("it is kept"));
    kept.set().iter().map(of).collect()
}

/// The losses of the rounds that counted samples, in their order.
fn losses(node: &Node) -> Vec<String> {
    let rounds = node
        .log()
        .into_iter()
        .filter(|s| s.is("round") && s.event["samples"] != 0);
    rounds.map(|s| s.event["loss"].to_string()).collect()
}

fn end(nodes: &mut [Node]) {
    for node in nodes {
        assert!(node.end().success(), "{}: {}", node.name, node.errors());
        assert_gapless(node);
        assert_audited(node);
    }
}

/// Trains a model by one process, and then cut into so many spans with so many copies of each, one span a process: all have the
/// same bits, and the replay of what the founders have recorded too.
fn whoever_holds_them(folder: &Folder, model: &str, rounds: usize, cases: &[(usize, usize)]) {
    let start = |name: &'static str, (spans, copies): (usize, usize), peer: &str| {
        let peers = spans * copies;
        let cut =
            format!("--split {spans} --copies {copies} min_peers={peers} rounds={rounds} {model} {peer}");
        found(folder, name, &cut.split_whitespace().collect::<Vec<_>>())
    };
    let mut alone = [start("alone", (1, 1), "")];
    end(&mut alone);
    assert_replays_exactly(&alone[0]);
    let (bits, expected) = (parts(&alone[0]), losses(&alone[0]));
    assert_eq!(expected.len(), rounds);
    for (spans, copies) in cases {
        let name = |at: usize| -> &'static str { format!("{spans}x{copies}-{at}").leak() };
        let mut first = start(name(0), (*spans, *copies), "--spans 1");
        let ticket = first.ticket();
        let mut nodes = vec![first];
        nodes.extend((1..spans * copies).map(|at| holder(folder, name(at), &ticket, "1")));
        end(&mut nodes);
        let mut all = BTreeMap::new();
        for node in &nodes {
            let (held, of_all) = (parts(node), bits.len());
            assert_eq!(
                held.len() < of_all,
                *spans > 1,
                "{} holds {} of {of_all}",
                node.name,
                held.len()
            );
            for (part, digest) in held {
                assert_eq!(bits[&part], digest, "part {part} of {}", node.name);
                all.insert(part, digest);
            }
            // Who came when some rounds were over has the last of them.
            assert!(expected.ends_with(&losses(node)), "{}", node.name);
        }
        assert_eq!(all, bits, "in {spans} spans by {copies}");
        assert_replays_exactly(&nodes[0]);
        println!("{spans} spans, each by {copies}: the same {} parts", all.len());
    }
}

#[test]
fn whoever_holds_the_spans_makes_the_same_bits() {
    let _alone = alone();
    let folder = Folder::new("split");
    whoever_holds_them(&folder, "layers=6", 12, &[(4, 1), (2, 2)]);
}

/// One span with one holder is the process alone.
#[test]
#[ignore = "the same for minutes"]
fn whoever_holds_eight_blocks_makes_the_same_bits() {
    let _alone = alone();
    let folder = Folder::new("split-eight");
    let cases = [(2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (8, 2)];
    whoever_holds_them(&folder, "layers=8", 50, &cases);
}

#[test]
fn two_spans_by_two_outlive_a_killed_holder_and_wait_for_who_has_what_is_missing() {
    let _alone = alone();
    let folder = Folder::new("split-killed");
    let settings = [
        "--split",
        "2",
        "--spans",
        "1",
        "rounds=100000",
        "layers=6",
        "batch=48",
        "checkpoint_every=1",
    ];
    let mut first = found(&folder, "first", &settings);
    let ticket = first.ticket();
    let names = ["second", "third", "fourth"];
    let mut nodes = vec![first];
    nodes.extend(names.map(|name| holder(&folder, name, &ticket, "1")));
    for node in &mut nodes {
        node.members(4);
        node.rounds(5);
    }
    // In the middle of some round.
    let mut victim = nodes.remove(2);
    let (name, since) = (victim.peer(), victim.kill());
    for node in &mut nodes {
        let round = node.wait("a round without the killed one", |s| {
            let counts = s.is("round") && s.event["samples"] != 0;
            s.at >= since && counts && !s.members().contains(&name)
        });
        println!("{}: goes on {:.2?} after the kill", node.name, round.at - since);
        node.rounds(5);
    }
    // Whoever is alone with its span is killed too: nobody has it then. Who has the last tells losses, so samples too.
    let round = nodes[0].rounds(1);
    let names: Vec<String> = nodes.iter_mut().map(Node::peer).collect();
    let has_last = |name: &String| {
        let members = round.event["members"].as_array().expect("members");
        members.iter().any(|m| m["peer"] == **name && m["weight"] != 0)
    };
    let last: Vec<bool> = names.iter().map(has_last).collect();
    let lone = (0..3).find(|at| last.iter().filter(|has| **has == last[*at]).count() == 1);
    let mut last = nodes.remove(lone.expect("one of three holds its span alone"));
    // In the middle of a round, so that the one before it is on its disk.
    last.rounds(1);
    std::thread::sleep(Duration::from_millis(80));
    let since = last.kill();
    for node in &mut nodes {
        node.wait("word of what is missing", |s| {
            let text = s.event["message"].as_str().unwrap_or_default();
            s.at >= since
                && text.contains("nobody who is here holds span")
                && text.contains("of the model's 2")
        });
    }
    let from: Vec<usize> = nodes.iter().map(Node::seen).collect();
    std::thread::sleep(Duration::from_secs(2));
    for (node, from) in nodes.iter().zip(&from) {
        let trains = node.log()[*from..]
            .iter()
            .any(|s| s.is("round") && s.event["samples"] != 0);
        assert!(!trains, "{} trains without a span", node.name);
    }
    let resume = [
        "train",
        "--resume",
        &last.dir,
        "--device",
        "cpu",
        "--no-page",
        "--spans",
        "1",
    ];
    let mut again = Node::start_as("again", last.dir.clone(), Path::new("."), &resume);
    for (node, from) in nodes.iter_mut().zip(from) {
        node.wait_from(from, "a round that trains", |s| {
            s.is("round") && s.event["samples"] != 0
        });
        node.rounds(5);
    }
    again.rounds(5);
    let all: Vec<&Node> = nodes.iter().chain([&again]).collect();
    assert!(assert_equal(&all) > 5);
    for node in nodes.iter_mut().chain([&mut again]) {
        assert_gapless(node);
    }
}

#[test]
fn a_model_too_large_for_a_machine_is_refused_with_what_to_do() {
    let folder = Folder::new("split-refused");
    let out = folder.join("out");
    let start = |more: &[&str]| {
        let train = [
            "train",
            "--task",
            "gpt",
            "--device",
            "cpu",
            "--no-page",
            "--out",
            &out,
        ];
        refusal(&[&train, more].concat())
    };
    let told = start(&["preset=small", "--memory", "400MB"]);
    assert!(told.contains("--split auto") && told.contains("400"), "{told}");
    let told = start(&["preset=small", "--memory", "70MB", "--split", "auto"]);
    assert!(
        told.contains("largest step") && told.contains("--memory"),
        "{told}"
    );
    let told = start(&["preset=pico", "--split", "99"]);
    assert!(told.contains("has") && told.contains("steps"), "{told}");
    let told = start(&["preset=pico", "--split", "2", "codec=int8"]);
    assert!(told.contains("codec=int8"), "{told}");
}

#[test]
fn the_settings_that_a_plan_prints_train_as_it_says() {
    let folder = Folder::new("split-planned");
    let plan = |more: &[&str]| {
        let model = ["plan", "--task", "gpt", "--json"];
        let of_model = [
            "preset=pico",
            "layers=6",
            "context=16",
            "batch=8",
            "micro_batch=1",
        ];
        run(&[&model, &of_model[..], more].concat())
    };
    // The second is slower, and so has fewer steps.
    let machines = ["--machine", "1GB,20", "--machine", "1GB,5"];
    let output = plan(&[&machines[..], &["split=2", "copies=1"]].concat());
    let plan_of: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a plan");
    let steps = |at: usize| {
        let steps = &plan_of["machines"][at]["steps"];
        [0, 1].map(|end| steps[end].as_u64().expect("a step"))
    };
    let lens = [0, 1].map(|at| steps(at)[1] - steps(at)[0]);
    assert!(lens[0] > lens[1] && lens.iter().sum::<u64>() == 8, "{plan_of}");
    let order: Vec<u64> = serde_json::from_value(plan_of["start_in_this_order"].clone()).expect("an order");
    assert_eq!(
        steps(order[0] as usize - 1)[0],
        0,
        "who begins has the first steps"
    );

    let settings = plan_of["plan"]["settings"].as_str().expect("settings");
    let settings: Vec<&str> = settings
        .split(' ')
        .chain(["--spans", "1", "rounds=4", "layers=6", "checkpoint_every=1"])
        .collect();
    let mut first = found(&folder, "first", &settings);
    let ticket = first.ticket();
    let second = holder(&folder, "second", &ticket, "1");
    let mut nodes = [first, second];
    end(&mut nodes);
    assert_eq!(losses(&nodes[0]).len(), 4);
    let kept = nodes.each_ref().map(parts);
    assert!(!kept[0].is_empty() && !kept[1].is_empty() && kept[0].keys().ne(kept[1].keys()));

    let told = told(&plan(&["--machine", "70MB,20"]));
    assert!(
        told.contains("nothing fits") && told.contains("Add machines"),
        "{told}"
    );
    let told = refusal(&[
        "train",
        "--task",
        "gpt",
        "preset=pico",
        "--out",
        &folder.join("refused"),
        "--split",
        "2+99",
        "--no-page",
        "--device",
        "cpu",
    ]);
    assert!(told.contains("101 steps"), "{told}");
}
