//! Bad input: each is one paragraph on standard error that says what to do, an exit code that is not 0, and nothing
//! lost.

use crate::common::*;

#[track_caller]
fn assert_tells(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

fn join(folder: &Folder, ticket: &str) -> String {
    refused(folder, "refused", ticket)
}

#[test]
fn a_ticket_that_does_not_fit() {
    let _turn = beside();
    let folder = Folder::new("ticket");
    let port = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.expect("a free port").to_string();
    let args = [&SMALL[..], &["--listen", &port]].concat();
    let mut first = Node::start("first", folder.join("first"), &args);
    let ticket = first.ticket();
    // Mistyped.
    let at = ticket.len() - 3;
    let wrong = if &ticket[at..=at] == "0" { "1" } else { "0" };
    let typo = format!("{}{wrong}{}", &ticket[..at], &ticket[at + 1..]);
    assert_tells(&join(&folder, &typo), &["mistyped"]);
    assert_tells(&join(&folder, "what?"), &["no ticket"]);
    first.rounds(3);
    assert!(first.leave(), "{}", first.errors());
    // Nobody is there any more.
    assert_tells(&join(&folder, &ticket), &["nobody answers"]);
    // The same settings again are another run, whose key is another.
    let mut again = Node::start("again", folder.join("again"), &args);
    again.rounds(1);
    assert_tells(&join(&folder, &ticket), &["another run"]);
    again.rounds(3);
    assert!(again.leave(), "{}", again.errors());
    // Other settings are another run.
    let mut other = Node::start("other", folder.join("other"), &[&args[..], &["seed=2"]].concat());
    other.rounds(1);
    assert_tells(&join(&folder, &ticket), &["another run"]);
    other.rounds(3);
}

#[test]
fn a_folder_that_is_not_free() {
    let _turn = beside();
    let folder = Folder::new("folder");
    let dir = |name: &str| folder.join(name);
    let args = |seed| [&SMALL[..], &[seed]].concat();
    let mut first = Node::start("first", dir("first"), &args("seed=1"));
    let mut other = Node::start("other", dir("other"), &args("seed=2"));
    let (ticket, other_ticket) = (first.ticket(), other.ticket());
    let mut second = Node::start("second", dir("second"), &["join", &ticket, "--device", "cpu"]);
    second.members(2);
    let local = ["--listen", "127.0.0.1:0", "--out"];
    let into = |args: &[&str], name: &str| refusal(&[args, &local, &[dir(name).as_str()]].concat());
    // Two at once.
    let held = ["another process", "first"];
    assert_tells(&into(&args("seed=1"), "first"), &held);
    let join = |ticket, name| into(&["join", ticket, "--device", "cpu"], name);
    assert_tells(&join(&ticket, "first"), &held);
    assert_tells(&refusal(&["resume", &dir("first"), "--device", "cpu"]), &held);
    // Another run's.
    assert!(second.leave(), "{}", second.errors());
    let others = ["another run", "second", "--out"];
    assert_tells(&join(&other_ticket, "second"), &others);
    assert_tells(&into(&args("seed=2"), "second"), &others);
    assert!(other.leave(), "{}", other.errors());
    // The same settings, but somewhere else: it is not what was there before.
    let mut again = Node::start("again", dir("again"), &args("seed=1"));
    let again = again.ticket();
    assert_tells(&into(&["join", &again], "second"), &others);
    // None at all.
    assert_tells(
        &refusal(&["resume", &dir("nowhere")]),
        &["nowhere", "there is no folder"],
    );
    std::fs::create_dir(dir("empty")).expect("a folder");
    assert_tells(&refusal(&["resume", &dir("empty")]), &["empty", "no run"]);
    first.rounds(1);
}

#[test]
fn a_port_in_use_and_a_bad_address() {
    let _turn = beside();
    let folder = Folder::new("port");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let out = folder.join("run");
    let args = [
        "train",
        "--device",
        "cpu",
        "--out",
        &out,
        "train=500",
        "test=100",
        "--listen",
    ];
    assert_tells(
        &refusal(&[&args[..], &[&address]].concat()),
        &["in use", "another port"],
    );
    assert_tells(
        &refusal(&[&args[..], &["nonsense"]].concat()),
        &["nonsense", "HOST:PORT"],
    );
}

#[test]
fn a_page_whose_port_is_taken_is_missed_and_not_needed() {
    let _turn = beside();
    let folder = Folder::new("page-port");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let args = [&SMALL[..], &["--listen", &address]].concat();
    let mut node = Node::start("first", folder.join("first"), &args);
    assert!(node.ready().event["url"].is_null());
    let warning = node.wait("a warning", |s| s.is("warning"));
    assert_tells(
        warning.event["message"].as_str().expect("words"),
        &["no page", "--listen", "--no-page"],
    );
    node.rounds(1);

    let args = [&args[..6], &["--tls-cert", "/none.pem", "--tls-key", "/none.pem"]].concat();
    let out = folder.join("second");
    assert_tells(
        &refusal(&[&args[..], &["--out", &out]].concat()),
        &["/none.pem", "--tls-key"],
    );
}

#[test]
fn an_unknown_key_or_task() {
    let _turn = beside();
    let folder = Folder::new("key");
    let out = folder.join("run");
    assert_tells(
        &refusal(&["train", "--out", &out, "optimiser=adam"]),
        &["optimiser", "optimizer"],
    );
    assert_tells(&refusal(&["train", "--out", &out, "lr=fast"]), &["lr"]);
    assert_tells(
        &refusal(&["train", "--out", &out, "--task", "sudoku"]),
        &["sudoku", "digits"],
    );
    let config = folder.0.join("run.toml");
    std::fs::write(&config, "learning_rate = 0.1\n").expect("writable");
    let config = config.display().to_string();
    assert_tells(
        &refusal(&["train", "--out", &out, "--config", &config]),
        &["learning_rate", "lr"],
    );
}

#[test]
fn a_corrupt_data_file() {
    let _turn = beside();
    let folder = Folder::new("data");
    let data = folder.0.join("mnist");
    std::fs::create_dir_all(&data).expect("a folder");
    std::fs::write(
        data.join("train-images-idx3-ubyte"),
        [0, 0, 8, 3, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .expect("writable");
    std::fs::write(
        data.join("train-labels-idx1-ubyte"),
        [0, 0, 8, 1, 0, 0, 0, 2, 1, 2],
    )
    .expect("writable");
    let path = data.display().to_string();
    let out = folder.join("run");
    let text = refusal(&["train", "--device", "cpu", "--out", &out, "--data", &path]);
    assert_tells(&text, &["train-images-idx3-ubyte"]);
    let none = folder.join("nowhere");
    assert_tells(
        &refusal(&["train", "--device", "cpu", "--out", &out, "--data", &none]),
        &["nowhere"],
    );
}

#[test]
fn a_loss_that_is_not_a_number() {
    let _turn = beside();
    let folder = Folder::new("nan");
    let out = folder.join("run");
    let args = [
        "--device",
        "cpu",
        "--listen",
        "127.0.0.1:0",
        "optimizer=sgd",
        "lr=1e30",
        "rounds=50",
    ];
    let text = refusal(&[&["train", "--out", &out, "train=500", "test=100"], &args[..]].concat());
    assert_tells(&text, &["not finite", "lr"]);
    // The committed rounds are there.
    let report = inspect(&out);
    assert_eq!(report["audit"]["sound"], true);
    assert!(report["rounds"].as_u64() > Some(0), "{report}");
}

#[test]
fn a_full_disk_at_a_checkpoint() {
    let _turn = beside();
    let folder = Folder::new("full");
    let disk = folder.0.join("disk");
    std::fs::create_dir_all(&disk).expect("a folder");
    let path = disk.display().to_string();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs", &path])
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting a small file system needs root");
        return;
    }
    let out = disk.join("run").display().to_string();
    let args = [
        "train",
        "--device",
        "cpu",
        "--out",
        &out,
        "--listen",
        "127.0.0.1:0",
        "rounds=100000",
    ];
    let text = refusal(
        &[
            &args[..],
            &["checkpoint_every=20", "keep=9", "train=500", "test=100"],
        ]
        .concat(),
    );
    let report = run(&["inspect", &out, "--json"]);
    let unmount = std::process::Command::new("umount").args(["-l", &path]).status();
    assert!(unmount.is_ok_and(|status| status.success()));
    assert_tells(&text, &["full"]);
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("\"sound\":true"), "{report}");
}

#[test]
fn a_run_whose_data_is_not_here() {
    let _turn = beside();
    let folder = Folder::new("elsewhere");
    let Some(data) = data("mnist") else { return };
    // A copy that goes away after the start, as if it were on another machine.
    let copy = folder.0.join("copy");
    std::fs::create_dir_all(&copy).expect("a folder");
    for file in std::fs::read_dir(data).expect("readable") {
        let file = file.expect("an entry").path();
        std::fs::copy(&file, copy.join(file.file_name().expect("a name"))).expect("copied");
    }
    let path = copy.display().to_string();
    let args = ["train", "--device", "cpu", "--data", &path, "rounds=1000000"];
    let mut first = Node::start("first", folder.join("first"), &args);
    let ticket = first.ticket();
    std::fs::remove_dir_all(&copy).expect("removed");
    assert_tells(&join(&folder, &ticket), &["--data"]);
    // Other data at that place.
    let text = refusal(&[
        "join",
        &ticket,
        "--device",
        "cpu",
        "--out",
        &folder.join("other"),
        "--data",
        &folder.join("first"),
    ]);
    assert!(!text.is_empty());
    first.rounds(3);
}

#[test]
fn what_cannot_write_text() {
    let _turn = beside();
    let folder = Folder::new("sample");
    let start = |name: &'static str, args: &[&str]| {
        let mut node = Node::start(
            name,
            folder.join(name),
            &[&["train", "--device", "cpu"], args].concat(),
        );
        node.wait("the end", |s| s.is("done"));
        assert!(node.end().success(), "{}", node.errors());
        node.dir.clone()
    };
    let sample = |args: &[&str]| refusal(&[&["sample", "--device", "cpu"], args].concat());
    let digits = start("digits", &["rounds=2", "train=200", "test=50"]);
    assert_tells(&sample(&[&digits]), &["task is digits", "writes nothing", "gpt"]);
    assert_tells(
        &sample(&[&folder.join("nowhere")]),
        &["nowhere", "there is no folder"],
    );

    let data = folder.0.join("text");
    std::fs::write(&data, "abracadabra ".repeat(50)).expect("writable");
    let data = data.display().to_string();
    let settings = [
        "--task",
        "gpt",
        "--data",
        &data,
        "preset=pico",
        "vocabulary=characters",
        "rounds=3",
    ];
    let gpt = start("gpt", &settings);
    assert_tells(&sample(&[&gpt, "--prompt", "abc xyz"]), &["'x'", "\" abcdr\""]);
    assert_tells(&sample(&[&gpt, "--temperature=-1"]), &["--temperature -1"]);
    let wrote = |seed| {
        let args = [
            "sample", &gpt, "--device", "cpu", "--prompt", "abra", "--tokens", "20", "--seed", seed,
        ];
        let output = run(&args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let text = wrote("1");
    assert!(text.starts_with("abra") && text.len() == 4 + 20 + 1, "{text:?}");
    assert_eq!(wrote("1"), text);
    assert_ne!(wrote("2"), text);

    // The same run is evaluated, exported, inspected and replayed as any other.
    for args in [
        &["eval", &gpt][..],
        &["replay", &gpt],
        &["export", &gpt, &folder.join("gpt.safetensors")],
    ] {
        let output = run(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    // The file tells another program the real sizes, and the character of each token.
    let exported = std::fs::read(folder.join("gpt.safetensors")).expect("exported");
    let length = u64::from_le_bytes(exported[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&exported[8..8 + length]).expect("JSON");
    let metadata = &header["__metadata__"];
    assert_eq!(
        (&metadata["heads"], &metadata["task"]),
        (&"2".into(), &"gpt".into())
    );
    assert_eq!(metadata["characters"], " abcdr", "{metadata}");
    let picture = folder.join("losses.svg");
    let output = run(&["inspect", &gpt, &digits, "--plot", &picture]);
    assert!(output.status.success(), "{output:?}");
    let picture = std::fs::read_to_string(picture).expect("a picture");
    assert!(
        picture.contains("gpt, held out") && picture.contains("digits, held out"),
        "{picture}"
    );
    assert_tells(
        &refusal(&["inspect", &gpt, "--plot", "/no/such/folder/a.svg"]),
        &["cannot write", "--plot"],
    );

    // Without the data nobody knows what the tokens were; and other data has others.
    std::fs::write(&data, "abracadabra!".repeat(50)).expect("writable");
    assert_tells(&sample(&[&gpt]), &["other data"]);
    std::fs::remove_file(&data).expect("removable");
    assert_tells(&sample(&[&gpt]), &["not on this machine", "--data"]);
    // The parameters are exported all the same.
    let output = run(&["export", &gpt, &folder.join("bare.safetensors")]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("vocabulary"), "{told}");
}

#[test]
fn an_external_worker_that_is_not_there() {
    let _turn = beside();
    let folder = Folder::new("external");
    let train = |settings: &[&str]| {
        let out = folder.join("out");
        let args = ["train", "--device", "cpu", "train=500", "test=100", "--out", &out];
        refusal(&[&args[..], &["--no-announce", "--external"], settings].concat())
    };
    assert_tells(
        &train(&[]),
        &["needs a Unix socket as standard input", "annulus.member"],
    );
    assert_tells(
        &train(&["split=2"]),
        &["--external does not go with a split model"],
    );
    assert_tells(&train(&["--slower", "2"]), &["--external", "--slower"]);
}

#[test]
fn a_split_run_does_not_save_by_time() {
    let _turn = beside();
    let folder = Folder::new("by-time");
    let out = folder.join("out");
    let args = ["train", "--device", "cpu", "train=500", "test=100", "--out", &out];
    let of_run = ["--no-announce", "split=2", "checkpoint_every=5m"];
    assert_tells(
        &refusal(&[&args[..], &of_run].concat()),
        &["checkpoint_every=N in rounds, the same everywhere"],
    );
}

#[test]
fn a_folder_without_a_data_set_is_told_what_it_may_hold() {
    let _turn = beside();
    let folder = Folder::new("no-data-set");
    let tables = folder.join("tables");
    std::fs::create_dir(&tables).expect("writable");
    let train = |more: &[&str]| {
        refusal(
            &[
                &["train", "--device", "cpu", "--dry-run", "--data", &tables],
                more,
            ]
            .concat(),
        )
    };
    assert_tells(
        &train(&[]),
        &["holds no data set", "PNG or JPEG files for each class"],
    );
    std::fs::write(format!("{tables}/b.csv"), "a,y\n1,2\n").expect("writable");
    std::fs::write(format!("{tables}/a.csv"), "a,y\n1,2\n").expect("writable");
    assert_tells(
        &train(&["target=y"]),
        &["is a folder, and a table is one file: write --data", "a.csv"],
    );
}
