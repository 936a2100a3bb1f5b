//! Settings of an endpoint, and limits on how long it and those who connect may take.

use super::congestion::{Congestion, LOCAL_TAB_WINDOW};

use super::line::Line;
use super::link::{bulk_queue, guest_queue, guests_queue};
use super::nearby::door::Door;
use super::transport;
use crate::data::serve::ServedData;
use annulus_core::invitation::{Invitation, Root};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Most connections that have not yet proved that they belong to the run.
pub const MAX_HANDSHAKES: usize = 64;

/// Most of those from one address, which several peers may share.
pub const HANDSHAKES_PER_ADDRESS: usize = 16;

/// How many of all are reserved for addresses at which a peer of the run is or was, and for this machine, so that strangers
/// cannot keep peers out.
pub const HANDSHAKES_OF_KNOWN: usize = 16;

/// How long such a connection may take. Longer than a dial, since it may have to wait for one.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a dial may take, over all addresses.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(6);

/// Settings of an endpoint. Build them with [`QuicConfig::new`] and change what differs.
#[derive(Clone, Debug)]
pub struct QuicConfig {
    /// The UDP address to bind; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The run to take part in.
    pub root: Root,
    /// This peer's right to take part.
    pub right: Invitation,
    /// The run's manifest, served to anyone with a ticket; at most 1 MiB.
    pub manifest: Bytes,
    /// The run's data, served to the same.
    pub served: ServedData,
    /// Most links at once. It does not limit our own dials.
    pub max_peers: usize,
    /// Most bytes queued for one peer on the bulk lane: [`bulk_queue`](crate::net::link::bulk_queue) of the model's
    /// size. The protocol paces itself by its rounds, so it should never find the queue full.
    pub bulk_queue_bytes: usize,
    /// Most bytes queued on the bulk lane for one peer that is no member:
    /// [`guest_queue`](crate::net::link::guest_queue) of the model's size.
    pub guest_queue_bytes: usize,
    /// Most bytes queued for all peers together that are no members.
    pub guests_queue_bytes: usize,
    /// Most received bytes that the owner has not yet taken, per lane; at least one longest frame.
    pub inbox_bytes: usize,
    /// A link is down after this much silence. Keep-alives are sent after three tenths of it.
    pub idle: Duration,
    /// The slow line to emulate, if any.
    pub line: Option<Line>,
    /// Whether packets stay small even on this machine, because memory is short. Batches of the longest packets need
    /// 134 MB, which are touched only as packets arrive, but count towards a user's memory limit.
    pub small_packets: bool,
    /// The congestion control on a network.
    pub congestion: Congestion,
    /// Most bytes in flight to a browser's tab on this machine.
    pub local_tab_window: u64,
    /// Most bytes in flight from one peer to us.
    pub receive_window: u32,
    /// Lets in peers that know a code, if the run has one.
    pub door: Option<Arc<Door>>,
}

impl QuicConfig {
    /// The defaults for this run: any free port, both address families.
    pub fn new(root: Root, right: Invitation, manifest: Bytes) -> Self {
        Self {
            listen: SocketAddr::from(([0u16; 8], 0)),
            root,
            right,
            manifest,
            served: ServedData::default(),
            max_peers: 64,
            bulk_queue_bytes: bulk_queue(0),
            guest_queue_bytes: guest_queue(0, 0),
            guests_queue_bytes: guests_queue(0, 0),
            inbox_bytes: 64 << 20,
            idle: Duration::from_secs(10),
            line: None,
            small_packets: false,
            congestion: Congestion::default(),
            local_tab_window: LOCAL_TAB_WINDOW,
            receive_window: transport::WINDOW,
            door: None,
        }
    }

    /// With queues for a model whose state has this many bytes, and its vector this many elements.
    pub fn sized_for(self, state_bytes: u64, elements: usize) -> Self {
        let state_bytes = usize::try_from(state_bytes).unwrap_or(usize::MAX / 2);
        Self {
            bulk_queue_bytes: bulk_queue(elements),
            guest_queue_bytes: guest_queue(state_bytes, elements),
            guests_queue_bytes: guests_queue(state_bytes, elements),
            ..self
        }
    }
}
