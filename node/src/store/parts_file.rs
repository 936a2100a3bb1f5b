//! A file with parts of a split model, one after the other as in a checkpoint: for each the optimizer's vectors, then
//! the weights. Parts are read one by one, so that nobody needs memory for all of them.

use crate::store::state_file::{self, Label, StateFileError};
use annulus_core::config::Manifest;
use annulus_core::id::Digest;
use annulus_core::moments::{Moments, digest_of_parts};
use annulus_core::parts::{PartSet, Parts};
use annulus_net::files::{At, FileError};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file with some parts.
pub struct PartsFile {
    manifest: Manifest,
    parts: Parts,
    file: File,
    path: PathBuf,
    /// The offset of each part.
    starts: BTreeMap<u16, u64>,
}

impl PartsFile {
    fn new(manifest: &Manifest, (file, path): (File, &Path), start: u64, set: &PartSet) -> Self {
        let parts = Parts::of_len(manifest.layout.len);
        let mut end = start;
        let place = |part| {
            let start = end;
            end += bytes(manifest, parts, part);
            (part, start)
        };
        Self {
            starts: set.iter().map(place).collect(),
            manifest: manifest.clone(),
            parts,
            file,
            path: path.to_owned(),
        }
    }

    /// An empty, unnamed file with room for all parts. It disappears when it is no longer needed.
    ///
    /// # Errors
    ///
    /// If no file can be created in the folder.
    pub fn scratch(folder: &Path, manifest: &Manifest) -> Result<Self, FileError> {
        let file = tempfile::tempfile_in(folder).at(folder)?;
        let all = Parts::of_len(manifest.layout.len).all();
        Ok(Self::new(manifest, (file, folder), 0, &all))
    }

    fn start(&self, part: u16) -> u64 {
        *self.starts.get(&part).expect("the part is in the file")
    }

    /// Reads one part.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    ///
    /// # Panics
    ///
    /// If the part is not in the file.
    pub fn read(&self, part: u16) -> Result<Moments, FileError> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.start(part))).at(&self.path)?;
        let (one, stepped) = (PartSet::from_iter([part]), Digest([0; 32]));
        let read = |section: &mut [u8]| file.read_exact(section).at(&self.path);
        Moments::load(&self.manifest, (&one, stepped), read)
    }

    /// Writes one part in its place.
    ///
    /// # Errors
    ///
    /// If the disk is full.
    ///
    /// # Panics
    ///
    /// If `kept` is another part.
    pub fn write(&self, part: u16, kept: &Moments) -> Result<(), FileError> {
        assert_eq!(
            kept.set(),
            PartSet::from_iter([part]),
            "that part, and nothing else"
        );
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.start(part))).at(&self.path)?;
        let mut sections = kept.sections();
        sections
            .try_for_each(|section| file.write_all(section))
            .at(&self.path)
    }

    /// Reads the weights of some elements of the vector.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    ///
    /// # Panics
    ///
    /// If their parts are not in the file.
    pub fn weights(&self, range: Range<usize>) -> Result<Vec<f32>, FileError> {
        let mut weights = Vec::with_capacity(range.len());
        while weights.len() < range.len() {
            let start = range.start + weights.len();
            let part = self.parts.part_of(start);
            let end = self
                .parts
                .range(part)
                .map_or(start, |whole| whole.end.min(range.end));
            weights.extend(self.read_weights(part, start..end)?);
        }
        Ok(weights)
    }

    /// Reads the weights of these elements of the vector, all within one part.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    ///
    /// # Panics
    ///
    /// If the part is not in the file, or does not have all of these elements.
    pub fn read_weights(&self, part: u16, range: Range<usize>) -> Result<Vec<f32>, FileError> {
        let whole = self.parts.range(part).unwrap_or(0..0);
        assert!(
            whole.start <= range.start && range.end <= whole.end,
            "elements of the part"
        );
        // The weights are its last vector.
        let end = self.start(part) + bytes(&self.manifest, self.parts, part);
        let from_end = (whole.end - range.start) * size_of::<f32>();
        let mut file = &self.file;
        file.seek(SeekFrom::Start(end - from_end as u64)).at(&self.path)?;
        let mut weights = vec![0.0f32; range.len()];
        file.read_exact(bytemuck::cast_slice_mut(&mut weights))
            .at(&self.path)?;
        Ok(weights)
    }
}

/// Bytes of a part: its moments and its weights.
fn bytes(manifest: &Manifest, parts: Parts, part: u16) -> u64 {
    let len = parts.range(part).map_or(0, |range| range.len()) as u64;
    let slots = manifest.shared_optimizer().0.slots() as u64;
    slots * manifest.moments.bytes(len) + len * size_of::<f32>() as u64
}

/// The parts in a checkpoint.
pub struct SavedParts {
    /// The checkpoint's label.
    pub label: Label,
    parts: PartsFile,
    /// The recorded digests.
    digests: BTreeMap<u16, u64>,
}

impl SavedParts {
    /// Opens a checkpoint of a split run, and checks everything but the parts' contents.
    ///
    /// # Errors
    ///
    /// If it is not such a checkpoint.
    pub fn open(path: &Path, manifest: &Manifest) -> Result<Self, StateFileError> {
        let (mut file, label, (set, text, _)) = state_file::open(path, manifest)?;
        let recorded = |listed: &str| {
            let (part, digest) = listed.split_once(':')?;
            Some((part.parse().ok()?, u64::from_str_radix(digest, 16).ok()?))
        };
        let listed = text.split(',').filter(|listed| !listed.is_empty());
        let digests: Option<BTreeMap<u16, u64>> = listed.map(recorded).collect();
        let digests = digests
            .filter(|digests| digests.len() == set.len())
            .ok_or_else(|| StateFileError::Damaged("the digests of its parts cannot be read".into()))?;
        let start = file.stream_position().at(path)?;
        Ok(Self {
            label,
            parts: PartsFile::new(manifest, (file, path), start, &set),
            digests,
        })
    }

    /// The digest of one of them as recorded, 0 if it is none.
    pub fn digest_of(&self, part: u16) -> u64 {
        self.digests.get(&part).copied().unwrap_or(0)
    }

    /// The digest of all of them.
    pub fn digest(&self) -> Digest {
        digest_of_parts(self.digests.iter().map(|(part, digest)| (*part, *digest)))
    }

    /// Which parts they are.
    pub fn set(&self) -> PartSet {
        self.digests.keys().copied().collect()
    }

    /// Reads a part, and compares it with its digest.
    ///
    /// # Errors
    ///
    /// If it cannot be read or differs.
    ///
    /// # Panics
    ///
    /// If it is not one of these.
    pub fn read(&self, part: u16) -> Result<Moments, StateFileError> {
        let read = self.parts.read(part)?;
        match read.digest(part) == self.digests.get(&part).copied() {
            true => Ok(read),
            false => Err(StateFileError::Damaged(format!(
                "its part {part} has another digest than is recorded"
            ))),
        }
    }

    /// Reads weights of a part without a comparison.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    ///
    /// # Panics
    ///
    /// If it is not one of these, or does not have all of these elements.
    pub fn read_weights(&self, part: u16, range: Range<usize>) -> Result<Vec<f32>, StateFileError> {
        Ok(self.parts.read_weights(part, range)?)
    }
}
