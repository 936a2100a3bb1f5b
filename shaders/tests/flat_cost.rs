//! What packing and views cost beside what Burn offers: `cargo test --release --test flat_cost -- --ignored --nocapture`.

mod common;

use std::sync::Arc;
use std::time::Instant;

use annulus_shaders::flat::{FlatLayout, FlatVector};
use burn::tensor::{Tensor, TensorData};
use common::{gpu, numbers, tensor, values};

/// CPU time of all threads of this process, in seconds.
fn cpu_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let nanos = tasks.map(|task| {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        stat.split(' ')
            .next()
            .and_then(|n| n.parse::<f64>().ok())
            .unwrap_or(0.0)
    });
    nanos.sum::<f64>() / 1e9
}

fn measure(what: &str, mut work: impl FnMut()) {
    (0..3).for_each(|_| work());
    let times = 20;
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    (0..times).for_each(|_| work());
    let per = |seconds: f64| seconds * 1e3 / f64::from(times);
    println!(
        "{what}: {:.2} ms of processor, {:.2} ms",
        per(cpu_seconds() - cpu),
        per(wall.elapsed().as_secs_f64())
    );
}

#[test]
#[ignore = "a measurement"]
fn packing_and_loading() {
    let Some(device) = gpu() else { return };
    // The digits MLP; a GPT of 4 blocks, 128 wide.
    let mlp = vec![784 * 128, 128, 128 * 10, 10];
    let block = [
        128,
        128,
        128 * 384,
        384,
        128 * 128,
        128,
        128,
        128,
        128 * 512,
        512,
        512 * 128,
        128,
    ];
    let mut gpt = vec![256 * 128, 64 * 128];
    (0..4).for_each(|_| gpt.extend(block));
    for (name, lengths) in [("mlp", mlp), ("gpt", gpt)] {
        let layout = Arc::new(FlatLayout::new(lengths.iter().copied()));
        println!(
            "{name}: {} tensors, {} elements",
            lengths.len(),
            layout.dense_len()
        );
        let parts: Vec<Tensor<1>> = lengths
            .iter()
            .map(|len| tensor(&numbers(*len, 1), [*len], &device))
            .collect();
        let options: Vec<_> = parts.iter().cloned().map(Some).collect();
        let dense = numbers(layout.dense_len(), 2);
        let mut out = vec![0.0; dense.len()];
        measure("  read alone", || {
            values(FlatVector::zeros(&layout, &device).unwrap().tensor());
        });
        measure("  Burn: cat, cat, sum, read", || {
            let sum = Tensor::cat(parts.clone(), 0) + Tensor::cat(parts.clone(), 0);
            out.copy_from_slice(&values(sum));
        });
        measure("  ours: pack, pack, read", || {
            let mut vector = FlatVector::packed(&layout, &options, 1.0);
            vector.add(&options, 1.0);
            layout.gather(&values(vector.tensor()), [&mut out]);
        });
        measure("  Burn: load each", || {
            let mut rest = dense.as_slice();
            for len in &lengths {
                let part: Tensor<1> =
                    Tensor::from_data(TensorData::new(rest[..*len].to_vec(), [*len]), &device);
                rest = &rest[*len..];
                if rest.is_empty() {
                    values(part);
                }
            }
        });
        measure("  ours: load and view", || {
            let vector = FlatVector::upload(&layout, &dense, &device).unwrap();
            let views: Vec<Tensor<1>> = lengths
                .iter()
                .enumerate()
                .map(|(index, len)| vector.view(index, [*len]))
                .collect();
            values(views.last().unwrap().clone());
        });
    }
}
