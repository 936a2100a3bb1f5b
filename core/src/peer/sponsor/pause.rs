//! Newcomers that fall behind the rounds again and again, mostly because their line is slow. The ring pauses once, so that
//! such a one gets the whole state at rest. One that cannot keep up even so is sent away with a word, since each
//! attempt would fill its line with rounds that are of no use to it.

use super::follower::Follower;
use super::{Sponsor, prompt, vector};
use crate::access::invitation::Role;
use crate::base::id::{PeerId, Round};
use crate::base::time::Time;
use crate::peer::catchup::WINDOW;
use crate::peer::interface::Event;
use crate::peer::shared::Shared;
use crate::wire::Slow;
use crate::wire::view::View;
use std::time::Duration;

/// A newcomer that had to begin again this often is slower than the ring.
const OFTEN: u32 = 2;

/// A newcomer that asks for no block for so long is not waited for: its device is busy, or its line hopeless.
const STILL: Duration = Duration::from_secs(2);

/// A line that takes longer than this for a round, while the ring goes on, cannot bring a newcomer in.
const HOPELESS: Duration = Duration::from_secs(10);

impl Follower {
    /// Whether it has fallen behind before, and not by chance.
    fn is_slow(&self, bound: Duration) -> bool {
        self.restarts >= OFTEN || self.restarts > 0 && !self.is_quick(bound)
    }

    /// What its line carries, and what rounds up to `here` take. The last blocks may be on their way.
    fn measured(&self, here: Round, vector: usize, block: usize, now: Time) -> Slow {
        let blocks = self.bytes.saturating_sub((WINDOW * block) as u64);
        let us = (now - self.begun_at).as_micros().max(1);
        let rate = |bytes: u64| (u128::from(bytes) * 1_000_000 / us).min(u64::MAX.into()) as u64;
        let rounds = |n: Round| n.saturating_mul(vector as u64);
        Slow {
            carries: rate(blocks + rounds(self.applied - self.since.min(self.applied))),
            takes: rate(rounds(here - self.since.min(here))),
        }
    }
}

impl Sponsor {
    /// Whether the ring should pause for a newcomer that has fallen behind before and fetches the state.
    pub fn waits(&self, view: &View, shared: &Shared) -> bool {
        let (bound, now) = (prompt(shared), shared.now);
        let may_enter = |peer, f: &Follower| {
            f.admission.role() > Role::Watch
                && shared.head().admits(peer, &shared.manifest)
                && !view.contains(peer)
        };
        self.followers.iter().any(|(peer, f)| {
            let fetches = f.live && f.ready.is_none() && now - f.asked_at < STILL;
            fetches && f.is_slow(bound) && may_enter(*peer, f)
        })
    }

    /// Sends away those who have fallen behind although the ring has paused for them, and those to whom a round takes
    /// for ever. A run without trials waits for all, again and again.
    pub(super) fn send_slow_away(&mut self, shared: &mut Shared) {
        if !shared.manifest.tries_newcomers() {
            return;
        }
        let (bound, now, here) = (prompt(shared), shared.now, shared.head().round);
        let gone = |f: &Follower| f.gap && (f.is_slow(bound) || f.on_its_way(now) > HOPELESS);
        let slow = self.followers.iter().filter(|(_, f)| gone(f));
        let block = shared.lineage.state.block_len(0).unwrap_or(0);
        let slow: Vec<(PeerId, Slow)> = slow
            .map(|(peer, f)| (*peer, f.measured(here, vector(shared), block, now)))
            .collect();
        for (peer, slow) in slow {
            self.keep_waiting(peer, Some(slow), shared);
            shared.tell(Event::TooSlow {
                peer,
                slow,
                wait: None,
            });
        }
    }
}
