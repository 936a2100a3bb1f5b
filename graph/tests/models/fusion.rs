//! Patterns of small operations become one of ours, and what they compute stays.

use crate::common::{gpu, gradients, number};
use crate::files::{Model, constant, floats, integer, integers, node, several, tensor};
use annulus_graph::{Graph, HostTensor, Numbers, PassOptions, ReadOptions};
use burn::tensor::Device;

/// Compares the loss and the gradients before fusion, on the CPU, with those after it, there and on a GPU. Returns the
/// operations that remain.
#[track_caller]
fn fused(file: &[u8], inputs: &[(String, HostTensor)]) -> Vec<&'static str> {
    let mut graph = Graph::read(file, None, &ReadOptions::default()).unwrap();
    let run = |graph: &Graph, device: &Device| {
        let device = device.clone().autodiff();
        let model = graph.model(&device).unwrap();
        let output = graph
            .run(&model, inputs, &device, PassOptions::default())
            .unwrap();
        let tracked = output.loss.backward();
        (number(output.loss.inner()), gradients(&model, &tracked))
    };
    let (loss, before) = run(&graph, &Device::flex());
    graph.fuse(inputs).unwrap();
    for device in [Some(Device::flex()), gpu()].into_iter().flatten() {
        let (after_loss, after) = run(&graph, &device);
        assert!(
            (loss - after_loss).abs() <= 1e-5 * loss.abs().max(1.0),
            "{loss} became {after_loss}"
        );
        for ((name, before), (_, after)) in before.iter().zip(&after) {
            for (x, y) in before.iter().flatten().zip(after.iter().flatten()) {
                assert!((x - y).abs() <= 1e-5 * x.abs().max(1.0), "{name}: {x} became {y}");
            }
        }
    }
    graph.operations()
}

fn rows(count: usize, width: usize) -> [(String, HostTensor); 1] {
    let values = (0..count * width)
        .map(|i| ((i * 7) % 13) as f32 * 0.25 - 1.0)
        .collect();
    let x = HostTensor::new(vec![count, width], Numbers::Floats(values)).unwrap();
    [("x".to_owned(), x)]
}

/// The mean of `y`, as the loss.
fn mean(model: Model, y: &str) -> Vec<u8> {
    let square = node("Mul", &[y, y], &["square of y"]);
    let mean = node("ReduceMean", &["square of y"], &["loss"]).bytes(5, &integer("keepdims", 0).0);
    model.node(square).node(mean).file()
}

fn count(operations: &[&str], kind: &str) -> usize {
    operations.iter().filter(|own| **own == kind).count()
}

#[test]
fn a_norm_that_is_spelled_out_becomes_one() {
    let model = Model::default()
        .input("x", 1)
        .trained("w", &[4], &[0.5, 1.0, 1.5, 2.0]);
    let model = model
        .node(constant("two", &floats("", &[], &[2.0])))
        .node(constant("epsilon", &floats("", &[], &[1e-5])))
        .node(constant("last", &integers("", &[1], &[-1])))
        .node(node("Pow", &["x", "two"], &["square"]))
        .node(node("ReduceMean", &["square", "last"], &["mean"]))
        .node(node("Add", &["mean", "epsilon"], &["shifted"]))
        .node(node("Sqrt", &["shifted"], &["root"]))
        .node(node("Reciprocal", &["root"], &["factor"]))
        .node(node("Mul", &["x", "factor"], &["normed"]))
        .node(node("Mul", &["w", "normed"], &["y"]));
    let operations = fused(&mean(model, "y"), &rows(3, 4));
    assert_eq!(count(&operations, "RMSNormalization"), 1, "{operations:?}");
    assert_eq!(count(&operations, "Sqrt"), 0, "{operations:?}");
}

/// x times the transpose of `w`.
fn by_transpose(model: Model, x: &str, w: &str, y: &str) -> Model {
    let name = format!("{w} turned");
    let transpose = node("Transpose", &[w], &[&name]).bytes(5, &several("perm", &[1, 0]).0);
    model.node(transpose).node(node("MatMul", &[x, &name], &[y]))
}

#[test]
fn products_with_their_sums_and_an_activation_become_one() {
    let weights: Vec<f32> = (0..24).map(|i| ((i * 5) % 7) as f32 * 0.1 - 0.3).collect();
    let model = Model::default()
        .input("x", 1)
        .trained("up", &[6, 4], &weights)
        .trained("up.bias", &[6], &[0.1; 6])
        .trained("down", &[4, 6], &weights)
        .trained("down.bias", &[4], &[0.2; 4]);
    let model = by_transpose(model, "x", "up", "a").node(node("Add", &["a", "up.bias"], &["b"]));
    let model = by_transpose(model.node(node("Gelu", &["b"], &["c"])), "c", "down", "d");
    let model = model
        .node(node("Add", &["down.bias", "d"], &["e"]))
        .node(node("Add", &["x", "e"], &["y"]));
    let operations = fused(&mean(model, "y"), &rows(3, 4));
    assert_eq!(count(&operations, "Mlp"), 1, "{operations:?}");
    for gone in ["MatMul", "Transpose", "Add", "Gelu"] {
        assert_eq!(count(&operations, gone), 0, "{operations:?}");
    }
}

#[test]
fn a_value_that_others_read_stays() {
    let (weights, bias) = ([0.5; 16], [0.1; 4]);
    let model = Model::default()
        .input("x", 1)
        .trained("w", &[4, 4], &weights)
        .trained("b", &[4], &bias)
        .node(node("MatMul", &["x", "w"], &["a"]))
        .node(node("Add", &["a", "b"], &["sum"]))
        .node(node("Mul", &["a", "sum"], &["y"]));
    let operations = fused(&mean(model, "y"), &rows(3, 4));
    assert_eq!(count(&operations, "Add"), 1, "{operations:?}");
}

#[test]
fn a_table_that_is_added_is_no_residual() {
    let model = Model::default()
        .input("x", 1)
        .trained("w", &[4, 4], &[0.5; 16])
        .trained("table", &[1, 4], &[0.5; 4])
        .node(node("MatMul", &["x", "w"], &["a"]))
        .node(node("Add", &["a", "table"], &["y"]));
    let file = mean(model, "y");
    // With one sample the shapes are equal by chance.
    for samples in [1, 3] {
        assert_eq!(count(&fused(&file, &rows(samples, 4)), "Add"), 1);
    }
}

#[test]
fn an_activation_that_products_lack_stays_between_them() {
    let model = Model::default()
        .input("x", 1)
        .trained("up", &[4, 4], &[0.3; 16])
        .trained("down", &[4, 4], &[0.2; 16])
        .node(node("MatMul", &["x", "up"], &["a"]))
        .node(node("Swish", &["a"], &["b"]))
        .node(node("MatMul", &["b", "down"], &["y"]));
    let operations = fused(&mean(model, "y"), &rows(3, 4));
    assert_eq!(count(&operations, "Swish"), 1, "{operations:?}");
    assert_eq!(count(&operations, "Linear"), 2, "{operations:?}");
}

#[test]
fn a_gelu_that_is_spelled_out_by_tanh_becomes_one() {
    let model = Model::default()
        .input("x", 1)
        .trained("w", &[4, 4], &[0.25; 16])
        .node(node("MatMul", &["x", "w"], &["a"]));
    let model = [
        ("half", 0.5),
        ("three", 3.0),
        ("of_cube", 0.044_715),
        ("scale", 0.797_884_6),
        ("one", 1.0),
    ]
    .into_iter()
    .fold(model, |model, (name, value)| {
        model.node(constant(name, &floats("", &[], &[value])))
    });
    let model = model
        .node(node("Mul", &["half", "a"], &["halved"]))
        .node(node("Pow", &["a", "three"], &["cube"]))
        .node(node("Mul", &["cube", "of_cube"], &["part"]))
        .node(node("Add", &["a", "part"], &["sum"]))
        .node(node("Mul", &["sum", "scale"], &["inner"]))
        .node(node("Tanh", &["inner"], &["tanh"]))
        .node(node("Add", &["tanh", "one"], &["gate"]))
        .node(node("Mul", &["halved", "gate"], &["y"]));
    let operations = fused(&mean(model, "y"), &rows(3, 4));
    assert_eq!(count(&operations, "Gelu"), 1, "{operations:?}");
    for gone in ["Tanh", "Pow", "Add"] {
        assert_eq!(count(&operations, gone), 0, "{operations:?}");
    }
}

#[test]
fn an_activation_times_a_value_becomes_one_operation() {
    for (activation, order) in [("Swish", ["active", "up"]), ("Gelu", ["up", "active"])] {
        let model = Model::default()
            .input("x", 1)
            .trained("g", &[4, 8], &[0.25; 32])
            .trained("u", &[4, 8], &[-0.5; 32])
            .node(node("MatMul", &["x", "g"], &["gate"]))
            .node(node("MatMul", &["x", "u"], &["up"]))
            .node(node(activation, &["gate"], &["active"]))
            .node(node("Mul", &order, &["y"]));
        let operations = fused(&mean(model, "y"), &rows(3, 4));
        assert_eq!(count(&operations, "Gated"), 1, "{operations:?}");
        assert_eq!(count(&operations, activation), 0, "{operations:?}");
    }
}

/// Rotary positions of x, whose rows are `w`, by angles that lie in the file, or are learned.
fn turned(learned: bool) -> Vec<u8> {
    let (tokens, width) = (3, 8);
    let angles: Vec<f32> = (0..tokens * width)
        .map(|i| (i / width * (i % width + 1)) as f32 * 0.3)
        .collect();
    let [cosine, sine] =
        [f32::cos, f32::sin].map(|of| angles.iter().map(|angle| of(*angle)).collect::<Vec<_>>());
    let model = Model::default()
        .input("x", 1)
        .trained("w", &[4, 2 * width], &[0.25; 64]);
    let table = |model: Model, name: &str, values: &[f32]| match learned {
        true => model.trained(name, &[tokens, width], values),
        false => model.value(floats(name, &[tokens, width], values)),
    };
    let number =
        |model: Model, name: &str, value: i64| model.node(constant(name, &integers("", &[1], &[value])));
    let model = table(table(model, "cosine", &cosine), "sine", &sine);
    let model = number(
        number(number(number(model, "start", 0), "middle", 4), "end", i64::MAX),
        "axis",
        3,
    );
    let last = |name: &str| integer(name, -1).0;
    let shape = integers("", &[4], &[1, -1, 2, width]);
    model
        .node(node("MatMul", &["x", "w"], &["a"]))
        .node(constant("shape", &shape))
        .node(node("Reshape", &["a", "shape"], &["rows"]))
        .node(node("Transpose", &["rows"], &["heads"]).bytes(5, &several("perm", &[0, 2, 1, 3]).0))
        .node(node("Mul", &["heads", "cosine"], &["plain"]))
        .node(node("Slice", &["heads", "start", "middle", "axis"], &["low"]))
        .node(node("Slice", &["heads", "middle", "end", "axis"], &["high"]))
        .node(node("Neg", &["high"], &["negated"]))
        .node(node("Concat", &["negated", "low"], &["swapped"]).bytes(5, &last("axis")))
        .node(node("Mul", &["swapped", "sine"], &["by sine"]))
        .node(node("Add", &["plain", "by sine"], &["turned"]))
        .node(node("Mul", &["turned", "heads"], &["y"]))
        .node(node("ReduceMean", &["y"], &["loss"]).bytes(5, &integer("keepdims", 0).0))
        .file()
}

#[test]
fn rotary_positions_become_one_operation() {
    let operations = fused(&turned(false), &rows(3, 4));
    assert_eq!(count(&operations, "RotaryHalves"), 1, "{operations:?}");
    for gone in ["Slice", "Neg", "Concat", "Add"] {
        assert_eq!(count(&operations, gone), 0, "{operations:?}");
    }
    // The kernel has no gradient for angles.
    let operations = fused(&turned(true), &rows(3, 4));
    assert_eq!(count(&operations, "RotaryHalves"), 0, "{operations:?}");
}

#[test]
fn what_gives_back_its_input_goes() {
    let model = Model::default()
        .input("x", 1)
        .trained("up", &[4, 4], &[0.25; 16])
        .trained("down", &[4, 4], &[-0.5; 16])
        .value(tensor("on", &[], 9, &[1]))
        .value(floats("never", &[], &[0.0]));
    let number =
        |model: Model, name: &str, value: i64| model.node(constant(name, &integers("", &[1], &[value])));
    let model = number(number(number(model, "start", 0), "end", i64::MAX), "some", 3)
        .node(node("MatMul", &["x", "up"], &["a"]))
        .node(node("Slice", &["a", "start", "end"], &["b"]))
        .node(node("Relu", &["b"], &["c"]))
        .node(node("Dropout", &["c", "never", "on"], &["d"]))
        .node(node("MatMul", &["d", "down"], &["e"]))
        // All rows of this batch, but not of any batch.
        .node(node("Slice", &["e", "start", "some"], &["y"]));
    let operations = fused(&mean(model, "y"), &rows(3, 4));
    assert_eq!(count(&operations, "Mlp"), 1, "{operations:?}");
    assert_eq!(count(&operations, "Dropout"), 0, "{operations:?}");
    assert_eq!(count(&operations, "Slice"), 1, "{operations:?}");
}
