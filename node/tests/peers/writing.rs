//! A language model over HTTP, as real processes: what it writes, at once and as a stream, and what ends it.

use crate::common::*;
use crate::served::Server;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Trains a tiny model: its folder.
fn trained(folder: &Folder) -> String {
    let out = folder.join("run");
    let tiny = [
        "layers=1",
        "heads=2",
        "width=32",
        "context=32",
        "batch=4",
        "rounds=20",
    ];
    let train = [
        "train",
        "--task",
        "gpt",
        "--device",
        "cpu",
        "--listen",
        "127.0.0.1:0",
        "--no-page",
    ];
    let alone = ["--no-announce", "--no-port-mapping", "--out", &out];
    let output = run(&[&train[..], &alone, &tiny].concat());
    assert!(output.status.success(), "{}", told(&output));
    out
}

/// What `annulus sample` writes behind the prompt.
fn sampled(model: &str, prompt: &str, tokens: &str) -> String {
    let options = ["--tokens", tokens, "--temperature", "0", "--device", "cpu"];
    let output = run(&[&["sample", model, "--prompt", prompt], &options[..]].concat());
    assert!(output.status.success(), "{}", told(&output));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let text = text.strip_prefix(prompt).expect("the prompt first");
    text.strip_suffix('\n').expect("a line end last").to_owned()
}

fn asked(server: &Server, body: &Value) -> (u16, Value) {
    let (status, answer) = server.ask(
        "POST /v1/completions",
        "application/json",
        body.to_string().as_bytes(),
    );
    (status, serde_json::from_str(&answer).expect("JSON"))
}

#[test]
fn beside_a_peer_that_trains_its_present_state_is_used() {
    let _turn = beside();
    let folder = Folder::new("present");
    let dir = folder.join("run");
    let tiny = "train --task gpt --device cpu layers=1 heads=2 width=32 context=32 batch=4 rounds=1000000 checkpoint_every=0";
    let tiny: Vec<&str> = tiny.split(' ').collect();
    let mut node = Node::start("one", dir.clone(), &tiny);
    let saved_for = |args: &[&str]| -> u64 {
        let output = run(args);
        assert!(output.status.success(), "{}", told(&output));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let round = told
            .split("note: this is round ")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        let round = round.and_then(|round| round.parse().ok());
        round.unwrap_or_else(|| panic!("no round in {told}"))
    };
    let file = folder.join("model.safetensors");
    for args in [
        &["sample", &dir, "--tokens", "4", "--device", "cpu"][..],
        &["eval", &dir, "--device", "cpu"],
        &["export", &dir, &file],
    ] {
        node.rounds(20);
        let reached = node
            .log()
            .iter()
            .rfind(|seen| seen.is("round"))
            .expect("a round")
            .round();
        let round = saved_for(args);
        assert!(round >= reached, "{args:?} used round {round}, not {reached}");
    }
    let list = run(&["ls", &dir]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let row = list.lines().find(|line| line.ends_with(&dir)).expect("the run");
    assert!(row.starts_with("yes ") && row.contains("  gpt "), "{list}");
    // One that waits has saved all.
    assert!(run(&["pause", &dir]).status.success());
    node.wait("that it waits", |seen| seen.is("waiting"));
    let last = saved_for(&["eval", &dir, "--device", "cpu"]);
    assert_eq!(last, saved_for(&["eval", &dir, "--device", "cpu"]));
    assert!(run(&["pause", &dir, "--end"]).status.success());
    node.rounds(5);
    assert!(node.leave(), "{}", node.errors());
    let output = run(&["eval", &dir, "--device", "cpu"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("note: this is round"));
}

#[test]
fn a_served_language_model_writes_what_sample_does() {
    let _turn = beside();
    let folder = Folder::new("writing");
    let dir = trained(&folder);
    let file = folder.join("model.safetensors");
    assert!(run(&["export", &dir, &file]).status.success());
    let expected = sampled(&dir, "The ", "40");
    assert!(expected.chars().count() >= 10, "{expected:?}");
    for model in [&dir, &file] {
        let server = Server::start_at(model, &["--listen", "127.0.0.1:0", "--device", "cpu"]);
        let body = json!({"model": "gpt", "prompt": "The ", "max_tokens": 40, "temperature": 0});
        let (status, answer) = asked(&server, &body);
        let choice = &answer["choices"][0];
        assert_eq!(
            (status, &choice["text"], &choice["finish_reason"]),
            (200, &json!(expected), &json!("length"))
        );
        assert_eq!(
            (&answer["object"], &answer["model"]),
            (&json!("text_completion"), &json!("gpt"))
        );

        // The same as events, the last of which says so.
        let mut body = body;
        body["stream"] = json!(true);
        let (status, events) = server.ask(
            "POST /v1/completions",
            "application/json",
            body.to_string().as_bytes(),
        );
        assert_eq!(status, 200);
        let events: Vec<&str> = events
            .lines()
            .filter_map(|line| line.split_once("data: "))
            .map(|(_, event)| event)
            .collect();
        let (done, events) = events.split_last().expect("events");
        assert_eq!(*done, "[DONE]");
        assert!(events.len() > 10, "{events:?}");
        let events: Vec<Value> = events
            .iter()
            .map(|event| serde_json::from_str(event).expect("JSON"))
            .collect();
        let text: String = events
            .iter()
            .filter_map(|event| event["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(text, expected);
        assert_eq!(
            events.last().expect("one")["choices"][0]["finish_reason"],
            "length"
        );

        // The answer ends before a text in `stop`.
        let end: String = expected.chars().skip(5).take(2).collect();
        let before = &expected[..expected.find(&end).expect("a part of it")];
        body["stream"] = json!(false);
        body["stop"] = json!([end]);
        let choice = asked(&server, &body).1["choices"][0].take();
        assert_eq!(
            (&choice["text"], &choice["finish_reason"]),
            (&json!(before), &json!("stop"))
        );
    }
}

#[test]
fn who_hangs_up_or_asks_for_nonsense_keeps_nobody_waiting() {
    let _turn = beside();
    let folder = Folder::new("writing-refused");
    let server = Server::start_at(&trained(&folder), &["--listen", "127.0.0.1:0", "--device", "cpu"]);
    for (body, status, advice) in [
        (
            json!({"prompt": "a", "n": 3}),
            400,
            "n=3 is not possible here: leave it out",
        ),
        (json!({"max_tokens": 100_000}), 400, "give 1 to 4096"),
        (json!({"prompt": 5}), 400, "no request for a completion"),
    ] {
        let (found, answer) = asked(&server, &body);
        let error = answer["error"].as_str().expect("an error");
        assert!(found == status && error.contains(advice), "{found} {error}");
    }
    for (what, status, advice) in [
        ("POST /v1/predict", 404, "POST /v1/completions"),
        ("GET /v1/completions", 405, "POST /v1/completions"),
    ] {
        let (found, answer) = server.ask(what, "", b"");
        assert!(found == status && answer.contains(advice), "{found} {answer}");
    }
    let (status, models) = server.ask("GET /v1/models", "", b"");
    assert!(status == 200 && models.contains(r#""id":"gpt""#), "{models}");

    // Ten long answers that nobody waits for.
    for _ in 0..10 {
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        let body = json!({"prompt": "a", "max_tokens": 4096, "stream": true}).to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("it reads");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a limit");
        stream.read_exact(&mut [0; 64]).expect("it has begun");
    }
    let (status, _) = asked(&server, &json!({"prompt": "a", "max_tokens": 5}));
    assert_eq!(status, 200);
}
