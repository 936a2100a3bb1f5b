//! Files with other values written into them.

use crate::common::{fixture, floats, number};
use crate::files::{Message, Model, floats as stored, integer, node, tensor};
use annulus_graph::{Graph, HostTensor, Numbers, PassOptions, ReadOptions, read_tensors, with_values};
use burn::tensor::Device;
use safetensors::tensor::{Dtype, TensorView};

fn read(file: &[u8], weights: Option<&[u8]>) -> Graph {
    Graph::read(file, weights, &ReadOptions::default()).unwrap()
}

fn loss(graph: &Graph, inputs: &[(String, HostTensor)]) -> f32 {
    let device = Device::flex();
    let model = graph.model(&device).unwrap();
    number(
        graph
            .run(&model, inputs, &device, PassOptions::default())
            .unwrap()
            .loss,
    )
}

#[test]
fn a_model_takes_up_what_it_was_trained_to() {
    for name in ["mlp", "cnn", "tabular"] {
        let file = fixture(&format!("{name}.annulus.onnx"));
        let mut graph = read(&file, None);
        let trained: Vec<(String, HostTensor)> = graph
            .parameters()
            .iter()
            .map(|own| {
                let values = floats(own.initial()).iter().map(|x| 0.75 * x + 0.1).collect();
                let tensor = HostTensor::new(own.shape().to_vec(), Numbers::Floats(values));
                (own.name.clone(), tensor.unwrap())
            })
            .collect();
        let value = |name: &str| {
            let found = trained.iter().find(|(own, _)| own == name);
            found.map(|(_, tensor)| floats(tensor))
        };
        let written = with_values(&file, None, value).unwrap();
        graph.start_from(&trained).unwrap();
        let again = read(&written, None);
        for (own, other) in graph.parameters().iter().zip(again.parameters()) {
            assert_eq!((&own.name, own.initial()), (&other.name, other.initial()));
            assert_eq!(own.role, other.role);
        }
        // Other programs know these layers, too.
        let operations = again.operations();
        assert!(!operations.contains(&"Linear") && !operations.contains(&"Swish"));
        let batch = fixture(&format!("{name}.safetensors"));
        let batch = read_tensors(&batch).unwrap().into_iter();
        let batch = batch.filter_map(|(name, value)| Some((name.strip_prefix("input.")?.to_owned(), value)));
        let batch: Vec<_> = batch.collect();
        let (expected, found) = (loss(&graph, &batch), loss(&again, &batch));
        assert!(
            (expected - found).abs() < 1e-5 * expected.abs(),
            "{name}: {found}, not {expected}"
        );
        // Writing the same again changes nothing.
        assert_eq!(with_values(&written, None, value).unwrap(), written);
    }
}

/// A model of a half that is trained, a constant beside it, and an input that stands for a tensor beside it.
fn with_weights_beside() -> (Vec<u8>, Vec<u8>) {
    let beside = Message::default().integer(1, 3).integer(2, 1).text(8, "beside");
    let place = Message::default()
        .text(1, "location")
        .text(2, "weights.safetensors");
    let beside = beside.bytes(13, &place.0).integer(14, 1);
    let file = Model::default()
        .input("x", 1)
        .input("frozen", 1)
        .value(tensor("half", &[3], 10, &[0, 0x3c].repeat(3)))
        .value(beside)
        .trained("w", &[3], &[1.0, 2.0, 3.0])
        .node(node("Mul", &["x", "half"], &["a"]))
        .node(node("Mul", &["a", "beside"], &["b"]))
        .node(node("Mul", &["b", "frozen"], &["c"]))
        .node(node("Mul", &["c", "w"], &["d"]))
        .node(node("ReduceMean", &["d"], &["loss"]).bytes(5, &integer("keepdims", 0).0))
        .file();
    let (two, three) = ([2.0f32; 3], [3.0f32; 3]);
    let view = |values: &'static [u8]| TensorView::new(Dtype::F32, vec![3], values).unwrap();
    let bytes = |values: [f32; 3]| &*values.map(f32::to_le_bytes).concat().leak();
    let views = [("beside", view(bytes(two))), ("frozen", view(bytes(three)))];
    (file, safetensors::serialize(views, None).unwrap())
}

#[test]
fn tensors_beside_the_model_come_into_it_in_their_own_type() {
    let (file, weights) = with_weights_beside();
    let given = [("half", [0.5f32; 3]), ("w", [1.0; 3])];
    let value = |name: &str| {
        given
            .iter()
            .find(|(own, _)| *own == name)
            .map(|(_, values)| &values[..])
    };
    let written = with_values(&file, Some(&weights), value).unwrap();
    let graph = read(&written, None);
    assert_eq!(graph.inputs().len(), 1);
    let x = HostTensor::new(vec![2, 3], Numbers::Floats(vec![1.0; 6])).unwrap();
    assert_eq!(loss(&graph, &[("x".to_owned(), x)]), 0.5 * 2.0 * 3.0);
    // Half of one, as a half.
    let half = tensor("half", &[3], 10, &[0, 0x38].repeat(3)).0;
    assert!(written.windows(half.len()).any(|bytes| bytes == half));

    let said = with_values(&file, None, value).unwrap_err().to_string();
    assert!(said.contains("`beside` is missing"), "{said}");
    let said = with_values(&file, Some(&weights), |_| Some(&[1.0]))
        .unwrap_err()
        .to_string();
    assert!(said.contains("1 elements do not make the shape [3]"), "{said}");
    let said = with_values(&file[..40], None, value).unwrap_err().to_string();
    assert!(said.contains("cannot read the ONNX model"), "{said}");
}

#[test]
fn a_linear_layer_keeps_its_bias_and_its_residual() {
    let layer = |inputs: &[&str], y: &str, outputs_first: i64| {
        let layer = node("Linear", inputs, &[y]).text(7, "annulus");
        layer.bytes(5, &integer("outputs_first", outputs_first).0)
    };
    let file = Model::default()
        .input("x", 1)
        .trained("w", &[3, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
        .value(stored("b", &[3], &[0.5, -1.0, 2.0]))
        .node(layer(&["x", "w", "b", "x"], "p", 1))
        .node(layer(&["p", "w", "", "x"], "q", 0))
        .node(layer(&["q", "w"], "r", 0))
        .node(node("ReduceMean", &["r"], &["loss"]).bytes(5, &integer("keepdims", 0).0))
        .file();
    let written = with_values(&file, None, |_| None).unwrap();
    let x = HostTensor::new(vec![2, 3], Numbers::Floats(vec![1.0, -2.0, 3.0, 0.5, 0.25, -1.0])).unwrap();
    let batch = [("x".to_owned(), x)];
    let [expected, found] = [&file, &written].map(|file| loss(&read(file, None), &batch));
    assert!(
        (expected - found).abs() < 1e-6 * expected.abs(),
        "{found}, not {expected}"
    );
    assert!(!read(&written, None).operations().contains(&"Linear"));
}
