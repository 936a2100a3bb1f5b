//! The task on small models that PyTorch's package has exported.

#[expect(dead_code, reason = "the other tests of models need more of it")]
#[path = "../../../../graph/tests/models/files.rs"]
mod files;

use super::*;
use crate::device::OpenDevice;
use crate::task::Dataset;
use crate::tasks::gpt::windows::Tokens;
use crate::tasks::gpt::{Gpt, GptConfig};
use crate::trainer::span::ModelSteps;
use crate::trainer::{Trainer, TrainerOptions, Worker};
use annulus_core::{TensorRule, TensorSpec};
use annulus_graph::{HostTensor, NamedGradient, Numbers, ReadOptions, named_gradients};
use bytes::Bytes;
use files::{Message, Model, constant, integer, integers, node, several};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use samples::HeldOutBy;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../graph/tests/fixtures");
    std::fs::read(folder.join(name)).unwrap()
}

/// The samples of a fixture, several times over, as a folder has them.
fn samples(name: &str, times: usize) -> Vec<u8> {
    let file = fixture(&format!("{name}.safetensors"));
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let inputs = tensors.iter().filter_map(|(name, view)| {
        let mut shape = view.shape().to_vec();
        shape[0] *= times;
        Some((
            name.strip_prefix("input.")?.to_owned(),
            view.dtype(),
            shape,
            view.data().repeat(times),
        ))
    });
    let inputs: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = inputs.collect();
    let views = inputs
        .iter()
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

fn folder(name: &str, times: usize) -> Data {
    let files = [
        (MODEL, fixture(&format!("{name}.annulus.onnx"))),
        (SAMPLES, samples(name, times)),
    ];
    Data::folder_in_memory(
        files
            .map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes)))
            .to_vec(),
    )
}

fn told(result: Result<ModelFile, TaskError>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn a_model_is_trained_and_evaluated_on_its_own_samples() {
    let task = ModelFile::new(ModelFileConfig::default(), Some(&folder("mlp", 10))).unwrap();
    let (trained, held_out) = (task.dataset().len() as usize, task.samples.held_out());
    assert_eq!(held_out, (trained + held_out) / 10);
    let device = Device::flex();
    let model = task.model(&device.clone().autodiff());
    let batch = task.dataset().batch(&[0, 3, 1]);
    let loss = task.loss(&model, batch, &device.clone().autodiff());
    assert!(loss.is_tracked());
    let scores = task.evaluate(&model.valid(), &device).unwrap();
    // The file has no output of logits, from which accuracy follows.
    assert!(scores.metrics.is_empty());
    assert!(scores.loss.into_scalar::<f32>().is_finite());
    let none = ModelFileConfig {
        held_out: 0.0,
        ..ModelFileConfig::default()
    };
    let task = ModelFile::new(none, Some(&folder("mlp", 1))).unwrap();
    assert!(task.evaluate(&model.valid(), &device).is_none());
}

#[test]
fn streamed_samples_are_those_of_the_file_in_its_order() {
    // Enough for four chunks.
    let times = (16 << 20) / samples("mlp", 1).len() + 1;
    let data = folder("mlp", times);
    let of = |stream: bool, held_out_by: HeldOutBy| {
        let config = ModelFileConfig {
            stream,
            held_out_by,
            ..ModelFileConfig::default()
        };
        ModelFile::new(config, Some(&data)).unwrap()
    };
    let (streamed, held) = (of(true, HeldOutBy::Draw), of(false, HeldOutBy::Last));
    let (rows, all) = (streamed.dataset(), held.dataset());
    assert_eq!((rows.len(), rows.held_out()), (all.len(), all.held_out()));
    assert!(rows.chunk().get() > 1 && all.chunk() == NonZeroU32::MIN && rows.digest() != all.digest());
    let some = [0, 5, rows.len() / 2, rows.len() - 1];
    let (from_file, from_memory) = (rows.batch(&some), all.batch(&some));
    assert_eq!(
        (from_file.inputs, from_file.seed),
        (from_memory.inputs, from_memory.seed)
    );
    assert_eq!((rows.row(7), rows.intact().is_ok()), (7, true));
    assert!(rows.have(&[], Duration::ZERO) && streamed.have_held_out(Duration::ZERO));
    assert!(streamed.description().ends_with("held out, the last ones"));
    let device = Device::flex();
    let model = streamed.model(&device.clone().autodiff());
    let scores = streamed.evaluate(&model.valid(), &device).unwrap();
    assert!(scores.loss.into_scalar::<f32>().is_finite());
    let config = ModelFileConfig {
        stream: true,
        ..ModelFileConfig::default()
    };
    let few = told(ModelFile::new(config, Some(&folder("mlp", 10))));
    assert!(few.contains("many megabytes"), "{few}");
}

#[test]
fn a_model_is_read_within_the_memory_that_its_user_allows() {
    let config = ModelFileConfig::default;
    assert!(ModelFile::new(config(), Some(&folder("mlp", 1).within(Some(1 << 20)))).is_ok());
    let told = told(ModelFile::new(config(), Some(&folder("mlp", 1).within(Some(50)))));
    assert!(told.contains("of memory at once"), "{told}");
}

#[test]
fn the_memory_of_a_batch_grows_with_its_samples() {
    let task = ModelFile::new(ModelFileConfig::default(), Some(&folder("mlp", 1))).unwrap();
    assert!(task.pass_bytes(1) > 0);
    assert_eq!(task.pass_bytes(64), 64 * task.pass_bytes(1));
}

#[test]
fn the_seed_of_dropout_follows_from_the_samples() {
    let task = ModelFile::new(ModelFileConfig::default(), Some(&folder("mlp", 1))).unwrap();
    let device = Device::flex().autodiff();
    let model = task.model(&device);
    let loss = |samples: &[u64]| {
        let batch = task.dataset().batch(samples);
        task.loss(&model, batch, &device).inner().into_scalar::<f32>()
    };
    assert_eq!(loss(&[1, 2]), loss(&[1, 2]));
    let batch = task.dataset().batch(&[1, 2]);
    let other = Batch {
        seed: batch.seed + 1,
        ..batch
    };
    assert_ne!(
        task.loss(&model, other, &device).inner().into_scalar::<f32>(),
        loss(&[1, 2])
    );
    assert_eq!(task.pieces(1_000_000), 1);
    assert!(task.draws());
}

#[test]
fn what_is_missing_or_cannot_be_shared_is_told() {
    let config = ModelFileConfig::default();
    assert!(told(ModelFile::new(config.clone(), None)).contains("--data FOLDER"));
    let empty = Data::folder_in_memory(Vec::new());
    assert!(told(ModelFile::new(config.clone(), Some(&empty))).contains("no model.onnx"));
    let without = [(MODEL.to_owned(), Bytes::from(fixture("mlp.annulus.onnx")))];
    let without = Data::folder_in_memory(without.to_vec());
    assert!(told(ModelFile::new(config.clone(), Some(&without))).contains("no samples.safetensors"));
    let mixed = [
        (MODEL, fixture("mlp.annulus.onnx")),
        (SAMPLES, samples("tabular", 1)),
    ];
    let mixed = mixed.map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes)));
    let said = told(ModelFile::new(
        config,
        Some(&Data::folder_in_memory(mixed.to_vec())),
    ));
    assert!(said.contains("no `x`"), "{said}");
}

#[test]
fn the_digest_covers_the_model_and_the_samples() {
    let config = ModelFileConfig::default;
    let digest = |data: &Data| ModelFile::new(config(), Some(data)).unwrap().dataset().digest();
    let first = digest(&folder("mlp", 2));
    assert_eq!(digest(&folder("mlp", 2)), first);
    assert_ne!(digest(&folder("mlp", 3)), first);
    assert_ne!(digest(&folder("cnn", 2)), first);
}

fn floats(tensor: &Tensor<1>) -> Vec<f32> {
    tensor.to_data().try_to_vec::<f32>().unwrap()
}

/// A node of our own domain.
fn ours(operation: &str, inputs: &[&str], output: &str) -> Message {
    node(operation, inputs, &[output]).text(7, "annulus")
}

/// A block of nanoGPT as an exporter spells it out, from `x` to `{block}.out`.
fn block(mut model: Model, block: &str, x: &str) -> Model {
    let name = |part: &str| format!("{block}.{part}");
    let add = |model: Model, operation: &str, inputs: &[&str], output: &str| {
        let inputs: Vec<String> = inputs
            .iter()
            .map(|own| if *own == x { x.to_owned() } else { name(own) })
            .collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        model.node(match operation {
            "Linear" => ours(operation, &inputs, &name(output)),
            _ => node(operation, &inputs, &[&name(output)]),
        })
    };
    model = add(model, "LayerNormalization", &[x, "norm_1.gamma"], "n1");
    model = add(model, "Linear", &["n1", "attention.qkv.weight"], "qkv");
    let thirds = ["q", "k", "v"].map(name);
    let split = node(
        "Split",
        &[&name("qkv"), "thirds"],
        &thirds.each_ref().map(String::as_str),
    );
    model = model.node(split.bytes(5, &integer("axis", 2).0));
    let order = several("perm", &[0, 2, 1, 3]);
    for part in &thirds {
        let (rows, turned) = (format!("{part}.rows"), format!("{part}.heads"));
        model = model.node(node("Reshape", &[part, "to_heads"], &[&rows]));
        model = model.node(node("Transpose", &[&rows], &[&turned]).bytes(5, &order.0));
    }
    let attention = node(
        "Attention",
        &[&name("q.heads"), &name("k.heads"), &name("v.heads")],
        &[&name("y")],
    );
    model = model.node(attention.bytes(5, &integer("is_causal", 1).0));
    model = model.node(node("Transpose", &[&name("y")], &[&name("y.turned")]).bytes(5, &order.0));
    model = model.node(node(
        "Reshape",
        &[&name("y.turned"), "to_rows"],
        &[&name("y.rows")],
    ));
    model = add(
        model,
        "Linear",
        &["y.rows", "attention.output.weight"],
        "attended",
    );
    model = add(model, "Add", &[x, "attended"], "x1");
    model = add(model, "LayerNormalization", &["x1", "norm_2.gamma"], "n2");
    model = add(model, "Linear", &["n2", "mlp.up.weight"], "up");
    model = add(model, "Gelu", &["up"], "active");
    model = add(model, "Linear", &["active", "mlp.down.weight"], "down");
    add(model, "Add", &["x1", "down"], "out")
}

/// A model of the task `gpt`, as an exporter spells it out. The inputs are `x` and `y`, the tokens and those that follow.
fn language_model(config: &GptConfig, parameters: &[NamedGradient]) -> Vec<u8> {
    let &GptConfig {
        layers,
        heads,
        width,
        context,
        ..
    } = config;
    let mut model = Model::default().input("x", 7).input("y", 7);
    for own in parameters {
        let shape: Vec<i64> = own.shape.iter().map(|n| *n as i64).collect();
        model = model.trained(&own.name, &shape, &floats(&own.value));
    }
    let (h, w, c) = (heads as i64, width as i64, context as i64);
    for (name, values) in [
        ("thirds", vec![w, w, w]),
        ("to_heads", vec![0, 0, h, w / h]),
        ("to_rows", vec![0, 0, w]),
        ("flat", vec![-1]),
    ] {
        model = model.node(constant(name, &integers("", &[values.len() as i64], &values)));
    }
    for (name, value) in [("zero", 0), ("one", 1), ("length", c)] {
        model = model.node(constant(name, &integers("", &[], &[value])));
    }
    model = model
        .node(node("Range", &["zero", "length", "one"], &["places"]))
        .node(node("Gather", &["tokens.weight", "x"], &["rows"]))
        .node(node("Gather", &["positions.weight", "places"], &["positions"]))
        .node(node("Add", &["rows", "positions"], &["x0"]));
    let mut x = "x0".to_owned();
    for layer in 0..layers {
        let own = format!("blocks.{layer}");
        model = block(model, &own, &x);
        x = format!("{own}.out");
    }
    let scores = ours("Linear", &["features", "tokens.weight"], "scores");
    model
        .node(node("LayerNormalization", &[&x, "norm.gamma"], &["features"]))
        .node(scores.bytes(5, &integer("outputs_first", 1).0))
        .node(constant("to_logits", &integers("", &[2], &[-1, 256])))
        .node(node("Reshape", &["scores", "to_logits"], &["logits"]))
        .node(node("Reshape", &["y", "flat"], &["classes"]))
        .node(node("SoftmaxCrossEntropyLoss", &["logits", "classes"], &["loss"]))
        .file()
}

#[test]
fn a_language_model_as_a_graph_has_the_bits_of_the_task_gpt() {
    let (layers, heads, width, context) = (2, 2, 16, 12);
    let config = GptConfig {
        layers,
        heads,
        width,
        context,
        ..GptConfig::default()
    };
    let task = Gpt::new(config.clone(), None).unwrap();
    let device = Device::flex().autodiff();
    device.seed(5);
    let transformer = task.model(&device);
    let batch = task.dataset().batch(&[3, 70, 500, 9]);
    let Tokens {
        inputs,
        targets,
        windows,
    } = batch.clone();
    let loss = task.loss(&transformer, batch, &device);
    let gradients = loss.backward();
    let expected = named_gradients(&transformer, &gradients);

    let file = language_model(&config, &expected);
    let mut graph = Graph::read(&file, None, &ReadOptions::default()).unwrap();
    let ids = |ids: Vec<i32>| {
        let ids = ids.into_iter().map(i64::from).collect();
        HostTensor::new(vec![windows, context], Numbers::Integers(ids)).unwrap()
    };
    let inputs = [("x".to_owned(), ids(inputs)), ("y".to_owned(), ids(targets))];
    graph.fuse(&inputs).unwrap();
    let operations = graph.operations();
    for (kind, count) in [
        ("EmbeddingAt", 1),
        ("PackedAttention", layers),
        ("Mlp", layers),
        ("Add", 0),
        ("Gelu", 0),
    ] {
        let found = operations.iter().filter(|own| **own == kind).count();
        assert_eq!(found, count, "{kind} in {operations:?}");
    }
    let model = graph.model(&device).unwrap();
    let output = graph
        .run(&model, &inputs, &device, PassOptions::default())
        .unwrap();
    let gradients = output.loss.backward();
    let bits = |loss: Tensor<1>| loss.inner().into_scalar::<f32>().to_bits();
    assert_eq!(bits(output.loss), bits(loss));
    let found = named_gradients(&model, &gradients);
    assert_eq!(found.len(), expected.len());
    for (own, expected) in found.iter().zip(&expected) {
        assert_eq!((&own.name, &own.shape), (&expected.name, &expected.shape));
        let [own_bits, bits] = [own, expected].map(|one| {
            let gradient = floats(one.gradient.as_ref().expect("a gradient"));
            gradient.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        });
        assert!(own_bits == bits, "the gradient of {} differs", own.name);
    }
}

#[test]
fn inner_steps_need_the_model_and_no_samples() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/fixtures/nanogpt");
    let bytes = |name: &str| Bytes::from(std::fs::read(folder.join(name)).unwrap());
    let file = |name: &str| (name.to_owned(), bytes(name));
    let config = ModelFileConfig::default;
    let all = Data::folder_in_memory(vec![file(MODEL), file(WEIGHTS), file(SAMPLES)]);
    let whole = ModelFile::new(config(), Some(&all)).unwrap();
    let model = ModelSteps::of(&whole, 1).unwrap();
    let needs = ModelFile::INNER.unwrap();
    assert_eq!([MODEL, WEIGHTS, SAMPLES].map(needs), [true, true, false]);
    let some = Data::folder_in_memory(vec![file(MODEL), file(WEIGHTS)]);
    let inner = ModelFile::inner(config(), &model.layout, Some(&some)).unwrap();
    assert!(ModelSteps::of(&inner, 1).unwrap() == model);

    // A file that does not tell the shapes of a sample.
    let scores = ours("Linear", &["x", "w"], "scores");
    let shapeless = Model::default()
        .input("x", 1)
        .trained("w", &[2, 1], &[0.0; 2])
        .node(scores)
        .node(node("ReduceMean", &["scores"], &["loss"]).bytes(5, &integer("keepdims", 0).0))
        .file();
    let some = Data::folder_in_memory(vec![(MODEL.to_owned(), Bytes::from(shapeless))]);
    let said = told(ModelFile::inner(config(), &model.layout, Some(&some)));
    assert!(
        said.contains("the input `x` has axes whose length the file does not tell"),
        "{said}"
    );
}

/// Two workers with nanoGPT's setting for processors, and the samples of a batch of 12 windows of 64 tokens: the task, and the
/// same model as a graph.
fn both_ways() -> [(Box<dyn Worker>, Vec<u64>); 2] {
    let config = GptConfig {
        layers: 4,
        heads: 4,
        width: 128,
        context: 64,
        ..GptConfig::default()
    };
    let task = Gpt::new(config.clone(), None).unwrap();
    let device = Device::flex().autodiff();
    let transformer = task.model(&device);
    let starts: Vec<u64> = (0..12).map(|number| number * 101).collect();
    let batch = task.dataset().batch(&starts);
    let loss = task.loss(&transformer, batch.clone(), &device);
    let file = language_model(&config, &named_gradients(&transformer, &loss.backward()));
    let ids = [("x", batch.inputs), ("y", batch.targets)].map(|(name, ids)| {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
        (name, bytes)
    });
    let views = ids
        .iter()
        .map(|(name, bytes)| (name, TensorView::new(Dtype::I64, vec![12, 64], bytes).unwrap()));
    let files = [
        (MODEL, file),
        (SAMPLES, safetensors::serialize(views, None).unwrap()),
    ];
    let files = files.map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes)));
    let all = ModelFileConfig {
        held_out: 0.0,
        ..ModelFileConfig::default()
    };
    let graph = ModelFile::new(all, Some(&Data::folder_in_memory(files.to_vec()))).unwrap();

    let (cpu, options) = (OpenDevice::cpu(), TrainerOptions::default());
    let by_task = Trainer::new(Arc::new(task), &cpu, options).unwrap();
    let by_graph = Trainer::new(Arc::new(graph), &cpu, options).unwrap();
    [
        (Box::new(by_task) as Box<dyn Worker>, starts),
        (Box::new(by_graph), (0..12).collect()),
    ]
}

#[test]
fn a_contribution_of_a_graph_has_the_bits_of_the_task_s() {
    let [(mut by_task, starts), (mut by_graph, numbers)] = both_ways();
    let names = |worker: &dyn Worker| -> Vec<String> {
        let tensors = worker.layout().tensors.iter();
        tensors.map(|tensor| tensor.name.clone()).collect()
    };
    assert_eq!(names(&*by_task), names(&*by_graph));
    let params = by_task.init();
    let task = by_task.contribute(params.clone(), &starts).unwrap();
    let graph = by_graph.contribute(params, &numbers).unwrap();
    assert_eq!(task.loss_sum.to_bits(), graph.loss_sum.to_bits());
    let bits = |gradient: &[f32]| gradient.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let differ = bits(&task.gradient)
        .iter()
        .zip(bits(&graph.gradient))
        .filter(|(a, b)| *a != b)
        .count();
    assert_eq!(differ, 0, "of {} numbers", task.gradient.len());
}

/// As peers compute it. Run it alone, with `--ignored --nocapture time_of_a_step`.
#[test]
#[ignore = "a measurement"]
fn time_of_a_step_as_a_graph_and_as_the_task() {
    let mut both = both_ways();
    let params = both[0].0.init();
    let mut seconds = [Vec::new(), Vec::new()];
    for turn in 0..40 {
        for (seconds, (worker, samples)) in seconds.iter_mut().zip(&mut both) {
            let before = Instant::now();
            for _ in 0..5 {
                let made = worker.contribute(params.clone(), samples).unwrap();
                assert_eq!(made.samples, 12);
            }
            // The first turns warm up.
            if turn >= 5 {
                seconds.push(before.elapsed().as_secs_f64() / 5.0);
            }
        }
    }
    let mut ratios: Vec<f64> = seconds[1]
        .iter()
        .zip(&seconds[0])
        .map(|(graph, task)| graph / task)
        .collect();
    let [by_task, by_graph] = seconds.map(|mut all| median(&mut all) * 1e3);
    let ratio = median(&mut ratios);
    println!(
        "the task {by_task:.2} ms, as a graph {by_graph:.2} ms; a turn's ratio: median {ratio:.3}, quartiles {:.3} and {:.3}",
        ratios[ratios.len() / 4],
        ratios[3 * ratios.len() / 4],
    );
}

/// Sorts the numbers.
fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// All samples of a folder as one worker's share, and what the running statistics are after a round of it.
fn after_a_round(data: &Data, micro_batch: usize) -> Vec<(String, Vec<f32>)> {
    let config = ModelFileConfig {
        held_out: 0.0,
        ..ModelFileConfig::default()
    };
    let task = Arc::new(ModelFile::new(config, Some(data)).unwrap());
    let samples: Vec<u64> = (0..task.dataset().len()).collect();
    let options = TrainerOptions { seed: 0, micro_batch };
    let mut trainer = Trainer::new(task, &OpenDevice::cpu(), options).unwrap();
    let params = trainer.init();
    let made = trainer.contribute(params.clone(), &samples).unwrap();
    assert_eq!(made.samples as usize, samples.len());
    let follow = trainer.layout().tensors.iter().filter_map(|tensor| {
        let TensorRule::Mean { rate } = tensor.rule else {
            return None;
        };
        let own = tensor.offset..tensor.offset + tensor.len();
        let ways = made.gradient[own.clone()].iter();
        let moved = params[own].iter().zip(ways);
        let moved = moved.map(|(value, way)| value + rate * way / samples.len() as f32);
        Some((tensor.name.clone(), moved.collect()))
    });
    follow.collect()
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5, "{found}, not {expected}");
    }
}

#[test]
fn a_file_may_say_what_decays() {
    let tensors = |decayed: Option<&str>| {
        let mut model = fixture("mlp.annulus.onnx");
        if let Some(names) = decayed {
            let entry = Message::default().text(1, "annulus.decayed").text(2, names);
            model.extend(Message::default().bytes(14, &entry.0).0);
        }
        let files = [(MODEL, model), (SAMPLES, samples("mlp", 1))];
        let files = files.map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes)));
        let data = Data::folder_in_memory(files.to_vec());
        let task = ModelFile::new(ModelFileConfig::default(), Some(&data)).unwrap();
        let options = TrainerOptions {
            seed: 0,
            micro_batch: 0,
        };
        let trainer = Trainer::new(Arc::new(task), &OpenDevice::cpu(), options).unwrap();
        trainer.layout().tensors.clone()
    };
    let usual = tensors(None);
    let decays = |tensor: &TensorSpec| tensor.rule == TensorRule::StepAndDecay;
    assert!(
        usual
            .iter()
            .all(|tensor| decays(tensor) == (tensor.shape.len() > 1))
    );
    let biases = usual.iter().filter(|tensor| !decays(tensor));
    let biases: Vec<&str> = biases.map(|tensor| &*tensor.name).collect();
    assert!(!biases.is_empty());
    for tensor in tensors(Some(&biases.join("\n"))) {
        assert_eq!(decays(&tensor), tensor.shape.len() == 1, "{}", tensor.name);
    }
}

#[test]
fn running_statistics_move_as_pytorchs() {
    let found = after_a_round(&folder("tabular", 1), 0);
    let reference = read_tensors(&fixture("tabular.safetensors")).unwrap();
    let expected: Vec<(&str, &HostTensor)> = reference
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("buffer.")?, value)))
        .collect();
    assert_eq!((found.len(), expected.len()), (4, 4));
    for (name, expected) in expected {
        let (_, found) = found.iter().find(|(own, _)| own == name).expect(name);
        let Numbers::Floats(expected) = expected.numbers() else {
            panic!("{name} is not of floats");
        };
        assert_close(found, expected);
    }
}

/// A convolution of 1 x 1 that doubles, batch norm, and a linear layer; samples of 2 x 2 pixels.
fn convolutional(values: &[f32], norms: usize) -> Data {
    let mut model = Model::default()
        .input("x", 1)
        .trained("kernel", &[1, 1, 1, 1], &[2.0])
        .trained("scale", &[1], &[1.5])
        .trained("shift", &[1], &[0.5])
        .value(files::floats("norm.running_mean", &[1], &[1.0]))
        .value(files::floats("norm.running_var", &[1], &[3.0]))
        .node(node("Conv", &["x", "kernel"], &["y0"]));
    for norm in 0..norms {
        let (x, y) = (format!("y{norm}"), format!("y{}", norm + 1));
        let inputs = [&x, "scale", "shift", "norm.running_mean", "norm.running_var"];
        model =
            model.node(node("BatchNormalization", &inputs, &[&y]).bytes(5, &integer("training_mode", 1).0));
    }
    let file = model
        .node(node("Relu", &[&format!("y{norms}")], &["relu"]))
        .node(node("ReduceMean", &["relu"], &["loss"]).bytes(5, &integer("keepdims", 0).0))
        .file();
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![values.len() / 4, 1, 2, 2], &bytes).unwrap();
    let samples = safetensors::serialize([("x", view)], None).unwrap();
    let files = [(MODEL, file), (SAMPLES, samples)];
    Data::folder_in_memory(
        files
            .map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes)))
            .to_vec(),
    )
}

/// Mean and unbiased variance.
fn moments(values: &[f32]) -> [f32; 2] {
    let count = values.len() as f32;
    let mean = values.iter().sum::<f32>() / count;
    [
        mean,
        values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / (count - 1.0),
    ]
}

#[test]
fn a_convolutional_model_moves_its_statistics_and_micro_batches_count_by_their_samples() {
    let values: Vec<f32> = (0..20).map(|i| ((i * 7) % 11) as f32 * 0.3).collect();
    let doubled: Vec<f32> = values.iter().map(|x| 2.0 * x).collect();
    let moved = |[mean, variance]: [f32; 2]| [0.9 * 1.0 + 0.1 * mean, 0.9 * 3.0 + 0.1 * variance];
    let check = |micro_batch: usize, statistics: [f32; 2]| {
        let found = after_a_round(&convolutional(&values, 1), micro_batch);
        let names: Vec<&str> = found.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["norm.running_mean", "norm.running_var"]);
        assert_close(&[found[0].1[0], found[1].1[0]], &moved(statistics));
    };
    check(0, moments(&doubled));
    // Three samples of four pixels, and then two.
    let [first, second] = [moments(&doubled[..12]), moments(&doubled[12..])];
    check(3, [0, 1].map(|i| (3.0 * first[i] + 2.0 * second[i]) / 5.0));
    // The same norm twice, one after the other: PyTorch moves the buffers twice.
    let [mean, variance] = moments(&doubled);
    let biased = variance * 19.0 / 20.0;
    let normed: Vec<f32> = doubled
        .iter()
        .map(|x| (x - mean) / (biased + 1e-5).sqrt() * 1.5 + 0.5)
        .collect();
    let [again_mean, again_variance] = moments(&normed);
    let once = moved([mean, variance]);
    let twice = [
        0.9 * once[0] + 0.1 * again_mean,
        0.9 * once[1] + 0.1 * again_variance,
    ];
    let found = after_a_round(&convolutional(&values, 2), 0);
    assert_close(&[found[0].1[0], found[1].1[0]], &twice);
}

#[test]
fn a_share_of_one_value_per_channel_is_no_error() {
    let data = folder("tabular", 1);
    // Each micro-batch is one sample, whose variance nobody knows.
    let found = after_a_round(&data, 1);
    for (name, values) in found.iter().filter(|(name, _)| name.ends_with("running_var")) {
        assert!(values.iter().all(|value| *value == 1.0), "{name}: {values:?}");
    }
    let mean = found.iter().find(|(name, _)| name.ends_with("running_mean"));
    assert!(mean.unwrap().1.iter().any(|value| *value != 0.0));
}

#[test]
fn a_run_starts_from_given_weights() {
    let model = fixture("mlp.annulus.onnx");
    let graph = Graph::read(&model, None, &ReadOptions::default()).unwrap();
    // The parameters' own shapes, but for the last one's.
    let weights = |change: &dyn Fn(usize, &mut Vec<usize>) -> bool| {
        let tensors = graph
            .parameters()
            .iter()
            .enumerate()
            .filter_map(|(number, parameter)| {
                let mut shape = parameter.shape().to_vec();
                let bytes = vec![0x3f; 4 * shape.iter().product::<usize>()];
                change(number, &mut shape).then_some((parameter.name.clone(), shape, bytes))
            });
        let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors.collect();
        let views = tensors
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        safetensors::serialize(views, None).unwrap()
    };
    let read = |init: &str, weights: Vec<u8>| {
        let files = [
            (MODEL, model.clone()),
            (SAMPLES, samples("mlp", 1)),
            ("start.safetensors", weights),
        ];
        let files = files.map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes)));
        let config = ModelFileConfig {
            init: init.to_owned(),
            ..ModelFileConfig::default()
        };
        ModelFile::new(config, Some(&Data::folder_in_memory(files.to_vec())))
    };
    let task = read("start.safetensors", weights(&|_, _| true)).unwrap();
    let given = f32::from_le_bytes([0x3f; 4]);
    let device = Device::flex().autodiff();
    let all = named_gradients(
        &task.model(&device),
        &task.loss(&task.model(&device), task.first(3), &device).backward(),
    );
    for own in all {
        assert!(
            floats(&own.value).iter().all(|value| *value == given),
            "{}",
            own.name
        );
    }
    // Other weights are other data.
    let plain = read("", weights(&|_, _| true)).unwrap();
    assert_ne!(plain.dataset().digest(), task.dataset().digest());
    let spoilt = weights(&|number, shape| {
        shape.insert(0, 1);
        number != 1
    });
    let said = told(read("start.safetensors", spoilt));
    let [first, second] = [0, 1].map(|number| &*graph.parameters()[number].name);
    for words in [
        "start.safetensors does not fit the model".to_owned(),
        format!("`{first}` is [1, "),
        format!("`{second}` is missing"),
    ] {
        assert!(said.contains(&words), "{said}");
    }
    assert!(told(read("other.safetensors", Vec::new())).contains("has no other.safetensors"));
    for elsewhere in ["../start.safetensors", "/start.safetensors", "a/b", ".."] {
        assert!(
            told(read(elsewhere, Vec::new())).contains("no file's name"),
            "{elsewhere}"
        );
    }
}
