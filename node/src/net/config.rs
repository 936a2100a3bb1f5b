//! What an endpoint needs to know, and how long it and those who come in may take.

use super::congestion::{Congestion, LOCAL_TAB_WINDOW};

use super::line::Line;
use super::link::bulk_queue;
use super::nearby::door::Door;
use super::transport;
use crate::data::serve::ServedData;
use annulus_core::invitation::{Invitation, Root};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Connections that have not yet proved to belong to the run, at any time.
pub const MAX_HANDSHAKES: usize = 64;

/// Of those from one address, whoever is behind it.
pub const HANDSHAKES_PER_ADDRESS: usize = 16;

/// Of all, those that are kept for addresses at which a peer of the run is or was: strangers cannot keep them out.
pub const HANDSHAKES_OF_KNOWN: usize = 16;

/// How long such a connection may take. Longer than a dial, for which it may have to wait.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a dial may take, over all addresses.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(6);

/// What an endpoint needs to know. Build it with [`QuicConfig::new`] and change what differs.
#[derive(Clone, Debug)]
pub struct QuicConfig {
    /// The UDP address to bind; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The run to take part in.
    pub root: Root,
    /// By what this peer comes to it.
    pub right: Invitation,
    /// The run's manifest, served to whoever has a ticket; at most 1 MiB.
    pub manifest: Bytes,
    /// The run's data, served likewise.
    pub served: ServedData,
    /// Most links at once; dials of our own are not refused by it.
    pub max_peers: usize,
    /// Bytes that may wait for one peer on the bulk lane: [`bulk_queue`](crate::net::link::bulk_queue) of the model's size,
    /// since a protocol that paces itself by its rounds should never find the queue full.
    pub bulk_queue_bytes: usize,
    /// Bytes received that the owner has not yet taken, per lane; at least one longest frame.
    pub inbox_bytes: usize,
    /// Silence after which a link is down; keep-alives go out after three tenths of it.
    pub idle: Duration,
    /// The slow line that this peer is to seem to have, if any.
    pub line: Option<Line>,
    /// Whether memory is so short that packets are small on this machine too: room for batches of the longest is 134 MB,
    /// which is touched only as far as they come, but counts where a user's limit does.
    pub small_packets: bool,
    /// How fast to send over a network.
    pub congestion: Congestion,
    /// Most bytes under way to a browser's tab on this very machine.
    pub local_tab_window: u64,
    /// Most bytes under way from one peer to us.
    pub receive_window: u32,
    /// Where who has a code comes in, if anybody does.
    pub door: Option<Arc<Door>>,
}

impl QuicConfig {
    /// The defaults for taking part in this run: any free port, both address families.
    pub fn new(root: Root, right: Invitation, manifest: Bytes) -> Self {
        Self {
            listen: SocketAddr::from(([0u16; 8], 0)),
            root,
            right,
            manifest,
            served: ServedData::default(),
            max_peers: 64,
            bulk_queue_bytes: bulk_queue(0),
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
}
