//! The conditions where members keep parts of the moments: each round against its definition, and what each member
//! keeps besides.

use super::means::{follow_means, square};
use crate::access::signature::Signed;
use crate::base::id::PeerId;
use crate::ledger::{Head, Header, Member, Record};
use crate::numeric::codec::Codec;
use crate::numeric::optim::{Slot, clip_scale};
use crate::peer::Peer;
use crate::run::config::Manifest;
use crate::run::parts::PartSet;
use crate::run::room::Room;
use crate::state::State;
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::ops::Range;

/// The first state of the reference, with all moments in one place.
pub(super) fn begin(state: &State, manifest: &Manifest) -> State {
    let whole = Manifest {
        copies: None,
        ..manifest.clone()
    };
    State::new(state.params.clone(), &whole)
}

/// The digest of the part of a state that all hold.
pub(super) fn digest(state: &State, manifest: &Manifest) -> crate::base::id::Digest {
    if manifest.copies.is_none() {
        return state.digest();
    }
    let mut weights = state.clone();
    weights.slots.clear();
    if manifest.split.is_some() {
        weights.params.clear();
    }
    weights.digest()
}

/// Elements of the parts, in order.
fn parts(manifest: &Manifest) -> Vec<Range<usize>> {
    let len = manifest.layout.len;
    let even = len.div_ceil(256).max(len.div_ceil(8).min(4096)).max(1);
    let part = even.div_ceil(256) * 256;
    (0..len)
        .step_by(part)
        .map(|start| start..len.min(start + part))
        .collect()
}

/// All pieces of the vector, in order, with the member that adds each up, as its place in the record.
fn pieces(head: &Head, record: &Record, manifest: &Manifest) -> Vec<(Range<usize>, usize)> {
    let (n, parts) = (record.headers.len(), parts(manifest));
    let keeper = |at: usize| {
        let peer = record.headers[at].peer;
        head.members[head.position(peer).expect("a contributor is a member")].keeper
    };
    let mut pieces = Vec::new();
    // By member: for how many parts it was first, and last. By pair: how many parts one has passed to the other.
    let (mut firsts, mut lasts) = (vec![0i32; n], vec![0i32; n]);
    let mut given = vec![vec![0; n]; n];
    for (number, part) in parts.iter().enumerate() {
        let start = number * n / parts.len();
        let ring: Vec<usize> = (start..start + n).map(|at| at % n).collect();
        let learn = ring
            .iter()
            .filter(|at| keeper(**at).learns.contains(number as u16));
        let mut way: Vec<usize> = learn.copied().collect();
        let keep = ring.iter().filter(|at| keeper(**at).kept.contains(number as u16));
        let keep: Vec<usize> = keep.copied().collect();
        // The last is the one that has been first more often than last, in fours.
        let mut last = 0;
        for at in 1..keep.len() {
            let lead = |at: usize| (firsts[keep[at]] - lasts[keep[at]]).div_euclid(4);
            let came = |at: usize| keep.iter().map(|from| given[*from][keep[at]]).sum::<i32>();
            if lead(at) > lead(last) || lead(at) == lead(last) && came(at) <= came(last) {
                last = at;
            }
        }
        let mut others = keep.clone();
        others.remove(last);
        // The first is the one that has been first least often; the others stay in ring order.
        if !others.is_empty() {
            let times = |at: &usize| firsts[others[*at]];
            let first = (0..others.len()).min_by_key(times).expect("there are some");
            way.push(others.remove(first));
        }
        way.extend(others);
        way.push(keep[last]);
        for at in 1..way.len() {
            given[way[at - 1]][way[at]] += 1;
        }
        firsts[way[0]] += 1;
        lasts[way[way.len() - 1]] += 1;
        for start in part.clone().step_by(manifest.piece.get() as usize) {
            let end = part.end.min(start + manifest.piece.get() as usize);
            pieces.push((start..end, way[0]));
        }
    }
    pieces
}

/// The same pieces, cut where a step begins or ends.
fn at_borders(pieces: Vec<(Range<usize>, usize)>, borders: &[usize]) -> Vec<(Range<usize>, usize)> {
    let mut cut = Vec::new();
    for (piece, first) in pieces {
        let mut start = piece.start;
        for border in borders.iter().filter(|b| piece.start < **b && **b < piece.end) {
            cut.push((start..*border, first));
            start = *border;
        }
        cut.push((start..piece.end, first));
    }
    cut
}

/// The numbers of the parts that a span of a cut needs.
pub(super) fn needs_of_span(manifest: &Manifest, cut: &[NonZeroU16], span: usize) -> PartSet {
    let Some(split) = &manifest.split else {
        return PartSet::default();
    };
    let used = split.cut(cut).used(span);
    let is_used = |part: &Range<usize>| {
        let mut used = used.iter();
        used.any(|range| range.start < part.end && part.start < range.end)
    };
    let numbered = parts(manifest).into_iter().zip(0..);
    numbered
        .filter(|(part, _)| is_used(part))
        .map(|(_, number)| number)
        .collect()
}

/// Whether a member with these parts and this room holds a span of a cut.
pub(super) fn holds_span(
    kept: &PartSet,
    room: Room,
    (manifest, cut): (&Manifest, &[NonZeroU16]),
    span: usize,
) -> bool {
    if manifest.split.is_none() || room.inner && (span == 0 || span == cut.len() - 1) {
        return false;
    }
    let needs = needs_of_span(manifest, cut, span);
    needs.len() <= room.parts.into() && needs.iter().all(|part| kept.contains(part))
}

/// Whether a round of a record's members trains: they are enough, and each part has a keeper among them.
pub(super) fn trains(head: &Head, record: &Record, manifest: &Manifest) -> bool {
    let takes_part = |peer| record.headers.iter().any(|h| h.peer == peer);
    let kept = |number: u16| {
        let mut members = head.members.iter();
        members.any(|m| takes_part(m.peer) && m.keeper.kept.contains(number))
    };
    if let Some(split) = &manifest.split {
        // Each span has a member that keeps all of its parts.
        let holds = |m: &Member, span| {
            takes_part(m.peer) && holds_span(&m.keeper.kept, m.keeper.room, (manifest, &head.spans), span)
        };
        let held = |span: usize| head.members.iter().any(|m| holds(m, span));
        let spans = split.spans.len();
        return record.headers.len() >= usize::from(manifest.min_peers.get()) && (0..spans).all(held);
    }
    let parts = if manifest.copies.is_some() {
        parts(manifest).len()
    } else {
        0
    };
    record.headers.len() >= usize::from(manifest.min_peers.get()) && (0..parts as u16).all(kept)
}

/// A round's sums as decoded, of contributions in the order of the record, and each member's rounding errors.
pub(super) fn sums(
    head: &Head,
    record: &Record,
    manifest: &Manifest,
    values: &[&[f32]],
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let (n, len) = (values.len(), manifest.layout.len);
    let (mut sums, mut errors) = (vec![0.0; len], vec![vec![0.0; len]; n]);
    for (range, first) in pieces(head, record, manifest) {
        let mut travelled = |member: usize, values: &[f32]| {
            let (mut bytes, mut decoded) = (Vec::new(), vec![0.0; values.len()]);
            manifest.codec.encode(values, &mut bytes);
            manifest.codec.decode(&bytes, &mut decoded).expect("just encoded");
            for ((error, value), decoded) in
                errors[member][range.clone()].iter_mut().zip(values).zip(&decoded)
            {
                *error = value - decoded;
            }
            decoded
        };
        let mut sum: Option<Vec<f32>> = None;
        for member in (1..n).map(|k| (first + k) % n) {
            let came = travelled(member, &values[member][range.clone()]);
            sum = Some(match sum {
                None => came,
                Some(sum) => sum.iter().zip(&came).map(|(a, b)| a + b).collect(),
            });
        }
        let own = &values[first][range.clone()];
        let sum = match sum {
            None => own.to_vec(),
            Some(sum) => sum.iter().zip(own).map(|(a, b)| a + b).collect(),
        };
        let finished = travelled(first, &sum);
        sums[range.clone()].copy_from_slice(&finished);
    }
    (sums, errors)
}

/// Applies a round's sums to the reference, as all its keepers do together.
pub(super) fn step(state: &mut State, manifest: &Manifest, head: &Head, record: &Record, sums: &[f32]) {
    let pieces = pieces(head, record, manifest);
    let pieces = match &manifest.split {
        None => pieces,
        Some(split) => at_borders(pieces, &split.borders().into_iter().collect::<Vec<_>>()),
    };
    let mut scale = 1.0 / record.weight() as f32;
    if let Some(max) = manifest.clip {
        let mut squared = 0.0f64;
        for part in parts(manifest) {
            let inside = pieces.iter().filter(|(piece, _)| part.contains(&piece.start));
            squared += inside.fold(0.0, |all, (piece, _)| all + square(manifest, piece.clone(), sums));
        }
        scale *= clip_scale(squared.sqrt() * f64::from(scale), max);
    }
    let lr = manifest.schedule.rate(manifest.lr, head.steps + 1);
    let step = manifest.optimizer.step(lr, head.steps + 1, scale);
    let before = state.clone();
    state.apply(manifest, &step, 0..sums.len(), sums);
    follow_means(state, &before, manifest, record, sums);
    let codec = match manifest.codec {
        Codec::F32 => return,
        Codec::Int4 => Codec::Int8,
        codec => codec,
    };
    for (piece, _) in pieces {
        let change = state.params[piece.clone()]
            .iter()
            .zip(&before.params[piece.clone()]);
        let change: Vec<f32> = change.map(|(after, before)| after - before).collect();
        let (mut bytes, mut decoded) = (Vec::new(), vec![0.0; change.len()]);
        codec.encode(&change, &mut bytes);
        codec.decode(&bytes, &mut decoded).expect("just encoded");
        for (at, change) in piece.zip(decoded) {
            state.params[at] = before.params[at] + change;
        }
    }
}

/// Applies updates to the weights, as decoded.
pub(super) fn update(params: &mut [f32], codec: Codec, updates: &[f32]) {
    for (param, update) in params.iter_mut().zip(updates) {
        *param = match codec {
            Codec::F32 => *update,
            _ => *param + update,
        };
    }
}

/// Resets parts that nobody keeps any more.
pub(super) fn begin_anew(state: &mut State, manifest: &Manifest, before: &Head, after: &Head) {
    let anew = after.untrained.without(&before.untrained);
    for (number, range) in parts(manifest).into_iter().enumerate() {
        if anew.contains(number as u16) {
            for slot in &mut state.slots {
                let (floats, codes) = slot.parts_mut(range.clone());
                floats.fill(0.0);
                codes.fill(0);
            }
        }
    }
}

/// Checks that a peer's parts equal the reference's.
pub(super) fn check(peer: &Peer, state: &State) -> Result<(), String> {
    let kept = &peer.state().kept;
    if kept.stepped != peer.head().stepped && !kept.set().is_empty() {
        return Err("what it keeps is of another round than its state".into());
    }
    for (number, range) in parts(peer.manifest()).into_iter().enumerate() {
        let Some(slots) = kept.slots(number as u16) else {
            continue;
        };
        let same = |(kept, whole): (&Slot, &Slot)| {
            let here = 0..range.len();
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            bits(kept.floats(here.clone())) == bits(whole.floats(range.clone()))
                && kept.codes(here) == whole.codes(range.clone())
        };
        let weights = slots.last().filter(|_| peer.manifest().split.is_some());
        if let Some(weights) = weights {
            let pairs = weights
                .floats(0..range.len())
                .iter()
                .zip(&state.params[range.clone()]);
            if let Some((kept, whole)) = pairs.into_iter().find(|(a, b)| a.to_bits() != b.to_bits()) {
                return Err(format!(
                    "its weights of part {number} are not the serial reference's: {kept} instead of {whole}"
                ));
            }
        }
        if !slots.iter().zip(&state.slots).all(same) {
            return Err(format!(
                "its moments of part {number} are not the serial reference's"
            ));
        }
    }
    Ok(())
}

/// Checks that a record leaves each part the wanted keepers, or as many as there can be, except for lost and
/// dropped ones. Each span needs as many members with all of it.
pub(super) fn check_copies(
    before: &Head,
    after: &Head,
    record: &Record,
    manifest: &Manifest,
) -> Result<(), String> {
    let Some(copies) = manifest.copies.filter(|_| before.tickets == after.tickets) else {
        return Ok(());
    };
    let insists = |peer| record.headers.iter().any(|h| h.peer == peer && h.keeps.insists);
    let leaves = |peer| record.headers.iter().any(|h| h.peer == peer && h.leaving);
    let stays = || after.members.iter().filter(|m| m.is_full() && !leaves(m.peer));
    let mut wanted = usize::from(copies.get()).min(stays().count());
    let spans = manifest.split.as_ref().map_or(0, |split| split.spans.len());
    let rooms = || stays().map(|m| m.keeper.room);
    let most = rooms().map(|room| usize::from(room.spans)).sum::<usize>();
    // A member that takes the ends has them.
    let at_ends = rooms().filter(|room| !room.inner);
    let at_ends = at_ends.map(|room| usize::from(room.spans).min(2)).sum::<usize>();
    if let (Some(most), Some(at_ends)) = (most.checked_div(spans), at_ends.checked_div(spans.min(2))) {
        wanted = wanted.min(most.min(at_ends).max(1));
    }
    let check = |what: String, has: &dyn Fn(&PartSet, Room, &[NonZeroU16]) -> bool| {
        let keeps = |m: &&Member| has(&m.keeper.kept, m.keeper.room, &after.spans);
        let still = |peer| after.members.iter().any(|m| m.peer == peer && keeps(&m));
        let had = |h: &&Signed<Header>| has(&h.keeps.kept, h.keeps.room, &before.spans);
        let mut had = record.headers.iter().filter(had);
        let lets_go = had.any(|h| !still(h.peer) && !insists(h.peer));
        let left = after.members.iter().filter(keeps).count();
        match lets_go && left < wanted {
            true => Err(format!("{left} are left that keep {what}, and {wanted} could be")),
            false => Ok(()),
        }
    };
    for number in 0..parts(manifest).len() as u16 {
        check(format!("part {number}"), &|kept, _, _| kept.contains(number))?;
    }
    // A run that waits because nobody holds some span goes back to the founder's cut.
    let is_held = |span| {
        let holds = |m: &Member| holds_span(&m.keeper.kept, m.keeper.room, (manifest, &before.spans), span);
        before.members.iter().any(holds)
    };
    let waits = before.spans != after.spans && !(0..spans).all(is_held);
    for span in (0..spans).filter(|_| !waits) {
        check(format!("span {span}"), &|kept, room, cut| {
            holds_span(kept, room, (manifest, cut), span)
        })?;
    }
    Ok(())
}

/// Rounding errors by member.
pub(super) fn by_author(
    record: &Record,
    errors: Vec<Vec<f32>>,
    feedback: bool,
) -> Option<BTreeMap<PeerId, Vec<f32>>> {
    let authors = record.headers.iter().map(|h| h.peer);
    Some(authors.zip(errors).filter(|_| feedback).collect())
}
