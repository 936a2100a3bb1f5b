//! Reads the command line, and says what is wrong with one that cannot be read: what happened, and what to write instead.
//!
//! The argument parser knows options and commands only. People also type settings as options (`--lr 0.1`), so its errors
//! are told here in this program's words.

use super::error::Error;
use super::keys::{self, did_you_mean, nearest};
use super::{Cli, brought, help, kept, train};
use crate::task_factory::TaskFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;

/// Reads arguments, the program's name first.
pub fn parse(args: &[OsString], tasks: &[TaskFactory]) -> Result<Cli, clap::Error> {
    read(&command(tasks), args)
}

/// Reads arguments of a command among which stand those that its folder keeps: the later of two wins.
pub fn parse_with_kept(args: &[OsString], name: &str, tasks: &[TaskFactory]) -> Result<Cli, clap::Error> {
    let later_wins = |command: Command| command.args_override_self(true);
    read(&command(tasks).mut_subcommand(name, later_wins), args)
}

fn read(command: &Command, args: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = command.clone().try_get_matches_from(args)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Some(local), Some((_, matches))) = (cli.command.local(), matches.subcommand()) {
        local.typed = kept::typed(matches);
    }
    Ok(cli)
}

/// The definition from which parser, help, completions and manual pages are made.
pub fn command(tasks: &[TaskFactory]) -> Command {
    let names: Vec<&str> = tasks.iter().map(|task| task.name).collect();
    let default = names.first().map(|name| format!(" (default: {name})"));
    let default = default.unwrap_or_default();
    let of_tasks = |arg: Arg| arg.help(format!("The task to train: {}{default}", names.join(" or ")));
    let searches = tasks.iter().filter(|task| !task.search_settings.is_empty());
    let searches: Vec<&str> = searches.map(|task| task.name).collect();
    let of_searches = |arg: Arg| arg.help(format!("The task to train: {}", searches.join(" or ")));
    let train = |command: Command| {
        let command = command.mut_arg("task", of_tasks);
        let long = train::after_help(tasks);
        command.after_help(train::EXAMPLES).after_long_help(long)
    };
    let command = negatives(Cli::command())
        .mut_subcommand("train", train)
        .mut_subcommand("search", |search| {
            let settings =
                |arg: Arg| arg.help("Settings of `annulus train`, such as target=COLUMN and trials=N");
            search.mut_arg("task", of_searches).mut_arg("settings", settings)
        })
        .mut_subcommand("plan", |plan| plan.mut_arg("task", of_tasks))
        // A run goes on in its own folder.
        .mut_subcommand("resume", |resume| resume.mut_arg("out", |out| out.hide(true)))
        .mut_subcommands(help::brief);
    help::in_groups(command)
}

/// Lets a negative number be the value of every option, so that it is the option that says what it takes.
fn negatives(command: Command) -> Command {
    let of = |arg: Arg| match arg.get_long().is_some() && arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(of).mut_subcommands(negatives)
}

/// What is wrong with a command line, and what to do.
pub fn explain(error: &clap::Error, args: &[OsString], tasks: &[TaskFactory]) -> Error {
    let line = Line::of(args, tasks);
    let problem = line.problem(error);
    let problem = problem.trim_end_matches('.');
    Error::usage(format!("{problem}. See `{} --help`.", line.name))
}

/// A command line that could not be read.
struct Line<'a> {
    args: Vec<String>,
    tasks: &'a [TaskFactory],
    /// The command that was meant, and how it is typed.
    command: Command,
    name: String,
}

impl<'a> Line<'a> {
    fn of(args: &[OsString], tasks: &'a [TaskFactory]) -> Self {
        let args: Vec<String> = args
            .iter()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        let (mut command, mut name) = (self::command(tasks), String::from("annulus"));
        command.build();
        for arg in args.iter().skip(1) {
            if let Some(meant) = command.find_subcommand(arg).cloned() {
                name = format!("{name} {}", meant.get_name());
                command = meant;
            }
        }
        Self {
            args,
            tasks,
            command,
            name,
        }
    }

    fn problem(&self, error: &clap::Error) -> String {
        let texts = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => vec![text.clone()],
            Some(ContextValue::Strings(texts)) => texts.clone(),
            _ => Vec::new(),
        };
        let text = |kind| texts(kind).into_iter().next().unwrap_or_default();
        // An option comes with what to write behind it.
        let bare = |shown: &str| shown.split_whitespace().next().unwrap_or_default().to_owned();
        let (arg, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
        match error.kind() {
            ErrorKind::UnknownArgument => self.unknown(&arg),
            ErrorKind::InvalidSubcommand => {
                let given = text(ContextKind::InvalidSubcommand);
                if let Some(told) = brought::command(&given).filter(|_| self.name == "annulus") {
                    return format!("there is no command `{given}`: {told}");
                }
                let names: Vec<&str> = self.command.get_subcommands().map(Command::get_name).collect();
                format!(
                    "there is no command `{given}`{}",
                    did_you_mean(&given, names.iter().copied())
                )
            }
            ErrorKind::MissingSubcommand => {
                let shown = self.command.get_subcommands().filter(|sub| !sub.is_hide_set());
                let mut names: Vec<&str> = shown.map(Command::get_name).collect();
                // Commands that were adapted to the tasks have moved to the end.
                let order = Cli::command();
                let place = |name: &&str| order.get_subcommands().position(|sub| sub.get_name() == *name);
                names.sort_by_key(|name| place(name).unwrap_or(usize::MAX));
                format!(
                    "`{}` needs one of these after it: {}",
                    self.name,
                    names.join(", ")
                )
            }
            ErrorKind::InvalidValue if value.is_empty() => format!("a value is missing: write {arg}"),
            ErrorKind::InvalidValue => {
                let known = texts(ContextKind::ValidValue).join(", ");
                format!("{} {value} is not possible: choose one of {known}", bare(&arg))
            }
            ErrorKind::ValueValidation => {
                let why = std::error::Error::source(error).map(ToString::to_string);
                format!(
                    "{} {value} is not possible: {}",
                    bare(&arg),
                    plain(&why.unwrap_or_default())
                )
            }
            ErrorKind::MissingRequiredArgument => {
                let missing: Vec<String> = texts(ContextKind::InvalidArg)
                    .iter()
                    .map(|arg| self.missing(arg))
                    .collect();
                format!("missing: {}", missing.join("; "))
            }
            ErrorKind::ArgumentConflict => match bare(&text(ContextKind::PriorArg)) {
                prior if prior == bare(&arg) => format!("{prior} may be given only once"),
                prior => format!(
                    "{} and {prior} contradict each other: leave one of them out",
                    bare(&arg)
                ),
            },
            _ => {
                let told = error.render().to_string();
                let told = told.lines().next().unwrap_or_default();
                told.trim_start_matches("error: ").to_owned()
            }
        }
    }

    /// An argument that nobody takes.
    fn unknown(&self, given: &str) -> String {
        if !given.starts_with('-') {
            return format!("`{given}` is one argument too many");
        }
        // Of several letters behind one dash the parser names the first.
        let at = self
            .args
            .iter()
            .position(|arg| arg == given || arg.starts_with(&format!("{given}=")));
        let at = at.or_else(|| self.args.iter().position(|arg| arg.starts_with(given)));
        let Some((at, arg)) = at.and_then(|at| Some((at, self.args.get(at)?))) else {
            return format!("there is no option {given}");
        };
        let (option, inline) = match arg.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (arg.as_str(), None),
        };
        let name = option.trim_start_matches('-').replace('-', "_").to_lowercase();
        let next = self
            .args
            .get(at + 1)
            .filter(|next| !next.starts_with("--") && !next.contains('='));
        if let Some(told) = self.setting(&name, inline.or(next.map(String::as_str))) {
            return told;
        }
        if self.tasks.iter().any(|task| task.name == name) && self.has("task") {
            return format!("name the task with --task {name}");
        }
        if let Some(told) = brought::option(&name, |id| self.has(id)) {
            return format!("there is no option {option}: {told}");
        }
        let takes = |option: &&String| {
            let of = |arg: &Arg| {
                arg.get_long()
                    .is_some_and(|long| option.strip_prefix("--") == Some(long))
            };
            self.command
                .get_arguments()
                .any(|arg| of(arg) && arg.get_action().takes_values())
        };
        if let Some(before) = at
            .checked_sub(1)
            .and_then(|before| self.args.get(before))
            .filter(takes)
        {
            return format!("to give {before} a value that begins with a dash, write {before}={arg}");
        }
        let known = self
            .command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .filter_map(Arg::get_long);
        match nearest(&name, known.map(|long| (long, long))) {
            Some(nearest) => format!("there is no option {option}; the nearest is --{nearest}"),
            None => format!("`{}` has no option {option}", self.name),
        }
    }

    /// A setting that was typed as an option.
    fn setting(&self, name: &str, value: Option<&str>) -> Option<String> {
        let key = keys::find(name);
        let task = |task: &&TaskFactory| task.settings().contains_key(name);
        let of_task = self.tasks.iter().find(task);
        let name = key.map(|key| key.name).or(of_task.map(|_| name))?;
        if !self.has("settings") {
            return Some(format!(
                "{name} is a setting of a run: `annulus train` takes it, as {name}=..."
            ));
        }
        if self.name.ends_with("join") || self.name.ends_with("resume") {
            if key.is_none_or(|key| !key.local) {
                return Some(format!(
                    "{name} is the same on all peers of a run, and fixed when it begins: leave it out"
                ));
            }
        } else if let (None, Some(of)) = (key, of_task)
            && self
                .task()
                .is_some_and(|task| task.name != of.name && !task.settings().contains_key(name))
        {
            return Some(format!(
                "{name} is a setting of the task {0}: write --task {0} {name}=...",
                of.name
            ));
        }
        let value = value.or(key.map(|key| key.value)).unwrap_or("VALUE");
        Some(format!("settings are KEY=VALUE: write {name}={value}"))
    }

    /// The task that the line names, or else the first.
    fn task(&self) -> Option<&TaskFactory> {
        let behind = self.args.iter().position(|arg| arg == "--task");
        let behind = behind.and_then(|at| self.args.get(at + 1).map(String::as_str));
        let named = behind.or_else(|| self.args.iter().find_map(|arg| arg.strip_prefix("--task=")));
        match named {
            None => self.tasks.first(),
            Some(name) => self.tasks.iter().find(|task| task.name == name),
        }
    }

    fn has(&self, id: &str) -> bool {
        self.command.get_arguments().any(|arg| arg.get_id() == id)
    }

    /// An argument that has to be there, with what it is.
    fn missing(&self, shown: &str) -> String {
        let arg = self.command.get_arguments().find(|arg| arg.to_string() == shown);
        let help = arg
            .and_then(Arg::get_help)
            .map(ToString::to_string)
            .unwrap_or_default();
        let about = help.split(['.', ':', ';']).next().unwrap_or_default();
        let mut letters = about.chars();
        let name = match shown.starts_with('-') {
            true => shown,
            false => shown.trim_matches(['<', '>']),
        };
        match letters.next() {
            None => name.to_owned(),
            Some(first) => format!("{name} ({}{})", first.to_lowercase(), letters.as_str()),
        }
    }
}

/// Why a value cannot be taken: what the standard library and the argument parser say, in plain words.
fn plain(why: &str) -> String {
    if let Some((least, most)) = why
        .split_once(" is not in ")
        .and_then(|(_, range)| range.split_once(".."))
    {
        return match most.trim_start_matches('=') {
            "" => format!("it must be at least {least}"),
            most => format!("it must be between {least} and {most}"),
        };
    }
    match why {
        "number would be zero for non-zero type" => "it must be at least 1".into(),
        "number too large to fit in target type" => "that number is too large".into(),
        "number too small to fit in target type" => "that number is too small".into(),
        "invalid digit found in string" => "it must be a whole number, at least 0".into(),
        "invalid float literal" => "it must be a number".into(),
        "cannot parse integer from empty string" | "cannot parse float from empty string" => {
            "a number is missing".into()
        }
        _ => why.to_owned(),
    }
}

#[cfg(test)]
mod tests;
