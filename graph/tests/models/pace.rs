//! How long a step of a model takes, beside the same model written by hand.

use crate::common::all_fixtures;
use crate::twins::{Bert, Llama, SIZES, Twin};
use annulus_graph::{Graph, HostTensor, PassOptions, ReadOptions, named_gradients, read_tensors};
use burn::tensor::Device;
use std::path::Path;

/// Steps that are measured together, after a few that are not.
const STEPS: u32 = 200;

/// How often two models are measured in turn.
const TURNS: usize = 16;

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
    let mut step = as_graph(&file, None, inputs.collect());
    for _ in 0..STEPS / 10 {
        step();
    }
    let before = processor_seconds();
    for _ in 0..STEPS {
        step();
    }
    (processor_seconds() - before) / f64::from(STEPS)
}

/// A step of a model from a file: a pass forward and backward, after fusion, on the CPU.
fn as_graph(file: &[u8], weights: Option<&[u8]>, inputs: Vec<(String, HostTensor)>) -> impl FnMut() {
    let mut graph = Graph::read(file, weights, &ReadOptions::default()).unwrap();
    graph.fuse(&inputs).unwrap();
    let device = Device::flex().autodiff();
    let model = graph.model(&device).unwrap();
    let options = PassOptions {
        training: true,
        dropout: Some(1),
    };
    move || {
        let loss = graph.run(&model, &inputs, &device, options).unwrap().loss;
        let found = named_gradients(&model, &loss.backward());
        assert_eq!(found.len(), graph.parameters().len());
    }
}

/// Run it alone, with `--ignored --nocapture models_by_hand`, and with `ANNULUS_EXPORTED` naming a folder. It holds `llama`
/// and `bert`, which `python/tests/models.py NAME FOLDER width=256 words=1000 tokens=64 samples=8` exports there.
#[test]
#[ignore = "a measurement"]
fn steps_of_models_by_hand_and_from_files() {
    let folder = std::env::var_os("ANNULUS_EXPORTED").expect("ANNULUS_EXPORTED names a folder");
    let device = Device::flex().autodiff();
    let folder = Path::new(&folder);
    compare("llama", folder, &Llama::new(SIZES, &device), &device);
    compare("bert", folder, &Bert::new(SIZES, &device), &device);
}

/// Measures both in turn, and prints the medians.
fn compare<M: Twin>(name: &str, folder: &Path, model: &M, device: &Device) {
    let read = |file: &str| std::fs::read(folder.join(name).join(file)).unwrap();
    let (file, weights) = (read("model.onnx"), read("weights.safetensors"));
    let inputs = read_tensors(&read("samples.safetensors")).unwrap();
    let graph = Graph::read(&file, Some(&weights), &ReadOptions::default()).unwrap();
    let parameters = graph.parameters().iter();
    let count: usize = parameters.map(|own| own.shape().iter().product::<usize>()).sum();
    assert_eq!(model.num_params(), count, "{name} by hand is another model");
    let mut by_graph = as_graph(&file, Some(&weights), inputs);
    let mut by_hand = || {
        let loss = model.loss(1, device);
        assert!(!named_gradients(model, &loss.backward()).is_empty());
    };
    let mut seconds = [Vec::new(), Vec::new()];
    for turn in 0..TURNS {
        let steps: [&mut dyn FnMut(); 2] = [&mut by_hand, &mut by_graph];
        for (seconds, step) in seconds.iter_mut().zip(steps) {
            let before = processor_seconds();
            for _ in 0..STEPS / 20 {
                step();
            }
            // The first turn warms up.
            if turn > 0 {
                seconds.push((processor_seconds() - before) / f64::from(STEPS / 20));
            }
        }
    }
    let [by_hand, by_graph] = seconds.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    println!(
        "{name}: by hand {:.2} ms of processor time per step, from a file {:.2} ms, {:.3} times",
        by_hand * 1e3,
        by_graph * 1e3,
        by_graph / by_hand
    );
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
