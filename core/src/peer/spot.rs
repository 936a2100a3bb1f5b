//! Spot checks of guests' work. A guest that returns anything with a likely loss looks like one that computes, so a
//! full member now and then computes a guest's share itself.
//!
//! Sums hide what each member has sent. But a member receives some of a guest's values alone. Under the direct plan
//! these are of the chunk that it owns, in a ring of the chunk whose sum begins at the guest before it. It keeps them
//! and the parameters of then. Its device computes the same samples, a few after each share of its own, so that no
//! round waits long. Then the member compares.
//!
//! A guest cannot foresee a check, since the member draws it with its own key. The first comes soon. The more of them
//! a guest has passed, the rarer they become. David P. Anderson, "BOINC: A System for Public-Resource Computing and
//! Storage" (2004), compares results of volunteers in the same way, and trusts those that were right before more.
//!
//! One mismatch may be this member's own fault, such as a flipped bit. So the guest's next share is checked too, and
//! the verdict waits for another round in which the others' digests agree with this member's.

use crate::base::id::{Digest, PeerId, Round};
use crate::base::planted::Bug;
use crate::collective::Run;
use crate::ledger::Record;
use crate::ledger::allot::Allotment;
use crate::numeric::codec::Codec;
use crate::peer::device::{Asked, Made};
use crate::peer::shared::Shared;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// The first check comes within this many shares of a guest, as does the next after a mismatch.
const FIRST: u32 = 16;

/// Twice as many after each check that the guest passes, up to this many: one share in a thousand on average.
const MOST: u32 = 2048;

/// With such a window, earlier mismatches are forgotten.
const FORGIVEN: u32 = 256;

/// Mismatches that put a guest out.
const MISMATCHES: u8 = 2;

/// After each share of its own, a device computes at most this part of it for a check. Others take a member for too
/// slow that takes twice as long as usual.
const PART: u64 = 4;

/// A check takes at most this many rounds, or the member leaves it to faster ones.
const ROUNDS: u64 = 64;

/// At least this much of the true values must be in what was sent. A guess: devices differ by a thousandth.
const LEAST: f64 = 0.25;

/// What was sent may be this many times as long as the true values.
const LONGEST: f64 = 3.0;

/// Where elements are this much smaller than elsewhere in the vector, they may be rounding errors.
const TELLING: f64 = 0.01;

/// With a smaller mean loss, all gradients may be.
const LEARNED: f64 = 1e-5;

/// What a member knows of a guest's work.
#[derive(Clone, Copy, Debug)]
struct Watched {
    /// Shares until the next check; 0 if it is due.
    left: u32,
    /// The next check is drawn from this many shares.
    window: u32,
    mismatches: u8,
    /// The round in work when the last mismatch showed that its work is false.
    false_since: Option<Round>,
}

/// A guest's own values of some elements, encoded.
type Sent = (Range<usize>, Bytes);

#[derive(Debug)]
enum Stage {
    /// The guest's values come.
    Hearing {
        wanted: BTreeMap<(u16, u32), Range<usize>>,
        sent: Vec<Sent>,
    },
    /// They have come, and the device computes the same.
    Computing(Box<Computing>),
}

#[derive(Debug)]
struct Computing {
    round: Round,
    /// The lineage and the state before the round.
    chain: Digest,
    state: Digest,
    params: Vec<f32>,
    sent: Vec<Sent>,
    /// Positions that are still to be computed.
    left: Vec<Range<u64>>,
    /// Samples that the device is at.
    at_work: u64,
    truth: Truth,
}

/// The values that the device has computed.
#[derive(Debug, Default)]
struct Truth {
    /// The sums of the elements that were sent, one after the other.
    values: Vec<f32>,
    /// Squared norms of what each task has given: of these elements, and of all.
    squared: [f64; 2],
    /// Elements of the vector.
    len: usize,
    samples: u64,
    loss: f64,
}

/// The checks of one member.
#[derive(Debug, Default)]
pub(crate) struct Spot {
    /// Samples of its own share in this round.
    own: u64,
    watched: BTreeMap<PeerId, Watched>,
    check: Option<(PeerId, Stage)>,
}

impl Spot {
    /// Whether it listens to a guest's values.
    pub fn hears(&self, guest: PeerId) -> bool {
        matches!(&self.check, Some((of, Stage::Hearing { .. })) if *of == guest)
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let sent = |sent: &[Sent]| sent.iter().map(|(_, data)| data.len()).sum::<usize>();
        match &self.check {
            Some((_, Stage::Hearing { sent: here, .. })) => sent(here),
            Some((_, Stage::Computing(c))) => {
                sent(&c.sent) + size_of::<f32>() * (c.params.len() + c.truth.values.len())
            }
            None => 0,
        }
    }

    /// Gives an idle device the next part of a check, after this member's own share.
    fn next_part(&mut self) -> Option<(&mut Computing, Vec<Range<u64>>)> {
        let most = part(self.own);
        let Some((_, Stage::Computing(check))) = &mut self.check else {
            return None;
        };
        let positions = take_first(&mut check.left, most);
        check.at_work = positions.iter().map(|range| range.end - range.start).sum();
        (check.at_work > 0).then_some((check, positions))
    }

    /// Draws a guest's next check.
    fn draw(&mut self, guest: PeerId, bits: u64) {
        if let Some(watched) = self.watched.get_mut(&guest) {
            watched.left = 1 + (bits % u64::from(watched.window)) as u32;
        }
    }
}

/// Samples that a device may compute for a check after a share of this many.
fn part(own: u64) -> u64 {
    (own / PART).max(1)
}

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
    shared.spot.own = allotment.len(me);
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
    let most = ROUNDS * part(spot.own);
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
    let output = shared.device.ask(asked, (check.round, None), positions, params);
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

impl Truth {
    /// Adds what a task has given. False if that is no use.
    fn add(&mut self, made: &Made, sent: &[Sent]) -> bool {
        if made.gradient.len() != self.len || !made.loss.is_finite() {
            return false;
        }
        let mut values = self.values.iter_mut();
        for (elements, _) in sent {
            for value in &made.gradient[elements.clone()] {
                *values.next().expect("as many as were sent") += value;
                self.squared[0] += f64::from(*value).powi(2);
            }
        }
        self.squared[1] += squared(&made.gradient);
        self.samples += u64::from(made.weight);
        self.loss += f64::from(made.loss);
        self.squared[1].is_finite()
    }

    /// Whether what was sent is these values, as the codec passes them on. `None` if nobody can tell.
    fn judge(&self, codec: Codec, sent: &[Sent]) -> Option<bool> {
        let mean = |squared: f64, count: usize| squared / count.max(1) as f64;
        let (here, all) = (
            mean(self.squared[0], self.values.len()),
            mean(self.squared[1], self.len),
        );
        let is_learned = self.loss.abs() < LEARNED * self.samples as f64;
        let (mut dot, mut of_truth, mut of_sent) = (0.0, 0.0, 0.0);
        let mut truth = &self.values[..];
        let (mut theirs, mut encoded) = (Vec::new(), Vec::new());
        for (elements, data) in sent {
            let (piece, rest) = truth.split_at(elements.len());
            truth = rest;
            encoded.clear();
            codec.encode(piece, &mut encoded);
            let mut ours = vec![0.0; piece.len()];
            theirs.resize(piece.len(), 0.0);
            codec.decode(&encoded, &mut ours).ok()?;
            codec.decode(data, &mut theirs).ok()?;
            dot += ours
                .iter()
                .zip(&theirs)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum::<f64>();
            of_truth += squared(&ours);
            of_sent += squared(&theirs);
        }
        if is_learned || here < TELLING * TELLING * all || of_truth == 0.0 {
            return None;
        }
        Some(dot >= LEAST * of_truth && of_sent <= LONGEST * LONGEST * of_truth)
    }
}

fn squared(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum()
}

/// Takes this many positions from the front, or all if they are fewer.
fn take_first(positions: &mut Vec<Range<u64>>, mut count: u64) -> Vec<Range<u64>> {
    let mut taken = Vec::new();
    positions.retain_mut(|range| {
        let end = range.start + count.min(range.end - range.start);
        if end > range.start {
            taken.push(range.start..end);
            count -= end - range.start;
            range.start = end;
        }
        !range.is_empty()
    });
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    /// Values of elements 100 to 400 of a vector, and of all.
    fn truth(size: f32, loss: f64) -> (Truth, Vec<f32>) {
        let mut random = SplitMix(1);
        let values: Vec<f32> = (0..300).map(|_| size * (random.unit() as f32 - 0.5)).collect();
        let here = squared(&values);
        let truth = Truth {
            values: values.clone(),
            squared: [here, here + 100.0],
            len: 1000,
            samples: 10,
            loss,
        };
        (truth, values)
    }

    fn judged(
        codec: Codec,
        (truth, values): &(Truth, Vec<f32>),
        change: impl FnMut(f32) -> f32,
    ) -> Option<bool> {
        let said: Vec<f32> = values.iter().copied().map(change).collect();
        let piece = |range: Range<usize>| {
            let mut data = Vec::new();
            codec.encode(&said[range.start - 100..range.end - 100], &mut data);
            (range, data.into())
        };
        truth.judge(codec, &[piece(100..164), piece(164..400)])
    }

    #[test]
    fn values_of_another_device_pass_and_others_do_not() {
        let true_values = truth(1.0, 5.0);
        for codec in [Codec::F32, Codec::F16, Codec::Int8] {
            let mut random = SplitMix(2);
            let judged = |change: &mut dyn FnMut(f32) -> f32| judged(codec, &true_values, change);
            assert_eq!(judged(&mut |value| value), Some(true), "{codec}");
            assert_eq!(
                judged(&mut |value| value * (1.0 + 1e-3 * random.unit() as f32)),
                Some(true)
            );
            assert_eq!(judged(&mut |value| 0.5 * value), Some(true));
            assert_eq!(judged(&mut |_| 0.0), Some(false));
            assert_eq!(judged(&mut |value| -value), Some(false));
            assert_eq!(judged(&mut |value| 4.0 * value), Some(false));
            assert_eq!(judged(&mut |_| random.unit() as f32 - 0.5), Some(false));
        }
    }

    #[test]
    fn nobody_is_judged_by_what_may_be_rounding_errors() {
        let zeros = |truth: &(Truth, Vec<f32>)| judged(Codec::F32, truth, |_| 0.0);
        assert_eq!(zeros(&truth(1.0, 1.0)), Some(false));
        assert_eq!(zeros(&truth(1.0, 1e-5)), None, "there is nothing left to learn");
        assert_eq!(
            zeros(&truth(1e-3, 1.0)),
            None,
            "all other elements are far larger"
        );
        assert_eq!(zeros(&truth(0.0, 1.0)), None);
    }

    #[test]
    fn positions_are_taken_in_order() {
        let mut all = vec![3..5, 8..9, 20..24];
        let mut take = |count| {
            take_first(&mut all, count)
                .into_iter()
                .flatten()
                .collect::<Vec<u64>>()
        };
        assert_eq!(take(1), [3]);
        assert_eq!(take(3), [4, 8, 20]);
        assert_eq!(take(100), [21, 22, 23]);
        assert!(all.is_empty());
    }
}
