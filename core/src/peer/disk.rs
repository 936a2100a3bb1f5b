//! Parts on a member's disk, in a split run: what it tells of them while nobody has the trained values of some
//! parts, and how it restores them. `back.rs` decides when a run goes back.

use crate::base::id::Digest;
use crate::base::planted::Bug;
use crate::ledger::saved::Saved;
use crate::peer::interface::Output;
use crate::peer::shared::Shared;
use crate::state::moments::Moments;

/// Whether this peer's driver saves the parts of the last round: each driver does so after every few rounds.
pub(crate) fn is_due(shared: &Shared) -> bool {
    let (head, every) = (shared.head(), shared.settings.saves_every);
    let is_split = shared.manifest.split.is_some();
    is_split && head.stepped == head.chain && every > 0 && head.round.is_multiple_of(every)
}

/// This peer's statement while nobody has the trained values of some parts: whether it has waited long enough for
/// them, and what it has on its disk.
pub(crate) fn offer(shared: &Shared) -> (bool, Vec<Saved>) {
    let head = shared.head();
    // A peer that is about to restore its parts need not offer them.
    let speaks = head.is_full(shared.me()) && shared.keeping.restoring.is_none();
    if !speaks || head.lost(&shared.manifest).is_empty() {
        return (false, Vec::new());
    }
    let since = shared.keeping.lacks_since;
    let waits = since.is_some_and(|since| shared.now - since >= shared.settings.waits.lost_weights);
    let remembered = |saved: &&Saved| head.points.iter().any(|point| point.stepped == saved.stepped);
    let mut saved: Vec<Saved> = shared.saved.iter().filter(remembered).copied().collect();
    saved.retain(|saved| !saved.parts.is_empty());
    saved.sort_by_key(|saved| saved.stepped.0);
    saved.dedup_by_key(|saved| saved.stepped);
    (waits, saved)
}

/// Whether the offer is new to the others.
pub(crate) fn has_offer(shared: &Shared) -> bool {
    let (waits, saved) = offer(shared);
    let me = shared.me();
    let known = shared.head().offers.iter().find(|offer| offer.peer == me);
    match known {
        Some(known) => (known.waits, &known.saved) != (waits, &saved),
        None => waits || !saved.is_empty(),
    }
}

/// Asks the driver for lost parts of the head's state that are on this peer's disk.
pub(crate) fn ask(shared: &mut Shared) {
    let lost = shared.head().lost(&shared.manifest);
    let missing = lost.without(&shared.lineage.state.kept.set());
    if missing.is_empty() || shared.keeping.restoring.is_some() {
        return;
    }
    let stepped = shared.head().stepped;
    let is_of_it = |saved: &&Saved| saved.stepped == stepped || shared.settings.planted(Bug::RestoreAny);
    let fits = |saved: &&Saved| is_of_it(saved) && !saved.parts.and(&missing).is_empty();
    if let Some(saved) = shared.saved.iter().rfind(fits) {
        let stepped = saved.stepped;
        shared.keeping.restoring = Some(stepped);
        shared.out.push_back(Output::Restore { stepped });
    }
}

/// The driver has read the parts, or could not. This peer keeps them again, if nobody else does by now, like a peer
/// that comes back with them.
pub(crate) fn on_restored(stepped: Digest, kept: Option<Box<Moments>>, shared: &mut Shared) {
    if shared
        .keeping
        .restoring
        .take_if(|asked| *asked == stepped)
        .is_none()
    {
        return;
    }
    let lost = shared.head().lost(&shared.manifest);
    let here = &mut shared.lineage.state.kept;
    let is_of_it = shared.lineage.head.stepped == stepped || shared.settings.planted(Bug::RestoreAny);
    if let Some(restored) = kept.filter(|_| is_of_it) {
        here.take_from(*restored, &lost);
    }
    ask(shared);
}
