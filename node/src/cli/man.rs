//! `annulus man`: manual pages, made from the definitions of the commands.

use super::error::Error;
use super::output;
use super::parser::command;
use crate::task_factory::TaskFactory;
use std::path::PathBuf;

/// Write the manual pages to a folder, or the first of them to standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to write `annulus.1`, `annulus-train.1` and so on; made if it does not exist.
    pub dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  annulus man ~/.local/share/man/man1
  annulus man
";

/// Writes the pages into the folder, or the first to standard output.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let command = command(tasks);
    match &args.dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .map_err(|e| {
                Error::failed(format!(
                    "cannot write the manual to {}: {e}. Name a folder that you may write to",
                    dir.display()
                ))
            }),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut page)
                .map_err(Error::of)?;
            output::print(&String::from_utf8_lossy(&page));
            Ok(())
        }
    }
}
