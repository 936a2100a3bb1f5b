//! How fast the optimizers and the norm are on this machine: bytes read and written per second, one thread.
//!
//! `cargo run --release -p annulus-core --example optim_rate [elements]`

use std::time::Instant;

use annulus_core::optim::{Optimizer, norm_squared};

fn main() {
    let elements = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(16 << 20);
    let mut params = vec![0.5f32; elements];
    let sums: Vec<f32> = (0..elements).map(|i| (i % 1000) as f32 * 1e-3 - 0.5).collect();
    for name in ["sgd", "momentum", "nesterov", "rmsprop", "adam", "adamw"] {
        let optimizer = Optimizer::parse(name).expect("a known name");
        let mut state = vec![vec![0.0f32; elements]; optimizer.slots()];
        let mut step = 0;
        let seconds = best_of(7, || {
            step += 1;
            let mut slots: Vec<&mut [f32]> = state.iter_mut().map(Vec::as_mut_slice).collect();
            let step = optimizer.step(1e-3, step, 0.25);
            optimizer.apply(&step, &mut params, &mut slots, &sums, true);
        });
        report(name, elements, 4 * (3 + 2 * optimizer.slots()), seconds);
    }
    let mut norm = 0.0;
    let seconds = best_of(7, || norm += norm_squared(&sums));
    report("norm", elements, 4, seconds);
    assert!(norm > 0.0);
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

fn report(name: &str, elements: usize, bytes_per_element: usize, seconds: f64) {
    println!(
        "{name:10} {:7.2} ms  {:5.0} M elements/s  {:5.1} GB/s",
        seconds * 1e3,
        elements as f64 / seconds / 1e6,
        (elements * bytes_per_element) as f64 / seconds / 1e9
    );
}
