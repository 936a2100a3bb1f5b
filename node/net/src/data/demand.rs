//! The pieces of streamed data, which is fetched while it is used, that are needed now or soon. Readers wait here while a
//! thread fetches them.
//!
//! All pieces together keep to a budget. To make room for a new piece, the one that was not needed for the longest time
//! goes. Pieces of the present share and of the one before stay, and those that are pinned, even if they alone exceed the
//! budget.
//!
//! It knows no files, and of peers only where they are.

use crate::data::provision::Source;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A piece, by the numbers of its file and of itself in the file.
pub(super) type Place = (usize, u64);

/// The share that needs a pinned piece.
const ALWAYS: u64 = u64::MAX;

/// The pieces that are needed, and those that are here.
#[derive(Debug)]
pub struct Demand {
    state: Mutex<State>,
    /// A piece has arrived.
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Most bytes of all pieces.
    budget: u64,
    /// Bytes that are here.
    bytes: u64,
    /// Pieces that are here: their bytes, and the share that last needed them.
    here: BTreeMap<Place, (u64, u64)>,
    /// Pieces that are needed and not here, and the share that last needed them.
    wanted: BTreeMap<Place, u64>,
    /// Counts shares.
    share: u64,
    /// Of the fetching side, while it waits.
    waker: Option<Waker>,
    /// Peers that take part now.
    sources: Vec<Source>,
    /// Why nothing could be fetched when it was last tried.
    why: Option<String>,
    /// Nobody reads any more.
    closed: bool,
}

impl State {
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Whether a piece may go that this share needed last.
    fn is_old(&self, needed: u64) -> bool {
        needed.saturating_add(1) < self.share
    }
}

impl Demand {
    /// Nothing is needed yet. What is needed before the first share stays until the third.
    pub(super) fn new(budget: u64) -> Self {
        let state = State {
            budget,
            share: 1,
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another share begins. Pieces that were wanted for older ones need not come any more.
    pub fn begin_share(&self) {
        let mut state = self.state();
        state.share += 1;
        let oldest = state.share - 1;
        state.wanted.retain(|_, needed| *needed >= oldest);
    }

    /// Asks for pieces, which the present share needs, or which are pinned. Returns whether all are here.
    pub(super) fn want(&self, places: &[Place], pinned: bool) -> bool {
        let mut state = self.state();
        let share = if pinned { ALWAYS } else { state.share };
        let mut all = true;
        for place in places {
            match state.here.get_mut(place) {
                Some((_, needed)) => *needed = share.max(*needed),
                None => {
                    all = false;
                    let needed = state.wanted.entry(*place).or_default();
                    *needed = share.max(*needed);
                }
            }
        }
        if !all {
            state.wake();
        }
        all
    }

    /// Asks for pieces, and waits until they are here, for so long at most. Returns whether they are.
    pub(super) fn wait(&self, places: &[Place], most: Duration) -> bool {
        if self.want(places, false) || most.is_zero() {
            return self.want(places, false);
        }
        let until = Instant::now() + most;
        let mut state = self.state();
        loop {
            if places.iter().all(|place| state.here.contains_key(place)) {
                return true;
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return false;
            };
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A piece turned out to be missing. It is asked for again.
    pub(super) fn lost(&self, place: Place) {
        let mut state = self.state();
        if let Some((bytes, needed)) = state.here.remove(&place) {
            state.bytes -= bytes;
            let share = state.share;
            state.wanted.insert(place, share.max(needed));
            state.wake();
        }
    }

    /// Why nothing could be fetched when it was last tried, if so.
    pub fn why(&self) -> Option<String> {
        self.state().why.clone()
    }

    /// Nobody reads any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.wake();
    }

    /// Names the peers that take part now.
    pub fn meet(&self, sources: Vec<Source>) {
        self.state().sources = sources;
    }

    /// The peers that take part now.
    pub(super) fn sources(&self) -> Vec<Source> {
        self.state().sources.clone()
    }

    /// The pieces that are wanted and not here.
    pub(super) fn wanted(&self) -> Vec<Place> {
        self.state().wanted.keys().copied().collect()
    }

    /// Waits until pieces are wanted. Returns false if nobody reads any more.
    pub(super) async fn more(&self) -> bool {
        poll_fn(|context| self.poll(context, |state| !state.wanted.is_empty())).await
    }

    /// Waits until nobody reads any more.
    pub(super) async fn closed(&self) {
        poll_fn(|context| self.poll(context, |_| false)).await;
    }

    /// Ready with true once it `is_so`, and with false once nobody reads any more.
    fn poll(&self, context: &Context<'_>, is_so: impl Fn(&State) -> bool) -> Poll<bool> {
        let mut state = self.state();
        if state.closed || is_so(&state) {
            return Poll::Ready(!state.closed);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// A piece of this many bytes is here. Returns the pieces that have to go.
    pub(super) fn put(&self, place: Place, bytes: u64) -> Vec<Place> {
        let mut state = self.state();
        let needed = state.wanted.remove(&place).unwrap_or(0);
        if let Some((before, _)) = state.here.insert(place, (bytes, needed)) {
            state.bytes -= before;
        }
        state.bytes += bytes;
        state.why = None;
        let mut gone = Vec::new();
        while state.bytes > state.budget {
            let oldest = state.here.iter().min_by_key(|(_, (_, needed))| *needed);
            let oldest = oldest.map(|(place, (bytes, needed))| (*place, *bytes, *needed));
            let Some((oldest, bytes, _)) = oldest.filter(|(.., needed)| state.is_old(*needed)) else {
                break;
            };
            state.here.remove(&oldest);
            state.bytes -= bytes;
            gone.push(oldest);
        }
        drop(state);
        self.arrived.notify_all();
        gone
    }

    /// Nothing could be fetched.
    pub(super) fn failed(&self, why: String) {
        self.state().why = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_reader_waits_for_its_pieces_and_no_longer_than_it_may() {
        let demand = Arc::new(Demand::new(100));
        assert!(!demand.want(&[(0, 1), (0, 2)], false));
        assert!(!demand.want(&[(0, 2)], false));
        assert_eq!(demand.wanted(), [(0, 1), (0, 2)]);
        assert!(!demand.wait(&[(0, 1)], Duration::from_millis(1)));
        let reader = std::thread::spawn({
            let demand = demand.clone();
            move || demand.wait(&[(0, 1), (0, 2)], Duration::from_secs(60))
        });
        assert!(demand.put((0, 2), 10).is_empty() && demand.put((0, 1), 10).is_empty());
        assert!(reader.join().unwrap());
        // It is spoilt on the disk.
        demand.lost((0, 1));
        assert_eq!(demand.wanted(), [(0, 1)]);
        demand.put((0, 1), 10);
        assert_eq!(demand.state().bytes, 20);
    }

    #[test]
    fn the_piece_that_was_not_needed_for_longest_goes_and_needed_ones_stay() {
        let demand = Demand::new(30);
        for share in 2..=7 {
            demand.begin_share();
            assert!(!demand.want(&[(0, share)], false));
            let gone = demand.put((0, share), 10);
            let expected: &[Place] = if share > 4 { &[(0, share - 3)] } else { &[] };
            assert_eq!(gone, expected, "share {share}");
        }
        demand.begin_share();
        assert!(demand.want(&[(0, 5)], false));
        // More than the budget is needed at once: 5 stays, and so does 7, of the share before.
        let all: Vec<Place> = (10..14).map(|piece| (0, piece)).collect();
        demand.want(&all, false);
        let gone: Vec<Place> = all.iter().flat_map(|place| demand.put(*place, 10)).collect();
        assert_eq!(gone, [(0, 6)]);
        assert!(demand.want(&all, false) && demand.want(&[(0, 5), (0, 7)], false));
    }

    #[test]
    fn pinned_pieces_stay_and_those_of_old_shares_need_not_come() {
        let demand = Demand::new(10);
        demand.want(&[(1, 0), (1, 1)], true);
        demand.want(&[(0, 1)], false);
        demand.put((1, 0), 10);
        for share in 3..9 {
            demand.begin_share();
            demand.want(&[(0, share)], false);
            demand.put((0, share), 10);
        }
        assert_eq!(demand.wanted(), [(1, 1)]);
        assert!(demand.want(&[(1, 0)], false));
    }
}
