//! The command line: one file per command, each turning words into options, calling what does it, and telling the
//! result. What commands share: [`settings`] (`KEY=VALUE`), [`output`] (what a run writes), [`error`], [`human`] and
//! [`terminal`].
//!
//! It must not know how training, links or checkpoints work, and nothing else of the crate knows it.

mod amounts;
pub mod bench;
mod brought;
mod canvas;
mod children;
pub mod completions;
mod contender;
pub mod demo;
pub mod doctor;
pub mod error;
pub mod eval;
pub mod exit;
pub mod export;
mod finish;
pub mod gradient;
pub mod help;
pub mod human;
pub mod inspect;
pub mod invite;
mod invited;
pub mod join;
mod kept;
pub mod keys;
mod log;
pub mod ls;
pub mod machine;
pub mod man;
pub mod messages;
pub mod nearby;
pub mod output;
mod parser;
pub mod pause;
pub mod plan;
pub mod plot;
pub mod predict;
mod process;
pub mod progress;
pub mod prune;
mod qr;
pub mod quantize;
pub mod replay;
pub mod resume;
pub mod revoke;
pub mod sample;
mod screen;
pub mod search;
pub mod serve;
pub mod service;
pub mod settings;
mod smaller;
mod tensorboard;
pub mod terminal;
pub mod ticket;
pub mod train;
pub mod watch;

use crate::ending::end_process;
use crate::task_factory::TaskFactory;
use clap::{Parser, Subcommand};
use error::Error;
use exit::Exit;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::LazyLock;

/// Train a model on all the machines that you have, of any make, without a master.
#[derive(Debug, Parser)]
#[command(name = "annulus", version = VERSION.as_str(), propagate_version = true, after_help = EXAMPLES)]
#[command(
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Write a trace of what the peer does to standard error.
    ///
    /// LEVEL is error, warn, info, debug (attempts, failures, links) or trace (every message); or a filter by crates and
    /// modules, such as annulus=debug,quinn=info.
    #[arg(long, global = true, value_name = "LEVEL", display_order = 900)]
    pub log: Option<log::Filter>,
}

/// The release, and the version of the messages between peers, which all peers of a run must share.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}, protocol {}",
        env!("CARGO_PKG_VERSION"),
        annulus_core::wire::VERSION
    )
});

const EXAMPLES: &str = "\
Begin with:
  annulus demo                          see it work, in less than a minute
  annulus train --data t.csv target=x   learn to predict a column of a table; prints a ticket
  annulus join TICKET                   take part, on this machine or another
  annulus watch runs/table              look at it
  annulus predict runs/table new.csv    use what it has learnt
  annulus resume runs/table             go on with it after a power cut, or next week
";

/// One variant per file.
#[derive(Debug, Subcommand)]
#[expect(
    missing_docs,
    reason = "each is told at its arguments, where the help takes it from"
)]
pub enum Command {
    Demo(demo::Args),
    Train(train::Args),
    Search(search::Args),
    Join(join::Args),
    Resume(resume::Args),
    Invite(invite::Args),
    Revoke(revoke::Args),
    Pause(pause::PauseArgs),
    #[command(hide = true)]
    Unpause(pause::UnpauseArgs),
    #[command(aliases = ["ps", "list"])]
    Ls(ls::Args),
    Watch(watch::Args),
    Eval(eval::Args),
    Sample(sample::Args),
    Predict(predict::Args),
    Serve(serve::Args),
    Inspect(inspect::Args),
    Replay(replay::Args),
    Export(export::Args),
    Quantize(quantize::Args),
    Prune(prune::Args),
    Gradient(gradient::Args),
    Plan(plan::Args),
    Doctor(doctor::Args),
    Service(service::Args),
    Bench(bench::Args),
    Completions(completions::Args),
    Man(man::Args),
    #[command(hide = true)]
    Help(help::Args),
}

impl Command {
    /// The options of the peer that it starts, if it starts one.
    fn local(&mut self) -> Option<&mut train::LocalArgs> {
        match self {
            Self::Train(args) => Some(&mut args.local),
            Self::Search(args) => Some(&mut args.train.local),
            Self::Join(args) => Some(&mut args.local),
            Self::Resume(args) => Some(&mut args.local),
            _ => None,
        }
    }
}

/// The whole program, for these tasks, of which the first is the default: reads the process's arguments, does what they say,
/// and ends the process with its exit code. It does not return; its type is for `main`'s sake.
pub fn main(tasks: &[TaskFactory]) -> ExitCode {
    quiet_mesa();
    keep_freed_memory();
    let code = exit_code(tasks);
    // If that fails, nobody reads it.
    let _ = io::stdout().flush();
    end_process(code)
}

fn exit_code(tasks: &[TaskFactory]) -> u8 {
    let args: Vec<OsString> = std::env::args_os().collect();
    let done = match parser::parse(&args, tasks) {
        Ok(mut cli) => {
            log::start(cli.log.take());
            resume::with_kept(cli, &args, tasks).and_then(|cli| run(cli, tasks))
        }
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return Exit::Done as u8;
        }
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return Exit::Usage as u8;
        }
        Err(error) => Err(parser::explain(&error, &args, tasks)),
    };
    match done {
        Ok(exit) => exit as u8,
        Err(error) => {
            output::note(&error.render(terminal::size().0.min(100)));
            error.exit() as u8
        }
    }
}

/// Mesa's drivers complain on standard error where this variable is missing, though nothing here needs it.
fn quiet_mesa() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: the first thing that the program does; there is no other thread yet that could read the environment.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", std::env::temp_dir()) };
    }
}

/// A training step on the CPU allocates the same large buffers again and again. Left alone, glibc gives them back each
/// time and the system fills new pages with zeros: a fifth of the time of a small transformer's step.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets two numbers of the allocator; there is no other thread yet. A refusal changes nothing.
    unsafe {
        // 32 MiB is the most that glibc takes for the first.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 20);
    }
}

fn run(cli: Cli, tasks: &[TaskFactory]) -> Result<Exit, Error> {
    match cli.command {
        Command::Demo(args) => demo::run(args, tasks)?,
        Command::Train(args) => return train::run(args, tasks),
        Command::Search(args) => return search::run(&args, tasks),
        Command::Join(args) => return join::run(args, tasks),
        Command::Resume(args) => return resume::run(args, tasks),
        Command::Invite(args) => invite::run(&args)?,
        Command::Revoke(args) => revoke::run(&args)?,
        Command::Pause(args) if args.end => pause::unpause(&args.dir)?,
        Command::Pause(args) => pause::pause(&args.dir)?,
        Command::Unpause(args) => pause::unpause(&args.dir)?,
        Command::Ls(args) => ls::run(&args)?,
        Command::Watch(args) => return watch::run(&args),
        Command::Eval(args) => eval::run(&args, tasks)?,
        Command::Sample(args) => sample::run(&args, tasks)?,
        Command::Predict(args) => predict::run(&args, tasks)?,
        Command::Serve(args) => serve::run(&args, tasks)?,
        Command::Inspect(args) => inspect::run(&args)?,
        Command::Replay(args) => replay::run(&args, tasks)?,
        Command::Export(args) => export::run(&args, tasks)?,
        Command::Quantize(args) => quantize::run(&args, tasks)?,
        Command::Prune(args) => prune::run(&args, tasks)?,
        Command::Gradient(args) => gradient::run(&args)?,
        Command::Plan(args) => plan::run(&args, tasks)?,
        Command::Doctor(args) => doctor::run(args, tasks)?,
        Command::Service(args) => service::run(args, tasks)?,
        Command::Bench(args) => bench::run(args, tasks)?,
        Command::Completions(args) => completions::run(args, tasks)?,
        Command::Man(args) => man::run(args, tasks)?,
        Command::Help(args) => help::run(&args, parser::command(tasks), tasks)?,
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests;
