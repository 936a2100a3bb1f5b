//! One established connection: its queues, its two lanes of frames, and its end.
//!
//! It does not know how the connection came about, nor other connections.

use crate::net::inbox::{Inbox, OVERHEAD};
use crate::net::link::{
    Chunker, Deframer, DownReason, Frame, FrameError, Lane, LinkKind, MAX_FRAME, PREFIX, Refusal, SendError,
    Traffic,
};
use crate::net::transport::SEND_WINDOW;
use crate::printable::printable_line;
use annulus_core::PeerId;
use annulus_core::id::TicketId;
use bytes::BufMut;
use quinn::{Connection, ConnectionError, VarInt};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    sync::{Notify, Semaphore},
    time::{Instant, sleep, timeout},
};
use web_transport_quinn::{
    ReadError, RecvStream, SendStream, Session, SessionError, WebTransportError, WriteError,
};

/// How many bytes of frames are handed to QUIC at once: enough to fill many packets under one lock, and few enough that
/// a lane's queue drains steadily.
const BATCH: usize = 1 << 20;

/// How long a hang-up waits for the peer to read what is queued.
const FLUSH: Duration = Duration::from_secs(5);

/// The control lane's queue in bytes. Control frames are small: if this many wait, the peer is gone.
const CONTROL_QUEUE: usize = 32 << 20;

/// Bytes that QUIC keeps for a peer that is no member until they are acknowledged: twice what is on its way, within these bounds.
const GUEST_WINDOW: [u64; 2] = [128 << 10, 4 << 20];

/// Close codes that are not refusals.
pub(crate) const LEFT: u32 = 0;
const REPLACED: u32 = 1;
const MISBEHAVED: u32 = 2;

/// Ends the link of a peer that asks for more than it takes.
pub(crate) const TAKES_NOTHING: (u32, &str) = (MISBEHAVED, "it asks for more than it takes");

/// Frames per second and lane that a member takes of a peer that is no member. A newcomer needs one for each round and for each
/// block of the state, whose blocks have up to a megabyte: this is a gigabyte per second.
const GUEST_FRAMES: f64 = 1000.0;

/// Frames that such a peer may have saved up.
const GUEST_BURST: f64 = 2000.0;

/// The code with which a browser ends connections without a reason: HTTP/3's `H3_NO_ERROR`.
pub(crate) const H3_NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// Most characters that are kept of a reason in another's words.
pub(crate) const REASON: usize = 200;

/// Whether a browser's tab is at the other end. WebTransport then lies between its streams and QUIC's.
pub(crate) fn is_tab(session: &Session) -> bool {
    session.request().is_some()
}

/// Ends a session with a code and a message.
pub(crate) fn close(session: &Session, code: u32, reason: &str) {
    session.close(code, reason.as_bytes());
    if is_tab(session) {
        // The message travels on a stream, and HTTP/3 takes the end of another stream, which the session holds, for a
        // failure.
        let session = session.clone();
        tokio::spawn(async move { session.closed().await });
    }
}

/// The name and the right of a peer, as its handshake has shown.
pub(crate) struct Shown {
    pub peer: PeerId,
    /// The instance of its process.
    pub instance: u64,
    /// The chain of tickets that it came by.
    pub tickets: Vec<TicketId>,
}

/// The bounds on what a link holds.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Most bytes in the bulk lane's queue, for a member and for another peer.
    pub bulk_queues: [usize; 2],
    /// Most bytes in flight from the peer.
    pub receive_window: u32,
}

/// One end of a link, as seen by its senders and closers.
pub(crate) struct Wire {
    pub peer: PeerId,
    pub dialled_by_us: bool,
    /// How the peers reached each other.
    pub way: LinkKind,
    /// The instance of the peer's process.
    pub instance: u64,
    /// The chain of tickets that the peer came by.
    pub tickets: Vec<TicketId>,
    session: Session,
    lanes: [Queue; 2],
    bounds: Bounds,
    is_member: AtomicBool,
    /// Whether its frames are taken no faster than a newcomer needs.
    is_slowed: AtomicBool,
    closing: AtomicBool,
    close_wake: Notify,
    replaced: AtomicBool,
    received: AtomicU64,
    /// The least round-trip time seen, in microseconds.
    least_rtt: AtomicU64,
    /// Closed when the link is down and its owner was told.
    pub gone: Semaphore,
}

#[derive(Default)]
struct Queue {
    frames: Mutex<VecDeque<Frame>>,
    /// Bytes that wait in `frames` or are being handed to QUIC.
    bytes: AtomicUsize,
    wake: Notify,
    sent: AtomicU64,
}

impl Queue {
    fn frames(&self) -> MutexGuard<'_, VecDeque<Frame>> {
        self.frames.lock().expect("nobody panics while holding the queue")
    }
}

/// The streams of a connection after the handshake.
pub(crate) struct Streams {
    pub control: (SendStream, RecvStream),
    pub bulk: (SendStream, RecvStream),
}

impl Wire {
    pub(crate) fn new(
        session: Session,
        Shown {
            peer,
            instance,
            tickets,
        }: Shown,
        dialled_by_us: bool,
        way: LinkKind,
        bounds: Bounds,
    ) -> Arc<Self> {
        session.set_receive_window(VarInt::from_u32(bounds.receive_window));
        let wire = Arc::new(Self {
            peer,
            dialled_by_us,
            way,
            instance,
            tickets,
            session,
            lanes: Default::default(),
            bounds,
            is_member: AtomicBool::new(false),
            is_slowed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            close_wake: Notify::new(),
            replaced: AtomicBool::new(false),
            received: AtomicU64::new(0),
            least_rtt: AtomicU64::new(u64::MAX),
            gone: Semaphore::new(0),
        });
        // Nothing is in flight yet.
        wire.delay();
        wire
    }

    /// The QUIC connection below the session.
    pub(crate) fn connection(&self) -> &Connection {
        &self.session
    }

    /// Whether a tab is at the other end.
    pub(crate) fn is_tab(&self) -> bool {
        is_tab(&self.session)
    }

    /// Whether nobody here has ended it.
    pub(crate) fn is_open(&self) -> bool {
        !self.closing.load(Relaxed)
    }

    /// Whether the peer is a member of the run, as the ledger says.
    pub(crate) fn is_member(&self) -> bool {
        self.is_member.load(Relaxed)
    }

    /// The ledger says whether the peer is a member, and whether we are.
    pub(crate) fn set_members(&self, it_is: bool, we_are: bool) {
        self.is_member.store(it_is, Relaxed);
        self.is_slowed.store(we_are && !it_is, Relaxed);
    }

    /// Queues a frame unless that would overfill the lane. An empty queue takes a frame of any size.
    pub(crate) fn send(&self, lane: Lane, frame: Frame) -> Result<(), SendError> {
        let len = frame.len();
        if len > MAX_FRAME {
            return Err(SendError::TooLong);
        }
        if !self.is_open() {
            return Err(SendError::NotUp);
        }
        let queue = &self.lanes[lane as usize];
        let limit = match lane {
            Lane::Control => CONTROL_QUEUE,
            Lane::Bulk => self.bounds.bulk_queues[usize::from(!self.is_member())],
        };
        let waiting = queue.bytes.load(Relaxed);
        if waiting > 0 && waiting + len + OVERHEAD > limit {
            return Err(SendError::Full);
        }
        queue.bytes.fetch_add(len + OVERHEAD, Relaxed);
        queue.frames().push_back(frame);
        queue.wake.notify_one();
        Ok(())
    }

    pub(crate) fn queued(&self) -> usize {
        self.lanes.iter().map(|queue| queue.bytes.load(Relaxed)).sum()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let stats = self.connection().stats();
        Traffic {
            sent_bytes: self.lanes.iter().map(|queue| queue.sent.load(Relaxed)).sum(),
            received_bytes: self.received.load(Relaxed),
            lost_packets: stats.path.lost_packets,
            rtt: stats.path.rtt,
        }
    }

    /// How much longer than at best packets take now, because they wait in queues, ours or others'.
    pub(crate) fn delay(&self) -> Duration {
        let rtt = self.connection().rtt();
        let now = rtt.as_micros() as u64;
        let least = self.least_rtt.fetch_min(now, Relaxed).min(now);
        rtt - Duration::from_micros(least)
    }

    /// Takes no more frames, and ends the link when the queued ones have arrived.
    pub(crate) fn hang_up(&self) {
        self.closing.store(true, Relaxed);
        self.lanes.iter().for_each(|queue| queue.wake.notify_one());
        self.close_wake.notify_one();
    }

    /// Ends the link at once, and forgets what is queued.
    pub(crate) fn cut_off(&self, (code, reason): (u32, &str)) {
        self.hang_up();
        for queue in &self.lanes {
            let mut frames = queue.frames();
            let bytes: usize = frames.drain(..).map(|frame| frame.len() + OVERHEAD).sum();
            queue.bytes.fetch_sub(bytes, Relaxed);
        }
        close(&self.session, code, reason);
    }

    /// Ends the link at once in favour of a newer one.
    pub(crate) fn replace(&self) {
        self.replaced.store(true, Relaxed);
        close(
            &self.session,
            REPLACED,
            "a newer connection takes the place of this one",
        );
    }

    /// Whether the peer still answers on this connection. It sends something that the peer must acknowledge.
    pub(crate) async fn answers(&self) -> bool {
        let heard = || self.connection().stats().udp_rx.datagrams;
        let before = heard();
        // A full queue needs no keep-alive.
        let _ = self.send(Lane::Control, Frame::default());
        let wait =
            (4 * self.connection().rtt()).clamp(Duration::from_millis(200), Duration::from_millis(1500));
        sleep(wait).await;
        heard() > before && self.connection().close_reason().is_none()
    }

    /// Carries frames both ways until the link ends, and returns why. Nothing is delivered afterwards.
    pub(crate) async fn run(&self, streams: Streams, inbox: &Inbox<Arc<Self>>) -> DownReason {
        let (control_send, control_recv) = streams.control;
        let (bulk_send, bulk_recv) = streams.bulk;
        // An error means that the stream is already gone, which the loops below notice.
        let _ = control_send.set_priority(1);
        let readers = async {
            tokio::try_join!(
                self.read(control_recv, Lane::Control, inbox),
                self.read(bulk_recv, Lane::Bulk, inbox)
            )
        };
        let writers = async {
            tokio::try_join!(
                self.write(control_send, Lane::Control),
                self.write(bulk_send, Lane::Bulk)
            )
        };
        let too_late = async {
            self.close_wake.notified().await;
            sleep(FLUSH).await;
        };
        tokio::select! {
            read = readers => match read {
                Ok(_) => {
                    close(&self.session, LEFT, "");
                    if self.closing.load(Relaxed) { DownReason::HungUp } else { DownReason::PeerLeft }
                }
                Err(Broken::Lost) => self.ended().await,
                Err(Broken::Frames(error)) => {
                    close(&self.session, MISBEHAVED, &error.to_string());
                    DownReason::Misbehaved(error)
                }
            },
            written = async {
                match writers.await {
                    // Everything is acknowledged; the peer closes when it has read it.
                    Ok(_) => std::future::pending().await,
                    Err(()) => self.ended().await,
                }
            } => written,
            () = too_late => {
                close(&self.session, LEFT, "");
                DownReason::HungUp
            }
        }
    }

    async fn write(&self, mut stream: SendStream, lane: Lane) -> Result<(), ()> {
        let queue = &self.lanes[lane as usize];
        let mut chunker = Chunker::default();
        loop {
            // Read before the queue is checked: what was queued before a hang-up is still sent.
            let closing = self.closing.load(Relaxed);
            let mut taken = 0;
            {
                let mut frames = queue.frames();
                while chunker.len() < BATCH
                    && let Some(frame) = frames.pop_front()
                {
                    taken += frame.len() + OVERHEAD;
                    chunker.push(frame);
                }
            }
            if taken == 0 {
                if closing {
                    // An error here shows in `stopped`.
                    let _ = stream.finish();
                    return stream.stopped().await.map(drop).map_err(drop);
                }
                queue.wake.notified().await;
                continue;
            }
            let bytes = chunker.len() as u64;
            self.set_send_window();
            stream.write_all_chunks(&mut chunker.take()).await.map_err(drop)?;
            queue.sent.fetch_add(bytes, Relaxed);
            queue.bytes.fetch_sub(taken, Relaxed);
        }
    }

    /// A peer that takes nothing must not make QUIC hold much either.
    fn set_send_window(&self) {
        let window = match self.is_member() {
            true => SEND_WINDOW,
            false => {
                let [least, most] = GUEST_WINDOW;
                (2 * self.connection().stats().path.cwnd).clamp(least, most)
            }
        };
        self.connection().set_send_window(window);
    }

    async fn read(&self, mut stream: RecvStream, lane: Lane, inbox: &Inbox<Arc<Self>>) -> Result<(), Broken> {
        let mut deframer = Deframer::default();
        let (mut saved_up, mut at) = (GUEST_BURST, Instant::now());
        loop {
            let want = deframer.want();
            let got = stream
                .read_buf(&mut deframer.buffer().limit(want))
                .await
                .map_err(|_| Broken::Lost)?;
            if got == 0 {
                return deframer.finish().map_err(Broken::Frames);
            }
            while let Some(bytes) = deframer.next_frame().map_err(Broken::Frames)? {
                self.received.fetch_add((bytes.len() + PREFIX) as u64, Relaxed);
                let before = std::mem::replace(&mut at, Instant::now());
                let more = GUEST_FRAMES * (at - before).as_secs_f64();
                saved_up = ((saved_up + more).min(GUEST_BURST) - 1.0).max(-1.0);
                if saved_up < 0.0 && self.is_slowed.load(Relaxed) {
                    // What is not read stops the sender.
                    sleep(Duration::from_secs_f64(-saved_up / GUEST_FRAMES)).await;
                }
                inbox.frame(self.peer, || self.is_member(), lane, bytes).await;
            }
        }
    }

    /// Waits for the end of the connection, and returns why it ended.
    async fn ended(&self) -> DownReason {
        // If the peer resets or stops only a stream, the connection stays open. Half a link is of no use.
        let below = match timeout(Duration::from_secs(1), Connection::closed(&self.session)).await {
            Ok(error) => error,
            Err(_) => {
                close(&self.session, MISBEHAVED, "a lane was reset");
                return DownReason::Transport("the peer reset a lane".to_owned());
            }
        };
        // If the peer gave no reason of its own, the QUIC connection knows better why the session ended.
        let error = match self.session.close_reason() {
            Some(SessionError::WebTransportError(told)) => told.into(),
            _ => SessionError::from(below),
        };
        let error = match error {
            _ if self.closing.load(Relaxed) => return DownReason::HungUp,
            _ if self.replaced.load(Relaxed) => return DownReason::Replaced,
            SessionError::WebTransportError(WebTransportError::Closed(code, reason)) => {
                return match code {
                    LEFT => DownReason::PeerLeft,
                    REPLACED => DownReason::Replaced,
                    code => match Refusal::from_code(code.into()) {
                        Some(refusal) => DownReason::Refused(refusal),
                        None => DownReason::Transport(printable_line(&reason, REASON)),
                    },
                };
            }
            SessionError::ConnectionError(error) => error,
            other => return DownReason::Transport(printable_line(&other.to_string(), REASON)),
        };
        match error {
            ConnectionError::TimedOut => DownReason::Silent,
            ConnectionError::Reset => DownReason::Restarted,
            // Either the session's own stream ended and the connection was closed for that, or the other way round.
            ConnectionError::LocallyClosed if self.is_tab() => {
                DownReason::Transport("the tab has gone without a word".to_owned())
            }
            ConnectionError::ApplicationClosed(close) if close.error_code == H3_NO_ERROR => {
                DownReason::PeerLeft
            }
            ConnectionError::LocallyClosed => DownReason::HungUp,
            other => DownReason::Transport(printable_line(&other.to_string(), REASON)),
        }
    }
}

/// Why a session ended, in plain words.
pub(crate) fn session_end(error: SessionError) -> String {
    match error {
        SessionError::ConnectionError(ConnectionError::TimedOut) => {
            "nothing is heard from it any more".to_owned()
        }
        SessionError::WebTransportError(WebTransportError::Closed(LEFT, _)) => "it hung up".to_owned(),
        SessionError::WebTransportError(WebTransportError::Closed(_, reason)) if !reason.is_empty() => {
            format!("it hung up: {}", printable_line(&reason, REASON))
        }
        _ => "the connection broke".to_owned(),
    }
}

/// Why nothing can be read from a peer any more, in plain words.
pub(crate) fn read_end(error: ReadError) -> String {
    match error {
        ReadError::SessionError(error) => session_end(error),
        _ => "it hung up".to_owned(),
    }
}

/// Why nothing can be written to a peer any more, in plain words.
pub(crate) fn write_end(error: WriteError) -> String {
    match error {
        WriteError::SessionError(error) => session_end(error),
        _ => "it reads no more".to_owned(),
    }
}

enum Broken {
    Lost,
    Frames(FrameError),
}
