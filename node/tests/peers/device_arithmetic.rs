//! Devices and the protocol compute the same formulas: compares the twins of the kernels with `annulus-core`. The tests
//! of `annulus-shaders` compare the kernels with their twins.

use crate::common::computing;
use annulus::device::{DeviceKind, DeviceRequest};
use annulus::trainer::{LocalStep, Trainer, TrainerOptions, Worker};
use annulus::{Data, Dataset, Task, TaskError};
use annulus_core::Digest;
use annulus_core::codec::Codec;
use annulus_core::optim::Optimizer;
use annulus_shaders::cpu;
use annulus_shaders::cpu::adamw::{AdamW, adamw};
use annulus_shaders::cpu::momentum::{Momentum, momentum};
use annulus_shaders::kernel::MATRIX_KERNELS;
use annulus_shaders::matrices;
use annulus_shaders::ops::linear::{WeightLayout, linear};
use annulus_shaders::optim::bias_corrected;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, read_sync};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Numbers of all exponents below that of `below`, with both signs.
fn numbers(count: u32, below: u32) -> Vec<f32> {
    let pattern = |i: u32| {
        let mixed = i.wrapping_mul(0x9e37_79b9) ^ (i >> 3).wrapping_mul(0x85eb_ca6b);
        f32::from_bits(((mixed & 0x7fff_ffff) % below) | (mixed & 0x8000_0000))
    };
    (0..count).map(pattern).collect()
}

#[test]
fn halves_travel_in_the_protocols_bits() {
    let _turn = computing();
    let largest = f32::from_bits(0x7f7f_ffff);
    let runs = [
        vec![0.0, -0.0, 0.0],
        vec![largest, -largest, 1.0],
        vec![
            f32::NAN,
            2.0 - f32::EPSILON,
            f32::INFINITY,
            -1.0,
            f32::NEG_INFINITY,
        ],
        vec![1.0, 1.0 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11)],
        numbers(4096, 0x0080_0000),
        numbers(4096, 0x3f80_0000),
        numbers(4096, 0x7f80_0000),
        numbers(4096, 0x7fff_ffff),
    ];
    for run in runs {
        let mut bytes = Vec::new();
        Codec::F16.encode(&run, &mut bytes);
        let (k, halves) = cpu::f16::encode(&run);
        let exponent = i16::try_from(k).unwrap().to_le_bytes();
        let ours: Vec<u8> = exponent
            .into_iter()
            .chain(halves.iter().flat_map(|half| half.to_le_bytes()))
            .collect();
        assert!(ours == bytes, "{} numbers from {}", run.len(), run[0]);
        let mut decoded = vec![0.0; run.len()];
        Codec::F16.decode(&bytes, &mut decoded).unwrap();
        for (ours, theirs) in cpu::f16::decode(k, &halves).iter().zip(&decoded) {
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{ours} {theirs}"
            );
        }
    }
}

/// Five steps of the protocol's optimizer on one side and of `twin` on the other.
fn compare(text: &str, decays: bool, mut twin: impl FnMut(u64, &mut [Vec<f32>], &[f32])) {
    let optimizer: Optimizer = text.parse().unwrap();
    let start: Vec<f32> = (0..97).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut theirs = vec![vec![0.0; start.len()]; 1 + optimizer.slots()];
    theirs[0] = start;
    let mut ours = theirs.clone();
    for number in 1..=5 {
        let sums: Vec<f32> = (0..97).map(|i| (i as f32 * 1.7 + number as f32).cos()).collect();
        let step = optimizer.step(0.05, number, 0.25);
        let (params, slots) = theirs.split_at_mut(1);
        let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        optimizer.apply(&step, &mut params[0], &mut slots, &sums, decays);
        twin(number, &mut ours, &sums);
    }
    for (ours, theirs) in ours.iter().flatten().zip(theirs.iter().flatten()) {
        assert!((ours - theirs).abs() <= 2e-7, "{text}: {ours} {theirs}");
    }
}

#[test]
fn optimizers_are_the_protocols() {
    let _turn = computing();
    compare("sgd weight_decay=0.1", true, |_, state, sums| {
        cpu::sgd::sgd(&mut state[0], sums, 0.05, 0.25, 0.1);
    });
    for nesterov in [false, true] {
        let name = if nesterov { "nesterov" } else { "momentum" };
        let rule = Momentum {
            lr: 0.05,
            scale: 0.25,
            weight_decay: 0.1,
            momentum: 0.8,
            nesterov,
        };
        compare(
            &format!("{name} momentum=0.8 weight_decay=0.1"),
            true,
            |_, state, sums| {
                let [p, v] = state else {
                    panic!("one vector of state")
                };
                momentum(&rule, p, v, sums);
            },
        );
    }
    for (name, decays) in [("adam", true), ("adamw", true), ("adamw", false)] {
        let text = format!("{name} beta2=0.95 eps=0.001 weight_decay=0.1");
        compare(&text, decays, |number, state, sums| {
            let (size, second) = bias_corrected(0.05, number, 0.9, 0.95);
            let rule = AdamW {
                scale: 0.25,
                size,
                second,
                eps: 1e-3,
                beta1: 0.9,
                beta2: 0.95,
                l2: if name == "adam" { 0.1 } else { 0.0 },
                decoupled: if name == "adamw" && decays {
                    0.05 * 0.1
                } else {
                    0.0
                },
            };
            let [p, m, v] = state else {
                panic!("two vectors of state")
            };
            adamw(&rule, p, m, v, sums);
        });
    }
}

/// The losses of a task's steps on a device, with the kernels for an adapter of this kind, and a variable for the driver.
fn losses(
    task: [&str; 2],
    (device, adapter): (&str, &str),
    more: &[&str],
    driver: Option<(&str, &str)>,
) -> Vec<f64> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command
        .args(["bench", "steps"])
        .args(task)
        .args([device, "6"])
        .args(more);
    command.env("ANNULUS_ADAPTER", adapter).envs(driver);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\n\n\n\n\n\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{task:?} on {device}: {said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let loss = |line: &str| line.split(' ').next().unwrap().parse().unwrap();
    lines.lines().map(loss).collect()
}

/// Compares steps with the kernels for hardware, under each of these variables for the driver, with others that do without.
fn assert_same_steps(drivers: &[Option<(&str, &str)>]) {
    if annulus::device::adapters().is_empty() {
        return println!("skipped: this machine has no adapter, not even a software one");
    }
    for task in [
        ["gpt", r#"{"preset":"pico","vocabulary":"bytes"}"#],
        ["digits", "{}"],
        ["digits", r#"{"model":"cnn"}"#],
    ] {
        for (reference, more) in [(("cpu", "gpu"), &[][..]), (("gpu", "cpu"), &["--local"])] {
            let expected = losses(task, reference, more, None);
            for driver in drivers {
                let found = losses(task, ("gpu", "gpu"), more, *driver);
                assert_eq!(found.len(), 6);
                for (e, f) in expected.iter().zip(&found) {
                    assert!(
                        (e - f).abs() <= 1e-5 * e.abs(),
                        "{task:?} {more:?} {driver:?}: {expected:?} {found:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn whole_steps_with_kernels_for_hardware_agree_with_the_processor() {
    let _turn = computing();
    assert_same_steps(&[None]);
}

/// lavapipe with 4, 8 and 16 lanes, and Chromium's SwiftShader without a browser.
#[test]
#[ignore = "takes a minute; `cargo xtask prove` runs it"]
fn whole_steps_agree_on_every_software_adapter() {
    let _turn = computing();
    let lanes = ["128", "256", "512"].map(|bits| Some(("LP_NATIVE_VECTOR_WIDTH", bits)));
    assert_same_steps(&lanes);
    let swiftshader = "/usr/lib/chromium/vk_swiftshader_icd.json";
    match std::path::Path::new(swiftshader).exists() {
        true => assert_same_steps(&[Some(("VK_DRIVER_FILES", swiftshader))]),
        false => println!("skipped: there is no {swiftshader} (Debian: chromium)"),
    }
}

/// Whether some adapter multiplies matrices of halves; a line that none does.
fn some_has_units() -> bool {
    let adapters = annulus::device::adapters();
    let found = adapters.iter().any(|adapter| !adapter.matrix_blocks.is_empty());
    if !found {
        println!("skipped: no adapter here has matrix units for halves with sums in f32");
    }
    found
}

#[test]
fn whole_steps_by_matrix_units_agree_but_for_rounding() {
    let _turn = computing();
    if !some_has_units() {
        return;
    }
    let task = ["gpt", r#"{"preset":"pico","vocabulary":"bytes"}"#];
    for more in [&[][..], &["--local"]] {
        let [exact, found] = ["gpu", "gpu+f16"].map(|device| losses(task, (device, "gpu"), more, None));
        assert_ne!(exact, found, "no product was rounded");
        for (e, f) in exact.iter().zip(&found) {
            assert!((e - f).abs() <= 1e-3 * e.abs(), "{more:?}: {exact:?} {found:?}");
        }
    }
}

/// The gradients of its weights are thousands.
struct Loud;

#[derive(Module, Debug)]
struct Weights {
    square: Param<Tensor<2>>,
}

impl Dataset for Loud {
    type Batch = usize;

    fn len(&self) -> u64 {
        8
    }

    fn digest(&self) -> Digest {
        Digest::of(b"loud")
    }

    fn batch(&self, samples: &[u64]) -> usize {
        samples.len()
    }
}

impl Task for Loud {
    type Model = Weights;
    type Dataset = Self;
    type Config = ();

    const NAME: &'static str = "loud";

    fn new(_config: (), _data: Option<&Data>) -> Result<Self, TaskError> {
        Ok(Self)
    }

    fn dataset(&self) -> &Self {
        self
    }

    fn model(&self, device: &Device) -> Weights {
        Weights {
            square: Param::from_tensor(Tensor::full([8, 8], 0.5, device).require_grad()),
        }
    }

    fn loss(&self, model: &Weights, rows: usize, device: &Device) -> Tensor<1> {
        let x = Tensor::<2>::ones([rows, 8], device);
        let out = linear(x, model.square.val(), None, None, WeightLayout::InputsFirst);
        out.powi_scalar(2).mean().mul_scalar(1000.0)
    }
}

/// Of kernels for matrix units, by this process.
fn launches() -> u64 {
    MATRIX_KERNELS.iter().map(|kernel| kernel.launches()).sum()
}

/// A gradient times its scale is too large for halves at first. The shares are made again with a smaller scale, those of
/// local steps too.
#[test]
fn sums_that_are_too_large_for_halves_are_made_again() {
    let _turn = computing();
    const ALONE: &str = "ANNULUS_TEST_ALONE";
    if !some_has_units() {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        // The units are taken for a whole process.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "sums_that_are_too_large_for_halves_are_made_again",
            "--exact",
            "--nocapture",
        ]);
        let output = command
            .env(ALONE, "1")
            .env("ANNULUS_ADAPTER", "gpu")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        let skipped = said.lines().filter(|line| line.starts_with("skipped:"));
        return skipped.for_each(|line| println!("{line}"));
    }
    let made = ["cpu", "gpu+f16"].map(|device| {
        let device = annulus::device::open(device.parse::<DeviceRequest>().unwrap()).unwrap();
        if device.kind != DeviceKind::Cpu && !matrices::take_again() {
            println!("skipped: no kernel suits the matrix units of {}", device.name);
            return None;
        }
        let mut trainer = Trainer::new(Arc::new(Loud), &device, TrainerOptions::default()).unwrap();
        let params = trainer.init();
        let samples: Vec<u64> = (0..8).collect();
        let before = launches();
        let sum = trainer.contribute(params.clone(), &samples).unwrap();
        // Two products each time, forward and backward, by scales of 2^15, 2^11, 2^7 and 2^3.
        let expected = if device.kind == DeviceKind::Cpu { 0 } else { 8 };
        assert_eq!(launches() - before, expected);
        let mut stepped = Vec::new();
        if let Some(stepper) = trainer.stepper(&"sgd".parse().unwrap()) {
            // With the first scale again.
            matrices::take_again();
            stepper.begin_anew();
            trainer.load(params.clone()).unwrap();
            trainer.accumulate(&samples).unwrap();
            let step = LocalStep {
                number: 1,
                rate: 1e-6,
                clip: None,
            };
            let stepper = trainer.stepper(&"sgd".parse().unwrap()).unwrap();
            let loss = read_sync(stepper.step(&step)).unwrap();
            assert_eq!(loss, sum.loss_sum);
            assert_eq!(launches() - before, 2 * expected);
            stepped = read_sync(stepper.stepped()).unwrap();
        }
        Some((params, sum, stepped))
    });
    let [Some((params, exact, _)), Some((_, found, stepped))] = made else {
        return;
    };
    let _units = matrices::within();
    assert!(matrices::taken());
    assert_eq!(exact.gradient, found.gradient);
    assert_eq!(exact.loss_sum, found.loss_sum);
    assert!(!stepped.is_empty());
    for ((before, slope), after) in params.iter().zip(&exact.gradient).zip(&stepped) {
        assert!((before - 1e-6 * slope / 8.0 - after).abs() < 1e-6);
    }
}
