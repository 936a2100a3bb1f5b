//! The command line as a whole: what the help says can be typed, and what cannot is answered well.

use super::join::By;
use super::parser::command;
use super::*;
use crate::options::{JoinOptions, Length, Local, Page, Start, TrainOptions};
use crate::tasks::images::Images;
use crate::tasks::table::TableTask;
use annulus_core::invitation::Role;
use serde_json::json;

fn tasks() -> [TaskFactory; 2] {
    [
        TaskFactory::for_tests("digits", &[], || json!({"model": "mlp"})),
        TaskFactory::for_tests("gpt", &[], || json!({"preset": "nano", "vocabulary": "bytes"})),
    ]
}

fn cli(line: &str) -> Result<Cli, Error> {
    let args: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
    parser::parse(&args, &tasks()).map_err(|error| parser::explain(&error, &args, &tasks()))
}

fn train(line: &str) -> Result<TrainOptions, Error> {
    match cli(line)?.command {
        Command::Train(args) => super::train::options(&args, &tasks()),
        other => panic!("not train: {other:?}"),
    }
}

fn join(line: &str) -> Result<JoinOptions, Error> {
    match cli(line)?.command {
        Command::Join(args) => match super::join::read(&args, &tasks())? {
            (By::Ticket(ticket), settings) => Ok(super::join::options(&args, ticket, None, &settings)),
            (By::Network(wanted), _) => Err(Error::failed(format!("{wanted:?}"))),
        },
        other => panic!("not join: {other:?}"),
    }
}

#[test]
fn the_definition_is_consistent() {
    command(&tasks()).debug_assert();
}

#[test]
fn every_example_in_the_help_can_be_typed() {
    let [digits, gpt] = tasks();
    let table = TaskFactory {
        files: &["csv"],
        ..TaskFactory::for_tests("table", &[], || json!({"target": ""}))
    };
    let all = [digits, gpt, table];
    let mut examples = 0;
    let top = command(&tasks());
    for command in std::iter::once(&top).chain(top.get_subcommands()) {
        let long = command.get_after_long_help();
        let help =
            [long, command.get_after_help()].map(|help| help.map_or_else(String::new, ToString::to_string));
        let help = help.concat();
        assert!(
            help.contains("Examples:\n") || help.contains("Begin with:\n"),
            "{} has no examples",
            command.get_name()
        );
        for line in help.lines().filter_map(|line| line.strip_prefix("  annulus ")) {
            let line = line
                .split("  ")
                .next()
                .unwrap()
                .split(['>', '<', '|'])
                .next()
                .unwrap();
            let parsed = cli(&format!("annulus {line}")).unwrap_or_else(|e| panic!("{line}: {e}"));
            match parsed.command {
                Command::Train(args) if args.config.is_none() => {
                    super::train::options(&args, &all).unwrap_or_else(|e| panic!("{line}: {e}"));
                }
                Command::Join(args) if matches!(args.ticket.as_deref(), None | Some("TICKET")) => {
                    super::join::read(&args, &tasks()).unwrap_or_else(|e| panic!("{line}: {e}"));
                }
                _ => {}
            }
            examples += 1;
        }
    }
    assert!(examples >= 15, "{examples}");
}

#[test]
fn a_search_is_a_run_with_settings_of_its_own_that_the_user_s_override() {
    let [digits, _] = tasks();
    let table = TaskFactory {
        files: &["csv"],
        search_settings: &["clip=off", "trials=12"],
        ..TaskFactory::for_tests("table", &["clip=1"], || json!({"target": "", "trials": null}))
    };
    let all = [digits, table];
    let of = |line: &str| match cli(line)?.command {
        Command::Search(args) => super::search::options(&args, &all),
        other => panic!("not search: {other:?}"),
    };
    for (more, trials, clip) in [("", 12, None), ("trials=4 clip=2", 4, Some(2.0))] {
        let options = of(&format!("annulus search --data a.csv target=x {more}")).unwrap();
        let Start::New(run) = options.start else {
            panic!("{options:?}")
        };
        assert_eq!((run.task.as_str(), run.clip), ("table", clip));
        assert_eq!(run.task_config["trials"], trials);
    }
    let told = of("annulus search --task digits").unwrap_err();
    let told = format!("{told:?}");
    assert!(
        told.contains("there is no task `digits`") && told.contains("knows: table"),
        "{told}"
    );
}

#[test]
fn train_takes_all_that_scripts_use() {
    let options = train(
        "annulus train --task digits --data D --keep-data --out O --device cpu --listen 127.0.0.1:0 --log-format json \
         --advertise 192.0.2.1:1 --advertise 192.0.2.2:2 optimizer=adam lr=1e-3 batch=64 epochs=5 seed=1 model=cnn",
    )
    .unwrap();
    let Start::New(run) = options.start else {
        panic!("{options:?}")
    };
    assert_eq!(run.length, Length::Epochs(5.try_into().unwrap()));
    assert_eq!(run.task_config["model"], "cnn");
    let local = options.local;
    assert_eq!(local.data.unwrap().to_str(), Some("D"));
    assert!(local.keep_data);
    assert_eq!(local.out.to_str(), Some("O"));
    assert_eq!(
        (local.device.as_str(), local.listen.as_str()),
        ("cpu", "127.0.0.1:0")
    );
    assert_eq!(local.advertise, ["192.0.2.1:1", "192.0.2.2:2"]);
    assert_eq!(
        (local.checkpoint_every.rounds, local.keep.get(), local.eval_every),
        (1000, 3, 0)
    );
}

#[test]
fn a_run_and_a_peer_say_what_they_are_called() {
    let options = train("annulus train --title Tales --about Why --name Żółw").unwrap();
    assert_eq!(options.local.name.as_deref(), Some("Żółw"));
    let Start::New(run) = options.start else {
        panic!("{options:?}")
    };
    assert_eq!((&*run.title, &*run.about), ("Tales", "Why"));
    let long = format!("--name {}", "x".repeat(25));
    for bad in [
        "--resume D --title T",
        "--name=",
        &long,
        "--page-copy example.org",
        "--page-copy https://a/#b",
    ] {
        assert!(train(&format!("annulus train {bad}")).is_err(), "{bad}");
    }
}

#[test]
fn a_page_is_served_unless_that_is_not_wanted() {
    let page = |options: &str| train(&format!("annulus train {options}")).map(|options| options.local.page);
    assert_eq!(page("").unwrap(), Some(Page::default()));
    assert_eq!(page("--no-page").unwrap(), None);
    let expected = Page {
        dir: Some("D".into()),
        tls: Some(("C".into(), "K".into())),
        hosts: vec!["a.example".into(), "b".into()],
        copy: Some("https://c.example/d/".into()),
    };
    let options =
        "--page D --tls-cert C --tls-key K --host a.example --host b --page-copy https://c.example/d/";
    assert_eq!(page(options).unwrap(), Some(expected));
    for bad in [
        "--tls-cert C",
        "--tls-key K",
        "--no-page --page D",
        "--no-page --host N",
    ] {
        assert!(cli(&format!("annulus train {bad}")).is_err(), "{bad}");
    }
}

#[test]
fn settings_may_stand_anywhere() {
    for line in [
        "annulus train lr=0.5 --device cpu batch=8",
        "annulus train --device cpu lr=0.5 batch=8",
    ] {
        let Start::New(run) = train(line).unwrap().start else {
            panic!("{line}")
        };
        assert_eq!((run.lr, run.batch.get()), (0.5, 8));
    }
}

#[test]
fn a_configuration_file_is_read() {
    let path = std::env::temp_dir().join(format!("annulus-cli-test-{}.toml", std::process::id()));
    std::fs::write(&path, "lr = 0.25\nbatch = 16\n[task]\nmodel = 'cnn'\n").unwrap();
    let options = train(&format!("annulus train --config {} batch=8", path.display()));
    std::fs::remove_file(&path).unwrap();
    let Start::New(run) = options.unwrap().start else {
        panic!()
    };
    assert_eq!((run.lr, run.batch.get()), (0.25, 8));
    assert_eq!(run.task_config["model"], "cnn");
    let error = train("annulus train --config /no/such/file.toml").unwrap_err();
    assert_eq!(error.exit() as u8, 1);
    assert!(error.to_string().contains("/no/such/file.toml"), "{error}");
}

#[test]
fn a_folder_is_enough_to_go_on() {
    let options = match cli("annulus resume R --device cpu eval_every=5").unwrap().command {
        Command::Resume(args) => super::resume::options(&args, &tasks()).unwrap(),
        other => panic!("not resume: {other:?}"),
    };
    assert_eq!(options.start, Start::Resume("R".into()));
    assert_eq!(
        (options.local.out.to_str(), options.local.eval_every),
        (Some("R"), 5)
    );
    for (line, told) in [("R lr=1", "`lr` cannot change"), ("R --out S", "leave --out out")] {
        let Command::Resume(args) = cli(&format!("annulus resume {line}")).unwrap().command else {
            panic!("{line}")
        };
        let error = super::resume::options(&args, &tasks()).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

/// `annulus resume` of a folder that keeps these options.
fn resume_with(kept: &str, typed: &str) -> Result<Local, Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    std::fs::write(dir.join("options"), kept).expect("writable");
    let line = format!("annulus resume {} {typed}", dir.display());
    let args: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
    match resume::with_kept(cli(&line)?, &args, &tasks())?.command {
        Command::Resume(args) => Ok(super::resume::options(&args, &tasks())?.local),
        other => panic!("not resume: {other:?}"),
    }
}

#[test]
fn a_folder_keeps_the_options_of_its_peer() {
    let first = train(
        "annulus train --keep-data --power 0.5 --hours 22-7 --data D --log-format json --advertise a:1 --advertise b:2 \
         rounds=9 checkpoint_every=50 eval_every=7",
    );
    let first = first.unwrap().local;
    let kept = first.kept.clone().unwrap();
    let expected = "--keep-data --advertise=a:1 --advertise=b:2 --power=0.5 --hours=22-7 checkpoint_every=50 eval_every=7";
    assert_eq!(
        kept.join(" "),
        expected,
        "no paths, no log, and not the run's own"
    );
    let of = |local: &Local| {
        (
            local.keep_data,
            local.power,
            local.when,
            local.eval_every,
            local.checkpoint_every,
        )
    };
    let again = resume_with(&kept.join("\n"), "").unwrap();
    assert_eq!(of(&again), of(&first));
    // Typed options win, and are kept from then on.
    let changed = resume_with(&kept.join("\n"), "--power 0.9 --advertise b:2 eval_every=3").unwrap();
    assert_eq!(
        (changed.power, changed.eval_every, changed.keep_data),
        (0.9, 3, true)
    );
    assert_eq!(
        changed.kept.unwrap().join(" "),
        "--keep-data --advertise=b:2 --power=0.9 --hours=22-7 checkpoint_every=50 eval_every=3"
    );
}

#[test]
fn a_folder_opens_no_port_gives_no_right_and_fills_no_disk() {
    let kept = "--listen=0.0.0.0:7799\n--code-role=member\n--host=evil.example\n--advertise=192.0.2.9:53\nkeep=4294967295\n\
                --listen=\u{1b}]0;PWNED\u{7}\n--power=0.5\n";
    let local = resume_with(kept, "").unwrap();
    let usual = resume_with("", "").unwrap();
    assert_eq!((local.power, usual.power), (0.5, 1.0));
    let (power, kept, out) = (usual.power, usual.kept.clone(), usual.out.clone());
    let rest = Local {
        power,
        kept,
        out,
        ..local
    };
    assert_eq!(rest, usual);
}

#[test]
fn a_folder_may_not_name_paths_or_what_nobody_keeps() {
    for bad in [
        "--data=/home",
        "--page=/home",
        "--tls-key=k",
        "--out=o",
        "lr=1",
        "R",
        "--keep-data=x",
        "--power",
    ] {
        let error = resume_with(&format!("--keep-data\n{bad}\n"), "")
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("may not contain `{bad}`")), "{error}");
    }
    for (kept, typed) in [("--no-announce", "--code-role member"), ("--power=7", "")] {
        let error = resume_with(kept, typed).unwrap_err().to_string();
        assert!(
            error.contains("options keeps: ") && error.contains("remove it"),
            "{error}"
        );
    }
}

#[test]
fn join_takes_a_ticket_and_settings_of_its_own() {
    let options = join("annulus join T --device cpu --out O --log-format json keep=7").unwrap();
    assert_eq!((options.ticket.as_str(), options.local.keep.get()), ("T", 7));
    assert!(!options.numbered && join("annulus join T").unwrap().numbered);
    let pasted = join("annulus join annulus join annulus2ab cd keep=7").unwrap();
    assert_eq!(
        (pasted.ticket.as_str(), pasted.local.keep.get()),
        ("annulus join annulus2ab cd", 7)
    );
    assert!(join("annulus join T cd").unwrap_err().to_string().contains("cd"));
    assert!(
        join("annulus join T lr=1")
            .unwrap_err()
            .to_string()
            .contains("same on all peers")
    );
}

#[test]
fn join_without_a_ticket_looks_on_the_network() {
    let read = |line: &str| match cli(line).unwrap().command {
        Command::Join(args) => super::join::read(&args, &tasks()),
        other => panic!("not join: {other:?}"),
    };
    let (by, settings) = read("annulus join keep=7 eval_every=3").unwrap();
    assert_eq!(by, By::Network(nearby::Wanted::default()));
    assert_eq!((settings.keep.get(), settings.eval_every), (7, 3));
    let (by, _) = read("annulus join --run digits --code 12-345-678").unwrap();
    let wanted = nearby::Wanted {
        run: Some("digits".into()),
        code: Some("12345678".parse().unwrap()),
    };
    assert_eq!(by, By::Network(wanted));
    for (line, told) in [
        ("annulus join T --code 12-345-678", "needs no code"),
        ("annulus join T --run digits", "needs no code"),
        ("annulus join --code 12-345-67", "eight digits"),
        ("annulus join lr=1", "same on all peers"),
    ] {
        let error = read(line).unwrap_err();
        assert!(error.to_string().contains(told), "{line}: {error}");
    }
}

#[test]
fn a_run_is_announced_unless_somebody_says_no_or_its_peers_meet_by_themselves() {
    let announced = |line: &str| train(line).unwrap().local.announce;
    assert_eq!(announced("annulus train"), Some(Role::Contribute));
    assert_eq!(announced("annulus train --code-role member"), Some(Role::Member));
    assert_eq!(announced("annulus train --no-announce"), None);
    assert_eq!(announced("annulus train --meet file:/shared/run"), None);
    assert!(cli("annulus train --no-announce --code-role member").is_err());
    assert_eq!(join("annulus join T --no-announce").unwrap().local.announce, None);
}

#[test]
fn a_wrong_command_line_is_one_paragraph_that_says_where_to_look() {
    for (line, told, look) in [
        ("annulus trian", "no command `trian`", "annulus --help"),
        (
            "annulus train --devise cpu",
            "the nearest is --device",
            "annulus train --help",
        ),
        (
            "annulus train --log-format xml",
            "text, json",
            "annulus train --help",
        ),
    ] {
        let text = cli(line).unwrap_err().render(1000);
        assert!(text.starts_with("error: ") && !text.contains('\n'), "{text}");
        assert!(text.contains(told) && text.contains(look), "{text}");
    }
}

/// What a command line prints that asks for help.
pub(super) fn help(line: &str) -> String {
    let args: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
    parser::parse(&args, &tasks()).unwrap_err().render().to_string()
}

#[test]
fn help_hides_what_is_refused() {
    assert!(help("annulus train --help").contains("digits or gpt (default: digits)"));
    assert!(!help("annulus resume --help").contains("--out"));
    // An option of every command comes last.
    for (command, last) in [
        ("train", "--log-tickets"),
        ("join", "--log-tickets"),
        ("eval", "--json"),
    ] {
        let help = help(&format!("annulus {command} --help"));
        assert!(help.find("--log <LEVEL>") > help.find(last), "{help}");
    }
}

#[test]
fn the_help_tells_the_default_of_each_setting_once() {
    let tasks = [TaskFactory::of::<Images>(), TaskFactory::of::<TableTask>()];
    let text = super::keys::help(&tasks);
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!one_line.contains("(default: )"), "{text}");
    assert!(!one_line.contains(") (default: "), "{text}");
    assert!(one_line.contains("(default: cnn)"), "{text}");
}

#[test]
fn completions_and_manuals_know_all_commands() {
    let script = String::from_utf8(super::completions::script(clap_complete::Shell::Bash, &tasks())).unwrap();
    let dir = std::env::temp_dir().join(format!("annulus-cli-man-{}", std::process::id()));
    let args = super::man::Args {
        dir: Some(dir.clone()),
    };
    super::man::run(args, &tasks()).unwrap();
    let command = command(&tasks());
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        assert!(script.contains(&format!("annulus,{name})")), "{name}");
        let page = std::fs::read_to_string(dir.join(format!("annulus-{name}.1"))).unwrap();
        assert!(page.contains("Examples:"), "{name}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_commands_in_the_files_for_others_to_run_it_can_be_typed() {
    let typed = |line: Vec<&str>| {
        let options =
            train(&format!("annulus {}", line.join(" "))).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        assert!(matches!(options.start, Start::Meet(..)), "{line:?}");
        // It has left before it is killed.
        assert!(options.local.leave_within.as_secs() < 30);
    };
    let words = |text: &'static str, from: &str, to: &str| -> Vec<&'static str> {
        let (_, after) = text.split_once(from).expect("a command");
        let (command, _) = after.split_once(to).expect("more");
        let words = command.split_whitespace();
        words.filter(|word| !matches!(*word, "-" | "\\")).collect()
    };
    let service = include_str!("../../../examples/deploy/annulus.service");
    let command = words(service, "ExecStart=", "StateDirectory=");
    assert!(command[0].ends_with("/annulus"));
    typed(command[1..].to_vec());
    // A container begins the command itself.
    let container = include_str!("../../../packaging/Containerfile");
    assert!(container.contains("ENTRYPOINT [\"annulus\"]"));
    let compose = include_str!("../../../examples/deploy/compose.yaml");
    typed(words(compose, "command: >", "secrets: ["));
    for manifest in [
        include_str!("../../../examples/deploy/kubernetes.yaml"),
        include_str!("../../../examples/deploy/kubernetes-job.yaml"),
    ] {
        typed(words(manifest, "args:", "ports:"));
    }
}
