//! Files that nobody should have made: each is an error that names what is at fault.

use crate::files::{Message, Model, floats, integer, integers, node, scaled, several, tensor};
use annulus_graph::{Graph, GraphError, HostTensor, Limits, Numbers, PassOptions, ReadOptions, Work};
use burn::tensor::Device;

fn read(file: &[u8]) -> Result<Graph, GraphError> {
    Graph::read(file, None, &ReadOptions::default())
}

/// What is said about a file when two samples of 3 floats run through it.
#[track_caller]
fn complaint(file: &[u8]) -> String {
    let graph = match read(file) {
        Ok(graph) => graph,
        Err(error) => return error.to_string(),
    };
    let device = Device::flex();
    let model = graph.model(&device).unwrap();
    let x = HostTensor::new(vec![2, 3], Numbers::Floats(vec![1.0; 6])).unwrap();
    let inputs = [("x".to_owned(), x)];
    let run = graph.run(&model, &inputs, &device, PassOptions::default());
    run.expect_err("it ran").to_string()
}

#[track_caller]
fn expect(file: Vec<u8>, words: &[&str]) {
    let said = complaint(&file);
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn the_model_that_the_others_spoil_runs() {
    let file = scaled(|model| model.node(node("Identity", &["x"], &["y"])));
    let graph = read(&file).unwrap();
    let device = Device::flex();
    let x = HostTensor::new(vec![2, 3], Numbers::Floats(vec![1.0; 6])).unwrap();
    let inputs = [("x".to_owned(), x)];
    let model = graph.model(&device).unwrap();
    let output = graph
        .run(&model, &inputs, &device, PassOptions::default())
        .unwrap();
    assert_eq!(crate::common::number(output.loss), 2.0);
}

#[test]
fn unknown_operations_are_told_all_at_once() {
    let file = scaled(|model| {
        let model = model
            .node(node("Wobble", &["x"], &["a"]))
            .node(node("Wobble", &["a"], &["b"]));
        model.node(node("Jiggle", &["b"], &["y"]))
    });
    expect(file, &["Wobble (a, b); Jiggle (y)"]);
}

#[test]
fn cycles_and_missing_values_are_named() {
    let cycle = scaled(|model| {
        let model = model.node(node("Add", &["x", "b"], &["a"]));
        model
            .node(node("Relu", &["a"], &["b"]))
            .node(node("Relu", &["b"], &["y"]))
    });
    expect(cycle, &["node `a` (Add)", "`b`"]);
    let itself = scaled(|model| model.node(node("Add", &["x", "y"], &["y"])));
    expect(itself, &["node `y` (Add)", "`y`"]);
    let missing = scaled(|model| model.node(node("Add", &["x", "layer.bias"], &["y"])));
    expect(missing, &["node `y` (Add)", "`layer.bias`"]);
    let twice = scaled(|model| {
        model
            .node(node("Relu", &["x"], &["y"]))
            .node(node("Relu", &["x"], &["y"]))
    });
    expect(twice, &["`y` twice"]);
}

#[test]
fn huge_tensors_are_refused_before_they_exist() {
    let huge = integers("size", &[2], &[1 << 40, 1 << 40]);
    for operation in ["ConstantOfShape", "Expand", "Tile"] {
        let file = scaled(|model| {
            let inputs: &[&str] = if operation == "ConstantOfShape" {
                &["size"]
            } else {
                &["x", "size"]
            };
            model.value(huge.clone()).node(node(operation, inputs, &["y"]))
        });
        expect(file, &["node `y`", operation]);
    }
    let range = scaled(|model| {
        let model = model
            .value(integers("from", &[], &[0]))
            .value(integers("to", &[], &[i64::MAX]));
        let model = model.value(integers("step", &[], &[1]));
        model.node(node("Range", &["from", "to", "step"], &["y"]))
    });
    expect(range, &["node `y` (Range)", "elements"]);
    // Axes whose product overflows, and numbers that are not there.
    let lying = tensor("size", &[1 << 33, 1 << 33], 1, &[0; 8]);
    expect(scaled(|model| model.value(lying)), &["`size`", "elements"]);
    let short = tensor("size", &[1 << 20], 1, &[0; 8]);
    expect(scaled(|model| model.value(short)), &["`size`", "2 elements"]);
    let negative = tensor("size", &[-1], 1, &[0; 4]);
    expect(scaled(|model| model.value(negative)), &["`size`", "-1"]);
}

/// The work that a trial finds.
fn work_of(file: &[u8]) -> Work {
    trial(file, |_| ()).unwrap()
}

/// Tries a file with three samples of 3 floats, under these limits.
fn trial(file: &[u8], limit: impl Fn(&mut Limits)) -> Result<Work, String> {
    let mut options = ReadOptions::default();
    limit(&mut options.limits);
    let mut graph = Graph::read(file, None, &options).unwrap();
    let x = HostTensor::new(vec![3, 3], Numbers::Floats(vec![1.0; 9])).unwrap();
    let tried = graph.fuse(&[("x".to_owned(), x)]);
    tried.map_err(|error| error.to_string())
}

#[test]
fn what_a_trial_holds_at_once_and_how_much_it_computes_are_bounded() {
    // Some tensors of constants that are used at the end, as a single number of each.
    let constants = |count: usize, size: i64| {
        scaled(|mut model| {
            let one = Message::default().text(1, "value").integer(20, 4);
            let one = one.bytes(5, &integers("one", &[1], &[1]).0);
            model = model
                .value(integers("size", &[1], &[size]))
                .value(integers("first", &[1], &[0]));
            for n in 0..count {
                let made = node("ConstantOfShape", &["size"], &[&format!("c{n}")]).bytes(5, &one.0);
                model = model.node(made);
            }
            let mut sum = "x".to_owned();
            for n in 0..count {
                let [first, float, next] = ["f", "g", "s"].map(|kind| format!("{kind}{n}"));
                let cast = node("Cast", &[&first], &[&float]).bytes(5, &integer("to", 1).0);
                model = model
                    .node(node("Gather", &[&format!("c{n}"), "first"], &[&first]))
                    .node(cast)
                    .node(node("Add", &[&sum, &float], &[&next]));
                sum = next;
            }
            model.node(node("Identity", &[&sum], &["y"]))
        })
    };
    let bytes = |most: u64| move |limits: &mut Limits| limits.bytes = most;
    assert!(trial(&constants(10, 1 << 10), bytes(100 << 10)).is_ok());
    let told = trial(&constants(13, 1 << 10), bytes(100 << 10)).unwrap_err();
    assert!(
        told.contains("node `c12` (ConstantOfShape)") && told.contains("of memory at once"),
        "{told}"
    );
    // Integers of 512 MB each, none of which is made.
    let told = trial(&constants(10, 1 << 26), bytes(436 << 20)).unwrap_err();
    assert!(told.contains("node `c0`") && told.contains("457 MB"), "{told}");

    // A number that is repeated, and computed with.
    let repeated = |size: i64| {
        scaled(|mut model| {
            model = model
                .value(integers("size", &[3], &[size, 1, 1]))
                .value(integers("all", &[2], &[0, 1]));
            model = model.node(node("Expand", &["x", "size"], &["e0"]));
            for n in 0..6 {
                model = model.node(node("Exp", &[&format!("e{n}")], &[&format!("e{}", n + 1)]));
            }
            model.node(node("ReduceMean", &["e6", "all"], &["y"]))
        })
    };
    assert!(trial(&repeated(1 << 10), bytes(100 << 10)).is_ok());
    let told = trial(&repeated(1 << 26), |_| ()).unwrap_err();
    assert!(
        told.contains("node `e1` (Exp)") && told.contains("of memory at once"),
        "{told}"
    );
    // A backward pass needs six results of 1,024 x 3 numbers for each sample, and their mean; the trial says so.
    let work = work_of(&scaled(|mut model| {
        model = model
            .value(integers("size", &[3], &[1 << 10, 1, 1]))
            .value(integers("all", &[2], &[1, 2]));
        model = model.node(node("Expand", &["x", "size"], &["e"]));
        let turned = node("Transpose", &["e"], &["e0"]).bytes(5, &several("perm", &[1, 0, 2]).0);
        model = model.node(turned);
        for n in 0..6 {
            model = model.node(node("Exp", &[&format!("e{n}")], &[&format!("e{}", n + 1)]));
        }
        model.node(node("ReduceMean", &["e6", "all"], &["y"]))
    }));
    assert_eq!(work.bytes, 4 * (6 * 3 * 1024 + 1));
    let few = |limits: &mut Limits| limits.trial_elements = 60_000;
    let told = trial(&repeated(1 << 10), few).unwrap_err();
    assert!(
        told.contains("(Exp)") && told.contains("60000 elements"),
        "{told}"
    );

    let product = scaled(|model| {
        let model = model.value(floats("square", &[3, 3], &[0.5; 9]));
        model.node(node("MatMul", &["x", "square"], &["y"]))
    });
    let products = |most: u64| move |limits: &mut Limits| limits.trial_products = most;
    assert!(trial(&product, products(27)).is_ok());
    let told = trial(&product, products(26)).unwrap_err();
    assert!(
        told.contains("(MatMul)") && told.contains("26 multiplications"),
        "{told}"
    );
}

#[test]
fn types_are_checked() {
    let booleans = scaled(|model| {
        let model = model.value(tensor("mask", &[3], 9, &[1, 0, 1]));
        model.node(node("Add", &["x", "mask"], &["y"]))
    });
    expect(booleans, &["node `y` (Add)", "booleans"]);
    let mixed = scaled(|model| {
        let model = model
            .value(integers("one", &[1], &[1]))
            .value(floats("half", &[1], &[0.5]));
        model.node(node("Add", &["one", "half"], &["y"]))
    });
    expect(mixed, &["node `y` (Add)", "integers and floats"]);
    let shapes = scaled(|model| {
        let model = model.value(floats("two", &[2], &[1.0, 2.0]));
        model.node(node("Add", &["x", "two"], &["y"]))
    });
    expect(shapes, &["node `y` (Add)", "[2, 3] and [2]"]);
}

#[test]
fn what_is_more_than_data_is_refused() {
    let graph = Message::default().text(1, "body").bytes(6, &[]).integer(20, 5);
    let file = scaled(|model| model.node(node("Relu", &["x"], &["y"]).bytes(5, &graph.0)));
    expect(file, &["node `y` (Relu)", "`body`"]);
    let attribute = node("Relu", &["x"], &["y"]).bytes(5, &integer("speed", 1).0);
    expect(
        scaled(|model| model.node(attribute)),
        &["node `y` (Relu)", "`speed`"],
    );
    let wrong =
        node("Gather", &["x", "x"], &["y"]).bytes(5, &Message::default().text(1, "axis").float(2, 0.5).0);
    expect(
        scaled(|model| model.node(wrong)),
        &["node `y` (Gather)", "`axis`"],
    );
    let entry = Message::default().text(1, "location").text(2, "/etc/passwd");
    let elsewhere = Message::default().integer(1, 3).integer(2, 1).text(8, "stolen");
    let elsewhere = elsewhere.bytes(13, &entry.0).integer(14, 1);
    expect(
        scaled(|model| model.value(elsewhere)),
        &["`stolen`", "/etc/passwd"],
    );
    let functions = Message(scaled(|model| model)).bytes(25, &[]);
    expect(functions.0, &["functions"]);
}

#[test]
fn indices_and_targets_must_exist() {
    let file = scaled(|model| {
        let model = model.value(integers("row", &[1], &[7]));
        model.node(node("Gather", &["x", "row"], &["y"]))
    });
    expect(file, &["node `y` (Gather)", "index 7 into 2"]);
    let file = Model::default()
        .input("x", 1)
        .trained("w", &[3, 3], &[0.5; 9])
        .value(integers("classes", &[2], &[0, 3]))
        .node(node("MatMul", &["x", "w"], &["logits"]))
        .node(node("SoftmaxCrossEntropyLoss", &["logits", "classes"], &["loss"]))
        .file();
    expect(file, &["node `loss`", "target 3"]);
}

#[test]
fn indices_that_follow_from_floats_stay_within_the_axis() {
    let file = scaled(|model| {
        model
            .value(floats("far", &[3], &[1e9, f32::NAN, -7.0]))
            .node(node("Mul", &["w", "far"], &["places"]))
            .node(node("Gather", &["w", "places"], &["picked"]))
            .node(node("Mul", &["x", "picked"], &["y"]))
    });
    let graph = read(&file).unwrap();
    let device = Device::flex();
    let x = HostTensor::new(vec![2, 3], Numbers::Floats(vec![1.0; 6])).unwrap();
    let inputs = [("x".to_owned(), x)];
    let model = graph.model(&device).unwrap();
    let options = PassOptions::default();
    let loss = crate::common::number(graph.run(&model, &inputs, &device, options).unwrap().loss);
    // The last, the first, the first: 3, 1, 1 times 1, 2, 3.
    assert_eq!(loss, 8.0 / 3.0);
}

#[test]
fn a_graph_has_a_bounded_number_of_nodes_and_values() {
    let chain = |count: usize| {
        scaled(|mut model| {
            model = model.node(node("Relu", &["x"], &["y0"]));
            for n in 1..count {
                model = model.node(node("Relu", &[&format!("y{}", n - 1)], &[&format!("y{n}")]));
            }
            model.node(node("Identity", &[&format!("y{}", count - 1)], &["y"]))
        })
    };
    let mut options = ReadOptions::default();
    options.limits.nodes = 10;
    assert!(Graph::read(&chain(7), None, &options).is_ok());
    let said = Graph::read(&chain(8), None, &options).err().unwrap().to_string();
    assert!(said.contains("more than 10 nodes"), "{said}");
    options.limits.nodes = 100;
    options.limits.values = 12;
    let said = Graph::read(&chain(20), None, &options).err().unwrap().to_string();
    assert!(said.contains("more than 12 values"), "{said}");
    let said = read(&scaled(|model| {
        model.node(node("Relu", &["x"], &[&"y".repeat(2000)]))
    }));
    assert!(said.err().unwrap().to_string().contains("2000 bytes"));
}
