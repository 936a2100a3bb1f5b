//! The interface between the driver and a transport: links to peers, named by [`PeerId`], each with two lanes of
//! frames.
//!
//! A transport implements [`Link`]: QUIC natively, WebTransport in a browser. This module also holds the framing that
//! both share. It knows no sockets and no runtime, nor what frames mean.

use crate::net::gate::Gate;
pub use crate::net::refusal::Refusal;
#[cfg(doc)]
use annulus_core::Contact;
pub use annulus_core::Lane;
use annulus_core::PeerId;
use annulus_core::tickets::Barred;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::{
    future::Future,
    task::{Context, Poll},
    time::Duration,
};

/// Longest frame that a link carries, without its length prefix.
///
/// It holds a piece of any sensible size, and one frame per lane and peer never takes too much memory.
pub const MAX_FRAME: usize = 8 << 20;

/// Bytes of the length prefix before each frame: a little-endian `u32`.
pub const PREFIX: usize = 4;

/// Most bytes queued for a peer on the bulk lane, for vectors of this length. For a large model it holds the two rounds
/// that a newcomer may be behind, and the current round twice: what the newcomer is told, and what a neighbour in the
/// ring is sent. With less, a follower slower than the ring would lose its link and everything that it has fetched,
/// again and again.
pub fn bulk_queue(elements: usize) -> usize {
    (4 * size_of::<f32>() * elements).max(256 << 20)
}

/// Most bytes queued on the bulk lane for a peer that is no member: a state, and the two rounds that a newcomer may be behind.
/// For a small model it is at least what a sponsor may have on its way to a newcomer, and some of the state.
pub fn guest_queue(state_bytes: usize, elements: usize) -> usize {
    state_bytes
        .saturating_add(2 * size_of::<f32>() * elements)
        .max(48 << 20)
}

/// Most bytes queued for all those peers together. Only for a model so large that one of them needs more is it more than
/// 256 MiB.
pub fn guests_queue(state_bytes: usize, elements: usize) -> usize {
    guest_queue(state_bytes, elements).max(256 << 20)
}

/// A frame to send: consecutive slices, so that a header and a shared payload need no copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame(Vec<Bytes>);

impl Frame {
    /// A frame of these slices, in order.
    pub fn new(parts: Vec<Bytes>) -> Self {
        Self(parts)
    }

    /// Length of all slices together.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether the frame is empty. Links send empty frames as keep-alives and never hand them out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slices, in order.
    pub fn into_parts(self) -> Vec<Bytes> {
        self.0
    }
}

impl From<Bytes> for Frame {
    fn from(part: Bytes) -> Self {
        Self(vec![part])
    }
}

impl<const N: usize> From<[Bytes; N]> for Frame {
    fn from(parts: [Bytes; N]) -> Self {
        Self(parts.into())
    }
}

/// A transport as the driver sees it. One task owns it; no method blocks.
///
/// Order of calls for one peer: [`dial`](Link::dial) (or the peer dials us), [`LinkEvent::Up`],
/// [`send`](Link::send) and [`LinkEvent::Frame`] as often as wanted, [`hang_up`](Link::hang_up) (or not),
/// [`LinkEvent::Down`]. There is at most one link to a peer at any time, and never a frame outside of
/// its `Up` and `Down`.
pub trait Link {
    /// Starts to connect to `peer` at any of its addresses (`host:port`), tried nearly at once, the
    /// first [`Contact::LIMIT`] of them.
    ///
    /// Ends with `Up` or `DialFailed`. Does nothing if a link to the peer is up or being dialled.
    fn dial(&mut self, peer: PeerId, addresses: &[String]);

    /// Queues one frame. On an error nothing was queued.
    fn send(&mut self, peer: PeerId, lane: Lane, frame: Frame) -> Result<(), SendError>;

    /// Closes the link once what is queued has arrived (or a bound on that time has passed); `Down` follows.
    fn hang_up(&mut self, peer: PeerId);

    /// Bytes that wait in our queues for `peer`, both lanes; 0 if there is no link.
    fn queued(&self, peer: PeerId) -> usize;

    /// The traffic on the present link to `peer`, if it is up.
    fn traffic(&self, peer: PeerId) -> Option<Traffic>;

    /// Sets who may come in. For peers that can be dialled.
    fn judge_by(&mut self, _gate: Gate) {}

    /// The next event, in order. `Ready(None)` once the transport has stopped for good.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>>;
}

/// Waits for the next event. Dropping the future loses none.
pub fn next_event<L: Link>(link: &mut L) -> impl Future<Output = Option<LinkEvent>> + use<'_, L> {
    std::future::poll_fn(|context| link.poll_event(context))
}

/// How two peers reached each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// One end was simply dialled.
    #[default]
    Direct,
    /// Through a port mapping of a router.
    Mapped,
    /// By hole punching: both dialled at once, and each router took the other's packets for answers.
    Punched,
}

/// What a transport reports to the driver.
#[derive(Debug)]
pub enum LinkEvent {
    /// A link to `peer` stands, authenticated both ways.
    Up {
        /// The peer at its other end.
        peer: PeerId,
        /// The addresses that the peer announces, unchecked, and the one where it was seen. Within the bounds of a
        /// [`Contact`].
        addresses: Vec<String>,
        /// Whether our dial made it.
        dialled_by_us: bool,
        /// How the peers reached each other.
        way: LinkKind,
        /// Its round-trip time at the beginning.
        rtt: Duration,
    },
    /// The link to `peer` is gone; frames still queued are lost.
    Down {
        /// The peer at its other end.
        peer: PeerId,
        /// Why it ended.
        reason: DownReason,
    },
    /// One whole frame from `peer`; frames of one lane come in the order they were sent.
    Frame {
        /// The sender.
        peer: PeerId,
        /// On which lane.
        lane: Lane,
        /// The frame without its prefix; never empty.
        bytes: Bytes,
    },
    /// A [`Link::dial`] failed.
    DialFailed {
        /// The peer that was dialled.
        peer: PeerId,
        /// Why it failed.
        reason: DialError,
    },
}

/// Counters of one link since it came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frame bytes handed to the transport, with prefixes.
    pub sent_bytes: u64,
    /// Frame bytes received, with prefixes.
    pub received_bytes: u64,
    /// Packets that were declared lost and sent again.
    pub lost_packets: u64,
    /// The round-trip time as last estimated.
    pub rtt: Duration,
}

/// Why a link went down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// The peer said goodbye after its last frame.
    #[error("the peer left")]
    PeerLeft,
    /// We hung up.
    #[error("we hung up")]
    HungUp,
    /// A newer connection to the same peer replaced it; `Up` follows at once.
    #[error("replaced by a newer connection")]
    Replaced,
    /// Nothing was heard for longer than the idle timeout.
    #[error("nothing heard from the peer for too long")]
    Silent,
    /// The peer no longer knows the connection: its process was restarted or ended in a hurry.
    #[error("the peer was restarted, or ended without a word")]
    Restarted,
    /// The peer refused us in the end.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The peer broke the protocol, and we hung up.
    #[error("the peer broke the protocol: {0}")]
    Misbehaved(FrameError),
    /// The transport gave up, for this reason.
    #[error("the connection broke: {0}")]
    Transport(String),
}

/// Why a dial failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// No address was given, or none could be used; with the reason for each.
    #[error("no usable address: {0}")]
    NoAddress(String),
    /// Nobody answered at any address; with what happened at each.
    #[error(
        "nobody answers: {0}. Check that the peer runs, that the address is right, and that no \
         firewall drops UDP to that port"
    )]
    Unreachable(String),
    /// Another peer answers at that address.
    #[error("peer {0} answers there instead; the addresses are out of date")]
    AnotherPeer(PeerId),
    /// The peer answered and refused us.
    #[error(transparent)]
    Refused(Refusal),
    /// The peer that answers has no right to take part in the run.
    #[error(
        "whoever answers there cannot show that anybody has let it in, so it is no part of the run. \
         Ask for a fresh ticket"
    )]
    Unproven,
    /// The connection broke during the handshake.
    #[error("the connection broke during the handshake: {0}")]
    Broken(String),
    /// Too many dials are running.
    #[error("too many dials at once; try again when some have ended")]
    Busy,
}

impl DialError {
    /// If the ticket is the reason, what is wrong with it.
    pub fn barred(&self) -> Option<Barred> {
        match self {
            Self::Refused(refusal) => refusal.barred(),
            _ => None,
        }
    }
}

/// Why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No link to that peer is up.
    #[error("no link to that peer is up")]
    NotUp,
    /// The lane's queue is full: the peer takes frames more slowly than they are made.
    #[error("the queue to that peer is full; wait until it has drained")]
    Full,
    /// The frame is longer than [`MAX_FRAME`].
    #[error("a frame holds at most {MAX_FRAME} bytes; cut it into pieces")]
    TooLong,
}

/// Why incoming bytes are not frames. The stream cannot be used after this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A prefix announced more than [`MAX_FRAME`] bytes.
    #[error("a frame of {0} bytes; {MAX_FRAME} are allowed")]
    TooLong(u32),
    /// The stream ended within a frame.
    #[error("a stream that ended within a frame")]
    Truncated,
}

/// Turns frames into the chunks that a stream writes. Prefixes and small slices are copied together, large slices pass
/// unchanged.
///
/// Many tiny chunks make a QUIC send buffer slow, and copying less than a few KiB is cheaper.
#[derive(Debug, Default)]
pub struct Chunker {
    chunks: Vec<Bytes>,
    small: BytesMut,
    len: usize,
}

impl Chunker {
    /// Shorter slices are copied. A guess: far above the cost of a queue entry, far below that of a run of packets.
    const COPY_BELOW: usize = 4096;

    /// Appends one frame with its prefix; the frame is at most [`MAX_FRAME`] long.
    pub fn push(&mut self, frame: Frame) {
        let len = frame.len();
        debug_assert!(len <= MAX_FRAME, "whoever queues a frame checks its length");
        self.len += PREFIX + len;
        self.small.put_u32_le(len as u32);
        for part in frame.into_parts() {
            if part.len() < Self::COPY_BELOW {
                self.small.put_slice(&part);
            } else {
                self.cut_small();
                self.chunks.push(part);
            }
        }
    }

    /// Bytes appended since the last [`take`](Self::take).
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was appended since the last [`take`](Self::take).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All chunks so far, in order.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.cut_small();
        self.len = 0;
        std::mem::take(&mut self.chunks)
    }

    fn cut_small(&mut self) {
        if !self.small.is_empty() {
            self.chunks.push(self.small.split().freeze());
        }
    }
}

/// Parses frames from incoming bytes, with at most one copy of each byte.
///
/// Either [`push`](Self::push) what arrived, or read at most [`want`](Self::want) bytes into [`buffer`](Self::buffer).
/// Then call [`next_frame`](Self::next_frame) until it returns `None`. A prefix alone never makes it allocate more than
/// [`Deframer::RESERVE`].
#[derive(Debug, Default)]
pub struct Deframer {
    buffer: BytesMut,
}

impl Deframer {
    /// Memory reserved for a frame before its bytes arrive. Beyond this the buffer grows with what arrives.
    pub const RESERVE: usize = 1 << 20;

    /// How much to read when the next frame's length is unknown: many small frames at once, and little to move when a
    /// large one starts there.
    const READ_AHEAD: usize = 16 << 10;

    /// How many bytes to read next at most: to the end of a frame that has begun, or a little if none has.
    pub fn want(&self) -> usize {
        match self.announced() {
            Some(len) if len <= MAX_FRAME => (PREFIX + len)
                .saturating_sub(self.buffer.len())
                .clamp(1, Self::RESERVE),
            _ => Self::READ_AHEAD,
        }
    }

    /// The buffer to append to, with room for at least one byte of what is wanted.
    pub fn buffer(&mut self) -> &mut BytesMut {
        let want = self.want();
        if self.buffer.capacity() - self.buffer.len() < want {
            self.buffer.reserve(want);
        }
        &mut self.buffer
    }

    /// Appends bytes that already lie elsewhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there. Empty frames are skipped.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        while let Some(len) = self.announced() {
            if len > MAX_FRAME {
                return Err(FrameError::TooLong(len as u32));
            }
            if self.buffer.len() < PREFIX + len {
                return Ok(None);
            }
            self.buffer.advance(PREFIX);
            if len > 0 {
                return Ok(Some(self.buffer.split_to(len).freeze()));
            }
        }
        Ok(None)
    }

    /// Call it at the stream's end: it checks that the stream did not end within a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Truncated)
        }
    }

    fn announced(&self) -> Option<usize> {
        let prefix = self.buffer.get(..PREFIX)?;
        Some(u32::from_le_bytes(prefix.try_into().expect("four bytes were taken")) as usize)
    }
}

#[cfg(test)]
mod tests;
