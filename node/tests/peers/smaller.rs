//! Trained models made smaller, and taken up by other commands: real processes.

use crate::common::*;
use safetensors::SafeTensors;
use std::path::Path;

fn bytes(path: &str) -> u64 {
    std::fs::metadata(path).expect("the file was written").len()
}

/// Trains a model alone. Returns what that prints.
fn train(task: &str, out: &str, settings: &[&str]) -> String {
    let args = ["train", "--task", task, "--device", "cpu", "--out", out];
    let alone = ["--listen", "127.0.0.1:0", "--no-announce"];
    let output = run(&[&args[..], &alone, settings].concat());
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Trains a model alone, and exports it.
fn trained(folder: &Folder, task: &str, settings: &[&str]) -> String {
    let (out, file) = (folder.join(task), folder.join(&format!("{task}.safetensors")));
    train(task, &out, settings);
    let output = run(&["export", &out, &file]);
    assert!(output.status.success(), "{}", told(&output));
    file
}

/// What a command that succeeds prints.
fn printed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", told(&output));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    println!("{text}");
    text
}

/// What a command that fails says, in one line.
fn refused(args: &[&str]) -> String {
    let output = run(args);
    assert!(!output.status.success(), "{args:?}: {}", told(&output));
    told(&output).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The number in a row of the table, behind this many others.
fn number(table: &str, row: &str, place: usize) -> f64 {
    let line = table.lines().find(|line| line.starts_with(row)).expect(row);
    let mut numbers = line[row.len()..].split_whitespace().filter(|word| *word != "%");
    let number = numbers.nth(place).expect("a number").replace(',', "");
    number.parse().expect("a number")
}

#[test]
fn a_quantized_classifier_is_smaller_and_answers_the_same() {
    let _turn = beside();
    let folder = Folder::new("smaller-digits");
    let model = trained(&folder, "digits", &["train=4000", "test=1000", "rounds=150"]);
    for (bits, file, share, drop) in [("8", "digits-q8", 0.28, 0.4), ("4", "digits-q4", 0.16, 3.0)] {
        let limit = format!("max_drop={drop}");
        let table = printed(&["quantize", &model, "--bits", bits, &limit]);
        let file = folder.join(&format!("{file}.safetensors"));
        assert!(bytes(&file) < (share * bytes(&model) as f64) as u64);
        assert_eq!(number(&table, "bytes", 1), bytes(&file) as f64);
        assert!(number(&table, "accuracy", 0) > 80.0);
        assert!((number(&table, "accuracy", 0) - number(&table, "accuracy", 1)).abs() <= drop);
        assert!(number(&table, "same answers", 0) > 95.0);
        assert!(number(&table, "mean KL", 0) < 0.05);
        assert!(table.contains("on 1,000 samples"), "{table}");
        let again = refused(&["quantize", &file, "--bits", "4"]);
        assert!(again.contains("is quantized already"), "{again}");
    }

    // Every other unit gives a thousandth, of which the output layer takes a thousandfold: the same function. The others'
    // scale leaves nothing of it.
    let mut file = std::fs::read(&model).expect("readable");
    let end = 8 + u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    for (name, factor, unit) in [
        ("hidden.weight", 1e3, 1),
        ("hidden.bias", 1e3, 1),
        ("output.weight", 1e-3, 10),
    ] {
        let (_, header) = SafeTensors::read_metadata(&file).expect("a header");
        let (from, to) = header.info(name).expect("a tensor").data_offsets;
        let (numbers, _) = file[end + from..end + to].as_chunks_mut::<4>();
        for (at, number) in numbers.iter_mut().enumerate() {
            let factor: f32 = if at / unit % 2 == 0 { factor } else { 1.0 };
            *number = (f32::from_le_bytes(*number) * factor).to_le_bytes();
        }
    }
    let uneven = folder.join("uneven.safetensors");
    std::fs::write(&uneven, &file).expect("writable");
    let why = refused(&["quantize", &uneven, "--bits", "4"]);
    assert!(
        why.contains("uneven-q4.safetensors is not written: accuracy falls by"),
        "{why}"
    );
    assert!(why.contains("use --bits 8, or allow it with max_drop="), "{why}");
    assert!(!Path::new(&folder.join("uneven-q4.safetensors")).exists());

    let none = refused(&["export", &model, &folder.join("digits.gguf")]);
    assert!(
        none.contains("llama.cpp has no models like those of the task digits"),
        "{none}"
    );
}

#[test]
fn a_quantized_file_predicts_alone_and_a_damaged_one_is_refused() {
    let _turn = beside();
    let folder = Folder::new("smaller-table");
    let (data, new) = (folder.join("sales.csv"), folder.join("new.csv"));
    let row = |at: usize| {
        format!(
            "{},{},{}\n",
            at * 37 % 60,
            at * 7 % 3,
            at * 37 % 60 / 20 + at * 7 % 3
        )
    };
    let rows: String = (0..300).map(row).collect();
    std::fs::write(&data, format!("age,town,price\n{rows}")).expect("writable");
    std::fs::write(&new, "age,town\n30,1\n50,2\n").expect("writable");
    let settings = [
        "--data",
        &data,
        "target=price",
        "columns.price=number",
        "rounds=150",
    ];
    let model = trained(&folder, "table", &settings);
    let small = folder.join("small.safetensors");
    let table = printed(&["quantize", &model, "--bits", "8", "-o", &small]);
    assert!(number(&table, "R2", 1) > 0.8 && number(&table, "rmse", 1) < 1.0);
    assert!(!table.contains("mean KL"));

    // No data, no folder.
    std::fs::remove_file(&data).expect("there");
    let prices = |model: &str| -> Vec<f64> {
        let text = printed(&["predict", model, &new]);
        let price = |line: &str| {
            line.rsplit(',')
                .next()
                .expect("a price")
                .parse()
                .expect("a number")
        };
        text.lines().skip(1).map(price).collect()
    };
    for (exact, near) in prices(&model).iter().zip(prices(&small)) {
        assert!((exact - near).abs() < 0.05, "{exact} {near}");
    }
    let unmeasured = printed(&["quantize", &model, "--bits", "4"]);
    assert!(!unmeasured.contains("rmse"), "{unmeasured}");
    let unmeasured = refused(&["quantize", &model, "--bits", "4", "max_drop=1"]);
    assert!(unmeasured.contains("name it by --data"), "{unmeasured}");

    let whole = std::fs::read(&small).expect("readable");
    let cut = folder.join("cut.safetensors");
    for length in [3, 1000, whole.len() - 5] {
        std::fs::write(&cut, &whole[..length]).expect("writable");
        let why = refused(&["predict", &cut, &new]);
        assert!(
            why.contains("cut.safetensors is no model that can be used"),
            "{why}"
        );
    }
}

#[test]
fn a_language_model_goes_on_from_blocks_and_becomes_gguf() {
    let _turn = beside();
    let folder = Folder::new("smaller-gpt");
    let settings = ["preset=pico", "eval_windows=40", "rounds=60", "lr=3e-3"];
    let model = trained(&folder, "gpt", &settings);
    let small = folder.join("gpt-q8.safetensors");
    let table = printed(&["quantize", &model, "--bits", "8"]);
    assert!(number(&table, "same answers", 0) > 95.0);

    let write = |model: &str| {
        printed(&[
            "sample",
            model,
            "--prompt",
            "Members",
            "--tokens",
            "20",
            "--temperature",
            "0",
            "--device",
            "cpu",
        ])
    };
    assert_eq!(write(&model), write(&folder.join("gpt")));
    assert!(write(&small).starts_with("Members"));
    let none = refused(&["sample", &folder.join("none.safetensors")]);
    assert!(none.contains("none.safetensors"), "{none}");

    let (exact, half, eight) = (
        folder.join("f32.gguf"),
        folder.join("f16.gguf"),
        folder.join("q8.gguf"),
    );
    printed(&["export", &folder.join("gpt"), &exact]);
    printed(&["export", &model, &half, "--f16"]);
    printed(&["export", &small, &eight]);
    assert!(
        std::fs::read(&exact)
            .expect("readable")
            .starts_with(b"GGUF\x03\0\0\0")
    );
    assert!(bytes(&half) < bytes(&exact) * 6 / 10);
    assert!(bytes(&eight) < bytes(&exact) * 4 / 10);

    // A run that starts from the blocks: its first loss is that of the trained model.
    let data = folder.join("data");
    std::fs::create_dir(&data).expect("a folder");
    std::fs::copy(&small, format!("{data}/start.safetensors")).expect("copied");
    let text = "Members of a run hold the same state. ".repeat(60);
    std::fs::write(format!("{data}/input.txt"), text).expect("writable");
    let more = ["--task", "gpt", "--device", "cpu", "--data", &data, "rounds=1"];
    let first = |settings: &[&str], name: &'static str| {
        let args = [&["train"], &more[..], &["preset=pico"], settings].concat();
        let mut node = Node::start(name, folder.join(name), &args);
        let loss = node.rounds(1).event["loss"].as_f64().expect("a loss");
        assert!(node.end().success(), "{}", node.errors());
        loss
    };
    let (fresh, taken) = (first(&[], "fresh"), first(&["init=start.safetensors"], "taken"));
    assert!(taken < fresh - 1.0, "{taken} {fresh}");
}

#[test]
fn a_pruned_model_is_half_as_large_and_learns_further() {
    let _turn = beside();
    let folder = Folder::new("smaller-pruned");
    let data = folder.join("data");
    std::fs::create_dir(&data).expect("a folder");
    // The price depends on both columns together, so a linear model does not do.
    let price = |age: usize, town: usize| if town == 1 { 60 - age } else { age };
    let row = |at: usize| {
        format!(
            "{},{},{}\n",
            at * 37 % 60,
            at * 7 % 3,
            price(at * 37 % 60, at * 7 % 3)
        )
    };
    let rows: String = (0..400).map(row).collect();
    std::fs::write(format!("{data}/table.csv"), format!("age,town,price\n{rows}")).expect("writable");
    let settings = [
        "--data",
        &data,
        "target=price",
        "columns.town=category",
        "rounds=250",
    ];
    let model = trained(&folder, "table", &settings);
    let pruned = format!("{data}/pruned.safetensors");
    let table = printed(&["prune", &model, "keep=0.5", "-o", &pruned]);
    assert!(
        bytes(&pruned) < bytes(&model) * 6 / 10,
        "{} {}",
        bytes(&pruned),
        bytes(&model)
    );
    let (_, next) = table
        .split_once("annulus train --task table --data FOLDER ")
        .expect("what is next");
    let next: Vec<&str> = next.split_whitespace().collect();
    assert_eq!(
        next,
        [
            "columns.town=category",
            "target=price",
            "width=50",
            "init=pruned.safetensors"
        ]
    );
    let lost = refused(&[
        "prune",
        &model,
        "keep=0.1",
        "max_drop=0.01",
        "-o",
        &folder.join("no.safetensors"),
    ]);
    assert!(
        lost.contains("no.safetensors is not written: R2 falls by"),
        "{lost}"
    );

    let settings = [&["--data", &data, "rounds=200"][..], &next].concat();
    let text = train("table", &folder.join("further"), &settings);
    let pruned = number(&table, "R2", 1);
    let tested = text.lines().find(|line| line.starts_with("test ("));
    let after = tested.and_then(|line| line.split_once(" r2 "));
    let after = after.and_then(|(_, rest)| rest.split([' ', ',']).next());
    let after: f64 = after.expect("R2 of the test").parse().expect("a number");
    println!("{pruned} pruned, {after} learnt further");
    assert!(after > pruned + 0.05);
}
