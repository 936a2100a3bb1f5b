//! Pictures from a folder to predictions: real processes, each as if on a machine of its own.

use crate::common::*;
use crate::png::colour_png;
use crate::served::Server;
use serde_json::Value;
use std::path::Path;

const ROSE: &[u8] = include_bytes!("../../images/fixtures/rose.jpg");
const LEAF: &[u8] = include_bytes!("../../images/fixtures/leaf.jpg");

/// A reddish or a greenish picture with a dark spot somewhere.
fn picture(red: bool, at: u32) -> Vec<u8> {
    colour_png(24 + at % 5, 20, |x, y| {
        let noise = ((x * 7 + y * 13 + at * 29) % 40) as u8;
        let spot = x.abs_diff(at % 20) < 3 && y.abs_diff(at * 7 % 16) < 3;
        match (spot, red) {
            (true, _) => [20, 20, 20],
            (false, true) => [150 + noise, 60 + noise, 60],
            (false, false) => [60 + noise, 150 + noise, 60],
        }
    })
}

/// A folder of two classes, most of it PNG files.
fn flowers(folder: &Folder) -> String {
    let top = folder.join("flowers");
    for (class, red, jpeg) in [("rose", true, ROSE), ("leaf", false, LEAF)] {
        let place = Path::new(&top).join(class);
        std::fs::create_dir_all(&place).expect("writable");
        for at in 0..30 {
            std::fs::write(place.join(format!("{at}.png")), picture(red, at)).expect("writable");
        }
        std::fs::write(place.join("photo.jpg"), jpeg).expect("writable");
    }
    top
}

fn predicted(model: &str, what: &str) -> String {
    let output = run(&["predict", model, what]);
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn two_peers_train_from_one_folder_and_the_file_predicts_what_eval_says() {
    let _turn = beside();
    let folder = Folder::new("images");
    let data = flowers(&folder);
    let args = [
        "train",
        "--device",
        "cpu",
        "--data",
        &data,
        "--sample-at-least",
        "2",
        "width=8",
        "rounds=40",
        "batch=16",
        "min_peers=2",
        "model=resnet",
        "eval_every=10",
    ];
    let mut founder = Node::start("founder", folder.join("founder"), &args);
    let ticket = founder.ticket();
    let mut second = join(&folder, "second", &ticket);
    for node in [&mut founder, &mut second] {
        assert!(node.end().success(), "{}", node.errors());
    }
    assert!(assert_equal(&[&founder, &second]) > 10);
    let log = founder.log();
    let event = |name: &str| {
        log.iter()
            .find(|seen| seen.is(name))
            .expect("it is told")
            .event
            .clone()
    };
    let (described, packing) = (event("data"), event("pack"));
    let described = described["description"].as_str().expect("text");
    assert!(
        described.starts_with("flowers: 62 pictures in 2 classes\n  leaf        31\n"),
        "{described}"
    );
    assert_eq!(packing["total"], 124);
    assert!(log[0].is("pack") && !second.log().iter().any(|seen| seen.is("pack")));

    // The folder of pictures is needed no more, and neither is a run's folder.
    let new = folder.join("new");
    std::fs::create_dir_all(Path::new(&new).join("deeper")).expect("writable");
    std::fs::write(Path::new(&new).join("red.png"), picture(true, 77)).expect("writable");
    std::fs::write(Path::new(&new).join("deeper/leaf.jpg"), LEAF).expect("writable");
    std::fs::rename(&data, folder.join("away")).expect("there");
    let exported = folder.join("alone.safetensors");
    assert!(run(&["export", &second.dir, &exported]).status.success());
    let expected = predicted(&exported, &new);
    println!("{expected}");
    let lines: Vec<&str> = expected.lines().collect();
    assert_eq!(lines[0], "file,class_predicted,class_leaf,class_rose");
    assert!(lines[1].starts_with("deeper/leaf.jpg,leaf,0."), "{expected}");
    assert!(lines[2].starts_with("red.png,rose,0."), "{expected}");
    for model in [
        &founder.dir,
        &second.dir,
        &format!("{}/model.safetensors", founder.dir),
    ] {
        assert_eq!(predicted(model, &new), expected, "{model}");
    }
    let one = predicted(&exported, &format!("{new}/red.png"));
    assert!(one.contains("/red.png,rose,0."), "{one}");

    // `eval` computes the validation part by Burn, the file's metadata by loops.
    let eval = run(&["eval", &founder.dir, "--device", "cpu", "--json"]);
    let eval: Value = serde_json::from_slice(&eval.stdout).expect("JSON");
    let bytes = std::fs::read(&exported).expect("there");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let judged = header["__metadata__"]["validation"].as_str().expect("a text");
    let judged: Value = serde_json::from_str(judged).expect("JSON");
    let metric = |name: &str| {
        let all = judged["metrics"].as_array().expect("metrics");
        let found = all.iter().find(|metric| metric["name"] == name).expect("there");
        found["value"].as_f64().expect("a number")
    };
    let accuracy = eval["metrics"]["accuracy"].as_f64().expect("a number");
    assert!(
        (metric("accuracy") - accuracy).abs() < 1e-6 && accuracy > 0.9,
        "{eval}"
    );
    assert!(
        (metric("log_loss") - eval["loss"].as_f64().expect("a number")).abs() < 1e-4,
        "{eval}"
    );

    assert_replays_exactly(&second);
    let inspected = run(&["inspect", &founder.dir]);
    assert!(inspected.status.success(), "{}", told(&inspected));
}

#[test]
fn a_person_gets_the_guess_the_test_and_a_server() {
    let _turn = beside();
    let folder = Folder::new("images-text");
    let (data, out) = (flowers(&folder), folder.join("run"));
    let bad = Path::new(&data).join("rose/broken.png");
    std::fs::write(&bad, b"hello").expect("writable");
    let settings = ["width=8", "rounds=30", "batch=16"];
    let train = |more: &[&str]| train_on(&data, &out, &[&settings[..], more].concat());
    let refused = train(&[]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        error.contains("1 of 63 files cannot be used:\n  rose/broken.png: it is neither"),
        "{error}"
    );
    let dry = train(&["--dry-run", "bad_files=skip"]);
    assert!(dry.status.success(), "{}", told(&dry));
    let output = train(&["bad_files=skip"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{}", told(&output));
    for part in [
        "flowers: 62 pictures in 2 classes",
        "becomes 32 x 32",
        "skipped 1 files:\n  rose/broken.png",
        "test (6 pictures): accuracy ",
        "to compare: always the same answer auc 0.5000",
        "pictures by actual class (down) and predicted class (across):",
        "next: annulus predict",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Another run in the same folder does not take the pictures from this one.
    std::fs::remove_file(&bad).expect("there");
    let other = train(&["size=16"]);
    assert!(
        !other.status.success() && told(&other).contains("--out"),
        "{}",
        told(&other)
    );
    assert!(run(&["eval", &out, "--device", "cpu"]).status.success());

    let model = format!("{out}/model.safetensors");
    let server = Server::start(&model);
    let (status, answer) = server.ask("POST /v1/predict", "image/jpeg", LEAF);
    assert!(
        status == 200 && answer.starts_with(r#"{"predictions":[{"class":"leaf","#),
        "{answer}"
    );
    let (status, answer) = server.ask("POST /v1/predict", "image/png", b"hello");
    assert!(
        status == 400 && answer.contains("neither a PNG nor a JPEG"),
        "{answer}"
    );
    let (status, answer) = server.ask("POST /v1/predict", "application/json", b"{}");
    assert!(
        status == 400 && answer.contains("Content-Type: image/png"),
        "{answer}"
    );
}
