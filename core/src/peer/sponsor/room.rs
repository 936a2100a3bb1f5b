//! Room for followers. Names are free, so places are shared out by ticket: where there is none left, a follower that
//! makes no progress gives way, then one of a ticket with more than its share. Full members' tickets come first.
//!
//! Within a ticket, a follower that has not yet asked for anything gives way at once, drawn by lot. Otherwise one visitor
//! of a page could hold all places with names that it renews again and again. An honest newcomer asks for blocks within
//! a round trip, and then keeps its place.

use super::follower::Follower;
use super::{Sponsor, WATCHERS, hand_out};
use crate::access::invitation::{Admission, Role};
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::base::random::mix;
use crate::base::time::Time;
use crate::ledger::accounts::account;
use crate::peer::late;
use crate::peer::shared::{MAX_REMEMBERED, Shared};
use crate::run::config::MAX_PEERS;
use crate::wire::{Message, Slow};
use std::time::Duration;

/// A follower that has made no progress for this long gives way to others. A guess: longer than a device or a line
/// is busy with one thing.
const IDLE: Duration = Duration::from_secs(30);

impl Follower {
    /// Whether it could have got further and has not. It may wait for long once it is ready.
    fn is_idle(&self, now: Time) -> bool {
        self.ready.is_none() && now - self.progress_at >= IDLE
    }

    /// Whether it has not got any further since it came.
    fn is_unproven(&self) -> bool {
        self.ready.is_none() && self.progress_at == self.came_at
    }
}

impl Sponsor {
    /// Whether a follower came with a ticket for full members.
    pub fn has_full(&self, peer: PeerId) -> bool {
        let follower = self.followers.get(&peer);
        follower.is_some_and(|f| f.admission.role() == Role::Member)
    }

    /// Makes room for one more follower, perhaps at the cost of another. False if there is none.
    pub(super) fn make_room(&mut self, admission: &Admission, shared: &mut Shared) -> bool {
        let (is_watcher, now) = (admission.role() == Role::Watch, shared.now);
        let watches = |f: &Follower| f.admission.role() == Role::Watch;
        let watchers = self.followers.values().filter(|f| watches(f)).count();
        let of_watchers = is_watcher && watchers >= WATCHERS;
        let places = if of_watchers { WATCHERS } else { MAX_PEERS };
        if self.followers.len() < MAX_PEERS && !of_watchers {
            return true;
        }
        let held = |ticket| self.followers.values().filter(|f| f.account == ticket).count();
        let (own, share) = (account(admission, shared.root.run), places / 4);
        let has_more = |f: &Follower| own.is_none() || (held(f.account) > share && held(own) < share);
        let shares_out = !shared.settings.planted(Bug::NoShares);
        let is_of_own = |f: &Follower| own.is_some() && f.account == own;
        let loses = |f: &Follower| is_of_own(f) && f.is_unproven();
        let gives_way = |f: &Follower| f.is_idle(now) || (shares_out && has_more(f)) || loses(f);
        let guests = self.followers.iter().filter(|(_, f)| f.account.is_some());
        let candidates = guests.filter(|(_, f)| (watches(f) || !of_watchers) && gives_way(f));
        let lot = |f: &Follower| if loses(f) { mix(now.0 ^ f.number) } else { 0 };
        let least_useful =
            candidates.max_by_key(|(_, f)| (f.is_idle(now), held(f.account), lot(f), now - f.progress_at));
        let Some(least_useful) = least_useful.map(|(peer, _)| *peer) else {
            return false;
        };
        self.forget(least_useful);
        shared.control(least_useful, late::not_a_member());
        true
    }

    /// A follower fetches a block of the state. That is progress, until it has asked for each of them twice.
    pub fn on_fetch(&mut self, from: PeerId, block: u32, shared: &mut Shared) {
        let most = 2 * shared.lineage.blocks.len();
        if let Some(f) = self.followers.get_mut(&from).filter(|f| f.fetched < most) {
            f.fetched += 1;
            f.progress_at = shared.now;
        }
        if let Some(f) = self.followers.get_mut(&from) {
            f.asked_at = shared.now;
            f.bytes += shared.lineage.state.block_len(block).unwrap_or(0) as u64;
        }
        hand_out(from, block, shared);
    }

    /// Whether a peer waits for a place.
    pub fn keeps_waiting(&self, peer: PeerId) -> bool {
        self.waiting.contains(&peer)
    }

    /// A peer is told that there is no place for it, or that it is too slow.
    pub(super) fn keep_waiting(&mut self, peer: PeerId, slow: Option<Slow>, shared: &mut Shared) {
        self.followers.remove(&peer);
        if self.waiting.len() < MAX_REMEMBERED {
            self.waiting.insert(peer);
        }
        shared.control(peer, Message::NoPlace { slow });
    }
}

/// Whether there is a place for one more that comes by this admission. Watchers take none.
pub(super) fn has_place(admission: &Admission, shared: &Shared) -> bool {
    let (run, bug) = (shared.root.run, shared.settings.bug());
    admission.role() == Role::Watch || shared.head().has_place(admission, run, bug)
}
