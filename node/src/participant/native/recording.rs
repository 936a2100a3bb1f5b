//! A participant's record on its disk: the ledger, checkpoints, and the peers that it knows.

use crate::net::identity::Identity;
use crate::net::quic::QuicLink;
use crate::participant::driver::Driver;
use crate::participant::host::Host;
use crate::participant::native::{NativeHost, Participant, end};
use crate::participant::right::Right;
use crate::store::checkpoint_writer::Written;
use crate::store::save_now;
use annulus_core::peer::{Commit, Event as PeerEvent};
use annulus_core::{Digest, Peer};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Participant<'_> {
    /// Keeps what makes it this peer, for a new folder if somebody removes its own.
    pub fn keep(&mut self, identity: Arc<Identity>, right: Right) {
        self.host.credentials = Some((identity, right));
    }
}

impl NativeHost<'_> {
    /// The thread that writes has something to tell.
    pub(super) fn on_written(&mut self, written: Written, driver: &mut Driver<QuicLink>) {
        let is_news = match written {
            Written::Saved { round } => {
                if self.save_asked.take_if(|asked| *asked == round).is_some() {
                    // If it stays, the state is saved once more.
                    let _ = std::fs::remove_file(save_now::file(&self.local.out));
                }
                self.disk.has_saved(round)
            }
            Written::Pruned => self.disk.look(),
            Written::Moved { to, anew } => {
                self.follow_folder(to, anew);
                self.disk.look()
            }
            Written::Warning(message) => return self.warn(message),
            Written::Failed(error) => return self.fail(error.into(), driver),
        };
        if is_news {
            let now = self.now();
            self.disk.tell(driver, now);
        }
    }

    /// Saves the members and their addresses for the next start.
    pub(super) fn remember(&mut self, event: &PeerEvent, peer: &Peer) {
        let may_be_new = matches!(event, PeerEvent::Entered | PeerEvent::Member { .. });
        if may_be_new && self.known.meet(peer.me(), peer.head().members.iter()) {
            self.checkpoint_writer.know(self.known.clone());
        }
    }

    /// The run's folder has another path by now, or is a new one in the place of one that was removed.
    pub(super) fn follow_folder(&mut self, to: PathBuf, anew: bool) {
        let from = std::mem::replace(&mut self.local.out, to.clone());
        self.disk.moved(&to);
        self.permission.follow(&to);
        let to = to.display();
        if !anew {
            return self.warn(format!(
                "the folder {} was renamed: the run goes on in {to}",
                from.display()
            ));
        }
        let kept = self.credentials.as_ref().is_some_and(|(identity, right)| {
            let (saved, known) = (identity.save(&self.local.out.join("identity")), &self.known);
            saved.is_ok() && right.keep(&self.local.out).is_ok() && known.save(&self.local.out).is_ok()
        });
        let lacks = if kept {
            ""
        } else {
            ", and this peer's name and ticket could not be"
        };
        self.warn(format!(
            "the state is saved in a new folder, {to}; the rounds before it are no longer kept{lacks}"
        ));
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

    /// Saves the present state if a file in the folder asks for it. The members of a split model save together, by rounds.
    pub(super) fn save_on_request(&mut self, peer: &Peer) {
        let is_whole = peer.manifest().split.is_none() && self.recorded == Some(end(peer));
        if self.save_asked.is_none()
            && is_whole
            && save_now::file(&self.local.out).exists()
            && self
                .checkpoint_writer
                .save(peer.head(), peer.state(), peer.digest())
        {
            self.save_asked = Some(peer.head().round);
            self.saved_at = Instant::now();
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
