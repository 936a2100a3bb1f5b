//! `annulus completions`: completion scripts.

use super::error::Error;
use super::output;
use super::parser::command;
use crate::task_factory::TaskFactory;
use clap_complete::Shell;

/// Print a script that completes commands and options in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  annulus completions bash > ~/.local/share/bash-completion/completions/annulus
  annulus completions zsh > ~/.zfunc/_annulus
  annulus completions fish > ~/.config/fish/completions/annulus.fish
";

/// Prints the shell's script.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    output::print(&String::from_utf8_lossy(&script(args.shell, tasks)));
    Ok(())
}

/// The script of a shell.
pub fn script(shell: Shell, tasks: &[TaskFactory]) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(tasks), "annulus", &mut script);
    script
}
