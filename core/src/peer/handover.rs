//! How a peer handles parts of the moments: what it says of them, fetches and hands out, and how long it waits for
//! parts that nobody keeps.
//!
//! A learner announces a part first, so that from the next round on the part's sums are sent to it. Then it asks a
//! keeper. The keeper sends the part as it is right after a round, before it sends anything of the next. So the
//! part arrives before this peer can commit a round that steps it, since no round is committed without the keeper's
//! later frames. From then on the learner steps the part like any keeper. It claims to keep the part once a
//! record's headers have shown that its digest is the keepers'.

use crate::base::id::{Digest, PeerId};
use crate::base::planted::Bug;
use crate::ledger::keepers::most;
use crate::ledger::keeps::{Keeper, Keeps};
use crate::ledger::{Member, Record};
use crate::peer::disk;
use crate::peer::interface::Event;
use crate::peer::keeping::{Learning, QUESTIONS, ROUNDS, go_along, go_along_or_drop, patience, window};
use crate::peer::shared::Shared;
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use crate::state::moments::{blank, write};
use crate::wire::Message;
use crate::wire::rights::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// This peer's parts, as the head knows them.
fn own(shared: &Shared) -> Keeper {
    let head = shared.head();
    head.position(shared.me())
        .map(|at| head.members[at].keeper)
        .unwrap_or_default()
}

/// Parts that nobody keeps, by the head.
fn of_nobody(shared: &Shared) -> PartSet {
    shared.head().lacks(&shared.manifest, |_| true)
}

fn keeps_parts(manifest: &Manifest) -> bool {
    manifest.copies.is_some()
}

/// What this peer says of its parts in a header.
pub(crate) fn say(shared: &mut Shared) -> Keeps {
    let me = shared.me();
    if !keeps_parts(&shared.manifest) || !shared.head().is_full(me) {
        return Keeps::default();
    }
    let now = shared.now;
    let mut leaves_for = Duration::ZERO;
    if shared.leaving {
        leaves_for = now - *shared.keeping.leaves_since.get_or_insert(now);
    }
    let (own, lost) = (own(shared), of_nobody(shared));
    let (suggested, drops) = shared.head().suggest(&shared.manifest, me);
    let anew = suggested.or(&own.learns).and(&lost).and(&shared.head().untrained);
    let manifest = shared.manifest.clone();
    let missing = anew.without(&shared.lineage.state.kept.set());
    shared.lineage.state.kept.begin(&manifest, &missing);
    let (waits, saved) = disk::offer(shared);
    let state = &shared.lineage.state.kept;
    let kept = state.set().without(&shared.keeping.unproven);
    let kept = kept.and(&own.kept.or(&own.learns).or(&lost));
    let learns = suggested.or(&own.learns).without(&kept).without(&lost);
    Keeps {
        kept,
        digests: state.digests(&kept),
        learns: if shared.leaving {
            PartSet::default()
        } else {
            learns
        },
        drops: drops.and(&kept),
        insists: is_over(shared) || leaves_for > shared.settings.waits.handover,
        room: shared.settings.room(&shared.manifest),
        line: shared.manifest.split.as_ref().map_or(0, |_| shared.keeping.line),
        refuses: false,
        saves: disk::is_due(shared),
        waits,
        saved,
    }
}

/// Whether some part has been without a keeper for too long.
fn is_over(shared: &Shared) -> bool {
    // Lost weights are the result of the run, so they are waited for without a limit.
    if shared.manifest.split.is_some() {
        return false;
    }
    shared
        .keeping
        .lacks_since
        .is_some_and(|since| shared.now - since >= shared.settings.waits.lost_moments)
}

/// Whether a round without training is worthwhile among these members: a needed keeper is gone, a part without a
/// keeper can get one, or the wait for one is over.
pub(crate) fn has_news(shared: &Shared, members: &[PeerId]) -> bool {
    if !keeps_parts(&shared.manifest) {
        return false;
    }
    let (head, lost) = (shared.head(), of_nobody(shared));
    if lost.is_empty() || shared.manifest.split.is_some() {
        let lacks = head.uncovered(&shared.manifest, |peer| members.contains(&peer));
        let is_new = lacks != head.uncovered(&shared.manifest, |_| true);
        if is_new || lost.is_empty() && shared.manifest.split.is_none() {
            return is_new;
        }
    }
    let is_split = shared.manifest.split.is_some();
    if is_split && (has_news_of_spans(shared) || lacks_learner(shared, members) || disk::has_offer(shared)) {
        return true;
    }
    let held = shared.lineage.state.kept.set().without(&shared.keeping.unproven);
    let anew = || head.suggest(&shared.manifest, shared.me()).0.and(&head.untrained);
    is_over(shared) || !held.or(&anew()).and(&lost).is_empty()
}

/// In a split run, whether a member is gone that was to take a part. The head assigns the part to it as long as it
/// is a member.
fn lacks_learner(shared: &Shared, members: &[PeerId]) -> bool {
    let none = PartSet::default();
    let learns = |keeper: &Keeper| keeper.kept == none || keeper.learns != none;
    let gone = |m: &&Member| m.is_full() && !members.contains(&m.peer);
    shared
        .head()
        .members
        .iter()
        .filter(gone)
        .any(|m| learns(&m.keeper))
}

/// In a split run, whether this peer takes a span, or has received one that it was to learn.
fn has_news_of_spans(shared: &Shared) -> bool {
    let own = own(shared);
    let (suggested, drops) = shared.head().suggest(&shared.manifest, shared.me());
    let learnt = shared.lineage.state.kept.set().and(&own.learns);
    !suggested.is_empty() || !drops.is_empty() || !learnt.is_empty()
}

/// A round begins: brings held and requested parts in line with the head. False if this peer lacks parts that it
/// claims to keep.
pub(crate) fn begin_round(shared: &mut Shared) -> bool {
    if !keeps_parts(&shared.manifest) {
        return true;
    }
    let (own, lost, now) = (own(shared), of_nobody(shared), shared.now);
    let head = &shared.lineage.head;
    let (stepped, untrained, round) = (head.stepped, head.untrained, head.round);
    go_on(shared);
    let (kept, keeping) = (&mut shared.lineage.state.kept, &mut shared.keeping);
    keeping.pending.clear();
    kept.retain(&own.kept.or(&own.learns).or(&lost));
    if shared.manifest.split.is_some() {
        // Parts that this peer gave up because others had them are restored if those have lost them.
        let damaged = kept.restore(&shared.manifest, &kept.damaged(&lost), &untrained);
        kept.take_as_they_are(&damaged);
    }
    // A reset part is zero, whatever a returning peer has kept of it.
    let mut anew = own.learns.or(&kept.set()).and(&untrained);
    if shared.manifest.split.is_some() {
        // No part is reset once it was trained, so the kept values are the first ones.
        anew = anew.without(&kept.set());
    }
    kept.begin(&shared.manifest, &anew);
    let members = &shared.lineage.head.members;
    let goes_on = |part: u16, learning: &Learning| {
        let wanted = own.learns.contains(part) && !anew.contains(part);
        let from = members.iter().find(|m| m.peer == learning.from);
        let fits = learning
            .stepped
            .is_none_or(|at| at == stepped || !learning.is_whole);
        let behind = learning.stepped.is_some_and(|at| at != stepped) && !learning.is_whole;
        wanted
            && from.is_some_and(|m| m.keeper.kept.contains(part))
            && fits
            && !behind
            && round < learning.asked_at + ROUNDS
    };
    keeping.learning.retain(|part, learning| goes_on(*part, learning));
    let whole: Vec<u16> = keeping
        .learning
        .iter()
        .filter(|(_, l)| l.is_whole)
        .map(|(part, _)| *part)
        .collect();
    for part in whole {
        let learning = keeping.learning.remove(&part).expect("just found");
        kept.insert(part, learning.slots);
        keeping.unproven.insert(part);
    }
    // A part that nobody keeps any more cannot be compared.
    keeping.unproven = keeping.unproven.and(&kept.set()).without(&lost).without(&anew);
    let lacks = own.kept.without(&kept.set());
    if lost.is_empty() {
        (keeping.lacks_since, keeping.told) = (None, PartSet::default());
    } else {
        keeping.lacks_since.get_or_insert(now);
    }
    hand_out(shared);
    ask(shared);
    disk::ask(shared);
    lacks.is_empty()
}

/// A round has stepped parts, or reset some. Marks the kept parts as current.
pub(crate) fn begin_anew(shared: &mut Shared) {
    let head = &shared.lineage.head;
    let (stepped, untrained) = (head.stepped, head.untrained);
    let kept = &mut shared.lineage.state.kept;
    kept.stepped = stepped;
    if shared.manifest.split.is_none() {
        kept.begin(&shared.manifest, &kept.set().and(&untrained));
    }
}

/// These members cannot train: reports once for which parts.
pub(crate) fn tell_lacking(members: &[PeerId], shared: &mut Shared) {
    let parts = shared
        .head()
        .uncovered(&shared.manifest, |peer| members.contains(&peer));
    let is_told = parts == shared.keeping.told || shared.keeping.restoring.is_some();
    if !parts.is_empty() && !is_told {
        shared.keeping.told = parts;
        let parts = parts.iter().collect();
        let wait = patience(&shared.manifest, &shared.settings.waits);
        shared.tell(Event::Lacking { parts, wait });
    }
}

/// This newcomer follows another head. Parts that do not match that head stay with it until it is a member: it may
/// still end up in another lineage, and be the only peer with the values trained there.
pub(crate) fn follow(shared: &mut Shared) {
    let others = of_others(shared);
    let pending = &mut shared.keeping.pending;
    go_along(&mut shared.lineage, pending, &others, &shared.manifest);
}

/// This member has another head. Its parts are of use only while parts stay as they are.
pub(crate) fn go_on(shared: &mut Shared) {
    let others = of_others(shared);
    let pending = &mut shared.keeping.pending;
    go_along_or_drop(&mut shared.lineage, pending, &others, &shared.manifest);
}

/// This peer is not a member any more. It gives up the parts that it was about to learn and, if `damaged`, all
/// parts.
pub(crate) fn leave(damaged: bool, shared: &mut Shared) {
    let keeping = std::mem::take(&mut shared.keeping);
    (shared.keeping.leaves_since, shared.keeping.line) = (keeping.leaves_since, keeping.line);
    let kept = &mut shared.lineage.state.kept;
    kept.retain(&kept.set().without(&keeping.unproven));
    match damaged {
        false => shared.keeping.pending = keeping.pending,
        true => kept.clear(),
    }
}

/// In a split run, whether some parts are here and have not changed by themselves. A changed part that nobody else
/// has is accepted as it is: a wrong bit, but otherwise the run would be over. Untrained parts are reset. A peer
/// that accepted a changed one there would differ from peers that reset theirs, and be cut off for good.
pub(crate) fn is_sound(parts: &PartSet, others: &PartSet, shared: &mut Shared) -> bool {
    if shared.settings.planted(Bug::BelieveParts) {
        return true;
    }
    let untrained = shared.lineage.head.untrained;
    let kept = &mut shared.lineage.state.kept;
    let damaged = kept.restore(&shared.manifest, &kept.damaged(parts), &untrained);
    kept.take_as_they_are(&damaged.without(others));
    damaged.and(others).is_empty() && parts.without(&kept.set()).is_empty()
}

/// Parts that others keep, by the head, and do not drop.
pub(crate) fn of_others(shared: &Shared) -> PartSet {
    let me = shared.me();
    let others = shared.head().members.iter();
    let others = others.filter(|m| m.peer != me && !m.keeper.leaves);
    others.fold(PartSet::default(), |all, m| all.or(&m.keeper.kept))
}

/// The digest of a part in most of a round's headers.
fn most_say(record: &Record, part: u16) -> Option<u64> {
    most(record.headers.iter().filter_map(|h| h.keeps.digest(part)))
}

/// A round is about to be applied. Its headers show whether the learned parts are right.
pub(crate) fn prove(record: &Record, shared: &mut Shared) {
    let (kept, keeping) = (&mut shared.lineage.state.kept, &mut shared.keeping);
    for part in keeping.unproven.iter() {
        let Some(digest) = most_say(record, part) else {
            continue;
        };
        keeping.unproven.remove(part);
        if kept.digest(part) != Some(digest) {
            kept.retain(&kept.set().without(&[part].into_iter().collect()));
        }
    }
}

/// In a split run, drops this peer's parts whose digest differs from that of most keepers. False if there are none,
/// so that it cannot tell what of its state is wrong.
pub(crate) fn let_go_of_differing(record: &Record, shared: &mut Shared) -> bool {
    if shared.manifest.split.is_none() {
        return false;
    }
    let kept = &mut shared.lineage.state.kept;
    let differs =
        |part: &u16| most_say(record, *part).is_some_and(|digest| kept.digest(*part) != Some(digest));
    let differing: PartSet = kept.set().iter().filter(differs).collect();
    kept.retain(&kept.set().without(&differing));
    !differing.is_empty()
}

/// A round is in the state, with updates that do not follow from their sums here. Their publishers may have used
/// another norm than this peer. If the next round shows that their moments equal this peer's all the same, they
/// have lied.
pub(crate) fn judge(
    record: &Record,
    doubted: BTreeSet<(PeerId, u16)>,
    shared: &mut Shared,
) -> BTreeMap<PeerId, u16> {
    let of = |peer| record.headers.iter().find(|h| h.peer == peer).map(|h| &h.keeps);
    let digest = |peer, part| of(peer).and_then(|keeps| keeps.digest(part));
    let me = shared.me();
    let (round, before) = std::mem::replace(&mut shared.keeping.doubted, (record.round, doubted));
    // A member that was away for a round has learned its moments from others.
    let before = before.into_iter().filter(|_| record.round == round + 1);
    before
        .filter(|(peer, part)| digest(*peer, *part).is_some_and(|said| Some(said) == digest(me, *part)))
        .collect()
}

/// A member asks for a part. It gets the part at once if nothing of the next round has been sent (`idle`),
/// otherwise after that round.
pub(crate) fn on_learn(from: PeerId, part: u16, idle: bool, shared: &mut Shared) {
    let questions = &mut shared.keeping.questions;
    if questions.len() >= QUESTIONS || questions.contains(&(from, part)) {
        return shared.refused.count(Kind::Learn);
    }
    questions.push_back((from, part));
    if idle {
        hand_out(shared);
    }
}

/// Sends requested parts, as they are.
fn hand_out(shared: &mut Shared) {
    let piece = shared.manifest.piece.get() as usize;
    let Some(parts) = Parts::of(&shared.manifest) else {
        return;
    };
    let own = own(shared).kept;
    let others = of_others(shared);
    for (to, part) in std::mem::take(&mut shared.keeping.questions) {
        let Some(whole) = parts.range(part).filter(|_| own.contains(part)) else {
            continue;
        };
        // A learner of a changed part would find that out, and ask for it again.
        if shared.manifest.split.is_some() && !is_sound(&[part].into_iter().collect(), &others, shared) {
            shared.keeping.is_damaged = true;
            continue;
        }
        for (of, number) in parts.pieces(part, piece).zip(0..) {
            let here = of.start - whole.start..of.end - whole.start;
            let kept = &shared.lineage.state.kept;
            let stepped = kept.stepped;
            let Some(data) = kept.read(part, here) else { break };
            if !shared.allow(to, data.len(), Kind::Learn) {
                break;
            }
            let moments = Message::Moments {
                part,
                piece: number,
                stepped,
                data: data.into(),
            };
            shared.bulk(to, moments);
        }
    }
}

/// Asks for the parts that this peer has announced to learn.
fn ask(shared: &mut Shared) {
    let Some(parts) = Parts::of(&shared.manifest) else {
        return;
    };
    let wanted = own(shared).learns.without(&shared.lineage.state.kept.set());
    for part in wanted.iter() {
        if shared.keeping.learning.contains_key(&part) {
            continue;
        }
        let keeping = &shared.keeping;
        let busy = |peer: PeerId| {
            let asked = keeping
                .learning
                .values()
                .filter(|l| l.from == peer && !l.is_whole);
            asked.count() >= window(parts)
        };
        let me = shared.me();
        let keeps =
            |m: &&crate::ledger::Member| m.peer != me && m.keeper.kept.contains(part) && !busy(m.peer);
        let keepers: Vec<PeerId> = shared
            .head()
            .members
            .iter()
            .filter(keeps)
            .map(|m| m.peer)
            .collect();
        let up = |peer: &&PeerId| shared.links.is_up(**peer);
        let turn = usize::from(part) % keepers.len().max(1);
        let ring = || keepers[turn..].iter().chain(&keepers[..turn]);
        let Some(from) = ring().find(up).or_else(|| ring().next()).copied() else {
            continue;
        };
        let learning = Learning {
            from,
            asked_at: shared.head().round,
            stepped: None,
            slots: Vec::new(),
            here: BTreeSet::new(),
            is_whole: false,
        };
        shared.keeping.learning.insert(part, learning);
        shared.control(from, Message::Learn { part });
    }
}

/// A piece of a part has come. Whether it was requested and missing.
pub(crate) fn on_moments(
    from: PeerId,
    (part, piece): (u16, u32),
    stepped: Digest,
    data: &[u8],
    shared: &mut Shared,
) -> bool {
    let Some(parts) = Parts::of(&shared.manifest) else {
        return false;
    };
    let len = shared.manifest.piece.get() as usize;
    let (Some(whole), Some(of)) = (parts.range(part), parts.pieces(part, len).nth(piece as usize)) else {
        return false;
    };
    let manifest = shared.manifest.clone();
    let asked = shared.keeping.learning.get_mut(&part);
    let Some(learning) = asked.filter(|l| l.from == from && !l.is_whole) else {
        shared.refused.count(Kind::Moments);
        return false;
    };
    if learning.stepped != Some(stepped) {
        learning.stepped = Some(stepped);
        learning.slots = blank(&manifest, whole.len());
        learning.here.clear();
    }
    let here = of.start - whole.start..of.end - whole.start;
    let is_new = write(&mut learning.slots, here, data) && learning.here.insert(piece);
    if learning.here.len() < parts.pieces(part, len).count() {
        return is_new;
    }
    learning.is_whole = true;
    // A part of a later round than this peer's waits for that round.
    if stepped == shared.lineage.head.stepped && own(shared).learns.contains(part) {
        let learning = shared.keeping.learning.remove(&part).expect("just found");
        shared.lineage.state.kept.insert(part, learning.slots);
        shared.keeping.unproven.insert(part);
    }
    ask(shared);
    true
}

/// The link to a member is down, and requests to it are lost.
pub(crate) fn lost(peer: PeerId, shared: &mut Shared) {
    shared
        .keeping
        .learning
        .retain(|_, learning| learning.from != peer || learning.is_whole);
    ask(shared);
}
