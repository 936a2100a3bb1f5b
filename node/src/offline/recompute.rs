//! Replays the run in a folder from its base and compares it with the recording.
//!
//! Rounds are compared by digest. If a contributor's device rounds differently from the replaying one, all later
//! digests differ; then states are compared at every checkpoint that still exists.

use crate::offline::history::{labels, present};
use crate::offline::replay::{Asked, Replay, ReplayError};
use crate::offline::report::{Difference, Progress, ReplayReport};
use crate::offline::split_replay;
use crate::participant::run_setup::{Means, RunSetup};
use crate::store::ledger_file::Entry;
use crate::store::run_dir::{CheckpointError, RunDir};
use crate::task_factory::TaskFactory;
use crate::trainer::{Worker, WorkerError, local_steps};
use annulus_core::Manifest;
use annulus_core::id::{Digest, Round};
use annulus_core::ledger::Record;
use annulus_core::shuffle::Shuffle;
use burn::tensor::read_sync;
use std::path::Path;

/// Why a run could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecomputeError<E> {
    /// The folder cannot be read, or the state at the ledger's base is missing.
    #[error(transparent)]
    Directory(#[from] CheckpointError),
    /// A round cannot be recomputed.
    #[error("round {0}: {1}")]
    Round(Round, ReplayError<E>),
    /// The ledger begins at a round from which members carried on state that only they knew.
    #[error(
        "the ledger begins after round {0}, and in this run members carry on what only they know (rounding errors, or moments of \
         local steps): replay it from the folder of a peer that was there from the beginning"
    )]
    Headless(Round),
    /// The base's checkpoint is not of the ledger's lineage.
    #[error("the checkpoint of round {0} is not the one that the ledger begins with")]
    Base(Round),
}

/// Recomputes the run in a folder from its ledger.
pub fn replay(
    dir: &Path,
    given: Means<'_>,
    tolerance: f32,
    factories: &[TaskFactory],
    progress: &mut dyn FnMut(&Progress),
) -> Result<ReplayReport, Box<dyn std::error::Error + Send + Sync>> {
    let dir = RunDir::open(dir)?;
    let manifest = dir.manifest();
    if manifest.split.is_some() {
        return split_replay::replay(&dir, given, tolerance, factories, progress);
    }
    let shuffle = Shuffle::of(manifest);
    let mut whole = RunSetup::whole(manifest, given, factories)?;
    let draws = whole.worker.draws();
    let round = |replay: &mut Replay, record: &Record| {
        let contribute = |asked: Asked<'_>| contribution(&mut *whole.worker, manifest, &shuffle, asked);
        replay.round(record, contribute)
    };
    let report = recompute(&dir, tolerance, round, progress)?;
    Ok(ReplayReport { draws, ..report })
}

/// Recomputes a member's contribution on this device.
pub(crate) fn contribution(
    worker: &mut dyn Worker,
    manifest: &Manifest,
    shuffle: &Shuffle,
    asked: Asked<'_>,
) -> Result<Vec<f32>, WorkerError> {
    let samples = shuffle.draws(&asked.positions);
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

/// Recomputes all rounds of the present lineage with `compute`.
pub fn recompute<E>(
    dir: &RunDir,
    tolerance: f32,
    mut compute: impl FnMut(&mut Replay, &Record) -> Result<Digest, ReplayError<E>>,
    mut progress: impl FnMut(&Progress),
) -> Result<ReplayReport, RecomputeError<E>> {
    let (base, digest) = dir.base()?;
    if base.round > 0 && dir.manifest().is_replayed_from_the_beginning() {
        return Err(RecomputeError::Headless(base.round));
    }
    let loaded = dir.load(base.round)?;
    if (&loaded.head, loaded.digest) != (&base, digest) {
        return Err(RecomputeError::Base(base.round));
    }
    let labels = labels(dir)?;
    let mut report = ReplayReport::new(base.round, tolerance);
    let mut replay = Replay::new(dir.manifest().clone(), loaded.head, loaded.state);
    for entry in present(dir)? {
        match entry.map_err(CheckpointError::from)? {
            Entry::Base { .. } => {}
            Entry::Continued { founder } => replay.continued_by(*founder),
            Entry::Round {
                record,
                digest: recorded,
            } => {
                let round = record.round;
                let failed = |error| RecomputeError::Round(round, error);
                let recomputed = compute(&mut replay, &record).map_err(failed)?;
                report.rounds += 1;
                report.exact += u64::from(recomputed == recorded);
                if recomputed != recorded {
                    report.differs(round);
                    if labels.get(&round) == Some(&replay.head().chain) {
                        let mut difference = Difference::default();
                        difference.take(&replay.state().params, &dir.load(round)?.state.params);
                        report.compare(round, difference);
                    }
                }
                progress(&Progress {
                    round,
                    differs: report.first_difference.is_some(),
                });
            }
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::report::Verdict;
    use crate::store::checkpoint::RunWriter;
    use crate::testing::{Run, Scratch, founder};
    use annulus_core::codec::Codec;
    use annulus_core::shuffle;
    use std::convert::Infallible;

    fn contribute(asked: Asked<'_>) -> Result<Vec<f32>, Infallible> {
        let Asked {
            params, positions, ..
        } = asked;
        let count = shuffle::count(&positions);
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

    /// A run whose states come from a replay of its own records, with a base after round 0.
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
        let report = recompute(&dir, 0.0, each(contribute), |p| seen.push(p.round)).unwrap();
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
        let report = recompute(&dir, 1e-3, each(rounding), |_| {}).unwrap();
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
        let report = recompute(&dir, 1e-3, each(wrong), |_| {}).unwrap();
        assert!(matches!(report.verdict(), Verdict::Differs(_)), "{report}");
    }

    #[test]
    fn without_the_base_there_is_nothing_to_replay() {
        let (_scratch, dir) = recorded();
        std::fs::remove_file(dir.path().join("checkpoints/round-00000001.safetensors")).unwrap();
        let error = recompute(&dir, 0.0, each(contribute), |_| {}).unwrap_err();
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
        let error = recompute(writer.dir(), 0.0, each(contribute), |_| {}).unwrap_err();
        assert!(matches!(error, RecomputeError::Headless(1)), "{error}");
    }
}
