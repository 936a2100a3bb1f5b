//! Operations on integers and on floats, and what gradients flow through.

use crate::common::{gradients, number};
use crate::files::{Message, Model, floats, integer, integers, node, scaled};
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

/// The loss of a model whose `y` these nodes make, and the slope of its weights.
fn of_floats(nodes: impl FnOnce(Model) -> Model) -> (f32, Vec<f32>) {
    loss_and_slope(&scaled(nodes))
}

#[test]
fn comparisons_of_learned_floats_choose_on_the_device() {
    // y = x where w > 1.5, else 0: and `not`, `or` and `xor` of it say the same.
    for negated in [false, true] {
        let (loss, slope) = of_floats(|model| {
            let model = model
                .value(floats("bound", &[], &[1.5]))
                .value(floats("zero", &[], &[0.0]))
                .node(node("Greater", &["w", "bound"], &["more"]))
                .node(node("Not", &["more"], &["less"]))
                .node(node("Xor", &["more", "less"], &["all"]))
                .node(node("And", &["all", "more"], &["both"]))
                .node(node("Or", &["both", "more"], &["either"]));
            let places: [&str; 3] = match negated {
                false => ["either", "x", "zero"],
                true => ["less", "zero", "x"],
            };
            model.node(node("Where", &places, &["y"]))
        });
        // Of w = 1, 2, 3 the last two count.
        assert_eq!(loss, 5.0 / 3.0);
        assert_eq!(slope, [0.0, 1.0 / 3.0, 1.0 / 3.0]);
    }
}

#[test]
fn integers_of_learned_floats_look_up_and_add_by_index() {
    let axis = integer("axis", 0).0;
    // The place of the largest of w, which is 2, picks from w; its gradient goes to what is picked.
    let (loss, slope) = of_floats(|model| {
        model
            .node(node("ArgMax", &["w"], &["place"]).bytes(5, &axis))
            .node(node("Gather", &["w", "place"], &["largest"]))
            .node(node("Mul", &["x", "largest"], &["y"]))
    });
    assert_eq!(loss, 6.0);
    // d mean(3 w) / dw, and at the last also the mean of w.
    assert_eq!(slope, [1.0, 1.0, 3.0]);
    // w is added to the places 0, 2, 2 of zeros: 1, 0, 5.
    let (loss, _) = of_floats(|model| {
        let add = node("IndexAdd", &["zeros", "places", "w"], &["sums"]);
        model
            .value(integers("places", &[3], &[0, 2, 2]))
            .value(floats("zeros", &[3], &[0.0; 3]))
            .node(add.text(7, "annulus").bytes(5, &axis))
            .node(node("Mul", &["x", "sums"], &["y"]))
    });
    assert_eq!(loss, (1.0 + 15.0) / 3.0);
    let scatter = node("ScatterElements", &["zeros", "places", "w"], &["sums"]);
    let add = Message::default()
        .text(1, "reduction")
        .text(4, "add")
        .integer(20, 3);
    let (scattered, _) = of_floats(|model| {
        model
            .value(integers("places", &[3], &[0, 2, 2]))
            .value(floats("zeros", &[3], &[0.0; 3]))
            .node(scatter.bytes(5, &axis).bytes(5, &add.0))
            .node(node("Mul", &["x", "sums"], &["y"]))
    });
    assert_eq!(scattered, loss);
}

#[test]
fn the_largest_come_first_in_both_lanes() {
    let top = |input: &str, largest: i64| {
        let node = node("TopPlaces", &[input, "two"], &["places"]).text(7, "annulus");
        node.bytes(5, &integer("axis", 0).0)
            .bytes(5, &integer("largest", largest).0)
    };
    for (largest, expected) in [(1, 3.0 + 2.0 / 2.0), (0, 1.0 + 2.0 / 2.0)] {
        for input in ["w", "host"] {
            let (loss, _) = of_floats(|model| {
                model
                    .value(integers("two", &[1], &[2]))
                    .value(integers("host", &[3], &[10, 20, 30]))
                    .value(floats("weights", &[2], &[1.0, 0.5]))
                    .node(top(input, largest))
                    .node(node("Gather", &["w", "places"], &["picked"]))
                    .node(node("Mul", &["picked", "weights"], &["weighted"]))
                    .node(node("ReduceSum", &["weighted"], &["sum"]).bytes(5, &integer("keepdims", 0).0))
                    .node(node("Mul", &["x", "sum"], &["y"]))
            });
            assert_eq!(loss, expected * 2.0, "{input}");
        }
    }
}

#[test]
fn numbers_are_drawn_anew_for_each_seed_and_never_kept_with_a_plan() {
    let kind = Message::default()
        .text(1, "kind")
        .text(4, "normal")
        .integer(20, 3);
    let draw = node("Random", &["shape"], &["noise"])
        .text(7, "annulus")
        .bytes(5, &kind.0);
    let file = scaled(|model| {
        model
            .node(node("Shape", &["x"], &["shape"]))
            .node(draw)
            .node(node("Mul", &["x", "noise"], &["y"]))
    });
    let graph = Graph::read(&file, None, &ReadOptions::default()).unwrap();
    assert!(graph.draws());
    let device = Device::flex();
    let model = graph.model(&device).unwrap();
    let x = HostTensor::new(vec![2, 3], Numbers::Floats(vec![1.0; 6])).unwrap();
    let inputs = [("x".to_owned(), x)];
    let loss = |dropout| {
        let options = PassOptions {
            training: true,
            dropout,
        };
        number(graph.run(&model, &inputs, &device, options).unwrap().loss)
    };
    let all = [
        loss(Some(1)),
        loss(Some(2)),
        loss(Some(1)),
        loss(None),
        loss(None),
    ];
    assert_eq!((all[0], all[3]), (all[2], all[4]));
    assert!(all[0] != all[1] && all[0] != all[3], "{all:?}");
}
