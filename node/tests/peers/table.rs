//! A table from file to predictions: real processes, each as if on a machine of its own.

use crate::common::*;
use crate::served::Server;
use std::path::Path;

/// A table with a number, a category and a class that follows from both, but for every ninth row.
fn table(rows: usize) -> String {
    let mut text = String::from("age,town,bought\n");
    for at in 0..rows {
        let (age, town) = (18 + at * 37 % 60, ["Bern", "Bonn", "Basel"][at * 7 % 3]);
        let bought = (age > 45) != (town == "Bonn") && at % 9 != 0;
        text += &format!("{age},{town},{}\n", if bought { "yes" } else { "no" });
    }
    text
}

/// The same rows with a column of texts before them.
fn with_texts(rows: &str) -> String {
    let text = |(at, row)| match at {
        0 => format!("visit,{row}\n"),
        at => format!("customer {at} looked at {},{row}\n", ["shoes", "hats"][at % 2]),
    };
    rows.lines().enumerate().map(text).collect()
}

const NEW: &str = "note,town,age\n\"a, b\",Bern,70\n,Bonn,20\nx,Rome,30\ny,Basel,\n";

fn predicted(model: &str, rows: &str) -> String {
    let output = run(&["predict", model, rows]);
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The model file of a run on these rows alone.
fn trained(folder: &Folder, rows: &str, rounds: &str) -> String {
    let (data, out) = (folder.join("sales.csv"), folder.join("run"));
    std::fs::write(&data, rows).expect("writable");
    let output = train_on(&data, &out, &["target=bought", rounds]);
    assert!(output.status.success(), "{}", told(&output));
    format!("{out}/model.safetensors")
}

#[test]
fn all_peers_and_the_file_predict_the_same_bytes_though_one_was_killed() {
    let _turn = beside();
    let folder = Folder::new("table");
    let (data, new) = (folder.join("sales.csv"), folder.join("new.csv"));
    std::fs::write(&data, with_texts(&table(400))).expect("writable");
    std::fs::write(&new, with_texts(NEW)).expect("writable");
    let args = [
        "train",
        "--device",
        "cpu",
        "--data",
        &data,
        "--sample-at-least",
        "4",
    ];
    let args = [&args[..], &["target=bought", "rounds=250", "min_peers=2"]].concat();
    let mut founder = Node::start("founder", folder.join("founder"), &args);
    let ticket = founder.ticket();
    let mut second = join(&folder, "second", &ticket);
    let mut third = join(&folder, "third", &ticket);
    founder.members(3);
    founder.rounds(5);
    third.kill();
    founder.members(2);
    founder.rounds(5);
    for node in [&mut founder, &mut second] {
        assert!(node.end().success(), "{}", node.errors());
    }
    assert!(assert_equal(&[&founder, &second]) > 10);
    let described = founder
        .log()
        .into_iter()
        .find(|seen| seen.is("data"))
        .expect("a description");
    let described = described.event["description"].as_str().expect("text").to_owned();
    assert!(
        described.starts_with("sales.csv: 400 rows, 4 columns; predicting bought (no or yes; positive: yes)")
    );

    // The founder has the data in its place, the other in its cache, the file needs none.
    let exported = folder.join("alone.safetensors");
    assert!(run(&["export", &second.dir, &exported]).status.success());
    let expected = predicted(&founder.dir, &new);
    println!("{expected}");
    let own = format!("{}/model.safetensors", founder.dir);
    std::fs::remove_file(&data).expect("there");
    for model in [&second.dir, &exported, &own] {
        assert_eq!(predicted(model, &new), expected, "{model}");
    }
    let lines: Vec<&str> = expected.lines().collect();
    assert_eq!(
        lines[0],
        "visit,note,town,age,bought_predicted,bought_no,bought_yes"
    );
    let first = "customer 1 looked at hats,\"a, b\",Bern,70,yes,0.";
    assert!(lines[1].starts_with(first), "{expected}");
    assert_eq!(lines.len(), 5);
}

#[test]
fn a_person_gets_the_guess_and_then_the_test() {
    let _turn = beside();
    let folder = Folder::new("table-text");
    let (data, out) = (folder.join("sales.csv"), folder.join("run"));
    std::fs::write(&data, with_texts(&table(300))).expect("writable");
    let board = folder.join("board");
    let more = ["--tensorboard", &board, "target=bought", "rounds=60"];
    let output = train_on(&data, &out, &more);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{}", told(&output));
    for part in [
        "sales.csv: 300 rows, 4 columns; predicting bought",
        "  number    age",
        "  category  town (3)",
        "  text      visit (",
        "split by row: 240 train, 30 validation, 30 test",
        "test (30 rows): accuracy 0.",
        "to compare: always the same answer auc 0.5000",
        "rows by actual class (down) and predicted class (across):",
        "next: annulus predict",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(Path::new(&out).join("model.safetensors").exists());
    let mut files = std::fs::read_dir(&board).expect("the folder was made");
    let file = files.next().expect("one event file").expect("readable").path();
    let bytes = std::fs::read(file).expect("readable");
    let tag = b"eval/accuracy";
    assert!(bytes.windows(tag.len()).any(|part| part == tag), "its scores");
}

#[test]
fn bad_rows_are_told_all_at_once_and_a_dry_run_names_the_task() {
    let _turn = beside();
    let folder = Folder::new("table-bad");
    let data = folder.join("sales.tsv");
    let text = table(60)
        .replace(',', "\t")
        .replace("\n18\t", "\nyoung\t")
        .replace("Basel\tno", "Basel\t");
    std::fs::write(&data, &text).expect("writable");
    let args = [
        "train",
        "--device",
        "cpu",
        "--data",
        &data,
        "--dry-run",
        "target=bought",
    ];
    let output = run(&args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        errors.contains("\"young\" is not a number") && errors.contains("the target bought is empty"),
        "{errors}"
    );
    let output = run(&[&args[..], &["bad_rows=skip", "columns.town=ignore"]].concat());
    assert!(output.status.success(), "{}", told(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("table"));
}

/// A table that pandas wrote twice: as Parquet and as CSV.
const TWICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/table/tests/fixtures");

#[test]
#[cfg(feature = "parquet")]
fn a_parquet_file_is_learned_and_predicted_as_its_csv_is() {
    let _turn = beside();
    let folder = Folder::new("table-parquet");
    let (data, csv) = (format!("{TWICE}/zstd.parquet"), format!("{TWICE}/pandas.csv"));
    let text = std::fs::read_to_string(&csv).expect("readable");
    let text = text.replace("True", "true").replace("False", "false");
    let csv = folder.join("same.csv");
    std::fs::write(&csv, text).expect("writable");
    let predictions = [&data, &csv].map(|data| {
        let out = folder.join(if data == &csv { "of-csv" } else { "of-parquet" });
        let output = train_on(data, &out, &["target=price", "rounds=40"]);
        assert!(output.status.success(), "{}", told(&output));
        let model = Path::new(&out).join("model.safetensors");
        [&data, &csv].map(|rows| {
            let output = run(&["predict", &model.display().to_string(), rows]);
            assert!(output.status.success(), "{}", told(&output));
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            let predicted = text
                .lines()
                .map(|line| line.rsplit(',').next().map(str::to_owned));
            predicted.collect::<Vec<_>>()
        })
    });
    assert!(predictions[0][0].len() > 60);
    assert!(
        predictions
            .iter()
            .flatten()
            .all(|other| *other == predictions[0][0])
    );
    // A joiner fetches CSV, and so does whoever resumes.
    let packed = Path::new(&folder.join("of-parquet")).join("table.csv");
    assert!(std::fs::read(packed).is_ok_and(|csv| csv.starts_with(b"\"id\",\"small\"")));
}

#[test]
#[cfg(not(feature = "parquet"))]
fn a_program_without_parquet_says_what_to_do() {
    let _turn = beside();
    let folder = Folder::new("table-parquet");
    let output = train_on(
        &format!("{TWICE}/zstd.parquet"),
        &folder.join("run"),
        &["target=price"],
    );
    let error = told(&output);
    assert!(
        error.contains("Save the table as CSV, or build with --features parquet"),
        "{error}"
    );
    assert!(!Path::new(&folder.join("run")).exists());
}

#[test]
fn a_run_that_could_not_begin_leaves_nothing_behind() {
    let _turn = beside();
    let folder = Folder::new("table-nothing");
    let (data, out) = (folder.join("sales.csv"), folder.join("run"));
    let train = |rows: &str| {
        std::fs::write(&data, rows).expect("writable");
        train_on(&data, &out, &["target=bought", "rounds=2"])
    };
    let good = table(60);
    let bad = train(&good.replace("\n18,", "\nyoung,"));
    assert!(told(&bad).contains("\"young\" is not a number"), "{}", told(&bad));
    assert!(!Path::new(&out).exists(), "what is left of no run");
    // A folder that was there before stays, with all that is in it.
    std::fs::create_dir(&out).expect("writable");
    let note = Path::new(&out).join("note.txt");
    std::fs::write(&note, "mine").expect("writable");
    assert!(!train("age,bought\n1\n").status.success());
    assert_eq!(std::fs::read_to_string(&note).expect("still there"), "mine");
    let good = train(&good);
    assert!(good.status.success(), "{}", told(&good));
}

#[test]
fn a_thousand_requests_at_once_get_what_predict_says() {
    let _turn = beside();
    let folder = Folder::new("table-serve");
    let new = folder.join("new.csv");
    std::fs::write(&new, NEW).expect("writable");
    let model = trained(&folder, &table(300), "rounds=200");
    let server = Server::start(&model);

    let expected = predicted(&model, &new);
    let post = "POST /v1/predict";
    assert_eq!(
        server.ask(post, "text/csv", NEW.as_bytes()),
        (200, expected.clone())
    );
    let row = br#"{"note": "x", "town": "Bern", "age": 70}"#;
    let (status, told) = server.ask(post, "application/json", row);
    assert!(
        status == 400 && told.contains("there is no column \\\"note\\\""),
        "{told}"
    );
    let row = br#"{"town": "Bern", "age": 70}"#;
    let (_, first) = server.ask(post, "application/json", row);
    assert!(first.starts_with(r#"{"predictions":[{"bought":"yes""#), "{first}");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..63 {
                    assert_eq!(server.ask(post, "application/json", row), (200, first.clone()));
                }
            });
        }
    });
    assert_eq!(
        server.ask(post, "TEXT/CSV; charset=utf-8", NEW.as_bytes()),
        (200, expected)
    );
    let large = vec![b' '; 100 << 20];
    for (what, kind, body, status, advice) in [
        (
            post,
            "application/json",
            &b"{\"town\": "[..],
            400,
            "Content-Type: text/csv",
        ),
        (
            post,
            "application/json",
            &large,
            413,
            "more than 16 MiB: send it in several",
        ),
        // What curl -d makes of a file.
        (post, "text/csv", b"town,ageBern,70", 400, "--data-binary @FILE"),
        ("GET /v1/predict", "", b"", 405, "POST /v1/predict"),
        ("GET /predict", "", b"", 404, "POST /v1/predict"),
    ] {
        let (found, told) = server.ask(what, kind, body);
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let error = told["error"].as_str().expect("an error");
        assert!(found == status && error.contains(advice), "{found} {error}");
    }
    let (status, schema) = server.ask("GET /v1/schema", "", b"");
    assert!(status == 200 && schema.contains(r#""name":"age""#), "{schema}");
    assert!(server.ask("GET /", "", b"").1.contains("<form>"));
    assert_eq!(server.ask("GET /health", "", b"").0, 200);
}

#[test]
fn a_server_that_other_machines_reach_answers_only_with_its_token() {
    let _turn = beside();
    let folder = Folder::new("table-token");
    let model = trained(&folder, &table(60), "rounds=2");

    for (listen, advice) in [
        ("8080", "write HOST:PORT, such as --listen 127.0.0.1:8080"),
        ("192.0.2.1:0", "add --token FILE"),
    ] {
        let refused = run(&["serve", &model, "--listen", listen]);
        assert!(told(&refused).contains(advice), "{}", told(&refused));
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let refused = run(&["serve", &model, "--listen", &taken]);
    assert!(!refused.status.success());
    let refused = run(&["serve", &model, "--listen", "0.0.0.0:0"]);
    assert!(told(&refused).contains("add --token FILE"), "{}", told(&refused));
    let short = folder.join("short.txt");
    std::fs::write(&short, "secret").expect("writable");
    let refused = run(&["serve", &model, "--listen", "0.0.0.0:0", "--token", &short]);
    assert!(told(&refused).contains("holds no token"), "{}", told(&refused));

    let file = folder.join("token.txt");
    let options = ["--listen", "0.0.0.0:0", "--token", &file];
    let mut server = Server::start_at(&model, &options);
    let line = server.line();
    let token = line.strip_prefix("token: ").expect("a new token").to_owned();
    assert_eq!(std::fs::read_to_string(&file).expect("it was made").trim(), token);
    let row = br#"{"town": "Bern", "age": 70}"#;
    let ask = |server: &Server| server.ask("POST /v1/predict", "application/json", row);
    for wrong in [None, Some(token[1..].to_owned()), Some(String::new())] {
        server.token = wrong;
        let (status, told) = ask(&server);
        assert!(
            status == 401 && told.contains("Authorization: Bearer TOKEN"),
            "{told}"
        );
        assert_eq!(server.ask("GET /v1/schema", "", b"").0, 401);
        assert_eq!(server.ask("GET /health", "", b"").0, 200);
    }
    server.token = Some(token.clone());
    assert_eq!(ask(&server).0, 200);
    drop(server);
    // The next start takes the same token, and does not say it again.
    let mut server = Server::start_at(&model, &options);
    server.token = Some(token);
    assert_eq!(ask(&server).0, 200);
}

#[test]
fn foreign_pages_get_nothing_of_a_served_model_and_cost_it_no_work() {
    let _turn = beside();
    let folder = Folder::new("table-foreign");
    let server = Server::start(&trained(&folder, &table(60), "rounds=2"));
    let own = server.address();
    let port = own.rsplit_once(':').expect("a port").1;
    let row = r#"{"town": "Bern", "age": 70}"#;
    let status = |answer: &str| {
        answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0)
    };
    let ask = |what: &str, headers: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "{what} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n\r\n{body}"
        );
        let answer = server.exchange(head.as_bytes());
        assert!(!answer.to_lowercase().contains("access-control-"), "{answer}");
        (status(&answer), answer)
    };
    let every = [
        "POST /v1/predict",
        "GET /v1/schema",
        "GET /",
        "GET /fields.js",
        "GET /health",
        "GET /nothing",
    ];

    // A foreign name that leads here (DNS rebinding), also with that page's own origin.
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost.evil.example",
        "0.0.0.0",
        "203.0.113.9",
    ] {
        for what in every {
            for more in ["", &format!("\r\norigin: http://{host}")] {
                let (status, answer) = ask(what, &format!("host: {host}{more}"), row);
                assert!(
                    status == 421 && answer.contains("--token FILE"),
                    "{what} {host}: {answer}"
                );
            }
        }
    }
    // A foreign page that asks here, in the way for which browsers ask for no leave.
    for page in [
        "http://evil.example",
        "https://evil.example:8080",
        "null",
        "http://localhost:1",
    ] {
        for kind in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "text/csv",
        ] {
            let headers = format!("host: {own}\r\ncontent-type: {kind}\r\norigin: {page}");
            let (status, answer) = ask("POST /v1/predict", &headers, row);
            assert!(status == 403 && answer.contains(page), "{answer}");
        }
        let leave = format!("host: {own}\r\norigin: {page}\r\naccess-control-request-method: POST");
        assert_eq!(ask("OPTIONS /v1/predict", &leave, "").0, 403);
    }
    // Their bodies are not waited for, and their connections do not stay.
    for foreign in [
        "host: evil.example",
        &format!("host: {own}\r\norigin: http://evil.example"),
    ] {
        let head = format!("POST /v1/predict HTTP/1.1\r\ncontent-length: 8000000\r\n{foreign}\r\n\r\n{{");
        // A server that waited for the body would answer that it took too long.
        assert!([403, 421].contains(&status(&server.exchange(head.as_bytes()))));
    }

    // This machine's programs and the form go on.
    for host in [
        own,
        "localhost",
        &format!("LOCALHOST:{port}"),
        &format!("[::1]:{port}"),
        "127.0.0.1",
    ] {
        for more in ["", &format!("\r\norigin: http://{host}")] {
            let (status, answer) = ask("POST /v1/predict", &format!("host: {host}{more}"), row);
            assert!(status == 200 && answer.contains("\"bought\""), "{host}: {answer}");
        }
    }
    let (status, form) = ask("GET /", &format!("host: {own}"), "");
    assert!(status == 200 && form.contains("frame-ancestors 'none'"), "{form}");
}

#[test]
fn a_search_of_two_peers_gives_both_the_same_leaderboard_and_replays() {
    let _turn = beside();
    let folder = Folder::new("search");
    let (data, new) = (folder.join("sales.csv"), folder.join("new.csv"));
    std::fs::write(&data, table(400)).expect("writable");
    std::fs::write(&new, NEW).expect("writable");
    let args = [
        "search",
        "--device",
        "cpu",
        "--data",
        &data,
        "--sample-at-least",
        "4",
    ];
    let settings = [
        "target=bought",
        "trials=10",
        "rounds=60",
        "min_peers=2",
        "stand_aside=off",
    ];
    let mut founder = Node::start(
        "founder",
        folder.join("founder"),
        &[&args[..], &settings].concat(),
    );
    let ticket = founder.ticket();
    let mut second = join(&folder, "second", &ticket);
    for node in [&mut founder, &mut second] {
        assert!(node.end().success(), "{}", node.errors());
    }
    assert!(assert_equal(&[&founder, &second]) > 10);
    assert_replays_exactly(&founder);
    let trials = |node: &Node| {
        let log = node.log();
        let model = log.iter().find(|seen| seen.is("model")).expect("a model");
        assert!(log.last().expect("events").is("done"));
        model.event["judged"]["trials"].clone()
    };
    let found = trials(&founder);
    assert_eq!(found, trials(&second));
    let ranked = found.as_array().expect("a list");
    assert_eq!(ranked.len(), 10);
    let losses: Vec<f64> = ranked.iter().filter_map(|trial| trial["loss"].as_f64()).collect();
    assert!(losses.is_sorted() && losses.len() == 10, "{losses:?}");
    let shares: f64 = ranked.iter().filter_map(|trial| trial["share"].as_f64()).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    assert_eq!(predicted(&founder.dir, &new), predicted(&second.dir, &new));

    // The card names the command for the best alone.
    let card = std::fs::read_to_string(format!("{}/MODEL.md", founder.dir)).expect("a card");
    let (_, command) = card.split_once("best alone: `annulus ").expect("a command");
    let command = command
        .split('`')
        .next()
        .expect("its end")
        .replace("sales.csv", &data);
    let words: Vec<&str> = command.split(' ').chain(["--dry-run"]).collect();
    let output = run(&words);
    assert!(output.status.success(), "{}", told(&output));
}

#[test]
fn a_search_that_cannot_be_gets_advice() {
    let _turn = beside();
    let folder = Folder::new("search-bad");
    let data = folder.join("sales.csv");
    std::fs::write(&data, table(60)).expect("writable");
    let search = ["search", "--device", "cpu", "--dry-run"];
    for (more, advice) in [
        (
            &["--data", &data, "target=bought", "trials=0"][..],
            "trials=0 is not possible: give 2 to 128",
        ),
        (
            &["--data", &data, "target=bought", "trials=x"],
            "trials=x is not possible",
        ),
        (
            &["--data", &data, "target=bought", "model=linear"],
            "model=linear is one model",
        ),
        (
            &["--data", &data, "target=bought", "hidden=64"],
            "hidden describes one network",
        ),
        (&["--task", "digits"], "there is no task `digits`"),
        (&[], "--data FILE.csv target=COLUMN"),
    ] {
        let output = run(&[&search[..], more].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && errors.contains(advice),
            "{more:?}: {errors}"
        );
    }
    let output = run(&[&search[..], &["--data", &data, "target=bought"]].concat());
    assert!(output.status.success(), "{}", told(&output));
}
