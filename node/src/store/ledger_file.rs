//! The ledger as an append-only file of committed rounds, one frame each.
//!
//! The file begins with a mark, the run's name and a base: the head from which this peer started. A frame is `length:
//! u32 | check: 8 bytes | payload`, little-endian. The check is the front of the BLAKE3 of the frame's offset and
//! payload. A crash may leave half a frame at the end: reading stops before it, and opening for writing cuts it off.
//!
//! It knows nothing of states or checkpoints.

use annulus_core::check::{HeadError, RecordError};
use annulus_core::config::Manifest;
use annulus_core::id::{Digest, Round, RunId};
use annulus_core::ledger::{Founder, Head, Record, VERSION};
use annulus_core::signature::Scheme;
use annulus_net::files::{At, FileError, read_limited, write_atomic};
use annulus_net::open;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// One frame of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// The history begins here: with the run itself, or where this peer joined. Entries before it belong to another
    /// lineage.
    Base {
        /// The ledger's end so far.
        head: Box<Head>,
        /// The state there.
        digest: Digest,
    },
    /// A committed round.
    Round {
        /// The record of contributions.
        record: Record,
        /// The state after it.
        digest: Digest,
    },
    /// One peer went on alone after a restart ([`Head::continued_by`]).
    Continued {
        /// That peer.
        founder: Box<Founder>,
    },
}

/// What is wrong with a ledger. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The operating system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not begin like a ledger.
    #[error("{path} is not a ledger", path = .0.display())]
    NotALedger(PathBuf),
    /// It has another version than [`VERSION`].
    #[error(
        "{path} is of version {found}, and this program reads version {VERSION}: use a program of the version that \
         wrote it",
        path = path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u8,
    },
    /// It belongs to another run.
    #[error("the ledger belongs to run {found}, not to run {expected}: choose another directory")]
    OtherRun {
        /// The expected run.
        expected: RunId,
        /// The run that the file names.
        found: RunId,
    },
    /// It begins where no ledger can.
    #[error("the ledger cannot begin after round {round}: {why}")]
    Base {
        /// The round of the base.
        round: Round,
        /// What is wrong with it.
        why: HeadError,
    },
    /// It has no base before its first round.
    #[error("the ledger has rounds before its base")]
    NoBase,
    /// A record does not follow from those before it.
    #[error("round {round} does not fit into the ledger: {why}")]
    Record {
        /// Its round.
        round: Round,
        /// Why it does not.
        why: RecordError,
    },
    /// An entry is larger than members can make.
    #[error("a ledger entry is larger than {FRAME_LIMIT} bytes")]
    TooLarge,
}

/// Name of the format; its version follows.
const MARK: &[u8] = b"annled\0";
const START: u64 = 8 + 32;
const FRAME_HEAD: u64 = 4 + 8;
/// Largest payload. 64 contributors with 64 newcomers of 1 KiB of addresses each come to 4 MiB.
const FRAME_LIMIT: usize = 8 << 20;

/// About how many bytes a round adds to the ledger in a run of this many members. Measured: 214, 379
/// and 544 with one, two and three members of `digits`.
pub const fn bytes_per_round(members: u64) -> u64 {
    50 + 165 * members
}

/// The head after an entry, given the one before. Refuses what members cannot have agreed on. Signatures were checked
/// before the entry came into a ledger, and an audit checks them again.
pub fn advance(head: Option<Head>, entry: &Entry, manifest: &Manifest) -> Result<Head, LedgerError> {
    match (entry, head) {
        (Entry::Base { head, .. }, _) => {
            let round = head.round;
            head.check_itself(manifest)
                .map_err(|why| LedgerError::Base { round, why })?;
            Ok((**head).clone())
        }
        (_, None) => Err(LedgerError::NoBase),
        (Entry::Round { record, .. }, Some(mut head)) => {
            let round = record.round;
            head.check_said(record, manifest, Scheme::Ed25519)
                .map_err(|why| LedgerError::Record { round, why })?;
            head.apply(record, manifest);
            Ok(head)
        }
        (Entry::Continued { founder }, Some(head)) => Ok(head.continued_by(Founder::clone(founder))),
    }
}

/// The run that a ledger names at its beginning. None if the file cannot be read or is no ledger.
pub fn run_of(path: &Path) -> Option<RunId> {
    let start = read_limited(path, START as usize).ok()?;
    let named = start.strip_prefix(MARK)?.get(1..)?;
    named.try_into().ok().map(RunId)
}

/// Reads entries in order, and stops before the first damaged one.
pub struct LedgerReader {
    input: BufReader<File>,
    path: PathBuf,
    len: u64,
    position: u64,
    failed: bool,
}

impl LedgerReader {
    /// Opens the ledger of a run.
    pub fn open(path: &Path, run: RunId) -> Result<Self, LedgerError> {
        let file = open::own_to_read(path).at(path)?;
        let len = file.metadata().at(path)?.len();
        let mut input = BufReader::with_capacity(1 << 16, file);
        let mut start = [0; START as usize];
        match input.read_exact(&mut start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(LedgerError::NotALedger(path.to_path_buf()));
            }
            other => other.at(path)?,
        }
        match start[..8].strip_prefix(MARK) {
            Some([VERSION]) => {}
            Some([found]) => {
                let (path, found) = (path.to_path_buf(), *found);
                return Err(LedgerError::Version { path, found });
            }
            _ => return Err(LedgerError::NotALedger(path.to_path_buf())),
        }
        let found = RunId(start[8..].try_into().expect("32 bytes"));
        if found != run {
            return Err(LedgerError::OtherRun { expected: run, found });
        }
        Ok(Self {
            input,
            path: path.to_path_buf(),
            len,
            position: START,
            failed: false,
        })
    }

    /// The end of the last good entry.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes after the last good entry: at the end of the ledger, what a crash left behind.
    pub fn rest(&self) -> u64 {
        self.len.saturating_sub(self.position)
    }

    fn read(&mut self) -> io::Result<Option<Entry>> {
        let mut head = [0; FRAME_HEAD as usize];
        if self.rest() < FRAME_HEAD {
            return Ok(None);
        }
        self.input.read_exact(&mut head)?;
        let len = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
        if len > FRAME_LIMIT || self.rest() < FRAME_HEAD + len as u64 {
            return Ok(None);
        }
        let mut payload = vec![0; len];
        self.input.read_exact(&mut payload)?;
        if head[4..] != check_of(self.position, &payload) {
            return Ok(None);
        }
        let entry = postcard::from_bytes(&payload).ok();
        if entry.is_some() {
            self.position += FRAME_HEAD + len as u64;
        }
        Ok(entry)
    }
}

impl Iterator for LedgerReader {
    type Item = Result<Entry, LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let read = self.read();
        self.failed = !matches!(read, Ok(Some(_)));
        match read {
            Ok(entry) => entry.map(Ok),
            // The file was truncated while we read it: its writer cut it. What was read stands.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => Some(Err(FileError::new(&self.path, error).into())),
        }
    }
}

/// Appends entries. The lock on the run folder makes sure that there is only one per file.
pub struct LedgerWriter {
    file: File,
    path: PathBuf,
    end: u64,
}

impl LedgerWriter {
    /// Creates a ledger with a base, replacing an existing one.
    pub fn create(path: &Path, run: RunId, head: &Head, digest: Digest) -> Result<Self, LedgerError> {
        let base = frame(
            START,
            &Entry::Base {
                head: Box::new(head.clone()),
                digest,
            },
        )?;
        write_atomic(path, |out| {
            out.write_all(MARK)?;
            out.write_all(&[VERSION])?;
            out.write_all(&run.0)?;
            out.write_all(&base)
        })?;
        let file = open::own(path, OpenOptions::new().write(true)).at(path)?;
        Ok(Self {
            file,
            path: path.to_path_buf(),
            end: START + base.len() as u64,
        })
    }

    /// Continues a ledger after `end`, a [`LedgerReader::position`]. Anything after it is moved to `ledger.cut`.
    pub fn open(path: &Path, end: u64) -> Result<Self, LedgerError> {
        let file = open::own(path, OpenOptions::new().read(true).write(true)).at(path)?;
        let mut ledger = Self {
            file,
            path: path.to_path_buf(),
            end,
        };
        ledger.cut(end)?;
        Ok(ledger)
    }

    /// Appends an entry. It survives the end of the process at once, and a power failure after the next sync through
    /// [`Self::sync_handle`]. On an error the ledger is unchanged.
    pub fn append(&mut self, entry: &Entry) -> Result<(), LedgerError> {
        let bytes = frame(self.end, entry)?;
        let written = self
            .file
            .seek(SeekFrom::Start(self.end))
            .and_then(|_| self.file.write_all(&bytes));
        if let Err(error) = written {
            // Half a frame would hide all later entries.
            self.file.set_len(self.end).at(&self.path)?;
            return Err(FileError::new(&self.path, error).into());
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Drops everything after `end`, but keeps the bytes in a file `ledger.cut` beside the ledger.
    pub fn cut(&mut self, end: u64) -> Result<(), LedgerError> {
        let mut file = &self.file;
        if file.metadata().at(&self.path)?.len() > end {
            file.seek(SeekFrom::Start(end)).at(&self.path)?;
            write_atomic(&self.path.with_extension("cut"), |out| {
                io::copy(&mut file, out).map(drop)
            })?;
            file.set_len(end).at(&self.path)?;
            file.sync_data().at(&self.path)?;
        }
        self.end = end;
        Ok(())
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// The file has another path by now.
    pub(crate) fn moved(&mut self, path: PathBuf) {
        self.path = path;
    }

    /// A second handle, with which another thread can flush the entries (`sync_data`).
    pub fn sync_handle(&self) -> Result<File, LedgerError> {
        Ok(self.file.try_clone().at(&self.path)?)
    }
}

fn frame(offset: u64, entry: &Entry) -> Result<Vec<u8>, LedgerError> {
    let payload = postcard::to_allocvec(entry).expect("an entry has only plain data");
    if payload.len() > FRAME_LIMIT {
        return Err(LedgerError::TooLarge);
    }
    let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&check_of(offset, &payload));
    bytes.extend_from_slice(&payload);
    Ok(bytes)
}

fn check_of(offset: u64, payload: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&offset.to_le_bytes()).update(payload);
    hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Run, Scratch, founder, member};
    use std::fs;

    fn rounds(n: u64) -> (Scratch, PathBuf, RunId, Vec<Entry>) {
        let scratch = Scratch::new();
        let path = scratch.0.join("ledger");
        let mut run = Run::new();
        let id = run.manifest.run_id();
        let digest = run.state.digest();
        let mut ledger = LedgerWriter::create(&path, id, &run.head, digest).unwrap();
        let mut entries = vec![Entry::Base {
            head: Box::new(run.head.clone()),
            digest,
        }];
        for _ in 0..n {
            let (record, digest) = run.round();
            entries.push(Entry::Round { record, digest });
            ledger.append(entries.last().unwrap()).unwrap();
        }
        (scratch, path, id, entries)
    }

    fn read(path: &Path, id: RunId) -> (Vec<Entry>, u64, u64) {
        let mut reader = LedgerReader::open(path, id).unwrap();
        let entries = reader.by_ref().map(Result::unwrap).collect();
        (entries, reader.position(), reader.rest())
    }

    #[test]
    fn what_was_appended_is_read() {
        let (_scratch, path, id, entries) = rounds(5);
        assert_eq!(read(&path, id), (entries, fs::metadata(&path).unwrap().len(), 0));
    }

    #[test]
    fn a_ledger_cut_anywhere_is_read_up_to_there_and_continued() {
        let (_scratch, path, id, entries) = rounds(3);
        let whole = fs::read(&path).unwrap();
        let mut ends = Vec::new();
        let mut reader = LedgerReader::open(&path, id).unwrap();
        while reader.next().is_some() {
            ends.push(reader.position());
        }
        for len in (0..whole.len()).step_by(5) {
            fs::write(&path, &whole[..len]).unwrap();
            if len < START as usize {
                assert!(matches!(
                    LedgerReader::open(&path, id),
                    Err(LedgerError::NotALedger(_))
                ));
                continue;
            }
            let good = ends.iter().filter(|end| **end <= len as u64).count();
            let (found, position, rest) = read(&path, id);
            assert_eq!(found, entries[..good]);
            assert_eq!(position + rest, len as u64);
            let mut ledger = LedgerWriter::open(&path, position).unwrap();
            let last = Entry::Continued {
                founder: founder(9).into(),
            };
            ledger.append(&last).unwrap();
            let (found, _, rest) = read(&path, id);
            assert_eq!((found.len(), found.last(), rest), (good + 1, Some(&last), 0));
        }
    }

    #[test]
    fn a_changed_byte_ends_the_ledger_before_its_frame_and_nothing_is_lost() {
        let (scratch, path, id, entries) = rounds(3);
        let whole = fs::read(&path).unwrap();
        for at in (START as usize..whole.len()).step_by(3) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            let (found, position, _) = read(&path, id);
            assert!(found.len() < entries.len(), "byte {at} was changed unseen");
            assert_eq!(found, entries[..found.len()]);
            assert!(position as usize <= at);
            LedgerWriter::open(&path, position).unwrap();
            assert_eq!(
                fs::read(scratch.0.join("ledger.cut")).unwrap(),
                bytes[position as usize..]
            );
        }
    }

    #[test]
    fn a_frame_that_was_moved_is_not_read() {
        let (_scratch, path, id, entries) = rounds(1);
        let mut bytes = fs::read(&path).unwrap();
        let first = frame(START, &entries[0]).unwrap().len();
        bytes.extend_from_within(START as usize + first..);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read(&path, id).0, entries);
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let (_scratch, path, id, _) = rounds(1);
        let mut bytes = fs::read(&path).unwrap();
        bytes[MARK.len()] = VERSION + 1;
        fs::write(&path, bytes).unwrap();
        let error = LedgerReader::open(&path, id).err().unwrap().to_string();
        assert!(
            error.contains(&format!("version {}", VERSION + 1))
                && error.contains(&format!("reads version {VERSION}")),
            "{error}"
        );
    }

    #[test]
    fn another_runs_ledger_is_refused() {
        let (_scratch, path, _, _) = rounds(1);
        let error = LedgerReader::open(&path, RunId([3; 32])).err().unwrap();
        assert!(matches!(error, LedgerError::OtherRun { .. }), "{error}");
    }

    #[test]
    fn records_that_members_cannot_have_agreed_on_are_refused() {
        let mut run = Run::new();
        let before = run.head.clone();
        let (record, digest) = run.round();
        let refused = |change: &dyn Fn(&mut Record)| {
            let mut record = record.clone();
            change(&mut record);
            let entry = Entry::Round { record, digest };
            matches!(
                advance(Some(before.clone()), &entry, &run.manifest),
                Err(LedgerError::Record { .. })
            )
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|r| r.round = 2));
        assert!(refused(&|r| r.headers.clear()));
        assert!(refused(&|r| r.headers[0].content.peer = member(8).peer));
        assert!(refused(&|r| r.headers[0].content.weight += 1));
        assert!(refused(&|r| r.headers.extend_from_within(..)));
        let entry = Entry::Round {
            record: record.clone(),
            digest,
        };
        assert!(advance(None, &entry, &run.manifest).is_err());
    }
}
