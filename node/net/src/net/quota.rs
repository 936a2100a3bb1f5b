//! Shares out what a peer has to give by tickets. Names are free, but somebody has handed a ticket on, so limits count what all
//! names hold that came by one ticket, or by tickets made from it.
//!
//! It does not know what is held.

use annulus_core::id::TicketId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// While others ask, the names by one ticket hold at most this part of all, and at least one.
const PART: usize = 4;

/// A thing that one peer holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a, K> {
    /// The chain of tickets that the peer came by.
    pub by: &'a [TicketId],
    /// How much use was made of it.
    pub progress: u64,
    pub key: K,
}

/// Chooses what gives way if all of it is held and a peer asks that came by these tickets: of the ticket by which most is held,
/// the thing of least use. Nothing if no other ticket has more than its part.
pub(crate) fn gives_way<'a, K: Copy>(
    asks: &[TicketId],
    all: usize,
    held: impl IntoIterator<Item = Held<'a, K>>,
) -> Option<K> {
    let mut tickets: HashMap<TicketId, (usize, u64, K)> = HashMap::new();
    for Held { by, progress, key } in held {
        for ticket in by.iter().filter(|ticket| !asks.contains(ticket)) {
            let (count, least, which) = tickets.entry(*ticket).or_insert((0, progress, key));
            *count += 1;
            if progress < *least {
                (*least, *which) = (progress, key);
            }
        }
    }
    let (count, _, key) = tickets.into_values().max_by_key(|(count, ..)| *count)?;
    (count > 1 && PART * count > all).then_some(key)
}

/// A number of shares of something, each held by one peer.
#[derive(Debug)]
pub(crate) struct Shares {
    all: usize,
    held: Mutex<HashMap<u64, Arc<Holding>>>,
    freed: Notify,
    next: AtomicU64,
}

#[derive(Debug)]
struct Holding {
    tickets: Vec<TicketId>,
    progress: AtomicU64,
    displaced: Notify,
}

/// A share, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    number: u64,
    holding: Arc<Holding>,
}

impl Shares {
    pub(crate) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self {
            all,
            held: Mutex::default(),
            freed: Notify::new(),
            next: AtomicU64::new(0),
        })
    }

    /// Whether a peer that came by these tickets would get a share.
    pub(crate) fn has_room(&self, tickets: &[TicketId]) -> bool {
        let held = self.held();
        held.len() < self.all || self.gives_way(&held, tickets).is_some()
    }

    /// Takes a share, if one is free or gives way.
    pub(crate) fn take(self: &Arc<Self>, tickets: &[TicketId]) -> Option<Share> {
        let mut held = self.held();
        if held.len() >= self.all {
            let displaced = self.gives_way(&held, tickets)?;
            let displaced = held.remove(&displaced)?;
            displaced.displaced.notify_one();
        }
        let holding = Arc::new(Holding {
            tickets: tickets.to_vec(),
            progress: AtomicU64::new(0),
            displaced: Notify::new(),
        });
        let number = self.next.fetch_add(1, Relaxed);
        held.insert(number, holding.clone());
        Some(Share {
            of: self.clone(),
            number,
            holding,
        })
    }

    /// Takes a share as soon as there is one.
    pub(crate) async fn wait(self: &Arc<Self>, tickets: &[TicketId]) -> Share {
        loop {
            let freed = self.freed.notified();
            match self.take(tickets) {
                Some(share) => return share,
                None => freed.await,
            }
        }
    }

    fn gives_way(&self, held: &HashMap<u64, Arc<Holding>>, asks: &[TicketId]) -> Option<u64> {
        let all = held.iter().map(|(number, holding)| Held {
            by: &holding.tickets,
            progress: holding.progress.load(Relaxed),
            key: *number,
        });
        gives_way(asks, self.all, all)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<u64, Arc<Holding>>> {
        self.held.lock().expect("nobody panics while holding the shares")
    }
}

impl Share {
    /// Use is made of it.
    pub(crate) fn progress(&self, by: u64) {
        self.holding.progress.fetch_add(by, Relaxed);
    }

    /// Waits until another peer has got this share.
    pub(crate) async fn displaced(&self) {
        self.holding.displaced.notified().await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.held().remove(&self.number);
        self.of.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticket_that_holds_most_gives_way_while_others_ask() {
        let tickets = [1, 2, 3, 4, 5].map(|name| TicketId([name; 32]));
        let [page, made_from_it, another, friend, newcomer] = tickets;
        let (guest, other) = ([page], [page, made_from_it]);
        let (third, friends) = ([another], [friend]);
        let hoard = [
            (&guest[..], 9),
            (&third, 0),
            (&guest, 5),
            (&other, 3),
            (&friends, 1),
        ];
        let gives = |asks: &[TicketId], all| {
            let held = hoard.iter().zip(0..);
            gives_way(
                asks,
                all,
                held.map(|((by, progress), key)| Held {
                    by,
                    progress: *progress,
                    key,
                }),
            )
        };
        assert_eq!(gives(&[newcomer], 8), Some(3));
        assert_eq!(gives(&[friend], 8), Some(3));
        assert_eq!(gives(&[], 8), Some(3));
        // Those by the same ticket have no better right.
        assert_eq!(gives(&[page], 8), None);
        assert_eq!(gives(&[page, newcomer], 8), None);
        // A quarter is its part, and one in any case.
        let one = Held {
            by: &guest,
            progress: 0,
            key: 0,
        };
        assert_eq!(gives_way(&[newcomer], 1, [one]), None);
        assert_eq!(gives(&[newcomer], 12), None);
        assert_eq!(gives_way::<usize>(&[newcomer], 8, []), None);
    }
}
