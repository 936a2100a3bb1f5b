//! Attention by our kernels against attention that is spelled out, and the masks that models have.

use crate::common::{gpu, gradients, number};
use crate::files::{Model, constant, floats, integer, integers, node, several};
use annulus_graph::{Graph, HostTensor, Limits, Numbers, PassOptions, ReadOptions};
use burn::tensor::Device;

const WIDTH: usize = 4;
const HEADS: usize = 2;

/// Which keys queries see.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    All,
    /// Those that are no padding, which differ from sequence to sequence.
    Padding,
    /// Those that are not later.
    Causal,
    Both,
    /// Some, differently for each query.
    Some,
    /// Numbers that are added to the scores.
    Bias,
}

/// Queries, keys or values `[batch, heads, tokens, WIDTH]` of x.
fn heads(model: Model, name: &str, count: i64) -> Model {
    let width = WIDTH as i64 * count;
    let weights: Vec<f32> = (0..(WIDTH * HEADS) as i64 * width)
        .map(|i| (((i * 5 + name.len() as i64 * 3) % 11) as f32 - 5.0) * 0.1)
        .collect();
    let [weight, product, shape, rows] =
        ["w", "product", "shape", "rows"].map(|part| format!("{name} {part}"));
    model
        .trained(&weight, &[(WIDTH * HEADS) as i64, width], &weights)
        .node(node("MatMul", &["x", &weight], &[&product]))
        .node(constant(
            &shape,
            &integers("", &[4], &[0, 0, count, WIDTH as i64]),
        ))
        .node(node("Reshape", &[&product, &shape], &[&rows]))
        .node(node("Transpose", &[&rows], &[name]).bytes(5, &several("perm", &[0, 2, 1, 3]).0))
}

/// Adds the mask as the value `seen`, or the value `bias`.
fn masked(model: Model, mask: Mask, tokens: i64) -> Model {
    let number =
        |model: Model, name: &str, value: i64| model.node(constant(name, &integers("", &[], &[value])));
    let model = [
        ("zero", 0),
        ("one", 1),
        ("three", 3),
        ("four", 4),
        ("length", tokens),
    ]
    .into_iter()
    .fold(model, |model, (name, value)| number(model, name, value));
    // The numbers of keys in a row, those of queries in a column, and some sum of them.
    let model = model
        .node(node("Range", &["zero", "length", "one"], &["keys"]))
        .node(constant("column", &integers("", &[2], &[-1, 1])))
        .node(node("Reshape", &["keys", "column"], &["queries"]))
        .node(node("Mul", &["queries", "three"], &["tripled"]))
        .node(node("Add", &["tripled", "keys"], &["sums"]));
    let padding = |model: Model, name: &str| {
        // As exporters write it: for each query.
        model
            .node(node("Cast", &["m"], &["real"]).bytes(5, &integer("to", 9).0))
            .node(constant("between", &integers("", &[2], &[1, 2])))
            .node(node("Unsqueeze", &["real", "between"], &["row"]))
            .node(constant("whole", &integers("", &[4], &[1, 1, tokens, tokens])))
            .node(node("Expand", &["row", "whole"], &[name]))
    };
    let causal = |model: Model, name: &str| model.node(node("LessOrEqual", &["keys", "queries"], &[name]));
    let rest = |model: Model| model.node(node("Mod", &["sums", "four"], &["rest"]));
    match mask {
        Mask::All => model.node(node("GreaterOrEqual", &["sums", "zero"], &["seen"])),
        Mask::Padding => padding(model, "seen"),
        Mask::Causal => causal(model, "seen"),
        Mask::Both => {
            causal(padding(model, "own"), "earlier").node(node("And", &["own", "earlier"], &["seen"]))
        }
        Mask::Some => rest(model)
            .node(node("Equal", &["rest", "one"], &["hidden"]))
            .node(node("Not", &["hidden"], &["seen"])),
        Mask::Bias => rest(model)
            .node(node("Cast", &["rest"], &["floats"]).bytes(5, &integer("to", 1).0))
            .node(constant("third", &floats("", &[], &[0.3])))
            .node(node("Mul", &["floats", "third"], &["bias"])),
    }
}

/// A model whose only operation of weight is attention. `groups` heads of keys and values serve all heads.
fn file(mask: Mask, tokens: usize, groups: i64, spelled_out: bool) -> Vec<u8> {
    let model = Model::default().input("x", 1).input("m", 7);
    let model = heads(
        heads(heads(model, "q", HEADS as i64), "k0", groups),
        "v00",
        groups,
    );
    let each = HEADS as i64 / groups;
    let copied = |model: Model, from: &str, name: &str| {
        let [raised, copies] = ["raised", "copies"].map(|part| format!("{name} {part}"));
        model
            .node(node("Unsqueeze", &[from, "two"], &[&raised]))
            .node(node("Expand", &[&raised, "expanded"], &[&copies]))
            .node(node("Reshape", &[&copies, "joined"], &[name]))
    };
    let model = model
        .node(constant("two", &integers("", &[1], &[2])))
        .node(constant("expanded", &integers("", &[5], &[1, 1, each, 1, 1])))
        .node(constant(
            "joined",
            &integers("", &[4], &[-1, HEADS as i64, tokens as i64, WIDTH as i64]),
        ));
    let model = copied(copied(model, "k0", "k"), "v00", "v");
    let model = masked(model, mask, tokens as i64);
    let bias = mask == Mask::Bias;
    let model = match spelled_out {
        false => model.node(node(
            "Attention",
            &["q", "k", "v", if bias { "bias" } else { "seen" }],
            &["y"],
        )),
        true => {
            let model = match bias {
                true => model,
                false => model
                    .node(constant("nothing", &floats("", &[], &[0.0])))
                    .node(constant("much", &floats("", &[], &[-1e30])))
                    .node(node("Where", &["seen", "nothing", "much"], &["bias"])),
            };
            model
                .node(node("Transpose", &["k"], &["turned"]).bytes(5, &several("perm", &[0, 1, 3, 2]).0))
                .node(node("MatMul", &["q", "turned"], &["products"]))
                .node(constant("scale", &floats("", &[], &[0.5])))
                .node(node("Mul", &["products", "scale"], &["scores"]))
                .node(node("Add", &["scores", "bias"], &["biased"]))
                .node(node("Softmax", &["biased"], &["shares"]).bytes(5, &integer("axis", -1).0))
                .node(node("MatMul", &["shares", "v"], &["y"]))
        }
    };
    model
        .node(node("Mul", &["y", "y"], &["square"]))
        .node(node("ReduceMean", &["square"], &["loss"]).bytes(5, &integer("keepdims", 0).0))
        .file()
}

/// Three sequences of numbers, of which the later ones are shorter.
fn batch(tokens: usize) -> [(String, HostTensor); 2] {
    let columns = WIDTH * HEADS;
    let x = (0..3 * tokens * columns).map(|i| ((i * 7) % 13) as f32 * 0.25 - 1.5);
    let m = (0..3 * tokens).map(|i| i64::from(i % tokens < tokens - i / tokens));
    let x = HostTensor::new(vec![3, tokens, columns], Numbers::Floats(x.collect())).unwrap();
    let m = HostTensor::new(vec![3, tokens], Numbers::Integers(m.collect())).unwrap();
    [("x".to_owned(), x), ("m".to_owned(), m)]
}

/// The loss and all gradients.
fn run(graph: &Graph, tokens: usize, device: &Device) -> Vec<f32> {
    let model = graph.model(device).unwrap();
    let output = graph
        .run(&model, &batch(tokens), device, PassOptions::default())
        .unwrap();
    let tracked = output.loss.backward();
    let slopes = gradients(&model, &tracked)
        .into_iter()
        .flat_map(|(_, slopes)| slopes.unwrap());
    [number(output.loss.inner())].into_iter().chain(slopes).collect()
}

#[test]
fn all_masks_and_groups_give_what_the_spelled_out_form_gives() {
    let tokens = 6;
    let devices = [Some(Device::flex()), gpu()].into_iter().flatten();
    let devices: Vec<Device> = devices.map(Device::autodiff).collect();
    for mask in [
        Mask::All,
        Mask::Padding,
        Mask::Causal,
        Mask::Both,
        Mask::Some,
        Mask::Bias,
    ] {
        for groups in [1, 2] {
            let read = |spelled_out| {
                let file = file(mask, tokens, groups, spelled_out);
                Graph::read(&file, None, &ReadOptions::default()).unwrap()
            };
            let expected = run(&read(true), tokens, &devices[0]);
            let mut graph = read(false);
            let unfused = run(&graph, tokens, &devices[0]);
            graph.fuse(&batch(tokens)).unwrap();
            let copies = graph.operations().iter().filter(|own| **own == "Expand").count();
            let of_mask = usize::from(matches!(mask, Mask::Padding | Mask::Both));
            assert_eq!(
                copies,
                of_mask,
                "keys are copied for heads: {:?}",
                graph.operations()
            );
            let fused = devices.iter().map(|device| run(&graph, tokens, device));
            for found in [unfused].into_iter().chain(fused) {
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    let off = (found - expected).abs();
                    assert!(
                        off <= 2e-5 * expected.abs().max(1.0),
                        "{mask:?}, {groups} groups: {found}, not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn no_tensor_of_tokens_by_tokens_is_made_on_the_device() {
    let tokens = 64;
    let limits = Limits {
        // The input; scores have 24,576 elements, and a mask for each query 4,096 or more.
        elements: 3 * tokens * WIDTH * HEADS,
        ..Limits::default()
    };
    let options = ReadOptions {
        limits,
        ..ReadOptions::default()
    };
    let device = Device::flex();
    let runs = |mask, spelled_out| {
        let graph = Graph::read(&file(mask, tokens, 2, spelled_out), None, &options).unwrap();
        let model = graph.model(&device).unwrap();
        let inputs = batch(tokens);
        let pass = || graph.run(&model, &inputs, &device, PassOptions::default());
        // The second pass runs the plan that the first one made.
        pass().and_then(|_| pass())
    };
    for mask in [Mask::All, Mask::Padding, Mask::Causal, Mask::Both] {
        runs(mask, false).unwrap_or_else(|error| panic!("{mask:?}: {error}"));
    }
    for (mask, spelled_out) in [(Mask::All, true), (Mask::Some, false)] {
        let said = runs(mask, spelled_out).err().unwrap().to_string();
        assert!(said.contains("64, 64]"), "{said}");
    }
}

#[test]
fn a_query_that_sees_nothing_gets_nothing() {
    let tokens = 4;
    let mut inputs = batch(tokens);
    inputs[1].1 = HostTensor::new(vec![3, tokens], Numbers::Integers(vec![0; 3 * tokens])).unwrap();
    let graph = Graph::read(
        &file(Mask::Padding, tokens, 2, false),
        None,
        &ReadOptions::default(),
    )
    .unwrap();
    let device = Device::flex();
    let model = graph.model(&device).unwrap();
    let output = graph
        .run(&model, &inputs, &device, PassOptions::default())
        .unwrap();
    assert_eq!(number(output.loss), 0.0);
}
