//! A participant's record on its disk: the ledger, checkpoints, and the peers that it knows.

use crate::participant::native::{NativeHost, end};
use annulus_core::peer::{Commit, Event as PeerEvent};
use annulus_core::{Digest, Peer};
use std::time::{Duration, Instant};

impl NativeHost<'_> {
    /// Saves the members and their addresses for the next start.
    pub(super) fn remember(&mut self, event: &PeerEvent, peer: &Peer) {
        let may_be_new = matches!(event, PeerEvent::Entered | PeerEvent::Member { .. });
        if may_be_new && self.known.meet(peer.me(), peer.head().members.iter()) {
            self.checkpoint_writer.know(self.known.clone());
        }
    }

    /// The ledger begins at the peer's present head.
    pub(super) fn begin_record(&mut self, peer: &Peer) {
        self.checkpoint_writer
            .begin(peer.head().clone(), peer.state().clone());
        self.recorded = Some(end(peer));
    }

    /// This peer goes on alone. Its ledger may end elsewhere: it may have followed others since.
    pub(super) fn continued(&mut self, from: Digest, peer: &Peer) {
        match peer.founder() {
            Some(founder) if self.recorded.is_some_and(|(_, chain)| chain == from) => {
                self.checkpoint_writer.go_on(founder.clone());
                self.recorded = Some(end(peer));
            }
            _ => self.begin_record(peer),
        }
    }

    pub(super) fn committed(&mut self, commit: Commit, peer: &Peer) {
        let round = commit.record.round;
        // In a split model, a round that trains nothing needs no checkpoint, and the run may have to go back to the one that it
        // would replace.
        let is_new = peer.manifest().split.is_none() || commit.record.weight() > 0;
        self.last_loss = commit.record.loss();
        if self.recorded.is_some_and(|(recorded, _)| recorded >= round) {
            // The ledger has begun after it.
            return;
        }
        self.checkpoint_writer.append(commit.record, commit.digest);
        self.recorded = Some(end(peer));
        let every = self.local.eval_every;
        let evaluated = every > 0
            && round.is_multiple_of(every)
            && self.workers.evaluates()
            && self.workers.evaluate(round, &peer.state().params);
        // The members of a split model go back to a round that all of them saved, so they save by rounds.
        let every = self.local.checkpoint_every;
        let since = match peer.manifest().split.is_some() && every.rounds > 0 {
            true => Duration::ZERO,
            false => self.saved_at.elapsed(),
        };
        let may_be_best = evaluated && self.local.keep_best;
        if (every.is_due(round, since) && is_new) || may_be_best {
            self.saved_at = Instant::now();
            let (head, state) = (peer.head(), peer.state());
            if self.checkpoint_writer.save(head, state, commit.digest) {
                self.disk.saves(peer);
            } else {
                self.warn(
                    "the disk is slower than checkpoint_every asks for: this checkpoint is left out".into(),
                );
            }
        }
    }
}
