//! Replays a run whose model is split over its members, in one process with room for only some of its steps. It loads a
//! few steps, computes all microbatches with them, and drops them before it loads the next. Weights, moments, lanes and
//! intermediate values lie in unnamed files.
//!
//! It compares each part with the digests in the headers of the next round, and with the checkpoints that exist.

use crate::offline::history::{labels, present};
use crate::offline::report::{Difference, Progress, ReplayReport};
use crate::participant::run_setup::{Means, RunSetup};
use crate::participant::{initial, memory, split};
use crate::store::ledger_file::{Entry, advance};
use crate::store::parts_file::{PartsFile, SavedParts};
use crate::store::run_dir::{CheckpointError, RunDir, state_error};
use crate::task_factory::{Drawing, TaskFactory};
use crate::trainer::WorkerError;
use crate::trainer::span::{self, MakeSpan, SpanWorker};
use annulus_core::check::RecordError;
use annulus_core::id::Round;
use annulus_core::interface::{Pass, SpanDone};
use annulus_core::ledger::Record;
use annulus_core::moments::Moments;
use annulus_core::parts::{PartSet, Parts};
use annulus_core::recompute::{RecomputeError, Workshop, recompute};
use annulus_core::shuffle::Shuffle;
use annulus_core::signature::Scheme;
use annulus_core::{Manifest, State};
use annulus_net::files::{At, FileError};
use burn::tensor::read_sync;
use std::env;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

/// Why such a run could not be replayed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Directory(#[from] CheckpointError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("round {0}: {1}")]
    Round(Round, RecomputeError<Failure>),
    #[error("round {0}: the ledger cannot be replayed: {1}")]
    Record(Round, RecordError),
    #[error(
        "the ledger begins after round {0}, and this folder lacks parts of the model as of then: replay the run from the folder of a \
         peer that was there from the beginning"
    )]
    Headless(Round),
    #[error("the checkpoint of round {0} is not the one that the ledger begins with")]
    Base(Round),
    #[error(transparent)]
    Room(#[from] Box<crate::participant::error::Error>),
}

/// What failed on this machine.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("a contribution could not be recomputed: {0}")]
    Worker(#[from] WorkerError),
}

/// Recomputes the run in a folder from its ledger.
pub fn replay(
    dir: &RunDir,
    given: Means<'_>,
    tolerance: f32,
    factories: &[TaskFactory],
    progress: &mut dyn FnMut(&Progress),
) -> Result<ReplayReport, Box<dyn std::error::Error + Send + Sync>> {
    memory::keep_within(given.memory);
    let manifest = dir.manifest();
    let split = manifest.split.as_ref().expect("the model is split");
    // Checks the room first, before anything is drawn.
    split::runs_to_replay(split, given.memory)?;
    let (make, drawing) = RunSetup::steps(manifest, given, factories)?;
    let on_disk = OnDisk::begin(dir, &drawing, make)?;
    Ok(all_rounds(dir, on_disk, given.memory, tolerance, progress)?)
}

fn all_rounds(
    dir: &RunDir,
    mut on_disk: OnDisk,
    memory: Option<u64>,
    tolerance: f32,
    progress: &mut dyn FnMut(&Progress),
) -> Result<ReplayReport, Error> {
    let manifest = dir.manifest();
    let (mut head, _) = dir.base()?;
    let (mut cut, mut runs) = (Vec::new(), Vec::new());
    let undone = undone(dir)?;
    let mut report = ReplayReport::new(head.round, tolerance);
    // The ledger is all that members share.
    let nothing = State::new(Vec::new(), manifest).digest();
    let labels = labels(dir)?;
    for entry in present(dir)? {
        match entry.map_err(CheckpointError::from)? {
            Entry::Base { .. } => {}
            Entry::Continued { founder } => head = head.continued_by(*founder),
            Entry::Round {
                record,
                digest: recorded,
            } => {
                let round = record.round;
                // Headers report the parts as they were before the round.
                let stands = !undone.iter().any(|rounds| rounds.contains(&round));
                if stands && !on_disk.is_as_told(&record) {
                    report.differs(round - 1);
                }
                let checked = head.check(&record, manifest, Scheme::Ed25519);
                checked.map_err(|why| Error::Record(round, why))?;
                if stands {
                    // Each run of steps lies within a span, and the model may have been cut anew.
                    if cut != head.spans {
                        let split = head.split(manifest).expect("the model is split");
                        runs = split::runs_to_replay(&split, memory).map_err(Box::new)?;
                        cut.clone_from(&head.spans);
                    }
                    let done = recompute((manifest, &head, &record), &runs, &mut on_disk);
                    done.map_err(|error| Error::Round(round, error))?;
                }
                head.apply(&record, manifest);
                report.rounds += 1;
                if recorded != nothing {
                    report.differs(round);
                }
                if stands && labels.get(&round) == Some(&head.chain) {
                    on_disk.compare(dir, round, &mut report)?;
                }
                progress(&Progress {
                    round,
                    differs: report.first_difference.is_some(),
                });
            }
        }
    }
    report.exact = match report.first_difference {
        None => report.rounds,
        Some(first) => first - 1 - report.base,
    };
    Ok(report)
}

/// Rounds that were undone because the run went back to an earlier one: from the round after that, up to the one that
/// went back. The state stays what it was before them, so there is nothing to compute.
fn undone(dir: &RunDir) -> Result<Vec<RangeInclusive<Round>>, Error> {
    let manifest = dir.manifest();
    let (mut head, _) = dir.base()?;
    let mut undone = Vec::new();
    for entry in present(dir)? {
        let entry = entry.map_err(CheckpointError::from)?;
        let stepped = head.stepped;
        head = advance(Some(head), &entry, manifest).map_err(CheckpointError::from)?;
        if let (Entry::Round { .. }, Some(point)) = (&entry, head.went_back(stepped)) {
            undone.push(point.round + 1..=head.round);
        }
    }
    Ok(undone)
}

/// The worker, and what it keeps in files.
struct OnDisk {
    parts: PartsFile,
    /// The digests of all parts, as they are in the file.
    digests: Vec<u64>,
    /// Intermediate values.
    others: File,
    folder: PathBuf,
    make: Box<MakeSpan>,
    /// The worker of the steps that are in memory.
    worker: Option<Box<dyn SpanWorker>>,
    shuffle: Shuffle,
}

impl OnDisk {
    /// All parts as they are at the ledger's base.
    fn begin(dir: &RunDir, drawing: &Drawing, make: Box<MakeSpan>) -> Result<Self, Error> {
        let (manifest, folder) = (dir.manifest(), env::temp_dir());
        let (base, digest) = dir.base()?;
        let saved = saved(dir, base.round)?;
        if (&saved.label.head, saved.label.digest) != (&base, digest) {
            return Err(Error::Base(base.round));
        }
        let mut on_disk = Self {
            parts: PartsFile::scratch(&folder, manifest)?,
            digests: Vec::new(),
            others: tempfile::tempfile_in(&folder).at(&folder)?,
            make,
            worker: None,
            shuffle: Shuffle::of(manifest),
            folder,
        };
        let initial = initial::drawn(&on_disk.folder, drawing, manifest.seed)?;
        for part in Parts::of_len(manifest.layout.len).iter() {
            let begun = if saved.set().contains(part) {
                let read = saved.read(part);
                read.map_err(|error| state_error(dir.checkpoint_path(base.round), error))?
            } else if base.untrained.contains(part) {
                begun(manifest, &initial, part)
            } else {
                return Err(Error::Headless(base.round));
            };
            on_disk.digests.push(begun.digest(part).unwrap_or(0));
            on_disk.parts.write(part, &begun)?;
        }
        Ok(on_disk)
    }

    /// Whether the digests in members' headers are those of the file.
    fn is_as_told(&self, record: &Record) -> bool {
        let mut told = record.headers.iter().flat_map(|header| {
            let kept = header.keeps.kept.iter();
            kept.map(|part| (part, header.keeps.digest(part)))
        });
        told.all(|(part, digest)| digest == self.digests.get(usize::from(part)).copied())
    }

    /// Compares all parts of a checkpoint with those in the file.
    fn compare(&self, dir: &RunDir, round: Round, report: &mut ReplayReport) -> Result<(), Error> {
        let theirs = saved(dir, round)?;
        let parts = Parts::of_len(dir.manifest().layout.len);
        let mut difference = Difference::default();
        for part in theirs.set().iter() {
            let read = theirs.read(part);
            let read = read.map_err(|error| state_error(dir.checkpoint_path(round), error))?;
            if read.digest(part) != self.digests.get(usize::from(part)).copied() {
                report.differs(round);
            }
            let range = parts.range(part).unwrap_or(0..0);
            let ours = self.parts.read_weights(part, range.clone())?;
            difference.take(&ours, &read.weights(dir.manifest(), range));
        }
        if report.first_difference.is_some() {
            report.compare(round, difference);
        }
        Ok(())
    }

    fn seek(&mut self, place: usize) -> Result<(), FileError> {
        let place = SeekFrom::Start((place * size_of::<f32>()) as u64);
        self.others.seek(place).at(&self.folder)?;
        Ok(())
    }
}

/// The parts in a checkpoint.
fn saved(dir: &RunDir, round: Round) -> Result<SavedParts, CheckpointError> {
    let path = dir.checkpoint_path(round);
    SavedParts::open(&path, dir.manifest()).map_err(|error| state_error(path, error))
}

/// A part before the first step.
fn begun(manifest: &Manifest, initial: &annulus_core::Initial, part: u16) -> Moments {
    let mut begun = Moments::default();
    begun.initial = Some(initial.clone());
    begun.begin(manifest, &PartSet::from_iter([part]));
    begun
}

impl Workshop for OnDisk {
    type Error = Failure;

    fn pass(&mut self, steps: Range<usize>, mut pass: Pass) -> Result<SpanDone, Failure> {
        let samples = self.shuffle.draws(&pass.positions);
        if let Some(weights) = pass.weights.take() {
            // Drops the old steps before the new ones are loaded.
            self.worker = None;
            let worker = self.worker.insert((self.make)(steps)?);
            worker.load(weights)?;
        }
        let worker = self.worker.as_mut().expect("weights come with the first pass");
        Ok(read_sync(span::pass(&mut **worker, pass, &samples))?)
    }

    fn weights(&mut self, range: Range<usize>) -> Result<Vec<f32>, Failure> {
        Ok(self.parts.weights(range)?)
    }

    fn part(&mut self, part: u16) -> Result<Moments, Failure> {
        // Stepping parts needs no model.
        self.worker = None;
        Ok(self.parts.read(part)?)
    }

    fn put_part(&mut self, part: u16, stepped: Moments) -> Result<(), Failure> {
        self.digests[usize::from(part)] = stepped.digest(part).unwrap_or(0);
        Ok(self.parts.write(part, &stepped)?)
    }

    fn take_up(&mut self, place: Range<usize>) -> Result<Vec<f32>, Failure> {
        self.seek(place.start)?;
        let mut values = vec![0.0f32; place.len()];
        let read = self.others.read_exact(bytemuck::cast_slice_mut(&mut values));
        read.at(&self.folder)?;
        Ok(values)
    }

    fn lay_down(&mut self, place: usize, values: &[f32]) -> Result<(), Failure> {
        self.seek(place)?;
        let written = self.others.write_all(bytemuck::cast_slice(values));
        Ok(written.at(&self.folder)?)
    }
}
