//! Operations on integers and on floats, and what gradients flow through.

use crate::common::{gradients, number};
use crate::files::{integer, integers, node, scaled};
use annulus_graph::{Graph, HostTensor, Numbers, PassOptions, ReadOptions};
use burn::tensor::Device;

/// The loss of a model whose input is two rows of ones, and the gradient of its `w`, which is 1, 2, 3.
fn loss_and_slope(file: &[u8]) -> (f32, Vec<f32>) {
    let graph = Graph::read(file, None, &ReadOptions::default()).unwrap();
    let device = Device::flex().autodiff();
    let model = graph.model(&device).unwrap();
    let x = HostTensor::new(vec![2, 3], Numbers::Floats(vec![1.0; 6])).unwrap();
    let inputs = [("x".to_owned(), x)];
    let loss = graph
        .run(&model, &inputs, &device, PassOptions::default())
        .unwrap()
        .loss;
    let slopes = gradients(&model, &loss.clone().backward());
    (number(loss), slopes[0].1.clone().unwrap())
}

#[test]
fn integers_get_a_border_as_floats_do() {
    let file = scaled(|model| {
        model
            .value(integers("widths", &[2], &[1, 1]))
            .value(integers("five", &[], &[5]))
            .node(node("Shape", &["x"], &["shape"]))
            .node(node("Pad", &["shape", "widths", "five"], &["wide"]))
            .node(node("Cast", &["wide"], &["floats"]).bytes(5, &integer("to", 1).0))
            .node(node("ReduceMean", &["floats"], &["mean"]).bytes(5, &integer("keepdims", 0).0))
            .node(node("Mul", &["x", "mean"], &["y"]))
    });
    // The mean of 5, 2, 3, 5 times the mean of w.
    assert_eq!(loss_and_slope(&file).0, 7.5);
}

#[test]
fn no_gradient_flows_through_a_detached_value() {
    let detach = node("Detach", &["w"], &["d"]).text(7, "annulus");
    let file = scaled(|model| model.node(detach).node(node("Mul", &["x", "d"], &["y"])));
    let (loss, slope) = loss_and_slope(&file);
    assert_eq!(loss, 14.0 / 3.0);
    assert_eq!(slope, [1.0 / 3.0, 2.0 / 3.0, 1.0]);
}
