//! The cost of signatures: `cargo run --release -p annulus-core --example sign_rate`.

use annulus_core::signature::Key;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes of a usual header with what it is bound to.
const BYTES: [u8; 150] = [7; 150];

fn main() {
    let key = Key::from_seed(&[1; 32]);
    let (peer, scheme, signature) = (key.peer(), key.scheme(), key.sign_bytes(&BYTES));
    let sign = time(|| {
        black_box(key.sign_bytes(black_box(&BYTES)));
    });
    let verify = time(|| assert!(scheme.verifies(peer, black_box(&BYTES), &signature)));
    println!(
        "sign {sign:.1} us, verify {verify:.1} us, of {} bytes",
        BYTES.len()
    );
}

/// Microseconds of one call, the least of some samples.
fn time(mut call: impl FnMut()) -> f64 {
    let sample = |_| {
        let began = Instant::now();
        (0..200).for_each(|_| call());
        began.elapsed()
    };
    let least = (0..20).map(sample).min().unwrap_or(Duration::ZERO);
    least.as_secs_f64() * 1e6 / 200.0
}
