//! Answers to peers that are behind: about an attempt or round that is over here, or to a peer outside of the view.

use crate::access::signature::{Attempt, Signed};
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::collective::finished_piece;
use crate::ledger::Header;
use crate::ledger::conviction::Conviction;
use crate::ledger::decision::Decided;
use crate::peer::shared::{Shared, Stage};
use crate::wire::rights::Kind;
use crate::wire::view::View;
use crate::wire::{Message, ViewKey};

/// The attempt in work, if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a> {
    pub view: &'a View,
    /// Aborted attempts of the round.
    pub decided: &'a [Decided],
}

/// Answers a message about an attempt or round that is over here. `flush` if it was one.
pub(crate) fn answer(
    from: PeerId,
    view: ViewKey,
    flush: Option<Vec<PeerId>>,
    here: Option<Here<'_>>,
    stage: Stage,
    shared: &mut Shared,
) {
    let last = shared.lineage.last.as_ref();
    let of_last = last.map_or(&[][..], |last| &last.decided);
    let mut decided = here.map_or(&[][..], |here| here.decided).iter().chain(of_last);
    if let Some(decided) = decided.find(|d| d.view == view) {
        let message = Message::decision(decided);
        shared.control(from, message);
    } else if let Some(last) = last.filter(|last| last.view == view) {
        let Some(suspects) = flush else { return };
        let message = match last.attempt(view) {
            Some(known) if shared.settings.planted(Bug::CommittedFlushes) => {
                Message::flush(&known.attempt, suspects, false, &shared.settings.key)
            }
            _ => last.message(),
        };
        shared.control(from, message);
    } else {
        tell_stranger(from, view, here, stage, shared);
    }
}

/// Tells a peer outside of this peer's view where this lineage stands.
pub(crate) fn tell_stranger(
    from: PeerId,
    view: ViewKey,
    here: Option<Here<'_>>,
    stage: Stage,
    shared: &mut Shared,
) {
    if let Some(here) = here {
        if here.view.contains(from) {
            return;
        }
        let excluded = here.decided.iter().rposition(|d| d.suspects.contains(&from));
        if let Some(last) = excluded.filter(|i| view.round >= here.decided[*i].view.round) {
            // It accepts decisions about attempts that it was in, so it needs all from its own on.
            for decided in here.decided[..=last]
                .iter()
                .filter(|d| d.view.attempt >= view.attempt)
            {
                shared.control(from, Message::decision(decided));
            }
            return;
        }
    }
    shared.send_status(from, stage);
}

/// The answer of a peer that cannot be followed and has no state.
pub(crate) fn not_a_member() -> Message {
    Message::NotMember {
        standing: None,
        follows: None,
    }
}

/// A contradiction between another peer's headers of the last round and those that were committed.
pub(crate) fn contradiction(
    view: ViewKey,
    headers: &[Signed<Header>],
    shared: &Shared,
) -> Option<Conviction> {
    let last = shared.lineage.last.as_ref().filter(|last| last.view == view)?;
    let chain = last.before.chain;
    Conviction::find(Attempt { chain, view }, &last.record.headers, headers)
}

/// Sends the pieces that a peer lacks of the last round, or reports that it is committed. False if the peer asks
/// about another round, or neither took part in it nor follows.
pub(crate) fn repair(
    from: PeerId,
    follows: bool,
    view: ViewKey,
    missing: &[(u16, u32)],
    shared: &mut Shared,
) -> bool {
    let is_last = shared.lineage.last.as_ref().is_some_and(|last| last.view == view);
    if !is_last || !(follows || shared.lineage.knows(from)) {
        return false;
    }
    let of_last = |shared: &Shared, (chunk, piece): (u16, u32)| {
        let last = shared.lineage.last.as_ref()?;
        let data = shared.lineage.last_piece(chunk, piece)?;
        let mut message = finished_piece(last.view, (chunk, piece), data);
        // With each piece, since other pieces of its chunk may take another way, and overtake the last of these.
        let sealed = shared.lineage.seals.of(last.view);
        if let (Message::Piece { seal, .. }, Some(sealed)) = (&mut message, sealed) {
            *seal = sealed.seals.get(usize::from(chunk)).cloned().map(Box::new);
        }
        Some(message)
    };
    if missing.is_empty() {
        let committed = shared.lineage.last.as_ref().map(|last| last.message());
        committed.map(|committed| shared.control(from, committed));
    }
    for lacking in missing {
        let Some(message) = of_last(shared, *lacking) else {
            continue;
        };
        if !shared.allow(from, message.payload_len(), Kind::Repair) {
            break;
        }
        shared.bulk(from, message);
    }
    true
}
