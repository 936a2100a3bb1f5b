//! How long a step of a model takes.

use crate::common::all_fixtures;
use annulus_graph::{Graph, HostTensor, PassOptions, ReadOptions, named_gradients, read_tensors};
use burn::tensor::Device;
use std::path::Path;

/// Steps that are measured together, after a few that are not.
const STEPS: u32 = 200;

/// Run it alone, with `--ignored --nocapture processor_time`.
#[test]
#[ignore = "a measurement"]
fn processor_time_of_a_step() {
    let Some(folder) = all_fixtures() else { return };
    for name in ["bert", "llama", "gpt2", "vit"] {
        let seconds = step(&folder, name);
        println!("{name}: {:.0} us of processor time per step", seconds * 1e6);
    }
}

/// Seconds of processor time of a pass forward and backward, after fusion, on the CPU.
fn step(folder: &Path, name: &str) -> f64 {
    let file = std::fs::read(folder.join(format!("{name}.annulus.onnx"))).unwrap();
    let reference = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
    let inputs = read_tensors(&reference).unwrap().into_iter();
    let inputs = inputs.filter_map(|(name, value)| Some((name.strip_prefix("input.")?.to_owned(), value)));
    let inputs: Vec<(String, HostTensor)> = inputs.collect();
    let mut graph = Graph::read(&file, None, &ReadOptions::default()).unwrap();
    graph.fuse(&inputs).unwrap();
    let device = Device::flex().autodiff();
    let model = graph.model(&device).unwrap();
    let options = PassOptions {
        training: true,
        dropout: Some(1),
    };
    let steps = |count: u32| {
        for _ in 0..count {
            let loss = graph.run(&model, &inputs, &device, options).unwrap().loss;
            assert_eq!(
                named_gradients(&model, &loss.backward()).len(),
                graph.parameters().len()
            );
        }
    };
    steps(STEPS / 10);
    let before = processor_seconds();
    steps(STEPS);
    (processor_seconds() - before) / f64::from(STEPS)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn processor_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on Linux, and the pointer is to a value that lives until the call returns.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Other systems count the time on the wall.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn processor_seconds() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
}
