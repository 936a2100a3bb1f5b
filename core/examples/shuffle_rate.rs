//! The speed of the shuffled order on this machine: time per index.
//!
//! `cargo run --release -p annulus-core --example shuffle_rate`

use std::num::NonZeroU64;
use std::time::Instant;

use annulus_core::shuffle::{Shuffle, Stripes};

fn main() {
    const INDICES: u64 = 4_000_000;
    for samples in [60_000u64, 10_000_000, 1 << 24, (1 << 24) + 1] {
        let samples = NonZeroU64::new(samples).expect("not zero");
        let stripes = Stripes::NONE;
        let shuffle = Shuffle {
            seed: 1,
            samples,
            stripes,
        };
        let start = Instant::now();
        let sum = (0..INDICES).fold(0u64, |sum, position| sum ^ shuffle.index(position));
        let ns = start.elapsed().as_nanos() as f64 / INDICES as f64;
        println!("{samples:9} samples: {ns:5.1} ns per index (checksum {sum:x})");
    }
}
