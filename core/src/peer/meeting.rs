//! Where lineages meet: which of two stands.
//!
//! Compared is how many of the members of old, from before the two parted, have gone which way, as they have signed it: less
//! than half as many yield to the others. Contributors do not count. Between sides that are nearer to each other samples decide. Who was no member
//! then counts for neither side, since names are free; only where none of the members of old is left, all count. What one
//! peer says by mouth alone is one voice, its own.
//!
//! Both sides must come to the same verdict, or they pass each other by. So where they parted is the last place that both
//! remember, whoever is there today. After a storm of failures they do not always remember one: if the larger number alone
//! decided, each could take itself for the larger; samples both see alike.

use crate::access::signature::Signed;
use crate::base::id::{Digest, PeerId, Round};
use crate::base::planted::Bug;
use crate::ledger::claim::{Claim, Standing};
use crate::ledger::fork::{FORKS, Fork};
use crate::ledger::{Head, Header};
use crate::peer::shared::Shared;
use std::collections::BTreeSet;

/// Which of two lineages stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    /// One's own, or it is the same.
    Ours,
    /// The other, into which this peer is the way.
    Theirs(PeerId),
    /// What was shown is forged.
    Forged,
}

/// What is compared with another lineage.
pub(crate) struct Side<'a> {
    /// Who is here.
    pub members: &'a [PeerId],
    /// Who is here and has signed for a later round elsewhere has gone there. Rounds up to this are none such.
    pub until: Round,
    /// Samples by which the other must be ahead, where samples decide.
    pub lead: u64,
}

/// What another shows of its lineage.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub standing: Standing,
    /// Where others may have left it before.
    pub places: &'a [Digest],
    pub claim: Option<&'a Claim>,
}

impl Shown<'_> {
    fn headers(&self) -> &[Signed<Header>] {
        self.claim.map_or(&[], |claim| &claim.record.headers)
    }

    /// Whether others may have left it here.
    fn has_place(&self, chain: Digest) -> bool {
        self.standing.chain == chain || self.places.contains(&chain)
    }
}

/// Compares this peer's lineage with the one that another shows.
pub(crate) fn compare(ours: &Side<'_>, from: PeerId, theirs: &Shown<'_>, shared: &Shared) -> Stands {
    let mine = shared.lineage.standing();
    let wrong = |claim: &Claim| !claim.is_of(&theirs.standing, &shared.manifest);
    if theirs.standing.chain == mine.chain || theirs.claim.is_some_and(wrong) {
        return Stands::Ours;
    }
    let ahead = Standing {
        samples: mine.samples.saturating_add(ours.lead),
        ..mine
    };
    // Who has signed for the round in work here has not gone elsewhere by that.
    let next = theirs.claim.is_some_and(|claim| claim.before() == mine.chain);
    let stayed = |peer| ours.members.contains(&peer) && (next || theirs.standing.round <= ours.until);
    let signers = theirs.headers().iter().map(|h| h.peer).chain([from]);
    let there: BTreeSet<PeerId> = signers
        .filter(|peer| *peer != shared.me() && !stayed(*peer))
        .collect();
    let here = || ours.members.iter().filter(|peer| !there.contains(peer));
    let of_old = members_of_old(from, theirs, shared);
    let old = |peer: &PeerId| of_old.contains(peer);
    let all_count = !there.iter().chain(here()).any(old);
    let counts = |peer: &&PeerId| all_count || old(peer);
    let voices: BTreeSet<PeerId> = there.iter().filter(counts).copied().collect();
    let (there, here) = (voices.len(), here().filter(counts).count());
    // Where they parted before anybody was a member, numbers say nothing: who has just begun may be more than who has come
    // far.
    let speak = !of_old.is_empty();
    let (few, many) = (speak && 2 * there < here, speak && there > 2 * here);
    if there == 0 || few || (!many && !theirs.standing.beats(&ahead)) {
        return Stands::Ours;
    }
    // Last, since it costs more than all before. Also of those who do not count: whoever shows it has taken all of them for
    // signed.
    let forged = |claim: &Claim| !claim.is_signed(shared.scheme());
    if theirs.claim.is_some_and(forged) && !shared.settings.planted(Bug::TrustClaims) {
        return Stands::Forged;
    }
    // Whoever brings what others have signed need not be one of them.
    let mut reachable = voices.iter().filter(|peer| shared.links.is_up(**peer));
    let way = voices.get(&from).or_else(|| reachable.next());
    Stands::Theirs(*way.unwrap_or(&from))
}

/// The members where two lineages parted: at the last place that both know, which may be before there were any. Where they
/// know none, where this peer itself has left the other; or else before this one lost the first of those who are there, as it
/// remembers it.
fn members_of_old(from: PeerId, theirs: &Shown<'_>, shared: &Shared) -> Vec<PeerId> {
    let (head, me) = (shared.head(), shared.me());
    let common = head.places().find(|place| theirs.has_place(place.chain));
    if let Some(common) = common {
        return common.members;
    }
    // Whoever was led back to where it had been long before remembers by itself where it has left the other.
    let left = shared.left.iter().find(|place| theirs.has_place(place.chain));
    if let Some(left) = left {
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
        // Strangers, as far as it remembers: all of them are one voice, as it is itself.
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
    let parted = match common {
        Some(place) if !went_on(&place) => Some(place),
        _ if theirs.forks.len() >= FORKS => {
            // It may have forgotten where that was.
            let mut forks = ours.forks.iter().filter(|_| ours.position(from).is_none());
            forks.rfind(|fork| fork.lost.contains(&from)).cloned()
        }
        shared => {
            let since = shared.as_ref().map_or(0, |place| place.samples);
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
