//! Which of two lineages stands when they meet.
//!
//! The comparison counts the members from before the two parted, and where each went by its own signature. A side
//! with less than half as many as the other yields. Contributors do not count. If the sides are closer, the samples
//! decide. Peers that were not members then count for neither side, since new names are free; all count only if no
//! old member is left. An unproven statement counts as one voice, that of the peer that makes it. A former member
//! whose ticket was revoked has none; the other side is told so, and then puts it out too.
//!
//! Both sides must reach the same verdict, or they pass each other by. So the place where they parted is the last
//! one that both remember, whoever is there today. After a storm of failures they do not always remember the same
//! place. If the larger number alone decided, each could then take itself for the larger; samples look the same
//! from both sides.
//!
//! Nobody can prove a number of samples before it is followed. So a peer that has then shown fewer than it claimed, twice,
//! is not believed for a while: a liar would otherwise draw all others out of their rounds, again and again.

use crate::access::signature::Signed;
use crate::base::id::{Digest, PeerId, Round};
use crate::base::planted::Bug;
use crate::ledger::claim::{Claim, Standing};
use crate::ledger::fork::{FORKS, Fork};
use crate::ledger::{Head, Header};
use crate::peer::shared::Shared;
use std::collections::BTreeSet;

/// The lineage that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    /// This peer's own, or it is the same.
    Ours,
    /// The other; this peer is the way into it.
    Theirs(PeerId),
    /// The proof was forged.
    Forged,
}

/// This peer's side of the comparison.
pub(crate) struct Side<'a> {
    /// The members here.
    pub members: &'a [PeerId],
    /// A member here that has signed for a later round elsewhere has gone there. Rounds up to this one do not show
    /// that.
    pub until: Round,
    /// The lead in samples that the other needs, if samples decide.
    pub lead: u64,
    /// Whether this peer is a member there, and does not only follow: where it has itself left other lineages says nothing
    /// about one that it follows.
    pub is_own: bool,
}

/// Another peer's lineage, with its proof.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub standing: Standing,
    /// The lineages at the places where others may have left it.
    pub places: &'a [Digest],
    pub claim: Option<&'a Claim>,
}

impl Shown<'_> {
    fn headers(&self) -> &[Signed<Header>] {
        self.claim.map_or(&[], |claim| &claim.record.headers)
    }

    /// Its members as far as it shows them, and the peer that shows it.
    pub fn voices(&self, from: PeerId) -> impl Iterator<Item = PeerId> {
        self.headers().iter().map(|h| h.peer).chain([from])
    }

    /// Whether others may have left it here.
    fn has_place(&self, chain: Digest) -> bool {
        self.standing.chain == chain || self.places.contains(&chain)
    }
}

/// Compares this peer's lineage with another, and tells that who was revoked here.
pub(crate) fn meet(ours: &Side<'_>, from: PeerId, theirs: &Shown<'_>, shared: &mut Shared) -> Stands {
    if theirs.standing.chain != shared.head().chain {
        shared.tell_revoked(from, theirs);
    }
    let stands = match shared.boasts.is_over(from, true, shared.now) {
        true => compare(ours, from, theirs, shared),
        false => Stands::Ours,
    };
    if let Stands::Theirs(_) = stands {
        shared.promised = Some((from, theirs.standing.samples));
    }
    stands
}

/// Compares this peer's lineage with another.
fn compare(ours: &Side<'_>, from: PeerId, theirs: &Shown<'_>, shared: &Shared) -> Stands {
    let mine = shared.lineage.standing();
    let wrong = |claim: &Claim| !claim.is_of(&theirs.standing, &shared.manifest);
    if theirs.standing.chain == mine.chain || theirs.claim.is_some_and(wrong) {
        return Stands::Ours;
    }
    let ahead = Standing {
        samples: mine.samples.saturating_add(ours.lead),
        ..mine
    };
    // A signature for the round in work here does not show that its author went elsewhere.
    let next = theirs.claim.is_some_and(|claim| claim.before() == mine.chain);
    let stayed = |peer| ours.members.contains(&peer) && (next || theirs.standing.round <= ours.until);
    let heeds = shared.settings.planted(Bug::HeedRevoked);
    let is_out = |peer| !heeds && shared.head().tickets.against(peer, shared.root.run).is_some();
    let there: BTreeSet<PeerId> = theirs
        .voices(from)
        .filter(|peer| *peer != shared.me() && !stayed(*peer) && !is_out(*peer))
        .collect();
    let here = || ours.members.iter().filter(|peer| !there.contains(peer));
    let of_old = members_of_old(ours, from, theirs, shared);
    let old = |peer: &PeerId| of_old.contains(peer);
    let all_count = !there.iter().chain(here()).any(old);
    let counts = |peer: &&PeerId| all_count || old(peer);
    let voices: BTreeSet<PeerId> = there.iter().filter(counts).copied().collect();
    let (there, here) = (voices.len(), here().filter(counts).count());
    // If they parted before there were members, numbers say nothing: a side that has just begun may be larger than
    // one that has come far.
    let speak = !of_old.is_empty();
    let (few, many) = (speak && 2 * there < here, speak && there > 2 * here);
    if there == 0 || few || (!many && !theirs.standing.beats(&ahead)) {
        return Stands::Ours;
    }
    // Checked last, since it costs more than all before. Signatures of members that do not count are checked too:
    // the peer that shows the proof has accepted all of them.
    let forged = |claim: &Claim| !claim.is_signed(shared.scheme());
    if theirs.claim.is_some_and(forged) && !shared.settings.planted(Bug::TrustClaims) {
        return Stands::Forged;
    }
    // A peer that shows others' signatures need not be one of them.
    let mut reachable = voices.iter().filter(|peer| shared.links.is_up(**peer));
    let way = voices.get(&from).or_else(|| reachable.next());
    Stands::Theirs(*way.unwrap_or(&from))
}

/// The members where two lineages parted: at the last place that both know, which may be before there were any. If
/// they know none in common: where this peer itself has left the other or, failing that, before this lineage lost
/// the first of the other's members.
fn members_of_old(ours: &Side<'_>, from: PeerId, theirs: &Shown<'_>, shared: &Shared) -> Vec<PeerId> {
    let (head, me) = (shared.head(), shared.me());
    let common = head.places().find(|place| theirs.has_place(place.chain));
    if let Some(common) = common {
        return common.members;
    }
    // A peer that was led back to where it had been long before remembers by itself where it has left the other.
    let left = shared.left.iter().find(|place| theirs.has_place(place.chain));
    if let Some(left) = left.filter(|_| ours.is_own) {
        return left.members.clone();
    }
    let there =
        |peer: &PeerId| *peer != me && (*peer == from || theirs.headers().iter().any(|h| h.peer == *peer));
    let first = head.forks.iter().find(|fork| fork.lost.iter().any(there));
    if let Some(first) = first {
        return first.members.clone();
    }
    let here: Vec<PeerId> = head.full_members().collect();
    match shared.forgetful && !here.iter().any(there) {
        // As far as it remembers they are strangers, so all of them are one voice, as this peer is.
        true => vec![me, from],
        false => here,
    }
}

/// Samples that one head counts and the other does not, which a peer shows: those since the two parted, as far as they remember
/// where that was.
///
/// They parted at the last place that both know, unless both have lost the same members there: then they went on together, and
/// parted where `ours` next lost some.
pub(crate) fn counted_apart(ours: &Head, theirs: &Head, from: PeerId, me: PeerId) -> u64 {
    let known = |place: &Fork| theirs.places().any(|other| other.chain == place.chain);
    let common = ours.places().find(known);
    // All remember for ever where nobody was a member yet.
    let is_beginning = |place: &Fork| place.members.is_empty();
    let went_on = |place: &Fork| {
        let lost = lost_at(ours, place.chain);
        is_beginning(place) || (!lost.is_empty() && lost == lost_at(theirs, place.chain))
    };
    let since = common.as_ref().map_or(0, |place| place.samples);
    let parted = match common {
        Some(place) if !went_on(&place) => Some(place),
        shared if theirs.forks.len() >= FORKS => {
            // It may have forgotten where that was, but the oldest first: so not before what both know.
            let known = shared.map(|place| place.chain);
            let mut later = ours.places().take_while(|place| Some(place.chain) != known);
            let parts = |place: &Fork| place.samples >= since && place.lost.contains(&from);
            later.find(parts).filter(|_| ours.position(from).is_none())
        }
        shared => {
            let later = |fork: &&Fork| !is_beginning(fork) && fork.samples >= since && !known(fork);
            // Each loss leaves two places, of which the second is where the round was that went on without somebody.
            let apart = ours.forks.iter().filter(later).take(2).last().cloned();
            let strangers = || members_ever(ours, me).is_disjoint(&members_ever(theirs, me));
            apart.or_else(|| shared.filter(|place| is_beginning(place) && strangers()))
        }
    };
    parted.map_or(0, |place| ours.samples.saturating_sub(place.samples))
}

/// The members that a head has lost at a place.
fn lost_at(head: &Head, chain: Digest) -> BTreeSet<PeerId> {
    let fork = head.forks.iter().find(|fork| fork.chain == chain);
    fork.iter().flat_map(|fork| &fork.lost).copied().collect()
}

/// All others that were full members at the places that a head remembers.
fn members_ever(head: &Head, me: PeerId) -> BTreeSet<PeerId> {
    let members = head.places().flat_map(|place| place.members);
    members.filter(|peer| *peer != me).collect()
}
