//! Replays the run in a directory from its base and compares it with what was recorded.
//!
//! Rounds are compared by digest. Where a contributor's device rounds otherwise than the one that replays, digests
//! differ from there on; then states are compared at every checkpoint that is still there.

use crate::offline::replay::{Asked, Replay, ReplayError};
use crate::participant::initial;
use crate::participant::run_setup::RunSetup;
use crate::store::ledger_file::Entry;
use crate::store::run_dir::{CheckpointError, RunDir};
use crate::task_factory::TaskFactory;
use crate::trainer::{Worker, WorkerError, local_steps};
use annulus_core::id::{Digest, Round};
use annulus_core::ledger::Record;
use annulus_core::parts::Parts;
use annulus_core::shuffle::Shuffle;
use annulus_core::state::State;
use annulus_core::{Initial, Manifest};
use burn::tensor::read_sync;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Why a run could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecomputeError<E> {
    /// The directory cannot be read, or the state that the ledger begins with is not there.
    #[error(transparent)]
    Directory(#[from] CheckpointError),
    /// A round cannot be recomputed.
    #[error("round {0}: {1}")]
    Round(Round, ReplayError<E>),
    /// The ledger begins where members went on with what they alone knew.
    #[error(
        "the ledger begins after round {0}, and in this run members go on with what they alone know (rounding errors, moments \
         of local steps, or the state before the last round): replay it from the folder of a peer that was there from the \
         beginning"
    )]
    Headless(Round),
    /// The base's checkpoint is not of the ledger's lineage.
    #[error("the checkpoint of round {0} is not the one that the ledger begins with")]
    Base(Round),
}

/// One recomputed round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The round.
    pub round: Round,
    /// Whether it or one before has come to something else than was recorded.
    pub differs: bool,
}

/// States compared at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The checkpoint's round.
    pub round: Round,
    /// The largest difference of a parameter, as a share of the largest parameter.
    pub difference: f32,
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayReport {
    /// The round that it began after.
    pub base: Round,
    /// Rounds recomputed.
    pub rounds: u64,
    /// Rounds whose digest is the recorded one.
    pub exact: u64,
    /// The first round whose digest is another.
    pub first_difference: Option<Round>,
    /// The checkpoints from there on.
    pub compared: Vec<Compared>,
    /// Differences up to here are put down to rounding.
    pub tolerance: f32,
}

/// What a report comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Every round has the recorded digest.
    Exact,
    /// Digests differ, but no checkpoint by more than the tolerance; the largest difference.
    Within(f32),
    /// A checkpoint differs by more than the tolerance; the largest difference.
    Differs(f32),
    /// Digests differ, and no later checkpoint is there to say by how much.
    Unknown,
}

impl ReplayReport {
    /// What a round, or one before, came to is something else than was recorded.
    fn differs(&mut self, round: Round) {
        self.first_difference.get_or_insert(round);
    }

    /// What it comes to.
    pub fn verdict(&self) -> Verdict {
        let largest = self.compared.iter().map(|c| c.difference).reduce(f32::max);
        match (self.first_difference, largest) {
            (None, _) => Verdict::Exact,
            (Some(_), None) => Verdict::Unknown,
            (Some(_), Some(largest)) if largest <= self.tolerance => Verdict::Within(largest),
            (Some(_), Some(largest)) => Verdict::Differs(largest),
        }
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            base,
            rounds,
            exact,
            tolerance,
            ..
        } = self;
        write!(
            f,
            "{exact} of {rounds} rounds after round {base} have the recorded digest"
        )?;
        let first = self.first_difference.unwrap_or(0);
        match self.verdict() {
            Verdict::Exact => write!(f, ": the replay is exact"),
            Verdict::Within(largest) => {
                write!(
                    f,
                    "; from round {first} on they differ, parameters by at most {largest:.1e} of the largest, "
                )?;
                write!(
                    f,
                    "within the tolerance of {tolerance:.1e}: devices that round differently took part"
                )
            }
            Verdict::Differs(largest) => {
                write!(
                    f,
                    "; from round {first} on they differ, parameters by up to {largest:.1e} of the largest, "
                )?;
                write!(f, "more than the tolerance of {tolerance:.1e}")
            }
            Verdict::Unknown => {
                write!(
                    f,
                    "; from round {first} on they differ, and there is no later checkpoint to say by how much"
                )
            }
        }
    }
}

/// Recomputes the run in a folder from its ledger.
pub fn replay(
    dir: &Path,
    data: Option<&Path>,
    device: &str,
    tolerance: f32,
    factories: &[TaskFactory],
    progress: &mut dyn FnMut(&Progress),
) -> Result<ReplayReport, Box<dyn std::error::Error + Send + Sync>> {
    let dir = RunDir::open(dir)?;
    let manifest = dir.manifest();
    let shuffle = Shuffle::of(manifest);
    if manifest.split.is_some() {
        let (mut spans, drawing) = RunSetup::spans(manifest, data, device, factories)?;
        let initial = initial::drawn(&std::env::temp_dir(), &drawing, manifest.seed)?;
        let round = |replay: &mut Replay, record: &Record| {
            replay.split_round(record, |work| {
                let samples = shuffle.samples(&work.positions);
                read_sync(spans.pass(work, &samples))
            })
        };
        return Ok(recompute(&dir, tolerance, Some(initial), round, progress)?);
    }
    let mut whole = RunSetup::whole(manifest, data, device, factories)?;
    let round = |replay: &mut Replay, record: &Record| {
        let contribute = |asked: Asked<'_>| contribution(&mut *whole.worker, manifest, &shuffle, asked);
        replay.round(record, contribute)
    };
    Ok(recompute(&dir, tolerance, None, round, progress)?)
}

/// A member's contribution, made on this device.
pub(crate) fn contribution(
    worker: &mut dyn Worker,
    manifest: &Manifest,
    shuffle: &Shuffle,
    asked: Asked<'_>,
) -> Result<Vec<f32>, WorkerError> {
    let samples = shuffle.samples(&asked.positions);
    let params = asked.params.to_vec();
    let made = read_sync(async {
        match asked.local {
            None => worker.gradient(params, &samples).await,
            Some((rounds, optimizer)) => {
                let mut made = None;
                for round in &rounds {
                    let round = (round, &mut *optimizer);
                    made = Some(local_steps(worker, manifest, round, params.clone(), &samples).await?);
                }
                Ok(made.expect("at least one part of a share"))
            }
        }
    });
    made.map(|made| made.gradient)
}

/// Recomputes all rounds of the present lineage, each by `compute`. Where members hold parts of a model the run begins with these
/// `initial` weights.
pub fn recompute<E>(
    dir: &RunDir,
    tolerance: f32,
    initial: Option<Initial>,
    mut compute: impl FnMut(&mut Replay, &Record) -> Result<Digest, ReplayError<E>>,
    mut progress: impl FnMut(&Progress),
) -> Result<ReplayReport, RecomputeError<E>> {
    let (base, digest) = dir.base()?;
    if base.round > 0 && dir.manifest().is_replayed_from_the_beginning() {
        return Err(RecomputeError::Headless(base.round));
    }
    let mut loaded = dir.load(base.round)?;
    if (&loaded.head, loaded.digest) != (&base, digest) {
        return Err(RecomputeError::Base(base.round));
    }
    loaded.state.kept.initial = initial;
    let labels = labels(dir)?;
    let mut report = ReplayReport {
        base: base.round,
        rounds: 0,
        exact: 0,
        first_difference: None,
        compared: Vec::new(),
        tolerance,
    };
    let is_split = dir.manifest().split.is_some();
    let mut replay = Replay::new(dir.manifest().clone(), loaded.head, loaded.state);
    for entry in present(dir)? {
        match entry.map_err(CheckpointError::from)? {
            Entry::Base { .. } => {}
            Entry::Continued { founder } => replay.continued_by(founder),
            Entry::Round {
                record,
                digest: recorded,
            } => {
                let round = record.round;
                let failed = |error| RecomputeError::Round(round, error);
                // Of parts, headers tell what they were before the round.
                if is_split && replay.state().differing_part(&record).is_some() {
                    report.differs(round - 1);
                }
                let recomputed = compute(&mut replay, &record).map_err(failed)?;
                report.rounds += 1;
                report.exact += u64::from(recomputed == recorded);
                if recomputed != recorded {
                    report.differs(round);
                }
                let is_at_checkpoint = labels.get(&round) == Some(&replay.head().chain);
                if is_at_checkpoint && (is_split || recomputed != recorded) {
                    let theirs = dir.load(round)?.state;
                    if !has_same_parts(replay.state(), &theirs) {
                        report.differs(round);
                    }
                    if report.first_difference.is_some() {
                        let difference = difference(dir.manifest(), replay.state(), &theirs);
                        report.compared.push(Compared { round, difference });
                    }
                }
                progress(&Progress {
                    round,
                    differs: report.first_difference.is_some(),
                });
            }
        }
    }
    if let Some(first) = report.first_difference.filter(|_| is_split) {
        report.exact = first - 1 - base.round;
    }
    Ok(report)
}

/// The entries from the last base on.
fn present(
    dir: &RunDir,
) -> Result<impl Iterator<Item = Result<Entry, crate::store::ledger_file::LedgerError>>, CheckpointError> {
    let mut last = 0;
    for (i, entry) in dir.entries()?.enumerate() {
        if let Entry::Base { .. } = entry? {
            last = i;
        }
    }
    Ok(dir.entries()?.skip(last))
}

/// The lineage of each checkpoint that is whole.
fn labels(dir: &RunDir) -> Result<BTreeMap<Round, Digest>, CheckpointError> {
    let files = dir.checkpoints()?;
    Ok(files
        .iter()
        .filter_map(|file| Some((file.round, dir.label(file.round).ok()?.head.chain)))
        .collect())
}

/// Whether all parts that a member has kept are here as it has had them.
fn has_same_parts(ours: &State, theirs: &State) -> bool {
    let mut kept = theirs.kept.set().iter().collect::<Vec<u16>>().into_iter();
    kept.all(|part| ours.kept.digest(part) == theirs.kept.digest(part))
}

/// The largest difference of a parameter, as a share of the largest parameter, of those that are in `theirs`. Not finite if any
/// of them is not.
fn difference(manifest: &Manifest, ours: &State, theirs: &State) -> f32 {
    let pairs: Vec<(f32, f32)> = match (&manifest.split, Parts::of(manifest)) {
        (Some(_), Some(parts)) => {
            let ranges = theirs.kept.set().iter().filter_map(|part| parts.range(part));
            let of = |state: &State, range| state.kept.weights(manifest, range);
            let pairs = ranges.flat_map(|range| of(ours, range.clone()).into_iter().zip(of(theirs, range)));
            pairs.collect()
        }
        _ => ours
            .params
            .iter()
            .copied()
            .zip(theirs.params.iter().copied())
            .collect(),
    };
    let largest = pairs
        .iter()
        .fold(0.0f32, |max, (_, theirs)| max.max(theirs.abs()));
    let differing = pairs.iter().filter(|(a, b)| a.to_bits() != b.to_bits());
    let differences = differing.map(|(a, b)| (a - b).abs() / largest);
    differences.fold(0.0, |max, d| if d.is_nan() { f32::INFINITY } else { max.max(d) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::checkpoint::RunWriter;
    use crate::testing::{Run, Scratch, founder};
    use annulus_core::codec::Codec;
    use std::convert::Infallible;

    fn contribute(asked: Asked<'_>) -> Result<Vec<f32>, Infallible> {
        let Asked {
            params, positions, ..
        } = asked;
        let count: u64 = positions.iter().map(|r| r.end - r.start).sum();
        Ok(params
            .iter()
            .enumerate()
            .map(|(i, x)| (x - i as f32 * 0.1) * count as f32)
            .collect())
    }

    fn each<E>(
        mut contribute: impl FnMut(Asked<'_>) -> Result<Vec<f32>, E>,
    ) -> impl FnMut(&mut Replay, &Record) -> Result<Digest, ReplayError<E>> {
        move |replay, record| replay.round(record, &mut contribute)
    }

    /// A run whose states are made by a replay of its own records, from a base that is not round 0.
    fn recorded() -> (Scratch, RunDir) {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let mut run = Run::new();
        run.round();
        let mut writer = RunWriter::create(&path, &run.manifest, &run.head, &run.state).unwrap();
        let mut replay = Replay::new(run.manifest.clone(), run.head.clone(), run.state.clone());
        for round in 2..=12 {
            if round == 6 {
                run.head = writer.resume(founder(3)).unwrap();
                replay.continued_by(founder(3));
            }
            let (record, _) = run.round();
            let digest = replay.round(&record, contribute).unwrap();
            writer.append(&record, digest).unwrap();
            if round % 2 == 0 {
                writer
                    .saver()
                    .save(replay.head(), replay.state(), digest)
                    .unwrap();
            }
        }
        assert_eq!(replay.head(), &run.head);
        (scratch, writer.dir().clone())
    }

    #[test]
    fn the_same_contributions_give_every_digest() {
        let (_scratch, dir) = recorded();
        let mut seen = Vec::new();
        let report = recompute(&dir, 0.0, None, each(contribute), |p| seen.push(p.round)).unwrap();
        assert_eq!(report.verdict(), Verdict::Exact, "{report}");
        assert_eq!((report.base, report.rounds, report.exact), (1, 11, 11));
        assert_eq!(seen, (2..=12).collect::<Vec<_>>());
    }

    #[test]
    fn a_device_that_rounds_differently_is_told_from_one_that_is_wrong() {
        let (_scratch, dir) = recorded();
        let rounding = |asked: Asked<'_>| {
            let sums = contribute(asked)?;
            Ok::<_, Infallible>(sums.iter().map(|x| x * (1.0 + 1e-6)).collect())
        };
        let report = recompute(&dir, 1e-3, None, each(rounding), |_| {}).unwrap();
        assert!(
            matches!(report.verdict(), Verdict::Within(d) if d > 0.0 && d < 1e-3),
            "{report}"
        );
        assert_eq!(report.first_difference, Some(2));
        assert_eq!(
            report.compared.iter().map(|c| c.round).collect::<Vec<_>>(),
            [8, 10, 12]
        );

        let wrong = |asked: Asked<'_>| {
            let sums = contribute(asked)?;
            Ok::<_, Infallible>(sums.iter().map(|x| -x).collect())
        };
        let report = recompute(&dir, 1e-3, None, each(wrong), |_| {}).unwrap();
        assert!(matches!(report.verdict(), Verdict::Differs(_)), "{report}");
    }

    #[test]
    fn without_the_base_there_is_nothing_to_replay() {
        let (_scratch, dir) = recorded();
        std::fs::remove_file(dir.path().join("checkpoints/round-00000001.safetensors")).unwrap();
        let error = recompute(&dir, 0.0, None, each(contribute), |_| {}).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("round-00000001.safetensors does not exist"),
            "{error}"
        );
    }

    #[test]
    fn errors_that_only_members_knew_are_not_made_up() {
        let scratch = Scratch::new();
        let mut run = Run::new();
        run.manifest.codec = Codec::Int4;
        run.round();
        let path = scratch.0.join("run");
        let writer = RunWriter::create(&path, &run.manifest, &run.head, &run.state).unwrap();
        let error = recompute(writer.dir(), 0.0, None, each(contribute), |_| {}).unwrap_err();
        assert!(matches!(error, RecomputeError::Headless(1)), "{error}");
    }
}
