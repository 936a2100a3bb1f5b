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
