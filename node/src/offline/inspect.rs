//! Summarizes a run from its folder: rounds, samples, who took part, and what is saved.
//!
//! It only reads, and works while a process trains in the folder.

use crate::net::hello::name_of;
use crate::participant::event_translator::standing_aside;
use crate::store::evals::{self, Evaluated};
use crate::store::ledger_file::{Entry, advance};
use crate::store::run_dir::{CheckpointError, CheckpointFile, RunDir};
use annulus_core::Manifest;
use annulus_core::id::{PeerId, Round};
use annulus_core::ledger::{Head, Header, Member, Record};
use annulus_core::moments::digest_of_parts;
use annulus_core::parts::Parts;
use annulus_core::signature::Signed;
use serde::Serialize;
use std::collections::BTreeMap;

mod text;

/// A summary of a run, and details. Totals cover the whole run, rows only what this ledger holds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The run's name in full.
    pub run: String,
    /// What is trained, in words; empty: its founder did not say.
    pub title: String,
    /// What for and by whom, likewise.
    pub about: String,
    /// Name of the task.
    pub task: String,
    /// Committed rounds.
    pub rounds: Round,
    /// Optimizer steps.
    pub steps: u64,
    /// Samples counted.
    pub samples: u64,
    /// Samples after which the run ends.
    pub target: u64,
    /// Samples given up because two members got results that were not finite.
    pub skipped: u64,
    /// Samples to be handed out again.
    pub returned: u64,
    /// Whether the run is complete.
    pub finished: bool,
    /// Whether most members saw no gain any more before its last sample.
    pub stopped_early: bool,
    /// The round after which this ledger begins.
    pub base: Round,
    /// Members of the next round in ring order.
    pub members: Vec<String>,
    /// What each member keeps of the optimizer's vectors, in the same order. Empty if each keeps all.
    pub keeps: Vec<Keeps>,
    /// How many steps each span has, if the model is split.
    pub cut: Vec<u16>,
    /// How the members changed.
    pub changes: Vec<Change>,
    /// One row per round.
    pub table: Vec<Row>,
    /// How peers call themselves, by their names in full.
    pub names: BTreeMap<String, String>,
    /// What each peer did, by name.
    pub totals: Vec<Total>,
    /// The results of evaluations.
    pub evals: Vec<Evaluated>,
    /// The saved states.
    pub checkpoints: Vec<Saved>,
    /// What could not be read.
    pub warnings: Vec<String>,
}

/// What a member keeps of the optimizer's vectors, according to the ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Keeps {
    /// Its name in full.
    pub peer: String,
    /// Parts that it keeps.
    pub parts: usize,
    /// Parts that it fetches.
    pub learns: usize,
    /// How many parts there are.
    pub of: usize,
    /// If the model is split: the spans that it holds, counted from 1.
    pub spans: Vec<usize>,
}

/// A member came or went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The round after which it happened.
    pub round: Round,
    /// Its name in full.
    pub peer: String,
    /// How.
    pub how: How,
    /// Why, of one that stands aside.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// How a member came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// It was a member where this ledger begins.
    Present,
    /// It caught up and entered.
    Joined,
    /// The run would be slower with it, and it stands aside.
    Aside,
    /// It said so and left.
    Left,
    /// It did not answer.
    Failed,
    /// It went on alone.
    Continued,
}

/// One committed round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its number.
    pub round: Round,
    /// Which attempt succeeded, from 0.
    pub attempt: u32,
    /// The contributors and their samples, in ring order.
    pub contributors: Vec<Contributor>,
    /// All samples of the round.
    pub samples: u64,
    /// Mean loss; none without samples.
    pub loss: Option<f32>,
    /// The digest of the state after it, in full. Of a split model that of all its parts, which the next round tells.
    pub digest: Option<String>,
}

/// A contributor of a round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contributor {
    /// Its name in full.
    pub peer: String,
    /// Its samples.
    pub weight: u32,
}

/// What one peer did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Total {
    /// Its name in full.
    pub peer: String,
    /// Rounds that it contributed to.
    pub rounds: u64,
    /// Samples that it contributed.
    pub samples: u64,
    /// Seconds for which it computed.
    pub compute_seconds: f64,
}

/// A checkpoint's file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saved {
    /// Its round.
    pub round: Round,
    /// Its size.
    pub bytes: u64,
    /// The digest of the state as recorded, if the file is complete.
    pub digest: Option<String>,
}

/// Reads everything in a run's folder except the states.
pub fn inspect(dir: &RunDir) -> Result<Summary, CheckpointError> {
    let manifest = dir.manifest();
    let mut reader = dir.entries()?;
    let mut head: Option<Head> = None;
    let (mut changes, mut table) = (Vec::new(), Vec::new());
    let mut totals: BTreeMap<PeerId, Total> = BTreeMap::new();
    let (mut names, mut called) = (BTreeMap::new(), BTreeMap::new());
    let (mut base, mut warnings) = (0, Vec::new());
    while let Some(entry) = reader.next().transpose()? {
        let next = advance(head.clone(), &entry, manifest)?;
        let named = |member: &Member| Some((member.peer, name_of(&member.contact)?));
        called.extend(next.members.iter().filter_map(named));
        match &entry {
            Entry::Base { head, .. } => {
                (base, changes, table) = (head.round, Vec::new(), Vec::new());
                totals.clear();
                changes.extend(
                    head.members
                        .iter()
                        .map(|m| change(head.round, m.peer, How::Present)),
                );
            }
            Entry::Round { record, digest } => {
                let before = head
                    .as_ref()
                    .expect("a round follows a base, as advance has checked");
                changes.extend(changes_of(before, &next, record));
                let digest = manifest.split.is_none().then(|| digest.to_hex());
                if let (Some(last), None) = (table.last_mut(), &digest) {
                    let last: &mut Row = last;
                    last.digest = digest_before(record, manifest);
                }
                table.push(row(record, digest, &mut names));
                add_up(&mut totals, record);
                if let Some(point) = next.went_back(before.stepped) {
                    warnings.push(format!(
                        "in round {} the run went back to what it was after round {}: {} samples were computed again",
                        record.round,
                        point.round,
                        next.undone - before.undone
                    ));
                }
            }
            Entry::Continued { founder } => {
                changes.push(change(next.round, founder.member.peer, How::Continued));
            }
        }
        head = Some(next);
    }
    if reader.rest() > 0 {
        warnings.push(format!(
            "the ledger's last {} bytes are not readable",
            reader.rest()
        ));
    }
    let head = head.ok_or_else(|| CheckpointError::NoRun(dir.path().to_path_buf()))?;
    let checkpoints = dir
        .checkpoints()?
        .iter()
        .map(|file| saved(dir, file, &mut warnings))
        .collect();
    Ok(Summary {
        run: manifest.run_id().to_hex(),
        title: manifest.title.clone(),
        about: manifest.about.clone(),
        task: manifest.task.clone(),
        rounds: head.round,
        steps: head.steps,
        samples: head.counted(),
        target: manifest.target.get(),
        skipped: head.skipped,
        returned: head.open().iter().map(|hole| hole.end - hole.start).sum(),
        finished: head.finished(manifest),
        stopped_early: head.stopped,
        base,
        members: head.members.iter().map(|m| m.peer.to_hex()).collect(),
        keeps: keeps(&head, manifest),
        cut: head.spans.iter().map(|steps| steps.get()).collect(),
        changes,
        table,
        names: called
            .into_iter()
            .map(|(peer, name)| (peer.to_hex(), name))
            .collect(),
        totals: totals.into_values().collect(),
        evals: evals::read(dir.path())?,
        checkpoints,
        warnings,
    })
}

/// A round's mean loss, and the samples counted after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The round.
    pub round: Round,
    /// Samples of the run counted after it.
    pub samples: u64,
    /// Mean loss of its own samples; none without any.
    pub loss: Option<f32>,
}

/// The losses of all rounds that the ledger has ever held, by round, including those before this peer restarted. If two
/// lineages have a round, the later entry counts.
pub fn losses(dir: &RunDir) -> Result<Vec<Loss>, CheckpointError> {
    let mut reader = dir.entries()?;
    let mut head: Option<Head> = None;
    let mut rounds = BTreeMap::new();
    while let Some(entry) = reader.next().transpose()? {
        let next = advance(head, &entry, dir.manifest())?;
        if let Entry::Round { record, .. } = &entry {
            let loss = Loss {
                round: record.round,
                samples: next.samples,
                loss: (record.weight() > 0).then(|| record.loss()),
            };
            rounds.insert(record.round, loss);
        }
        head = Some(next);
    }
    Ok(rounds.into_values().collect())
}

fn keeps(head: &Head, manifest: &Manifest) -> Vec<Keeps> {
    let Some(parts) = Parts::of(manifest) else {
        return Vec::new();
    };
    let needs = head
        .split(manifest)
        .map_or(Vec::new(), |split| split.needs(parts));
    let of = |member: &Member| {
        let holds = (0..needs.len()).filter(|span| member.keeper.holds(*span, &needs));
        Keeps {
            peer: member.peer.to_hex(),
            parts: member.keeper.kept.len(),
            learns: member.keeper.learns.len(),
            of: parts.count(),
            spans: holds.map(|span| span + 1).collect(),
        }
    };
    head.members.iter().map(of).collect()
}

fn change(round: Round, peer: PeerId, how: How) -> Change {
    Change {
        round,
        peer: peer.to_hex(),
        how,
        why: String::new(),
    }
}

fn changes_of(before: &Head, after: &Head, record: &Record) -> Vec<Change> {
    let mut changes = Vec::new();
    for member in before.members.iter().filter(|m| after.position(m.peer).is_none()) {
        // A contributor stays unless it says that it leaves.
        let contributed = record.headers.iter().any(|h| h.peer == member.peer);
        let mut aside = after.aside_since(record.round);
        let (how, why) = match aside.find(|aside| aside.peer == member.peer) {
            Some(aside) => (How::Aside, standing_aside(aside)),
            None if contributed => (How::Left, String::new()),
            None => (How::Failed, String::new()),
        };
        let change = change(record.round, member.peer, how);
        changes.push(Change { why, ..change });
    }
    for member in after.members.iter().filter(|m| before.position(m.peer).is_none()) {
        changes.push(change(record.round, member.peer, How::Joined));
    }
    changes
}

fn row(record: &Record, digest: Option<String>, names: &mut BTreeMap<PeerId, String>) -> Row {
    let mut name = |peer: PeerId| names.entry(peer).or_insert_with(|| peer.to_hex()).clone();
    let contributor = |h: &Signed<Header>| Contributor {
        peer: name(h.peer),
        weight: h.weight,
    };
    Row {
        round: record.round,
        attempt: record.attempt,
        contributors: record.headers.iter().map(contributor).collect(),
        samples: record.weight(),
        loss: (record.weight() > 0).then(|| record.loss()),
        digest,
    }
}

/// The digest of all parts of a split model before a round, if its members keep all of them.
fn digest_before(record: &Record, manifest: &Manifest) -> Option<String> {
    let all = Parts::of(manifest)?.all();
    let digest = |part| {
        record
            .headers
            .iter()
            .find_map(|h| Some((part, h.keeps.digest(part)?)))
    };
    let parts: Option<Vec<(u16, u64)>> = all.iter().map(digest).collect();
    Some(digest_of_parts(parts?).to_hex())
}

fn add_up(totals: &mut BTreeMap<PeerId, Total>, record: &Record) {
    for header in &record.headers {
        let none = || Total {
            peer: header.peer.to_hex(),
            rounds: 0,
            samples: 0,
            compute_seconds: 0.0,
        };
        let total = totals.entry(header.peer).or_insert_with(none);
        total.rounds += 1;
        total.samples += u64::from(header.weight);
        total.compute_seconds += header.compute_us as f64 / 1e6;
    }
}

fn saved(dir: &RunDir, file: &CheckpointFile, warnings: &mut Vec<String>) -> Saved {
    let digest = dir.digest(file.round);
    if let Err(error) = &digest {
        warnings.push(error.to_string());
    }
    let digest = digest.ok().map(|digest| digest.to_hex());
    Saved {
        round: file.round,
        bytes: file.bytes,
        digest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::checkpoint::RunWriter;
    use crate::testing::{Run, Scratch, founder, newcomers, peer};

    #[test]
    fn a_run_is_told_as_it_went() {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let mut run = Run::new();
        let mut writer = RunWriter::create(&path, &run.manifest, &run.head, &run.state).unwrap();
        for round in 1..=5 {
            let (record, digest) = run.round_with(|record| match round {
                1 => record.headers[0].content.ready = newcomers([2, 3, 4]),
                2 => record.headers[1].content.leaving = true,
                3 => (record.attempt, _) = (1, record.headers.remove(2)),
                4 => (record.attempt, _) = (1, record.headers.remove(1)),
                5 => record.headers[0].content.weight -= 7,
                _ => {}
            });
            writer.append(&record, digest).unwrap();
        }
        writer
            .saver()
            .save(&run.head, &run.state, run.state.digest())
            .unwrap();
        std::fs::write(path.join("checkpoints/round-00000004.safetensors"), b"torn").unwrap();
        run.head = writer.resume(founder(9)).unwrap();

        let summary = inspect(writer.dir()).unwrap();
        let changes: Vec<_> = summary
            .changes
            .iter()
            .map(|c| (c.round, c.peer.as_str(), c.how))
            .collect();
        let name = |n| peer(n).to_hex();
        assert_eq!(
            changes,
            [
                (0, &*name(1), How::Present),
                (1, &*name(2), How::Joined),
                (1, &*name(3), How::Joined),
                (1, &*name(4), How::Joined),
                (2, &*name(2), How::Left),
                (3, &*name(4), How::Failed),
                (4, &*name(3), How::Failed),
                (5, &*name(9), How::Continued),
            ]
        );
        assert_eq!(
            (summary.rounds, summary.steps, summary.samples),
            (5, 5, run.head.samples)
        );
        assert_eq!(
            (summary.samples + 7, summary.returned, summary.skipped),
            (run.head.cursor, 7, 0)
        );
        assert!(!summary.finished);
        assert_eq!(summary.members, [name(9)]);
        assert_eq!(summary.table.len(), 5);
        assert_eq!(
            (summary.table[2].attempt, summary.table[2].contributors.len()),
            (1, 2)
        );
        assert_eq!(summary.table[0].loss, Some(2.0));
        assert_eq!(
            summary.totals.iter().map(|t| t.samples).sum::<u64>(),
            run.head.samples
        );
        assert_eq!(summary.totals[0].rounds, 5);
        let saved: Vec<_> = summary
            .checkpoints
            .iter()
            .map(|c| (c.round, c.digest.is_some()))
            .collect();
        assert_eq!(saved, [(0, true), (4, false), (5, true)]);
        assert_eq!(summary.warnings.len(), 1);

        let losses = losses(writer.dir()).unwrap();
        assert_eq!(losses.len(), 5);
        assert_eq!((losses[0].round, losses[0].loss), (1, Some(2.0)));
        assert_eq!(losses[4].samples, run.head.samples);

        let text = summary.to_string();
        for part in [
            "not finished".to_owned(),
            format!("{}  failed", peer(3)),
            format!("{}  continued", peer(9)),
            "damaged".to_owned(),
            format!("{}:50", peer(1)),
        ] {
            assert!(text.contains(&part), "{part} is missing in:\n{text}");
        }
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(json["changes"][4]["how"], "left");
    }
}
