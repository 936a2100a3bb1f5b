//! Files and pipes that are not as a peer would have them: nothing that was trained is lost for it, and the user hears why.

use crate::common::*;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DIGITS: [&str; 10] = [
    "train",
    "--device",
    "cpu",
    "--listen",
    "127.0.0.1:0",
    "--no-page",
    "train=500",
    "test=100",
    "model=linear",
    "checkpoint_every=100",
];

#[track_caller]
fn assert_tells(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

/// A peer whose output is not read for it.
fn start(out: &str, args: &[&str], stdout: Stdio) -> Child {
    let mut command = annulus();
    command.args(DIGITS).args(["--out", out]).args(args);
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    command.spawn().expect("the binary runs")
}

fn signal(child: &Child, signal: &str) {
    let done = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(done.expect("kill").success());
}

/// Waits until a checkpoint of this round is there, or of a later one, since only the last are kept.
fn saved(out: &str, round: u64) {
    let dir = Path::new(out).join("checkpoints");
    let least = format!("round-{round:08}");
    let is_there = || {
        let files = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        files
            .map(|file| file.file_name())
            .any(|name| *name >= *least && !name.to_string_lossy().ends_with(".partial"))
    };
    until(&format!("{least} or later in {}", dir.display()), is_there);
}

/// How a child ends, and what it has told on standard error.
fn end(mut child: Child) -> (Option<i32>, String) {
    until("its end", || child.try_wait().expect("wait").is_some());
    let output = child.wait_with_output().expect("it has ended");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// The last round of a folder's ledger, and that of its newest checkpoint.
fn last(out: &str) -> (u64, u64) {
    let report = inspect(out);
    assert_eq!(report["audit"]["sound"], true, "{report}");
    let newest = std::fs::read_dir(Path::new(out).join("checkpoints")).expect("checkpoints");
    let rounds = newest.filter_map(|file| {
        let name = file.expect("an entry").file_name().into_string().ok()?;
        name.strip_prefix("round-")?
            .strip_suffix(".safetensors")?
            .parse()
            .ok()
    });
    (
        report["rounds"].as_u64().expect("rounds"),
        rounds.max().expect("one"),
    )
}

#[test]
fn a_run_goes_on_when_nobody_reads_what_it_tells() {
    let _turn = beside();
    let folder = Folder::new("unread");
    for (name, reads_on) in [("closed", false), ("slow", true)] {
        let out = folder.join(name);
        let args = ["rounds=1000000", "--log-format", "json"];
        let mut child = start(&out, &args, Stdio::piped());
        let mut reader = BufReader::new(child.stdout.take().expect("piped"));
        (0..5).for_each(|_| drop(reader.read_line(&mut String::new())));
        // One that is closed, or one that is open and full.
        let reader = reads_on.then_some(reader);
        // Four times what a pipe holds.
        saved(&out, 400);
        signal(&child, "-TERM");
        let (code, told) = end(child);
        drop(reader);
        assert_eq!(code, Some(LEFT), "{name}: {told}");
        assert_eq!(told.contains("standard output"), !reads_on, "{name}: {told}");
        let (rounds, saved) = last(&out);
        assert_eq!(rounds, saved, "{name}: something was not saved");
    }
    let full = || {
        Stdio::from(
            std::fs::OpenOptions::new()
                .write(true)
                .open("/dev/full")
                .expect("a full disk"),
        )
    };
    for format in ["text", "json"] {
        let out = folder.join(format);
        let child = start(&out, &["rounds=30", "--log-format", format], full());
        let (code, told) = end(child);
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("No space left"), "{told}");
        assert_eq!(last(&out), (30, 30));
    }

    // Commands that only print end: without a word where their reader has gone.
    let out = folder.join("text");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = annulus()
        .args(["inspect", &out])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn();
    assert_eq!(end(child.expect("the binary runs")), (Some(0), String::new()));
    let child = annulus()
        .args(["inspect", &out])
        .stdout(full())
        .stderr(Stdio::piped())
        .spawn();
    let (code, told) = end(child.expect("the binary runs"));
    assert!(
        code == Some(1) && told.contains("cannot write to standard output"),
        "{told}"
    );
}

#[test]
fn standard_error_that_nobody_reads_stops_nothing() {
    let _turn = beside();
    let folder = Folder::new("errors");
    let out = folder.join("run");
    let mut command = annulus();
    command
        .args(DIGITS)
        .args(["--out", &out, "rounds=300", "--log", "debug"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer)
        .status();
    assert_eq!(status.expect("the binary runs").code(), Some(0));
    assert_eq!(last(&out), (300, 300));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = annulus().args(["inspect", "/no/such"]).stderr(writer).status();
    assert_eq!(status.expect("the binary runs").code(), Some(1), "as without");
}

#[test]
fn closing_the_terminal_saves_unless_the_peer_was_to_outlive_it() {
    let _turn = beside();
    let folder = Folder::new("terminal");
    let mut node = Node::start(
        "node",
        folder.join("run"),
        &[&DIGITS[..], &["rounds=1000000"]].concat(),
    );
    node.rounds(20);
    node.signal("-HUP");
    assert_eq!(node.end().code(), Some(LEFT), "{}", node.errors());
    let (rounds, saved) = last(&node.dir);
    assert_eq!(rounds, saved);
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_annulus")).args(DIGITS);
    let dir = folder.join("outlives");
    command.args(["rounds=1000000", "--out", &dir]);
    let mut node = Node::spawn("outlives", dir, command);
    node.rounds(5);
    node.signal("-HUP");
    node.rounds(50);
    assert!(node.leave());
}

#[test]
fn data_that_changes_under_a_run_ends_it_with_all_saved() {
    let _turn = beside();
    let folder = Folder::new("shrinks");
    let data = folder.join("text");
    let gpt = |name: &str, change: &dyn Fn()| {
        std::fs::write(&data, "River stone lamp quiet harbor.\n".repeat(20_000)).expect("writable");
        let out = folder.join(name);
        let settings = [
            "--task",
            "gpt",
            "preset=pico",
            "batch=8",
            "rounds=1000000",
            "--data",
            &data,
        ];
        let mut node = Node::start("node", out.clone(), &[&DIGITS[..6], &settings].concat());
        node.rounds(10);
        change();
        assert_eq!(node.end().code(), Some(1), "{}", node.errors());
        let told = node.errors();
        assert!(
            told.split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .contains("has changed while it was in use"),
            "{told}"
        );
        let (rounds, saved) = last(&out);
        assert!(rounds >= 10 && rounds == saved, "{rounds} rounds, {saved} saved");
    };
    gpt("empty", &|| std::fs::write(&data, "").expect("writable"));
    let other = "Stone river lamp quiet harbor.\n".repeat(20_000);
    gpt("other", &|| std::fs::write(&data, &other).expect("writable"));
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    let _turn = beside();
    let folder = Folder::new("pipes");
    let pipe = folder.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let (out, ticket) = (folder.join("run"), format!("@{pipe}"));
    for args in [
        &["train", "--task", "gpt", "--data", &pipe, "--out", &out][..],
        &["join", &ticket],
        &["train", "--config", &pipe, "--out", &out],
        &[
            "train",
            "--meet",
            "host:localhost:9",
            "--secret-file",
            &pipe,
            "--out",
            &out,
        ],
        &["train", "--meet", &format!("file:{pipe}"), "--out", &out],
        &[
            "train",
            "--tls-cert",
            &pipe,
            "--tls-key",
            &pipe,
            "--out",
            &out,
            "--listen",
            "127.0.0.1:0",
        ],
    ] {
        let told = refusal(&[args, &["--log", "error"]].concat());
        assert!(told.contains("is a pipe"), "{args:?}: {told}");
    }
    // In the folder of a run that somebody else has made.
    let run = folder.join("theirs");
    let mut node = Node::start("theirs", run.clone(), &[&DIGITS[..], &["rounds=3"]].concat());
    node.wait("the end", |seen| seen.is("done"));
    node.end();
    for name in [
        "manifest.bin",
        "ledger",
        "evals.jsonl",
        "ticket",
        "identity",
        "lock",
    ] {
        let (file, kept) = (format!("{run}/{name}"), format!("{run}/kept"));
        std::fs::rename(&file, &kept).expect("renamed");
        std::fs::hard_link(&pipe, &file).expect("linked");
        let inspects = matches!(name, "manifest.bin" | "ledger" | "evals.jsonl");
        for command in ["inspect", "resume"].iter().skip(usize::from(!inspects)) {
            let told = refusal(&[command, &run]);
            assert!(told.contains(&format!("{name} is a pipe")), "{command}: {told}");
        }
        std::fs::rename(&kept, &file).expect("renamed");
    }
}

#[test]
fn a_peer_that_is_stuck_ends_when_it_is_asked_twice_and_within_its_time() {
    let _turn = beside();
    let folder = Folder::new("stuck");
    let program = Path::new(env!("CARGO_BIN_EXE_annulus")).with_file_name("examples/faulty_task");
    for (within, asks) in [("2s", 1), ("10m", 3)] {
        let mut command = Command::new(&program);
        command
            .env("FAULTY_LOAD_S", "600")
            .args(["train", "--device", "cpu"]);
        command.args([
            "--listen",
            "127.0.0.1:0",
            "--out",
            &folder.join(within),
            "--leave-within",
            within,
        ]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child = child.expect("the example is built");
        std::thread::sleep(Duration::from_secs(1));
        for _ in 0..asks {
            signal(&child, "-TERM");
            std::thread::sleep(Duration::from_millis(300));
        }
        let (code, told) = end(child);
        // Its task is stuck for longer than a test waits for an end.
        assert_eq!(code, Some(LEFT), "{within}: {told}");
    }
}

#[test]
fn a_run_without_its_ledger_goes_on_and_is_not_begun_anew() {
    let _turn = beside();
    let folder = Folder::new("ledger");
    let out = folder.join("run");
    let run = |args: &[&str]| {
        let args = [
            &[
                "train",
                "--device",
                "cpu",
                "--listen",
                "127.0.0.1:0",
                "--no-page",
                "train=500",
                "test=100",
            ],
            args,
        ];
        run(&args.concat())
    };
    let first = run(&["rounds=60", "checkpoint_every=20", "--out", &out]);
    assert!(first.status.success(), "{first:?}");
    let ledger = Path::new(&out).join("ledger");
    std::fs::remove_file(&ledger).expect("removed");
    assert_tells(
        &told(&run(&["rounds=60", "lr=0.01", "--out", &out])),
        &["other settings"],
    );
    assert_tells(
        &refusal(&["inspect", &out]),
        &["ledger` is missing", "annulus resume"],
    );
    assert!(!ledger.exists());
    let output = crate::common::run(&[
        "resume",
        &out,
        "--device",
        "cpu",
        "--listen",
        "127.0.0.1:0",
        "--no-page",
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("ledger` is missing"),
        "{text}"
    );
    assert!(text.contains("after round 60"), "{text}");
}

#[cfg(unix)]
#[test]
fn nobody_else_can_write_to_what_a_peer_makes_whatever_its_umask() {
    use std::os::unix::fs::PermissionsExt;
    let _turn = beside();
    let folder = Folder::new("umask");
    let out = folder.join("run");
    let program = annulus();
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 000; exec \"$@\"", "sh"])
        .arg(program.get_program())
        .args(DIGITS);
    command.args(["--out", &out, "rounds=300", "eval_every=100"]);
    command.envs(
        program
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let (code, told) = end(child.expect("a shell"));
    assert_eq!(code, Some(0), "{told}");
    let (mut left, mut seen) = (vec![out.clone().into()], Vec::new());
    while let Some(path) = left.pop() {
        let path: std::path::PathBuf = path;
        let found = path.metadata().expect("there");
        assert_eq!(found.permissions().mode() & 0o022, 0, "{}", path.display());
        if found.is_dir() {
            left.extend(
                std::fs::read_dir(&path)
                    .expect("a folder")
                    .map(|entry| entry.expect("one").path()),
            );
        }
        seen.push(path);
    }
    for name in ["ledger", "manifest.bin", "evals.jsonl", "checkpoints", "lock"] {
        assert!(
            seen.contains(&Path::new(&out).join(name)),
            "{name} is not in {seen:?}"
        );
    }
    let saved = Path::new(&out).join("checkpoints");
    std::fs::set_permissions(saved, PermissionsExt::from_mode(0o777)).expect("ours");
    let told = refusal(&["resume", &out]);
    assert_tells(
        &told,
        &["checkpoints can be written by other users", "chmod -R go-w"],
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_whose_folder_is_renamed_goes_on_there() {
    let _turn = beside();
    let folder = Folder::new("renamed");
    let (out, moved) = (folder.join("run"), folder.join("moved"));
    let mut node = Node::start(
        "renamed",
        out.clone(),
        &[&DIGITS[..], &["rounds=1000000"]].concat(),
    );
    // While it saves again and again.
    saved(&out, 200);
    std::fs::rename(&out, &moved).expect("renamed");
    std::fs::create_dir(&out).expect("another of its name");
    node.wait("word of it", |seen| {
        let told = seen.event["message"].as_str().unwrap_or_default();
        seen.is("warning") && told.contains("was renamed") && told.contains(&moved)
    });
    assert!(node.leave(), "{}", node.errors());
    let (rounds, last) = last(&moved);
    assert_eq!(rounds, last, "something was not saved");
    let done = node.wait("the end", |seen| seen.is("done"));
    assert_eq!(done.event["dir"], *moved);
    assert_eq!(std::fs::read_dir(&out).expect("not removed").count(), 0);
}

#[cfg(unix)]
#[test]
fn a_run_whose_folder_is_removed_is_saved_in_a_new_one() {
    let _turn = beside();
    let folder = Folder::new("removed");
    let out = folder.join("run");
    let mut node = Node::start(
        "removed",
        out.clone(),
        &[&DIGITS[..], &["rounds=1000000"]].concat(),
    );
    let name = node.peer();
    node.rounds(20);
    std::fs::remove_dir_all(&out).expect("removed");
    node.wait("word of it", |seen| {
        let told = seen.event["message"].as_str().unwrap_or_default();
        seen.is("warning") && told.contains("is gone, with all that was saved in it")
    });
    assert!(node.leave(), "{}", node.errors());
    let (rounds, saved) = last(&out);
    assert_eq!(rounds, saved, "something was not saved");
    // It goes on from there, under its own name and with its rights.
    let mut node = Node::start_as("again", out.clone(), Path::new("."), &["resume", &out]);
    assert_eq!(node.peer(), name);
    node.rounds(5);
    assert!(node.leave(), "{}", node.errors());
}

#[test]
fn options_of_a_folder_from_somebody_else_open_nothing_and_paint_nothing() {
    let _turn = beside();
    let folder = Folder::new("options");
    let out = folder.join("run");
    let (code, told) = end(start(&out, &["rounds=3"], Stdio::null()));
    assert_eq!(code, Some(0), "{told}");
    let options = Path::new(&out).join("options");
    std::fs::write(
        &options,
        "--listen=\u{1b}]0;PWNED\u{7}\n--code-role=member\nkeep=99\n--no-page\n",
    )
    .expect("writable");
    let output = run(&["resume", &out, "--device", "cpu"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !told.contains('\u{1b}'), "{told:?}");
    assert_tells(
        &told,
        &[
            "not taken from",
            "]0;PWNED",
            "--code-role=member keep=99",
            "kept in",
            ": --no-page",
        ],
    );
    std::fs::write(&options, "--\u{1b}]0;PWNED\u{7}=1\n").expect("writable");
    let told = refusal(&["resume", &out]);
    assert!(
        told.contains("may not contain") && !told.contains('\u{1b}'),
        "{told:?}"
    );
}
