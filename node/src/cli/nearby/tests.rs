//! The list, the meaning of names and codes, and the questions that are asked.

use super::*;
use crate::net::nearby::announcement::Announcement;
use crate::testing::Scratch;
use crate::testing::ticket_in;
use annulus_core::{PeerId, RunId};
use std::net::SocketAddr;

/// A member of a run, with a code that begins so.
fn member(run: u8, task: &str, peer: u8, members: usize, tag: &str) -> Found {
    let told = Announcement::new(
        RunId([run; 32]),
        task,
        PeerId([peer; 32]),
        members,
        tag.parse().unwrap(),
    );
    Found::new(told, [([192, 0, 2, peer], 4433).into()]).unwrap()
}

fn two_runs(held: &[(PathBuf, Ticket)]) -> Vec<Run> {
    let found = vec![
        member(0x77, "gpt", 3, 1, "40"),
        member(0x1f, "digits", 1, 3, "12"),
        member(0x1f, "digits", 2, 4, "31"),
    ];
    runs(found, held)
}

fn of_run(run: u8) -> (PathBuf, Ticket) {
    let ticket = ticket_in(RunId([run; 32]), vec!["198.51.100.1:1".parse().unwrap()]);
    (format!("runs/joined-{run}").into(), ticket)
}

fn wanted(run: Option<&str>, code: Option<&str>) -> Wanted {
    Wanted {
        run: run.map(str::to_owned),
        code: code.map(|code| code.parse().unwrap()),
    }
}

#[test]
fn the_list_says_what_there_is_and_what_it_takes() {
    assert_eq!(
        list(&two_runs(&[of_run(0x77)])),
        "2 runs on this network:\n\
         \n   1  digits  run 1f1f1f1f  4 members   01010101 at 192.0.2.1:4433, and another\
         \n   2  gpt     run 77777777  1 member    03030303 at 192.0.2.3:4433  (no code needed: runs/joined-119)\n"
    );
    let one = runs(vec![member(1, "digits", 1, 1, "12")], &[]);
    assert!(list(&one).starts_with("one run on this network:\n\n   1  digits  run 01010101  1 member "));
}

#[test]
fn a_code_says_by_itself_whose_it_is() {
    let runs = two_runs(&[]);
    let picked = |run, code| pick(&wanted(run, code), &runs);
    for (code, name) in [
        ("12-000-000", "1f1f1f1f"),
        ("31-000-000", "1f1f1f1f"),
        ("40000000", "77777777"),
    ] {
        assert!(
            matches!(picked(None, Some(code)), Ok(Pick::Code(run, _)) if run.name() == name),
            "{code}"
        );
    }
    assert!(
        picked(None, Some("99-000-000")).is_err_and(|error| error.to_string().contains("begins with 99"))
    );
    assert!(picked(Some("gpt"), Some("12-000-000")).is_err());
    assert!(picked(Some("digits"), Some("12-000-000")).is_ok());
    // Two that begin alike are told apart by the run.
    let found = vec![member(1, "digits", 1, 1, "12"), member(2, "gpt", 2, 1, "12")];
    let alike = super::runs(found, &[]);
    let error = pick(&wanted(None, Some("12-000-000")), &alike).err().unwrap();
    assert!(error.to_string().contains("--run") && error.exit() as u8 == 2);
    let picked = pick(&wanted(Some("gpt"), Some("12-000-000")), &alike);
    assert!(matches!(picked, Ok(Pick::Code(run, _)) if run.name() == "02020202"));
}

#[test]
fn a_run_that_was_joined_before_needs_no_code() {
    let (folder, ticket) = of_run(0x77);
    let runs = two_runs(&[(folder.clone(), ticket.clone())]);
    for name in [
        "gpt",
        "7777",
        "77777777",
        "0303",
        &"77".repeat(32),
        "77777777".to_uppercase().as_str(),
    ] {
        let Ok(Pick::Held(chosen)) = pick(&wanted(Some(name), None), &runs) else {
            panic!("{name} was not found")
        };
        assert_eq!(
            (chosen.folder.as_ref(), &chosen.ticket.chain),
            (Some(&folder), &ticket.chain)
        );
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(chosen.ticket.addrs, [at("192.0.2.3:4433"), at("198.51.100.1:1")]);
    }
    assert!(matches!(
        pick(&wanted(Some("digits"), None), &runs),
        Ok(Pick::Ask)
    ));
    assert!(matches!(pick(&wanted(None, None), &runs), Ok(Pick::Ask)));
    assert!(
        pick(&wanted(Some("777"), None), &runs).is_err(),
        "three digits are too few"
    );
}

#[test]
fn what_is_typed_is_a_code_or_a_number() {
    let runs = two_runs(&[of_run(0x77)]);
    assert!(matches!(answer("12 345 678", &runs), Ok(Answer::Code(run, _)) if run.name() == "1f1f1f1f"));
    assert!(matches!(answer("2", &runs), Ok(Answer::Held(run)) if run.name() == "77777777"));
    for (typed, told) in [
        ("1", "needs a code"),
        ("3", "eight digits"),
        ("0", "eight digits"),
        ("", "eight digits"),
        ("99-345-678", "begins with 99"),
    ] {
        assert!(
            answer(typed, &runs).is_err_and(|why| why.contains(told)),
            "{typed}"
        );
    }
}

#[test]
fn tickets_of_former_runs_are_found_in_their_folders() {
    let (one, none) = (Scratch::new(), Scratch::new());
    let (_, ticket) = of_run(5);
    let right = Right {
        ticket: ticket.clone(),
        run_key: None,
    };
    right.keep(&one.0).unwrap();
    assert_eq!(held(Some(&one.0)), [(one.0.clone(), ticket)]);
    assert_eq!(held(Some(&none.0)), []);
}
