//! The speed of the optimizers and the norm on this machine, one thread: elements per second, and bytes of them and
//! of the state read and written.
//!
//! `cargo run --release -p annulus-core --example optim_rate [elements]`

use std::time::Instant;

use annulus_core::optim::{Moments, norm_squared};
use annulus_core::{Layout, Manifest, State};

fn main() {
    let elements = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(16 << 20);
    let sums: Vec<f32> = (0..elements).map(|i| (i % 1000) as f32 * 1e-3 - 0.5).collect();
    for name in ["sgd", "momentum", "nesterov", "rmsprop", "adam", "adamw"] {
        for moments in Moments::ALL {
            if name != "sgd" || moments == Moments::F32 {
                measure(name, moments, &sums);
            }
        }
    }
    let mut norm = 0.0;
    let seconds = best_of(7, || norm += norm_squared(&sums));
    report("norm", elements, 4 * elements as u64, seconds);
    assert!(norm > 0.0);
}

fn measure(name: &str, moments: Moments, sums: &[f32]) {
    let elements = sums.len();
    let manifest = Manifest {
        optimizer: name.parse().expect("a known name"),
        moments,
        ..Manifest::new(Layout::flat(elements))
    };
    let mut state = State::new(vec![0.5; elements], &manifest);
    let mut step = 0;
    let seconds = best_of(7, || {
        step += 1;
        let step = manifest.optimizer.step(1e-3, step, 0.25);
        state.apply(&manifest, &step, 0..elements, sums);
    });
    // Sums are read, the state is read and written.
    let bytes = 4 * elements as u64 + 2 * manifest.state_bytes();
    report(&format!("{name} {moments}"), elements, bytes, seconds);
    let seconds = best_of(7, || {
        std::hint::black_box(state.digest());
    });
    report("  its digest", elements, manifest.state_bytes(), seconds);
}

fn best_of(times: usize, mut work: impl FnMut()) -> f64 {
    (0..times)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn report(name: &str, elements: usize, bytes: u64, seconds: f64) {
    println!(
        "{name:14} {:7.2} ms  {:5.0} M elements/s  {:5.1} GB/s",
        seconds * 1e3,
        elements as f64 / seconds / 1e6,
        bytes as f64 / seconds / 1e9
    );
}
