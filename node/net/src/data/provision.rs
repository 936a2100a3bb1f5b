//! Brings a run's data to a peer that lacks it: the messages, their bounds, and the newcomer's steps.
//!
//! A newcomer says hello with [`Purpose::Data`](crate::net::hello::Purpose::Data). On the same stream the welcome is
//! followed by an [`Offer`]: which files there are, and which other peers may have them. The newcomer then sends
//! [`Ask`]s. The answer to each is the nodes of that file's hash tree, and the file's bytes from there to its end,
//! whose number is known. If a peer falls silent, the newcomer continues with another one at the block that it has
//! reached.
//!
//! A newcomer may want some of the files only. Each has a digest of its own, so it needs no other to check them.
//!
//! Nothing that a peer sends is trusted. The run's manifest has the hash of the listing, which has the files' sizes and
//! hashes, which prove the nodes, which prove each block before it is stored. Names become file names only if they are
//! safe everywhere. The data is used only if the task reads from it the data that the manifest names.
//!
//! It knows no transport, no files and no clock.

use super::listing::{MAX_FILES, MAX_NAME};
use super::tree::{BLOCK, Blocks, NODE, count};
use crate::net::hello::{HEAD, Unread, body_len, bounded, decode, encode};
use crate::net::link::DialError;
use annulus_core::{Contact, Digest, PeerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;

pub use super::listing::{ListedFile, Listing};

/// Most other peers in an offer.
pub const MAX_OTHERS: usize = 32;

/// Longest offer.
pub const MAX_OFFER: usize =
    MAX_FILES * (MAX_NAME + 48) + MAX_OTHERS * (40 + Contact::LIMIT * (Contact::ADDRESS_LIMIT + 4)) + 64;

/// Longest [`Ask`].
pub const MAX_ASK: usize = 32;

/// Most data that a tab fetches. It stays in memory, of which WASM has at most 4 GiB.
pub const TAB_LIMIT: u64 = 512 << 20;

/// How long a peer that sends data may be silent. It may have to wait for the ring between two blocks.
pub const SILENCE: Duration = Duration::from_secs(15);

/// Time between two rounds of asking all peers.
pub const REST: Duration = Duration::from_secs(1);

/// The message about a peer that was silent for so long.
pub fn silent() -> String {
    format!("nothing came for {} s", SILENCE.as_secs())
}

/// A peer that sends fewer bytes per second is left for another, or given up: a quarter of what a peer with the slowest
/// useful line sends to each of four newcomers.
pub const SLOWEST: u64 = 8 << 10;

/// The time over which this is measured.
pub const WAITED: Duration = Duration::from_secs(30);

/// The message about a peer that is too slow.
pub fn too_slow() -> String {
    format!("it sent less than {SLOWEST} bytes/s for {} s", WAITED.as_secs())
}

/// Judges a peer's speed by what arrived while it was waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    bytes: u64,
    waited: Duration,
}

impl Pace {
    /// Whether the peer is fast enough, after this many more bytes in this much more time.
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

/// Peers that a newcomer remembers while it looks for one with the data.
const MAX_KNOWN: usize = 64;

/// A peer is given up after this many visits in a row without progress.
const PATIENCE: u32 = 3;

/// Where a peer can be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub peer: PeerId,
    /// Its addresses, and for tabs its certificates.
    pub contact: Contact,
}

/// The answer to a request for data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Whether the peer has data to give.
    pub answer: Answer,
    /// Other peers that may have it.
    pub others: Vec<Source>,
}

/// Whether a peer gives its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It does; these are the files.
    Files(Listing),
    /// Its user does not want to.
    Kept,
    /// It has no files, or lost them.
    Missing,
    /// It does, but has too many guests now.
    Busy,
}

/// Asks for the rest of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Its index in the listing.
    pub file: u32,
    /// The first byte, at the start of a [`BLOCK`].
    pub from: u64,
}

/// A conversation with a peer after the welcome. Dropping it ends it.
pub trait DataStream {
    /// Sends bytes.
    fn send(&mut self, bytes: &[u8]) -> impl Future<Output = Result<(), String>>;

    /// Receives at most `most` bytes, at least one; gives up after a bounded time.
    fn receive(&mut self, most: usize) -> impl Future<Output = Result<Bytes, String>>;
}

/// How peers are reached.
pub trait DataDialer {
    /// The conversation.
    type DataStream: DataStream;

    /// Connects to a peer, for its data.
    fn dial(&mut self, source: &Source) -> impl Future<Output = Result<Self::DataStream, DialError>>;

    /// Waits for about a second.
    fn rest(&mut self) -> impl Future<Output = ()>;
}

/// Where the data is stored. It may hold some from an earlier time.
pub trait Store {
    /// The finished data.
    type Whole;

    /// Whether the file of this name is needed here. The default takes all.
    fn wants(&self, name: &str) -> bool {
        let _ = name;
        true
    }

    /// Prepares for these files, the wanted ones of the run's, and returns how many bytes of each exist: all, or whole [`BLOCK`]s.
    fn begin(&mut self, listing: &Listing) -> Result<Vec<u64>, String>;

    /// Appends a checked block to a file.
    fn append(&mut self, file: usize, bytes: &[u8]) -> Result<(), String>;

    /// Turns the complete files into the finished data.
    fn finish(&mut self) -> Result<Self::Whole, Trouble>;

    /// Removes everything.
    fn clear(&mut self) -> Result<(), String>;
}

/// Why a [`Store`] cannot finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The files are not the run's data.
    Data(String),
    /// A problem of this machine, which another peer would not solve.
    Here(String),
}

/// The progress of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// This much has arrived.
    Got {
        /// Bytes that have arrived.
        bytes: u64,
        /// Bytes of all files.
        total: u64,
    },
    /// All peers that can be reached are busy, so it waits.
    Waiting,
}

/// Why the data could not be fetched. The blocks that have arrived are kept for the next time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// All peers that can be reached keep their data.
    #[error("the members of this run keep its data to themselves (--keep-data)")]
    Kept,
    /// There is more data than may be fetched here.
    #[error(
        "the run's data has {:.0} MB, and no more than {:.0} MB are fetched here",
        *.bytes as f64 / 1e6,
        *.limit as f64 / 1e6
    )]
    TooLarge {
        /// Bytes of all files.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// No peer sent it; with the reason of each.
    #[error("no member of the run could hand out its data: {why}", why = .0.join("; "))]
    Nobody(Vec<String>),
    /// A problem of this machine.
    #[error("{0}")]
    Here(String),
}

/// Fetches the run's data, at most `limit` bytes, from any peer that has it, asking `first` first. `files` is the
/// digest of its listing. Also returns the last peer that answered, since `first` may be gone by then.
///
/// # Errors
///
/// If no peer has it, or there is no room here.
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
        // The least visited first, so that a peer that has failed is tried again after the others.
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

/// The most informative of the reasons.
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
    /// The peer has no free slot.
    Busy,
    /// There is no need to ask it again.
    Out(Out),
    /// It could not be reached, or fell silent.
    Lost(String),
    /// A problem of this machine.
    Here(String),
}

/// The run's files that are wanted here.
struct Wanted {
    listing: Listing,
    /// The place of each in the run's listing.
    places: Vec<u32>,
}

impl Wanted {
    fn of(listing: Listing, store: &impl Store) -> Self {
        let Listing { folder, files } = listing;
        let files = (0..).zip(files).filter(|(_, file)| store.wants(&file.name));
        let (places, files) = files.unzip();
        Self {
            listing: Listing { folder, files },
            places,
        }
    }
}

/// A visit to one peer.
struct Visit {
    /// The peers that it named.
    others: Vec<Source>,
    /// Whether any block arrived.
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
        let wanted = Wanted::of(listing, store);
        if wanted.listing.total() > limit {
            return Err(Ended::Out(Out::TooLarge(wanted.listing.total())));
        }
        loop {
            let alone = self.all_files(&mut line, store, &wanted, tell).await?;
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
                    // The parts are of two peers that disagree, or outdated: fetch everything again from this peer.
                }
            }
        }
    }

    /// Fetches what is missing; returns whether all of it came from this peer now.
    async fn all_files<L: DataStream, S: Store>(
        &mut self,
        line: &mut L,
        store: &mut S,
        Wanted { listing, places }: &Wanted,
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
                file: places[file],
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

/// Receives one message of at most `max` bytes. Memory grows with what arrives, not with the announced length.
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
