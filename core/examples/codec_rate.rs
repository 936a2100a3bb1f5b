//! The speed of encoding and decoding on this machine: bytes of `f32` per second, one thread, runs of 64 KiB.
//!
//! `cargo run --release -p annulus-core --example codec_rate [elements]`

use std::hint::black_box;
use std::time::Instant;

use annulus_core::codec::Codec;

fn main() {
    let elements = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(16 << 10);
    let values: Vec<f32> = (0..elements)
        .map(|i| ((i * 7919) % 1009) as f32 * 1e-5 - 5e-3)
        .collect();
    let mut out = vec![0.0f32; elements];
    for codec in Codec::ALL {
        let mut bytes = Vec::new();
        rate(codec, "encode", elements, || {
            bytes.clear();
            codec.encode(black_box(&values), black_box(&mut bytes));
        });
        rate(codec, "decode", elements, || {
            codec
                .decode(black_box(&bytes), black_box(&mut out))
                .expect("the right length");
        });
        rate(codec, "decode_add", elements, || {
            codec
                .decode_add(black_box(&bytes), &values, black_box(&mut out))
                .expect("the right length");
        });
    }
}

fn rate(codec: Codec, name: &str, elements: usize, mut work: impl FnMut()) {
    // Many passes of well below a millisecond: on a busy machine some of them are not interrupted.
    const REPEATS: u32 = 20;
    let best = (0..500)
        .map(|_| {
            let start = Instant::now();
            (0..REPEATS).for_each(|_| work());
            start.elapsed().as_secs_f64() / f64::from(REPEATS)
        })
        .fold(f64::INFINITY, f64::min);
    println!(
        "{codec} {name:10} {:8.2} us  {:5.1} GB/s",
        best * 1e6,
        4e-9 * elements as f64 / best
    );
}
