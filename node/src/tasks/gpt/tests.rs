//! The task as a whole: sizes, settings, windows, learning, generating.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use annulus_core::TensorRule;
use annulus_core::optim::{Optimizer, Schedule, clip_scale, norm_squared};
use annulus_core::shuffle::{Shuffle, Stripes};

use burn::tensor::{Int, read_sync};

use super::generate::{Choice, Whole, Writer};
use super::presets::Preset;
use super::*;
use crate::data::PIECE;
use crate::device::{self, DeviceChoice, DeviceError, OpenDevice};
use crate::task::{Dataset, Draw};
use crate::tasks::testing::assert_pruned;
use crate::trainer::span::{ModelSteps, draw};
use crate::trainer::{Trainer, TrainerOptions, Worker, model_of};

#[test]
fn an_exported_model_tells_its_real_sizes_and_its_characters() {
    let config = GptConfig {
        preset: Preset::Pico,
        context: 16,
        vocabulary: Unit::Characters,
        ..GptConfig::default()
    };
    let of = |task: &Gpt, name: &str| {
        let all = task.metadata();
        all.into_iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    };
    let text = Data::file_in_memory("text", "zab\nabz".repeat(40));
    let task = Gpt::new(config.clone(), Some(&text)).unwrap();
    for (name, value) in [
        ("layers", "2"),
        ("heads", "2"),
        ("width", "64"),
        ("context", "16"),
        ("bias", "false"),
        ("vocabulary_size", "4"),
        ("characters", "\nabz"),
    ] {
        assert_eq!(of(&task, name).as_deref(), Some(value), "{name}");
    }
    // Without the text its size is known by the model, and its characters are not.
    let layout = crate::trainer::layout_of(&task.model(&Device::flex()), |_| None).unwrap();
    let blank = Gpt::inner(config, &layout, None).unwrap();
    assert_eq!(
        (of(&blank, "vocabulary_size").as_deref(), of(&blank, "characters")),
        (Some("4"), None)
    );
}

/// A run in one process, with the optimizer that peers share.
pub(super) struct Run {
    pub worker: Trainer<Gpt>,
    pub params: Vec<f32>,
    slots: [Vec<f32>; 2],
    optimizer: Optimizer,
    lr: f32,
    schedule: Schedule,
    steps: u64,
}

impl Run {
    pub fn new(worker: Trainer<Gpt>, lr: f32, schedule: Schedule) -> Self {
        let params = worker.init();
        let zeros = vec![0.0; params.len()];
        Self {
            worker,
            params,
            slots: [zeros.clone(), zeros],
            optimizer: "adamw beta2=0.99 weight_decay=0.1".parse().unwrap(),
            lr,
            schedule,
            steps: 0,
        }
    }

    /// One step; returns the mean loss and the mean gradient before it.
    pub fn step(&mut self, samples: &[u64]) -> (f32, Vec<f32>) {
        self.steps += 1;
        let made = self.worker.contribute(self.params.clone(), samples).unwrap();
        let mean = 1.0 / samples.len() as f32;
        let norm = norm_squared(&made.gradient).sqrt() * f64::from(mean);
        let rate = self.schedule.rate(self.lr, self.steps);
        let step = self
            .optimizer
            .step(rate, self.steps, mean * clip_scale(norm, 1.0));
        let [m, v] = &mut self.slots;
        for tensor in &self.worker.layout().tensors {
            let range = tensor.offset..tensor.offset + tensor.len();
            let slots = &mut [&mut m[range.clone()], &mut v[range.clone()]];
            let sums = &made.gradient[range.clone()];
            let decays = tensor.rule == TensorRule::StepAndDecay;
            self.optimizer
                .apply(&step, &mut self.params[range], slots, sums, decays);
        }
        let gradient = made.gradient.iter().map(|sum| sum * mean).collect();
        (made.loss_sum * mean, gradient)
    }

    /// Many steps on samples in a run's order.
    fn steps(&mut self, samples: u64, count: u64, batch: u64) {
        let samples = samples.try_into().unwrap();
        let stripes = Stripes::NONE;
        let shuffle = Shuffle {
            seed: 1,
            samples,
            stripes,
        };
        for round in 0..count {
            let positions = round * batch..(round + 1) * batch;
            self.step(&positions.map(|p| shuffle.index(p)).collect::<Vec<_>>());
        }
    }
}

fn pico() -> GptConfig {
    GptConfig {
        preset: Preset::Pico,
        ..GptConfig::default()
    }
}

fn gpt(config: GptConfig) -> Arc<Gpt> {
    Arc::new(Gpt::new(config, None).unwrap())
}

fn trainer(task: &Arc<Gpt>) -> Trainer<Gpt> {
    Trainer::new(Arc::clone(task), &OpenDevice::cpu(), TrainerOptions::default()).unwrap()
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("annulus-gpt-{name}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn presets_go_from_a_tenth_of_a_million_to_gpt_2_small() {
    let size = |preset| {
        let config = GptConfig {
            preset,
            ..GptConfig::default()
        };
        config.shape(256).unwrap().parameters()
    };
    use Preset::{Gpt2, Micro, Mini, Nano, Pico, Small};
    let sizes = [Pico, Nano, Micro, Mini, Small, Gpt2].map(size);
    assert_eq!(
        sizes,
        [119_104, 828_544, 2_730_432, 10_818_432, 25_567_744, 124_475_904]
    );
}

#[test]
fn the_layout_has_each_parameter_once_and_its_size_is_the_shape_s() {
    for bias in [false, true] {
        let config = GptConfig {
            bias: Some(bias),
            vocabulary_size: 300,
            ..pico()
        };
        let task = gpt(config);
        let trainer = trainer(&task);
        let layout = trainer.layout();
        assert_eq!(layout.len, task.shape.parameters());
        // The output layer is the embedding: it has no parameters of its own.
        assert_eq!(layout.tensors[0].name, "tokens.weight");
        assert_eq!(layout.tensors[0].shape, [300, 64]);
        assert_eq!(
            layout.tensors.last().unwrap().name,
            if bias { "norm.beta" } else { "norm.gamma" }
        );
        assert_eq!(
            layout.tensors.len(),
            if bias { 2 + 2 * 12 + 2 } else { 2 + 2 * 6 + 1 }
        );
        assert!(
            layout
                .tensors
                .iter()
                .all(|t| (t.rule == TensorRule::StepAndDecay) == (t.shape.len() == 2))
        );
    }
}

/// GPT-2's embedding takes 154 MB, and WebGPU promises to bind 128 MiB.
#[test]
fn a_gpu_takes_the_vocabulary_of_gpt_2_as_the_cpu_does() {
    let gpu = match device::open(DeviceChoice::Gpu) {
        Err(DeviceError::NoAdapter) => {
            return println!("skipped: this machine has no adapter, not even a software one");
        }
        gpu => gpu.unwrap(),
    };
    let config = GptConfig {
        preset: Preset::Gpt2,
        layers: 1,
        context: 32,
        ..GptConfig::default()
    };
    let task = gpt(config.clone());
    let mut on_cpu = trainer(&task);
    let layout = on_cpu.layout().clone();
    assert_eq!(layout.len, task.shape.parameters());
    let tokens = layout.tensors[..2]
        .iter()
        .map(|tensor| (&*tensor.name, &*tensor.shape));
    let half = [25_152, 768];
    assert!(tokens.eq([("tokens.weight", &half[..]), ("tokens.rest.0", &half)]));
    assert_eq!(Gpt::inner(config, &layout, None).unwrap().shape, task.shape);

    let mut on_gpu = Trainer::new(task, &gpu, TrainerOptions::default()).unwrap();
    let params = on_cpu.init();
    let expected = on_cpu.contribute(params.clone(), &[0, 1000]).unwrap();
    let found = on_gpu.contribute(params, &[0, 1000]).unwrap();
    assert!((expected.loss_sum - found.loss_sum).abs() <= 1e-5 * expected.loss_sum);
    for tensor in &layout.tensors {
        let own = tensor.offset..tensor.offset + tensor.len();
        let (expected, found) = (&expected.gradient[own.clone()], &found.gradient[own]);
        let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        let numbers = expected.iter().zip(found);
        let off = numbers.fold(0f32, |most, (e, f)| most.max((e - f).abs()));
        assert!(off <= 1e-5 * largest, "{}: {off} of {largest}", tensor.name);
    }
}

#[test]
fn initial_parameters_are_gpt_2_s() {
    let task = gpt(GptConfig {
        bias: Some(true),
        ..pico()
    });
    let mut trainer = trainer(&task);
    let params = trainer.init();
    for tensor in &trainer.layout().tensors {
        let values = &params[tensor.offset..tensor.offset + tensor.len()];
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        let name = &tensor.name;
        let expected = match () {
            () if name.ends_with("gamma") => 1.0,
            () if name.ends_with("beta") || name.ends_with("bias") => 0.0,
            () if name.contains("output") || name.contains("down") => 0.01,
            () => 0.02,
        };
        assert!(
            (square.sqrt() - expected).abs() <= 0.05 * expected,
            "{name}: {}",
            square.sqrt()
        );
    }
    // An untrained model knows nothing: all bytes are about equally likely.
    let made = trainer.contribute(params, &[0, 500, 1000]).unwrap();
    assert!(
        (made.loss_sum / 3.0 - 256f32.ln()).abs() < 0.1,
        "{}",
        made.loss_sum / 3.0
    );
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refused: [(GptConfig, &str); 8] = [
        (
            GptConfig {
                layers: 1000,
                ..pico()
            },
            "layers=1000 is not between 1 and 256",
        ),
        (
            GptConfig { heads: 3, ..pico() },
            "width=64 is not a multiple of 4 times heads=3",
        ),
        (
            GptConfig {
                dropout: 1.0,
                ..pico()
            },
            "dropout=1 is not",
        ),
        (
            GptConfig {
                vocabulary_size: 255,
                ..pico()
            },
            "vocabulary_size=255 is not between 256",
        ),
        (
            GptConfig {
                eval_windows: 0,
                ..pico()
            },
            "eval_windows=0",
        ),
        (
            GptConfig {
                context: 65_536,
                ..pico()
            },
            "the text is too short",
        ),
        (
            GptConfig {
                stream: true,
                vocabulary: Unit::Characters,
                ..pico()
            },
            "stream=true goes with vocabulary=bytes",
        ),
        (
            GptConfig {
                stream: true,
                init: "weights".into(),
                ..pico()
            },
            "without init",
        ),
    ];
    for (config, expected) in refused {
        let error = Gpt::new(config, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn windows_of_a_streamed_text_lie_within_pieces_and_change_from_epoch_to_epoch() {
    let bytes: Vec<u8> = (0..6u32 << 20)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let text = |bytes: &[u8]| {
        let data = Data::file_in_memory("text", bytes.to_vec());
        Text::read_from(&data.single().unwrap(), Unit::Bytes).unwrap()
    };
    let windows = Windows::new(text(&bytes), 64, true).unwrap();
    let of_piece = (PIECE / 65) as u32;
    assert_eq!(windows.chunk().get(), of_piece);
    // Whole pieces of the first nine tenths.
    assert_eq!(windows.len(), 5 * u64::from(of_piece));
    let draw = |sample: u64, seed: u64| Draw { sample, seed };
    for sample in [
        0,
        1,
        u64::from(of_piece) - 1,
        u64::from(of_piece),
        windows.len() - 1,
    ] {
        let piece = sample / u64::from(of_piece) * PIECE;
        for seed in [0, 64, 65 * 7 + 40, u64::MAX] {
            let made = windows.drawn(&[draw(sample, seed)]);
            let start = piece + (sample % u64::from(of_piece) * 65 + seed % 65).min(PIECE - 65);
            assert!(start + 65 <= piece + PIECE);
            let expected: Vec<i32> = bytes[start as usize..][..65]
                .iter()
                .map(|x| i32::from(*x))
                .collect();
            assert_eq!(
                (&made.inputs[..], &made.targets[..]),
                (&expected[..64], &expected[1..])
            );
        }
    }
    assert!(windows.have(&[draw(3, 5)], Duration::ZERO));
    // Evaluations look at few pieces.
    let (starts, rest) = windows.held_out(2000);
    assert_eq!((starts.len(), rest), (2000, None));
    assert!(starts.is_sorted() && starts.iter().all(|start| *start >= windows.train()));
    let runs = starts.windows(2).filter(|pair| pair[1] != pair[0] + 64).count();
    assert_eq!(runs, 15);
    let short = Windows::new(text(&bytes[..2 << 20]), 64, true)
        .unwrap_err()
        .to_string();
    assert!(short.contains("many megabytes"), "{short}");
}

#[test]
fn the_held_out_text_is_predicted_once_from_end_to_end() {
    let task = gpt(pico());
    let (windows, rest) = task.dataset().held_out(2000);
    let mut next = task.dataset().train();
    for start in &windows {
        assert_eq!(*start, next);
        next += 64;
    }
    let (start, length) = rest.expect("the documentation's length is no multiple of 64");
    assert_eq!(
        (start, start + length as u64 + 1),
        (next, task.dataset().text().tokens())
    );
    // The last sample to train on ends where the held-out text begins.
    assert_eq!(task.dataset().len() - 1 + 64, task.dataset().train() - 1);
    let few = gpt(GptConfig {
        eval_windows: 7,
        ..pico()
    });
    let (some, rest) = few.dataset().held_out(7);
    assert_eq!((some.len(), rest), (7, None));
    assert!(some.iter().all(|start| windows.contains(start)) && some.is_sorted_by(|a, b| a < b));
    assert!(some[6] - some[0] >= windows.last().unwrap() - windows[0] - 64 * (windows.len() as u64 / 7 + 1));
}

#[test]
fn an_evaluation_is_the_mean_over_all_predictions() {
    let task = gpt(pico());
    let mut trainer = trainer(&task);
    let params = trainer.init();
    let device = Device::flex();
    let model = model_of(&*task, &params, &device);
    let (windows, rest) = task.dataset().held_out(2000);
    let one = |start, length| {
        let tokens = task.dataset().read(&[start], length);
        task.loss(&model, tokens, &device).into_scalar::<f32>()
    };
    let (start, length) = rest.unwrap();
    let mut sum: f32 = windows.iter().map(|start| 64.0 * one(*start, 64)).sum();
    sum += length as f32 * one(start, length);
    let mean = sum / (windows.len() * 64 + length) as f32;
    let eval = trainer.score(params).unwrap().unwrap();
    assert!((eval.loss - mean).abs() < 1e-4, "{} {mean}", eval.loss);
    assert!(eval.metrics.is_empty());
}

#[test]
fn what_comes_later_changes_nothing_before() {
    let task = gpt(pico());
    let device = Device::flex();
    let model = model_of(&*task, &trainer(&task).init(), &device);
    let logits = |tokens: [i32; 6]| {
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens.to_vec(), [1, 6]), &device);
        let features = model.features(tokens).reshape([6, 64]);
        model
            .logits(features)
            .into_data()
            .iter::<f32>()
            .collect::<Vec<_>>()
    };
    let (first, second) = (logits([1, 2, 3, 4, 5, 6]), logits([1, 2, 3, 4, 9, 9]));
    assert_eq!(first[..4 * 256], second[..4 * 256]);
    assert_ne!(first[4 * 256..5 * 256], second[4 * 256..5 * 256]);
}

#[test]
fn dropout_is_for_training_alone() {
    let mut with = trainer(&gpt(GptConfig {
        dropout: 0.3,
        ..pico()
    }));
    let mut without = trainer(&gpt(pico()));
    let params = without.init();
    let [a, b] = [&mut with, &mut without].map(|t| t.contribute(params.clone(), &[4, 9]).unwrap());
    assert_ne!(a.gradient, b.gradient);
    assert_eq!(with.score(params.clone()), without.score(params));
}

#[test]
fn pieces_on_several_cores_make_the_bits_of_one_after_the_other() {
    let task = gpt(pico());
    assert_eq!([1, 3, 12, 100].map(|samples| task.pieces(samples)), [0, 1, 4, 33]);
    let samples: Vec<u64> = (0..12).map(|i| 700 * i).collect();
    let contribute = |micro_batch| {
        let options = TrainerOptions {
            micro_batch,
            ..TrainerOptions::default()
        };
        let mut trainer = Trainer::new(Arc::clone(&task), &OpenDevice::cpu(), options).unwrap();
        trainer.contribute(trainer.init(), &samples).unwrap()
    };
    // Micro-batches of the same size as the pieces.
    let (pieces, micro_batches) = (contribute(0), contribute(3));
    assert_eq!(pieces.loss_sum, micro_batches.loss_sum);
    assert!(pieces.gradient == micro_batches.gradient);
    assert!(contribute(0).gradient == pieces.gradient);
    // Random numbers would come in another order each time.
    assert_eq!(
        gpt(GptConfig {
            dropout: 0.1,
            ..pico()
        })
        .pieces(100),
        1
    );
}

#[test]
fn computing_again_instead_of_keeping_changes_nothing() {
    let contribute = |recompute| {
        let mut trainer = trainer(&gpt(GptConfig { recompute, ..pico() }));
        trainer.contribute(trainer.init(), &[4, 9, 77]).unwrap()
    };
    let (kept, again) = (contribute(false), contribute(true));
    assert_eq!((kept.loss_sum, kept.gradient), (again.loss_sum, again.gradient));
}

#[test]
fn the_digest_is_the_text_s() {
    let path = file("digest", &"to be or not to be ".repeat(20));
    let task = Gpt::new(pico(), Some(&Data::open(&path).unwrap())).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_ne!(task.dataset().digest(), gpt(pico()).dataset().digest());
    assert_eq!(task.dataset().len(), 342 - 64);
}

#[test]
fn a_small_model_learns_the_tales_in_seconds() {
    let task = gpt(pico());
    let mut run = Run::new(trainer(&task), 3e-3, Schedule::Warmup { steps: 20 });
    run.steps(task.dataset().len(), 400, 8);
    let eval = run.worker.score(run.params).unwrap().unwrap();
    println!("after 400 steps of 512 tokens: {:.3}", eval.loss);
    // A model that knows nothing has a loss of 5.5, and one that knows how often each byte occurs, 3.0.
    assert!(eval.loss < 2.75, "{}", eval.loss);
}

#[test]
fn a_model_that_has_learnt_to_count_writes_what_it_has_learnt() {
    let path = file("count", &"0123456789".repeat(40));
    let config = GptConfig {
        vocabulary: Unit::Characters,
        context: 16,
        vocabulary_size: 12,
        ..pico()
    };
    let task = Arc::new(Gpt::new(config, Some(&Data::open(&path).unwrap())).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut run = Run::new(trainer(&task), 3e-3, Schedule::Constant);
    run.steps(task.dataset().len(), 60, 8);
    let device = Device::flex();
    let model = model_of(&*task, &run.params, &device);
    let write = |prompt: &str, temperature, seed| {
        let vocabulary = task.dataset().text().vocabulary();
        let choice = Choice {
            temperature,
            top_k: 0,
        };
        let prompt = vocabulary.encode(prompt).unwrap();
        let mut text = String::new();
        let mut whole = Whole {
            model: &model,
            device: &device,
        };
        let mut writer = Writer::new(&mut whole, vocabulary, 16, choice, seed);
        read_sync(writer.write(&prompt, 30, &mut |piece| {
            text.push_str(piece);
            Box::pin(std::future::ready(()))
        }))
        .unwrap();
        text
    };
    // Longer than the context, so that the window moves.
    assert_eq!(write("3456", 0.0, 0), "789012345678901234567890123456");
    assert_eq!(write("", 0.0, 0).len(), 30);
    let hot = write("3456", 3.0, 1);
    assert_eq!(write("3456", 3.0, 1), hot);
    assert_ne!(write("3456", 3.0, 2), hot);
}

#[test]
fn inner_steps_are_those_of_the_layouts_model() {
    let few = file("few", &"few letters\n".repeat(40));
    let data = Data::open(&few).unwrap();
    for vocabulary in [Unit::Bytes, Unit::Characters] {
        let config = || GptConfig { vocabulary, ..pico() };
        let config = || GptConfig {
            context: 16,
            ..config()
        };
        let with = Gpt::new(config(), Some(&data)).unwrap();
        let model = ModelSteps::of(&with, 3).unwrap();
        let without = Gpt::inner(config(), &model.layout, None).unwrap();
        assert_eq!(ModelSteps::of(&without, 3).unwrap(), model);
        let drawn = |task: &Gpt| {
            let mut all = Vec::new();
            draw(task, 3, &mut |_, read| {
                all.extend_from_slice(read().as_slice::<f32>().unwrap())
            })
            .unwrap();
            all
        };
        assert_eq!(drawn(&with), drawn(&without));
    }
    std::fs::remove_file(few).unwrap();
}

#[test]
fn a_model_starts_from_given_weights() {
    use bytes::Bytes;
    use safetensors::tensor::{Dtype, TensorView};
    let config = |init: &str| GptConfig {
        init: init.to_owned(),
        context: 16,
        ..pico()
    };
    let plain = Gpt::new(config(""), None).unwrap();
    let layout = crate::trainer::layout_of(&plain.model(&Device::flex()), |_| None).unwrap();
    // As an export has them, but for some that are changed or left out.
    let weights = |change: &dyn Fn(&str, &mut Vec<usize>) -> bool| {
        let tensors = layout.tensors.iter().filter_map(|own| {
            let mut shape = own.shape.clone();
            let values = (own.offset..own.offset + own.len()).flat_map(|i| (i as f32 / 8.0).to_le_bytes());
            change(&own.name, &mut shape).then(|| (own.name.clone(), shape, values.collect()))
        });
        let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors.collect();
        let views = tensors
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        Bytes::from(safetensors::serialize(views, None).unwrap())
    };
    let text = || Bytes::from("to be or not to be ".repeat(20));
    let read = |init: &str, weights: Bytes| {
        let files = [("input.txt", text()), ("start.safetensors", weights)];
        let files = files.map(|(name, bytes)| (name.to_owned(), bytes));
        Gpt::new(config(init), Some(&Data::folder_in_memory(files.to_vec())))
    };
    let all = weights(&|_, _| true);
    let task = Arc::new(read("start.safetensors", all.clone()).unwrap());
    let trainer = Trainer::new(task.clone(), &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
    let params = trainer.init();
    assert_eq!(params.len(), layout.len);
    assert!(
        params
            .iter()
            .enumerate()
            .all(|(i, value)| *value == i as f32 / 8.0)
    );
    // The text is the same, and the run is another.
    let fresh = read("", all.clone()).unwrap();
    assert_eq!(fresh.windows.text().digest(), task.windows.text().digest());
    let other = weights(&|_, shape| {
        shape.rotate_left(1);
        true
    });
    assert_ne!(fresh.dataset().digest(), task.dataset().digest());

    let told = |result: Result<Gpt, TaskError>| result.expect_err("an error").to_string();
    let said = told(read("start.safetensors", other));
    let (tokens, shape) = (&layout.tensors[0].name, &layout.tensors[0].shape);
    assert!(
        said.contains("start.safetensors does not fit the model")
            && said.contains(&format!(
                "`{tokens}` is [{}, {}], not {shape:?}",
                shape[1], shape[0]
            )),
        "{said}"
    );
    let said = told(read(
        "start.safetensors",
        weights(&|name, _| name.contains("weight")),
    ));
    assert!(said.contains("is missing"), "{said}");
    assert!(told(read("other.safetensors", all)).contains("has no other.safetensors"));
    assert!(told(Gpt::new(config("x"), None)).contains("--data FOLDER"));
    let file = Data::file_in_memory("text", text());
    assert!(told(Gpt::new(config("x"), Some(&file))).contains("--data FOLDER"));
    assert!(told(Gpt::inner(config("x"), &layout, None)).contains("cannot be split"));
    let empty = Data::folder_in_memory(Vec::new());
    assert!(told(Gpt::new(config(""), Some(&empty))).contains("has no input.txt"));
}

#[test]
fn half_of_the_heads_and_hidden_units_can_be_taken_out() {
    for bias in [false, true] {
        let config = GptConfig {
            preset: Preset::Pico,
            heads: 4,
            bias: Some(bias),
            ..GptConfig::default()
        };
        let pruning = Gpt::pruning(&config, &BTreeMap::new(), 0.5).unwrap().unwrap();
        let small = &pruning.config;
        assert_eq!((small.heads, small.head_size, small.hidden), (2, 16, 128));
        let task = |config: &GptConfig| Arc::new(Gpt::new(config.clone(), None).unwrap());
        let (task, smaller) = (task(&config), task(small));
        assert_eq!(trainer(&smaller).layout().len, smaller.shape.parameters());
        assert_pruned(&task, &pruning.units, &smaller);
    }
}
