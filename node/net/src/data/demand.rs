//! The pieces of a run's data that are needed now or soon. Readers wait here while a thread fetches them.
//!
//! All pieces together keep to a budget. To make room for a new piece, the one that was not needed for the longest time
//! goes. Those that the present share and the next one need stay, even if they alone exceed the budget.
//!
//! It knows neither peers nor files.

use crate::data::provision::Source;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// A piece, by the numbers of its file and of itself in the file.
pub(super) type Place = (usize, u64);

/// How long a reader that needs a piece waits for it. Peers that have it may come and go meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

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
    /// Those among them that the fetching side has not heard of.
    fresh: Vec<Place>,
    /// Counts shares.
    share: u64,
    /// Of the fetching side, while it has nothing to do.
    waker: Option<Waker>,
    /// Peers that take part now.
    sources: Vec<Source>,
    /// Why nothing could be fetched when it was last tried.
    why: Option<String>,
    /// Enough is here to use the data.
    begun: bool,
    /// Nobody reads any more.
    closed: bool,
}

impl State {
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl Demand {
    /// Nothing is needed yet.
    pub(super) fn new(budget: u64) -> Self {
        let state = State {
            budget,
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

    /// Another share begins.
    pub fn begin_share(&self) {
        self.state().share += 1;
    }

    /// Says that the present share needs these pieces. Returns whether all are here.
    pub(super) fn want(&self, places: &[Place]) -> bool {
        let mut state = self.state();
        let share = state.share;
        let mut all = true;
        for place in places {
            if let Some((_, needed)) = state.here.get_mut(place) {
                *needed = share;
                continue;
            }
            all = false;
            if state.wanted.insert(*place, share).is_none() {
                state.fresh.push(*place);
            }
        }
        if !state.fresh.is_empty() {
            state.wake();
        }
        all
    }

    /// Waits until these pieces are here, for so long at most. Returns whether they are.
    pub(super) fn wait(&self, places: &[Place], most: Duration) -> bool {
        if self.want(places) {
            return true;
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

    /// Waits for a piece that turned out to be missing. On an error, why it did not come.
    pub(super) fn get(&self, place: Place) -> Result<(), String> {
        {
            let mut state = self.state();
            if let Some((bytes, _)) = state.here.remove(&place) {
                state.bytes -= bytes;
            }
        }
        match self.wait(&[place], PATIENCE) {
            true => Ok(()),
            false => {
                let why = self.state().why.clone();
                Err(why.unwrap_or_else(|| format!("nothing came for {} s", PATIENCE.as_secs())))
            }
        }
    }

    /// Enough is here to use the data.
    pub(super) fn begin(&self) {
        self.state().begun = true;
    }

    /// Whether the data can be used.
    pub(super) fn has_begun(&self) -> bool {
        self.state().begun
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

    /// The pieces that were wanted since this was last called.
    pub(super) fn fresh(&self) -> Vec<Place> {
        std::mem::take(&mut self.state().fresh)
    }

    /// Waits until pieces are wanted. Returns false if nobody reads any more.
    pub(super) async fn more(&self) -> bool {
        poll_fn(|context| {
            let mut state = self.state();
            if state.closed || !state.wanted.is_empty() {
                return Poll::Ready(!state.closed);
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
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
            let Some((oldest, (bytes, needed))) = oldest.map(|(place, held)| (*place, *held)) else {
                break;
            };
            if needed + 1 >= state.share && needed > 0 {
                break;
            }
            state.here.remove(&oldest);
            state.bytes -= bytes;
            gone.push(oldest);
        }
        drop(state);
        self.arrived.notify_all();
        gone
    }

    /// Nothing could be fetched. All that is wanted is to be tried again.
    pub(super) fn failed(&self, why: String) {
        let mut state = self.state();
        state.why = Some(why);
        state.fresh = state.wanted.keys().copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn whoever_needs_a_piece_waits_for_it_and_no_longer_than_it_may() {
        let demand = Arc::new(Demand::new(100));
        assert!(!demand.want(&[(0, 1), (0, 2)]));
        // Once is enough.
        assert!(!demand.want(&[(0, 2)]));
        assert_eq!(demand.fresh(), [(0, 1), (0, 2)]);
        assert!(demand.fresh().is_empty());
        assert!(!demand.wait(&[(0, 1)], Duration::ZERO));
        let reader = std::thread::spawn({
            let demand = demand.clone();
            move || demand.wait(&[(0, 1), (0, 2)], Duration::from_secs(60))
        });
        assert!(demand.put((0, 2), 10).is_empty() && demand.put((0, 1), 10).is_empty());
        assert!(reader.join().unwrap());
        // It was spoilt on the disk.
        let reader = std::thread::spawn({
            let demand = demand.clone();
            move || demand.get((0, 1))
        });
        while demand.fresh().is_empty() {
            std::thread::yield_now();
        }
        demand.put((0, 1), 10);
        assert_eq!(reader.join().unwrap(), Ok(()));
        assert_eq!(demand.state().bytes, 20);
    }

    #[test]
    fn what_was_not_needed_for_longest_goes_and_what_is_needed_stays() {
        let demand = Demand::new(30);
        for share in 1..=6 {
            demand.begin_share();
            assert!(!demand.want(&[(0, share)]));
            let gone = demand.put((0, share), 10);
            let expected: &[Place] = if share > 3 { &[(0, share - 3)] } else { &[] };
            assert_eq!(gone, expected, "share {share}");
        }
        demand.begin_share();
        assert!(demand.want(&[(0, 4)]));
        // More than the budget is needed at once: 4 stays, and so does 6, of the share before.
        let all: Vec<Place> = (10..14).map(|piece| (0, piece)).collect();
        demand.want(&all);
        let gone: Vec<Place> = all.iter().flat_map(|place| demand.put(*place, 10)).collect();
        assert_eq!(gone, [(0, 5)]);
        assert!(demand.want(&all) && demand.want(&[(0, 4), (0, 6)]));
    }

    #[test]
    fn what_failed_is_asked_for_again() {
        let demand = Demand::new(30);
        demand.want(&[(0, 1), (1, 0)]);
        demand.fresh();
        demand.failed("nobody is there".into());
        assert_eq!(demand.fresh(), [(0, 1), (1, 0)]);
        demand.put((0, 1), 1);
        assert_eq!(demand.state().why, None);
    }
}
