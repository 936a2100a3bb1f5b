//! Gathers a run's data from several peers at once, piece by piece.
//!
//! Each visit talks to one peer and keeps a few questions under way there, so its line never falls idle and a slower
//! peer gets fewer. If a peer falls silent, lies or goes, its pieces are asked of others. A visit that has nothing left
//! to ask waits a second, and then asks for pieces that other peers still owe: so no peer holds up the end.
//!
//! It knows no transport, no files and no clock.

mod job;

use super::demand::{Demand, Place};
use super::provision::{
    Ask, DataDialer, DataStream, FetchError, HAS, MAX_OFFER, News, PIECE, Source, Store, hear_exactly,
    hear_message,
};
use super::tree::{BLOCK, NODE, count, piece};
use crate::net::hello::{bounded, encode};
use annulus_core::Digest;
use job::{Ended, Job, Out};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::task::Poll;

/// Peers that a newcomer remembers while it looks for some with the data.
const MAX_KNOWN: usize = 64;

/// Peers that send at once: a guess. A peer serves four newcomers.
const VISITS: usize = 4;

/// Bytes that are asked of a peer before the first of them arrives: what the fastest peer sends in 0.13 s, a long round
/// trip.
const UNDER_WAY: u64 = 4 * PIECE;

/// Questions under way to a peer if the files are small.
const ASKS: usize = 32;

/// Most bytes of data that is fetched while it is used: a guess. Its nodes are 128 MB for each terabyte.
const STREAMED: u64 = 4 << 40;

/// A peer is given up after this many visits in a row without progress, and data that is damaged as often.
const PATIENCE: u32 = 3;

/// Fetches the run's data, at most `limit` bytes, from any peers that have it, asking `first` first. `files` is the
/// digest of its listing. Also returns the last peer that answered, since `first` may be gone by then.
///
/// # Errors
///
/// If no peer has it, there is no room here, or it is not the data that the manifest names.
pub async fn fetch<W: DataDialer, S: Store>(
    way: &W,
    store: &mut S,
    first: Source,
    files: Digest,
    limit: u64,
    tell: &mut dyn FnMut(News),
) -> Result<(S::Whole, Source), FetchError> {
    let mut known = vec![Known::new(first)];
    let job = RefCell::new(Job::new(store, tell, files, limit));
    let mut tries = 0;
    loop {
        let from = gather(way, &job, &mut known).await?;
        let mut job = job.borrow_mut();
        match job.store.finish() {
            Ok(whole) => return Ok((whole, from)),
            Err(why) => {
                tries += 1;
                job.take_stock().map_err(FetchError::Here)?;
                if job.open.is_empty() || tries == PATIENCE {
                    return Err(FetchError::Here(why));
                }
            }
        }
    }
}

/// Fetches what `demand` names of the run's data, until nobody reads it any more. At first `first` is asked, later also
/// the peers that take part then. If nobody has it, it tries again, unless the data cannot be used yet.
///
/// # Errors
///
/// If no peer hands out the data, or there is no room here.
pub async fn supply<W: DataDialer, S: Store>(
    way: &W,
    store: &mut S,
    demand: &Demand,
    first: Source,
    files: Digest,
) -> Result<(), FetchError> {
    let tell = &mut |_| {};
    let job = RefCell::new(Job::new(store, tell, files, STREAMED));
    job.borrow_mut().demand = Some(demand);
    let mut known = vec![Known::new(first)];
    loop {
        for source in demand.sources() {
            if known.len() < MAX_KNOWN && known.iter().all(|peer| peer.source.peer != source.peer) {
                known.push(Known::new(source));
            }
        }
        let gathered = {
            let mut gathering = pin!(gather(way, &job, &mut known));
            let mut closed = pin!(demand.closed());
            poll_fn(|context| match closed.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => gathering.as_mut().poll(context).map(Some),
            })
            .await
        };
        match gathered {
            None => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(why)) if !job.borrow().store.has_begun() => return Err(why),
            Some(Err(why)) => {
                let rests = if matches!(why, FetchError::Here(_)) { 10 } else { 1 };
                demand.failed(why.to_string());
                for _ in 0..rests {
                    way.rest().await;
                }
                // Those that could not be reached may be there again.
                for peer in known.iter_mut().filter(|peer| peer.failures >= PATIENCE) {
                    (peer.out, peer.failures) = (None, 0);
                }
            }
        }
        if !demand.more().await {
            return Ok(());
        }
        job.borrow_mut().look();
    }
}

/// Visits peers until everything is here. Returns the one that completed it.
async fn gather<W: DataDialer, S: Store>(
    way: &W,
    job: &RefCell<Job<'_, S>>,
    known: &mut Vec<Known>,
) -> Result<Source, FetchError> {
    let mut visits: Vec<(usize, Visit<'_>)> = Vec::new();
    loop {
        while visits.len() < VISITS && (visits.is_empty() || job.borrow().has_free()) {
            // Peers that gave nothing last come last; of the others, the least visited first.
            let open = known.iter_mut().enumerate();
            let open = open
                .filter(|(at, peer)| peer.out.is_none() && visits.iter().all(|(visited, _)| visited != at));
            let Some((at, peer)) = open.min_by_key(|(at, peer)| (peer.rests, peer.visits, *at)) else {
                break;
            };
            peer.visits += 1;
            visits.push((at, Box::pin(visit(way, job, peer.source.clone(), peer.rests))));
        }
        if visits.is_empty() {
            return Err(why_nobody(known));
        }
        let ended = poll_fn(|context| {
            for at in 0..visits.len() {
                if let Poll::Ready(ended) = visits[at].1.as_mut().poll(context) {
                    return Poll::Ready(Some((visits.swap_remove(at).0, ended)));
                }
            }
            // There may be somebody else to visit.
            match std::mem::take(&mut job.borrow_mut().news) {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        });
        let ended = ended.await;
        for other in std::mem::take(&mut job.borrow_mut().others) {
            let is_new = known.iter().all(|peer| peer.source.peer != other.peer);
            if is_new && known.len() < MAX_KNOWN {
                known.push(Known::new(other));
            }
        }
        let Some((at, (got, ended))) = ended else { continue };
        let peer = &mut known[at];
        peer.rests = !got;
        match ended {
            Ok(()) => return Ok(peer.source.clone()),
            Err(Ended::Failed(why)) => return Err(why),
            Err(Ended::Busy) if visits.is_empty() => (job.borrow_mut().tell)(News::Waiting),
            Err(Ended::Busy) => {}
            Err(Ended::Out(out)) => peer.out = Some(out),
            Err(Ended::Lost(why)) => {
                peer.failures = if got { 1 } else { peer.failures + 1 };
                if peer.failures >= PATIENCE {
                    peer.out = Some(Out::Because(why));
                }
            }
        }
    }
}

/// A visit to a peer: whether a piece came, and how it ended.
type Visit<'a> = Pin<Box<dyn Future<Output = (bool, Result<(), Ended>)> + 'a>>;

/// A peer that may have the data.
struct Known {
    source: Source,
    visits: u32,
    /// Whether the last visit was in vain, so that the next one comes later.
    rests: bool,
    /// Visits in a row without progress.
    failures: u32,
    /// Why it is not asked again.
    out: Option<Out>,
}

impl Known {
    fn new(source: Source) -> Self {
        Self {
            source: Source {
                contact: bounded(source.contact),
                ..source
            },
            visits: 0,
            rests: false,
            failures: 0,
            out: None,
        }
    }
}

/// The most informative of the reasons.
fn why_nobody(known: &[Known]) -> FetchError {
    let (mut because, mut kept) = (Vec::new(), false);
    for Known { source, out, .. } in known {
        match out {
            Some(Out::Kept) => kept = true,
            Some(Out::Because(why)) => because.push(format!("{}: {why}", &source.peer.to_hex()[..8])),
            None => {}
        }
    }
    match kept {
        true => FetchError::Kept,
        false => FetchError::Nobody(because),
    }
}

fn lacks() -> Ended {
    Ended::Lost("it no longer has all of the data".to_owned())
}

/// A question that a peer has not answered.
enum Asked {
    Nodes(usize),
    Piece(Place),
}

/// A conversation with a peer. When it ends, its unanswered pieces are free for others.
struct Talk<'a, 'b, L, S: Store> {
    line: L,
    job: &'a RefCell<Job<'b, S>>,
    /// The questions that it has not answered, in order.
    asked: VecDeque<Asked>,
    /// The pieces that it owes or lacks.
    not_again: BTreeSet<Place>,
    /// The files whose nodes were asked for.
    nodes: BTreeSet<usize>,
    /// Bytes that it owes.
    owed: u64,
}

/// Visits one peer, after a rest if it was visited in vain before.
async fn visit<W: DataDialer, S: Store>(
    way: &W,
    job: &RefCell<Job<'_, S>>,
    source: Source,
    rests: bool,
) -> (bool, Result<(), Ended>) {
    let mut got = false;
    let ended = async {
        if rests {
            way.rest().await;
        }
        let reached = way.dial(&source).await;
        let mut line = reached.map_err(|error| Ended::Lost(error.to_string()))?;
        let offer = hear_message(&mut line, MAX_OFFER).await.map_err(Ended::Lost)?;
        job.borrow_mut().hear(offer)?;
        let mut talk = Talk {
            line,
            job,
            asked: VecDeque::new(),
            not_again: BTreeSet::new(),
            nodes: BTreeSet::new(),
            owed: 0,
        };
        let mut idle = false;
        loop {
            talk.ask(false).await.map_err(Ended::Lost)?;
            if idle && talk.asked.is_empty() {
                talk.ask(true).await.map_err(Ended::Lost)?;
            }
            if !talk.asked.is_empty() {
                got |= talk.hear().await?;
            } else if job.borrow().open.is_empty() {
                return Ok(());
            } else if talk.lacks_all() {
                return Err(lacks());
            } else {
                way.rest().await;
                idle = true;
            }
        }
    };
    let ended = ended.await;
    (got, ended)
}

impl<L: DataStream, S: Store> Talk<'_, '_, L, S> {
    /// Asks for what nobody owes, as much as may be under way; if `all`, for one piece that others owe.
    async fn ask(&mut self, all: bool) -> Result<(), String> {
        while self.owed < UNDER_WAY && self.asked.len() < ASKS && !(all && self.owed > 0) {
            let next = self.job.borrow_mut().next(&self.not_again, all);
            let Some((file, index)) = next else { break };
            self.not_again.insert((file, index));
            let (size, _, number) = self.job.borrow().file(file);
            let Range { start, end } = piece(size, index);
            self.owed += end - start;
            let lacks_nodes = self.job.borrow().lacks_nodes(file) && self.nodes.insert(file);
            if lacks_nodes {
                self.asked.push_back(Asked::Nodes(file));
            }
            // Before anything is sent, so that it is free again if that fails.
            self.asked.push_back(Asked::Piece((file, index)));
            if lacks_nodes {
                self.line.send(&encode(&Ask::Nodes { file: number })).await?;
            }
            let ask = Ask::Blocks {
                file: number,
                from: start,
                blocks: (end - start).div_ceil(BLOCK as u64) as u32,
            };
            self.line.send(&encode(&ask)).await?;
        }
        Ok(())
    }

    /// Hears the answer to the first question. Returns whether it was a piece.
    async fn hear(&mut self) -> Result<bool, Ended> {
        let has = self.exactly(1).await? == [HAS];
        match self.asked[0] {
            Asked::Nodes(_) if !has => Err(lacks()),
            Asked::Nodes(file) => {
                let (size, ..) = self.job.borrow().file(file);
                let nodes = self.exactly(NODE * count(size)).await?;
                self.job.borrow_mut().prove(file, &nodes)?;
                self.asked.pop_front();
                Ok(false)
            }
            Asked::Piece(place) => {
                let (size, ..) = self.job.borrow().file(place.0);
                let range = piece(size, place.1);
                let len = range.end - range.start;
                if has {
                    let bytes = self.exactly(len as usize).await?;
                    self.job.borrow_mut().put(place, &bytes)?;
                    self.not_again.remove(&place);
                }
                self.asked.pop_front();
                self.owed -= len;
                let mut job = self.job.borrow_mut();
                job.release(place);
                job.news |= !has;
                Ok(has)
            }
        }
    }

    async fn exactly(&mut self, len: usize) -> Result<Vec<u8>, Ended> {
        hear_exactly(&mut self.line, len).await.map_err(Ended::Lost)
    }

    /// Whether it lacks all that is missing.
    fn lacks_all(&self) -> bool {
        let job = self.job.borrow();
        job.open.keys().all(|place| self.not_again.contains(place))
    }
}

impl<L, S: Store> Drop for Talk<'_, '_, L, S> {
    fn drop(&mut self) {
        for asked in &self.asked {
            if let Asked::Piece(place) = asked {
                self.job.borrow_mut().release(*place);
            }
        }
    }
}

#[cfg(test)]
mod tests;
