//! Patterns of small operations become one of ours, and what they compute stays.

use crate::common::{gradients, number};
use crate::files::{Model, constant, floats, integer, integers, node, several};
use annulus_graph::{Graph, HostTensor, Numbers, PassOptions, ReadOptions};
use burn::tensor::Device;

/// The loss and the largest difference of a gradient before and after fusion, and the operations that remain.
#[track_caller]
fn fused(file: &[u8], inputs: &[(String, HostTensor)]) -> Vec<&'static str> {
    let mut graph = Graph::read(file, None, &ReadOptions::default()).unwrap();
    let device = Device::flex().autodiff();
    let run = |graph: &Graph| {
        let model = graph.model(&device).unwrap();
        let output = graph
            .run(&model, inputs, &device, PassOptions::default())
            .unwrap();
        let tracked = output.loss.backward();
        (number(output.loss.inner()), gradients(&model, &tracked))
    };
    let (loss, before) = run(&graph);
    graph.fuse(inputs).unwrap();
    let (after_loss, after) = run(&graph);
    assert!(
        (loss - after_loss).abs() <= 1e-6 * loss.abs().max(1.0),
        "{loss} became {after_loss}"
    );
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        for (x, y) in before.iter().flatten().zip(after.iter().flatten()) {
            assert!((x - y).abs() <= 1e-5 * x.abs().max(1.0), "{name}: {x} became {y}");
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
fn turned(model: Model, x: &str, w: &str, y: &str) -> Model {
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
    let model = turned(model, "x", "up", "a").node(node("Add", &["a", "up.bias"], &["b"]));
    let model = turned(model.node(node("Gelu", &["b"], &["c"])), "c", "down", "d");
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
