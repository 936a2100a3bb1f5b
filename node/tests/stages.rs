//! Models as pipelines: whoever computes which steps, the bits are the same, and they are the whole model's to rounding.

use annulus::device::OpenDevice;
use annulus::pipeline::{Order, Pipeline, SpanState, Stage, StageSettings, Summed, Update, in_threads};
use annulus::task_factory::{LoadedTask, TaskFactory};
use annulus::tasks::digits::Digits;
use annulus::tasks::gpt::Gpt;
use annulus::trainer::TrainerOptions;
use annulus::trainer::span::{Activation, ModelSteps, SpanWorker};
use annulus_core::codec::Codec;
use annulus_core::optim::{Optimizer, Schedule, clip_scale, norm_squared};
use annulus_core::shuffle::Shuffle;
use burn::tensor::read_sync;
use serde_json::{Value, json};
use std::ops::Range;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

const SEED: u64 = 7;

/// Burn's processor backend has one random generator for the whole process: who tests dropout is alone.
static RANDOM: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    RANDOM.read().unwrap_or_else(PoisonError::into_inner)
}

fn gpt(layers: usize) -> Value {
    json!({"layers": layers, "heads": 2, "width": 32, "context": 24, "eval_windows": 20})
}

fn load(config: &Value) -> LoadedTask {
    (TaskFactory::of::<Gpt>().load)(&config.to_string(), None).expect("settings of the task")
}

fn optimizer() -> Optimizer {
    "adamw beta2=0.99 weight_decay=0.1".parse().expect("an optimizer")
}

/// Where spans begin, as ranges.
fn spans(begins: &[usize], steps: usize) -> Vec<Range<usize>> {
    let ends = begins[1..].iter().copied().chain([steps]);
    begins
        .iter()
        .copied()
        .zip(ends)
        .map(|(begin, end)| begin..end)
        .collect()
}

fn pipeline(task: &LoadedTask, begins: &[usize], boundary: Codec) -> Pipeline<Sender<Order>> {
    let model = Arc::new(task.model_steps(SEED).expect("a task with steps"));
    let spans = spans(begins, model.steps());
    let stage = |(span, steps): (usize, &Range<usize>)| {
        let worker = task.span_worker(&OpenDevice::cpu(), model.clone(), steps.clone(), SEED);
        let worker = worker.expect("steps of the model");
        let state = SpanState::new(&*worker, optimizer());
        let settings = StageSettings {
            span,
            spans: spans.len(),
            boundary,
            more: 0,
        };
        Stage::new(worker, state, settings).expect("its own parameters")
    };
    let stages = spans.iter().enumerate().map(stage).collect();
    in_threads(model, spans, stages)
}

/// A round's microbatches.
fn microbatches(task: &LoadedTask, round: u64, count: u64, size: u64) -> Vec<Vec<u64>> {
    let shuffle = Shuffle {
        seed: SEED,
        samples: task.samples,
    };
    let samples: Vec<u64> = (round * count * size..(round + 1) * count * size)
        .map(|at| shuffle.index(at))
        .collect();
    samples.chunks(size as usize).map(<[u64]>::to_vec).collect()
}

/// The task's own settings: the rate rises for a hundred steps.
fn rate(step: u64) -> f32 {
    Schedule::Warmup { steps: 100 }.rate(1e-3, step)
}

fn update(step: u64) -> Update {
    Update {
        lr: rate(step),
        step,
        clip: Some(1.0),
    }
}

/// Each round's sum, the first round's gradient, and the parameters in the end.
fn train(
    task: &LoadedTask,
    begins: &[usize],
    boundary: Codec,
    rounds: u64,
    (count, size): (u64, u64),
) -> (Vec<Summed>, Vec<f32>, Vec<f32>) {
    let mut pipeline = pipeline(task, begins, boundary);
    let (mut sums, mut first) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let summed = pipeline
            .gradient(&microbatches(task, round, count, size))
            .expect("a round");
        if round == 0 {
            first = pipeline.export(true).expect("a gradient");
        }
        pipeline.apply(&summed, &update(round + 1)).expect("a step");
        sums.push(summed);
    }
    (sums, first, pipeline.export(false).expect("parameters"))
}

/// The same steps by the whole model's trainer: the mean loss of each.
fn train_whole(task: &LoadedTask, rounds: u64, (count, size): (u64, u64)) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let options = TrainerOptions {
        seed: SEED,
        micro_batch: size as usize,
    };
    let mut worker = task.worker_factory(OpenDevice::cpu(), options)().expect("a trainer");
    let mut params = worker.init();
    let (mut slots, optimizer) = ([vec![0.0; params.len()], vec![0.0; params.len()]], optimizer());
    let (mut losses, mut first) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let samples = microbatches(task, round, count, size).concat();
        let made = worker.contribute(params.clone(), &samples).expect("a step");
        let mean = 1.0 / samples.len() as f32;
        let norm = norm_squared(&made.gradient).sqrt() * f64::from(mean);
        let step = optimizer.step(rate(round + 1), round + 1, mean * clip_scale(norm, 1.0));
        for tensor in &worker.layout().tensors {
            let place = tensor.offset..tensor.offset + tensor.len();
            let [m, v] = &mut slots;
            let slots = &mut [&mut m[place.clone()], &mut v[place.clone()]];
            let sums = &made.gradient[place.clone()];
            optimizer.apply(&step, &mut params[place], slots, sums, tensor.decay);
        }
        losses.push(made.loss_sum * mean);
        if round == 0 {
            first = made.gradient;
        }
    }
    (losses, first, params)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn bits_do_not_depend_on_how_steps_are_grouped() {
    let _others = beside_others();
    let task = load(&gpt(8));
    let rounds = 50;
    let run = |begins: &[usize]| train(&task, begins, Codec::F32, rounds, (6, 2));
    let (sums, gradient, params) = run(&[0]);
    // Eight blocks in so many spans, of which the first has the embeddings and the last the head.
    for begins in [&[0, 5][..], &[0, 3, 5, 7], &[0, 2, 3, 4, 5, 6, 7, 8], &[0, 1, 9]] {
        let (other, other_gradient, other_params) = run(begins);
        for (round, (one, other)) in sums.iter().zip(&other).enumerate() {
            assert_eq!(
                one.loss_sum.to_bits(),
                other.loss_sum.to_bits(),
                "{begins:?} {round}"
            );
            assert_eq!(
                one.norm_squared.to_bits(),
                other.norm_squared.to_bits(),
                "{begins:?} {round}"
            );
        }
        assert!(bits(&gradient) == bits(&other_gradient), "{begins:?}");
        assert!(bits(&params) == bits(&other_params), "{begins:?}");
    }
    // The same steps by the trainer of the whole model. It adds what output layer and embedding make of the tied
    // matrix microbatch by microbatch, and so rounds that one tensor otherwise.
    let (losses, whole_gradient, _) = train_whole(&task, rounds, (6, 2));
    let model = task.model_steps(SEED).unwrap();
    let tied = &model.layout.tensors[0];
    assert_eq!(
        (tied.name.as_str(), model.users(0).collect::<Vec<_>>()),
        ("tokens.weight", vec![0, 9])
    );
    assert!(bits(&gradient[tied.len()..]) == bits(&whole_gradient[tied.len()..]));
    let off = |a: f32, b: f32| (a - b).abs();
    let most = losses
        .iter()
        .zip(&sums)
        .map(|(whole, summed)| off(*whole, summed.loss_sum / 12.0));
    let most = most.fold(0.0f32, f32::max);
    println!("losses of {rounds} rounds differ from the whole model's by at most {most:.1e}");
    assert!(most < 1e-4, "{most}");
    let [first, last] = [sums[0].loss_sum, sums[49].loss_sum].map(|loss| loss / 12.0);
    assert!(last < first - 0.5, "{first} {last}");
}

#[test]
fn a_span_holds_what_its_steps_use_and_nothing_else() {
    let _others = beside_others();
    let task = load(&gpt(3));
    let model = Arc::new(task.model_steps(SEED).unwrap());
    let whole = task.worker_factory(
        OpenDevice::cpu(),
        TrainerOptions {
            seed: SEED,
            micro_batch: 0,
        },
    )()
    .unwrap();
    assert_eq!(&model.layout, whole.layout());
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
    // As the whole model's initial parameters, though the others were never kept.
    let params = whole.init();
    for steps in [0..1, 1..3, 2..5, 0..5] {
        let worker = task
            .span_worker(&OpenDevice::cpu(), model.clone(), steps, SEED)
            .unwrap();
        let expected: Vec<f32> = worker
            .tensors()
            .iter()
            .flat_map(|tensor| {
                let spec = &model.layout.tensors[*tensor];
                params[spec.offset..spec.offset + spec.len()].to_vec()
            })
            .collect();
        assert!(bits(&worker.init()) == bits(&expected));
    }
    let none = task.span_worker(&OpenDevice::cpu(), model.clone(), 3..6, SEED);
    assert!(none.is_err());
}

/// Forward through two spans and back again: what the first one's input has for a gradient sum.
fn through(
    task: &LoadedTask,
    model: &Arc<ModelSteps>,
    cut: usize,
    order: &[u32],
) -> (Vec<u32>, Vec<u32>, u32) {
    let worker = |steps| {
        let mut worker = task
            .span_worker(&OpenDevice::cpu(), model.clone(), steps, SEED)
            .unwrap();
        let params = worker.init();
        worker.load(params).unwrap();
        worker
    };
    let (mut first, mut second) = (worker(0..cut), worker(cut..model.steps()));
    for microbatch in order {
        let samples = [u64::from(*microbatch) * 40, 1000];
        let x: Activation = read_sync(first.forward(&samples, None)).unwrap();
        let passed = read_sync(second.backward(*microbatch, &samples, Some(x), None)).unwrap();
        assert!(passed.loss_sum.is_some());
        let passed = read_sync(first.backward(*microbatch, &samples, None, passed.gradient)).unwrap();
        assert!(passed.gradient.is_none());
    }
    let flat = |worker: &mut Box<dyn SpanWorker>| {
        let sums = worker.take().unwrap();
        (bits(&sums.values), sums.loss_sum, sums.microbatches)
    };
    let ((before, _, _), (behind, loss, count)) = (flat(&mut first), flat(&mut second));
    (
        before.into_iter().chain(behind).collect(),
        vec![loss.to_bits()],
        count,
    )
}

#[test]
fn microbatches_may_be_done_in_any_order_and_again() {
    let _others = beside_others();
    let task = load(&gpt(2));
    let model = Arc::new(task.model_steps(SEED).unwrap());
    let expected = through(&task, &model, 2, &[0, 1, 2, 3]);
    assert_eq!(expected.2, 4);
    assert!(expected == through(&task, &model, 2, &[3, 1, 0, 1, 2, 0]));
    assert!(expected == through(&task, &model, 3, &[2, 3, 0, 1]));
    assert!(expected.0 != through(&task, &model, 2, &[0, 1, 2]).0);
}

#[test]
fn dropout_is_the_same_again_on_the_way_back() {
    let _alone = RANDOM.write().unwrap_or_else(PoisonError::into_inner);
    let mut config = gpt(2);
    config["dropout"] = json!(0.2);
    let task = load(&config);
    let model = Arc::new(task.model_steps(SEED).unwrap());
    let expected = through(&task, &model, 1, &[0, 1]);
    assert!(expected == through(&task, &model, 3, &[1, 0]));
    config["dropout"] = json!(0.0);
    assert!(expected.1 != through(&load(&config), &model, 1, &[0, 1]).1);
}

#[test]
fn fewer_bits_at_the_boundary_cost_little_learning() {
    let _others = beside_others();
    let mut config = gpt(2);
    config["width"] = json!(64);
    let task = load(&config);
    let mean = |boundary| {
        let (sums, _, _) = train(&task, &[0, 2], boundary, 150, (4, 3));
        let last = &sums[sums.len() - 20..];
        last.iter()
            .map(|summed| f64::from(summed.loss_sum) / 12.0)
            .sum::<f64>()
            / 20.0
    };
    let exact = mean(Codec::F32);
    assert!(exact < 3.2, "untrained it is 5.5: {exact}");
    for (boundary, most) in [(Codec::F16, 0.005), (Codec::Int8, 0.01)] {
        let found = mean(boundary);
        println!("{boundary}: {found:.4}, exact {exact:.4}");
        assert!((found / exact - 1.0).abs() < most, "{boundary}: {found} {exact}");
    }
}

#[test]
fn a_task_of_two_steps_is_a_pipeline_too() {
    let _others = beside_others();
    let config = json!({"hidden": 24, "train": 300, "test": 50});
    let task = (TaskFactory::of::<Digits>().load)(&config.to_string(), None).unwrap();
    let (one, _, params) = train(&task, &[0], Codec::F32, 30, (4, 16));
    let (two, _, other) = train(&task, &[0, 1], Codec::F32, 30, (4, 16));
    assert!(bits(&params) == bits(&other));
    let (losses, _, _) = train_whole(&task, 30, (4, 16));
    for ((one, two), whole) in one.iter().zip(&two).zip(&losses) {
        assert_eq!(one.loss_sum.to_bits(), two.loss_sum.to_bits());
        assert!((one.loss_sum / 64.0 - whole).abs() < 1e-4);
    }
}

#[test]
fn the_bench_splits_a_model_over_processes_that_fit() {
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_annulus"))
            .args(["bench", "stages", "--preset", "pico", "--json", "--rounds", "3"])
            .args(words)
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text, error)
    };
    let report = |words: &[&str]| -> Value {
        let (fine, text, error) = run(words);
        assert!(fine, "{error}");
        serde_json::from_str(text.lines().last().expect("a line")).expect("an object")
    };
    let three = report(&["--spans", "3", "--microbatch", "2", "--evaluate", "batch=8"]);
    let spans = three["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 3);
    assert_eq!(three["microbatches"], 4);
    let steps: Vec<u64> = spans
        .iter()
        .map(|span| span["steps"]["start"].as_u64().unwrap())
        .collect();
    assert!(steps[0] == 0 && steps.is_sorted());
    // 2 windows of 64 tokens of 64 numbers; a stash for each span from the first on.
    assert_eq!(spans[0]["boundary_bytes"], 2 * 64 * 64 * 4);
    assert_eq!(spans[1]["stashed"], 2);
    assert!(spans[0]["forward_ms"].as_f64() > Some(0.0) && spans[2]["forward_ms"] == 0.0);
    let one = report(&["--spans", "1", "--microbatch", "2", "--evaluate", "batch=8"]);
    assert_eq!(
        one["loss"], three["loss"],
        "processes make the bits that one makes"
    );
    assert_eq!(one["held_out"], three["held_out"]);
    // With devices that only sleep the schedule is all that there is: 1F1B comes near to its bound on any machine.
    let asleep = report(&["--spans", "4", "--sleep-ms", "20,40", "batch=8"]);
    let (bound, found) = (&asleep["pipeline_seconds"], &asleep["seconds"]);
    assert!(bound.as_f64() > Some((8.0 + 3.0) * 0.06), "{bound}");
    assert!(
        found.as_f64() < bound.as_f64().map(|bound| 2.0 * bound),
        "{found} {bound}"
    );
    let (fine, _, error) = run(&["--memory", "10MB"]);
    assert!(!fine && error.contains("no split of 4 steps fits"), "{error}");
}
