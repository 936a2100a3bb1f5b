//! A peer's own way with the parts of the moments: what it says of them, what it fetches and hands out, how long it waits for
//! what nobody keeps.
//!
//! Who learns a part says so first, so that from the next round on the part's sums pass it. Then it asks a keeper. That hands
//! the part out as it is right after a round, or before it has sent anything of the next: so the part is here before this
//! peer can commit a round that it is not stepped by, since no round is committed without the keeper's frames, which come
//! after. From then on it is stepped as by any keeper. This peer says that it keeps the part once a record's headers have shown
//! that its digest is the keepers'.

use crate::base::id::{Digest, PeerId};
use crate::base::planted::Bug;
use crate::ledger::keepers::most;
use crate::ledger::keeps::{Keeper, Keeps};
use crate::ledger::{Member, Record};
use crate::peer::disk;
use crate::peer::interface::Event;
use crate::peer::keeping::{GOODBYE, LOST, Learning, QUESTIONS, ROUNDS, go_along, go_along_or_drop, window};
use crate::peer::shared::Shared;
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use crate::state::moments::{blank, write};
use crate::wire::Message;
use crate::wire::rights::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What the head knows of this peer.
fn own(shared: &Shared) -> Keeper {
    let head = shared.head();
    head.position(shared.me())
        .map(|at| head.members[at].keeper)
        .unwrap_or_default()
}

/// What nobody keeps, by the head.
fn of_nobody(shared: &Shared) -> PartSet {
    shared.head().lacks(&shared.manifest, |_| true)
}

fn keeps_parts(manifest: &Manifest) -> bool {
    manifest.copies.is_some()
}

/// What this peer says in a header.
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
        insists: is_over(shared) || leaves_for > GOODBYE,
        room: shared.settings.room(&shared.manifest),
        line: shared.manifest.split.as_ref().map_or(0, |_| shared.keeping.line),
        refuses: false,
        saves: disk::is_due(shared),
        waits,
        saved,
    }
}

/// Whether some part has lacked a keeper for too long.
fn is_over(shared: &Shared) -> bool {
    // Weights that are lost are what the run was about: they are waited for as long as it takes.
    if shared.manifest.split.is_some() {
        return false;
    }
    shared
        .keeping
        .lacks_since
        .is_some_and(|since| shared.now - since >= LOST)
}

/// Whether a round is worth it by itself, among these members: somebody is gone without whom a part has no keeper, or a part
/// without any can have one, or is waited for no longer.
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

/// Where the model is split: whether somebody is gone that was to take some of it, and for whom it is left as long as the head
/// has that one.
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

/// Whether, where the model is split, this peer takes a span, or one that it was to learn is here.
fn has_news_of_spans(shared: &Shared) -> bool {
    let own = own(shared);
    let (suggested, drops) = shared.head().suggest(&shared.manifest, shared.me());
    let learnt = shared.lineage.state.kept.set().and(&own.learns);
    !suggested.is_empty() || !drops.is_empty() || !learnt.is_empty()
}

/// A round begins: what is held and fetched is brought in line with the head. False if this peer lacks what it said it keeps.
pub(crate) fn begin_round(shared: &mut Shared) -> bool {
    if !keeps_parts(&shared.manifest) {
        return true;
    }
    let (own, lost, now) = (own(shared), of_nobody(shared), shared.now);
    let head = &shared.lineage.head;
    let (stepped, untrained, round) = (head.stepped, head.untrained, head.round);
    go_on(shared);
    let (kept, keeping) = (&mut shared.lineage.state.kept, &mut shared.keeping);
    keeping.pending = None;
    kept.retain(&own.kept.or(&own.learns).or(&lost));
    if shared.manifest.split.is_some() {
        // Who has gone with it because others had it brings it back if they have lost it.
        let damaged = kept.restore(&shared.manifest, &kept.damaged(&lost), &untrained);
        kept.take_as_they_are(&damaged);
    }
    // What begins anew is zero, whatever somebody who was away has kept of it.
    let mut anew = own.learns.or(&kept.set()).and(&untrained);
    if shared.manifest.split.is_some() {
        // No part begins anew once something was trained, so what is here is what it begins with.
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
    // Of what nobody keeps any more there is nobody to compare with.
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

/// A round has stepped parts, or some of them begin anew: what is kept goes along.
pub(crate) fn begin_anew(shared: &mut Shared) {
    let head = &shared.lineage.head;
    let (stepped, untrained) = (head.stepped, head.untrained);
    let kept = &mut shared.lineage.state.kept;
    kept.stepped = stepped;
    if shared.manifest.split.is_none() {
        kept.begin(&shared.manifest, &kept.set().and(&untrained));
    }
}

/// Some members cannot train: tells for which parts, once.
pub(crate) fn tell_lacking(members: &[PeerId], shared: &mut Shared) {
    let parts = shared
        .head()
        .uncovered(&shared.manifest, |peer| members.contains(&peer));
    let is_told = parts == shared.keeping.told || shared.keeping.restoring.is_some();
    if !parts.is_empty() && !is_told {
        shared.keeping.told = parts;
        let parts = parts.iter().collect();
        shared.tell(Event::Lacking { parts, wait: LOST });
    }
}

/// This newcomer follows another head. What it keeps and is not what that says stays with it until it is a member: it may end
/// up in another lineage still, and be the only one that has what was trained there.
pub(crate) fn follow(shared: &mut Shared) {
    let others = of_others(shared);
    let pending = &mut shared.keeping.pending;
    go_along(&mut shared.lineage, pending, &others, &shared.manifest);
}

/// This member has another head: what it keeps is of use no longer than parts stay as they are.
pub(crate) fn go_on(shared: &mut Shared) {
    let others = of_others(shared);
    let pending = &mut shared.keeping.pending;
    go_along_or_drop(&mut shared.lineage, pending, &others, &shared.manifest);
}

/// This peer is no member any more: what it was about to learn is given up, and all that it keeps if that is `damaged`.
pub(crate) fn leave(damaged: bool, shared: &mut Shared) {
    let keeping = std::mem::take(&mut shared.keeping);
    (shared.keeping.leaves_since, shared.keeping.line) = (keeping.leaves_since, keeping.line);
    shared.keeping.pending = keeping.pending.filter(|_| !damaged);
    let kept = &mut shared.lineage.state.kept;
    kept.retain(&kept.set().without(&keeping.unproven));
    if damaged {
        kept.clear();
    }
}

/// Where the model is split: whether some parts are here and what they were when they were stepped last. What has changed and
/// nobody else has goes on as it has become: a wrong bit, and else the run would be over. What was never trained begins anew:
/// whoever takes it from there too would have other bits than who goes on with what has changed, and be cast out for ever.
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

/// What others keep, by the head, and go on keeping.
pub(crate) fn of_others(shared: &Shared) -> PartSet {
    let me = shared.me();
    let others = shared.head().members.iter();
    let others = others.filter(|m| m.peer != me && !m.keeper.leaves);
    others.fold(PartSet::default(), |all, m| all.or(&m.keeper.kept))
}

/// What most of a round's headers that keep a part say of it.
fn most_say(record: &Record, part: u16) -> Option<u64> {
    most(record.headers.iter().filter_map(|h| h.keeps.digest(part)))
}

/// A round is about to be taken into the state: what its headers say shows whether what was learnt is what it should be.
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

/// Where the model is split: lets go of the parts that this peer keeps and of which most that keep them say something else. False
/// if there are none, so that it cannot say what of its state is wrong.
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

/// A round is in the state, with updates by some that their sums do not give here. They may have been told another norm than
/// this peer. If their moments are this peer's after that all the same they have lied: those whom the next round shows so.
pub(crate) fn judge(
    record: &Record,
    doubted: BTreeSet<(PeerId, u16)>,
    shared: &mut Shared,
) -> BTreeMap<PeerId, u16> {
    let of = |peer| record.headers.iter().find(|h| h.peer == peer).map(|h| &h.keeps);
    let digest = |peer, part| of(peer).and_then(|keeps| keeps.digest(part));
    let me = shared.me();
    let (round, before) = std::mem::replace(&mut shared.keeping.doubted, (record.round, doubted));
    // Who was away for a round has learnt its moments from others.
    let before = before.into_iter().filter(|_| record.round == round + 1);
    before
        .filter(|(peer, part)| digest(*peer, *part).is_some_and(|said| Some(said) == digest(me, *part)))
        .collect()
}

/// A member asks for a part. It gets it at once where nothing of the next round has been sent (`idle`), else after that.
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

/// Hands out what was asked for, as it is.
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
        // Whoever learns what has changed finds that out, and would ask for it again.
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

/// Asks for what this peer has said it learns.
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

/// A piece of a part has come. Whether it was asked for, and was not here.
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
    // One that is of a later round than this peer's waits for that.
    if stepped == shared.lineage.head.stepped && own(shared).learns.contains(part) {
        let learning = shared.keeping.learning.remove(&part).expect("just found");
        shared.lineage.state.kept.insert(part, learning.slots);
        shared.keeping.unproven.insert(part);
    }
    ask(shared);
    true
}

/// The link to a member is gone, and what it was asked for with it.
pub(crate) fn lost(peer: PeerId, shared: &mut Shared) {
    shared
        .keeping
        .learning
        .retain(|_, learning| learning.from != peer || learning.is_whole);
    ask(shared);
}
