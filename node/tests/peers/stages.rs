//! Models in steps: whatever spans they are cut into, the bits are the same, and they are the whole model's up to rounding.
//!
//! Rounds are computed by `recompute`, which replays split runs, on the workers that members compute spans with.

use crate::common::{computing, computing_alone};
use annulus::device::OpenDevice;
use annulus::task_factory::{LoadedTask, TaskFactory};
use annulus::tasks::digits::Digits;
use annulus::tasks::gpt::Gpt;
use annulus::trainer::span::{self, Activation, Cut, ModelSteps, SpanWorker};
use annulus::trainer::{TrainerOptions, WorkerError};
use annulus_core::codec::Codec;
use annulus_core::interface::{Pass, SpanDone};
use annulus_core::invitation::Invitation;
use annulus_core::keeps::Keeps;
use annulus_core::ledger::{Head, Header, Member, Record};
use annulus_core::moments::Moments;
use annulus_core::parts::{PartSet, Parts};
use annulus_core::recompute::{Workshop, recompute};
use annulus_core::shuffle::Shuffle;
use annulus_core::signature::{Key, Signed};
use annulus_core::{Digest, Initial, Manifest, Room, Topology};
use burn::tensor::read_sync;
use serde_json::{Value, json};
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::sync::Arc;

const SEED: u64 = 7;

/// Samples of a microbatch.
const MICRO_BATCH: usize = 2;

fn gpt(layers: usize) -> Value {
    json!({"layers": layers, "heads": 2, "width": 32, "context": 24, "eval_windows": 20})
}

fn load(config: &Value) -> LoadedTask {
    (TaskFactory::of::<Gpt>().load)(&config.to_string(), None).expect("settings of the task")
}

fn model(task: &LoadedTask) -> Arc<ModelSteps> {
    Arc::new(task.model_steps(SEED).expect("a task with steps"))
}

fn worker(
    task: &LoadedTask,
    model: &Arc<ModelSteps>,
    steps: Range<usize>,
) -> Result<Box<dyn SpanWorker>, WorkerError> {
    task.span_factory()(&OpenDevice::cpu(), model.clone(), steps, SEED)
}

/// The model's initial weights, as one flat vector.
fn initial(task: &LoadedTask) -> Vec<f32> {
    let mut values = Vec::new();
    let drawn = task.drawing()(SEED, &mut |_, read| {
        values.extend_from_slice(read().as_slice::<f32>().expect("f32 data"));
    });
    drawn.expect("a model that can be trained");
    values
}

/// The spans that begin at these steps.
fn spans(begins: &[usize], steps: usize) -> Vec<Range<usize>> {
    let ends = begins[1..].iter().copied().chain([steps]);
    begins.iter().zip(ends).map(|(begin, end)| *begin..end).collect()
}

/// A run of one member that holds the whole model, in spans that begin at these steps.
fn run(task: &LoadedTask, model: &ModelSteps, begins: &[usize], (boundary, batch): (Codec, u32)) -> Manifest {
    let cut = Cut {
        spans: &spans(begins, model.steps()),
        costs: &vec![1; model.steps()],
        micro_batch: NonZeroU32::new(MICRO_BATCH as u32).unwrap(),
        boundary,
        lanes: NonZeroU16::new(2).unwrap(),
    };
    Manifest {
        seed: SEED,
        samples: task.samples,
        target: u64::MAX.try_into().unwrap(),
        batch: batch.try_into().unwrap(),
        optimizer: "adamw beta2=0.99 weight_decay=0.1".parse().unwrap(),
        lr: 1e-3,
        clip: Some(1.0),
        topology: Some(Topology::Direct),
        copies: NonZeroU16::new(1),
        split: Some(cut.of(model)),
        ..Manifest::new(model.layout.clone())
    }
}

/// Keeps everything in memory.
struct Bench<'a> {
    task: &'a LoadedTask,
    model: Arc<ModelSteps>,
    manifest: &'a Manifest,
    shuffle: Shuffle,
    parts: Moments,
    others: Vec<f32>,
    worker: Option<Box<dyn SpanWorker>>,
    /// The sum of the round's losses so far.
    loss: f32,
}

impl Workshop for Bench<'_> {
    type Error = WorkerError;

    fn pass(&mut self, steps: Range<usize>, mut pass: Pass) -> Result<SpanDone, WorkerError> {
        if let Some(weights) = pass.weights.take() {
            let worker = self.worker.insert(worker(self.task, &self.model, steps)?);
            worker.load(weights)?;
        }
        let samples = self.shuffle.draws(&pass.positions);
        let done = read_sync(span::pass(&mut **self.worker.as_mut().unwrap(), pass, &samples))?;
        self.loss += done.loss;
        Ok(done)
    }

    fn weights(&mut self, range: Range<usize>) -> Result<Vec<f32>, WorkerError> {
        Ok(self.parts.weights(self.manifest, range))
    }

    fn part(&mut self, part: u16) -> Result<Moments, WorkerError> {
        let mut one = self.parts.clone();
        one.retain(&PartSet::from_iter([part]));
        Ok(one)
    }

    fn put_part(&mut self, part: u16, stepped: Moments) -> Result<(), WorkerError> {
        self.parts.insert(part, stepped.slots(part).unwrap().to_vec());
        Ok(())
    }

    fn take_up(&mut self, place: Range<usize>) -> Result<Vec<f32>, WorkerError> {
        Ok(self.others[place].to_vec())
    }

    fn lay_down(&mut self, place: usize, values: &[f32]) -> Result<(), WorkerError> {
        let end = place + values.len();
        self.others.resize(self.others.len().max(end), f32::NAN);
        self.others[place..end].copy_from_slice(values);
        Ok(())
    }
}

/// The mean loss of each round, and the digests of all weights and moments in the end.
fn train(
    task: &LoadedTask,
    begins: &[usize],
    (boundary, batch): (Codec, u32),
    rounds: u64,
) -> (Vec<f32>, Vec<u64>) {
    let model = model(task);
    let manifest = &run(task, &model, begins, (boundary, batch));
    let (key, all) = (Key::from_seed(&[1; 32]), Parts::of(manifest).unwrap().all());
    let member = Member {
        peer: key.peer(),
        admission: Invitation::of_run(key.clone()).admit(key.peer(), manifest.run_id()),
        speed: 1000,
        contact: Default::default(),
        trials: Default::default(),
        keeper: Default::default(),
    };
    let mut head = Head::genesis(manifest, member);
    head.members[0].keeper.kept = all;
    head.members[0].keeper.room = Room::of(begins.len() as u16);
    let weights = initial(task);
    let mut parts = Moments::default();
    parts.initial = Some(Initial::new(move |ranges| {
        ranges
            .iter()
            .map(|range| weights[range.clone()].to_vec())
            .collect()
    }));
    parts.begin(manifest, &all);
    let mut bench = Bench {
        task,
        shuffle: Shuffle::of(manifest),
        model: model.clone(),
        manifest,
        parts,
        others: Vec::new(),
        worker: None,
        loss: 0.0,
    };
    let spans = spans(begins, model.steps());
    let round = |round: u64| {
        let header = Header {
            peer: key.peer(),
            weight: batch,
            loss: 1.0,
            speed: 1000,
            compute_us: 1,
            exchange_us: 0,
            round_us: 0,
            digest: Digest([0; 32]),
            ahead: false,
            anew: false,
            ready: Vec::new(),
            revoked: Vec::new(),
            stalled: false,
            late: false,
            leaving: false,
            keeps: Keeps {
                kept: all,
                room: head.members[0].keeper.room,
                ..Keeps::default()
            },
        };
        let signature = key.sign_bytes(b"unsigned");
        let record = Record {
            round: round + 1,
            attempt: 0,
            headers: vec![Signed {
                content: header,
                signature,
            }],
        };
        bench.loss = 0.0;
        assert!(recompute((manifest, &head, &record), &spans, &mut bench).expect("a round"));
        head.apply(&record, manifest);
        bench.loss / batch as f32
    };
    let losses = (0..rounds).map(round).collect();
    (losses, bench.parts.digests(&all))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn bits_do_not_depend_on_how_steps_are_grouped() {
    let _turn = computing();
    let task = load(&gpt(8));
    let run = |begins: &[usize]| train(&task, begins, (Codec::F32, 12), 50);
    let (losses, state) = run(&[0]);
    // Eight blocks in so many spans, of which the first has the embeddings and the last the head.
    for begins in [&[0, 5][..], &[0, 1, 9], &[0, 3, 5, 7], &[0, 2, 3, 4, 5, 6, 7, 8]] {
        let (other, other_state) = run(begins);
        assert!(bits(&losses) == bits(&other), "{begins:?}");
        assert!(state == other_state, "{begins:?}");
    }
    assert!(losses[49] < losses[0] - 0.5, "{} {}", losses[0], losses[49]);
}

/// The sums of gradients over some microbatches by two spans, the second from `cut` on, and the sum of losses.
fn through(
    task: &LoadedTask,
    model: &Arc<ModelSteps>,
    cut: usize,
    microbatches: &[Vec<u64>],
) -> (Vec<f32>, f32) {
    let weights = initial(task);
    let begin = |steps: Range<usize>| {
        let mut worker = worker(task, model, steps.clone()).unwrap();
        let tensors = model.tensors_of(steps.clone()).into_iter();
        let places = tensors.map(|tensor| &model.layout.tensors[tensor]);
        let params = places.flat_map(|spec| weights[spec.offset..spec.offset + spec.len()].to_vec());
        worker.load(params.collect()).unwrap();
        let sums = steps.flat_map(|step| model.ranges(step)).map(|range| range.len());
        (worker, vec![0.0; sums.sum()])
    };
    let ((mut first, mut before), (mut second, mut behind)) = (begin(0..cut), begin(cut..model.steps()));
    let mut loss = 0.0;
    for samples in microbatches {
        let x: Activation = read_sync(first.forward(samples, None)).unwrap();
        let passed = read_sync(second.backward(samples, Some(x), None, behind)).unwrap();
        behind = passed.sums;
        loss += passed.loss_sum.expect("the last span has the loss");
        let passed = read_sync(first.backward(samples, None, passed.gradient, before)).unwrap();
        before = passed.sums;
        assert!(passed.gradient.is_none());
    }
    ([before, behind].concat(), loss)
}

/// Microbatches of samples that are far apart.
fn microbatches(count: u64) -> Vec<Vec<u64>> {
    (0..count).map(|at| vec![at * 40, 100 + at * 7]).collect()
}

/// Compares what spans sum up with what the trainer of the whole model does. The trainer adds what several steps make of a
/// tensor microbatch by microbatch, and so rounds that one otherwise.
fn sums_to_the_whole_models_gradient(task: &LoadedTask) {
    let (model, microbatches) = (model(task), microbatches(6));
    let (sums, loss) = through(task, &model, 1, &microbatches);
    let options = TrainerOptions {
        seed: SEED,
        micro_batch: MICRO_BATCH,
    };
    let mut whole = task.worker_factory(OpenDevice::cpu(), options)().expect("a trainer");
    assert_eq!(&model.layout, whole.layout());
    let made = whole
        .contribute(initial(task), &microbatches.concat())
        .expect("a step");
    assert!(
        (made.loss_sum / loss - 1.0).abs() < 1e-5,
        "{} {loss}",
        made.loss_sum
    );
    let mut at = 0;
    for (step, uses) in model.uses.iter().enumerate() {
        for tensor in uses {
            let spec = &model.layout.tensors[*tensor];
            let own = &sums[at..at + spec.len()];
            at += spec.len();
            let users = model.uses.iter().filter(|uses| uses.contains(tensor)).count();
            let of_whole = &made.gradient[spec.offset..spec.offset + spec.len()];
            assert!(users > 1 || bits(own) == bits(of_whole), "{step} {}", spec.name);
        }
    }
    assert_eq!(at, sums.len());
}

#[test]
fn spans_sum_up_the_gradient_of_the_whole_model() {
    let _turn = computing();
    sums_to_the_whole_models_gradient(&load(&gpt(3)));
    let digits = json!({"hidden": 24, "train": 300, "test": 50});
    let task = (TaskFactory::of::<Digits>().load)(&digits.to_string(), None).unwrap();
    sums_to_the_whole_models_gradient(&task);
    let [one, two] = [&[0][..], &[0, 1]].map(|begins| train(&task, begins, (Codec::F32, 64), 30));
    assert!(one == two, "a task of two steps");
}

#[test]
fn a_span_holds_what_its_steps_use_and_nothing_else() {
    let _turn = computing();
    let task = load(&gpt(3));
    let model = model(&task);
    assert_eq!(model.steps(), 5);
    let names = |steps: Range<usize>| -> Vec<String> {
        let tensors = model.tensors_of(steps);
        tensors
            .iter()
            .map(|tensor| model.layout.tensors[*tensor].name.clone())
            .collect()
    };
    assert_eq!(names(0..1), ["tokens.weight", "positions.weight"]);
    assert_eq!(names(4..5), ["tokens.weight", "norm.gamma"]);
    let second = names(2..3);
    assert!(
        second.len() == 6 && second.iter().all(|name| name.starts_with("blocks.1.")),
        "{second:?}"
    );
    assert!(worker(&task, &model, 3..6).is_err(), "there is no sixth step");
}

#[test]
fn dropout_is_the_same_again_on_the_way_back() {
    let _turn = computing_alone();
    let mut config = gpt(2);
    config["dropout"] = json!(0.2);
    let task = load(&config);
    let model = model(&task);
    let expected = through(&task, &model, 1, &microbatches(2));
    assert!(expected == through(&task, &model, 3, &microbatches(2)));
    config["dropout"] = json!(0.0);
    assert!(expected.1 != through(&load(&config), &model, 1, &microbatches(2)).1);
}

#[test]
fn fewer_bits_at_the_boundary_cost_little_learning() {
    let _turn = computing();
    let mut config = gpt(2);
    config["width"] = json!(64);
    let task = load(&config);
    let mean = |boundary| {
        let (losses, _) = train(&task, &[0, 2], (boundary, 12), 150);
        losses[130..].iter().map(|loss| f64::from(*loss)).sum::<f64>() / 20.0
    };
    let exact = mean(Codec::F32);
    assert!(exact < 3.2, "untrained it is 5.5: {exact}");
    for (boundary, most) in [(Codec::F16, 0.005), (Codec::Int8, 0.01)] {
        let found = mean(boundary);
        println!("{boundary}: {found:.4}, exact {exact:.4}");
        assert!((found / exact - 1.0).abs() < most, "{boundary}: {found} {exact}");
    }
}
