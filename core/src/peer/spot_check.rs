//! When a member checks a guest's work, step by step. [`spot`](super::spot) says how, and why.

use crate::base::id::{Digest, PeerId, Round};
use crate::base::planted::Bug;
use crate::collective::Run;
use crate::ledger::Record;
use crate::ledger::allot::Allotment;
use crate::peer::device::{Asked, Made};
use crate::peer::shared::Shared;
use crate::peer::spot::{
    Computing, FIRST, FORGIVEN, MEASURED, MISMATCHES, MOST, ROUNDS, Stage, Truth, Watched, is_quick, part,
    take_first,
};
use bytes::Bytes;

/// Numbers that only this member can know, for a guest and the end of a lineage. Its signature is not told to anybody.
fn secret_bits(guest: PeerId, shared: &Shared) -> u64 {
    let said = [b"spot check".as_slice(), &shared.head().chain.0, &guest.0].concat();
    let signature = shared.settings.key.sign_bytes(&said);
    let digest = Digest::of(&postcard::to_allocvec(&signature).expect("plain data"));
    u64::from_le_bytes(digest.0[..8].try_into().expect("8 of 32 bytes"))
}

/// Whether members can check each other: what each sends is the sum of its samples' gradients and nothing else.
fn can_check(shared: &Shared) -> bool {
    let manifest = &shared.manifest;
    let is_plain = manifest.local.is_none() && manifest.split.is_none() && !manifest.feedback();
    is_plain && !shared.settings.planted(Bug::NoSpotChecks)
}

/// Samples of a member's share in this round, or in the next if that has fewer, as at the end of a run.
fn least_share(allotment: &Allotment, place: usize, shared: &Shared) -> u64 {
    let head = shared.head();
    let all: u64 = (0..head.members.len()).map(|place| allotment.len(place)).sum();
    let next = head.left(&shared.manifest).saturating_sub(all);
    allotment.len(place) * next.min(all) / all.max(1)
}

/// A round begins that trains: counts the guests' shares.
pub(crate) fn begin_round(allotment: &Allotment, shared: &mut Shared) {
    let head = &shared.lineage.head;
    shared
        .spot
        .watched
        .retain(|guest, _| head.position(*guest).is_some());
    let Some(me) = head.position(shared.settings.me) else {
        return;
    };
    shared.spot.own = least_share(allotment, me, shared);
    shared.spot.is_quick = is_quick(shared.speed.told());
    if shared.spot.own == 0 || !head.members[me].is_full() || !can_check(shared) {
        return;
    }
    let guests = head.members.iter().enumerate().filter(|(_, m)| !m.is_full());
    let at_work = guests.filter(|(place, _)| allotment.len(*place) > 0);
    let at_work: Vec<PeerId> = at_work.map(|(_, m)| m.peer).collect();
    for guest in at_work {
        if let Some(watched) = shared.spot.watched.get_mut(&guest) {
            watched.left = watched.left.saturating_sub(1);
            continue;
        }
        let new = Watched {
            left: 0,
            window: FIRST,
            mismatches: 0,
            false_since: None,
        };
        shared.spot.watched.insert(guest, new);
        let bits = secret_bits(guest, shared);
        shared.spot.draw(guest, bits);
    }
}

/// An attempt begins: chooses a guest whose check is due, and of whose values this member will get some alone.
pub(crate) fn begin_attempt(reduce: &Run, allotment: &Allotment, shared: &mut Shared) {
    let spot = &mut shared.spot;
    spot.check
        .take_if(|(_, stage)| matches!(stage, Stage::Hearing { .. }));
    if spot.check.is_some() || spot.watched.is_empty() || spot.own == 0 {
        return;
    }
    let head = &shared.lineage.head;
    let most = ROUNDS * part(spot.own, spot.is_quick);
    let can = |guest: PeerId| {
        let share = head.position(guest).map_or(0, |place| allotment.len(place));
        (1..=most).contains(&share)
    };
    let due = spot
        .watched
        .iter()
        .filter(|(guest, w)| w.left == 0 && w.false_since.is_none() && can(**guest));
    let mut due = due.map(|(guest, _)| (*guest, reduce.alone(*guest)));
    spot.check = due.find(|(_, wanted)| !wanted.is_empty()).map(|(guest, wanted)| {
        let sent = Vec::new();
        (guest, Stage::Hearing { wanted, sent })
    });
}

/// This member's values are ready, and there are guests: none of theirs may be far longer.
pub(crate) fn bound_guests(own: &Made, reduce: &mut Run, shared: &mut Shared) {
    if !reduce.has_guests() || shared.manifest.split.is_some() {
        return;
    }
    let head = &shared.lineage.head;
    let spot = &mut shared.spot;
    if own.weight > 0 && head.round >= spot.measures_at {
        spot.scale.note(&own.gradient, own.weight);
        spot.measures_at = head.round + MEASURED;
    }
    reduce.bound(spot.scale, head.pace.batches.get());
}

/// A piece of the checked guest has come. With the last one, the check begins if the header with it counts samples.
pub(crate) fn note(
    (guest, place, data): (PeerId, (u16, u32), Bytes),
    reduce: &Run,
    allotment: &Allotment,
    shared: &mut Shared,
) {
    let Some((_, Stage::Hearing { wanted, sent })) = &mut shared.spot.check else {
        return;
    };
    sent.extend(wanted.remove(&place).map(|elements| (elements, data)));
    if !wanted.is_empty() {
        return;
    }
    let sent = std::mem::take(sent);
    shared.spot.check = None;
    let head = &shared.lineage.head;
    let header = reduce.header_of(guest).filter(|header| header.weight > 0);
    let (Some(header), Some(at)) = (header, head.position(guest)) else {
        return;
    };
    let mut share = allotment.ranges(at);
    let left = take_first(&mut share, header.weight.into());
    let elements: usize = sent.iter().map(|(elements, _)| elements.len()).sum();
    let check = Computing {
        round: head.round + 1,
        chain: head.chain,
        state: shared.lineage.digest,
        params: shared.lineage.state.params.clone(),
        left,
        at_work: 0,
        truth: Truth {
            values: vec![0.0; elements],
            len: shared.manifest.layout.len,
            ..Truth::default()
        },
        sent,
    };
    shared.spot.check = Some((guest, Stage::Computing(Box::new(check))));
}

/// This member's own share is done: an idle device computes a part of a check.
pub(crate) fn go_on(shared: &mut Shared) {
    if shared.device.asked.is_some() {
        return;
    }
    let late = shared.settings.planted(Bug::CheckWithLaterState);
    let Some((check, positions)) = shared.spot.next_part() else {
        return;
    };
    let asked = Asked::Check {
        chain: check.chain,
        state: check.state,
    };
    let params = if late {
        &shared.lineage.state.params
    } else {
        &check.params
    };
    let output = shared.device.ask(
        asked,
        (check.round, None),
        positions,
        params,
        &*shared.settings.jobs,
    );
    shared.out.push_back(output);
}

/// The device has computed a part of a check. After the last part, this member judges.
pub(crate) fn took(made: &Made, shared: &mut Shared) {
    let Some((guest, Stage::Computing(check))) = &mut shared.spot.check else {
        return;
    };
    let guest = *guest;
    let asked = std::mem::take(&mut check.at_work);
    let sound = asked > 0 && u64::from(made.weight) == asked && check.truth.add(made, &check.sent);
    if sound && !check.left.is_empty() {
        return;
    }
    let codec = shared.manifest.codec;
    let is_work = sound.then(|| check.truth.judge(codec, &check.sent)).flatten();
    shared.spot.check = None;
    let round = shared.head().round + 1;
    let bits = secret_bits(guest, shared);
    let Some(watched) = shared.spot.watched.get_mut(&guest) else {
        return;
    };
    match is_work {
        None => {}
        Some(true) => {
            watched.window = (2 * watched.window).min(MOST);
            if watched.window >= FORGIVEN {
                watched.mismatches = 0;
            }
        }
        Some(false) => {
            (watched.window, watched.left) = (FIRST, 0);
            watched.mismatches += 1;
            watched.false_since = (watched.mismatches >= MISMATCHES).then_some(round);
            return;
        }
    }
    shared.spot.draw(guest, bits);
}

/// A round is committed. Returns the guests whose work was seen to be false before it: this member's digest is that
/// of the others since then.
pub(crate) fn judge(record: &Record, shared: &mut Shared) -> Vec<PeerId> {
    if record.weight() == 0 {
        return Vec::new();
    }
    let before = |since: Round| since < record.round;
    let found = shared
        .spot
        .watched
        .iter()
        .filter(|(_, w)| w.false_since.is_some_and(before));
    let found = found.map(|(guest, _)| *guest);
    found.filter(|guest| !shared.outlaws.contains(*guest)).collect()
}
