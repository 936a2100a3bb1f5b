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

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct V {
    s: [u32; 3],
    r: [u32; 2],
    b: [u32; 2],
    flags: u32,
}
#[test]
fn cost() {
    use annulus_shaders::kernel::*;
    use annulus_shaders::launch::launch;
    let Some(device) = gpu() else { return };
    for [m, n, k] in [
        [768usize, 384, 128],
        [768, 128, 128],
        [768, 512, 128],
        [768, 128, 512],
    ] {
        let x = tensor(&numbers(m * k, 1), [m * k], &device);
        let g = tensor(&numbers(m * n, 2), [m * n], &device);
        let w = tensor(&numbers(k * n, 2), [k * n], &device);
        let o = tensor(&numbers(k * n, 2), [k * n], &device);
        let so = tensor(&numbers(n, 2), [n], &device);
        let (rx, rg, ro, rs) = (raw(x.clone()), raw(g.clone()), raw(o.clone()), raw(so.clone()));
        drop(values(x.clone()));
        drop(values(g.clone()));
        let v = V {
            s: [k as u32, n as u32, m as u32],
            r: [k as u32 / 4, n as u32 / 4],
            b: [0, 0],
            flags: 0,
        };
        let go = |reps: usize| {
            let c = cpu();
            for _ in 0..reps {
                launch(
                    &GEMM_TN,
                    &[&rx, &rg],
                    &[&ro, &rs],
                    v,
                    [n.div_ceil(64) as u32, k.div_ceil(8) as u32, 1],
                );
            }
            drop(values(o.clone()));
            cpu() - c
        };
        for r in [2usize, 1, 10, 20, 40] {
            let t = go(r);
            println!("   {r}: {:.2} ms", t * 1e3);
        }
        let t = go(10) / 10.0;
        println!(
            "{m} {n} {k}: tn {:.2} ms {:.1} GFLOP/s/core",
            t * 1e3,
            2.0 * (m * n * k) as f64 / t / 1e9
        );
    }
}
