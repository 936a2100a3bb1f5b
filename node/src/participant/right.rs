//! The rights of a peer's folder in a run: the ticket with which it joined, or the run's own key if the run was founded
//! there.
//!
//! The peer reads them when it starts, and `invite` and `revoke` read them beside it.

use crate::net::ticket::{Secret, Ticket};
use annulus_core::PeerId;
use annulus_core::id::TicketId;
use annulus_core::invitation::{Admission, ChainError, Invitation, Revocation, Role, Root};
use annulus_net::files::{At, FileError, read_limited, write_private};
use annulus_net::open;
use std::path::{Path, PathBuf};

/// The file with the ticket that the peer hands on.
const TICKET: &str = "ticket";

/// The file with the secret half of the run's key in hexadecimal, if the run was founded here.
const RUN_KEY: &str = "run_key";

/// The folder of revocations that the peer has not passed on yet, ...
const REVOCATIONS: &str = "revocations";

/// ... and in it those that the run knew once. They stay for good: the run may go on from a place before it knew.
const KNOWN: &str = "known";

/// Longest of these files that is read: none is longer.
const LIMIT: usize = 4096;

/// A peer's rights in a run.
#[derive(Clone, Debug)]
pub(crate) struct Right {
    /// The ticket with which it joined, or which it hands out as the founder.
    pub ticket: Ticket,
    /// The run's key, if it was founded here.
    pub run_key: Option<Secret>,
}

impl Right {
    /// A founder's rights, which differ from those of the peers that it admits.
    pub fn of_founder(run_key: Secret, root: Root) -> Result<Self, ChainError> {
        let all = Invitation::of_run(run_key.key());
        Ok(Self {
            ticket: Ticket::made_from(&all, root, Role::Member, None, None)?,
            run_key: Some(run_key),
        })
    }

    /// What a folder holds, if it holds a ticket.
    ///
    /// # Errors
    ///
    /// If it exists and cannot be read.
    pub fn of_folder(path: &Path) -> Result<Option<Self>, FileError> {
        let text = text_of(&ticket_file(path))?;
        let Some(ticket) = text.and_then(|text| text.parse::<Ticket>().ok()) else {
            return Ok(None);
        };
        let run_key = run_key_of(path)?.filter(|secret| secret.key().peer() == ticket.root.key);
        Ok(Some(Self { ticket, run_key }))
    }

    /// All rights.
    pub fn invitation(&self) -> Invitation {
        match self.run_key {
            Some(secret) => Invitation::of_run(secret.key()),
            None => self.ticket.right(),
        }
    }

    /// What the peer shows to others.
    pub fn admission(&self, peer: PeerId) -> Admission {
        self.invitation().admit(peer, self.ticket.root.run)
    }

    /// Its own role in the run.
    pub fn role(&self) -> Role {
        self.invitation().chain.role()
    }

    /// A ticket for guests of its page: only to contribute, or to be a member if the model is split, since only members
    /// can hold a part. A contributor hands on none: it could only give away its own, and what guests do by it would
    /// count against this peer.
    pub fn for_guests(&self, is_split: bool) -> Option<Ticket> {
        let role = if is_split { Role::Member } else { Role::Contribute };
        match self.role() {
            Role::Watch | Role::Contribute => None,
            Role::Member => {
                let made = Ticket::made_from(&self.invitation(), self.ticket.root, role, None, None);
                let addrs = self.ticket.addrs.clone();
                made.ok().map(|made| Ticket { addrs, ..made })
            }
        }
    }

    /// Saves it for the next start.
    pub fn keep(&self, path: &Path) -> Result<(), FileError> {
        if let Some(Secret(seed)) = self.run_key {
            let hex = data_encoding::HEXLOWER.encode(&seed);
            write_private(&path.join(RUN_KEY), format!("{hex}\n").as_bytes())?;
        }
        write_private(&ticket_file(path), format!("{}\n", self.ticket).as_bytes())
    }
}

/// The path of the ticket.
pub(crate) fn ticket_file(path: &Path) -> PathBuf {
    path.join(TICKET)
}

/// The key of the run that was founded in a folder.
pub(crate) fn run_key_of(path: &Path) -> Result<Option<Secret>, FileError> {
    let hex = text_of(&path.join(RUN_KEY))?.unwrap_or_default();
    let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(hex.trim().as_bytes());
    Ok(bytes.ok().and_then(|bytes| bytes.try_into().ok()).map(Secret))
}

/// The text of a file, if it exists.
fn text_of(path: &Path) -> Result<Option<String>, FileError> {
    match read_limited(path, LIMIT) {
        Err(FileError::Missing(_)) => Ok(None),
        read => Ok(String::from_utf8(read?).ok()),
    }
}

/// Leaves a revocation for the peer of a folder. Returns the file, which the peer moves once the run knows of it.
pub(crate) fn leave_revocation(
    path: &Path,
    revocation: &Revocation,
    root: Root,
) -> Result<PathBuf, FileError> {
    let name = revocation.ticket(root.run).map(|(_, id)| id.to_hex());
    let file = path.join(REVOCATIONS).join(name.unwrap_or_default());
    let folder = path.join(REVOCATIONS);
    open::make_folder(&folder).at(&folder)?;
    let bytes = postcard::to_allocvec(revocation).expect("a revocation has only plain data");
    write_private(&file, &bytes)?;
    Ok(file)
}

/// The run knows of a revocation that lies in this file of a folder.
pub(crate) fn keep_revocation(path: &Path, file: &Path) -> Result<(), FileError> {
    let folder = path.join(REVOCATIONS).join(KNOWN);
    match file.file_name() {
        Some(name) if !file.starts_with(&folder) => {
            open::make_folder(&folder).at(&folder)?;
            std::fs::rename(file, folder.join(name)).at(file)
        }
        _ => Ok(()),
    }
}

/// The revocations that were ever left in a folder.
pub(crate) fn revocations_in(path: &Path) -> Vec<(PathBuf, Revocation)> {
    let new = path.join(REVOCATIONS);
    let known = new.join(KNOWN);
    [new, known]
        .iter()
        .flat_map(|folder| read_revocations(folder))
        .collect()
}

fn read_revocations(folder: &Path) -> Vec<(PathBuf, Revocation)> {
    let files = open::folder(folder).and_then(|()| std::fs::read_dir(folder));
    let read = |file: std::fs::DirEntry| {
        // A file that is still being written has a longer name.
        TicketId::from_hex(file.file_name().to_str()?)?;
        let bytes = read_limited(&file.path(), LIMIT).ok()?;
        Some((file.path(), postcard::from_bytes(&bytes).ok()?))
    };
    files.into_iter().flatten().flatten().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use annulus_core::RunId;

    #[test]
    fn what_was_taken_back_stays_in_the_folder_once_the_run_knows() {
        let folder = tempfile::tempdir().expect("a folder");
        let secret = Secret([7; 32]);
        let root = Root {
            run: RunId([9; 32]),
            key: secret.key().peer(),
        };
        let all = Invitation::of_run(secret.key());
        let ticket = Ticket::made_from(&all, root, Role::Member, None, None).expect("all rights");
        let revocation = all.revoke(root, ticket.chain).expect("its own ticket");
        let file = leave_revocation(folder.path(), &revocation, root).expect("a file");
        assert_eq!(
            revocations_in(folder.path()),
            [(file.clone(), revocation.clone())]
        );
        for _ in 0..2 {
            let (file, _) = revocations_in(folder.path()).remove(0);
            keep_revocation(folder.path(), &file).expect("it is moved, or stays");
        }
        assert!(!file.exists(), "the command line waits for that");
        let left: Vec<Revocation> = revocations_in(folder.path())
            .into_iter()
            .map(|(_, r)| r)
            .collect();
        assert_eq!(left, [revocation]);
    }
}
