//! Handing out the run's data to peers that lack it, without getting into the ring's way.
//!
//! **Bounds.** [`TRANSFERS`] at once; each holds one block of [`BLOCK`] and what QUIC has not yet sent of [`SEND_WINDOW`].
//! All together send at most [`FASTEST`]. While this peer's links send, it is less: it grows only as long as packets on the
//! links take hardly longer than at best, so that nothing waits in queues, and else falls to an eighth of what the links
//! send. So the ring on a slow line hardly feels a transfer, and while its members compute, the line is the newcomer's.
//! Stream priorities would not do: a newcomer has no link yet, and between connections QUIC knows no order.
//!
//! It must not know what is in the files.

use crate::data::provision::{Answer, Ask, MAX_ASK, Offer, Source};
use crate::data::stock::{Checked, Stock};
use crate::net::connection::{LEFT, close};
use crate::net::handshake::{Caller, read_message, refuse};
use crate::net::hello::encode;
use crate::net::link::Refusal;
use annulus_core::Digest;
use quinn::Connection;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use web_transport_quinn::Session;

/// Transfers at once; whoever else asks is told to come again.
pub(crate) const TRANSFERS: usize = 4;

/// Newcomers that are talked to at once, most of them to be told just that.
const GUESTS: usize = 32;

/// How long a newcomer may take to go when there is nothing for it.
const FAREWELL: Duration = Duration::from_secs(5);

/// Bytes read from the disk and handed to QUIC at once.
const BLOCK: usize = 64 << 10;

/// Most bytes of a transfer that QUIC keeps until they are acknowledged: 50 ms at 600 Mbit/s.
const SEND_WINDOW: u64 = 4 << 20;

/// Fewest bytes of a transfer that QUIC keeps until they are acknowledged.
const SMALL_WINDOW: u64 = 128 << 10;

/// Bytes per second of all transfers together, however idle the links are: 256 Mbit/s. Reading, encrypting and sending
/// that much takes about a tenth of a core, which the ring's own thread has to find.
const FASTEST: f64 = 32e6;

/// Bytes per second until it is known what the ring does.
const FIRST: f64 = 4e6;

/// Bytes per second of all transfers together, whatever the ring does: 1 Mbit/s.
const SLOWEST: f64 = 128e3;

/// What the transfers get at least, of what the links send.
const SHARE: f64 = 1.0 / 8.0;

/// Links that send less than this many bytes per second only say that they are there.
const QUIET: f64 = 64e3;

/// Packets that take so much longer than at best wait somewhere. Less is noise, also on a busy machine.
const DELAY: Duration = Duration::from_millis(10);

/// By how much the transfers become faster from one look to the next, as long as nothing waits: twice as fast in 0.15 s.
const FASTER: f64 = 1.05;

/// By how much they become slower when something waits.
const SLOWER: f64 = 0.7;

/// The links are looked at so often.
const LOOK: Duration = Duration::from_millis(10);

/// A look so long ago says nothing of now.
const STALE: Duration = Duration::from_secs(1);

/// So much sleep may be made up for by a burst: clocks wake late.
const SLACK: Duration = Duration::from_millis(8);

/// How long a newcomer may take for a block, or to ask for the next file.
const PATIENCE: Duration = Duration::from_secs(30);

/// What there is to hand out.
#[derive(Clone, Debug, Default)]
pub enum ServedData {
    /// Nothing: the task makes its own data.
    #[default]
    Empty,
    /// The user keeps it.
    Kept,
    /// The files that the task asked for, if they are those of the listing with this digest: another may have been given
    /// the same data in other files.
    Files(Stock, Digest),
}

impl ServedData {
    /// Bytes that a newcomer would fetch; none if nothing is handed out.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Kept => None,
            Self::Files(stock, _) => stock.size(),
        }
    }

    /// Reads what is to be handed out, in a thread of its own: until that is done there is nothing for anybody.
    pub fn prepare(&self) {
        if let Self::Files(stock, _) = self.clone() {
            // Not one of the runtime's: those are waited for at the end.
            std::thread::spawn(move || stock.check().map(drop));
        }
    }

    /// What there is for a newcomer.
    fn answer(&self) -> (Answer, Option<&Checked>) {
        let Self::Files(stock, digest) = self else {
            let kept = matches!(self, Self::Kept);
            return (if kept { Answer::Kept } else { Answer::Missing }, None);
        };
        match stock.checked() {
            None => (Answer::Busy, None),
            Some(Ok(checked)) if checked.listing.is_sound() && checked.listing.digest() == *digest => {
                (Answer::Files(checked.listing.clone()), Some(checked))
            }
            Some(_) => (Answer::Missing, None),
        }
    }
}

/// What all transfers of a peer share.
pub(crate) struct Counter {
    slots: Semaphore,
    guests: Semaphore,
    pace: Mutex<Pace>,
}

impl Counter {
    pub(crate) fn new() -> Self {
        Self {
            slots: Semaphore::new(TRANSFERS),
            guests: Semaphore::new(GUESTS),
            pace: Mutex::new(Pace::new(Instant::now())),
        }
    }

    /// Serves a caller that was welcomed, to the end. `ring` says what the links do by now.
    pub(crate) async fn serve(
        &self,
        session: &Session,
        mut caller: Caller,
        served: ServedData,
        others: Vec<Source>,
        ring: impl Fn() -> LinkTraffic,
    ) {
        let Ok(_guest) = self.guests.try_acquire() else {
            return refuse(session, Refusal::TooManyPeers);
        };
        let slot = self.slots.try_acquire();
        let (answer, checked) = match served.answer() {
            (Answer::Files(_), _) if slot.is_err() => (Answer::Busy, None),
            answer => answer,
        };
        let words = encode(&Offer { answer, others });
        let said = timeout(PATIENCE, caller.send.write_all(&words)).await;
        if let (Ok(Ok(())), Some(checked)) = (said, checked) {
            // However it ends, there is nobody here to tell: the newcomer knows what it lacks.
            let _ = self.answer_all(session, &mut caller, checked, &ring).await;
        } else {
            // The newcomer goes when it has read the offer.
            let _ = timeout(FAREWELL, session.closed()).await;
        }
        close(session, LEFT, "");
    }

    /// Until the newcomer has all it wants. `None` if it, or the disk, has let us down.
    async fn answer_all(
        &self,
        session: &Connection,
        caller: &mut Caller,
        checked: &Checked,
        ring: &impl Fn() -> LinkTraffic,
    ) -> Option<()> {
        loop {
            let ask = timeout(PATIENCE, read_message::<Ask>(&mut caller.recv, MAX_ASK)).await;
            let Ask { file, from } = ask.ok()?.ok()?;
            let path = checked.paths.get(file as usize)?.clone();
            let blocks = checked.blocks.get(file as usize)?;
            let mut left = blocks.size().checked_sub(from)?;
            for nodes in blocks.nodes().chunks(BLOCK) {
                self.send(session, caller, nodes.to_vec(), ring).await?;
            }
            let open = spawn_blocking(move || {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(from))?;
                std::io::Result::Ok(file)
            });
            let file = Arc::new(open.await.ok()?.ok()?);
            while left > 0 {
                let most = left.min(BLOCK as u64);
                let reading = file.clone();
                let block = spawn_blocking(move || {
                    let mut block = Vec::with_capacity(most as usize);
                    (&*reading).take(most).read_to_end(&mut block)?;
                    std::io::Result::Ok(block)
                });
                let block = block.await.ok()?.ok()?;
                // A file that has become shorter: what is missing shows at the other end.
                let len = u64::try_from(block.len()).ok().filter(|len| *len > 0)?;
                self.send(session, caller, block, ring).await?;
                left -= len;
            }
        }
    }

    /// Hands a block to QUIC when it is its turn. `None` if the newcomer does not take it.
    async fn send(
        &self,
        session: &Connection,
        caller: &mut Caller,
        block: Vec<u8>,
        ring: &impl Fn() -> LinkTraffic,
    ) -> Option<()> {
        self.pace.lock().await.wait(block.len() as u64, ring).await;
        // What QUIC holds it sends whatever the ring does by then: not more than two round trips of it.
        let held = 2 * session.stats().path.cwnd;
        session.set_send_window(held.clamp(SMALL_WINDOW, SEND_WINDOW));
        let writing = caller.send.write_chunk(block.into());
        timeout(PATIENCE, writing).await.ok()?.ok()
    }
}

/// What the links do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkTraffic {
    /// Bytes that they have sent.
    pub sent: u64,
    /// How much longer than at best packets are on their way on the slowest.
    pub delay: Duration,
}

/// When the next block may go.
struct Pace {
    /// What may be sent now, in bytes; below 0 it has to be waited for.
    budget: f64,
    /// When that was so.
    at: Instant,
    /// When the links were last looked at, and what they had sent.
    looked: (Instant, u64),
    /// Bytes per second of all transfers while the links send.
    beside: f64,
    /// Bytes per second of all transfers now.
    rate: f64,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self {
            budget: 0.0,
            at: now,
            looked: (now, 0),
            beside: FIRST,
            rate: FIRST,
        }
    }

    /// Waits for a block's turn.
    async fn wait(&mut self, bytes: u64, ring: &impl Fn() -> LinkTraffic) {
        while let Some(rest) = self.take(bytes, Instant::now(), ring) {
            sleep(rest).await;
        }
    }

    /// Notes that a block goes now, or says when to ask again.
    fn take(&mut self, bytes: u64, now: Instant, ring: &impl Fn() -> LinkTraffic) -> Option<Duration> {
        let since = now - self.looked.0;
        self.budget += self.rate * (now - self.at).as_secs_f64();
        self.at = now;
        if since >= LOOK {
            let LinkTraffic { sent, delay } = ring();
            let links = sent.saturating_sub(self.looked.1) as f64 / since.as_secs_f64();
            self.looked = (now, sent);
            self.rate = if since >= STALE {
                self.beside
            } else if links < QUIET {
                FASTEST
            } else {
                self.beside = beside(self.beside, links, delay);
                self.beside
            };
        }
        self.budget = self.budget.min(self.rate * SLACK.as_secs_f64());
        if self.budget >= 0.0 {
            self.budget -= bytes as f64;
            return None;
        }
        // Not for longer, as the links may fall quiet meanwhile.
        Some(LOOK.min(Duration::from_secs_f64(-self.budget / self.rate)))
    }
}

/// What the transfers may send per second beside the links from now on: `before` is what it was, `links` what the links
/// sent.
fn beside(before: f64, links: f64, delay: Duration) -> f64 {
    let least = (links * SHARE).clamp(SLOWEST, FASTEST);
    let factor = if delay < DELAY { FASTER } else { SLOWER };
    (before * factor).clamp(least, FASTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_goes_first() {
        let (prompt, late) = (Duration::from_millis(1), Duration::from_millis(30));
        assert_eq!(beside(1e6, 1e6, prompt), 1e6 * FASTER);
        assert_eq!(beside(1e6, 16e6, prompt), 2e6);
        assert_eq!(beside(FASTEST, 1e6, prompt), FASTEST);
        assert_eq!(beside(1e6, 1e6, late), 1e6 * SLOWER);
        assert_eq!(beside(1e6, 16e6, late), 2e6);
        assert_eq!(beside(SLOWEST, 0.0, late), SLOWEST);
        assert_eq!(beside(1e6, f64::MAX, late), FASTEST);
    }

    #[test]
    fn blocks_keep_the_pace() {
        let begin = Instant::now();
        let late = Duration::from_millis(30);
        // Bytes per second of the links, for which share of each second, their delay, and what is expected.
        for (links, busy, delay, expected) in [
            (0.0, 1.0, late, FASTEST),
            (8e6, 1.0, Duration::ZERO, FASTEST),
            (8e6, 1.0, late, 1e6),
            (100e3, 1.0, late, SLOWEST),
            (8e6, 0.5, late, FASTEST / 2.0),
        ] {
            let mut pace = Pace::new(begin);
            let (mut now, mut bytes) = (begin + Duration::from_secs(100), 0);
            let from = now;
            while now - from < Duration::from_secs(60) {
                let time = (now - begin).as_secs_f64();
                let sent = links * (time.floor() * busy + time.fract().min(busy));
                let sent = sent as u64;
                // As late as clocks are.
                let late_by = Duration::from_millis(1);
                match pace.take(BLOCK as u64, now, &|| LinkTraffic { sent, delay }) {
                    None => bytes += BLOCK,
                    Some(rest) => now += rest + late_by,
                }
            }
            let rate = bytes as f64 / (now - from).as_secs_f64();
            assert!(
                (0.8..1.2).contains(&(rate / expected)),
                "{links} {busy} {delay:?}: {rate}"
            );
        }
    }
}
