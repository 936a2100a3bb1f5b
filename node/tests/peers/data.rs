//! The data of a run reaches peers that lack it: real processes, each as if on a machine of its own.

use crate::common::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Text that does not repeat itself, so that no byte can be missing or in a wrong place unnoticed.
fn text(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 32);
    let mut seed = 1u64;
    while text.len() < bytes {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let word = (seed >> 33) as usize % 7;
        text.push_str(["the ", "ring ", "turns ", "and ", "no ", "one ", "leads "][word]);
    }
    text.truncate(bytes);
    text
}

/// A tiny model, whose rounds are quick.
const GPT: [&str; 8] = [
    "--task",
    "gpt",
    "layers=1",
    "heads=1",
    "width=16",
    "context=16",
    "batch=8",
    "rounds=1000000",
];

/// A folder to start a peer in.
fn home(folder: &Folder, name: &str) -> PathBuf {
    let home = folder.0.join(format!("{name}-home"));
    std::fs::create_dir_all(&home).expect("a folder");
    home
}

/// Puts a text there and says where.
fn book(home: &Path, text: &str) -> String {
    let path = home.join("book.txt");
    std::fs::write(&path, text).expect("writable");
    path.display().to_string()
}

/// The founder of a run on this text.
fn train(folder: &Folder, text: &str, args: &[&str]) -> Node {
    let home = home(folder, "founder");
    let data = book(&home, text);
    let args = [&["train", "--device", "cpu", "--data", &data], &GPT[..], args].concat();
    Node::start_in("founder", folder.join("founder"), &home, &args)
}

fn join(folder: &Folder, name: &'static str, ticket: &str, args: &[&str]) -> Node {
    let args = [&["join", ticket, "--device", "cpu"], args].concat();
    Node::start_in(name, folder.join(name), &home(folder, name), &args)
}

/// What a peer told of its fetching: bytes and total, in order.
fn fetched(node: &Node) -> Vec<(u64, u64)> {
    let number = |value: &Value| value.as_u64().expect("a number");
    let log = node.log();
    let told = log.iter().filter(|seen| seen.is("fetch"));
    told.map(|seen| (number(&seen.event["bytes"]), number(&seen.event["total"])))
        .collect()
}

/// Where a peer keeps what it has fetched.
fn kept(node: &Node) -> Option<PathBuf> {
    let entries = std::fs::read_dir(cache_of(&node.dir)).ok()?;
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths.find(|path| path.extension().is_some_and(|extension| extension == "blocks"))
}

/// The pieces that a peer has fetched.
fn pieces(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).expect("a folder");
    let names = names.map(|entry| {
        entry
            .expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    let mut names: Vec<String> = names.filter(|name| name.contains('-')).collect();
    names.sort();
    names
}

/// Waits for a peer's end and returns its error as one line.
fn refusal(node: &mut Node) -> String {
    assert!(!node.end().success(), "it succeeded");
    // What reads its words may be a while behind its end.
    until("word of --data", || node.errors().contains("--data"));
    let errors = node.errors();
    println!("{errors}");
    errors.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_newcomer_fetches_a_text_and_keeps_it() {
    let _turn = beside();
    let folder = Folder::new("text");
    let book = text(3_000_000);
    let mut founder = train(&folder, &book, &[]);
    let ticket = founder.ticket();
    founder.rounds(3);

    let mut second = join(&folder, "second", &ticket, &[]);
    second.members(2);
    second.rounds(10);
    let told = fetched(&second);
    assert_eq!(told.first(), Some(&(0, 3_000_000)));
    assert_eq!(told.last(), Some(&(3_000_000, 3_000_000)));
    assert!(told.len() == 4 && told.is_sorted(), "{told:?}");
    let cached = kept(&second).expect("the data");
    assert_eq!(pieces(&cached), ["0-0", "0-1", "0-2"]);
    let read = |name| std::fs::read_to_string(cached.join(name)).expect("text");
    assert_eq!(["0-0", "0-1", "0-2"].map(read).concat(), book);
    // A peer that has fetched the data hands it out too.
    let other = second.ticket();
    let mut third = join(&folder, "third", &other, &[]);
    third.members(3);
    assert_eq!(fetched(&third).last(), Some(&(3_000_000, 3_000_000)));
    for node in [&mut third, &mut second] {
        assert!(node.leave(), "{}", node.errors());
    }
    assert!(assert_equal(&[&founder, &second, &third]) >= 10);

    // The next time it is there already; and what has been damaged meanwhile is fetched again.
    for damaged in [false, true] {
        if damaged {
            let spoilt = "something else ".repeat(100_000);
            std::fs::write(cached.join("0-1"), &spoilt[..1 << 20]).expect("writable");
        }
        std::fs::remove_dir_all(&second.dir).expect("removable");
        second = join(&folder, "second", &ticket, &[]);
        second.members(2);
        // No more than the piece.
        let told = fetched(&second);
        assert_eq!(
            told.first().map(|(bytes, _)| *bytes),
            damaged.then_some(3_000_000 - (1 << 20))
        );
        assert!(second.leave(), "{}", second.errors());
    }
    assert_audited(&second);
    // Other commands find it too.
    let replay = run(&["replay", &second.dir]);
    assert!(replay.status.success(), "{replay:?}");
    assert!(founder.leave(), "{}", founder.errors());
}

#[test]
fn a_newcomer_goes_on_from_another_when_the_first_dies() {
    let _turn = beside();
    let folder = Folder::new("death");
    let book = text(40_000_000);
    let mut founder = train(&folder, &book, &[]);
    let ticket = founder.ticket();
    // The second has the data from the beginning.
    let home = home(&folder, "second");
    let data = self::book(&home, &book);
    let mut second = join(&folder, "second", &ticket, &["--data", &data]);
    second.members(2);
    assert_eq!(fetched(&second), []);
    let mut third = join(&folder, "third", &ticket, &[]);
    let seen = third.wait("a tenth of the data", |seen| {
        seen.is("fetch") && seen.event["bytes"].as_u64() > Some(4_000_000)
    });
    founder.kill();
    let from = fetched(&third).last().expect("some").0;
    println!("killed after {} of {from} bytes", seen.event["bytes"]);
    assert!(from < 40_000_000, "all was there before the founder died");
    third.members(2);
    let told = fetched(&third);
    assert!(told.is_sorted(), "it began again: {told:?}");
    assert_eq!(told.last(), Some(&(40_000_000, 40_000_000)));
    third.rounds(10);
    for node in [&mut third, &mut second] {
        assert!(node.leave(), "{}", node.errors());
    }
    assert!(assert_equal(&[&second, &third]) >= 10);
    // What a peer commits as it dies, the others may never hear of.
    let (mut died, others) = (digests(&founder), digests(&second));
    died.pop_last();
    let both: Vec<_> = died
        .iter()
        .filter(|(round, _)| others.contains_key(round))
        .collect();
    assert!(!both.is_empty() && both.iter().all(|(round, digest)| others[round] == **digest));
}

/// Where a peer keeps the pieces of streamed data that it has.
fn streamed(node: &Node) -> PathBuf {
    let entries = std::fs::read_dir(Path::new(&node.dir).join("data")).expect("a folder");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let blocks = paths.find(|path| path.extension().is_some_and(|extension| extension == "blocks"));
    blocks.expect("some of the data")
}

/// Waits for a round that counts samples of a peer.
fn contributes(node: &mut Node) {
    let (me, from) = (node.peer(), node.seen());
    node.wait_from(from, "samples of its own", |seen| {
        let members = seen.event["members"].as_array().into_iter().flatten();
        let mut own = members.filter(|member| member["peer"] == me);
        seen.is("round") && own.any(|member| member["weight"].as_u64() > Some(0))
    });
}

/// A peer that trains on a part of the data fetches only that, again where it is spoilt or gone. Its contributions are those of a
/// peer that has all.
#[test]
fn a_text_that_is_streamed_reaches_a_peer_piece_by_piece() {
    let _turn = beside();
    let folder = Folder::new("stream");
    let mut founder = train(&folder, &text(40_000_000), &["stream=true", "stand_aside=off"]);
    let ticket = founder.ticket();
    let mut second = join(&folder, "second", &ticket, &["--cache", "12MB"]);
    second.members(2);
    second.rounds(10);
    let cached = streamed(&second);
    let held = pieces(&cached);
    // One that was there first, those of a batch, those that come next, and those of the held-out text.
    assert!((2..=1 + 8 + 8 + 4).contains(&held.len()), "{held:?}");
    // Through one that has but a part of it.
    let mut third = join(&folder, "third", &second.ticket(), &[]);
    third.members(3);
    for name in held {
        std::fs::write(cached.join(name), "something else").expect("writable");
    }
    for node in [&mut second, &mut third] {
        contributes(node);
    }
    for node in [&mut third, &mut second] {
        assert!(node.leave(), "{}", node.errors());
    }
    assert_eq!(fetched(&second), []);
    assert!(assert_equal(&[&founder, &second, &third]) > 0);
    second = join(&folder, "second", &ticket, &["--cache", "12MB"]);
    second.members(2);
    second.rounds(5);
    assert!(second.leave(), "{}", second.errors());
    assert!(founder.leave(), "{}", founder.errors());
    // From all data the contributions are computed again.
    let replay = run(&["replay", &founder.dir]);
    assert!(replay.status.success(), "{replay:?}");
    let lacks = run(&["replay", &second.dir]);
    assert!(!lacks.status.success(), "{lacks:?}");
}

#[test]
fn an_interrupted_newcomer_goes_on_the_next_time() {
    let _turn = beside();
    let folder = Folder::new("again");
    let mut founder = train(&folder, &text(40_000_000), &[]);
    let ticket = founder.ticket();
    let mut second = join(&folder, "second", &ticket, &[]);
    second.wait("a tenth of the data", |seen| {
        seen.is("fetch") && seen.event["bytes"].as_u64() > Some(4_000_000)
    });
    second.kill();
    let before = pieces(&kept(&second).expect("a part"));
    assert!((4..39).contains(&before.len()), "{before:?}");
    second = join(&folder, "second", &ticket, &[]);
    second.members(2);
    second.rounds(5);
    let told = fetched(&second);
    println!("went on at {:?}", told.first());
    assert!(told[0].0 > 4_000_000 && told[0].0 < 40_000_000, "{:?}", told[0]);
    for node in [&mut second, &mut founder] {
        assert!(node.leave(), "{}", node.errors());
    }
    assert!(assert_equal(&[&founder, &second]) >= 1);
}

#[test]
fn data_that_is_kept_reaches_nobody() {
    let _turn = beside();
    let folder = Folder::new("kept");
    let book = text(100_000);
    let mut founder = train(&folder, &book, &["--keep-data"]);
    let ticket = founder.ticket();
    let mut second = join(&folder, "second", &ticket, &[]);
    let told = refusal(&mut second);
    for words in ["keep its data to themselves", "--data"] {
        assert!(told.contains(words), "{words:?} is not in: {told}");
    }
    assert_eq!(kept(&second), None);
    // With data of its own it is welcome, but not with other data.
    let file = home(&folder, "second").join("mine.txt");
    let data = file.display().to_string();
    std::fs::write(&file, text(100_001)).expect("writable");
    let mut second = join(&folder, "second", &ticket, &["--data", &data]);
    assert!(refusal(&mut second).contains("other data than this machine has"));
    std::fs::write(&file, &book).expect("writable");
    let mut second = join(&folder, "second", &ticket, &["--data", &data]);
    second.members(2);
    // And it hands it out, if asked, also to one who asks the founder first.
    let mut third = join(&folder, "third", &ticket, &[]);
    third.members(3);
    assert_eq!(fetched(&third).last(), Some(&(100_000, 100_000)));
    for node in [&mut third, &mut second, &mut founder] {
        assert!(node.leave(), "{}", node.errors());
    }
    assert!(assert_equal(&[&founder, &second, &third]) >= 1);
    // It goes on keeping it, without being told again.
    let dir = founder.dir.clone();
    let mut founder = Node::start_as("founder", dir.clone(), Path::new("."), &["resume", &dir]);
    let ticket = founder.ticket();
    let told = refusal(&mut join(&folder, "fourth", &ticket, &[]));
    assert!(told.contains("keep its data to themselves"), "{told}");
    assert!(founder.errors().contains("--keep-data"), "{}", founder.errors());
    assert!(founder.leave(), "{}", founder.errors());
}

#[test]
fn a_data_set_of_several_files() {
    let _turn = beside();
    let folder = Folder::new("several");
    let home = home(&folder, "founder");
    let data = home.join("set");
    std::fs::create_dir_all(&data).expect("a folder");
    let images = 200u32;
    let be = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
    let pixels = (0..images * 784).map(|i| (i.wrapping_mul(i) >> 7) as u8);
    let file = [be(&[0x0803, images, 28, 28]), pixels.collect()].concat();
    std::fs::write(data.join("images-idx3-ubyte"), file).expect("writable");
    let labels = (0..images).map(|i| (i % 10) as u8);
    let file = [be(&[0x0801, images]), labels.collect()].concat();
    std::fs::write(data.join("labels-idx1-ubyte"), file).expect("writable");
    // Files that the task does not read are not handed out.
    std::fs::write(data.join("private.txt"), "secret").expect("writable");
    let path = data.display().to_string();
    let args = [
        "train",
        "--device",
        "cpu",
        "--data",
        &path,
        "rounds=1000000",
        "hidden=8",
    ];
    let mut founder = Node::start_in("founder", folder.join("founder"), &home, &args);
    let ticket = founder.ticket();
    let mut second = join(&folder, "second", &ticket, &[]);
    second.members(2);
    // More than are compared: its first ones are the founder's news of it.
    second.rounds(30);
    // A piece of each of the two.
    assert_eq!(pieces(&kept(&second).expect("the data")), ["0-0", "1-0"]);
    for node in [&mut second, &mut founder] {
        assert!(node.leave(), "{}", node.errors());
    }
    assert!(assert_equal(&[&founder, &second]) >= 10);
}

#[test]
fn serving_does_not_stall_the_ring() {
    let _turn = beside();
    let folder = Folder::new("stall");
    let book = text(60_000_000);
    let mut founder = train(&folder, &book, &["width=64"]);
    let ticket = founder.ticket();
    let data = self::book(&home(&folder, "second"), &book);
    let mut second = join(&folder, "second", &ticket, &["--data", &data]);
    second.members(2);
    let mut third = join(&folder, "third", &ticket, &[]);
    let first = third.wait("the first of the data", |seen| seen.is("fetch"));
    let last = third.wait("all of the data", |seen| {
        seen.is("fetch") && seen.event["bytes"] == seen.event["total"]
    });
    let log = founder.log();
    let meanwhile = log.iter().filter(|seen| first.at < seen.at && seen.at < last.at);
    let rounds = meanwhile.filter(|seen| seen.is("round")).count();
    let speed = 60.0 / (last.at - first.at).as_secs_f64();
    println!("{rounds} rounds while 60 MB travelled, at {speed:.1} MB/s");
    assert!(rounds > 20, "only {rounds} rounds while the data travelled");
}

#[test]
fn data_that_a_member_has_lost_is_told_at_both_ends() {
    let _turn = beside();
    let folder = Folder::new("lost");
    let mut founder = train(&folder, &text(100_000), &[]);
    let (ticket, peer) = (founder.ticket(), founder.peer());
    // Once it has handed the data out, it knows what it has.
    let mut second = join(&folder, "second", &ticket, &[]);
    second.members(2);
    assert!(second.leave(), "{}", second.errors());
    std::fs::remove_file(home(&folder, "founder").join("book.txt")).expect("removable");
    let told = refusal(&mut join(&folder, "third", &ticket, &[]));
    let named = format!("{}: it no longer has all of the data", &peer[..8]);
    assert!(told.contains(&named), "{named:?} is not in: {told}");
    founder.wait("word of it", |seen| {
        let told = seen.event["message"].as_str().unwrap_or_default();
        seen.is("warning") && told.contains("can no longer hand out") && told.contains("book.txt")
    });
    assert!(founder.leave(), "{}", founder.errors());
}

#[cfg(unix)]
#[test]
fn data_of_one_run_is_not_handed_out_in_another_that_names_its_digest() {
    let _turn = beside();
    let folder = Folder::new("digest");
    let book = text(100_000);
    // The victim has trained on it alone.
    let own = home(&folder, "victim");
    let data = self::book(&own, &book);
    let args = [
        &["train", "--device", "cpu", "--data", &data],
        &GPT[..7],
        &["rounds=3"],
    ]
    .concat();
    let mut victim = Node::start_in("victim", folder.join("victim"), &own, &args);
    assert!(victim.end().success(), "{}", victim.errors());
    let cache = [&victim.dir, &folder.join("joined")].map(|dir| cache_of(dir));
    std::os::unix::fs::symlink(&cache[0], &cache[1]).expect("the same machine");
    // Somebody else's run has the same digest.
    let mut founder = train(&folder, &book, &["--keep-data"]);
    let ticket = founder.ticket();
    let mut joined = join(&folder, "joined", &ticket, &[]);
    joined.members(2);
    assert_eq!(fetched(&joined), []);
    joined.wait("word of the file", |seen| {
        let told = seen.event["message"].as_str().unwrap_or_default();
        seen.is("warning") && told.contains(&data) && told.contains("cannot fetch it from here")
    });
    let other = joined.ticket();
    let told = refusal(&mut join(&folder, "stranger", &other, &[]));
    assert!(told.contains("keep its data to themselves"), "{told}");
    // Once its user names it, others get it.
    assert!(joined.leave(), "{}", joined.errors());
    let args = ["resume", &*joined.dir, "--data", &data];
    let mut joined = Node::start_as("joined", joined.dir.clone(), Path::new("."), &args);
    joined.members(2);
    let mut stranger = join(&folder, "stranger", &other, &[]);
    stranger.members(3);
    for node in [&mut stranger, &mut joined, &mut founder] {
        assert!(node.leave(), "{}", node.errors());
    }
}
