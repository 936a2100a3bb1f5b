//! The definition of valid records and heads.

use super::{Point, Sample};
use crate::ledger::{Head, Record};
use crate::run::config::Manifest;
use crate::sim::{kept, steps};

/// Checks that a record may follow a head at all.
pub(super) fn check_record(head: &Head, record: &Record, manifest: &Manifest) -> Result<(), String> {
    if record.round != head.round + 1 {
        return Err(format!("round {} follows round {}", record.round, head.round));
    }
    let mut places = Vec::new();
    for header in &record.headers {
        places.push(
            head.position(header.peer)
                .ok_or("a contributor was not a member")?,
        );
    }
    if places.is_empty() || !places.is_sorted_by(|a, b| a < b) {
        return Err("the contributors are not in ring order".into());
    }
    if !record.headers.iter().any(|h| head.is_full(h.peer)) {
        return Err("no full member contributed".into());
    }
    let allotment = head.allot(manifest);
    let null = !kept::trains(head, record, manifest);
    if manifest.split.is_some() {
        return steps::check_weight(head, record, manifest, null);
    }
    for (header, place) in record.headers.iter().zip(places) {
        let share = if null { 0 } else { allotment.len(place) };
        if u64::from(header.weight) > share {
            return Err(format!(
                "a weight of {} is more than the share of {share}",
                header.weight
            ));
        }
    }
    Ok(())
}

/// Checks that guests compute at most half of what is handed out after a head, each at most as much as some full
/// member, and that full members alone have ended the run.
pub(super) fn check_guests(
    before: &Head,
    record: &Record,
    after: &Head,
    manifest: &Manifest,
) -> Result<(), String> {
    let guests: Vec<usize> = (0..after.members.len())
        .filter(|place| !after.members[*place].is_full())
        .collect();
    let shares = match after.ahead.is_empty() {
        true => after.allot(manifest),
        false => after.allot_ahead(manifest),
    };
    let of = |is_guest: bool| {
        let places = (0..after.members.len()).filter(|place| guests.contains(place) == is_guest);
        places.map(|place| shares.len(place)).collect::<Vec<u64>>()
    };
    let (theirs, others) = (of(true), of(false));
    // Guests alone wait for a full member. Nobody gets samples back that it has refused, so others have to compute those.
    let is_free = !others.is_empty() && after.holes.iter().all(|hole| hole.refused_by.is_none());
    let is_most = theirs.iter().max() > others.iter().max().or(Some(&0));
    if is_free && (is_most || theirs.iter().sum::<u64>() > others.iter().sum()) {
        return Err(format!("guests get {theirs:?}, and full members {others:?}"));
    }
    let mut of_guests = record.headers.iter().filter(|h| !before.is_full(h.peer));
    if !after.stopped
        && after.finished(manifest)
        && !before.finished(manifest)
        && of_guests.any(|h| h.weight > 0)
    {
        return Err("samples of guests end the run".into());
    }
    Ok(())
}

/// Checks that a run stops early once most full members want it, and not before.
pub(super) fn check_stop(
    before: &Head,
    record: &Record,
    after: &Head,
    manifest: &Manifest,
) -> Result<(), String> {
    let full: Vec<_> = record.headers.iter().filter(|h| before.is_full(h.peer)).collect();
    let wanted = full.iter().filter(|h| h.stalled).count();
    let stops = manifest.early_stop.is_some() && wanted > full.len() / 2;
    match after.stopped == (before.stopped || stops) {
        true => Ok(()),
        false => Err(format!(
            "{wanted} of {} full members want to stop; stopped: {}",
            full.len(),
            after.stopped
        )),
    }
}

/// Counts a record's samples one by one.
pub(super) fn count(point: &Point, record: &Record, manifest: &Manifest) -> Result<Vec<Sample>, String> {
    let mut samples = point.samples.clone();
    if !kept::trains(&point.head, record, manifest) {
        return Ok(samples);
    }
    let allotment = point.head.allot(manifest);
    if manifest.split.is_some() {
        let refused = record.headers.iter().find(|h| h.keeps.refuses).map(|h| h.peer);
        for position in allotment.batch.iter().flat_map(|hole| hole.start..hole.end) {
            let sample = samples
                .get_mut(position as usize)
                .ok_or("a sample beyond the target was handed out")?;
            *sample = match (*sample, refused) {
                (Sample::Open(_), None) => Sample::Counted,
                (Sample::Open(None), by) => Sample::Open(by),
                (Sample::Open(Some(_)), Some(_)) => Sample::Skipped,
                (other, _) => return Err(format!("sample {position} was handed out again: {other:?}")),
            };
        }
        return Ok(samples);
    }
    for (place, member) in point.head.members.iter().enumerate() {
        let Some(header) = record.headers.iter().find(|h| h.peer == member.peer) else {
            continue;
        };
        for (k, position) in allotment.ranges(place).into_iter().flatten().enumerate() {
            let sample = samples
                .get_mut(position as usize)
                .ok_or("a sample beyond the target was handed out")?;
            *sample = match *sample {
                Sample::Open(_) if k < header.weight as usize => Sample::Counted,
                Sample::Open(by) if header.weight > 0 || header.late => Sample::Open(by),
                Sample::Open(by) if by.is_none_or(|by| by == member.peer) => Sample::Open(Some(member.peer)),
                Sample::Open(_) => Sample::Skipped,
                other => return Err(format!("sample {position} was handed out again: {other:?}")),
            };
        }
    }
    Ok(samples)
}

/// Checks that a head agrees with the count of every sample.
pub(super) fn check_head(head: &Head, samples: &[Sample]) -> Result<(), String> {
    let number = |sample| samples.iter().filter(|s| **s == sample).count() as u64;
    if (head.counted(), head.skipped) != (number(Sample::Counted), number(Sample::Skipped)) {
        return Err(format!(
            "{} samples and {} given up, but {} and {} were counted one by one",
            head.counted(),
            head.skipped,
            number(Sample::Counted),
            number(Sample::Skipped)
        ));
    }
    let mut open = vec![None; samples.len()];
    open[(head.cursor as usize).min(samples.len())..].fill(Some(None));
    for hole in head
        .holes
        .iter()
        .chain(head.ahead.iter().flat_map(|given| &given.share))
    {
        let range = open
            .get_mut(hole.start as usize..hole.end as usize)
            .ok_or("a hole beyond the target")?;
        range.fill(Some(hole.refused_by));
    }
    for (position, (open, sample)) in open.iter().zip(samples).enumerate() {
        let said = open.map_or(!matches!(sample, Sample::Open(_)), |refused_by| {
            *sample == Sample::Open(refused_by)
        });
        if !said {
            return Err(format!(
                "sample {position} is {sample:?}, but the ledger says {open:?}"
            ));
        }
    }
    Ok(())
}
