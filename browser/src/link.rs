//! A [`Link`] over WebTransport: two streams to each peer, one a lane, as natively.
//!
//! **Bounds.** Sending: each peer's queue holds [`bulk_queue`] bytes a lane, and the browser one batch more. Receiving: while
//! frames of [`INBOX`] bytes a lane wait for the owner, streams are not read, and QUIC's flow control stops the senders.
//!
//! **Speed.** Bytes are copied once on either way, between WASM's memory and the browser's. Frames that wait are written
//! together, up to [`BATCH`]: each write costs a turn of the browser's event loop.

use crate::dial::{LocalPeer, Session, Stream, dial, next_chunk, open};
use crate::js::{self, WebTransport, field, object, words};
use annulus::net::hello::Purpose;
use annulus::net::link::{
    Chunker, Deframer, DialError, DownReason, Frame, FrameError, Lane, Link, LinkEvent, LinkKind, MAX_FRAME,
    PREFIX, Refusal, SendError, Traffic, bulk_queue,
};
use annulus_core::PeerId;
use bytes::Bytes;
use js_sys::Uint8Array;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use wasm_bindgen_futures::{JsFuture, spawn_local};

/// Bytes of frames of a lane that the owner has not yet taken.
const INBOX: usize = 64 << 20;

/// Bytes written in one go.
const BATCH: usize = 1 << 20;

/// How long a hang-up waits for the peer to take what was queued.
const FLUSH_MS: f64 = 3000.0;

/// Someone who waits for something to change.
#[derive(Default)]
pub struct Bell(RefCell<Vec<Waker>>);

impl Bell {
    /// Something has changed.
    pub fn ring(&self) {
        self.0.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// Waits until `ready` gives something; asked again at each ring.
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        std::future::poll_fn(|context| match ready() {
            Some(value) => Poll::Ready(value),
            None => {
                self.register(context);
                Poll::Pending
            }
        })
        .await
    }

    fn register(&self, context: &Context<'_>) {
        let mut waiting = self.0.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }
}

/// Links of a tab.
pub struct TabLink {
    shared: Rc<Shared>,
    /// The links that are up as far as the owner has been told.
    up: BTreeMap<PeerId, Rc<Wire>>,
}

struct Shared {
    me: LocalPeer,
    /// The peer that serves the page: its certificates can be asked for.
    host: PeerId,
    /// Bytes that may wait for a peer on a lane.
    queue: usize,
    /// What is told first: links that come and go, and frames of the control lane. A question whether this peer is there
    /// must not wait behind megabytes of gradients.
    events: RefCell<VecDeque<Told>>,
    /// Frames of the bulk lane.
    bulk: RefCell<VecDeque<(Rc<Wire>, Bytes)>>,
    /// Bytes of frames in each, by lane.
    waiting: [Cell<usize>; 2],
    arrived: Bell,
    taken: Bell,
    dials: RefCell<BTreeSet<PeerId>>,
    /// Links whose `Up` has just been taken.
    coming: RefCell<VecDeque<Rc<Wire>>>,
}

enum Told {
    Up(Rc<Wire>, Vec<String>),
    Down(Rc<Wire>, DownReason),
    DialFailed(PeerId, DialError),
    Control(Rc<Wire>, Bytes),
}

/// One link.
struct Wire {
    peer: PeerId,
    /// Bytes that may wait on a lane.
    queue: usize,
    transport: WebTransport,
    lanes: [Queue; 2],
    closing: Cell<bool>,
    /// Told of its end.
    down: Cell<bool>,
    received: Cell<u64>,
}

#[derive(Default)]
struct Queue {
    frames: RefCell<VecDeque<Frame>>,
    bytes: Cell<usize>,
    sent: Cell<u64>,
    filled: Bell,
    /// Everything queued has left, and nothing more will come.
    flushed: Cell<bool>,
}

impl TabLink {
    /// Without links; `host` is the peer that serves the page, `elements` the length of vectors.
    pub fn new(me: LocalPeer, host: PeerId, elements: usize) -> Self {
        Self {
            shared: Rc::new(Shared {
                me,
                host,
                queue: bulk_queue(elements),
                events: RefCell::default(),
                bulk: RefCell::default(),
                waiting: Default::default(),
                arrived: Bell::default(),
                taken: Bell::default(),
                dials: RefCell::default(),
                coming: RefCell::default(),
            }),
            up: BTreeMap::new(),
        }
    }

    /// How many links are up.
    pub fn count(&self) -> usize {
        self.up.len()
    }

    /// Hangs up on everyone and waits until each has taken all frames, for a bounded time.
    pub async fn drain(&mut self) {
        self.up.values().for_each(|wire| wire.hang_up());
        let up: Vec<_> = self.up.values().cloned().collect();
        let gone = self
            .shared
            .arrived
            .until(|| up.iter().all(|wire| wire.down.get()).then_some(()));
        futures_lite::future::or(gone, js::sleep(FLUSH_MS)).await;
    }
}

impl Link for TabLink {
    fn dial(&mut self, peer: PeerId, addresses: &[String]) {
        let shared = self.shared.clone();
        if self.up.contains_key(&peer) || !shared.dials.borrow_mut().insert(peer) {
            return;
        }
        let addresses = addresses.to_vec();
        spawn_local(async move {
            let addresses = shared.refreshed(peer, addresses).await;
            let dialled = shared.link(peer, &addresses).await;
            shared.dials.borrow_mut().remove(&peer);
            if let Err(reason) = dialled {
                shared.tell(Told::DialFailed(peer, reason));
            }
        });
    }

    fn send(&mut self, peer: PeerId, lane: Lane, frame: Frame) -> Result<(), SendError> {
        self.up.get(&peer).ok_or(SendError::NotUp)?.send(lane, frame)
    }

    fn hang_up(&mut self, peer: PeerId) {
        if let Some(wire) = self.up.get(&peer) {
            wire.hang_up();
        }
    }

    fn queued(&self, peer: PeerId) -> usize {
        let queued = |wire: &Rc<Wire>| wire.lanes.iter().map(|lane| lane.bytes.get()).sum();
        self.up.get(&peer).map_or(0, queued)
    }

    fn traffic(&self, peer: PeerId) -> Option<Traffic> {
        // Browsers tell nothing of packets and round trips that all of them know.
        self.up.get(&peer).map(|wire| Traffic {
            sent_bytes: wire.lanes.iter().map(|lane| lane.sent.get()).sum(),
            received_bytes: wire.received.get(),
            lost_packets: 0,
            rtt: Duration::ZERO,
        })
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        let event = self.shared.next();
        match &event {
            None => {
                self.shared.arrived.register(context);
                return Poll::Pending;
            }
            Some(LinkEvent::Up { peer, .. }) => {
                let wire = self.shared.coming.borrow_mut().pop_front();
                self.up.extend(wire.map(|wire| (*peer, wire)));
            }
            Some(LinkEvent::Down { peer, .. }) => drop(self.up.remove(peer)),
            Some(_) => {}
        }
        Poll::Ready(event)
    }
}

impl Drop for TabLink {
    fn drop(&mut self) {
        self.up.values().for_each(|wire| wire.close());
    }
}

impl Shared {
    /// The next event for the owner.
    fn next(&self) -> Option<LinkEvent> {
        let mut events = self.events.borrow_mut();
        if let Some(Told::Down(wire, _)) = events.front() {
            // Frames that arrived before the end come before it.
            let mut bulk = self.bulk.borrow_mut();
            if let Some(at) = bulk.iter().position(|(of, _)| Rc::ptr_eq(of, wire)) {
                let (wire, bytes) = bulk.remove(at)?;
                return Some(self.frame(&wire, Lane::Bulk, bytes));
            }
        }
        Some(match events.pop_front() {
            Some(Told::Up(wire, addresses)) => {
                let peer = wire.peer;
                self.coming.borrow_mut().push_back(wire);
                LinkEvent::Up {
                    peer,
                    addresses,
                    dialled_by_us: true,
                    way: LinkKind::Direct,
                    rtt: Duration::ZERO,
                }
            }
            Some(Told::Down(wire, reason)) => LinkEvent::Down {
                peer: wire.peer,
                reason,
            },
            Some(Told::DialFailed(peer, reason)) => LinkEvent::DialFailed { peer, reason },
            Some(Told::Control(wire, bytes)) => self.frame(&wire, Lane::Control, bytes),
            None => {
                let (wire, bytes) = self.bulk.borrow_mut().pop_front()?;
                self.frame(&wire, Lane::Bulk, bytes)
            }
        })
    }

    fn frame(&self, wire: &Wire, lane: Lane, bytes: Bytes) -> LinkEvent {
        let waiting = &self.waiting[lane as usize];
        waiting.set(waiting.get() - bytes.len());
        self.taken.ring();
        let peer = wire.peer;
        LinkEvent::Frame { peer, lane, bytes }
    }

    fn tell(&self, told: Told) {
        self.events.borrow_mut().push_back(told);
        self.arrived.ring();
    }

    /// The peer's addresses, with the certificates that it has now if it is the one that serves the page.
    async fn refreshed(&self, peer: PeerId, addresses: Vec<String>) -> Vec<String> {
        if peer != self.host {
            return addresses;
        }
        match crate::page_server::PageServer::ask().await {
            Ok(host) if host.peer == peer => host.contact(&addresses),
            _ => addresses,
        }
    }

    /// Makes a link.
    async fn link(self: &Rc<Self>, peer: PeerId, addresses: &[String]) -> Result<(), DialError> {
        let Session {
            transport,
            control,
            welcome,
        } = dial(&self.me, peer, addresses, Purpose::Link).await?;
        let broken = |error| DialError::Broken(words(&error));
        let bulk = open(&transport).await.map_err(broken)?;
        // Tells the acceptor of the stream, and that its welcome was found good.
        JsFuture::from(
            bulk.writer
                .write_with_chunk(&Uint8Array::new_with_length(PREFIX as u32)),
        )
        .await
        .map_err(broken)?;
        let wire = Rc::new(Wire {
            peer,
            queue: self.queue,
            transport,
            lanes: Default::default(),
            closing: Cell::new(false),
            down: Cell::new(false),
            received: Cell::new(0),
        });
        self.tell(Told::Up(wire.clone(), welcome.contact.0));
        for (lane, stream) in [(Lane::Control, control), (Lane::Bulk, bulk)] {
            let Stream { reader, writer, rest } = stream;
            let (shared, ours) = (self.clone(), wire.clone());
            spawn_local(async move {
                let reason = match ours.read(&shared, lane, reader, rest).await {
                    Err(how) => DownReason::Misbehaved(how),
                    Ok(()) => ours.why_down().await,
                };
                shared.down(&ours, reason);
            });
            let (shared, ours) = (self.clone(), wire.clone());
            spawn_local(async move {
                if ours.write(lane, writer).await.is_err() {
                    let reason = ours.why_down().await;
                    shared.down(&ours, reason);
                } else if ours.lanes.iter().all(|lane| lane.flushed.get()) {
                    ours.close();
                    shared.down(&ours, DownReason::HungUp);
                }
            });
        }
        let (shared, ours) = (self.clone(), wire.clone());
        spawn_local(async move {
            let _ = JsFuture::from(ours.transport.closed()).await;
            let reason = ours.why_down().await;
            shared.down(&ours, reason);
        });
        Ok(())
    }

    /// Says once that a link is gone.
    fn down(&self, wire: &Rc<Wire>, reason: DownReason) {
        if !wire.down.replace(true) {
            wire.close();
            wire.lanes.iter().for_each(|lane| lane.filled.ring());
            self.tell(Told::Down(wire.clone(), reason));
        }
    }
}

impl Wire {
    /// Queues a frame, unless that would overfill the lane. A frame alone always fits an empty queue.
    fn send(&self, lane: Lane, frame: Frame) -> Result<(), SendError> {
        let len = frame.len();
        if len > MAX_FRAME {
            return Err(SendError::TooLong);
        }
        if self.closing.get() || self.down.get() {
            return Err(SendError::NotUp);
        }
        let queue = &self.lanes[lane as usize];
        let waiting = queue.bytes.get();
        if waiting > 0 && waiting + len > self.queue {
            return Err(SendError::Full);
        }
        queue.bytes.set(waiting + len);
        queue.frames.borrow_mut().push_back(frame);
        queue.filled.ring();
        Ok(())
    }

    /// Takes no more frames, and ends the link when those queued have left.
    fn hang_up(&self) {
        self.closing.set(true);
        self.lanes.iter().for_each(|lane| lane.filled.ring());
    }

    fn close(&self) {
        let info = object(&[("closeCode", 0.into()), ("reason", "".into())]);
        self.transport.close(&info);
    }

    async fn write(
        &self,
        lane: Lane,
        writer: web_sys::WritableStreamDefaultWriter,
    ) -> Result<(), wasm_bindgen::JsValue> {
        let queue = &self.lanes[lane as usize];
        let mut chunker = Chunker::default();
        loop {
            let mut taken = 0;
            while chunker.len() < BATCH
                && let Some(frame) = queue.frames.borrow_mut().pop_front()
            {
                taken += frame.len();
                chunker.push(frame);
            }
            if chunker.is_empty() {
                if self.down.get() {
                    return Ok(());
                }
                if self.closing.get() {
                    // Resolves when the peer has taken everything.
                    let closed = JsFuture::from(writer.close()).await;
                    queue.flushed.set(true);
                    return closed.map(drop);
                }
                let more = || !queue.frames.borrow().is_empty() || self.closing.get() || self.down.get();
                queue.filled.until(|| more().then_some(())).await;
                continue;
            }
            let total = chunker.len();
            let batch = Uint8Array::new_with_length(total as u32);
            let mut start = 0;
            for chunk in chunker.take() {
                let end = start + chunk.len() as u32;
                batch.subarray(start, end).copy_from(&chunk);
                start = end;
            }
            JsFuture::from(writer.write_with_chunk(&batch)).await?;
            queue.sent.set(queue.sent.get() + total as u64);
            queue.bytes.set(queue.bytes.get() - taken);
        }
    }

    async fn read(
        self: &Rc<Self>,
        shared: &Shared,
        lane: Lane,
        reader: web_sys::ReadableStreamDefaultReader,
        rest: Vec<u8>,
    ) -> Result<(), FrameError> {
        let mut deframer = Deframer::default();
        deframer.push(&rest);
        loop {
            while let Some(bytes) = deframer.next_frame()? {
                self.received
                    .set(self.received.get() + (bytes.len() + PREFIX) as u64);
                self.hand_over(shared, lane, bytes).await;
            }
            let Ok(Some(chunk)) = next_chunk(&reader).await else {
                return Ok(());
            };
            let buffer = deframer.buffer();
            let start = buffer.len();
            buffer.resize(start + chunk.length() as usize, 0);
            chunk.copy_to(&mut buffer[start..]);
        }
    }

    async fn hand_over(self: &Rc<Self>, shared: &Shared, lane: Lane, bytes: Bytes) {
        let waiting = &shared.waiting[lane as usize];
        let room = || waiting.get() == 0 || waiting.get() + bytes.len() <= INBOX;
        shared
            .taken
            .until(|| (room() || self.down.get()).then_some(()))
            .await;
        if self.down.get() {
            return;
        }
        waiting.set(waiting.get() + bytes.len());
        match lane {
            Lane::Control => shared.tell(Told::Control(self.clone(), bytes)),
            Lane::Bulk => {
                shared.bulk.borrow_mut().push_back((self.clone(), bytes));
                shared.arrived.ring();
            }
        }
    }

    /// Why the session ended, if it says so soon.
    async fn why_down(&self) -> DownReason {
        if self.closing.get() {
            return DownReason::HungUp;
        }
        let closed = async { Some(JsFuture::from(self.transport.closed()).await) };
        let silence = async {
            js::sleep(500.0).await;
            None
        };
        match futures_lite::future::or(closed, silence).await {
            Some(Ok(info)) => match field(&info, "closeCode").as_f64().unwrap_or_default() as u64 {
                0 => DownReason::PeerLeft,
                1 => DownReason::Replaced,
                code => match Refusal::from_code(code) {
                    Some(refusal) => DownReason::Refused(refusal),
                    None => DownReason::Transport(field(&info, "reason").as_string().unwrap_or_default()),
                },
            },
            Some(Err(error)) => DownReason::Transport(words(&error)),
            None => DownReason::Transport("the peer reset a lane".to_owned()),
        }
    }
}
