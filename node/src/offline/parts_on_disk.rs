//! The newest weights of a run whose model is split over its members. They stay on the disk: each part is read from a
//! checkpoint that has it when it is needed.

use crate::offline::newest;
use crate::store::parts_file::SavedParts;
use crate::store::run_dir::{CheckpointError, RunDir, state_error};
use crate::store::state_file::{Label, StateFileError};
use crate::trainer::span::Weights;
use annulus_core::Manifest;
use annulus_core::moments::digest_of_parts;
use annulus_core::parts::{PartSet, Parts};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All weights of a run, on the disk.
pub struct PartsOnDisk {
    /// The run.
    pub manifest: Manifest,
    /// The label of the first checkpoint.
    pub label: Label,
    /// Checkpoints that were damaged and skipped.
    pub warnings: Vec<String>,
    parts: Parts,
    files: Vec<(PathBuf, SavedParts)>,
    places: Vec<Place>,
}

/// Where a part lies.
#[derive(Clone, Copy)]
struct Place {
    file: usize,
    /// The hash of its weights when they were compared with the part's digest.
    hash: blake3::Hash,
}

impl PartsOnDisk {
    /// Finds the newest step of which these folders have all parts together, and compares each part with its digest.
    ///
    /// # Errors
    ///
    /// If there is no such step.
    pub fn newest(dir: &Path, others: &[PathBuf]) -> Result<Self, CheckpointError> {
        let dirs = newest::folders(dir, others)?;
        let all = Parts::of_len(dirs[0].manifest().layout.len).all();
        let mut lacking = all;
        for paths in newest::together(&dirs)? {
            match Self::of(&dirs[0], paths)? {
                Ok(found) => return Ok(found),
                Err(lacks) if lacks.len() < lacking.len() => lacking = lacks,
                Err(_) => {}
            }
        }
        Err(CheckpointError::Parts(
            dir.to_path_buf(),
            lacking.len(),
            all.len(),
        ))
    }

    /// The parts in these checkpoints, or the set of missing ones.
    fn of(dir: &RunDir, paths: Vec<PathBuf>) -> Result<Result<Self, PartSet>, CheckpointError> {
        let manifest = dir.manifest();
        let parts = Parts::of_len(manifest.layout.len);
        let (mut lacking, mut warnings) = (parts.all(), Vec::new());
        let (mut files, mut places) = (Vec::new(), vec![None; parts.count()]);
        for path in paths {
            let mut pass_over =
                |error| warnings.push(format!("passed over {}", state_error(path.clone(), error)));
            let saved = match SavedParts::open(&path, manifest) {
                Ok(saved) => saved,
                Err(error) => {
                    pass_over(error);
                    continue;
                }
            };
            for part in saved.set().and(&lacking).iter() {
                let range = parts.range(part).unwrap_or(0..0);
                match saved.read(part) {
                    Ok(kept) => {
                        let hash = hash(&kept.weights(manifest, range));
                        places[usize::from(part)] = Some(Place {
                            file: files.len(),
                            hash,
                        });
                        lacking.remove(part);
                    }
                    Err(error) => pass_over(error),
                }
            }
            files.push((path, saved));
        }
        let (Some((_, first)), true) = (files.first(), lacking.is_empty()) else {
            return Ok(Err(lacking));
        };
        let places: Vec<Place> = places.into_iter().flatten().collect();
        let digest = |(part, place): (u16, &Place)| (part, files[place.file].1.digest_of(part));
        let label = Label {
            digest: digest_of_parts((0..).zip(&places).map(digest)),
            ..first.label.clone()
        };
        Ok(Ok(Self {
            manifest: manifest.clone(),
            label,
            warnings,
            parts,
            places,
            files,
        }))
    }

    /// Reads the weights of some elements.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or have changed since they were compared with their digests.
    pub fn weights(&self, range: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        let mut weights = Vec::with_capacity(range.len());
        while weights.len() < range.len() {
            let start = range.start + weights.len();
            let part = self.parts.part_of(start);
            let whole = self.parts.range(part).expect("an element of the model");
            let read = self.part(part)?;
            let end = range.end.min(whole.end);
            weights.extend_from_slice(&read[start - whole.start..end - whole.start]);
        }
        Ok(weights)
    }

    /// Reads the weights of a part.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or have changed since.
    pub fn part(&self, part: u16) -> Result<Vec<f32>, CheckpointError> {
        let Place { file, hash: before } = self.places[usize::from(part)];
        let (path, saved) = &self.files[file];
        let failed = |error| state_error(path.clone(), error);
        let range = self.parts.range(part).unwrap_or(0..0);
        let weights = saved.read_weights(part, range).map_err(failed)?;
        match hash(&weights) == before {
            true => Ok(weights),
            false => Err(failed(StateFileError::Damaged(format!(
                "its part {part} has changed since it was compared with its digest"
            )))),
        }
    }

    /// A function that reads the weights of some elements, for callers that do not know where these are.
    pub fn reader(self: Arc<Self>) -> Weights {
        Box::new(move |range| Ok(self.weights(range)?))
    }

    /// The numbers of all parts, in order.
    pub fn parts(&self) -> impl Iterator<Item = u16> + use<> {
        self.parts.iter()
    }

    /// Reads all weights, for callers that need the whole model.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn all(&self) -> Result<Vec<f32>, CheckpointError> {
        self.weights(0..self.manifest.layout.len)
    }
}

fn hash(weights: &[f32]) -> blake3::Hash {
    blake3::hash(bytemuck::cast_slice(weights))
}
