//! Training and evaluation, and files that were made for inference.

use crate::common::{fixture, floats, gradients, number};
use crate::files::{Model, floats as stored, integer, node, tensor};
use annulus_graph::{Graph, HostTensor, Numbers, PassOptions, ReadOptions, Role, read_tensors};
use burn::module::Module;
use burn::tensor::Device;

/// One affine batch norm and dropout, in a mode.
fn with_modes(training: bool) -> Vec<u8> {
    let norm = node("BatchNormalization", &["x", "g", "b", "m", "v"], &["n"]);
    let norm = norm.bytes(5, &integer("training_mode", i64::from(training)).0);
    Model::default()
        .input("x", 1)
        .trained("g", &[3], &[1.0; 3])
        .trained("b", &[3], &[0.0; 3])
        .value(stored("m", &[3], &[0.5; 3]))
        .value(stored("v", &[3], &[2.0; 3]))
        .value(stored("rate", &[], &[0.5]))
        .value(tensor("on", &[], 9, &[u8::from(training)]))
        .node(norm)
        .node(node("Dropout", &["n", "rate", "on"], &["d"]))
        .node(node("Mul", &["d", "d"], &["square"]))
        .node(node("ReduceMean", &["square"], &["loss"]).bytes(5, &integer("keepdims", 0).0))
        .file()
}

fn batch() -> [(String, HostTensor); 1] {
    let values = (0..24).map(|i| ((i * 7) % 11) as f32 * 0.3).collect();
    [(
        "x".to_owned(),
        HostTensor::new(vec![8, 3], Numbers::Floats(values)).unwrap(),
    )]
}

#[test]
fn a_file_for_inference_is_refused_unless_it_is_meant() {
    let file = with_modes(false);
    let said = Graph::read(&file, None, &ReadOptions::default())
        .err()
        .unwrap()
        .to_string();
    for words in [
        "node `n` (BatchNormalization)",
        "annulus.export",
        "training mode",
        "as_is=true",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let as_is = ReadOptions {
        as_is: true,
        ..ReadOptions::default()
    };
    let graph = Graph::read(&file, None, &as_is).unwrap();
    assert!(
        graph
            .parameters()
            .iter()
            .all(|parameter| parameter.role == Role::Trained)
    );
    let trained = Graph::read(&with_modes(true), None, &ReadOptions::default()).unwrap();
    let statistics = trained.parameters().iter().filter(|p| p.role != Role::Trained);
    let names: Vec<&str> = statistics.map(|parameter| &*parameter.name).collect();
    assert_eq!(names, ["m", "v"]);
}

#[test]
fn evaluation_uses_running_statistics_and_drops_nothing() {
    let graph = Graph::read(&with_modes(true), None, &ReadOptions::default()).unwrap();
    let device = Device::flex();
    let model = graph.model(&device).unwrap();
    let run = |training, dropout| {
        let options = PassOptions { training, dropout };
        let output = graph.run(&model, &batch(), &device, options).unwrap();
        (number(output.loss), output.statistics.len())
    };
    let values = floats(&batch()[0].1).to_vec();
    let normed = values.iter().map(|x| (x - 0.5).powi(2) / (2.0 + 1e-5));
    let expected = normed.sum::<f32>() / 24.0;
    let (evaluated, statistics) = run(false, Some(3));
    assert!((evaluated - expected).abs() < 1e-5, "{evaluated}, not {expected}");
    assert_eq!(statistics, 0);
    let (plain, statistics) = run(true, None);
    assert!((plain - 1.0).abs() < 1e-4, "{plain}");
    assert_eq!(statistics, 2);
    // The seed decides what is dropped.
    let dropped = run(true, Some(3)).0;
    assert_ne!(dropped, plain);
    assert_eq!(dropped, run(true, Some(3)).0);
    assert_ne!(dropped, run(true, Some(4)).0);
}

#[test]
fn weights_beside_the_model_take_precedence() {
    let file = fixture("mlp.annulus.onnx");
    let graph = Graph::read(&file, None, &ReadOptions::default()).unwrap();
    let views = graph.parameters().iter().map(|parameter| {
        let halved: Vec<u8> = floats(parameter.initial())
            .iter()
            .flat_map(|x| (x * 0.5).to_le_bytes())
            .collect();
        (parameter.name.clone(), parameter.shape().to_vec(), halved)
    });
    let views: Vec<_> = views.collect();
    let views = views.iter().map(|(name, shape, bytes)| {
        (
            name,
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap(),
        )
    });
    let weights = safetensors::serialize(views, None).unwrap();
    let halved = Graph::read(&file, Some(&weights), &ReadOptions::default()).unwrap();
    for (whole, half) in graph.parameters().iter().zip(halved.parameters()) {
        assert_eq!(whole.name, half.name);
        let expected: Vec<f32> = floats(whole.initial()).iter().map(|x| x * 0.5).collect();
        assert_eq!(floats(half.initial()), expected);
    }
    // Values of a wrong shape.
    let (name, bytes) = (graph.parameters()[0].name.clone(), [0u8; 4]);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &bytes).unwrap();
    let wrong = safetensors::serialize([(&name, view)], None).unwrap();
    let said = Graph::read(&file, Some(&wrong), &ReadOptions::default())
        .err()
        .unwrap()
        .to_string();
    assert!(said.contains(&name) && said.contains("another shape"), "{said}");
}

#[test]
fn a_module_keeps_its_names_and_values_between_modes() {
    let graph = Graph::read(&fixture("cnn.annulus.onnx"), None, &ReadOptions::default()).unwrap();
    let device = Device::flex().autodiff();
    let model = graph.model(&device).unwrap();
    let inputs = read_tensors(&fixture("cnn.safetensors")).unwrap();
    let inputs = inputs
        .into_iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("input.")?.to_owned(), value)));
    let inputs: Vec<_> = inputs.collect();
    let loss = |model: &_, device: &Device| {
        number(
            graph
                .run(model, &inputs, device, PassOptions::default())
                .unwrap()
                .loss
                .inner(),
        )
    };
    let trained = loss(&model, &device);
    let valid = model.valid();
    assert_eq!(loss(&valid, &Device::flex()), trained);
    let again = valid.train();
    let output = graph
        .run(&again, &inputs, &device, PassOptions::default())
        .unwrap();
    let tracked = output.loss.backward();
    assert!(
        gradients(&again, &tracked)
            .iter()
            .all(|(_, gradient)| gradient.is_some())
    );
    let names = graph.parameters().iter().map(|parameter| parameter.name.as_str());
    let visited = gradients(&again, &tracked);
    assert!(names.eq(visited.iter().map(|(name, _)| name.as_str())));
    let count: usize = graph
        .parameters()
        .iter()
        .map(|p| p.shape().iter().product::<usize>())
        .sum();
    assert_eq!(model.num_params(), count);
}
