//! The digits task as a whole: learning, data, settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::device::OpenDevice;
use crate::task::{Dataset, Eval};
use crate::tasks::testing::{assert_pruned, by_adam};
use crate::trainer::{Trainer, TrainerOptions, Worker};

/// The folder of real data for tests, if this machine has it.
fn data_folder(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("ANNULUS_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    let folder = root.join(name);
    if !folder.is_dir() {
        println!("skipped: no {} (set ANNULUS_DATA)", folder.display());
        return None;
    }
    Some(folder)
}

fn digits(config: DigitsConfig, data: Option<&Path>) -> Arc<Digits> {
    let data = data.map(|path| Data::open(path).unwrap());
    Arc::new(Digits::new(config, data.as_ref()).unwrap())
}

/// Trains by Adam with its usual settings, batch 64, on samples in their order.
fn train(task: &Arc<Digits>, epochs: u64) -> Eval {
    let device = OpenDevice::cpu();
    let options = TrainerOptions::default();
    let mut worker = Trainer::new(Arc::clone(task), &device, options).unwrap();
    let order: Vec<u64> = (0..task.dataset().len()).collect();
    let params = by_adam(&mut worker, 1e-3, (0..epochs).flat_map(|_| order.chunks(64)));
    worker.score(params).unwrap().unwrap()
}

fn accuracy(model: ModelKind, epochs: u64, data: Option<&Path>) -> f32 {
    let config = DigitsConfig {
        model,
        ..DigitsConfig::default()
    };
    let eval = train(&digits(config, data), epochs);
    println!("{model:?}, {epochs} epochs: {eval:?}");
    eval.metrics["accuracy"]
}

#[test]
fn drawn_digits_need_more_than_a_linear_model() {
    let linear = accuracy(ModelKind::Linear, 5, None);
    let mlp = accuracy(ModelKind::Mlp, 5, None);
    assert!((0.80..=0.88).contains(&linear));
    assert!(mlp >= 0.95);
}

#[test]
fn the_cnn_learns() {
    assert!(accuracy(ModelKind::Cnn, 1, None) >= 0.90);
}

#[test]
fn mnist_is_learnt_as_well_as_elsewhere() {
    let Some(folder) = data_folder("mnist") else {
        return;
    };
    // A run with the same settings in PyTorch gives 94.5 %.
    let mlp = accuracy(ModelKind::Mlp, 5, Some(&folder));
    assert!((0.935..0.97).contains(&mlp));
}

#[test]
fn the_digest_tells_data_sets_apart() {
    let small = DigitsConfig {
        train: 100,
        test: 10,
        ..DigitsConfig::default()
    };
    let digest = |config| digits(config, None).dataset().digest();
    let first = digest(small.clone());
    assert_eq!(digest(small.clone()), first);
    let linear = DigitsConfig {
        model: ModelKind::Linear,
        ..small.clone()
    };
    assert_eq!(digest(linear), first);
    // Moving the border between training and test data changes the training data.
    let shifted = DigitsConfig {
        train: 99,
        test: 11,
        ..small
    };
    assert_ne!(digest(shifted), first);
}

#[test]
fn half_of_the_hidden_units_can_be_taken_out() {
    let config = |model| DigitsConfig {
        model,
        train: 100,
        test: 10,
        ..DigitsConfig::default()
    };
    for model in [ModelKind::Mlp, ModelKind::Cnn] {
        let pruning = Digits::pruning(&config(model), &BTreeMap::new(), 0.5)
            .unwrap()
            .unwrap();
        let (task, smaller) = (digits(config(model), None), digits(pruning.config, None));
        assert_eq!(smaller.config.hidden, 64);
        assert_pruned(&task, &pruning.units, &smaller);
    }
    assert_eq!(
        Digits::pruning(&config(ModelKind::Linear), &BTreeMap::new(), 0.5).unwrap(),
        None
    );
}

#[path = "../../../images/src/testing.rs"]
#[allow(dead_code, missing_docs, reason = "shared with the tests of annulus-images")]
mod png;

#[test]
fn a_picture_file_is_read_in_dark_on_light_as_in_light_on_dark() {
    let config = DigitsConfig {
        train: 100,
        test: 10,
        ..DigitsConfig::default()
    };
    let task = digits(config, None);
    let worker = Trainer::new(Arc::clone(&task), &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
    let tensors = Tensors::of(worker.layout(), &worker.init());
    let metadata = task
        .metadata()
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    let predictor = Digits::predictor(&metadata.collect(), &tensors).unwrap().unwrap();
    let file = |value: &dyn Fn(f32) -> f32, at: usize| {
        let pixels = task.pictures.test(at..at + 1).pixels;
        let pixels: Vec<u8> = pixels
            .iter()
            .map(|pixel| (255.0 * value(*pixel)).round() as u8)
            .collect();
        png::png((28, 28), (0, 8), 28, &pixels)
    };
    for at in 0..10 {
        let (light, dark) = (file(&|pixel| pixel, at), file(&|pixel| 1.0 - pixel, at));
        let answer = predictor.answer_file(&light).unwrap();
        assert_eq!(answer, predictor.answer_file(&dark).unwrap());
        // The same as the model says of the pixels.
        let device = burn::tensor::Device::flex();
        let model = with_tensors(task.model(&device), &tensors, &device).unwrap();
        let (pixels, _) = task.pictures.test(at..at + 1).into_tensors(&device);
        let logits = floats(model.forward(pixels)).unwrap();
        let best = (0..10).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        assert_eq!(answer["predictions"][0]["digit"], best.to_string());
        let table = predictor.predict("a.png", &dark).unwrap().text;
        assert!(table.starts_with("file,digit_predicted,digit_0,"), "{table}");
        assert!(table.contains(&format!("\na.png,{best},0.")), "{table}");
    }
    assert!(predictor.predict("a.txt", b"no picture").is_err());
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let default = DigitsConfig::default;
    let configs = [
        DigitsConfig {
            train: 0,
            ..default()
        },
        DigitsConfig {
            test: usize::MAX,
            ..default()
        },
        DigitsConfig {
            hidden: 0,
            ..default()
        },
    ];
    for config in configs {
        let error = Digits::new(config, None).unwrap_err().to_string();
        assert!(error.contains("is not between 1 and"), "{error}");
    }
}
