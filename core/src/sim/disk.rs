//! The peers' disks.

use super::kind::Kind;
use super::world::{What, World};
use crate::base::id::Round;
use crate::peer::Commit;

/// Checkpoints that a peer keeps in a split run.
const CHECKPOINTS: usize = 3;

impl World {
    /// Now and then a peer saves its state.
    pub(super) fn save(&mut self, i: usize, commit: &Commit) {
        let (round, every) = (commit.record.round, self.saves_every());
        let is_split = self.plan.manifest.split.is_some();
        let is_due = match is_split {
            true => every > 0 && round.is_multiple_of(every) && commit.record.weight() > 0,
            false => self.nodes[i].commits % 3 == 1,
        };
        // A damaged checkpoint is found when it is read.
        let saves = is_due && !self.nodes[i].is_doubtful();
        if !saves || !self.plan.faults.iter().any(|(kind, _)| *kind == Kind::Restart) {
            return;
        }
        let peer = self.nodes[i].peer.as_ref();
        let peer = peer.filter(|p| p.digest() == commit.digest && (!is_split || p.head().round == round));
        let saved = peer.map(|p| (p.state().clone(), p.head().clone(), p.acquaintances()));
        if let Some((state, ..)) = saved.as_ref().filter(|_| is_split) {
            let node = &mut self.nodes[i];
            node.disk.push_back(state.kept.clone());
            if node.disk.len() > CHECKPOINTS {
                node.disk.pop_front();
            }
            let life = node.life;
            self.schedule(self.now, What::Saved { node: i, life });
        }
        self.nodes[i].saved = saved;
    }

    /// Rounds between two saves, in a split run where some peers come back with their parts.
    pub(super) fn saves_every(&self) -> Round {
        let restarts = self.plan.faults.iter().any(|(kind, _)| *kind == Kind::Restart);
        match self.plan.manifest.split {
            Some(_) if restarts => 1 + self.plan.manifest.seed % 4,
            _ => 0,
        }
    }
}
