//! The endpoint's UDP socket: when the system wakes us, and how often.
//!
//! It asks the system for room to send only after there was none. A socket that waits for both from the start, as
//! tokio's does, is woken each time a datagram has left.
//!
//! If all peers are far away, it is not woken for each datagram either: it reads everything that arrives within a
//! millisecond at once, and sends acknowledgements in the same way. On paths of tens of milliseconds that adds little
//! latency and saves many interruptions. With four members at 100 Mbit/s each, these were most of an exchange's
//! processor time.
//!
//! It does not know who is at the other end, and knows nothing of QUIC.

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether datagrams may wait a little before they are read. All clones share the setting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace(Arc<AtomicBool>);

impl Pace {
    pub(crate) fn is_unhurried(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(crate) fn set_unhurried(&self, unhurried: bool) {
        self.0.store(unhurried, Relaxed);
    }
}

/// Makes such sockets; everything else is tokio's.
#[derive(Debug, Default)]
pub(crate) struct Sockets(pub Pace);

impl Runtime for Sockets {
    fn new_timer(&self, at: std::time::Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    #[cfg(unix)]
    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(paced::Socket::new(socket, self.0.clone())?))
    }

    /// Without a way to wait for only one of both, tokio's socket is used.
    #[cfg(not(unix))]
    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> std::time::Instant {
        TokioRuntime.now()
    }
}

#[cfg(unix)]
mod paced {
    use super::Pace;
    use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
    use quinn::{AsyncUdpSocket, UdpPoller};
    use std::fmt;
    use std::future::Future;
    use std::io::{self, ErrorKind::WouldBlock, IoSliceMut};
    use std::net::{SocketAddr, UdpSocket};
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, ready};
    use std::time::Duration;
    use tokio::io::{Interest, unix::AsyncFd};
    use tokio::time::{Sleep, sleep};

    /// How long datagrams may wait before they are read if there is no hurry: the shortest time of tokio's timers.
    const REST: Duration = Duration::from_millis(1);

    #[derive(Debug)]
    pub(super) struct Socket {
        socket: Arc<UdpSocket>,
        state: UdpSocketState,
        reading: Mutex<Reading>,
        /// The system had no room for the last datagram.
        full: AtomicBool,
        pace: Pace,
    }

    /// How we learn of datagrams.
    #[derive(Debug, Default)]
    struct Reading {
        /// From the system, as soon as there is one. Absent while we pause, and afterwards until a read finds nothing.
        woken: Option<AsyncFd<Arc<UdpSocket>>>,
        /// By reading again after a pause.
        rest: Option<Pin<Box<Sleep>>>,
        /// Something was read since the last pause or wake-up.
        found: bool,
    }

    /// Registers the socket with the system for reads or writes.
    fn watch(socket: Arc<UdpSocket>, interest: Interest) -> io::Result<AsyncFd<Arc<UdpSocket>>> {
        // SAFETY: a socket's descriptor stays open and the same while the socket lives. The result holds the socket, so
        // that lives at least as long.
        let watched = unsafe { AsyncFd::register_with_interest(socket, interest) };
        Ok(watched?)
    }

    impl Socket {
        pub(super) fn new(socket: UdpSocket, pace: Pace) -> io::Result<Self> {
            // Configures the socket, among others as non-blocking.
            let state = UdpSocketState::new((&socket).into())?;
            Ok(Self {
                socket: Arc::new(socket),
                state,
                reading: Mutex::default(),
                full: AtomicBool::new(false),
                pace,
            })
        }

        #[cfg(test)]
        pub(super) fn pretend_full(&self) {
            self.full.store(true, Relaxed);
        }

        /// Completes once the system has room for another datagram.
        async fn room(self: Arc<Self>) -> io::Result<()> {
            // A descriptor can be registered only once, and this one may be registered already.
            let socket = watch(Arc::new(self.socket.try_clone()?), Interest::WRITABLE)?;
            socket.writable().await?.retain_ready();
            Ok(())
        }
    }

    impl AsyncUdpSocket for Socket {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            Box::pin(Room {
                socket: self,
                waiting: None,
            })
        }

        fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
            let sent = self.state.send((&*self.socket).into(), transmit);
            if sent.as_ref().is_err_and(|error| error.kind() == WouldBlock) {
                self.full.store(true, Relaxed);
            }
            sent
        }

        fn poll_recv(
            &self,
            cx: &mut Context<'_>,
            bufs: &mut [IoSliceMut<'_>],
            meta: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            let mut reading = self.reading.lock().expect("nobody panics while reading");
            let Reading { woken, rest, found } = &mut *reading;
            loop {
                if let Some(sleep) = rest {
                    ready!(sleep.as_mut().poll(cx));
                    *rest = None;
                }
                let mut guard = match woken {
                    Some(fd) => Some(ready!(fd.poll_read_ready(cx))?),
                    None => None,
                };
                match self.state.recv((&*self.socket).into(), bufs, meta) {
                    Err(error) if error.kind() == WouldBlock => {}
                    read => {
                        *found = true;
                        return Poll::Ready(read);
                    }
                }
                if let Some(guard) = &mut guard {
                    guard.clear_ready();
                }
                if std::mem::take(found) && self.pace.is_unhurried() {
                    *woken = None;
                    *rest = Some(Box::pin(sleep(REST)));
                } else if woken.is_none() {
                    // Anything that has arrived meanwhile wakes us at once.
                    let socket = self.socket.clone();
                    *woken = Some(watch(socket, Interest::READABLE)?);
                }
            }
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            self.socket.local_addr()
        }

        fn may_fragment(&self) -> bool {
            self.state.may_fragment()
        }

        fn max_transmit_segments(&self) -> usize {
            self.state.max_gso_segments()
        }

        fn max_receive_segments(&self) -> usize {
            self.state.gro_segments()
        }
    }

    /// A sender's wait for room.
    struct Room {
        socket: Arc<Socket>,
        waiting: Option<Waiting>,
    }

    type Waiting = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

    impl fmt::Debug for Room {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Room")
                .field("waiting", &self.waiting.is_some())
                .finish()
        }
    }

    impl UdpPoller for Room {
        fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let Room { socket, waiting } = &mut *self;
            if waiting.is_none() && !socket.full.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
            let room = waiting.get_or_insert_with(|| Box::pin(socket.clone().room()));
            let result = ready!(room.as_mut().poll(cx));
            *waiting = None;
            socket.full.store(false, Relaxed);
            Poll::Ready(result)
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use quinn::udp::RecvMeta;
    use std::future::poll_fn;
    use std::io::IoSliceMut;
    use std::net::UdpSocket;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    /// Reads until this many datagrams have come, and returns how many reads that took.
    async fn reads(socket: &dyn AsyncUdpSocket, datagrams: usize) -> usize {
        let mut buffers = vec![vec![0; 2000 * socket.max_receive_segments()]; 32];
        let (mut reads, mut came) = (0, 0);
        while came < datagrams {
            let read = poll_fn(|cx| {
                let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
                let mut meta = [RecvMeta::default(); 32];
                socket.poll_recv(cx, &mut slices, &mut meta).map_ok(|messages| {
                    let of = |meta: &RecvMeta| meta.len.div_ceil(meta.stride.max(1));
                    meta[..messages].iter().map(of).sum::<usize>()
                })
            });
            let read = timeout(Duration::from_secs(10), read).await;
            came += read.expect("what was sent comes").expect("the socket is well");
            reads += 1;
        }
        reads
    }

    #[tokio::test]
    async fn without_hurry_datagrams_are_read_together_and_none_is_left() {
        let pace = Pace::default();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let socket = Sockets(pace.clone()).wrap_udp_socket(socket).unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        for unhurried in [false, true, false] {
            pace.set_unhurried(unhurried);
            // Different lengths, so that the system delivers them one by one.
            let sending = async {
                for i in 0..300 {
                    from.send_to(&vec![7; 10 + i], to).unwrap();
                    sleep(Duration::ZERO).await;
                    tokio::task::yield_now().await;
                }
            };
            let (reads, ()) = tokio::join!(reads(&*socket, 300), sending);
            if unhurried {
                assert!(reads < 300, "{reads} reads of 300 datagrams");
            }
            // A single datagram after a long pause is read as well.
            from.send_to(&[1], to).unwrap();
            assert_eq!(self::reads(&*socket, 1).await, 1);
        }
    }

    #[tokio::test]
    async fn who_has_found_no_room_waits_for_it_and_then_sends_on() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = Arc::new(paced::Socket::new(socket, Pace::default()).unwrap());
        socket.pretend_full();
        let mut room = (socket.clone() as Arc<dyn AsyncUdpSocket>).create_io_poller();
        let waited = timeout(
            Duration::from_secs(10),
            poll_fn(|cx| room.as_mut().poll_writable(cx)),
        );
        waited.await.expect("there is room").unwrap();
        let again = poll_fn(|cx| std::task::Poll::Ready(room.as_mut().poll_writable(cx).is_ready()));
        assert!(again.await, "and it is not asked for again");
    }
}
