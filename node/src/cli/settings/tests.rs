//! Settings from words and files, and what is said of those that make no sense.

use super::*;
use annulus_core::Topology;
use annulus_core::codec::Codec;
use annulus_core::optim::Schedule;
use serde_json::json;
use std::time::Duration;

fn tasks() -> Vec<TaskFactory> {
    let settings = &[
        "rounds=2000",
        "batch=12",
        "optimizer=adamw",
        "beta2=0.99",
        "warmup=100",
    ];
    vec![
        TaskFactory::for_tests(
            "digits",
            &[],
            || json!({"model": "mlp", "hidden": 128, "dropout": 0.5, "flip": false, "seed": 3}),
        ),
        TaskFactory::for_tests("gpt", settings, || json!({"layers": 4})),
    ]
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn of(text: &str) -> Result<Settings, Error> {
    read(None, &words(text), (None, None), &tasks())
}

#[test]
fn no_settings_are_the_defaults() {
    let settings = of("").unwrap();
    assert_eq!(settings.run, NewRun::default());
    assert_eq!(settings.of_run, None);
}

#[test]
fn early_stops_and_best_checkpoints_need_evaluations() {
    for words in ["patience=4", "keep_best=on"] {
        let why = of(words).unwrap_err().to_string();
        assert!(why.contains("eval_every=100"), "{why}");
    }
    assert!(of("keep_best=on eval_every=10").unwrap().keep_best);
}

#[test]
fn every_key_is_read() {
    let settings = of("optimizer=adamw lr=3e-4 batch=32 epochs=2 seed=9 micro_batch=8 min_peers=2 clip=1 \
             schedule=cosine warmup=20 weight_decay=0.1 beta1=0.8 beta2=0.95 eps=1e-6 codec=f16 topology=direct \
             eval_every=50 checkpoint_every=0 keep=1 keep_best=on patience=4")
        .unwrap();
    let expected = NewRun {
        optimizer: "adamw weight_decay=0.1 beta1=0.8 beta2=0.95 eps=1e-6".into(),
        lr: 3e-4,
        batch: 32.try_into().unwrap(),
        any_batch: false,
        length: Length::Epochs(2.try_into().unwrap()),
        any_length: false,
        early_stop: Some(EarlyStop {
            every: 50.try_into().unwrap(),
            patience: 4.try_into().unwrap(),
        }),
        seed: 9,
        micro_batch: 8,
        min_peers: 2.try_into().unwrap(),
        clip: Some(1.0),
        schedule: Schedule::Cosine {
            warmup: 20,
            total: 0,
            floor: 0.1,
        },
        codec: Some(Codec::F16),
        topology: Some(Topology::Direct),
        ..NewRun::default()
    };
    assert_eq!(settings.run, expected);
    assert_eq!(
        (
            settings.eval_every,
            settings.checkpoint_every,
            settings.keep.get()
        ),
        (
            50,
            Every {
                rounds: 0,
                time: None
            },
            1
        )
    );
    assert_eq!(
        of("optimizer=rmsprop alpha=0.9").unwrap().run.optimizer,
        "rmsprop alpha=0.9"
    );
    assert_eq!(
        of("rounds=100").unwrap().run.length,
        Length::Rounds(100.try_into().unwrap())
    );
    for key in KEYS {
        let message = of(&format!("{}=?", key.name)).unwrap_err().to_string();
        assert!(
            message.contains(&format!("{}=? is not possible", key.name)),
            "{message}"
        );
        assert!(message.contains(key.about), "{message}");
    }
}

#[test]
fn the_state_is_saved_after_rounds_or_time() {
    let due = |text: &str, round, seconds| {
        let every = of(text).unwrap().checkpoint_every;
        every.is_due(round, Duration::from_secs(seconds))
    };
    assert!(due("", 2000, 0) && due("", 7, 600) && !due("", 7, 599));
    assert!(due("checkpoint_every=5", 10, 0) && due("checkpoint_every=5", 11, 600));
    assert!(due("checkpoint_every=90s", 7, 90) && !due("checkpoint_every=90s", 1000, 89));
    assert!(!due("checkpoint_every=0", 1000, 1_000_000));
}

#[test]
fn a_schedule_has_settings_of_its_own() {
    let of = |text| read(None, &words(text), (Some("gpt"), None), &tasks());
    let schedule = |text| of(text).unwrap().run.schedule;
    // The task's warm-up stays where there can be one.
    let (warmup, total) = (100, 0);
    let linear = |floor| Schedule::Linear { warmup, total, floor };
    assert_eq!(schedule("schedule=linear"), linear(0.0));
    assert_eq!(schedule("floor=0.25 schedule=linear"), linear(0.25));
    let (size, gamma) = (30.try_into().unwrap(), 0.5);
    let step = Schedule::Step { warmup, size, gamma };
    assert_eq!(schedule("schedule=step step_size=30 gamma=0.5"), step);
    let rise = 0.3;
    assert_eq!(schedule("schedule=one-cycle"), Schedule::OneCycle { total, rise });
    let why = of("schedule=one-cycle gamma=0.5").unwrap_err().to_string();
    assert_eq!(
        why,
        "gamma does not go with schedule=one-cycle: leave it out, or write schedule=step"
    );
}

#[test]
fn a_task_may_advise_and_the_user_decides() {
    let of = |toml, text| read(toml, &words(text), (Some("gpt"), None), &tasks()).unwrap();
    let settings = of(None, "");
    let run = settings.run;
    assert_eq!(
        (run.length, run.batch.get()),
        (Length::Rounds(2000.try_into().unwrap()), 12)
    );
    assert_eq!(
        (run.optimizer.as_str(), run.schedule),
        ("adamw beta2=0.99", Schedule::Warmup { steps: 100 })
    );
    assert_eq!(settings.of_run, None);
    let run = of(Some("batch = 24"), "epochs=1 beta2=0.9 weight_decay=0").run;
    assert_eq!(
        (run.length, run.batch.get()),
        (Length::Epochs(1.try_into().unwrap()), 24)
    );
    assert_eq!(run.optimizer, "adamw beta2=0.9 weight_decay=0");
    assert_eq!(
        of(None, "weight_decay=0.5 optimizer=sgd").run.optimizer,
        "sgd weight_decay=0.5"
    );
    assert_eq!(of(None, "optimizer=adamw").run.optimizer, "adamw beta2=0.99");
}

#[test]
fn momentum_makes_sgd_the_optimizer_of_that_name() {
    assert_eq!(
        of("optimizer=sgd momentum=0.8").unwrap().run.optimizer,
        "momentum momentum=0.8"
    );
    assert_eq!(of("optimizer=sgd").unwrap().run.optimizer, "sgd");
    assert_eq!(
        of("momentum=0.1 optimizer=nesterov momentum=0.8")
            .unwrap()
            .run
            .optimizer,
        "nesterov momentum=0.8"
    );
}

#[test]
fn task_keys_with_and_without_prefix() {
    let config = of("model=cnn task.hidden=64 dropout=0 task.flip=true task.seed=5 seed=6")
        .unwrap()
        .run;
    assert_eq!(
        Value::Object(config.task_config),
        json!({"model": "cnn", "hidden": 64, "dropout": 0, "flip": true, "seed": 5})
    );
    assert_eq!(
        config.seed, 6,
        "a run's own key wins over the task's of the same name"
    );
    let message = of("hidden=-1").unwrap_err().to_string();
    assert!(
        message.contains("a whole number, at least 0, for example hidden=128"),
        "{message}"
    );
    assert!(of("flip=yes").unwrap_err().to_string().contains("true or false"));
    assert!(read(None, &words("layers=2"), (Some("gpt"), None), &tasks()).is_ok());
    assert!(read(None, &words("layers=2"), (None, None), &tasks()).is_err());
}

#[test]
fn no_setting_of_a_stock_task_is_hidden_by_one_of_the_run() {
    use crate::tasks::{digits::Digits, gpt::Gpt, graph::ModelFile, images::Images, table::TableTask};
    for task in [
        TaskFactory::of::<Digits>(),
        TaskFactory::of::<Gpt>(),
        TaskFactory::of::<ModelFile>(),
        TaskFactory::of::<TableTask>(),
        TaskFactory::of::<Images>(),
    ] {
        for name in task.settings().keys() {
            assert!(KEYS.iter().all(|key| key.name != name), "{}: {name}", task.name);
        }
    }
}

#[test]
fn unknown_keys_name_the_nearest_and_list_all() {
    for (given, nearest) in [
        ("bacth", "batch"),
        ("learning_rate", "lr"),
        ("lerning_rate", "lr"),
        ("Batch-Size", "batch"),
        ("hiden", "hidden"),
        ("task.modle", "model"),
    ] {
        let message = of(&format!("{given}=1")).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("unknown setting `{given}`; the nearest is `{nearest}`.")),
            "{message}"
        );
        assert!(message.contains("model"), "{message}");
        if !given.starts_with("task.") {
            assert!(KEYS.iter().all(|key| message.contains(key.name)), "{message}");
        }
    }
    let message = read(None, &[], (Some("digit"), None), &tasks())
        .unwrap_err()
        .to_string();
    assert_eq!(
        message,
        "there is no task `digit`; the nearest is `digits`. This program knows: digits, gpt."
    );
}

#[test]
fn words_without_a_value_lead_on() {
    for (words_, told) in [
        ("gpt", "name it with --task gpt"),
        ("lr 0.1", "write lr=0.1"),
        ("hidden 3", "write hidden=3"),
        ("learning_rate", "write lr=X"),
        ("/", "write --data /"),
        ("nonsense", "write settings as KEY=VALUE"),
    ] {
        let message = of(words_).unwrap_err().to_string();
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn hints_and_help_have_the_defaults_of_the_task() {
    let message = |task| {
        read(None, &words("batch=0"), (Some(task), None), &tasks())
            .unwrap_err()
            .to_string()
    };
    assert!(
        message("digits").ends_with("(default: 64)."),
        "{}",
        message("digits")
    );
    assert!(message("gpt").ends_with("(default: 12)."), "{}", message("gpt"));
    let tasks = [
        TaskFactory::of::<crate::tasks::digits::Digits>(),
        TaskFactory::of::<crate::tasks::gpt::Gpt>(),
    ];
    let help = super::super::keys::help(&tasks);
    let flat = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "samples per step, over all peers (default: 64; gpt: 12)",
        "end after N batches, instead of epochs (gpt: 2000)",
        "(default: adam; gpt: adamw)",
        "Settings of the task gpt:",
        "(default: nano)",
        "hidden=N hidden units of the mlp and the cnn (default: 128)",
    ] {
        assert!(flat.contains(part), "{part} is not in\n{help}");
    }
    for line in help.lines() {
        assert!(line.chars().count() <= 80, "{line}");
        // A line that goes on stands below what it goes on with.
        let left = line.len() - line.trim_start().len();
        assert!([0, 2, 28].contains(&left), "{line}");
    }
}

#[test]
fn a_task_says_what_it_takes() {
    let tasks = [TaskFactory::of::<crate::tasks::gpt::Gpt>()];
    let message = |text: &str| {
        read(None, &words(text), (None, None), &tasks)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        message("layers=2 preset=tiny"),
        "preset=tiny is not possible: choose one of pico, nano, micro, mini, small, gpt2"
    );
    assert_eq!(
        message("bias=x"),
        "bias=x is not possible: it must be true or false"
    );
    let toml = read(Some("[task]\npreset = 'tiny'"), &[], (None, None), &tasks).unwrap_err();
    assert!(toml.to_string().starts_with("preset=tiny"), "{toml}");
}

#[test]
fn bad_values_are_errors() {
    for text in [
        "lr=-1",
        "lr=nan",
        "lr=inf",
        "batch=0",
        "batch=1.5",
        "batch=99999999999",
        "clip=0",
        "schedule=exponential",
        "schedule=warmup",
        "schedule=step",
        "schedule=one-cycle warmup=5",
        "schedule=constant floor=0.1",
        "schedule=linear floor=1.5",
        "gamma=0.5",
        "codec=int2",
        "topology=star",
        "optimizer=adagrad",
        "epochs=0",
        "min_peers=0",
        "min_peers=65",
        "local_steps=65537",
        "outer_lr=0",
        "beta1=1",
        "optimizer=sgd beta1=0.9",
        "keep=0",
        "seed=-1",
        "lr",
        "=3",
        "epochs=1 rounds=2",
        "batch=",
        "overlap=on",
        "codec=sign",
    ] {
        let error = of(text).expect_err(text);
        assert_eq!(error.exit() as u8, 2, "{text}");
    }
}

#[test]
fn the_file_gives_way_to_words() {
    let file = r#"
            batch = 32
            lr = 0.01
            epochs = 3
            optimizer = "sgd"
            model = "cnn"
            eval_every = 7
            [task]
            name = "digits"
            hidden = 64
        "#;
    let settings = read(
        Some(file),
        &words("lr=0.5 rounds=10 hidden=32"),
        (None, None),
        &tasks(),
    )
    .unwrap();
    assert_eq!(settings.run.batch.get(), 32);
    assert_eq!(settings.run.lr, 0.5);
    assert_eq!(settings.run.length, Length::Rounds(10.try_into().unwrap()));
    assert_eq!(settings.run.optimizer, "sgd");
    assert_eq!(
        Value::Object(settings.run.task_config),
        json!({"model": "cnn", "hidden": 32})
    );
    assert_eq!(settings.eval_every, 7);
    assert_eq!(settings.of_run.as_deref(), Some("batch"));
    let named = |text, flag| read(Some(text), &[], (flag, None), &tasks()).map(|s| s.run.task);
    assert_eq!(named("task = 'gpt'", None).unwrap(), "gpt");
    assert_eq!(named("task = 'gpt'", Some("digits")).unwrap(), "digits");
    let error = named("lr = 1\nbatch 3", None).unwrap_err().to_string();
    assert!(
        error.starts_with("line 2 of the configuration") && !error.contains(['|', '^', '\n']),
        "{error}"
    );
    assert!(named("batch = true", None).is_err());
    assert!(
        named("bach = 1", None)
            .unwrap_err()
            .to_string()
            .contains("`batch`")
    );
    assert!(named("[model]\na = 1", None).is_err());
}

#[test]
fn exchange_beside_training_needs_local_steps() {
    let message = of("overlap=on").unwrap_err().to_string();
    assert!(message.contains("needs local_steps"), "{message}");
    for text in [
        "overlap=on local_steps=4",
        "overlap=on local_steps=auto",
        "overlap=off",
    ] {
        assert!(of(text).is_ok(), "{text}");
    }
}

#[test]
fn a_file_chooses_the_task_unless_one_is_named() {
    let mut tasks = tasks();
    tasks.push(TaskFactory {
        files: &["csv"],
        ..TaskFactory::for_tests("table", &[], || json!({"columns": {}, "target": ""}))
    });
    tasks.push(TaskFactory {
        is_for: |folder| folder.ends_with("src"),
        ..TaskFactory::for_tests("images", &[], || json!({}))
    });
    let task = |toml, named, data: &str| {
        let settings = read(toml, &[], (named, Some(Path::new(data))), &tasks);
        settings.unwrap().run.task
    };
    assert_eq!(task(None, None, "src"), "images");
    assert_eq!(task(None, None, "tests"), tasks[0].name);
    assert_eq!(task(None, None, "houses.CSV"), "table");
    assert_eq!(task(None, None, "houses.txt"), tasks[0].name);
    assert_eq!(task(None, Some("gpt"), "houses.csv"), "gpt");
    assert_eq!(task(Some("task = 'gpt'"), None, "houses.csv"), "gpt");
}

#[test]
fn a_key_with_a_dot_sets_an_entry_of_a_task_s_table() {
    let tasks = [TaskFactory::for_tests(
        "table",
        &[],
        || json!({"columns": {}, "target": ""}),
    )];
    let file = "[task]\ncolumns.zip = 'number'\ncolumns.age = 'number'";
    let given = words("columns.zip=category columns.note=ignore target=price batch=9");
    let settings = read(Some(file), &given, (None, None), &tasks).unwrap();
    assert_eq!(
        Value::Object(settings.run.task_config),
        json!({"columns": {"zip": "category", "age": "number", "note": "ignore"}, "target": "price"})
    );
    let none = read(None, &[], (None, None), &tasks).unwrap().run;
    assert!(!settings.run.any_batch && settings.run.any_length && none.any_batch);
    let told = read(None, &words("target.x=1"), (None, None), &tasks);
    assert!(told.unwrap_err().to_string().contains("unknown setting"));
}
