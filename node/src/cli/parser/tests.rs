//! Command lines with words that no option or setting takes, and the advice they get.

use super::*;
use crate::task_factory::TaskFactory;
use crate::tasks::{digits::Digits, gpt::Gpt};

fn tasks() -> [TaskFactory; 2] {
    [TaskFactory::of::<Digits>(), TaskFactory::of::<Gpt>()]
}

fn told(line: &str) -> String {
    let args: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
    match parse(&args, &tasks()) {
        Ok(cli) => panic!("{line} can be typed: {cli:?}"),
        Err(error) => explain(&error, &args, &tasks()).to_string(),
    }
}

#[test]
fn settings_that_were_typed_as_options_are_told_as_settings() {
    for (line, part) in [
        ("train --task gpt --preset nano", "write preset=nano"),
        ("train --task gpt --lr 0.1", "write lr=0.1"),
        ("train --lr=0.1 --task gpt", "write lr=0.1"),
        ("train -lr 0.1", "write lr=0.1"),
        ("train --lr -1", "write lr=-1"),
        ("train --learning-rate 0.1", "write lr=0.1"),
        ("train --batch_size 8 epochs=2", "write batch=8"),
        ("train --epochs", "write epochs=N"),
        ("train --task gpt --model cnn", "write --task digits model="),
        ("train --gpt", "--task gpt"),
        ("plan --lr 0.1", "write lr=0.1"),
        ("join T --lr 0.1", "same on all peers"),
        ("join T --keep 2", "write keep=2"),
        ("resume R --hidden 3", "same on all peers"),
        ("resume R --eval-every 5", "write eval_every=5"),
        ("eval R --batch 8", "`annulus train` takes it"),
        ("bench learning --lr 0.1", "write lr=0.1"),
    ] {
        let told = told(&format!("annulus {line}"));
        assert!(told.contains(part), "{line}: {told}");
        assert!(
            !told.contains("-- -") && !told.contains("similar"),
            "{line}: {told}"
        );
    }
    for key in keys::KEYS {
        let told = told(&format!("annulus train --{} 1", key.name.replace('_', "-")));
        let part = format!("write {}=1", key.name);
        assert!(told.contains(&part), "{told}");
    }
}

#[test]
fn words_of_other_programs_are_told_what_does_the_same_and_others_nothing() {
    for (line, part) in [
        (
            "run",
            "there is no command `run`: `annulus train` starts a run. See",
        ),
        ("start", "`annulus train` starts"),
        ("status", "`annulus watch DIR` shows"),
        ("logs", "`annulus watch DIR` shows"),
        ("stop", "Ctrl-C in its terminal stops a peer"),
        ("config", "`annulus help settings` lists"),
        ("train --port 4433", "there is no option --port: write --listen"),
        ("train --gpu", "write --device gpu"),
        ("join T --port=1", "write --listen"),
        ("train --resume R", "`annulus resume DIR` goes on"),
        ("train --split 2", "write split=2"),
        ("plan --task gpt --preset nano", "write preset=nano"),
        ("frobnicate", "there is no command `frobnicate`. See"),
        ("train --frob", "`annulus train` has no option --frob"),
        ("watch R --port 1", "`annulus watch` has no option --port"),
    ] {
        let told = told(&format!("annulus {line}"));
        assert!(told.contains(part), "{line}: {told}");
    }
    for (line, is) in [("annulus ls", "ls"), ("annulus ps", "ls"), ("annulus list", "ls")] {
        let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let matches = command(&tasks()).get_matches_from(args);
        assert_eq!(matches.subcommand_name(), Some(is));
    }
}

#[test]
fn every_option_says_itself_what_it_takes() {
    for (line, part) in [
        (
            "sample x --tokens -1",
            "--tokens -1 is not possible: it must be a whole number",
        ),
        ("sample x --prompt -abc", "write --prompt=-abc"),
        (
            "train --cores 0",
            "--cores 0 is not possible: it must be at least 1. See `annulus train --help`",
        ),
        (
            "train --nice 20",
            "--nice 20 is not possible: it must be between 0 and 19",
        ),
        (
            "invite R --uses 99999999999",
            "--uses 99999999999 is not possible",
        ),
        ("train --memory 380", "write a size with its unit"),
        ("train --leave-within 0s", "at least a second"),
        (
            "train --log-format xml",
            "--log-format xml is not possible: choose one of text, json",
        ),
        ("train --device", "a value is missing: write --device <DEVICE>"),
        (
            "train --devise cpu",
            "there is no option --devise; the nearest is --device",
        ),
        ("watch x --batches", "`annulus watch` has no option --batches"),
        (
            "train --no-page --page D",
            "--no-page and --page contradict each other",
        ),
        ("train --out A --out B", "--out may be given only once"),
        (
            "eval",
            "missing: DIR (the run's folder). See `annulus eval --help`",
        ),
        (
            "quantize model.safetensors bits=8",
            "missing: --bits <8|4> (bits for each weight). See `annulus quantize --help`",
        ),
        ("eval a b", "`b` is one argument too many"),
        (
            "trian",
            "there is no command `trian`; the nearest is `train`. See `annulus --help`",
        ),
        (
            "--log debug",
            "`annulus` needs one of these after it: demo, train",
        ),
        ("plan --peers 0", "between 1 and 64. See `annulus plan --help`"),
        ("plan --machine 8GB,0", "the speed must be a number between"),
    ] {
        let told = told(&format!("annulus {line}"));
        assert!(told.contains(part), "{line}: {told}");
        for rust in ["target type", "non-zero type", "1..=", "digit found", "'"] {
            assert!(!told.contains(rust) || part.contains(rust), "{line}: {told}");
        }
    }
}

#[test]
fn a_negative_number_is_the_options_affair() {
    let args: Vec<OsString> = "annulus sample x --temperature -1"
        .split(' ')
        .map(Into::into)
        .collect();
    let cli = parse(&args, &tasks()).unwrap();
    assert!(matches!(cli.command, crate::cli::Command::Sample(args) if args.temperature == -1.0));
}
