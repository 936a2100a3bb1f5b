//! Peers that see no gain any more in runs that stop early.

use super::world::World;
use crate::base::id::Round;
use crate::base::random::mix;
use crate::peer::{Event, Input, Output};
use crate::run::config::EarlyStop;

/// The last round that a peer commits by these outputs.
pub(super) fn last_commit(batch: &[Output]) -> Option<Round> {
    let commits = batch.iter().filter_map(|output| match output {
        Output::Event(Event::Committed(commit)) => Some(commit.record.round),
        _ => None,
    });
    commits.last()
}

impl World {
    /// Where a run stops early, three of four peers see no gain from some evaluation on, each from another one.
    pub(super) fn evaluate(&mut self, i: usize, committed: Option<Round>) {
        let (Some(round), Some(EarlyStop { every, .. })) = (committed, self.plan.manifest.early_stop) else {
            return;
        };
        let (every, of_peer) = (u64::from(every.get()), mix(self.plan.manifest.seed ^ i as u64));
        if round.is_multiple_of(every) {
            let stalled = of_peer % 4 > 0 && round / every > of_peer / 4 % 4;
            self.give(i, Input::Stalled(stalled));
        }
    }
}
