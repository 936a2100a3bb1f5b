//! Choosing a run among those that are told of on this network, for who joins without a ticket: the list, the questions, and
//! what stands for an answer where nobody can be asked.
//!
//! All of it goes to standard error: standard output is the run's.

use super::error::{Error, wrap};
use super::human;
use super::machine::block_on;
use super::output;
use super::terminal;
use crate::net::link::{DialError, Refusal};
use crate::net::nearby::announcement::Found;
use crate::net::nearby::code::{Code, Tag};
use crate::net::nearby::multicast;
use crate::net::nearby::visit;
use crate::net::ticket::Ticket;
use crate::participant::error::Error as ParticipantError;
use crate::participant::right::Right;
use annulus_core::Contact;
use annulus_core::wire::VERSION;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{self, BufRead, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to listen in any case: mDNS asks again after one second and after two more.
const LEAST: Duration = Duration::from_secs(3);

/// How long is listened if there is nothing that will do.
const MOST: Duration = Duration::from_secs(10);

/// Members whose codes begin alike that are asked: each may take it for a wrong one.
const ASKED: usize = 3;

/// The user's wishes about the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its name, or that of its task or of a member.
    pub run: Option<String>,
    /// The code that a member shows.
    pub code: Option<Code>,
}

/// What was chosen.
pub struct Chosen {
    /// What lets in.
    pub ticket: Ticket,
    /// The folder in which this machine took part before.
    pub folder: Option<PathBuf>,
}

/// Looks for runs on this network, and has one chosen: by what is wanted, or by whoever sits at the terminal. A folder that
/// was named may hold a ticket, as those of former runs may.
pub fn choose(wanted: &Wanted, out: Option<&Path>) -> Result<Chosen, Error> {
    let asks = io::stdin().is_terminal();
    if !asks && wanted.code.is_none() && wanted.run.is_none() {
        return Err(Error::usage(NOBODY_TO_ASK));
    }
    output::note("looking for runs on this network ...");
    let found = multicast::listen(LEAST, MOST, |found| wanted.fits(found));
    let found = found.map_err(|why| Error::failed(format!("cannot look for runs: {why}. {ELSE}")))?;
    let mut runs = runs(found, &held(out));
    if runs.is_empty() {
        return Err(Error::unreachable(format!("{NONE}. {ELSE}")));
    }
    let named = |run: &Run| run.members.iter().any(|found| wanted.names(found));
    if runs.iter().any(named) {
        runs.retain(named);
    }
    let list = list(&runs);
    let told = |error| {
        output::note(&list);
        error
    };
    match pick(wanted, &runs).map_err(told)? {
        Pick::Held(chosen) => Ok(chosen),
        Pick::Code(run, code) => enter(run, &code),
        Pick::Ask if asks => ask(&runs),
        Pick::Ask => Err(told(Error::usage(NOBODY_TO_ASK))),
    }
}

const NONE: &str = "nobody on this network announces a run. It may have been started with --no-announce or on another network, \
                    or a switch or access point in between may block multicast";

/// Where there is no terminal.
const NOBODY_TO_ASK: &str = "there is no terminal to ask: give a ticket (`annulus join TICKET`), the code that a member of a run \
                             on this network shows (--code 12-345-678), or the name of a run that this machine took part in \
                             before (--run NAME)";

const ELSE: &str = "Ask a member for a ticket, and run `annulus join TICKET`";

impl Wanted {
    /// Whether a member is one of the run.
    fn names(&self, found: &Found) -> bool {
        let told = &found.told;
        let is = |name: &String| *name == told.task || is_name(name, &told.run) || is_name(name, &told.peer);
        self.run.as_ref().is_none_or(is)
    }

    /// Whether it also shows the code.
    fn fits(&self, found: &Found) -> bool {
        self.names(found) && self.code.is_none_or(|code| code.tag() == found.told.tag)
    }
}

/// Whether somebody has typed a name, as long or short as they like.
fn is_name(typed: &str, name: &str) -> bool {
    typed.len() >= 4
        && (typed.to_ascii_lowercase().starts_with(name) || name.starts_with(&typed.to_ascii_lowercase()))
}

/// A run that was found.
struct Run {
    members: Vec<Found>,
    /// In which folder there is a ticket for it.
    held: Option<(PathBuf, Ticket)>,
}

impl Run {
    fn name(&self) -> &str {
        &self.members[0].told.run
    }

    /// Those whose codes begin so.
    fn showing(&self, tag: Tag) -> impl Iterator<Item = &Found> {
        self.members.iter().filter(move |found| found.told.tag == tag)
    }

    /// By the ticket that is here, to where its members are now.
    fn by_held(&self) -> Option<Chosen> {
        let (folder, ticket) = self.held.clone()?;
        let mut addrs: Vec<_> = self
            .members
            .iter()
            .flat_map(|found| found.at.iter().copied())
            .collect();
        addrs.extend(
            ticket
                .addrs
                .iter()
                .filter(|known| !addrs.contains(known))
                .copied()
                .collect::<Vec<_>>(),
        );
        addrs.truncate(Contact::LIMIT);
        Some(Chosen {
            ticket: Ticket { addrs, ..ticket },
            folder: Some(folder),
        })
    }
}

/// The runs of members that were found, in the order of their names.
fn runs(found: Vec<Found>, held: &[(PathBuf, Ticket)]) -> Vec<Run> {
    let mut runs: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    for found in found {
        runs.entry(found.told.run.clone()).or_default().push(found);
    }
    let run = |(name, members): (String, Vec<Found>)| Run {
        members,
        held: held
            .iter()
            .find(|(_, ticket)| ticket.root.run.to_string() == name)
            .cloned(),
    };
    runs.into_iter().map(run).collect()
}

/// The tickets in folders of runs on this machine.
fn held(out: Option<&Path>) -> Vec<(PathBuf, Ticket)> {
    let usual = std::fs::read_dir("runs").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = match out {
        Some(out) => vec![out.to_path_buf()],
        None => usual.map(|entry| entry.path()).collect(),
    };
    folders.sort();
    let of = |folder: PathBuf| Some((folder.clone(), Right::of_folder(&folder).ok()??.ticket));
    folders.into_iter().filter_map(of).collect()
}

/// The list, as people see it.
fn list(runs: &[Run]) -> String {
    let mut text = match runs {
        [_] => "one run on this network:\n\n".to_owned(),
        _ => format!("{} runs on this network:\n\n", runs.len()),
    };
    let task = |run: &Run| run.members[0].told.task.clone();
    let width = runs.iter().map(|run| task(run).len()).max().unwrap_or_default();
    for (number, run) in (1..).zip(runs) {
        let count = run
            .members
            .iter()
            .map(|found| found.told.members)
            .max()
            .unwrap_or_default();
        let members = human::plural(count.into(), "member");
        let first = &run.members[0];
        let others = match run.members.len() - 1 {
            0 => String::new(),
            1 => ", and another".to_owned(),
            others => format!(", and {others} others"),
        };
        let needs = match &run.held {
            _ if first.told.version != VERSION => "  (another release of annulus)".to_owned(),
            Some((folder, _)) => format!("  (no code needed: {})", folder.display()),
            None => String::new(),
        };
        let (name, at) = (run.name(), first.at[0]);
        // Writing to a text cannot fail.
        let _ = writeln!(
            text,
            "  {number:>2}  {:width$}  run {name}  {members:<10}  {} at {at}{others}{needs}",
            task(run),
            first.told.peer
        );
    }
    text
}

/// The run that fits the wishes.
enum Pick<'a> {
    /// A run for which there is a ticket.
    Held(Chosen),
    /// A run of which a member shows the code, as it seems.
    Code(&'a Run, Code),
    /// It is not enough.
    Ask,
}

fn pick<'a>(wanted: &Wanted, runs: &'a [Run]) -> Result<Pick<'a>, Error> {
    let fits = |run: &&Run| run.members.iter().any(|found| wanted.fits(found));
    let fitting: Vec<&Run> = runs.iter().filter(fits).collect();
    match (&wanted.run, wanted.code, &fitting[..]) {
        (_, Some(code), [run]) => Ok(Pick::Code(run, code)),
        (_, Some(code), []) => Err(Error::unreachable(format!(
            "no member on this network shows a code that begins with {}: check its digits",
            code.tag()
        ))),
        (_, Some(_), _) => Err(Error::usage(
            "codes of several runs begin with these digits: name the run with --run NAME",
        )),
        (Some(name), None, []) => Err(Error::unreachable(format!(
            "no run {name} is announced on this network"
        ))),
        (Some(_), None, [run]) => Ok(run.by_held().map_or(Pick::Ask, Pick::Held)),
        (_, None, _) => Ok(Pick::Ask),
    }
}

/// Asks at the terminal until there is an answer that lets in.
fn ask(runs: &[Run]) -> Result<Chosen, Error> {
    output::note(&list(runs));
    let without_code = runs.iter().any(|run| run.held.is_some());
    let question = match without_code {
        true => "code of a member, or the number of a run that needs none: ",
        false => "code of a member, such as 12-345-678: ",
    };
    loop {
        let _ = io::stderr().write_all(question.as_bytes());
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        if !read.is_ok_and(|bytes| bytes > 0) {
            return Err(Error::usage("no run was chosen"));
        }
        let told = match answer(line.trim(), runs) {
            Ok(Answer::Held(run)) => match run.by_held() {
                Some(chosen) => return Ok(chosen),
                None => "that run needs a code".to_owned(),
            },
            Ok(Answer::Code(run, code)) => match enter(run, &code) {
                Ok(chosen) => return Ok(chosen),
                // A mistyped code may be tried again.
                Err(error) => error.to_string(),
            },
            Err(told) => told,
        };
        output::note(&format!("{}\n", wrap(&told, terminal::size().0.min(100))));
    }
}

/// The meaning of what was typed.
enum Answer<'a> {
    /// The run with this number.
    Held(&'a Run),
    /// A code, and whose it is.
    Code(&'a Run, Code),
}

fn answer<'a>(typed: &str, runs: &'a [Run]) -> Result<Answer<'a>, String> {
    if let Ok(code) = typed.parse::<Code>() {
        let mut showing = runs.iter().filter(|run| run.showing(code.tag()).next().is_some());
        return match (showing.next(), showing.next()) {
            (Some(run), None) => Ok(Answer::Code(run, code)),
            (None, _) => Err(format!(
                "no member on this network shows a code that begins with {}",
                code.tag()
            )),
            (Some(_), Some(_)) => Err(
                "codes of several runs begin with these digits: run `annulus join --run NAME \
                                       --code CODE`"
                    .into(),
            ),
        };
    }
    let number = typed
        .parse::<usize>()
        .ok()
        .filter(|number| (1..=runs.len()).contains(number));
    match number.map(|number| &runs[number - 1]) {
        Some(run) if run.held.is_some() => Ok(Answer::Held(run)),
        Some(_) => Err("that run needs a code: type the one that any of its members shows".into()),
        None => Err("a code has eight digits, such as 12-345-678".into()),
    }
}

/// Asks each member whose code begins with these digits for a ticket.
fn enter(run: &Run, code: &Code) -> Result<Chosen, Error> {
    let mut refused = None;
    for found in run.showing(code.tag()).take(ASKED) {
        match block_on(visit::enter(&found.at, code)).map_err(Error::of)? {
            Ok(ticket) if ticket.root.run.to_string() == run.name() => {
                output::note(&format!("let in with the role {}", ticket.chain.role()));
                return Ok(Chosen { ticket, folder: None });
            }
            Ok(_) => {
                return Err(Error::failed(format!(
                    "the member with this code belongs to another run than {}, which it announces",
                    run.name()
                )));
            }
            // Another member's code may begin with the same digits.
            Err(DialError::Refused(Refusal::WrongCode)) => {
                refused = Some(DialError::Refused(Refusal::WrongCode));
            }
            Err(error) => return Err(dial_error(error)),
        }
    }
    Err(dial_error(refused.unwrap_or_else(|| {
        DialError::NoAddress("no member shows that code".into())
    })))
}

fn dial_error(error: DialError) -> Error {
    let error = match error {
        DialError::Unproven => {
            return Error::failed(
                "the peer that answers there does not know that code, and learnt nothing of it",
            );
        }
        error => error,
    };
    Error::of(ParticipantError::Dial(error))
}

#[cfg(test)]
mod tests;
