//! The bytes of a file that may be larger than memory. Each part is read when it is needed.
//!
//! Somebody may change the file meanwhile. Each read compares the file's size and modification time with those of the first
//! complete read. If they differ, the whole file is hashed again. A part is returned only if the content is unchanged.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use annulus_core::Digest;
use bytes::Bytes;

use super::demand::Demand;
use super::error::DataError;
use super::pieces::Pieces;
use super::tree::{PIECE, piece};
use crate::open;

/// Bytes per read while the whole file is read: few enough to stay in the cache.
const AT_ONCE: usize = 1 << 18;

/// The bytes of a file.
#[derive(Debug)]
pub struct Contents(Place);

#[derive(Debug)]
enum Place {
    Held(Bytes),
    OnDisk(Box<OnDisk>),
    /// A file that was fetched, by its number.
    Fetched(Arc<Pieces>, usize),
}

#[derive(Debug)]
struct OnDisk {
    path: PathBuf,
    file: File,
    len: u64,
    seen: Mutex<Seen>,
}

/// The state of a file when it was last read completely.
#[derive(Debug)]
struct Seen {
    /// Modification time.
    changed: Option<SystemTime>,
    /// Hash of the content, after the first complete read.
    digest: Option<Digest>,
}

impl Contents {
    /// Bytes in memory.
    pub fn of(bytes: impl Into<Bytes>) -> Self {
        Self(Place::Held(bytes.into()))
    }

    /// The bytes of a file that was fetched.
    pub(super) fn of_pieces(pieces: Arc<Pieces>, file: usize) -> Self {
        Self(Place::Fetched(pieces, file))
    }

    /// The bytes of a file on disk.
    pub(super) fn open(path: PathBuf) -> Result<Self, DataError> {
        let opened = open::named(&path).and_then(|file| {
            let metadata = file.metadata()?;
            let seen = Seen {
                changed: metadata.modified().ok(),
                digest: None,
            };
            Ok((file, metadata.len(), seen))
        });
        let (file, len, seen) = opened.map_err(|source| DataError::of(&path, source))?;
        let seen = Mutex::new(seen);
        Ok(Self(Place::OnDisk(Box::new(OnDisk {
            path,
            file,
            len,
            seen,
        }))))
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Place::Held(bytes) => bytes.len() as u64,
            Place::OnDisk(file) => file.len,
            Place::Fetched(pieces, file) => pieces.listing().files[*file].size,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their hash, where it is known without reading them: of streamed data, of which each part is proven when it is read.
    pub fn known_digest(&self) -> Option<Digest> {
        match &self.0 {
            Place::Fetched(pieces, file) if pieces.demand().is_some() => {
                Some(Digest(pieces.listing().files[*file].hash))
            }
            _ => None,
        }
    }

    /// Of streamed data: asks for the pieces that hold these bytes, and waits for so long at most. Returns whether all are here.
    pub fn have(&self, ranges: impl Iterator<Item = Range<u64>>, wait: Duration) -> bool {
        let asked = self.asked(ranges);
        asked.is_none_or(|(demand, places)| demand.wait(&places, wait))
    }

    /// Of streamed data: asks for the pieces that hold these bytes, and keeps them from then on.
    pub fn pin(&self, ranges: impl Iterator<Item = Range<u64>>) {
        if let Some((demand, places)) = self.asked(ranges) {
            demand.want(&places, true);
        }
    }

    fn asked(&self, ranges: impl Iterator<Item = Range<u64>>) -> Option<(&Demand, Vec<(usize, u64)>)> {
        let Place::Fetched(pieces, file) = &self.0 else {
            return None;
        };
        let demand = pieces.demand()?;
        let places = ranges.flat_map(|range| range.start / PIECE..range.end.div_ceil(PIECE));
        let places: BTreeSet<_> = places.map(|index| (*file, index)).collect();
        Some((demand, places.into_iter().collect()))
    }

    /// Reads everything, part by part, and returns its hash.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or changes meanwhile.
    pub fn read_all(&self, visit: impl FnMut(&[u8])) -> Result<Digest, DataError> {
        match &self.0 {
            Place::Held(bytes) => hash(bytes.chunks(AT_ONCE).map(|part| Ok(Cow::Borrowed(part))), visit),
            Place::Fetched(pieces, file) => {
                let read = |index| pieces.part(*file, piece(self.len(), index)).map(Cow::Owned);
                hash((0..self.len().div_ceil(PIECE)).map(read), visit)
            }
            Place::OnDisk(file) => {
                let mut seen = file.seen.lock().unwrap_or_else(PoisonError::into_inner);
                let (digest, changed) = file.read_all(visit)?;
                if seen.digest.is_some_and(|former| former != digest) {
                    return Err(file.has_changed());
                }
                (seen.digest, seen.changed) = (Some(digest), changed);
                Ok(digest)
            }
        }
    }

    /// Reads a part.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has changed since it was first read.
    ///
    /// # Panics
    ///
    /// If the range reaches beyond the end.
    pub fn part(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, DataError> {
        assert!(range.end <= self.len(), "bytes that there are");
        match &self.0 {
            Place::Held(bytes) => Ok(Cow::Borrowed(&bytes[range.start as usize..range.end as usize])),
            Place::OnDisk(file) => file.part(range).map(Cow::Owned),
            Place::Fetched(pieces, file) => pieces.part(*file, range).map(Cow::Owned),
        }
    }
}

impl OnDisk {
    fn part(&self, range: Range<u64>) -> Result<Vec<u8>, DataError> {
        // A system updates the modification time before it writes. So whoever read new bytes sees a new time now.
        let mut part = self.read(range.clone());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_of(seen.changed)? {
            return part;
        }
        // `touch` changes the time and leaves the content as it was.
        let (found, changed) = self.read_all(|_| {})?;
        if seen.digest != Some(found) {
            return Err(self.has_changed());
        }
        part = self.read(range);
        match self.is_of(changed)? {
            true => {
                seen.changed = changed;
                part
            }
            false => Err(self.has_changed()),
        }
    }

    /// Reads the whole file, and fails if it changes meanwhile. Returns its hash and modification time.
    fn read_all(&self, visit: impl FnMut(&[u8])) -> Result<(Digest, Option<SystemTime>), DataError> {
        let metadata = self.file.metadata();
        let changed = metadata.ok().and_then(|metadata| metadata.modified().ok());
        let starts = (0..self.len).step_by(AT_ONCE);
        let part = |start: u64| {
            self.read(start..self.len.min(start + AT_ONCE as u64))
                .map(Cow::Owned)
        };
        let digest = hash(starts.map(part), visit)?;
        match self.is_of(changed)? {
            true => Ok((digest, changed)),
            false => Err(self.has_changed()),
        }
    }

    fn read(&self, range: Range<u64>) -> Result<Vec<u8>, DataError> {
        let mut part = vec![0; (range.end - range.start) as usize];
        match open::read_at(&self.file, &mut part, range.start) {
            Ok(()) => Ok(part),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(self.has_changed()),
            Err(error) => Err(DataError::of(&self.path, error)),
        }
    }

    /// Whether the file still has its first size, and this modification time.
    fn is_of(&self, changed: Option<SystemTime>) -> Result<bool, DataError> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|source| DataError::of(&self.path, source))?;
        Ok(metadata.len() == self.len && metadata.modified().ok() == changed)
    }

    fn has_changed(&self) -> DataError {
        DataError::Changed {
            path: self.path.clone(),
        }
    }
}

fn hash<'a>(
    parts: impl Iterator<Item = Result<Cow<'a, [u8]>, DataError>>,
    mut visit: impl FnMut(&[u8]),
) -> Result<Digest, DataError> {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        let part = part?;
        hasher.update(&part);
        visit(&part);
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}

#[cfg(all(test, feature = "native"))]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use std::fs::{self, OpenOptions};
    use std::io::{Seek, SeekFrom, Write};

    #[test]
    fn a_file_that_changes_is_noticed_and_one_that_was_touched_is_read_on() {
        let scratch = Scratch::new();
        let path = scratch.0.join("text");
        let bytes: Vec<u8> = (0..3 * AT_ONCE + 7).map(|at| at as u8).collect();
        let begin = || {
            fs::write(&path, &bytes).unwrap();
            let contents = Contents::open(path.clone()).unwrap();
            let mut all = Vec::new();
            let digest = contents.read_all(|part| all.extend_from_slice(part)).unwrap();
            assert_eq!((all, digest), (bytes.clone(), Digest::of(&bytes)));
            assert_eq!(*contents.part(5..9).unwrap(), bytes[5..9]);
            contents
        };
        let later = || SystemTime::now() + Duration::from_secs(9);
        let changed = |contents: &Contents| {
            let error = contents.part(5..9).unwrap_err();
            assert!(matches!(error, DataError::Changed { .. }), "{error}");
            assert!(error.to_string().contains("has changed"), "{error}");
        };

        let contents = begin();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(later()).unwrap();
        assert_eq!(*contents.part(5..9).unwrap(), bytes[5..9]);
        file.set_len(6).unwrap();
        changed(&contents);

        // Elsewhere than where it is read, with the same size.
        let contents = begin();
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(2 * AT_ONCE as u64)).unwrap();
        file.write_all(b"new").unwrap();
        file.set_modified(later()).unwrap();
        changed(&contents);

        // One that another takes the place of is still the old one.
        let contents = begin();
        fs::write(scratch.0.join("new"), "new").unwrap();
        fs::rename(scratch.0.join("new"), &path).unwrap();
        assert_eq!(*contents.part(5..9).unwrap(), bytes[5..9]);
    }
}
