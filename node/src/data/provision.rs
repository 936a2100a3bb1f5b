//! How a run's data reaches a peer that lacks it: the words, their bounds, and the newcomer's way through them.
//!
//! A newcomer says hello with [`Purpose::Data`](crate::net::hello::Purpose::Data). On the same stream the welcome is followed
//! by an [`Offer`]: which files there are, and who else may have them. The newcomer then says one [`Ask`] after the
//! other, each answered by the nodes of that file's hash tree and its bytes from there to its end, raw: how many that are
//! is known. If a peer falls silent, the newcomer goes on from another at the block it has reached.
//!
//! Nothing that a peer says is believed: the run's manifest holds the hash of the listing, which holds the files' sizes and
//! hashes, which prove the nodes, which prove each block before it is kept. Names become file names only if they are
//! harmless everywhere, and what has arrived is used only if the task makes of it the data that the manifest names.
//!
//! It must know no transport, no files and no clock.

use super::listing::{MAX_FILES, MAX_NAME};
use super::tree::{BLOCK, Blocks, NODE, count};
use crate::net::hello::{HEAD, Unread, body_len, bounded, decode, encode};
use crate::net::link::DialError;
use annulus_core::{Contact, Digest, PeerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;

pub use super::listing::{ListedFile, Listing};

/// Most other peers that an offer names.
pub const MAX_OTHERS: usize = 32;

/// Longest offer.
pub const MAX_OFFER: usize =
    MAX_FILES * (MAX_NAME + 48) + MAX_OTHERS * (40 + Contact::LIMIT * (Contact::ADDRESS_LIMIT + 4)) + 64;

/// Longest [`Ask`].
pub const MAX_ASK: usize = 32;

/// Most data that a tab fetches: it stays in memory, of which WASM has at most 4 GiB in all.
pub const TAB_LIMIT: u64 = 512 << 20;

/// How long a peer that hands out data may say nothing. It may have to wait for the ring between two blocks.
pub const SILENCE: Duration = Duration::from_secs(15);

/// Between two rounds of asking everybody.
pub const REST: Duration = Duration::from_secs(1);

/// What is said of a peer that kept silent for so long.
pub fn silent() -> String {
    format!("nothing came for {} s", SILENCE.as_secs())
}

/// Bytes per second below which a peer that hands out data is left for another, or given up: a quarter of what one with
/// the slowest line that is of use sends to each of four newcomers.
pub const SLOWEST: u64 = 8 << 10;

/// Over so long a time of waiting.
pub const WAITED: Duration = Duration::from_secs(30);

/// What is said of a peer that sends more slowly.
pub fn too_slow() -> String {
    format!("it sent less than {SLOWEST} bytes/s for {} s", WAITED.as_secs())
}

/// Judges how fast a peer sends by what came in the time that it was waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    bytes: u64,
    waited: Duration,
}

impl Pace {
    /// Whether it is fast enough, after so many bytes more have come in so much more time.
    pub fn keeps(&mut self, bytes: usize, waited: Duration) -> bool {
        self.bytes += bytes as u64;
        self.waited += waited;
        if self.waited < WAITED {
            return true;
        }
        let enough = self.bytes >= SLOWEST * self.waited.as_secs();
        *self = Self::default();
        enough
    }
}

/// Peers that a newcomer remembers while it looks for one that hands out the data.
const MAX_KNOWN: usize = 64;

/// After so many visits in a row that brought nothing a peer is given up.
const PATIENCE: u32 = 3;

/// Where a peer can be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub peer: PeerId,
    /// Its addresses, and for tabs its certificates.
    pub contact: Contact,
}

/// What a peer says to whoever asks for data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Whether it hands any out.
    pub answer: Answer,
    /// Who else may.
    pub others: Vec<Source>,
}

/// Whether a peer hands out its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It does.
    Files(Listing),
    /// Its user does not want to.
    Kept,
    /// It has no files, or no longer.
    Missing,
    /// It does, but not to so many at once: later.
    Busy,
}

/// Asks for the rest of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Its place in the listing.
    pub file: u32,
    /// From this byte on, at which a [`BLOCK`] begins.
    pub from: u64,
}

/// A conversation with a peer that has been welcomed. Dropping it ends it.
pub trait DataStream {
    /// Says something.
    fn send(&mut self, bytes: &[u8]) -> impl Future<Output = Result<(), String>>;

    /// Hears at most so many bytes, at least one; gives up after a bounded time.
    fn receive(&mut self, most: usize) -> impl Future<Output = Result<Bytes, String>>;
}

/// How peers are reached.
pub trait DataDialer {
    /// What it leads to.
    type DataStream: DataStream;

    /// Reaches one, for its data.
    fn dial(&mut self, source: &Source) -> impl Future<Output = Result<Self::DataStream, DialError>>;

    /// Waits a little, about a second.
    fn rest(&mut self) -> impl Future<Output = ()>;
}

/// Where the data goes. It may hold some from an earlier time.
pub trait Store {
    /// What the data becomes.
    type Whole;

    /// Makes ready for these files and says how many bytes of each are there already: all, or whole blocks of [`BLOCK`].
    fn begin(&mut self, listing: &Listing) -> Result<Vec<u64>, String>;

    /// Appends a block to a file, which has been found to be the right one.
    fn append(&mut self, file: usize, bytes: &[u8]) -> Result<(), String>;

    /// All files are as long as they should be: what they become.
    fn finish(&mut self) -> Result<Self::Whole, Trouble>;

    /// Throws away what is there.
    fn clear(&mut self) -> Result<(), String>;
}

/// Why a [`Store`] cannot make something of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// They are not the run's data.
    Data(String),
    /// Something on this machine, of which no other peer is free.
    Here(String),
}

/// How a fetch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// So much is here.
    Got {
        /// Bytes.
        bytes: u64,
        /// Bytes of all.
        total: u64,
    },
    /// All that can be reached hand out as much as they can: waiting for one.
    Waiting,
}

/// Why the data could not be had. What has arrived may be gone on with later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// All that can be reached keep it to themselves.
    #[error("the members of this run keep its data to themselves (--keep-data)")]
    Kept,
    /// There is more of it than may be fetched here.
    #[error(
        "the run's data has {:.0} MB, and no more than {:.0} MB are fetched here",
        *.bytes as f64 / 1e6,
        *.limit as f64 / 1e6
    )]
    TooLarge {
        /// Bytes of it.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// Nobody handed it out; why, of each that was asked.
    #[error("no member of the run could hand out its data: {why}", why = .0.join("; "))]
    Nobody(Vec<String>),
    /// Something on this machine.
    #[error("{0}")]
    Here(String),
}

/// Fetches the run's data, whose listing has the digest `files`, from whoever hands it out, first asking `first`, but no
/// more than `limit` bytes. Also gives the peer that was there to the last: `first` may be gone by then.
///
/// # Errors
///
/// If nobody does, or it has no room here.
pub async fn fetch<W: DataDialer, S: Store>(
    way: &mut W,
    store: &mut S,
    first: Source,
    files: Digest,
    limit: u64,
    tell: &mut dyn FnMut(News),
) -> Result<(S::Whole, Source), FetchError> {
    let mut known = vec![Known::new(first)];
    let mut rest = false;
    loop {
        // The least visited first, so that whoever has failed is tried again after the others.
        let open = known
            .iter_mut()
            .enumerate()
            .filter(|(_, peer)| peer.out.is_none());
        let Some((at, _)) = open.min_by_key(|(at, peer)| (peer.visits, *at)) else {
            return Err(why_nobody(known, limit));
        };
        if rest && known[at].visits > 0 {
            way.rest().await;
        }
        known[at].visits += 1;
        let source = known[at].source.clone();
        let mut visit = Visit {
            others: Vec::new(),
            got: false,
        };
        let ended = visit.run(way, store, &source, (files, limit), tell).await;
        rest = !visit.got;
        for other in visit.others {
            let is_new = known.iter().all(|peer| peer.source.peer != other.peer);
            if is_new && known.len() < MAX_KNOWN {
                known.push(Known::new(other));
            }
        }
        let peer = &mut known[at];
        match ended {
            Ok(whole) => return Ok((whole, source)),
            Err(Ended::Here(why)) => return Err(FetchError::Here(why)),
            Err(Ended::Busy) => tell(News::Waiting),
            Err(Ended::Out(out)) => peer.out = Some(out),
            Err(Ended::Lost(why)) => {
                peer.failures = if visit.got { 1 } else { peer.failures + 1 };
                if peer.failures >= PATIENCE {
                    peer.out = Some(Out::Because(why));
                }
            }
        }
    }
}

/// A peer that may have the data.
struct Known {
    source: Source,
    visits: u32,
    /// Visits in a row that brought nothing.
    failures: u32,
    /// Why it is asked no more.
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
            failures: 0,
            out: None,
        }
    }
}

/// Why a peer is of no use.
enum Out {
    Kept,
    TooLarge(u64),
    Because(String),
}

/// The most telling of the reasons.
fn why_nobody(known: Vec<Known>, limit: u64) -> FetchError {
    let (mut because, mut kept) = (Vec::new(), false);
    for Known { source, out, .. } in known {
        match out {
            Some(Out::TooLarge(bytes)) => return FetchError::TooLarge { bytes, limit },
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

/// How a visit ended without the data.
enum Ended {
    /// The peer has no slot free.
    Busy,
    /// It need not be asked again.
    Out(Out),
    /// It could not be reached, or fell silent.
    Lost(String),
    /// Something on this machine.
    Here(String),
}

/// A visit to one peer.
struct Visit {
    /// Whom it named.
    others: Vec<Source>,
    /// Whether any block came.
    got: bool,
}

impl Visit {
    async fn run<W: DataDialer, S: Store>(
        &mut self,
        way: &mut W,
        store: &mut S,
        source: &Source,
        (files, limit): (Digest, u64),
        tell: &mut dyn FnMut(News),
    ) -> Result<S::Whole, Ended> {
        let reached = way.dial(source).await;
        let mut line = reached.map_err(|error| Ended::Lost(error.to_string()))?;
        let offer: Offer = hear_message(&mut line, MAX_OFFER).await.map_err(Ended::Lost)?;
        self.others = offer.others;
        self.others.truncate(MAX_OTHERS);
        let because = |why: &str| Ended::Out(Out::Because(why.to_owned()));
        let listing = match offer.answer {
            Answer::Files(listing) => listing,
            Answer::Kept => return Err(Ended::Out(Out::Kept)),
            Answer::Missing => return Err(because("it has no files to hand out")),
            Answer::Busy => return Err(Ended::Busy),
        };
        if listing.digest() != files {
            return Err(because("it offers other files than the run's"));
        }
        if !listing.is_sound() {
            return Err(because("the run's files cannot be handed out"));
        }
        if listing.total() > limit {
            return Err(Ended::Out(Out::TooLarge(listing.total())));
        }
        loop {
            let alone = self.all_files(&mut line, store, &listing, tell).await?;
            match store.finish() {
                Ok(whole) => return Ok(whole),
                Err(Trouble::Here(why)) => return Err(Ended::Here(why)),
                Err(Trouble::Data(why)) => {
                    store.clear().map_err(Ended::Here)?;
                    if alone {
                        return Err(because(&format!(
                            "what it handed out is not the run's data ({why})"
                        )));
                    }
                    // Parts of two that do not fit each other, or of long ago: once more, all from this one.
                }
            }
        }
    }

    /// Fetches what is missing; says whether all of it came from this peer, now.
    async fn all_files<L: DataStream, S: Store>(
        &mut self,
        line: &mut L,
        store: &mut S,
        listing: &Listing,
        tell: &mut dyn FnMut(News),
    ) -> Result<bool, Ended> {
        let have = store.begin(listing).map_err(Ended::Here)?;
        let (mut bytes, total) = (have.iter().sum(), listing.total());
        tell(News::Got { bytes, total });
        for (file, (mut from, listed)) in have.iter().copied().zip(&listing.files).enumerate() {
            if from >= listed.size {
                continue;
            }
            let ask = Ask {
                file: file as u32,
                from,
            };
            line.send(&encode(&ask)).await.map_err(Ended::Lost)?;
            let said = hear_exactly(line, NODE * count(listed.size)).await;
            let proven = Blocks::proven(listed.size, listed.hash, &said.map_err(Ended::Lost)?);
            let false_file = || {
                Ended::Out(Out::Because(
                    "what it handed out is not the run's data".to_owned(),
                ))
            };
            let blocks = proven.ok_or_else(false_file)?;
            while from < listed.size {
                let len = (listed.size - from).min(BLOCK as u64) as usize;
                let block = hear_exactly(line, len).await.map_err(Ended::Lost)?;
                if !blocks.proves(from, &block) {
                    return Err(false_file());
                }
                store.append(file, &block).map_err(Ended::Here)?;
                self.got = true;
                from += len as u64;
                bytes += len as u64;
                tell(News::Got { bytes, total });
            }
        }
        Ok(have.iter().all(|from| *from == 0))
    }
}

/// Hears one message of at most `max` bytes; memory grows with what arrives, not with what is announced.
async fn hear_message<T: DeserializeOwned>(line: &mut impl DataStream, max: usize) -> Result<T, String> {
    let senseless = |_: Unread| "its answer makes no sense".to_owned();
    let head = hear_exactly(line, HEAD).await?;
    let head = head.try_into().map_err(|_| senseless(Unread::Garbled))?;
    let len = body_len(&head, max).map_err(senseless)?;
    decode(&hear_exactly(line, len).await?).map_err(senseless)
}

async fn hear_exactly(line: &mut impl DataStream, len: usize) -> Result<Vec<u8>, String> {
    let mut heard = Vec::new();
    while heard.len() < len {
        heard.extend_from_slice(&line.receive(len - heard.len()).await?);
    }
    Ok(heard)
}

#[cfg(test)]
mod tests;
