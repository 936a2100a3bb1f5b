//! Streamed data: who has it, and what a newcomer will need of it first.

use super::NativeHost;
use crate::data::provision::Source;
use annulus_core::Peer;
use annulus_core::ledger::Member;
use annulus_core::peer::Event as PeerEvent;
use annulus_core::shuffle::Shuffle;

impl NativeHost<'_> {
    /// Names the peers that take part now. A newcomer also asks for the data of the batch that comes next, of which it will have a
    /// share.
    pub(super) fn foresee(&mut self, event: &PeerEvent, peer: &Peer) {
        let Some(demand) = &self.demand else { return };
        match event {
            PeerEvent::Entered | PeerEvent::Member { .. } => {
                let others = peer
                    .head()
                    .members
                    .iter()
                    .filter(|member| member.peer != peer.me());
                let source = |member: &Member| Source {
                    peer: member.peer,
                    contact: member.contact.clone(),
                };
                demand.meet(others.map(source).collect());
            }
            PeerEvent::Syncing { .. } => {
                let (next, manifest) = (peer.head().cursor, peer.manifest());
                let batch = next..next + u64::from(manifest.batch.get());
                self.workers.expect(Shuffle::of(manifest).draws(&[batch]));
            }
            _ => {}
        }
    }
}
