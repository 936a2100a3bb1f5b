//! Where lineages meet: which of two stands.
//!
//! Compared is how many of the members of old, from before the two parted, have gone which way, as they have signed it: less
//! than half as many yield to the others. Contributors do not count. Between sides that are nearer to each other samples decide. Who was no member
//! then counts for neither side, since names are free. What one peer says by mouth alone is one voice, its own.
//!
//! After a storm of failures two sides do not always remember the same members of old. If the larger number alone decided,
//! each could take itself for the larger, and they would never meet; samples both see alike.

use crate::claim::{Claim, Standing};
use crate::fork::Fork;
use crate::id::{PeerId, Round};
use crate::shared::Shared;
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

/// Compares this peer's lineage with the one that another shows.
pub(crate) fn compare(
    ours: &Side<'_>,
    from: PeerId,
    theirs: &Standing,
    claim: Option<&Claim>,
    shared: &Shared,
) -> Stands {
    let mine = shared.lineage.standing();
    let wrong = |claim: &Claim| !claim.is_of(theirs, &shared.manifest);
    if theirs.chain == mine.chain || claim.is_some_and(wrong) {
        return Stands::Ours;
    }
    let ahead = Standing {
        samples: mine.samples.saturating_add(ours.lead),
        ..mine
    };
    let headers = claim.map_or(&[][..], |claim| &claim.record.headers);
    let of_old = members_of_old(from, claim, shared);
    // Who has signed for the round in work here has not gone elsewhere by that.
    let next = claim.is_some_and(|claim| claim.before() == mine.chain);
    let stayed = |peer| ours.members.contains(&peer) && (next || theirs.round <= ours.until);
    let counts = |peer: PeerId| peer != shared.me() && of_old.contains(&peer) && !stayed(peer);
    let signers = headers.iter().map(|h| h.peer).filter(|peer| counts(*peer));
    let voices: BTreeSet<PeerId> = signers.chain([from].into_iter().filter(|p| counts(*p))).collect();
    let here = ours
        .members
        .iter()
        .filter(|m| of_old.contains(m) && !voices.contains(m));
    let (there, here) = (voices.len(), here.count());
    let (few, many) = (2 * there < here, there > 2 * here);
    if there == 0 || few || (!many && !theirs.beats(&ahead)) {
        return Stands::Ours;
    }
    // Last, since it costs more than all before.
    if claim.is_some_and(|claim| !claim.is_signed_by(|peer| voices.contains(&peer), shared.scheme())) {
        return Stands::Forged;
    }
    // Whoever brings what others have signed need not be one of them.
    let mut reachable = voices.iter().filter(|peer| shared.links.is_up(**peer));
    let way = voices.get(&from).or_else(|| reachable.next());
    Stands::Theirs(*way.unwrap_or(&from))
}

/// The members where two lineages parted, as this one remembers it: at the last place that both know and at which some
/// were members that are there. Where they know none, before this one lost the first of those who have gone that way.
fn members_of_old(from: PeerId, claim: Option<&Claim>, shared: &Shared) -> Vec<PeerId> {
    let (head, me) = (shared.head(), shared.me());
    let (headers, places) = claim.map_or_else(Default::default, |c| (&c.record.headers[..], &c.forks[..]));
    let there = |peer: &PeerId| *peer != me && (*peer == from || headers.iter().any(|h| h.peer == *peer));
    let is_common = |place: &Fork| places.contains(&place.chain) && place.members.iter().any(there);
    if let Some(common) = head.places().find(is_common) {
        return common.members;
    }
    // Where all members of a place are gone and newcomers have gone on from it, nobody there is more than another.
    let gone = |place: &Fork| head.members.iter().all(|m| !place.members.contains(&m.peer));
    let is_orphaned = |place: &Fork| place.orphaned && places.contains(&place.chain) && gone(place);
    if head.forks.iter().any(is_orphaned) {
        let here = head.members.iter().filter(|m| m.is_full()).map(|m| m.peer);
        return here.chain(headers.iter().map(|h| h.peer)).chain([from]).collect();
    }
    let first = head.forks.iter().find(|fork| fork.lost.iter().any(there));
    if let Some(first) = first {
        return first.members.clone();
    }
    let here: Vec<PeerId> = head
        .members
        .iter()
        .filter(|m| m.is_full())
        .map(|m| m.peer)
        .collect();
    match shared.forgetful && !here.iter().any(there) {
        // Strangers, as far as it remembers: all of them are one voice, as it is itself.
        true => vec![me, from],
        false => here,
    }
}
