//! Loss, gradient and running statistics of PyTorch's models. PyTorch computed the expected numbers, with dropout off.

use crate::common::{all_fixtures, floats, gpu, gradients, number, own_fixtures, squares, values};
use annulus_graph::{Graph, HostTensor, PassOptions, ReadOptions, Role, read_tensors};
use burn::tensor::Device;
use std::path::Path;

/// Models whose fixtures are in this repository.
const FEW: [&str; 3] = ["mlp", "tabular", "cnn"];

const ALL: [&str; 14] = [
    "mlp",
    "cnn",
    "lstm",
    "gru",
    "vit",
    "bert",
    "distilbert",
    "gpt2",
    "llama",
    "qwen3",
    "unet",
    "tabular",
    "tfenc",
    "lora",
];

/// How far the whole gradient is off, relative to its length.
const ON_CPU: f64 = 2e-6;
const ON_GPU: f64 = 2e-5;

#[test]
fn small_models_have_pytorchs_gradients() {
    let device = Device::flex().autodiff();
    FEW.iter()
        .for_each(|name| check(&own_fixtures(), name, &device, ON_CPU));
}

#[test]
fn all_models_have_pytorchs_gradients() {
    let Some(folder) = all_fixtures() else { return };
    let device = Device::flex().autodiff();
    ALL.iter().for_each(|name| check(&folder, name, &device, ON_CPU));
}

#[test]
fn small_models_have_pytorchs_gradients_on_a_gpu() {
    let Some(device) = gpu() else { return };
    let device = device.autodiff();
    FEW.iter()
        .for_each(|name| check(&own_fixtures(), name, &device, ON_GPU));
}

#[test]
fn all_models_have_pytorchs_gradients_on_a_gpu() {
    let Some(folder) = all_fixtures() else { return };
    let Some(device) = gpu() else { return };
    let device = device.autodiff();
    ALL.iter().for_each(|name| check(&folder, name, &device, ON_GPU));
}

/// How often each of our operations stands for a pattern after fusion, and what no longer stands for itself.
#[test]
fn patterns_of_all_models_become_ours() {
    let Some(folder) = all_fixtures() else { return };
    let spelled_out = ["Pow", "Reciprocal", "Neg", "Swish"];
    let expected: [(&str, Counts, &[&str]); 6] = [
        ("llama", LLAMA, &spelled_out),
        ("lora", LLAMA, &spelled_out),
        // Each layer norms queries and keys too.
        (
            "qwen3",
            &[
                ("RMSNormalization", 9),
                ("RotaryHalves", 4),
                ("Gated", 2),
                ("Attention", 2),
                ("AttentionMask", 1),
            ],
            &spelled_out,
        ),
        (
            "gpt2",
            &[("Gelu", 2), ("Attention", 2), ("AttentionMask", 1)],
            &["Pow", "Tanh"],
        ),
        (
            "bert",
            &[("Mlp", 2), ("Attention", 2), ("AttentionMask", 1)],
            &["Gelu"],
        ),
        (
            "vit",
            &[("Mlp", 2), ("PackedAttention", 2)],
            &["Attention", "Split", "Gelu"],
        ),
    ];
    for (name, ours, gone) in expected {
        let (file, reference) = (
            read(&folder, name, "annulus.onnx"),
            read(&folder, name, "safetensors"),
        );
        let mut graph = Graph::read(&file, None, &ReadOptions::default()).unwrap();
        graph
            .fuse(&Expected(read_tensors(&reference).unwrap()).inputs())
            .unwrap();
        let operations = graph.operations();
        let count = |kind: &str| operations.iter().filter(|own| **own == kind).count();
        for (kind, times) in ours {
            assert_eq!(count(kind), *times, "{name}: {kind} in {operations:?}");
        }
        for kind in gone {
            assert_eq!(count(kind), 0, "{name}: {kind} in {operations:?}");
        }
    }
}

/// How many operations there are of some kinds.
type Counts = &'static [(&'static str, usize)];

/// Two layers, with a norm before each half of them and one behind.
const LLAMA: Counts = &[
    ("RMSNormalization", 5),
    ("RotaryHalves", 4),
    ("Gated", 2),
    ("Attention", 2),
    ("AttentionMask", 1),
];

pub fn read(folder: &Path, name: &str, ending: &str) -> Vec<u8> {
    std::fs::read(folder.join(format!("{name}.{ending}"))).unwrap()
}

/// What PyTorch computed.
pub struct Expected(pub Vec<(String, HostTensor)>);

impl Expected {
    fn get(&self, name: &str) -> &HostTensor {
        let found = self.0.iter().find(|(own, _)| own == name);
        &found.unwrap_or_else(|| panic!("no {name}")).1
    }

    pub fn inputs(&self) -> Vec<(String, HostTensor)> {
        let inputs = self.0.iter().filter_map(|(name, value)| {
            let name = name.strip_prefix("input.")?;
            Some((name.to_owned(), value.clone()))
        });
        inputs.collect()
    }
}

#[track_caller]
fn check(folder: &Path, name: &str, device: &Device, tolerance: f64) {
    let file = read(folder, name, "annulus.onnx");
    let expected = Expected(read_tensors(&read(folder, name, "safetensors")).unwrap());
    let graph = Graph::read(&file, None, &ReadOptions::default());
    let mut graph = graph.unwrap_or_else(|e| panic!("{name}: {e}"));
    compare(name, &graph, &expected, device, tolerance);
    let before = graph.operations().len();
    let inputs = expected.inputs();
    graph.fuse(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
    println!("{name}: {before} operations become {}", graph.operations().len());
    compare(name, &graph, &expected, device, tolerance);
}

#[track_caller]
fn compare(name: &str, graph: &Graph, expected: &Expected, device: &Device, tolerance: f64) {
    let model = graph.model(device).unwrap();
    let options = PassOptions {
        training: true,
        dropout: None,
    };
    // The second pass runs the plan that the first one made.
    for pass in ["first", "second"] {
        let output = graph.run(&model, &expected.inputs(), device, options);
        let output = output.unwrap_or_else(|e| panic!("{name}: {e}"));
        let loss = floats(expected.get("loss"))[0];
        let tracked = output.loss.backward();
        let found = number(output.loss.inner());
        let off = f64::from((found - loss).abs()) / f64::from(loss.abs()).max(1.0);
        assert!(off <= tolerance, "{name}, {pass} pass: loss {found}, not {loss}");
        let (mut difference, mut whole) = (0.0, 0.0);
        for ((name, gradient), parameter) in gradients(&model, &tracked).iter().zip(graph.parameters()) {
            assert_eq!(name, &parameter.name);
            if parameter.role != Role::Trained {
                continue;
            }
            let expected = expected.get(&format!("grad.{name}"));
            assert_eq!(expected.shape(), parameter.shape(), "{name}");
            let expected = floats(expected);
            let gradient = gradient
                .as_ref()
                .unwrap_or_else(|| panic!("{name} has no gradient"));
            difference += squares(expected.iter().zip(gradient).map(|(e, g)| e - g));
            whole += squares(expected.iter().copied());
        }
        let off = (difference / whole).sqrt();
        println!("{name}, {pass} pass: loss {found}, gradient off by {off:.1e}");
        assert!(
            off <= tolerance,
            "{name}, {pass} pass: the gradient is off by {off:e}"
        );
        for statistic in output.statistics {
            let expected = floats(expected.get(&format!("buffer.{}", statistic.name)));
            let before = if statistic.name.ends_with("running_var") {
                1.0
            } else {
                0.0
            };
            let after = values(statistic.value.inner());
            for (after, expected) in after.iter().zip(expected) {
                let after = before + statistic.rate as f32 * (after - before);
                let off = (after - expected).abs();
                assert!(off <= 1e-5, "{name}, {}: {after}, not {expected}", statistic.name);
            }
        }
    }
}
