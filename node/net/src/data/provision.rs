//! Brings a run's data to a peer that lacks it: the messages, their bounds, and what they need of the outside.
//!
//! A newcomer says hello with [`Purpose::Data`](crate::net::hello::Purpose::Data). On the same stream the welcome is
//! followed by an [`Offer`]: which files there are, and which other peers may have them. The newcomer then sends
//! [`Ask`]s, several at once if it likes. They are answered in order, each by one byte that says whether the peer
//! has what was asked for, and by the bytes, whose number is known.
//!
//! A newcomer may want some of the files only. Each has a digest of its own, so it needs no other to check them.
//!
//! Nothing that a peer sends is trusted. The run's manifest has the hash of the listing, which has the files' sizes and
//! hashes, which prove the nodes, which prove each block before it is stored. Names become file names only if they are
//! safe everywhere. The data is used only if the task reads from it the data that the manifest names.
//!
//! It knows no transport, no files and no clock.

use super::listing::{MAX_FILES, MAX_NAME};
use crate::net::hello::{HEAD, Unread, body_len, decode};
use crate::net::link::DialError;
use annulus_core::{Contact, PeerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;

pub use super::listing::{ListedFile, Listing};
pub use super::tree::PIECE;

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

/// A question to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// The nodes of a file's hash tree.
    Nodes {
        /// The file's index in the listing.
        file: u32,
    },
    /// Some blocks of a file.
    Blocks {
        /// The file's index in the listing.
        file: u32,
        /// The first byte, at the start of a [`BLOCK`](super::BLOCK).
        from: u64,
        /// Their number, of at most [`PIECE`] bytes. The file's last one is shorter.
        blocks: u32,
    },
}

/// Begins an answer: what was asked for follows.
pub const HAS: u8 = 1;

/// Is an answer: the peer no longer has that.
pub const LACKS: u8 = 0;

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
    fn dial(&self, source: &Source) -> impl Future<Output = Result<Self::DataStream, DialError>>;

    /// Waits for about a second.
    fn rest(&self) -> impl Future<Output = ()>;
}

/// Where the data is stored, in [`PIECE`]s. It may hold some from an earlier time.
pub trait Store {
    /// The finished data.
    type Whole;

    /// Whether the file of this name is needed here. The default takes all.
    fn wants(&self, name: &str) -> bool {
        let _ = name;
        true
    }

    /// Prepares for these files, the wanted ones of the run's, and returns what is here of each.
    fn begin(&mut self, listing: &Listing) -> Result<Vec<Here>, String>;

    /// Takes the checked nodes of a file, before its first piece. The default forgets them.
    fn prove(&mut self, file: usize, nodes: &[u8]) -> Result<(), String> {
        let _ = (file, nodes);
        Ok(())
    }

    /// Takes a checked piece of a file.
    fn put(&mut self, file: usize, piece: u64, bytes: &[u8]) -> Result<(), String>;

    /// Whether the data can be used, though not all of it is here. The default is for data that is used as a whole.
    fn has_begun(&self) -> bool {
        false
    }

    /// Turns the complete files into the finished data. If some turn out to be damaged, [`begin`](Self::begin) says so
    /// afterwards.
    fn finish(&mut self) -> Result<Self::Whole, String>;
}

/// The part of a file that a [`Store`] has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// The nodes of its hash tree; empty if they are not here.
    pub nodes: Vec<u8>,
    /// The pieces that are not here.
    pub missing: Vec<u64>,
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

/// Why the data could not be fetched. The pieces that have arrived are kept for the next time.
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

/// Receives one message of at most `max` bytes. Memory grows with what arrives, not with the announced length.
pub(super) async fn hear_message<T: DeserializeOwned>(
    line: &mut impl DataStream,
    max: usize,
) -> Result<T, String> {
    let senseless = |_: Unread| "its answer makes no sense".to_owned();
    let head = hear_exactly(line, HEAD).await?;
    let head = head.try_into().map_err(|_| senseless(Unread::Garbled))?;
    let len = body_len(&head, max).map_err(senseless)?;
    decode(&hear_exactly(line, len).await?).map_err(senseless)
}

pub(super) async fn hear_exactly(line: &mut impl DataStream, len: usize) -> Result<Vec<u8>, String> {
    let mut heard = Vec::new();
    while heard.len() < len {
        heard.extend_from_slice(&line.receive(len - heard.len()).await?);
    }
    Ok(heard)
}
