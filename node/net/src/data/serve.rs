//! Sends the run's data to peers that lack it, without disturbing the exchange.
//!
//! **Bounds.** At most [`TRANSFERS`] run at once. A newcomer gets one with its first question, which must come within
//! [`FIRST_ASK`], and loses it when it asks for nothing. While others ask, the newcomers by one ticket have a quarter
//! of them. Each holds one [`PIECE`] and at most [`SEND_WINDOW`] that QUIC has not yet sent.
//!
//! **Pace.** Together they send at most [`FASTEST`]. While this peer's links send, the limit is lower. It grows only
//! while packets on the links take hardly longer than at best, so that nothing waits in queues. Otherwise it falls to an
//! eighth of what the links send. So the exchange on a slow line hardly notices a transfer, and while members compute,
//! the newcomer has the line. Stream priorities would not help: a newcomer has no link yet, and QUIC has no priorities
//! between connections.
//!
//! It does not know what is in the files.

use crate::data::error::DataError;
use crate::data::provision::{Answer, Ask, HAS, LACKS, MAX_ASK, Offer, PIECE, Source};
use crate::data::stock::{Checked, Stock};
use crate::data::tree::BLOCK;
use crate::net::connection::{LEFT, close};
use crate::net::handshake::{Caller, read_message, refuse};
use crate::net::hello::encode;
use crate::net::link::Refusal;
use crate::net::quota::{Share, Shares};
use annulus_core::Digest;
use bytes::Bytes;
use quinn::Connection;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use web_transport_quinn::{RecvStream, SendStream, Session};

/// Most transfers at once. Further callers are told to try later.
pub(crate) const TRANSFERS: usize = 4;

/// Most callers at once, most of which are told just that.
const GUESTS: usize = 32;

/// How long a caller may take to leave if there is nothing for it.
const FAREWELL: Duration = Duration::from_secs(5);

/// Bytes that are handed to QUIC at once.
const AT_ONCE: usize = 64 << 10;

/// Most bytes of a transfer that QUIC keeps until they are acknowledged: 50 ms at 600 Mbit/s.
const SEND_WINDOW: u64 = 4 << 20;

/// Fewest bytes of a transfer that QUIC keeps until they are acknowledged.
const SMALL_WINDOW: u64 = 128 << 10;

/// Most bytes per second of all transfers together, even if the links are idle: 256 Mbit/s. Reading, encrypting and
/// sending that much takes about a tenth of a core, which the driver's thread also needs.
const FASTEST: f64 = 32e6;

/// Bytes per second until the links were measured.
const FIRST: f64 = 4e6;

/// Fewest bytes per second of all transfers together, whatever the links do: 1 Mbit/s.
const SLOWEST: f64 = 128e3;

/// The transfers' share, at least, of what the links send.
const SHARE: f64 = 1.0 / 8.0;

/// Links that send fewer bytes per second carry only keep-alives.
const QUIET: f64 = 64e3;

/// Packets delayed by more than this wait in a queue. Less is noise, also on a busy machine.
const DELAY: Duration = Duration::from_millis(10);

/// Factor by which transfers speed up from one check to the next while nothing waits: twice as fast in 0.15 s.
const FASTER: f64 = 1.05;

/// Factor by which they slow down when something waits.
const SLOWER: f64 = 0.7;

/// How often the links are checked.
const LOOK: Duration = Duration::from_millis(10);

/// After this time a check is outdated.
const STALE: Duration = Duration::from_secs(1);

/// How much oversleeping a burst may make up for, since clocks wake late.
const SLACK: Duration = Duration::from_millis(8);

/// How long a newcomer may take to ask for the first file, and how long it then waits for a transfer.
const FIRST_ASK: Duration = Duration::from_secs(5);

/// How long a newcomer that asks for nothing keeps its transfer: several round trips.
const IDLE: Duration = Duration::from_secs(1);

/// How long a newcomer may take for a block, or to ask again.
const PATIENCE: Duration = Duration::from_secs(30);

/// The data to send.
#[derive(Clone, Debug, Default)]
pub enum ServedData {
    /// None: the task makes its own data.
    #[default]
    Empty,
    /// The user keeps it.
    Kept,
    /// The files that the task asked for, if they are those of the listing with this digest. Another user may have had
    /// the same data in other files.
    Files(Stock, Digest),
}

impl ServedData {
    /// Bytes that a newcomer would fetch; none if there is nothing to send.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Kept => None,
            Self::Files(stock, _) => stock.size(),
        }
    }

    /// Hashes the files in a separate thread. Until this is done nobody gets anything.
    pub fn prepare(&self) {
        if let Self::Files(stock, _) = self.clone() {
            // Not a thread of the runtime, which would be waited for at the end.
            std::thread::spawn(move || stock.check().map(drop));
        }
    }

    /// Why files cannot be handed out, as far as that is known: the first that could not be read.
    pub fn lost(&self) -> Option<String> {
        match self {
            Self::Files(stock, _) => match stock.checked()? {
                Ok(checked) => checked.lost.get().cloned(),
                Err(why) => Some(why),
            },
            Self::Empty | Self::Kept => None,
        }
    }

    /// The answer to a newcomer.
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

/// State that all transfers of a peer share.
pub(crate) struct Counter {
    transfers: Arc<Shares>,
    guests: Arc<Shares>,
    pace: Mutex<Pace>,
}

impl Counter {
    pub(crate) fn new() -> Self {
        Self {
            transfers: Shares::new(TRANSFERS),
            guests: Shares::new(GUESTS),
            pace: Mutex::new(Pace::new(Instant::now())),
        }
    }

    /// Serves a welcomed caller to the end. `ring` returns what the links do now.
    pub(crate) async fn serve(
        &self,
        session: &Session,
        mut caller: Caller,
        served: ServedData,
        others: Vec<Source>,
        ring: impl Fn() -> LinkTraffic,
    ) {
        let Some(guest) = self.guests.take(&caller.tickets) else {
            return refuse(session, Refusal::TooManyPeers);
        };
        let (answer, checked) = match served.answer() {
            (Answer::Files(_), _) if !self.transfers.has_room(&caller.tickets) => (Answer::Busy, None),
            answer => answer,
        };
        let words = encode(&Offer { answer, others });
        let said = timeout(PATIENCE, caller.send.write_all(&words)).await;
        if let (Ok(Ok(())), Some(checked)) = (said, checked) {
            tokio::select! {
                _ = self.answer_all(session, &mut caller, checked, &ring) => {}
                () = guest.displaced() => return refuse(session, Refusal::TooManyPeers),
            }
        } else {
            // The newcomer leaves when it has read the offer.
            let _ = timeout(FAREWELL, session.closed()).await;
        }
        close(session, LEFT, "");
    }

    /// Answers a newcomer until it asks for nothing more, takes nothing, or has to wait too long for a transfer. `None`
    /// then, as at each of these ends.
    async fn answer_all(
        &self,
        session: &Connection,
        Caller {
            recv, send, tickets, ..
        }: &mut Caller,
        checked: &Checked,
        ring: &impl Fn() -> LinkTraffic,
    ) -> Option<()> {
        let mut ask = hear(recv, FIRST_ASK).await?;
        loop {
            let transfer = timeout(FIRST_ASK, self.transfers.wait(tickets)).await.ok()?;
            let mut to = To {
                session,
                send: &mut *send,
                transfer: &transfer,
            };
            ask = loop {
                tokio::select! {
                    answered = self.answer(&mut to, ask, checked, ring) => answered?,
                    () = transfer.displaced() => return None,
                }
                let mut next = pin!(hear(recv, PATIENCE));
                match timeout(IDLE, &mut next).await {
                    Ok(next) => ask = next?,
                    Err(_) => {
                        drop(transfer);
                        break next.await?;
                    }
                }
            };
        }
    }

    /// Answers one question. `None` if it makes no sense, or the newcomer does not take the answer.
    async fn answer(
        &self,
        to: &mut To<'_>,
        ask: Ask,
        checked: &Checked,
        ring: &impl Fn() -> LinkTraffic,
    ) -> Option<()> {
        let (Ask::Nodes { file } | Ask::Blocks { file, .. }) = ask;
        let proof = checked.blocks.get(file as usize)?;
        let Ask::Blocks { from, blocks, .. } = ask else {
            return self.send_all(to, proof.nodes(), ring).await;
        };
        let most = u64::from(blocks) * BLOCK as u64;
        if !(1..=PIECE).contains(&most) || from >= proof.size() {
            return None;
        }
        let (file, range) = (
            checked.files[file as usize].clone(),
            from..proof.size().min(from + most),
        );
        match spawn_blocking(move || file.part(range)).await.ok()? {
            Ok(bytes) => self.send_all(to, &bytes, ring).await,
            Err(why) => {
                // The first one is enough. A piece that was never fetched is not lost.
                if !matches!(why, DataError::Elsewhere) {
                    let _ = checked.lost.set(why.to_string());
                }
                self.send(to, Bytes::from_static(&[LACKS]), ring).await
            }
        }
    }

    async fn send_all(&self, to: &mut To<'_>, bytes: &[u8], ring: &impl Fn() -> LinkTraffic) -> Option<()> {
        let mut left = Bytes::from([&[HAS], bytes].concat());
        while !left.is_empty() {
            let part = left.split_to(left.len().min(AT_ONCE));
            self.send(to, part, ring).await?;
        }
        Some(())
    }

    /// Hands bytes to QUIC when it is their turn. `None` if the newcomer does not take them.
    async fn send(&self, to: &mut To<'_>, part: Bytes, ring: &impl Fn() -> LinkTraffic) -> Option<()> {
        let bytes = part.len() as u64;
        self.pace.lock().await.wait(bytes, ring).await;
        // QUIC sends what it holds whatever the ring does then, so it may hold at most two round trips.
        let held = 2 * to.session.stats().path.cwnd;
        to.session.set_send_window(held.clamp(SMALL_WINDOW, SEND_WINDOW));
        timeout(PATIENCE, to.send.write_chunk(part)).await.ok()?.ok()?;
        to.transfer.progress(bytes);
        Some(())
    }
}

/// The newcomer that a transfer goes to.
struct To<'a> {
    session: &'a Connection,
    send: &'a mut SendStream,
    transfer: &'a Share,
}

/// The next question, if it comes within this time.
async fn hear(recv: &mut RecvStream, within: Duration) -> Option<Ask> {
    let heard = timeout(within, read_message::<Ask>(recv, MAX_ASK)).await;
    heard.ok()?.ok()
}

/// The activity of the links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkTraffic {
    /// Bytes that they have sent.
    pub sent: u64,
    /// How much longer than at best packets take on the slowest link.
    pub delay: Duration,
}

/// Decides when the next block may be sent.
struct Pace {
    /// Bytes that may be sent now; if negative, wait.
    budget: f64,
    /// When the budget was computed.
    at: Instant,
    /// When the links were last checked, and what they had sent.
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

    /// Waits until a block may be sent.
    async fn wait(&mut self, bytes: u64, ring: &impl Fn() -> LinkTraffic) {
        while let Some(rest) = self.take(bytes, Instant::now(), ring) {
            sleep(rest).await;
        }
    }

    /// Notes that a block is sent now, or returns how long to wait before asking again.
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
        // No longer, as the links may fall quiet meanwhile.
        Some(LOOK.min(Duration::from_secs_f64(-self.budget / self.rate)))
    }
}

/// How much the transfers may send per second beside the links from now on. `before` is the previous value, `links` is
/// what the links sent.
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
        // Bytes per second of the links, their busy share of each second, their delay, and the expected rate.
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
                match pace.take(AT_ONCE as u64, now, &|| LinkTraffic { sent, delay }) {
                    None => bytes += AT_ONCE,
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
