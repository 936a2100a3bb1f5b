//! Words that people bring from other programs, and what does the same here.

/// Commands of other programs.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["run", "start", "launch", "new", "init", "fit"],
        "`annulus train` starts a run",
    ),
    (
        &["status", "logs", "log", "top", "monitor", "attach"],
        "`annulus watch DIR` shows a run, and `annulus ls` lists those on this machine",
    ),
    (
        &["stop", "kill", "quit", "exit", "down"],
        "Ctrl-C in its terminal stops a peer and saves, and `annulus pause DIR` frees its device for a while",
    ),
    (
        &["continue", "restart", "up"],
        "`annulus resume DIR` goes on with a run",
    ),
    (
        &["generate", "write", "complete", "chat", "ask"],
        "`annulus sample DIR` writes with a language model, and `annulus serve DIR` answers over HTTP",
    ),
    (
        &["test", "evaluate", "score", "validate"],
        "`annulus eval DIR` scores a model",
    ),
    (
        &["infer", "inference", "apply"],
        "`annulus predict DIR FILE` uses a model",
    ),
    (
        &["share", "ticket", "token"],
        "`annulus invite DIR` makes a ticket",
    ),
    (
        &["connect", "contribute"],
        "`annulus join TICKET` takes part in a run",
    ),
    (
        &["config", "settings", "options"],
        "`annulus help settings` lists all settings",
    ),
    (&["version"], "`annulus --version` tells it"),
    (
        &["info", "check", "devices"],
        "`annulus doctor` checks this machine",
    ),
];

/// Options of other programs, without dashes; the option that has to exist here, and what to write.
const OPTIONS: &[(&[&str], &str, &str)] = &[
    (
        &["port", "address", "bind"],
        "listen",
        "write --listen, with a port or HOST:PORT",
    ),
    (&["gpu", "cuda"], "device", "write --device gpu"),
    (&["cpu"], "device", "write --device cpu"),
    (
        &["output", "output_dir", "save_dir", "folder"],
        "out",
        "write --out",
    ),
    (&["dataset", "train_data", "input"], "data", "write --data"),
    (&["ram"], "memory", "write --memory"),
    (&["threads"], "cores", "write --cores"),
    (&["resume"], "dry_run", "`annulus resume DIR` goes on with a run"),
];

/// What does here the same as a command of another program.
pub fn command(given: &str) -> Option<&'static str> {
    let found = COMMANDS.iter().find(|(words, _)| words.contains(&given));
    found.map(|(_, told)| *told)
}

/// The option to write instead of one of another program, for a command that has the arguments that `has` knows.
pub fn option(given: &str, has: impl Fn(&str) -> bool) -> Option<&'static str> {
    let is = |(words, needs, _): &&(&[&str], &str, &str)| words.contains(&given) && has(needs);
    OPTIONS.iter().find(is).map(|(_, _, told)| *told)
}
