//! `annulus help`, and how help is laid out: commands in groups, and few lines for those that have many options.

use super::error::Error;
use super::keys::{self, did_you_mean, entry};
use super::output;
use super::terminal::{self, Style};
use crate::task_factory::TaskFactory;
use clap::{Arg, Command};

/// Show help: on a command, on settings, or on the commands that few need.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A command; `settings`, with or without the name of a task; or `more`.
    #[arg(value_name = "COMMAND|settings [TASK]|more")]
    pub words: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  annulus help train
  annulus help settings table
  annulus help more
";

/// The commands by what they are for.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Start", &["demo", "train", "join", "resume", "search"]),
    ("People", &["invite", "revoke"]),
    ("Look", &["ls", "watch", "inspect", "eval"]),
    (
        "Use the model",
        &["predict", "sample", "serve", "export", "quantize", "prune"],
    ),
    ("This machine", &["doctor", "pause", "service"]),
];

/// Commands that few people need.
const MORE: &[&str] = &["plan", "replay", "bench", "gradient", "completions", "man"];

/// Columns of a command's name.
const NAME: usize = 11;

/// A command with more arguments has a short help of first sentences.
const FEW: usize = 8;

/// A command with more arguments shows only the usual ones in its short help.
const MANY: usize = 20;

/// The arguments that most people need of commands that have many.
const USUAL: [&str; 15] = [
    "ticket", "dir", "settings", "task", "data", "run", "code", "out", "device", "listen", "power", "memory",
    "hours", "config", "dry_run",
];

/// Prints what was asked for.
pub fn run(args: &Args, command: Command, tasks: &[TaskFactory]) -> Result<(), Error> {
    output::paint(&text(args, command, tasks, Style::of_stdout())?);
    Ok(())
}

/// The help that was asked for, on a program and its tasks.
fn text(args: &Args, mut command: Command, tasks: &[TaskFactory], style: Style) -> Result<String, Error> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    command.build();
    match words[..] {
        ["settings"] => return Ok(keys::help(tasks)),
        ["settings", name] => {
            let task = tasks.iter().find(|task| task.name == name);
            let names = tasks.iter().map(|task| task.name);
            let none = || Error::usage(format!("there is no task `{name}`{}", did_you_mean(name, names)));
            return Ok(keys::help(std::slice::from_ref(task.ok_or_else(none)?)));
        }
        ["more"] => return Ok(list(&command, "More commands", MORE)),
        _ => {}
    }
    let mut found = &mut command;
    for word in words {
        let names: Vec<String> = found
            .get_subcommands()
            .map(|sub| sub.get_name().to_owned())
            .collect();
        let hint = did_you_mean(word, names.iter().map(String::as_str));
        let none = || Error::usage(format!("there is no command `{word}`{hint}"));
        found = found.find_subcommand_mut(word).ok_or_else(none)?;
    }
    let help = found.render_long_help();
    Ok(match style.color {
        true => help.ansi().to_string(),
        false => help.to_string(),
    })
}

/// Lists the commands of a program in groups.
pub fn in_groups(command: Command) -> Command {
    let groups: Vec<String> = GROUPS
        .iter()
        .map(|(title, names)| list(&command, title, names))
        .collect();
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}{{after-help}}\n\n{}\nMore, which few people need: {} (annulus help more)\n\n\
         Options:\n{{options}}",
        groups.join("\n"),
        MORE.join(", ")
    ))
}

fn list(command: &Command, title: &str, names: &[&str]) -> String {
    let width = terminal::size().0.min(100);
    let mut text = format!("{title}:\n");
    for &name in names {
        let about = command.find_subcommand(name).and_then(Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        entry(&mut text, (name, NAME), about.trim_end_matches('.'), width);
    }
    text
}

/// Shortens the short help of a command that has many arguments. `--help` still tells all.
pub fn brief(command: Command) -> Command {
    let count = command.get_arguments().count();
    if count <= FEW {
        return command;
    }
    let command = command.mut_args(|arg| {
        let whole = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
        let whole = whole.unwrap_or_default();
        let is_usual = count <= MANY || USUAL.contains(&arg.get_id().as_str());
        let first = first_sentence(&whole).to_owned();
        Arg::help(arg, first).long_help(whole).hide_short_help(!is_usual)
    });
    if count <= MANY {
        return command;
    }
    let name = command.get_name().to_owned();
    let told = |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string).unwrap_or_default();
    let short = told(command.get_after_help());
    let long = told(command.get_after_long_help().or(command.get_after_help()));
    command.after_long_help(long).after_help(format!(
        "{short}\nAll options: annulus {name} --help. All settings: annulus help settings [TASK].\n"
    ))
}

/// The first sentence of a text, without the full stop.
fn first_sentence(text: &str) -> &str {
    let end = text.match_indices(". ").map(|(at, _)| at);
    let end = end.min().unwrap_or(text.len());
    text[..end].trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::super::parser;
    use super::*;
    use crate::tasks::{digits::Digits, gpt::Gpt, table::TableTask};

    const PLAIN: Style = Style {
        live: false,
        color: false,
    };

    fn tasks() -> [TaskFactory; 3] {
        [
            TaskFactory::of::<Digits>(),
            TaskFactory::of::<Gpt>(),
            TaskFactory::of::<TableTask>(),
        ]
    }

    fn shown(words: &[&str]) -> Result<String, Error> {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        text(&Args { words }, parser::command(&tasks()), &tasks(), PLAIN)
    }

    #[test]
    fn every_command_is_in_one_group() {
        let command = parser::command(&tasks());
        let grouped = GROUPS.iter().flat_map(|(_, names)| *names).chain(MORE);
        let mut grouped: Vec<&str> = grouped.copied().collect();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let mut all: Vec<&str> = shown.map(Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
        let text = super::super::tests::help("annulus --help");
        let place = |part: &str| {
            text.find(part)
                .unwrap_or_else(|| panic!("{part} is not in {text}"))
        };
        assert!(place("annulus demo ") < place("Start:") && place("Start:") < place("\n  train "));
        assert!(place("This machine:") < place("Options:"), "{text}");
    }

    #[test]
    fn a_short_help_fits_a_screen_and_a_long_one_tells_all() {
        let mut command = parser::command(&tasks());
        command.build();
        for sub in command.get_subcommands_mut() {
            let text = sub.render_help().to_string();
            let lines = text.lines().count();
            assert!(lines <= 40, "{} has {lines} lines:\n{text}", sub.get_name());
        }
        let (short, long) = (
            super::super::tests::help("annulus train -h"),
            shown(&["train"]).unwrap(),
        );
        for (part, is_short) in [
            ("--data <PATH>", true),
            ("annulus help settings [TASK]", true),
            ("--tls-cert", false),
            ("  lr=X", false),
        ] {
            assert_eq!(
                (short.contains(part), long.contains(part)),
                (is_short, part != "annulus help settings [TASK]"),
                "{part}"
            );
        }
    }

    #[test]
    fn settings_are_told_for_one_task_or_all() {
        let (all, table) = (
            shown(&["settings"]).unwrap(),
            shown(&["settings", "table"]).unwrap(),
        );
        assert!(all.contains("Settings of the task gpt") && all.contains("Settings of the task table"));
        assert!(!table.contains("task gpt") && table.contains("target=") && table.contains("  lr=X"));
        assert!(shown(&["more"]).unwrap().contains("\n  replay "));
        for (words, told) in [
            (
                &["settings", "tabel"][..],
                "there is no task `tabel`; the nearest is `table`",
            ),
            (&["trian"], "there is no command `trian`; the nearest is `train`"),
            (&["bench", "xyz"], "there is no command `xyz`."),
        ] {
            let error = shown(words).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}");
        }
    }
}
