//! Audits a run: does the ledger count every sample exactly once, and do the checkpoints belong to it?
//!
//! The audit counts samples itself, as sets of positions, without using the ledger's own sums.

use crate::offline::replay::front;
use crate::store::ledger_file::{Entry, LedgerError, advance};
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::config::Manifest;
use annulus_core::cut::SampleRange;
use annulus_core::id::{Digest, Round};
use annulus_core::ledger::{Head, Record};
use annulus_core::saved::Point;
use annulus_core::signature::Scheme;
use std::collections::BTreeMap;
use std::ops::Range;

/// The result of an audit.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// Rounds that were checked.
    pub rounds: u64,
    /// Samples counted in total, each once.
    pub samples: u64,
    /// Samples given up.
    pub skipped: u64,
    /// Checkpoints whose round, lineage and digest are the ledger's.
    pub checkpoints: usize,
    /// Everything that is wrong; empty if the run is sound.
    pub problems: Vec<String>,
}

/// The labels of the checkpoints.
type Labels = Vec<(Round, Result<Mark, CheckpointError>)>;

/// A round, the lineage after it, and the digest of the state there.
type Mark = (Round, Digest, Digest);

/// Checks a run's ledger and the labels of its checkpoints. It does not read states.
pub fn audit(dir: &RunDir) -> Result<Audit, CheckpointError> {
    // Reads labels before the ledger, because a peer that is training saves a checkpoint only after its round is in the
    // ledger.
    let labels = labels(dir)?;
    compare(dir, labels)
}

fn labels(dir: &RunDir) -> Result<Labels, CheckpointError> {
    let mut labels = Vec::new();
    for file in dir.checkpoints()? {
        let label = dir.label(file.round);
        let is_there = || {
            dir.checkpoints()
                .map(|all| all.iter().any(|f| f.round == file.round))
        };
        if label.is_ok() || is_there()? {
            let mark = label.map(|label| (label.head.round, label.head.chain, label.digest));
            labels.push((file.round, mark));
        }
    }
    Ok(labels)
}

fn compare(dir: &RunDir, labels: Labels) -> Result<Audit, CheckpointError> {
    let manifest = dir.manifest();
    let mut audit = Audit {
        rounds: 0,
        samples: 0,
        skipped: 0,
        checkpoints: 0,
        problems: Vec::new(),
    };
    let mut marks: Vec<Mark> = Vec::new();
    let mut counted = Positions::default();
    // The positions that counted at each point that members have saved.
    let mut saved: BTreeMap<Digest, Positions> = BTreeMap::new();
    let mut head: Option<Head> = None;
    let mut state = Digest::of(&[]);
    let mut reader = dir.entries()?;
    while let Some(entry) = reader.next().transpose()? {
        let next =
            match signed(&head, &entry, manifest).and_then(|()| advance(head.clone(), &entry, manifest)) {
                Ok(next) => next,
                Err(error) => {
                    audit.problems.push(error.to_string());
                    break;
                }
            };
        match (&entry, &head) {
            (Entry::Base { head, digest }, _) => {
                counted = Positions::before(head);
                saved.clear();
                // Older checkpoints remain, since their part of the ledger does too.
                (audit.rounds, state) = (0, *digest);
            }
            (Entry::Round { record, digest }, Some(before)) => {
                audit.rounds += 1;
                state = *digest;
                let is_known = |point: &&Point| before.points.contains(point);
                if let Some(point) = next.points.iter().rfind(|point| !is_known(point)) {
                    saved.insert(point.stepped, counted.clone());
                }
                count(before, record, manifest, &mut counted, &mut audit.problems);
                if let Some(point) = next.went_back(before.stepped) {
                    let then = saved.get(&point.stepped).cloned();
                    counted = then.unwrap_or_else(|| Positions::at(point));
                }
            }
            _ => {}
        }
        marks.push((next.round, next.chain, state));
        head = Some(next);
    }
    if reader.rest() > 0 && audit.problems.is_empty() {
        audit.problems.push(format!(
            "the ledger's last {} bytes are not readable",
            reader.rest()
        ));
    }
    if let Some(head) = &head {
        (audit.samples, audit.skipped) = (head.counted(), head.skipped);
        check_sums(head, &counted, &mut audit.problems);
    }
    for (round, mark) in labels {
        match mark {
            Ok(mark) if marks.contains(&mark) => audit.checkpoints += 1,
            Ok(_) => audit
                .problems
                .push(format!("the checkpoint of round {round} is not in the ledger")),
            Err(error) => audit.problems.push(error.to_string()),
        }
    }
    Ok(audit)
}

/// Whether everybody whom an entry names has signed it.
fn signed(head: &Option<Head>, entry: &Entry, manifest: &Manifest) -> Result<(), LedgerError> {
    let (Some(head), Entry::Round { record, .. }) = (head, entry) else {
        return Ok(());
    };
    let round = record.round;
    head.check(record, manifest, Scheme::Ed25519)
        .map_err(|why| LedgerError::Record { round, why })
}

fn count(
    before: &Head,
    record: &Record,
    manifest: &Manifest,
    counted: &mut Positions,
    problems: &mut Vec<String>,
) {
    let allotment = before.allot(manifest);
    let ranges: Vec<Range<u64>> = match manifest.split {
        None => record
            .headers
            .iter()
            .flat_map(|header| {
                let member = before
                    .position(header.peer)
                    .expect("advance has checked that it is a member");
                front(allotment.ranges(member), u64::from(header.weight))
            })
            .collect(),
        // All members compute the whole batch together, or none of it counts.
        Some(_) => {
            let refused = record.headers.iter().any(|header| header.keeps.refuses);
            let counts = !refused && before.trains_record(manifest, record);
            let batch = allotment.batch.iter().filter(|_| counts);
            batch.map(|hole| hole.start..hole.end).collect()
        }
    };
    for range in ranges {
        if !counted.insert(range.clone()) {
            let (round, Range { start, end }) = (record.round, range);
            problems.push(format!(
                "round {round} counts samples {start} to {end}, some for the second time"
            ));
        }
    }
}

fn check_sums(head: &Head, counted: &Positions, problems: &mut Vec<String>) {
    let open = head.open();
    let returned: u64 = open.iter().map(|hole| hole.end - hole.start).sum();
    let total = counted.len();
    if total != head.counted() {
        problems.push(format!(
            "the ledger's head counts {} samples, its records {total}",
            head.counted()
        ));
    }
    if total + returned + head.skipped != head.cursor {
        let (cursor, skipped) = (head.cursor, head.skipped);
        problems.push(format!(
            "of {cursor} samples handed out {total} are counted, {returned} returned and {skipped} skipped"
        ));
    }
    if open.iter().any(|hole| counted.overlaps(hole.start..hole.end)) {
        problems.push("samples are counted and yet to be handed out again".into());
    }
}

/// A set of positions, as ranges that do not touch.
#[derive(Clone, Default)]
struct Positions {
    ends: BTreeMap<u64, u64>,
    /// How many positions of the set were given up, according to the base, which does not say which ones.
    given_up: u64,
}

impl Positions {
    /// The positions that a base has counted.
    fn before(head: &Head) -> Self {
        Self::all_but(head.open(), (head.cursor, head.skipped))
    }

    /// The positions that had counted at a point that members have saved, as the next base knows it.
    fn at(point: &Point) -> Self {
        Self::all_but(point.holes.iter().collect(), (point.cursor, point.skipped))
    }

    fn all_but(open: Vec<&SampleRange>, (cursor, given_up): (u64, u64)) -> Self {
        let mut positions = Self {
            given_up,
            ..Self::default()
        };
        let mut start = 0;
        for hole in open {
            positions.insert(start..hole.start);
            start = hole.end;
        }
        positions.insert(start..cursor);
        positions
    }

    fn len(&self) -> u64 {
        self.ends
            .iter()
            .map(|(start, end)| end - start)
            .sum::<u64>()
            .saturating_sub(self.given_up)
    }

    fn overlaps(&self, range: Range<u64>) -> bool {
        let before = self.ends.range(..range.end).next_back();
        range.start < range.end && before.is_some_and(|(_, end)| *end > range.start)
    }

    /// Adds a range. Returns false if some of it was already in the set.
    fn insert(&mut self, range: Range<u64>) -> bool {
        let fresh = !self.overlaps(range.clone());
        let Range { mut start, mut end } = range;
        if start == end {
            return true;
        }
        // Merges it with all ranges that it touches.
        while let Some((s, e)) = self.ends.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            let (s, e) = (*s, *e);
            self.ends.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.ends.insert(start, end);
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::checkpoint::{Keep, RunWriter};
    use crate::testing::{Run, Scratch, founder, newcomers};
    use std::path::PathBuf;

    /// A run with joins, a failure, a leave, a refused share and a restart.
    fn eventful() -> (Scratch, PathBuf, Run) {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let mut run = Run::new();
        let mut writer = RunWriter::create(&path, &run.manifest, &run.head, &run.state).unwrap();
        for round in 1..=12 {
            let (record, digest) = run.round_with(|record| match round {
                1 => record.headers[0].content.ready = newcomers([2, 3, 4]),
                3 => (record.attempt, _) = (1, record.headers.remove(1)),
                5 => record.headers[1].content.leaving = true,
                7 => record.headers[0].content.weight /= 2,
                _ => {}
            });
            writer.append(&record, digest).unwrap();
            if round == 9 {
                run.head = writer.resume(founder(4)).unwrap();
            }
            if round % 4 == 0 {
                writer.saver().save(&run.head, &run.state, digest).unwrap();
            }
        }
        (scratch, path, run)
    }

    #[test]
    fn a_run_with_joins_failures_and_a_restart_counts_every_sample_once() {
        let (_scratch, path, run) = eventful();
        let audit = audit(&RunDir::open(&path).unwrap()).unwrap();
        assert_eq!(audit.problems, Vec::<String>::new());
        assert_eq!(
            (audit.rounds, audit.samples, audit.checkpoints),
            (12, run.head.samples, 4)
        );
        assert!(run.head.samples < 12 * 50 && run.head.samples > 11 * 50);
    }

    #[test]
    fn a_checkpoint_of_another_history_is_a_problem() {
        let (_scratch, path, mut run) = eventful();
        let other = RunWriter::open(&path).unwrap().0;
        run.head.chain = Digest::of(b"elsewhere");
        other
            .saver()
            .save(&run.head, &run.state, run.state.digest())
            .unwrap();
        let audit = audit(&RunDir::open(&path).unwrap()).unwrap();
        assert_eq!(
            audit.problems,
            ["the checkpoint of round 12 is not in the ledger"]
        );
    }

    #[test]
    fn a_peer_at_work_may_save_and_prune_while_its_folder_is_looked_at() {
        let (_scratch, path, mut run) = eventful();
        let mut writer = RunWriter::open(&path).unwrap().0;
        let dir = RunDir::open(&path).unwrap();
        let found = labels(&dir).unwrap();
        let (record, digest) = run.round();
        writer.append(&record, digest).unwrap();
        writer.saver().save(&run.head, &run.state, digest).unwrap();
        let is_left = |round: &Round| dir.checkpoint_path(*round).exists();
        assert!(
            found.iter().any(|(round, _)| !is_left(round)),
            "the oldest is pruned"
        );
        let then = compare(&dir, found).unwrap();
        assert_eq!((then.problems, then.checkpoints), (Vec::new(), 4));
        assert_eq!(audit(&dir).unwrap().problems, Vec::<String>::new());
    }

    #[test]
    fn checkpoints_from_before_a_rejoin_are_in_the_ledger_too() {
        let (_scratch, path, mut run) = eventful();
        let mut writer = RunWriter::open(&path).unwrap().0;
        // The others went on without this peer.
        for _ in 0..3 {
            run.round();
        }
        writer.rebase(Keep::default(), &run.head, &run.state).unwrap();
        let (record, digest) = run.round();
        writer.append(&record, digest).unwrap();
        let audit = audit(&RunDir::open(&path).unwrap()).unwrap();
        assert_eq!(audit.problems, Vec::<String>::new());
        // Three earlier ones, and the new base.
        assert_eq!((audit.rounds, audit.checkpoints), (1, 4));
    }

    #[test]
    fn sets_of_positions_notice_what_is_there_already() {
        let mut set = Positions::default();
        assert!(set.insert(10..20) && set.insert(30..40) && set.insert(20..30) && set.insert(0..0));
        assert_eq!((set.len(), set.ends.len()), (30, 1));
        assert!(!set.insert(39..50) && !set.insert(5..11) && !set.insert(0..100));
        assert_eq!((set.len(), set.ends.len()), (100, 1));
    }

    #[test]
    fn sums_that_do_not_add_up_are_problems() {
        let mut run = Run::new();
        run.round();
        let counted = Positions::before(&run.head);
        let problems = |change: &dyn Fn(&mut Head)| {
            let mut head = run.head.clone();
            change(&mut head);
            let mut problems = Vec::new();
            check_sums(&head, &counted, &mut problems);
            problems.len()
        };
        assert_eq!(problems(&|_| {}), 0);
        assert!(problems(&|head| head.samples += 1) > 0);
        assert!(problems(&|head| head.cursor += 1) > 0);
        assert!(problems(&|head| head.skipped += 1) > 0);
    }
}
