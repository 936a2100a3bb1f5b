//! A peer's folder at the start: its identity, the run in it, and what helps to find that run again.

use crate::net::identity::Identity;
use crate::net::ticket::{Secret, Ticket};
use crate::participant::error::Error;
use crate::participant::right::{Right, run_key_of, ticket_file};
use crate::store::known::Known;
use crate::store::lock::RunLock;
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::RunId;
use annulus_net::files::{At, FileError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most folders that are tried to find a free one.
const FOLDERS: usize = 1000;

/// A peer's folder, locked until this is dropped.
pub(crate) struct Folder {
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
        let lock = Arc::new(RunLock::take(path)?);
        let identity = Arc::new(Identity::load_or_create(&path.join("identity"))?);
        Ok(Self {
            run_key: run_key_of(path)?,
            right: Right::of_folder(path)?,
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

    /// Whether this run has begun here.
    ///
    /// # Errors
    ///
    /// If another run has.
    pub fn holds(&self, run: RunId) -> Result<bool, Error> {
        if !self.has_run()? {
            return Ok(false);
        }
        match RunDir::open(self.path())?.manifest().run_id() == run {
            true => Ok(true),
            false => Err(self.occupied()),
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
    pub fn keep(&self, right: &Right, known: &Known) -> Result<(), CheckpointError> {
        right.keep(self.path())?;
        Ok(known.save(self.path())?)
    }
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
