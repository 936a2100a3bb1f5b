//! Access for the simulation: a look inside of a peer, its mistakes and its memory faults.

use super::{Peer, Phase};
use crate::base::id::{Contact, PeerId};
use crate::base::planted::Bug;
use crate::run::config::MAX_PEERS;

impl Peer {
    /// The peers that it knows, and where they can be dialled. A driver keeps these for a restart.
    pub(crate) fn acquaintances(&self) -> Vec<(PeerId, Contact)> {
        self.shared.links.acquaintances(MAX_PEERS)
    }

    /// Whether a newcomer still holds the whole state of an older lineage.
    pub(crate) fn holds_whole_state(&self) -> bool {
        matches!(&self.phase, Phase::Newcomer(newcomer) if newcomer.whole)
    }

    /// Whether a newcomer follows somebody.
    pub(crate) fn follows(&self) -> bool {
        matches!(&self.phase, Phase::Newcomer(newcomer) if newcomer.is_following())
    }

    /// Lets this peer alone make a mistake from here on.
    pub fn plant(&mut self, bug: Bug) {
        self.shared.settings.bug = Some(bug);
    }

    /// Flips one bit of the state, as failing memory would.
    pub fn flip_bit(&mut self, element: usize, bit: u32) {
        if let Some(value) = self.shared.lineage.state.params.get_mut(element) {
            *value = f32::from_bits(value.to_bits() ^ (1 << (bit % 32)));
        }
    }

    /// Flips one bit of an element's moments, or of its weight if that is kept with them. Whether this peer keeps
    /// them.
    pub fn flip_kept(&mut self, element: usize, bit: u32) -> bool {
        let shared = &mut self.shared;
        shared.lineage.state.kept.flip(&shared.manifest, element, bit)
    }
}
