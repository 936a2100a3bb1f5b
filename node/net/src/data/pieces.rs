//! Data that was fetched from other peers, in pieces on disk. Each is proven when it is read.
//!
//! ```text
//! listing      the files: names, sizes, hashes
//! 3.nodes      the nodes of file 3's hash tree, if it has more than one block
//! 3-17         piece 17 of file 3
//! ```
//!
//! A piece may be missing, cut off or spoilt, whatever wrote it. One that is not what was fetched is removed, so that
//! it is fetched again. A piece that was proven is only read again as long as its modification time stays.
//!
//! Of streamed data, pieces are asked for before they are read ([`Demand`]).

use super::demand::{Demand, Place};
use super::error::DataError;
use super::listing::{Listing, MAX_FILES, MAX_NAME};
use super::tree::{Blocks, PIECE, piece};
use crate::open;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// The name of the listing.
pub(super) const LISTING: &str = "listing";

/// Precedes the listing, which may lie in a folder of the user's by chance.
pub(super) const MARK: &[u8] = b"annulus pieces 1\n";

/// Most bytes of the mark and a listing; of the user's own file of that name no more is read.
const LISTING_LIMIT: u64 = (MARK.len() + MAX_FILES * (MAX_NAME + 48) + 64) as u64;

/// The name of a piece.
pub(super) fn piece_name(file: usize, index: u64) -> String {
    format!("{file}-{index}")
}

/// The name of a file's nodes.
pub(super) fn nodes_name(file: usize) -> String {
    format!("{file}.nodes")
}

/// A file beside the folder. Its modification time tells when the data was last used. A user of it holds a shared
/// lock on it, so that nobody removes it.
pub(super) fn used_file(folder: &Path) -> PathBuf {
    folder.with_extension("used")
}

/// The files in a folder of pieces, some of which may be missing.
#[derive(Debug)]
pub(super) struct Pieces {
    folder: PathBuf,
    listing: Listing,
    proofs: Vec<OnceLock<Blocks>>,
    /// The modification times of pieces that were proven.
    proven: Mutex<HashMap<Place, SystemTime>>,
    /// Of streamed data.
    demand: Option<Arc<Demand>>,
    _used: Option<File>,
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.demand.iter().for_each(|demand| demand.close());
    }
}

impl Pieces {
    /// Those in a folder, if it holds any.
    pub fn open(folder: &Path) -> Option<Self> {
        let mut bytes = Vec::new();
        let file = open::named(&folder.join(LISTING)).ok()?;
        file.take(LISTING_LIMIT).read_to_end(&mut bytes).ok()?;
        let listing: Listing = postcard::from_bytes(bytes.strip_prefix(MARK)?).ok()?;
        let used = File::open(used_file(folder)).ok();
        Some(Self {
            folder: folder.to_owned(),
            proofs: listing.files.iter().map(|_| OnceLock::new()).collect(),
            listing: Some(listing).filter(Listing::is_sound)?,
            proven: Mutex::default(),
            demand: None,
            _used: used.filter(|used| used.lock_shared().is_ok()),
        })
    }

    /// The same as streamed data, of which pieces are fetched when they are needed, until this is dropped.
    pub fn on_demand(mut self, demand: Arc<Demand>) -> Self {
        self.demand = Some(demand);
        self
    }

    /// The demand for pieces, if the data is streamed.
    pub fn demand(&self) -> Option<&Arc<Demand>> {
        self.demand.as_ref()
    }

    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// The number of a file.
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.listing.files.iter().position(|file| file.name == name)
    }

    /// The numbers of a file's pieces that are not here. A piece that is too short or too long is not.
    pub fn missing(&self, file: usize) -> Vec<u64> {
        let size = self.listing.files[file].size;
        let all = 0..size.div_ceil(PIECE);
        let is_here = |index: &u64| {
            let Range { start, end } = piece(size, *index);
            let found = fs::metadata(self.folder.join(piece_name(file, *index)));
            found.is_ok_and(|found| found.len() == end - start)
        };
        match self.proof(file) {
            Ok(_) => all.filter(|index| !is_here(index)).collect(),
            Err(_) => all.collect(),
        }
    }

    /// The proof of a file's blocks.
    pub fn proof(&self, file: usize) -> Result<&Blocks, DataError> {
        if let Some(proof) = self.proofs[file].get() {
            return Ok(proof);
        }
        let path = self.folder.join(nodes_name(file));
        let listed = &self.listing.files[file];
        // A file of one block has none.
        let nodes = fs::read(&path).unwrap_or_default();
        let proof = Blocks::proven(listed.size, listed.hash, &nodes);
        let proof = proof.ok_or(DataError::Lost { path })?;
        Ok(self.proofs[file].get_or_init(|| proof))
    }

    /// Reads a part of a file. Of streamed data a piece that is missing is asked for again, but not waited for.
    pub fn part(&self, file: usize, range: Range<u64>) -> Result<Vec<u8>, DataError> {
        let mut part = Vec::with_capacity((range.end - range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let (index, start) = (at / PIECE, at / PIECE * PIECE);
            let end = range.end.min(start + PIECE);
            let read = self.read(file, index, at - start..end - start, &mut part);
            match (read, &self.demand) {
                (Err(DataError::Lost { .. }), Some(demand)) => {
                    demand.lost((file, index));
                    return Err(DataError::Elsewhere);
                }
                (read, _) => read?,
            }
            at = end;
        }
        Ok(part)
    }

    fn read(&self, file: usize, index: u64, range: Range<u64>, part: &mut Vec<u8>) -> Result<(), DataError> {
        let path = self.folder.join(piece_name(file, index));
        let lost = |_: io::Error| DataError::Lost { path: path.clone() };
        let proof = self.proof(file)?;
        let opened = open::named(&path).map_err(lost)?;
        let changed = opened
            .metadata()
            .and_then(|found| found.modified())
            .map_err(lost)?;
        let proven = || self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        if proven().get(&(file, index)) == Some(&changed) {
            let from = part.len();
            part.resize(from + (range.end - range.start) as usize, 0);
            return open::read_at(&opened, &mut part[from..], range.start).map_err(lost);
        }
        let mut piece = Vec::with_capacity(PIECE as usize);
        opened.take(PIECE + 1).read_to_end(&mut piece).map_err(lost)?;
        if !proof.proves_piece(index, &piece) {
            let _ = fs::remove_file(&path);
            return Err(DataError::Lost { path });
        }
        proven().insert((file, index), changed);
        part.extend_from_slice(&piece[range.start as usize..range.end as usize]);
        Ok(())
    }
}

/// Reads a file from its beginning.
pub(super) struct PiecesReader {
    pieces: Arc<Pieces>,
    file: usize,
    /// The piece that comes next.
    next: u64,
    piece: Cursor<Vec<u8>>,
}

impl PiecesReader {
    pub fn new(pieces: Arc<Pieces>, file: usize) -> Self {
        Self {
            pieces,
            file,
            next: 0,
            piece: Cursor::default(),
        }
    }
}

impl Read for PiecesReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let range = piece(self.pieces.listing.files[self.file].size, self.next);
        if self.piece.position() == self.piece.get_ref().len() as u64 && range.start < range.end {
            let read = self.pieces.part(self.file, range);
            self.piece = Cursor::new(read.map_err(io::Error::other)?);
            self.next += 1;
        }
        self.piece.read(buffer)
    }
}
