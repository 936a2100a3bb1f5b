//! Lets the peers of a run meet without a person who hands out tickets: by a file that all of them see, or by names.
//!
//! The file holds a ticket that members keep fresh. A peer that finds none founds the run and writes it; a lock beside
//! the file picks the founder. With names nothing can pick one. But all peers make the run's key from the same secret,
//! and so they begin the same run: a peer that finds nobody begins it, and two that have both begun merge when they
//! meet. This module does not know how a peer takes part.

use crate::net::ticket::{Secret, Ticket};
use crate::participant::error::Error;
use annulus_core::{Contact, RunId};
use annulus_net::files::{FileError, read_limited, read_named, write_private};
use annulus_net::open;
use std::fs::{File, TryLockError};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::lookup_host;

/// Time between two tries to lock the file. Others hold it while they read it, and the founder while it opens its
/// sockets.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Longest file that is read: no ticket is longer.
const LIMIT: usize = 4096;

/// Where peers meet.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// By a file.
    File(MeetingFile),
    /// At the addresses of these names, each with a port.
    Names(Vec<String>),
}

impl Place {
    /// Where others may be, and each name that cannot be resolved, with why. It may be resolved later.
    pub async fn addresses(&self) -> (Vec<SocketAddr>, Vec<String>) {
        let (mut addresses, mut unresolved) = (Vec::new(), Vec::new());
        match self {
            Self::File(file) => addresses.extend(
                file.ticket()
                    .ok()
                    .flatten()
                    .into_iter()
                    .flat_map(|there| there.addrs),
            ),
            Self::Names(names) => {
                for name in names {
                    match lookup_host(name).await {
                        Ok(found) => addresses.extend(found),
                        Err(error) => unresolved.push(format!("{name} ({error})")),
                    }
                }
            }
        }
        (addresses, unresolved)
    }
}

/// When to tell the user of names that cannot be resolved: soon, as they may be misspelt, and again now and then. Not at
/// once, as where machines are started together their names come up a little later.
#[derive(Debug, Default)]
pub(crate) struct Unresolved {
    since: Option<Instant>,
    told: Option<Instant>,
}

impl Unresolved {
    /// For how long names may fail before that is told.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// Between two times of telling.
    const AGAIN: Duration = Duration::from_secs(600);

    /// Whether to tell of it now, that some fail or none does.
    pub fn is_due(&mut self, fails: bool, now: Instant) -> bool {
        if !fails {
            *self = Self::default();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let due = match self.told {
            None => now >= since + Self::PATIENCE,
            Some(told) => now >= told + Self::AGAIN,
        };
        if due {
            self.told = Some(now);
        }
        due
    }
}

/// Whether an address is one of this machine's.
pub(crate) fn is_here(address: &SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Shortest secret: shorter ones can be guessed.
const SHORTEST_SECRET: usize = 16;

/// The run's key, made from the secret in a file.
pub(crate) fn key_of_secret(path: &Path) -> Result<Secret, Error> {
    let bytes = read_named(path, LIMIT).map_err(Error::File)?;
    let secret = bytes.trim_ascii();
    match secret.len() < SHORTEST_SECRET {
        true => Err(Error::ShortSecret(path.to_path_buf())),
        false => Ok(Secret(blake3::derive_key(
            "annulus 2026 key of a run from a secret",
            secret,
        ))),
    }
}

/// A file by which peers meet.
#[derive(Clone, Debug)]
pub(crate) struct MeetingFile(PathBuf);

/// The right to write it, until this is dropped or the process ends in any way.
pub(crate) struct Held {
    file: MeetingFile,
    lock: File,
}

impl MeetingFile {
    /// The file at this path, whether or not it exists.
    ///
    /// # Errors
    ///
    /// If its folder does not exist. Making it would let each machine found a run of its own where a shared file system is not
    /// mounted, or the path is misspelt.
    pub fn new(path: &Path) -> Result<Self, Error> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder.filter(|folder| !folder.is_dir()) {
            Some(folder) => Err(Error::NoMeetingFolder(folder.to_path_buf())),
            None => Ok(Self(path.to_path_buf())),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Locks it, once nobody else does.
    pub async fn hold(&self) -> Result<Held, Error> {
        loop {
            match self.try_hold()? {
                Some(held) => return Ok(held),
                None => tokio::time::sleep(TRY_AGAIN).await,
            }
        }
    }

    fn try_hold(&self) -> Result<Option<Held>, Error> {
        let name = self.beside(".lock");
        let lock = open::lock_file(&name).map_err(|error| Error::File(FileError::of_new(&name, error)))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Held {
                file: self.clone(),
                lock,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Error::NoLocks(name, error)),
        }
    }

    /// The ticket in it, if the run was founded.
    ///
    /// # Errors
    ///
    /// If it has something else.
    pub fn ticket(&self) -> Result<Option<Ticket>, Error> {
        let bytes = match read_named(&self.0, LIMIT) {
            Err(FileError::Missing(_)) => return Ok(None),
            other => other.map_err(Error::File)?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let ticket = text
            .parse()
            .map_err(|why| Error::NoMeetingFile(self.0.clone(), why))?;
        Ok(Some(ticket))
    }

    /// If the run is finished: what to tell the user, with the path of its result on the machine of the peer that finished
    /// it.
    pub fn finished(&self, run: RunId) -> Option<String> {
        let bytes = read_limited(&self.beside(".finished"), LIMIT).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let (of, result) = text.trim().split_once(' ')?;
        let told = || format!("the run is finished: its result is in {result} where it ended");
        (of == run.to_hex()).then(told)
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(ending);
        name.into()
    }
}

impl Held {
    /// Puts the addresses of a present member before those of others. Drops the oldest ones.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or belongs to another run meanwhile.
    pub fn keep_fresh(&self, ours: &Ticket) -> Result<(), Error> {
        let mut fresh = Ticket {
            addrs: for_others(&ours.addrs),
            ..ours.clone()
        };
        let old = self.file.ticket()?;
        if let Some(old) = &old {
            if old.root.run != ours.root.run {
                return Err(Error::MeetingTaken(self.file.0.clone()));
            }
            let others = old.addrs.iter().filter(|address| !ours.addrs.contains(address));
            fresh.addrs.extend(others);
        }
        fresh.addrs.truncate(Contact::LIMIT);
        if old.as_ref() == Some(&fresh) {
            return Ok(());
        }
        write_private(&self.file.0, format!("{fresh}\n").as_bytes()).map_err(Error::File)
    }

    /// Notes that a run is finished, so that nobody joins any more.
    pub fn finish(&self, run: RunId, result: &Path) -> Result<(), FileError> {
        let text = format!("{} {}\n", run.to_hex(), result.display());
        write_private(&self.file.beside(".finished"), text.as_bytes())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

/// A peer's addresses that are useful to other machines, if it has any.
fn for_others(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut far: Vec<_> = addresses.to_vec();
    far.retain(|address| !address.ip().is_loopback());
    match far.is_empty() {
        true => addresses.to_vec(),
        false => far,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use crate::testing::ticket_in;

    fn ticket(run: u8, addresses: &[&str]) -> Ticket {
        let addrs = addresses.iter().map(|address| address.parse().unwrap());
        ticket_in(RunId([run; 32]), addrs.collect())
    }

    #[tokio::test]
    async fn whoever_was_there_last_comes_first() {
        let scratch = Scratch::new();
        let path = scratch.0.join("folder/run");
        let told = MeetingFile::new(&path).unwrap_err().to_string();
        assert!(
            told.contains("does not exist") && told.contains("mount"),
            "{told}"
        );
        assert!(!scratch.0.join("folder").exists(), "it was made");
        std::fs::create_dir(scratch.0.join("folder")).unwrap();
        let file = MeetingFile::new(&path).unwrap();
        assert!(
            file.ticket().is_ok_and(|ticket| ticket.is_none()),
            "nobody was there"
        );
        let held = file.hold().await.unwrap();
        assert!(file.try_hold().unwrap().is_none(), "two hold it");
        let addresses = || file.ticket().unwrap().unwrap().addrs;
        for port in 1..=20 {
            let ours = [format!("192.0.2.1:{port}"), format!("127.0.0.1:{port}")];
            held.keep_fresh(&ticket(1, &[&ours[0], &ours[1]])).unwrap();
            assert_eq!(addresses()[0], ours[0].parse().unwrap());
        }
        assert_eq!(addresses().len(), Contact::LIMIT);
        assert!(addresses().iter().all(|address| !address.ip().is_loopback()));
        assert_eq!(addresses()[1].port(), 19);
        held.keep_fresh(&ticket(1, &["192.0.2.1:19"])).unwrap();
        assert_eq!([addresses()[0].port(), addresses()[1].port()], [19, 20]);
        assert!(matches!(
            held.keep_fresh(&ticket(2, &["192.0.2.1:1"])),
            Err(Error::MeetingTaken(_))
        ));
        let run = RunId([1; 32]);
        assert_eq!(file.finished(run), None);
        held.finish(run, Path::new("runs/my gpt")).unwrap();
        assert!(
            file.finished(run)
                .is_some_and(|told| told.contains("runs/my gpt"))
        );
        assert_eq!(file.finished(RunId([2; 32])), None);
        drop(held);
        assert!(file.try_hold().unwrap().is_some());
    }

    #[test]
    fn a_secret_is_the_same_key_everywhere() {
        let scratch = Scratch::new();
        let path = scratch.0.join("secret");
        let key = |text: &str| {
            std::fs::write(&path, text).unwrap();
            key_of_secret(&path)
        };
        let one = key("correct horse battery\n").unwrap();
        assert_eq!(one, key("correct horse battery").unwrap());
        assert_ne!(one, key("correct horse batteries").unwrap());
        let error = key("secret\n").unwrap_err().to_string();
        assert!(
            error.contains("too short") && error.contains("/dev/urandom"),
            "{error}"
        );
        assert!(is_here(&"127.0.0.1:9".parse().unwrap()));
        assert!(!is_here(&"192.0.2.1:9".parse().unwrap()));
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_resolved_is_told_with_why() {
        let names = ["127.0.0.1:4433", "no..name:4433"].map(str::to_owned);
        let (addresses, unresolved) = Place::Names(names.to_vec()).addresses().await;
        assert_eq!(addresses, ["127.0.0.1:4433".parse().unwrap()]);
        assert!(
            unresolved.len() == 1 && unresolved[0].starts_with("no..name:4433 ("),
            "{unresolved:?}"
        );
    }

    #[test]
    fn unresolved_names_are_told_of_soon_and_now_and_then() {
        let start = Instant::now();
        let told = |fails: &dyn Fn(u64) -> bool| {
            let mut unresolved = Unresolved::default();
            let at = |second: &u64| unresolved.is_due(fails(*second), start + Duration::from_secs(*second));
            (0..1400).filter(at).collect::<Vec<u64>>()
        };
        assert_eq!(told(&|_| true), [5, 605, 1205]);
        assert!(told(&|second| second < 5).is_empty());
        assert_eq!(told(&|second| !(10..=20).contains(&second)), [5, 26, 626, 1226]);
    }

    #[test]
    fn another_file_is_told() {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        std::fs::write(&path, "my notes").unwrap();
        let error = MeetingFile::new(&path).unwrap().ticket().unwrap_err().to_string();
        assert!(
            error.contains("no ticket") && error.contains("another file"),
            "{error}"
        );
    }
}
