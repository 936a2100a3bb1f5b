//! Signs a liar's changed statements again, so that the checks beyond its signature are tested too.

use crate::access::signature::{Attempt, Key, Signed};
use crate::base::id::{Digest, RunId};
use crate::ledger::Header;
use crate::ledger::decision::Suspicion;
use crate::wire::{Message, ViewKey};

/// Signs again the statements of a key's owner in a message, as if it belonged to this lineage.
pub(super) fn resign(message: &mut Message, key: &Key, chain: Digest, run: RunId) {
    let me = key.peer();
    let headers = |view: ViewKey, headers: &mut [Signed<Header>]| {
        for header in headers.iter_mut().filter(|header| header.peer == me) {
            header.signature = key.sign(&Attempt { chain, view }, &header.content);
            for newcomer in header.content.ready.iter_mut().filter(|n| n.peer() == me) {
                newcomer.ready.signature = key.sign(&run, &newcomer.ready.content);
            }
        }
    };
    match message {
        Message::Piece {
            view, headers: own, ..
        }
        | Message::Headers { view, headers: own } => headers(*view, own),
        Message::Committed { view, record, .. } => headers(*view, &mut record.headers),
        Message::Flush {
            view,
            suspects,
            signature,
        } => *signature = key.sign(&Attempt { chain, view: *view }, &Suspicion(suspects)),
        Message::Decision {
            view,
            suspects,
            proof,
        } => {
            for (_, signature) in proof.iter_mut().filter(|(peer, _)| *peer == me) {
                *signature = key.sign(&Attempt { chain, view: *view }, &Suspicion(suspects));
            }
        }
        Message::Ready { ready: Some(ready) } => ready.signature = key.sign(&run, &ready.content),
        _ => {}
    }
}
