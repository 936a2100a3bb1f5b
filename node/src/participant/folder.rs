//! A peer's folder at the start: its identity, the run in it, and what helps to find that run again.

use crate::net::identity::Identity;
use crate::net::ticket::{Secret, Ticket};
use crate::participant::error::Error;
use crate::participant::right::{Right, run_key_of, ticket_file};
use crate::store::known::Known;
use crate::store::lock::RunLock;
use crate::store::options_file;
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::{Manifest, RunId};
use annulus_net::files::{At, FileError};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most folders that are tried to find a free one.
const FOLDERS: usize = 1000;

/// A peer's folder, locked until this is dropped.
pub(crate) struct Folder {
    /// Goes before the lock does.
    traces: Arc<Traces>,
    pub lock: Arc<RunLock>,
    /// The peer's key, which keeps its name across restarts.
    pub identity: Arc<Identity>,
    /// What it may do in its run.
    right: Option<Right>,
    /// The key of the run that was founded here.
    run_key: Option<Secret>,
}

impl Folder {
    /// Locks a folder, and creates it if needed.
    pub fn take(path: &Path) -> Result<Self, Error> {
        let before = names(path).ok();
        let lock = Arc::new(RunLock::take(path)?);
        let folder = path.to_path_buf();
        // Not before the lock is ours: another process's are no traces of this one.
        let traces = Arc::new(Traces {
            folder,
            before,
            lock: lock.clone(),
        });
        let identity = Arc::new(Identity::load_or_create(&path.join("identity"))?);
        Ok(Self {
            run_key: run_key_of(path)?,
            right: Right::of_folder(path)?,
            traces,
            lock,
            identity,
        })
    }

    /// Locks the first of PATH, PATH-2, PATH-3 and so on in which no other process trains. So several peers can have
    /// the same command, and each finds one of their folders again.
    pub fn take_free(path: &Path) -> Result<Self, Error> {
        let numbered = |number: usize| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!("-{number}"));
            PathBuf::from(name)
        };
        let mut taken = Self::take(path);
        for number in 2..FOLDERS {
            match taken {
                Err(Error::Checkpoint(CheckpointError::Locked(_))) => taken = Self::take(&numbered(number)),
                other => return other,
            }
        }
        taken
    }

    /// The same folder, read again.
    pub fn again(&self) -> Self {
        Self {
            traces: self.traces.clone(),
            lock: self.lock.clone(),
            identity: self.identity.clone(),
            // If they cannot be read now, what was read before still holds.
            run_key: run_key_of(self.path()).unwrap_or(self.run_key),
            right: Right::of_folder(self.path()).unwrap_or_else(|_| self.right.clone()),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.lock.path()
    }

    /// The path of the ticket.
    pub fn ticket_file(path: &Path) -> PathBuf {
        ticket_file(path)
    }

    /// What the peer may do in this run, as far as the folder tells.
    pub fn right_in(&self, run: RunId) -> Option<&Right> {
        self.right.as_ref().filter(|right| right.ticket.root.run == run)
    }

    /// The key of the run that was founded here, or a new one for a run that will be.
    pub fn run_key(&self) -> Secret {
        self.run_key.unwrap_or_else(Secret::generate)
    }

    /// The ticket with which the peer joined its run, if it did.
    pub fn came_by(&self) -> Option<Ticket> {
        let right = self.right.as_ref().filter(|right| right.run_key.is_none())?;
        let ticket = ticket_to(&self.known(right.ticket.root.run), &right.ticket);
        (!ticket.addrs.is_empty()).then_some(ticket)
    }

    /// Whether any run has begun here.
    pub fn has_run(&self) -> Result<bool, Error> {
        Ok(RunDir::is_begun(self.path())?)
    }

    /// The run that has begun here, if any has.
    pub fn begun(&self) -> Result<Option<Manifest>, Error> {
        match self.has_run()? {
            true => Ok(Some(RunDir::open(self.path())?.manifest().clone())),
            false => Ok(None),
        }
    }

    /// Whether this run has begun here.
    ///
    /// # Errors
    ///
    /// If another run has.
    pub fn holds(&self, run: RunId) -> Result<bool, Error> {
        match self.begun()?.map(|begun| begun.run_id() == run) {
            Some(false) => Err(self.occupied()),
            other => Ok(other.is_some()),
        }
    }

    pub(super) fn occupied(&self) -> Error {
        CheckpointError::Occupied(self.path().to_path_buf()).into()
    }

    /// The peers that were known when this peer last took part in the run.
    pub fn known(&self, run: RunId) -> Known {
        Known::load(self.path(), run)
    }

    /// Saves what the next start needs.
    pub fn keep(
        &self,
        right: &Right,
        known: &Known,
        options: Option<&[String]>,
    ) -> Result<(), CheckpointError> {
        right.keep(self.path())?;
        if let Some(options) = options {
            options_file::save(self.path(), options)?;
        }
        Ok(known.save(self.path())?)
    }
}

/// The files that taking a folder puts into it. They are removed if nothing else has come into the folder when this is dropped. So
/// where no run could begin, because of bad data for example, the next start finds the folder as the first one did.
struct Traces {
    folder: PathBuf,
    /// The names in it before; none if there was no such folder.
    before: Option<HashSet<OsString>>,
    lock: Arc<RunLock>,
}

impl Drop for Traces {
    fn drop(&mut self) {
        // Somebody may have renamed the folder and made another of its name, which is no trace.
        let Some(Ok(now)) = self
            .lock
            .place()
            .filter(|at| *at == self.folder)
            .map(|at| names(&at))
        else {
            return;
        };
        let before = self.before.clone().unwrap_or_default();
        let new: Vec<&OsString> = now.difference(&before).collect();
        if new.iter().any(|name| *name != "identity" && *name != "lock") {
            return;
        }
        // They do no harm where this fails.
        for name in new {
            let _ = std::fs::remove_file(self.folder.join(name));
        }
        if self.before.is_none() {
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// The names in a folder.
fn names(folder: &Path) -> std::io::Result<HashSet<OsString>> {
    std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect()
}

/// Whether a path is a folder. Fails if that cannot be known.
pub(crate) fn is_folder(path: &Path) -> Result<bool, Error> {
    match std::fs::metadata(path).at(path) {
        Err(FileError::Missing(_)) => Ok(false),
        found => Ok(found?.is_dir()),
    }
}

/// A ticket with the addresses that the peer's own ticket had; without any if it founded the run.
pub(crate) fn ticket_to(known: &Known, ticket: &Ticket) -> Ticket {
    let addresses = known.ticket_addresses.iter();
    let addrs = addresses.filter_map(|address| address.parse().ok()).collect();
    Ticket {
        addrs,
        ..ticket.clone()
    }
}
