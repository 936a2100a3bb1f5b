//! Emulates a slow line: a socket whose datagrams leave at a limited rate and arrive after a delay, so that you can see
//! on one machine how a run between homes behaves. Like a router's, its queue is bounded and drops what does not fit.
//!
//! It knows nothing of QUIC: congestion control sees losses and delays as on a real line.

use crate::net::socket::Sockets;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

/// How long a datagram may wait for the line. One that would wait longer is dropped.
const QUEUE: Duration = Duration::from_millis(100);

/// Bytes of the UDP and IP headers of a datagram.
const HEADERS: usize = 28;

/// The properties of a line, written and parsed as `20mbit/50ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Its rate in megabits per second.
    pub mbit: f64,
    /// The round-trip time between two ends with such a line.
    pub round_trip: Duration,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}mbit/{}ms", self.mbit, self.round_trip.as_secs_f64() * 1e3)
    }
}

/// The text does not describe a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no line: write a rate and a round-trip time, such as 20mbit/50ms")]
pub struct NoLine(String);

impl FromStr for Line {
    type Err = NoLine;

    fn from_str(text: &str) -> Result<Self, NoLine> {
        let number = |text: &str, unit| -> Option<f64> {
            let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
            number.is_finite().then_some(number)
        };
        let read = || {
            let (rate, round_trip) = text.split_once('/')?;
            let mbit = number(rate, "mbit").filter(|rate| (0.01..=100_000.0).contains(rate))?;
            let ms = number(round_trip, "ms").filter(|ms| (0.0..=10_000.0).contains(ms))?;
            Some(Self {
                mbit,
                round_trip: Duration::from_secs_f64(ms / 1e3),
            })
        };
        read().ok_or_else(|| NoLine(text.to_owned()))
    }
}

/// Makes sockets that send over such a line.
#[derive(Debug)]
pub(crate) struct OnLine {
    pub line: Line,
    /// Makes the real sockets below.
    pub sockets: Sockets,
}

impl Runtime for OnLine {
    fn new_timer(&self, at: std::time::Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = self.sockets.wrap_udp_socket(socket)?;
        let (queue, due) = unbounded_channel();
        tokio::spawn(deliver(socket.clone(), due));
        Ok(Arc::new(LineSocket {
            socket,
            line: self.line,
            free_at: Mutex::new(Instant::now()),
            queue,
        }))
    }
}

/// A datagram in flight.
#[derive(Debug)]
struct Datagram {
    at: Instant,
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    source: Option<IpAddr>,
    contents: Vec<u8>,
}

#[derive(Debug)]
struct LineSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    line: Line,
    /// When the line is free again.
    free_at: Mutex<Instant>,
    queue: UnboundedSender<Datagram>,
}

impl LineSocket {
    /// When a datagram that is sent now arrives; `None` if the queue is full.
    fn arrival(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let mut free_at = self.free_at.lock().expect("nobody panics while holding it");
        let begins = now.max(*free_at);
        if begins - now > QUEUE {
            return None;
        }
        let seconds = ((bytes + HEADERS) * 8) as f64 / (self.line.mbit * 1e6);
        *free_at = begins + Duration::from_secs_f64(seconds);
        Some(*free_at + self.line.round_trip / 2)
    }
}

impl AsyncUdpSocket for LineSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let now = Instant::now();
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for contents in transmit.contents.chunks(size) {
            let Some(at) = self.arrival(contents.len(), now) else {
                continue;
            };
            // If this fails, the endpoint is gone.
            let _ = self.queue.send(Datagram {
                at,
                destination: transmit.destination,
                ecn: transmit.ecn,
                source: transmit.src_ip,
                contents: contents.to_vec(),
            });
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

/// The line accepts every datagram, or drops it.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Sends each datagram when its delay is over, until the endpoint is gone.
async fn deliver(socket: Arc<dyn AsyncUdpSocket>, mut due: UnboundedReceiver<Datagram>) {
    while let Some(datagram) = due.recv().await {
        sleep_until(datagram.at).await;
        let transmit = Transmit {
            destination: datagram.destination,
            ecn: datagram.ecn,
            contents: &datagram.contents,
            segment_size: None,
            src_ip: datagram.source,
        };
        // A datagram that the system has no room for is lost, as on any line.
        let _ = socket.try_send(&transmit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let line: Line = "20mbit/50ms".parse().unwrap();
        assert_eq!((line.mbit, line.round_trip), (20.0, Duration::from_millis(50)));
        assert_eq!(line.to_string(), "20mbit/50ms");
        assert_eq!("0.5mbit/0ms".parse::<Line>().unwrap().to_string(), "0.5mbit/0ms");
        for text in [
            "",
            "20",
            "20mbit",
            "0mbit/5ms",
            "20mbit/-1ms",
            "NaNmbit/5ms",
            "20mbit/50",
            "1e9mbit/5ms",
        ] {
            let error = text.parse::<Line>().unwrap_err().to_string();
            assert!(error.contains("such as 20mbit/50ms"), "{error}");
        }
    }

    #[tokio::test]
    async fn datagrams_leave_at_the_lines_rate_and_arrive_late() {
        let to = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let destination = to.local_addr().unwrap();
        to.set_nonblocking(true).unwrap();
        let to = tokio::net::UdpSocket::from_std(to).unwrap();
        let line = OnLine {
            line: "8mbit/60ms".parse().unwrap(),
            sockets: Sockets::default(),
        };
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = line.wrap_udp_socket(socket).unwrap();
        // At a megabyte a second each of these takes a millisecond, and at most a hundred wait.
        let contents = vec![7; 1000 - HEADERS];
        let began = Instant::now();
        for _ in 0..300 {
            let transmit = Transmit {
                destination,
                ecn: None,
                contents: &contents,
                segment_size: None,
                src_ip: None,
            };
            socket.try_send(&transmit).unwrap();
        }
        let mut arrived = Vec::new();
        let mut buffer = [0; 2000];
        while let Ok(Ok(_)) = tokio::time::timeout(Duration::from_millis(500), to.recv(&mut buffer)).await {
            arrived.push(began.elapsed());
        }
        assert!(
            (100..300).contains(&arrived.len()),
            "the others found no room: {}",
            arrived.len()
        );
        assert!(arrived[0] >= Duration::from_millis(31));
        for (i, at) in arrived.iter().enumerate() {
            assert!(*at >= Duration::from_millis(30 + i as u64), "{i}: {at:?}");
        }
    }
}
