//! Measures the operations that an all-reduce over QUIC cannot avoid, each alone on one core.

use annulus_core::codec::Codec;
use rustls::crypto::aws_lc_rs;
use rustls::quic::{Keys, Version};
use rustls::{CipherSuite, Side, SupportedCipherSuite};
use serde::Serialize;
use std::hint::black_box;
use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Bytes of a datagram between two processes of one machine: the largest of UDP over IPv4.
pub const DATAGRAM: usize = 65_507;

/// How long each operation is tried. The fastest pass counts, since other work on the machine only makes it slower.
const TRIAL: Duration = Duration::from_millis(250);

/// More than caches hold, like a round's vector.
const LARGE: usize = 64 << 20;

/// Rates in bytes per second of one core.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    /// Copying memory.
    pub copy: f64,
    /// AES-128-GCM, both sealing a packet and opening it.
    pub seal_and_open: f64,
    /// Handing a datagram to the kernel and receiving it at the other end.
    pub send_and_receive: f64,
    /// One hop of a reduce-scatter, in bytes of f32: decode, add, encode.
    pub hop: f64,
    /// The first hop of a chunk, in bytes of f32: only encode.
    pub encode: f64,
}

impl Rates {
    /// Measures all of them, in a few seconds.
    pub fn measure(codec: Codec, piece: usize) -> io::Result<Self> {
        Ok(Self {
            copy: copy(),
            seal_and_open: seal_and_open(),
            send_and_receive: send_and_receive()?,
            hop: hop(codec, piece),
            encode: encode(codec, piece),
        })
    }
}

/// Bytes per second of the fastest pass in a trial.
fn best(bytes: usize, mut pass: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut fastest = f64::INFINITY;
    while fastest.is_infinite() || start.elapsed() < TRIAL {
        let before = Instant::now();
        pass();
        fastest = fastest.min(before.elapsed().as_secs_f64());
    }
    bytes as f64 / fastest
}

fn copy() -> f64 {
    let (from, mut to) = (vec![1u8; LARGE], vec![2u8; LARGE]);
    best(LARGE, || black_box(&mut to).copy_from_slice(black_box(&from)))
}

fn seal_and_open() -> f64 {
    let suites = aws_lc_rs::ALL_CIPHER_SUITES.iter();
    let mut suites = suites.filter(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    let Some(SupportedCipherSuite::Tls13(suite)) = suites.next() else {
        return f64::NAN;
    };
    let Some(quic) = suite.quic else {
        return f64::NAN;
    };
    // Every endpoint knows these keys; for a measurement any will do.
    let keys = |side| Keys::initial(Version::V1, suite, quic, &[0; 8], side);
    let (client, server) = (keys(Side::Client), keys(Side::Server));
    let header = [0u8; 16];
    let mut packet = vec![0u8; DATAGRAM - header.len()];
    let text = packet.len() - client.local.packet.tag_len();
    const PACKETS: u64 = 64;
    best(PACKETS as usize * text, || {
        for number in 0..PACKETS {
            let (plain, rest) = packet.split_at_mut(text);
            let sealed = client.local.packet.encrypt_in_place(number, &header, plain);
            rest.copy_from_slice(sealed.expect("a packet of a legal length").as_ref());
            let opened = server
                .remote
                .packet
                .decrypt_in_place(number, &header, &mut packet);
            assert_eq!(opened.map(<[u8]>::len), Ok(text), "what was sealed opens");
        }
    })
}

fn send_and_receive() -> io::Result<f64> {
    let (sender, receiver) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    let to = receiver.local_addr()?;
    let (packet, mut buffer) = (vec![1u8; DATAGRAM], vec![0u8; DATAGRAM]);
    const PACKETS: usize = 64;
    let mut result = Ok(());
    let rate = best(PACKETS * DATAGRAM, || {
        for _ in 0..PACKETS {
            let sent = sender.send_to(&packet, to);
            let received = sent.and_then(|_| receiver.recv_from(&mut buffer));
            if let Err(error) = received {
                result = Err(error);
            }
        }
    });
    result.map(|()| rate)
}

fn hop(codec: Codec, piece: usize) -> f64 {
    let own = vec![0.5f32; LARGE / 4];
    let mut encoded = Vec::new();
    codec.encode(&own[..piece.min(own.len())], &mut encoded);
    let (mut sum, mut out) = (Vec::new(), Vec::new());
    best(LARGE, || {
        for own in own.chunks_exact(piece) {
            out.clear();
            let added = codec.add_encode(black_box(&encoded), own, &mut sum, &mut out);
            assert_eq!(added, Ok(()), "what was encoded is decoded");
            black_box(&out);
        }
    })
}

fn encode(codec: Codec, piece: usize) -> f64 {
    let own = vec![0.5f32; LARGE / 4];
    let mut out = Vec::new();
    best(LARGE, || {
        for own in own.chunks(piece) {
            out.clear();
            codec.encode(black_box(own), &mut out);
            black_box(&out);
        }
    })
}
