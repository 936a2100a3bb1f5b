//! A peer's folder as it is found at the start: whose it is, which run is in it, and what was kept to find that again.

use crate::net::identity::Identity;
use crate::net::ticket::{Secret, Ticket};
use crate::participant::error::Error;
use crate::store::files::{read_limited, write_private};
use crate::store::known::Known;
use crate::store::lock::RunLock;
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::RunId;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a folder calls the ticket that its peer hands out.
const TICKET: &str = "ticket";

/// Longest file of that name that is read: no ticket is longer.
const TICKET_LIMIT: usize = 4096;

/// Most folders that are tried for one that is not in use.
const FOLDERS: usize = 1000;

/// A peer's folder, which is its own until this is dropped.
pub(crate) struct Folder {
    pub lock: Arc<RunLock>,
    /// The peer's key, which gives it the same name after a restart.
    pub identity: Arc<Identity>,
    /// What it handed out last; it holds the run's secret.
    ticket: Option<Ticket>,
}

impl Folder {
    /// Takes one, and makes it if there is none.
    pub fn take(path: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(path).map_err(|error| Error::Out(path.to_path_buf(), error))?;
        let lock = Arc::new(RunLock::take(path)?);
        let identity = Arc::new(Identity::load_or_create(&path.join("identity"))?);
        let ticket = read_limited(&path.join(TICKET), TICKET_LIMIT).ok();
        let ticket = ticket.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(Self {
            lock,
            identity,
            ticket: ticket.and_then(|text| text.parse().ok()),
        })
    }

    /// Takes the first of PATH, PATH-2, PATH-3 and so on in which no other process trains: so several can be told the same,
    /// and each finds one of their folders again.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.lock.path()
    }

    /// Where the ticket is.
    pub fn ticket_file(path: &Path) -> PathBuf {
        path.join(TICKET)
    }

    /// The ticket that was handed out from here, if it is of this run.
    pub fn ticket_of(&self, run: RunId) -> Option<&Ticket> {
        self.ticket.as_ref().filter(|ticket| ticket.run == run)
    }

    /// The ticket by which its peer came to a run, if it came by one.
    pub fn came_by(&self) -> Option<Ticket> {
        let own = self.ticket.as_ref()?;
        let ticket = ticket_to(&self.known(own.run), own.run, own.secret);
        (!ticket.addrs.is_empty()).then_some(ticket)
    }

    /// Whether any run has begun here: what has no ledger yet has nothing to lose.
    pub fn has_run(&self) -> bool {
        RunDir::is_begun(self.path())
    }

    /// Whether a run of this name has begun here.
    ///
    /// # Errors
    ///
    /// If it is another.
    pub fn holds(&self, run: RunId) -> Result<bool, Error> {
        if !self.has_run() {
            return Ok(false);
        }
        match RunDir::open(self.path())?.manifest().run_id() == run {
            true => Ok(true),
            false => Err(self.occupied()),
        }
    }

    /// The same of the run that a ticket lets into. Equal settings make runs of equal names, which their secrets tell apart.
    ///
    /// # Errors
    ///
    /// If it is another.
    pub fn holds_run_of(&self, ticket: &Ticket) -> Result<bool, Error> {
        let holds = self.holds(ticket.run)?;
        match self.ticket_of(ticket.run) {
            Some(own) if holds && own.secret != ticket.secret => Err(self.occupied()),
            _ => Ok(holds),
        }
    }

    fn occupied(&self) -> Error {
        CheckpointError::Occupied(self.path().to_path_buf()).into()
    }

    /// Whom the peer knew of a run when it was last here.
    pub fn known(&self, run: RunId) -> Known {
        Known::load(self.path(), run)
    }

    /// Keeps what the next start needs.
    pub fn keep(&self, ticket: &Ticket, known: &Known) -> Result<(), CheckpointError> {
        let text = format!("{ticket}\n");
        write_private(&Self::ticket_file(self.path()), text.as_bytes())?;
        Ok(known.save(self.path())?)
    }
}

/// A ticket to where others were when this peer came to the run; without addresses if it founded it.
pub(crate) fn ticket_to(known: &Known, run: RunId, secret: Secret) -> Ticket {
    let addresses = known.ticket_addresses.iter();
    let addrs = addresses.filter_map(|address| address.parse().ok()).collect();
    Ticket { addrs, run, secret }
}
