//! A run with a time budget: it ends by itself, for all peers alike.

use crate::common::*;
use serde_json::Value;

/// A table with a class that follows from its two columns.
fn sales(folder: &Folder) -> String {
    let mut text = String::from("age,town,bought\n");
    for at in 0..400 {
        let (age, town) = (18 + at * 37 % 60, ["Bern", "Bonn", "Basel"][at * 7 % 3]);
        let bought = (age > 45) != (town == "Bonn");
        text += &format!("{age},{town},{}\n", if bought { "yes" } else { "no" });
    }
    let data = folder.join("sales.csv");
    std::fs::write(&data, text).expect("writable");
    data
}

#[test]
fn as_many_rounds_as_fit_are_trained_and_the_same_command_finds_the_run_again() {
    let _turn = beside();
    let folder = Folder::new("budget");
    let (data, out) = (sales(&folder), folder.join("run"));
    let train = || {
        let output = train_on(&data, &out, &["target=bought", "time=3s"]);
        assert!(output.status.success(), "{}", told(&output));
        (
            inspect(&out),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (first, text) = train();
    for part in ["samples fit, at ", "test (40 rows): "] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(first["finished"], Value::Bool(true), "{first}");
    assert!(first["rounds"].as_u64() > Some(1), "{first}");
    let (again, _) = train();
    assert_eq!(again["rounds"], first["rounds"]);
}

#[test]
fn members_that_are_slower_than_the_trial_stop_together_when_their_time_is_over() {
    let _turn = beside();
    let folder = Folder::new("budget-slow");
    let data = sales(&folder);
    let slow = ["--sample-at-least", "30"];
    let args = [
        "train",
        "--device",
        "cpu",
        "--data",
        &data,
        "target=bought",
        "time=4s",
        "min_peers=2",
    ];
    let mut founder = Node::start("founder", folder.join("founder"), &[&args[..], &slow].concat());
    let ticket = founder.ticket();
    let args = [&["join", &ticket, "--device", "cpu"][..], &slow].concat();
    let mut second = Node::start("second", folder.join("second"), &args);
    let done = [&mut founder, &mut second].map(|node| {
        assert!(node.end().success(), "{}", node.errors());
        node.wait("the end", |seen| seen.is("done")).event
    });
    for event in &done {
        for key in ["finished", "stopped_early", "out_of_time"] {
            assert_eq!(event[key], Value::Bool(true), "{key}: {event}");
        }
        for key in ["round", "digest"] {
            assert_eq!(event[key], done[0][key], "{key}");
        }
    }
}

#[test]
fn a_time_that_cannot_be_gets_advice() {
    let _turn = beside();
    let folder = Folder::new("budget-bad");
    let (data, out, place) = (sales(&folder), folder.join("run"), folder.join("place"));
    let place = format!("file:{place}");
    for (more, advice) in [
        (
            &["time=10"][..],
            "time=10 is not possible: write a time of at least a second",
        ),
        (&["time=10s", "rounds=50"], "leave rounds and epochs out, or time"),
        (&["time=10s", "--meet", &place], "--meet does not go with time"),
    ] {
        let output = train_on(&data, &out, &[&["target=bought"][..], more].concat());
        let told = told(&output);
        assert!(told.contains(advice), "{told}");
    }
}
