//! A model split over the members of a run, with real processes: equal bits for any assignment of stages, members that
//! are killed in the middle of a round, and machines too small for the whole model.

use crate::common::*;
use annulus::device::{self, DeviceChoice};
use annulus::store::checkpoint::{Keep, RunWriter};
use annulus::store::run_dir::{LoadedRun, RunDir};
use annulus::task::Prompt;
use annulus::task_factory::TaskFactory;
use annulus::tasks::gpt::Gpt;
use annulus::trainer::{TrainerOptions, Worker};
use annulus_core::moments::digest_of_parts;
use annulus_core::parts::Parts;
use burn::tensor::read_sync;
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::path::Path;
use std::pin::Pin;
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
    "boundary=f32",
];

/// Starts a run with these settings.
fn found(folder: &Folder, name: &'static str, settings: &[&str]) -> Node {
    Node::start(name, folder.join(name), &[&MODEL, settings].concat())
}

/// A member that joins and holds at most `spans` stages.
fn holder(folder: &Folder, name: &'static str, ticket: &str, spans: &str) -> Node {
    joins(folder, name, ticket, &["--spans", spans])
}

/// One that joins within such limits.
fn joins(folder: &Folder, name: &'static str, ticket: &str, limits: &[&str]) -> Node {
    let join = [
        "join",
        ticket,
        "--device",
        "cpu",
        "--no-page",
        "checkpoint_every=1",
    ];
    Node::start(name, folder.join(name), &[&join, limits].concat())
}

/// The digest of each part in the newest checkpoint of a folder: its weights and moments.
fn parts(node: &Node) -> BTreeMap<u16, u64> {
    let dir = RunDir::open(Path::new(&node.dir)).expect("a run");
    let kept = dir.load_latest().expect("a checkpoint").state.kept;
    let of = |part| (part, kept.digest(part).expect("it is kept"));
    kept.set().iter().map(of).collect()
}

/// The parts that each holds by its newest checkpoint, once these are as they are to be. Samples do not tell: who is slow gets
/// none in most rounds.
fn spans_once(nodes: &[Node], are_so: impl Fn(&[BTreeSet<u16>]) -> bool) -> Vec<BTreeSet<u16>> {
    let mut held = Vec::new();
    until("the spans to be held so", || {
        let parts = nodes.iter().map(|node| parts(node).into_keys().collect());
        held = parts.collect();
        are_so(&held)
    });
    held
}

/// Which of three is the only one that holds its span.
fn alone_with_its_span(nodes: &[Node]) -> usize {
    let lone = |held: &[BTreeSet<u16>]| {
        (0..held.len()).find(|at| held.iter().filter(|one| **one == held[*at]).count() == 1)
    };
    let is_so = |held: &[BTreeSet<u16>]| {
        let different: BTreeSet<_> = held.iter().collect();
        different.len() == 2 && lone(held).is_some()
    };
    lone(&spans_once(nodes, is_so)).expect("just seen")
}

/// The losses of the rounds that counted samples, in their order.
fn losses(node: &Node) -> Vec<String> {
    let rounds = node
        .log()
        .into_iter()
        .filter(|s| s.is("round") && s.event["samples"] != 0);
    rounds.map(|s| s.event["loss"].to_string()).collect()
}

/// Asserts that all rounds that two peers committed have equal losses; returns how many there are. Digests differ here, because
/// members hold different parts. A round that was computed again counts as it was at last.
fn assert_equal_losses(nodes: &[&Node]) -> usize {
    let mut all: BTreeMap<u64, String> = BTreeMap::new();
    let mut shared = 0;
    for node in nodes {
        let log = node.log();
        let rounds = log
            .iter()
            .filter(|s| s.is("round") && s.event["loss"].is_number());
        let own: BTreeMap<u64, String> = rounds.map(|s| (s.round(), s.event["loss"].to_string())).collect();
        for (round, loss) in own {
            match all.get(&round) {
                Some(before) => {
                    assert_eq!(*before, loss, "round {round} of {}", node.name);
                    shared += 1;
                }
                None => drop(all.insert(round, loss)),
            }
        }
    }
    shared
}

fn end(nodes: &mut [Node]) {
    for node in nodes {
        assert!(node.end().success(), "{}: {}", node.name, node.errors());
        assert_gapless(node);
        assert_audited(node);
        // The digest that it tells is that of its parts.
        let told = node.log().into_iter().rfind(|s| s.is("done")).expect("an end");
        let held = digest_of_parts(parts(node)).to_hex();
        assert_eq!(told.event["digest"].as_str(), Some(&held[..]), "{}", node.name);
        let saved = inspect(&node.dir)["checkpoints"]
            .as_array()
            .expect("a list")
            .last()
            .cloned();
        assert_eq!(
            saved.expect("a checkpoint")["digest"].as_str(),
            Some(&held[..]),
            "{}",
            node.name
        );
    }
}

/// Trains a model with one process, then in each of `cases`, a number of stages and of copies, with one stage per process.
/// All give the same bits, and so does a replay of the founders' records.
fn whoever_holds_them(
    folder: &Folder,
    (train, model): (&[&str], &str),
    rounds: usize,
    cases: &[(usize, usize)],
) {
    let start = |name: &'static str, (spans, copies): (usize, usize), peer: &str| {
        let peers = spans * copies;
        let cut = format!("split={spans} copies={copies} min_peers={peers} rounds={rounds} {model} {peer}");
        let args = [train, &cut.split_whitespace().collect::<Vec<_>>()].concat();
        Node::start(name, folder.join(name), &args)
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
            // A member that holds all but the last step holds all tensors that the last one uses.
            let is_cut = node.log().iter().any(|s| s.is("cut"));
            assert!(
                is_cut || (held.len() < of_all) == (*spans > 1),
                "{} holds {} of {of_all}",
                node.name,
                held.len()
            );
            for (part, digest) in held {
                assert_eq!(bits[&part], digest, "part {part} of {}", node.name);
                all.insert(part, digest);
            }
            // A later member has the last of the rounds.
            assert!(expected.ends_with(&losses(node)), "{}", node.name);
        }
        assert_eq!(all, bits, "in {spans} spans by {copies}");
        assert_replays_exactly(&nodes[0]);
        println!("{spans} spans, each by {copies}: the same {} parts", all.len());
    }
}

#[test]
fn whoever_holds_the_spans_makes_the_same_bits() {
    let _turn = beside();
    let folder = Folder::new("split");
    whoever_holds_them(&folder, (&MODEL, "layers=6"), 12, &[(4, 1), (2, 2)]);
}

#[test]
fn whoever_holds_the_spans_of_a_model_from_a_file_makes_the_same_bits() {
    let _turn = beside();
    let folder = Folder::new("split-file");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/fixtures/nanogpt");
    let data = data.display().to_string();
    let train = [
        "train",
        "--task",
        "graph",
        "--data",
        &data,
        "--device",
        "cpu",
        "--no-page",
    ];
    let settings = "batch=8 micro_batch=1 clip=1 keep=9 boundary=f32";
    whoever_holds_them(&folder, (&train, settings), 12, &[(2, 1), (3, 1)]);
}

/// One span with one holder is the process alone.
#[test]
#[ignore = "the same for minutes"]
fn whoever_holds_eight_blocks_makes_the_same_bits() {
    let _turn = beside();
    let folder = Folder::new("split-eight");
    let cases = [(2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (8, 2)];
    whoever_holds_them(&folder, (&MODEL, "layers=8"), 50, &cases);
}

#[test]
fn two_spans_by_two_outlive_a_killed_holder_and_wait_for_who_has_what_is_missing() {
    let _turn = beside();
    let folder = Folder::new("split-killed");
    let settings = [
        "split=2",
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
    // The only holder of a stage is killed too, so nobody holds that stage.
    let lone = alone_with_its_span(&nodes);
    let mut last = nodes.remove(lone);
    // In the middle of a round, so that the one before it is on its disk.
    last.rounds(1);
    std::thread::sleep(Duration::from_millis(80));
    let since = last.kill();
    for node in &mut nodes {
        node.wait("word of what is missing", |s| {
            let text = s.event["message"].as_str().unwrap_or_default();
            s.at >= since && text.contains("no member here holds span") && text.contains("of the model's 2")
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
        "resume",
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
    assert!(assert_equal_losses(&all) > 5);
    for node in nodes.iter_mut().chain([&mut again]) {
        assert_gapless(node);
    }
}

#[test]
fn a_fast_holder_goes_to_the_span_whose_holders_are_slow() {
    let _turn = beside();
    let folder = Folder::new("split-shift");
    // Of either span one is there already when the next comes, so that the second and the fourth hold the same. They are so
    // slow that the others are faster on a busy machine too.
    let settings = [
        "split=2",
        "copies=1",
        "batch=4",
        "lanes=4",
        "min_peers=4",
        "rounds=100000",
        "checkpoint_every=1",
        "--spans",
        "1",
        "--sample-takes",
        "2",
    ];
    let mut first = found(&folder, "first", &settings);
    let (ticket, mut nodes) = (first.ticket(), vec![first]);
    for (name, takes) in [("second", "200"), ("third", "2"), ("fourth", "200")] {
        nodes.push(joins(
            &folder,
            name,
            &ticket,
            &["--spans", "1", "--sample-takes", takes],
        ));
        // While there are too few there are no other rounds than those that change who is a member.
        let (members, is_so) = (nodes.len(), "a round of all");
        for node in &mut nodes {
            node.wait(is_so, |s| s.is("round") && s.members().len() == members);
        }
    }
    let mut told = Vec::new();
    for node in &mut nodes {
        let shift = node.wait("who goes to another span", |s| s.is("shift")).event;
        assert_eq!((&shift["from"], &shift["to"]), (&1.into(), &2.into()), "{shift}");
        told.push(["peer", "round", "why"].map(|key| shift[key].to_string()));
    }
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    let names: Vec<String> = nodes
        .iter_mut()
        .map(|node| format!("{:?}", node.peer()))
        .collect();
    let goes = names
        .iter()
        .position(|name| *name == told[0][0])
        .expect("a member");
    assert!([0, 2].contains(&goes), "one of the fast ones goes");
    let are_so = |held: &[BTreeSet<u16>]| [goes, 3].iter().all(|at| held[*at] == held[1]);
    let held = spans_once(&nodes, are_so);
    assert_ne!(held[goes], held[2 - goes]);
    nodes.iter_mut().for_each(|node| drop(node.rounds(3)));
    for node in &mut nodes {
        assert_gapless(node);
    }
    assert!(assert_equal_losses(&nodes.iter().collect::<Vec<_>>()) > 20);
}

#[test]
fn a_slow_machine_comes_to_hold_fewer_steps_and_the_bits_stay() {
    let _turn = beside();
    let folder = Folder::new("split-cut");
    // So few that there is one other cut.
    let rounds = 44;
    let start = |name, settings: &str| {
        let settings = format!("split=2 copies=1 rounds={rounds} layers=6 checkpoint_every=10 {settings}");
        found(&folder, name, &settings.split_whitespace().collect::<Vec<_>>())
    };
    let mut alone = [start("alone", "min_peers=1")];
    end(&mut alone);
    let (bits, expected) = (parts(&alone[0]), losses(&alone[0]));
    let mut fast = start("fast", "min_peers=2 --spans 1");
    let ticket = fast.ticket();
    // It rests four fifths of the time.
    let slow = joins(&folder, "slow", &ticket, &["--spans", "1", "--power", "0.2"]);
    let mut nodes = [fast, slow];
    end(&mut nodes);
    let cuts = nodes.each_ref().map(|node| {
        let log = node.log();
        let cut = log.iter().find(|s| s.is("cut")).expect("another cut");
        let steps = |key: &str| cut.event[key].as_array().expect("a list")[1].as_u64();
        assert!(steps("steps") < steps("before"), "{}", cut.event);
        ["round", "steps", "before", "why"].map(|key| cut.event[key].to_string())
    });
    assert_eq!(cuts[0], cuts[1]);
    println!(
        "after round {}: {} instead of {}, since {}",
        cuts[0][0], cuts[0][1], cuts[0][2], cuts[0][3]
    );
    // The last checkpoint of each has its parts of the new cut, and those of both are all.
    let mut all = BTreeMap::new();
    for node in &nodes {
        for (part, digest) in parts(node) {
            assert_eq!(bits[&part], digest, "part {part} of {}", node.name);
            all.insert(part, digest);
        }
        assert!(expected.ends_with(&losses(node)), "{}", node.name);
    }
    assert_eq!(all, bits);
    let head = RunDir::open(Path::new(&nodes[0].dir)).and_then(|dir| dir.load_latest());
    let head = head.expect("a checkpoint").head;
    let spans: Vec<u16> = head.spans.iter().map(|steps| steps.get()).collect();
    assert!(spans[1] < 4 && spans[0] + spans[1] == 8, "{spans:?}");
    let held = nodes.each_ref().map(|node| parts(node).len());
    assert!(held[1] < held[0], "{held:?} parts");
    let told = inspect(&nodes[0].dir);
    assert_eq!(told["cut"].to_string(), cuts[0][1]);
    // A member that holds all but the last step holds all tensors that the last one uses.
    let spans = [0, 1].map(|at| told["keeps"][at]["spans"].to_string());
    assert!(spans[0].starts_with("[1") && spans[1] == "[2]", "{spans:?}");
    assert_replays_exactly(&nodes[0]);
}

/// The rounds between which a run says that it went back, and how many samples are computed again.
fn went_back(seen: &Seen) -> Option<(u64, u64, u64)> {
    let text = seen.event["message"]
        .as_str()?
        .strip_prefix("went back from round ")?;
    let (from, rest) = text.split_once(" to ")?;
    let (to, rest) = rest.split_once(": ")?;
    let (samples, _) = rest.split_once(' ')?;
    Some((from.parse().ok()?, to.parse().ok()?, samples.parse().ok()?))
}

#[test]
fn a_run_goes_back_to_an_older_checkpoint_when_all_who_held_a_span_were_killed() {
    let _turn = beside();
    let folder = Folder::new("split-back");
    let start = |name: &'static str, cut: &str| {
        let settings = format!("{cut} rounds=60 layers=6 batch=48 checkpoint_every=5");
        found(&folder, name, &settings.split_whitespace().collect::<Vec<_>>())
    };
    let mut first = start("first", "split=2 --spans 1");
    let ticket = first.ticket();
    let args = ["join", &ticket, "--device", "cpu", "--no-page", "--spans", "1"];
    let args = [&args[..], &["checkpoint_every=5"]].concat();
    let join = |name: &'static str| Node::start(name, folder.join(name), &args);
    let mut nodes = vec![first];
    nodes.extend(["second", "third", "fourth"].map(join));
    for node in &mut nodes {
        node.members(4);
        node.rounds(12);
    }
    // Those with the span that the first has not are killed, whenever it is, and what they have saved is some rounds old.
    let held = spans_once(&nodes, |held| {
        held.iter().filter(|one| **one == held[0]).count() == 2
    });
    let (mut nodes, mut victims): (Vec<_>, Vec<_>) = nodes
        .into_iter()
        .zip(&held)
        .partition(|(_, one)| **one == held[0]);
    // Their newest checkpoint is not the last round, and not an old one.
    until("a checkpoint of each that is to be killed", || {
        let round = nodes[0].0.rounds(1).round();
        let saved = |node: &Node| {
            let dir = RunDir::open(Path::new(&node.dir)).expect("a run");
            dir.load_latest().expect("a checkpoint").head.round
        };
        round % 5 == 3 && victims.iter().all(|(node, _)| saved(node) + 5 > round)
    });
    let since = victims.iter_mut().map(|(node, _)| node.kill()).max();
    let since = since.expect("there are two");
    for (node, _) in &mut nodes {
        node.wait("word of what is missing", |s| {
            let text = s.event["message"].as_str().unwrap_or_default();
            s.at >= since && text.contains("no member here holds span")
        });
    }
    // One of them comes back with its folder, when the others have waited long enough or before.
    let dir = victims[1].0.dir.clone();
    let resume = ["resume", &dir, "--device", "cpu", "--no-page"];
    let resume = [&resume[..], &["--spans", "1", "checkpoint_every=5"]].concat();
    let again = Node::start_as("again", dir.clone(), Path::new("."), &resume);
    for (node, _) in &mut nodes {
        let back = node.wait("word that it goes back", |s| went_back(s).is_some());
        let (from, to, samples) = went_back(&back).expect("just seen");
        println!(
            "{}: {}, {:.1?} after",
            node.name,
            back.event["message"],
            back.at - since
        );
        assert!(to.is_multiple_of(5) && samples % 48 == 0);
        assert!((1..=10).contains(&(samples / 48)), "two intervals at most");
        assert!(from >= to + samples / 48);
    }
    let mut nodes: Vec<Node> = nodes.into_iter().map(|(node, _)| node).chain([again]).collect();
    end(&mut nodes);
    assert!(assert_equal_losses(&nodes.iter().collect::<Vec<_>>()) > 5);
    assert_replays_exactly(&nodes[0]);

    // In the end they hold the bits of one process that was never disturbed.
    let mut alone = [start("alone", "split=1 copies=1")];
    end(&mut alone);
    let (bits, mut all) = (parts(&alone[0]), BTreeMap::new());
    for node in &nodes {
        for (part, digest) in parts(node) {
            assert_eq!(bits[&part], digest, "part {part} of {}", node.name);
            all.insert(part, digest);
        }
    }
    assert_eq!(all, bits);
}

#[test]
fn a_model_too_large_for_a_machine_is_refused_with_what_to_do() {
    let _turn = beside();
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
    assert!(told.contains("split=auto") && told.contains("400"), "{told}");
    let told = start(&["preset=small", "--memory", "70MB", "split=auto"]);
    assert!(
        told.contains("largest step") && told.contains("--memory"),
        "{told}"
    );
    let told = start(&["preset=pico", "split=99"]);
    assert!(told.contains("has") && told.contains("steps"), "{told}");
    let told = start(&["preset=pico", "split=2", "codec=int8"]);
    assert!(told.contains("codec=int8"), "{told}");
}

#[test]
fn the_settings_that_a_plan_prints_train_as_it_says() {
    let _turn = beside();
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
    let stages: Vec<[u64; 2]> = serde_json::from_value(plan_of["stages"].clone()).expect("stages");
    let steps_of = |machine: usize| {
        let held: Vec<usize> =
            serde_json::from_value(plan_of["machines"][machine]["stages"].clone()).expect("numbers");
        held.iter()
            .map(|stage| stages[stage - 1][1] - stages[stage - 1][0])
            .sum::<u64>()
    };
    assert!(
        steps_of(0) > steps_of(1) && steps_of(0) + steps_of(1) == 8,
        "{plan_of}"
    );
    assert_eq!(plan_of["start_in_this_order"], serde_json::json!([1, 2]));

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
        "split=2+99",
        "--no-page",
        "--device",
        "cpu",
    ]);
    assert!(told.contains("101 steps"), "{told}");
}

/// The small model as one process that has all of it computes it, with these weights.
fn whole_model(eval_windows: u64, params: Vec<f32>) -> Box<dyn Worker> {
    let task = TaskFactory::of::<Gpt>();
    let config =
        serde_json::json!({"preset": "pico", "context": 16, "layers": 6, "eval_windows": eval_windows});
    let config = task.config(config.as_object().expect("an object"));
    let loaded = (task.load)(&config, None).expect("the task");
    let device = device::open(DeviceChoice::Cpu).expect("a processor");
    let mut worker = loaded.worker_factory(device, TrainerOptions::default())().expect("a worker");
    worker.load(params).expect("they fit");
    worker
}

#[test]
fn commands_about_a_split_model_need_room_for_a_few_steps_alone() {
    let _turn = beside();
    let folder = Folder::new("split-commands");
    // Between the spans activations travel as int8, within them they do not.
    let settings = "boundary=int8 split=2 --spans 1 copies=1 min_peers=2 rounds=3 layers=6 eval_windows=8 \
                    checkpoint_every=1 moments=8bit";
    let settings: Vec<&str> = settings.split_whitespace().collect();
    let model = &MODEL[..MODEL.len() - 1];
    let mut first = Node::start("first", folder.join("first"), &[model, &settings].concat());
    let second = holder(&folder, "second", &first.ticket(), "1");
    let mut nodes = [first, second];
    end(&mut nodes);
    let (dir, other) = (nodes[0].dir.clone(), nodes[1].dir.clone());
    // A process by itself is taken for 67.1 MB, all steps for about two more, the largest for one.
    let with = ["--with", &other];
    let little = ["--memory", "68.5MB"];
    let text = |args: &[&str]| {
        let output = run(args);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {told}");
        (String::from_utf8(output.stdout).expect("text"), told)
    };

    let file = folder.join("model.safetensors");
    text(&[&["export", &dir, &file], &with[..]].concat());
    let bytes = std::fs::read(&file).expect("the file");
    let tensors = SafeTensors::deserialize(&bytes).expect("what other tools read");
    let manifest = RunDir::open(Path::new(&dir)).expect("a run").manifest().clone();
    assert_eq!(tensors.len(), manifest.layout.tensors.len());
    let mut params = Vec::new();
    for spec in &manifest.layout.tensors {
        let tensor = tensors.tensor(&spec.name).expect("it is there");
        assert_eq!(tensor.shape(), spec.shape);
        let values = tensor
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        params.extend(values);
    }
    let kept = nodes.each_ref().map(|node| {
        let dir = RunDir::open(Path::new(&node.dir)).expect("a run");
        dir.load_latest().expect("a checkpoint").state.kept
    });
    let all = Parts::of_len(manifest.layout.len);
    for kept in &kept {
        for range in kept.set().iter().filter_map(|part| all.range(part)) {
            assert_eq!(params[range.clone()], kept.weights(&manifest, range));
        }
    }
    assert_eq!(kept[0].set().or(&kept[1].set()), all.all());

    let mut whole = whole_model(8, params);
    let scores = read_sync(whole.evaluate())
        .expect("scores")
        .expect("held-out text");
    let (told, note) = text(&[&["eval", &dir, "--json"], &with[..]].concat());
    let found: serde_json::Value = serde_json::from_str(&told).expect("an object");
    assert_eq!(
        found["loss"].as_f64().map(|loss| loss as f32),
        Some(scores.loss),
        "{told}"
    );
    assert!(!note.contains("note:"), "{note}");
    let (in_runs, note) = text(&[&["eval", &dir, "--json"], &with[..], &little].concat());
    assert_eq!(in_runs, told);
    assert!(note.contains("runs, one after the other"), "{note}");

    let prompt = Prompt {
        text: "the ".into(),
        tokens: 25,
        temperature: 0.8,
        top_k: 200,
        seed: 1,
    };
    let mut written = prompt.text.clone();
    let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
        written.push_str(piece);
        Box::pin(ready(()))
    };
    read_sync(whole.generate(&prompt, &mut emit)).expect("text");
    let sample = ["sample", &dir, "--prompt", "the ", "--tokens", "25"];
    for memory in [&[][..], &little] {
        let (said, note) = text(&[&sample, &with[..], memory].concat());
        assert_eq!(said, format!("{written}\n"));
        assert_eq!(note.contains("for each token"), !memory.is_empty(), "{note}");
    }

    let replay = |memory: &[&str]| -> serde_json::Value {
        let (report, _) = text(&[&["replay", &dir, "--json"], memory].concat());
        serde_json::from_str(&report).expect("an object")
    };
    for memory in [&[][..], &little] {
        let report = replay(memory);
        assert_eq!(
            (&report["verdict"], &report["exact"]),
            (&"exact".into(), &report["rounds"])
        );
    }
    for command in ["eval", "sample", "replay"] {
        let others = if command == "replay" { &[][..] } else { &with };
        let told = refusal(&[&[command, &dir, "--memory", "30MB"], others].concat());
        assert!(
            told.contains("of this model's 8") && told.contains("30"),
            "{told}"
        );
    }
    let told = refusal(&["eval", &dir]);
    assert!(told.contains("--with"), "{told}");

    // One part of the last checkpoint is another, and has its own digest.
    let writer = RunWriter::open(Path::new(&dir)).expect("a run").0;
    let LoadedRun {
        head,
        mut state,
        digest,
        ..
    } = writer.dir().load_latest().expect("a checkpoint");
    let part = state.kept.set().iter().next().expect("a part");
    let mut slots = state.kept.slots(part).expect("it is kept").to_vec();
    let weights = slots.last_mut().expect("weights");
    weights.floats_mut(0..1)[0] += 1e-4;
    state.kept.insert(part, slots);
    let keep = Keep {
        newest: 9,
        ..Keep::default()
    };
    let saved = writer.saver().keep(keep).save(&head, &state, digest);
    saved.expect("it is saved");
    drop(writer);
    let report = replay(&little);
    assert_eq!(report["verdict"], "within", "{report}");
    assert_eq!(
        (&report["first_difference"], &report["exact"]),
        (&head.round.into(), &(head.round - 1).into())
    );
    let difference = report["difference"].as_f64().expect("a number");
    assert!(difference > 0.0 && difference < 1e-2, "{report}");
}
