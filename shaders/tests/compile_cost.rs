//! temp
mod common;
use annulus_shaders::ops::linear::{WeightLayout, linear};
use common::*;
fn cpu() -> f64 {
    let mut t = 0.0;
    for d in std::fs::read_dir("/proc/self/task").unwrap() {
        if let Ok(s) = std::fs::read_to_string(d.unwrap().path().join("schedstat")) {
            t += s.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9;
        }
    }
    t
}
#[test]
fn cost() {
    let Some(device) = gpu() else { return };
    let device = device.autodiff();
    for [m, n, k] in [
        [768usize, 384, 128],
        [768, 128, 128],
        [768, 512, 128],
        [768, 128, 512],
    ] {
        let x = tensor(&numbers(m * k, 1), [m, k], &device).require_grad();
        let w = tensor(&numbers(k * n, 2), [k, n], &device).require_grad();
        let plain = |t: &burn::tensor::Tensor<2>| t.clone().inner();
        let g = tensor(&numbers(m * n, 2), [m, n], &device).inner();
        let mut line = format!("{m} {n} {k}:");
        for what in ["nn", "nt", "tn"] {
            let go = |reps: usize| {
                let c = cpu();
                let mut last = None;
                for _ in 0..reps {
                    last = Some(match what {
                        "nn" => linear(plain(&x), plain(&w), None, None, WeightLayout::InputsFirst),
                        "nt" => linear(g.clone(), plain(&w), None, None, WeightLayout::OutputsFirst),
                        _ => {
                            let l = linear(plain(&x), w.clone(), None, None, WeightLayout::InputsFirst);
                            let gr = (l * burn::tensor::Tensor::from_inner(g.clone())).sum().backward();
                            w.grad(&gr).unwrap()
                        }
                    });
                }
                drop(values(last.unwrap()));
                cpu() - c
            };
            go(2);
            let t = go(10) / 10.0;
            line += &format!(
                "  {what} {:.2} ms {:.1} GFLOP/s/core",
                t * 1e3,
                2.0 * (m * n * k) as f64 / t / 1e9
            );
        }
        println!("{line}");
    }
}
