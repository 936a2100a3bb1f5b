//! Models in steps: the loss and gradient of the whole model, from steps of which each reads only its own parameters.

use crate::common::{all_fixtures, gradients, number, squares};
use crate::fixtures::{Expected, read};
use annulus_graph::{
    Graph, GraphModel, HostTensor, Output, PassOptions, ReadOptions, StepInput, Stepped, read_tensors,
};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use std::path::Path;

const TRAINING: PassOptions = PassOptions {
    training: true,
    dropout: None,
};

/// Which parameters of a model have been read.
fn used(model: &impl Module) -> Vec<bool> {
    struct Used(Vec<bool>);

    impl ModuleVisitor for Used {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.is_initialized());
        }
    }

    let mut used = Used(Vec::new());
    model.visit(&mut used);
    used.0
}

/// The output of all steps, one after the other, each on a model that `model` gives; how many they are, and the share of
/// the parameters that the largest step reads.
fn in_steps(
    graph: &Graph,
    batch: &[(String, HostTensor)],
    device: &Device,
    model: impl Fn() -> GraphModel,
) -> (Output, usize, f64) {
    let steps = graph.steps(batch).unwrap().expect("places to cut");
    let sizes: Vec<usize> = graph
        .parameters()
        .iter()
        .map(|own| own.shape().iter().product())
        .collect();
    let (mut crossing, mut largest) = (None, 0);
    for step in 0..steps.count() {
        let is_end = step == 0 || step + 1 == steps.count();
        let input = StepInput {
            crossing,
            batch: is_end.then_some(batch),
        };
        let model = model();
        let made = graph
            .step((&steps, step), &model, input, device, TRAINING)
            .unwrap();
        let own = used(&model).into_iter().zip(&sizes).filter(|(used, _)| *used);
        largest = largest.max(own.map(|(_, size)| size).sum());
        match made {
            Stepped::Crossing(made) => {
                assert_eq!(made.dims()[1..], [1, steps.numbers(step)]);
                crossing = Some(made);
            }
            Stepped::Output(output) => {
                let share = largest as f64 / sizes.iter().sum::<usize>() as f64;
                return (output, steps.count(), share);
            }
        }
    }
    unreachable!("the last step gives the loss")
}

/// The model has at least this number of steps, of which each reads at most this share of the parameters.
fn check(name: &str, mut graph: Graph, batch: &[(String, HostTensor)], at_least: usize, most: f64) {
    for fused in [false, true] {
        if fused {
            graph.fuse(batch).unwrap();
        }
        let plain = Device::flex();
        let whole = graph
            .run(&graph.model(&plain).unwrap(), batch, &plain, TRAINING)
            .unwrap();
        let (split, count, share) = in_steps(&graph, batch, &plain, || graph.model(&plain).unwrap());
        println!("{name}: {count} steps, of which the largest reads {share:.2} of the parameters");
        assert_eq!(number(whole.loss), number(split.loss), "{name}: the loss");
        assert!(
            count >= at_least && share <= most,
            "{name}: {count} steps, {share}"
        );

        // The same on one model, so that its gradient is seen.
        let device = plain.autodiff();
        let model = graph.model(&device).unwrap();
        let whole = graph
            .run(&model, batch, &device, TRAINING)
            .unwrap()
            .loss
            .backward();
        let whole = gradients(&model, &whole);
        let (split, ..) = in_steps(&graph, batch, &device, || model.clone());
        let split = gradients(&model, &split.loss.backward());
        let (mut difference, mut length) = (0.0, 0.0);
        for ((name, whole), (_, split)) in whole.iter().zip(&split) {
            let (whole, split) = (whole.as_ref().unwrap(), split.as_ref().expect(name));
            difference += squares(whole.iter().zip(split).map(|(a, b)| a - b));
            length += squares(whole.iter().copied());
        }
        let off = (difference / length).sqrt();
        assert!(off < 1e-6, "{name}: the gradient is off by {off:e}");
    }
}

#[test]
fn a_small_model_in_steps_is_the_same_model() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/fixtures/nanogpt");
    let file = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let weights = file("weights.safetensors");
    let graph = Graph::read(&file("model.onnx"), Some(&weights), &ReadOptions::default()).unwrap();
    let batch = read_tensors(&file("samples.safetensors")).unwrap();
    check("nanogpt", graph, &batch, 6, 0.4);
}

/// Models with dropout or batch norm apart, and recurrent ones, whose samples are not on the first axis.
#[test]
fn models_in_steps_are_the_same_models() {
    let Some(folder) = all_fixtures() else { return };
    for (name, at_least, most) in [
        ("gpt2", 4, 0.6),
        ("llama", 4, 0.6),
        ("qwen3", 4, 0.6),
        ("vit", 4, 0.6),
        ("bert", 2, 1.0),
        ("distilbert", 2, 1.0),
        ("tfenc", 2, 1.0),
        ("lora", 2, 1.0),
    ] {
        let file = read(&folder, name, "annulus.onnx");
        let batch = Expected(read_tensors(&read(&folder, name, "safetensors")).unwrap()).inputs();
        let graph = Graph::read(&file, None, &ReadOptions::default()).unwrap();
        check(name, graph, &batch, at_least, most);
    }
}
