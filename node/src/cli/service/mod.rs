//! `annulus service`: a peer that the user's service manager looks after: systemd's, or launchd on macOS.

mod unit;

use super::error::Error;
use super::{Command, output, parser};
use crate::net::ticket::Ticket;
use crate::task_factory::TaskFactory;
use annulus_net::files::write_private;
use annulus_net::user_folders;
use clap::Subcommand;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use unit::Service;

/// Run a peer as a service of your user: it starts when you log in, and again after a crash.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The action.
    #[command(subcommand)]
    pub what: What,
}

/// Actions on a service.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Install and start a peer as a service, in this folder and with the command that follows.
    Install {
        /// The service's name, if you have several.
        #[arg(long, default_value = "peer", value_parser = name)]
        name: String,
        /// Only print the file for the service manager.
        #[arg(long)]
        print: bool,
        /// `train`, `join` or `resume` with its options. A ticket is moved into a file that only you can read.
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "COMMAND"
        )]
        command: Vec<String>,
    },
    /// Show whether a service runs.
    Status {
        /// The service's name.
        #[arg(long, default_value = "peer", value_parser = name)]
        name: String,
    },
    /// Stop a service and remove it. The run's folder stays.
    Remove {
        /// The service's name.
        #[arg(long, default_value = "peer", value_parser = name)]
        name: String,
    },
}

const EXAMPLES: &str = "\
Examples:
  annulus service install join TICKET --only-plugged-in --hours 22-7
  annulus service install --print resume runs/digits
  annulus service status
  annulus service remove
";

/// A name that needs no care in files and commands.
fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match !text.is_empty() && text.len() <= 32 && text.chars().all(plain) {
        true => Ok(text.into()),
        false => Err("use at most 32 letters, digits, - and _".into()),
    }
}

/// Installs, shows or removes a service.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    match args.what {
        What::Install { name, print, command } => install(&name, print, command, tasks),
        What::Status { name } => {
            let (program, args) = Manager::of_here()?.status(&name);
            // Its exit code says whether the service runs, which is no failure of the question.
            call(program, &args).map(drop)
        }
        What::Remove { name } => {
            let manager = Manager::of_here()?;
            manager.stop(&name)?;
            for file in [manager.file(&name)?, ticket_file(&name)?] {
                match std::fs::remove_file(&file) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(Error::failed(format!(
                            "cannot remove {}: {error}",
                            file.display()
                        )));
                    }
                    _ => {}
                }
            }
            manager.reload()?;
            output::print(&format!(
                "the service {name} is removed; its run's folder stays\n"
            ));
            Ok(())
        }
    }
}

fn install(name: &str, print: bool, mut command: Vec<String>, tasks: &[TaskFactory]) -> Result<(), Error> {
    let typed: Vec<OsString> = std::iter::once("annulus")
        .chain(command.iter().map(String::as_str))
        .map(Into::into)
        .collect();
    let parsed = parser::parse(&typed, tasks).map_err(|error| parser::explain(&error, &typed, tasks))?;
    if !matches!(
        parsed.command,
        Command::Train(_) | Command::Join(_) | Command::Resume(_)
    ) {
        return Err(Error::usage("only train, join and resume can be services"));
    }
    if matches!(&parsed.command, Command::Join(args) if args.ticket.is_none()) {
        return Err(Error::usage(
            "a service cannot ask which run to join: give it a ticket, or join by hand first and make a service of `annulus \
             resume DIR`",
        ));
    }
    let ticket = command.iter_mut().find(|word| word.parse::<Ticket>().is_ok());
    let kept = ticket_file(name)?;
    if let Some(word) = ticket {
        // Others can read what a program was started with.
        let ticket = std::mem::replace(word, format!("@{}", kept.display()));
        if !print {
            make_folder(&kept)?;
            write_private(&kept, format!("{ticket}\n").as_bytes()).map_err(Error::of)?;
        }
    }
    let failed = |error: std::io::Error| Error::failed(format!("cannot tell where this is: {error}"));
    let service = Service {
        name: name.into(),
        program: std::env::current_exe().map_err(failed)?,
        command,
        folder: std::env::current_dir().map_err(failed)?,
    };
    let manager = match Manager::of_here() {
        Err(_) if print => Manager::Systemd,
        manager => manager?,
    };
    let text = match manager {
        Manager::Systemd => service.systemd(),
        Manager::Launchd => service.launchd(),
    };
    if print {
        output::print(&text);
        return Ok(());
    }
    let file = manager.file(name)?;
    make_folder(&file)?;
    std::fs::write(&file, text)
        .map_err(|error| Error::failed(format!("cannot write {}: {error}", file.display())))?;
    manager.start(name)?;
    output::print(&format!(
        "the service {name} runs: {}\n{}",
        file.display(),
        manager.hint()
    ));
    Ok(())
}

fn make_folder(of: &Path) -> Result<(), Error> {
    let folder = of.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .map_err(|error| Error::failed(format!("cannot make {}: {error}", folder.display())))
}

/// Where a service's ticket is kept.
fn ticket_file(name: &str) -> Result<PathBuf, Error> {
    Ok(config_folder()?.join("annulus").join(format!("{name}.ticket")))
}

fn config_folder() -> Result<PathBuf, Error> {
    match user_folders::named("XDG_CONFIG_HOME") {
        Some(path) => Ok(path),
        None => Ok(home()?.join(".config")),
    }
}

fn home() -> Result<PathBuf, Error> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    home.ok_or_else(|| Error::failed("the variable HOME, which names your folder, is not set"))
}

/// What looks after services.
#[derive(Clone, Copy)]
enum Manager {
    Systemd,
    Launchd,
}

impl Manager {
    fn of_here() -> Result<Self, Error> {
        if cfg!(target_os = "macos") {
            Ok(Self::Launchd)
        } else if cfg!(target_os = "linux") && Path::new("/run/systemd/system").exists() {
            Ok(Self::Systemd)
        } else {
            Err(Error::failed(
                "neither systemd nor launchd runs here. `annulus service install --print` prints a unit for systemd",
            ))
        }
    }

    fn file(self, name: &str) -> Result<PathBuf, Error> {
        match self {
            Self::Systemd => Ok(config_folder()?
                .join("systemd/user")
                .join(unit::systemd_name(name))),
            Self::Launchd => Ok(home()?.join(format!("Library/LaunchAgents/{}.plist", unit::label(name)))),
        }
    }

    fn start(self, name: &str) -> Result<(), Error> {
        self.reload()?;
        self.switch(name, ["enable", "load"])
    }

    fn stop(self, name: &str) -> Result<(), Error> {
        self.switch(name, ["disable", "unload"])
    }

    /// Has the manager do one thing now and from now on, by its word for that: systemd's, launchd's.
    fn switch(self, name: &str, [systemd, launchd]: [&str; 2]) -> Result<(), Error> {
        match self {
            Self::Systemd => must(
                "systemctl",
                &["--user", systemd, "--now", &unit::systemd_name(name)],
            ),
            Self::Launchd => must(
                "launchctl",
                &[launchd, "-w", &self.file(name)?.display().to_string()],
            ),
        }
    }

    fn reload(self) -> Result<(), Error> {
        match self {
            Self::Systemd => must("systemctl", &["--user", "daemon-reload"]),
            Self::Launchd => Ok(()),
        }
    }

    fn status(self, name: &str) -> (&'static str, Vec<String>) {
        match self {
            Self::Systemd => {
                let unit = unit::systemd_name(name);
                (
                    "systemctl",
                    ["--user", "--no-pager", "status", &unit]
                        .map(str::to_owned)
                        .to_vec(),
                )
            }
            Self::Launchd => ("launchctl", vec!["list".into(), unit::label(name)]),
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::Systemd => {
                "`annulus service status` shows whether it runs, and `journalctl --user -u annulus-NAME` shows its output. To keep \
                 it running while you are logged out, run `loginctl enable-linger`\n"
            }
            Self::Launchd => "`annulus service status` shows whether it runs\n",
        }
    }
}

fn call(program: &str, args: &[String]) -> Result<bool, Error> {
    let status = std::process::Command::new(program).args(args).status();
    let status = status.map_err(|error| Error::failed(format!("cannot run {program}: {error}")))?;
    Ok(status.success())
}

fn must(program: &str, args: &[&str]) -> Result<(), Error> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    match call(program, &args)? {
        true => Ok(()),
        false => Err(Error::failed(format!(
            "`{program} {}` failed; its message is above",
            args.join(" ")
        ))),
    }
}
