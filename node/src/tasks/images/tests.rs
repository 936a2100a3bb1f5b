//! The images task as a whole: learning, variation, equality of both ways to compute, metadata.

use super::*;
use crate::device::OpenDevice;
use crate::task::batch_of;
use crate::task_factory::TaskFactory;
use crate::tasks::testing::{assert_pruned, by_adam, weights_file};
use crate::trainer::{Trainer, TrainerOptions, Worker};
use annulus_images::Model;
use annulus_table::{Judged, Part};
use std::sync::Arc;

/// Pictures of 16 x 16 with a bright bar, lying or standing, somewhere among noise. Each part has some of both.
fn bars(count: usize, channels: usize) -> Vec<u8> {
    let noise = |at: usize| blake3::hash(&at.to_le_bytes()).as_bytes()[0];
    let (mut pixels, mut labels, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for picture in 0..count {
        let (stands, place) = (picture % 2, 3 + usize::from(noise(picture)) % 10);
        for at in 0..256 {
            let (row, column) = (at / 16, at % 16);
            let along = if stands == 1 { column } else { row };
            let light = if along == place { 150 } else { 0 };
            pixels.extend((0..channels).map(|of| light + noise(picture * 1024 + at + of * 256) / 3));
        }
        labels.push(stands as u16);
        parts.push(
            [
                Part::Train,
                Part::Train,
                Part::Train,
                Part::Validation,
                Part::Test,
            ][picture / 2 % 5],
        );
    }
    let length = 256 * channels;
    let (mean, deviation) = Facts::measure(channels, pixels.chunks(length));
    let facts = Facts {
        name: "bars".into(),
        classes: vec!["lies".into(), "stands".into()],
        size: 16,
        channels,
        mean,
        deviation,
        resized: String::new(),
        divided: "split by draw".into(),
        skipped: (0, Vec::new()),
    };
    Records::write(&facts, &labels, &parts, &pixels)
}

fn task(options: Options, channels: usize) -> Arc<Images> {
    let data = Data::file_in_memory(FILE, bars(400, channels));
    Arc::new(Images::new(options, Some(&data)).unwrap())
}

fn worker(task: &Arc<Images>) -> Trainer<Images> {
    let options = TrainerOptions {
        seed: 3,
        ..TrainerOptions::default()
    };
    Trainer::new(Arc::clone(task), &OpenDevice::cpu(), options).unwrap()
}

/// Trains by Adam with its usual settings.
fn train(task: &Arc<Images>, steps: usize) -> (Trainer<Images>, Vec<f32>, Tensors) {
    let mut worker = worker(task);
    let draws: Vec<u64> = (0..32 * steps as u64).collect();
    let params = by_adam(&mut worker, 5e-3, draws.chunks(32));
    let tensors = Tensors::of(worker.layout(), &params);
    (worker, params, tensors)
}

#[test]
fn both_models_learn_and_their_files_predict_as_they_do() {
    for (model, channels) in [(Model::Cnn, 1), (Model::Resnet, 3)] {
        let options = Options {
            model,
            width: 8,
            ..Options::default()
        };
        let task = task(options, channels);
        let (mut worker, params, tensors) = train(&task, 50);
        let eval = worker.score(params.clone()).unwrap().unwrap();
        println!("{model:?}: {} parameters, {eval:?}", params.len());
        assert!(eval.metrics["accuracy"] > 0.9, "{eval:?}");

        let finished = task.finish(&tensors).unwrap().unwrap();
        let (_, test) = finished.metadata.iter().find(|(key, _)| *key == "test").unwrap();
        let test: Judged = serde_json::from_str(test).unwrap();
        assert_eq!((test.rows, test.metrics[0].name.as_str()), (80, "accuracy"));
        assert!(test.metrics[0].value > 0.9 && test.constant[0].value < 0.6);
        assert!(
            finished.report.contains("test (80 pictures): accuracy"),
            "{}",
            finished.report
        );
        assert!(finished.card.contains("\n| accuracy | "), "{}", finished.card);

        // The loops that predict give what Burn's layers give, up to rounding.
        let device = Device::flex();
        let burn = crate::trainer::model_of(&*task, &params, &device);
        let network = Network::of(&task.plan, |name| tensors.get(name)).unwrap();
        let places = task.data.records.split.test[..9].to_vec();
        let batch = task.data.of(&places, |at, out| task.data.records.input(*at, out));
        let (pixels, _) = task.tensors(batch.clone(), &device);
        let logits: Vec<f32> = burn.forward(&task.plan, pixels).to_data().try_to_vec().unwrap();
        for (input, logits) in batch.pixels.chunks(256 * channels).zip(logits.chunks(2)) {
            for (own, burns) in network.outputs(input, 16).iter().zip(logits) {
                assert!((own - burns).abs() < 1e-3, "{own} {burns}");
            }
        }

        // The metadata is enough for a predictor.
        let all = task.metadata().into_iter().chain(finished.metadata);
        let mut metadata: BTreeMap<String, String> =
            all.map(|(key, value)| (key.to_owned(), value)).collect();
        let factory = TaskFactory::of::<Images>();
        assert!((factory.predictor)(&metadata, &tensors).unwrap().is_some());
        metadata.remove("pictures");
        let told = (factory.predictor)(&metadata, &tensors)
            .err()
            .unwrap()
            .to_string();
        assert!(told.contains("says nothing of its pictures"), "{told}");
    }
}

#[test]
fn a_draw_is_varied_alike_everywhere_and_otherwise_in_each_epoch() {
    let task = task(Options::default(), 3);
    let data = task.dataset();
    let count = data.len();
    let pixels = |draws: &[u64]| batch_of(data, 7, draws).pixels;
    assert_eq!(pixels(&[5, 9]), [pixels(&[5]), pixels(&[9])].concat());
    let epochs: std::collections::HashSet<Vec<u32>> = (0..30)
        .map(|epoch| pixels(&[5 + epoch * count]).iter().map(|x| x.to_bits()).collect())
        .collect();
    assert!(epochs.len() > 15, "{}", epochs.len());
    assert_ne!(batch_of(data, 8, &[5, 6, 7]).pixels, pixels(&[5, 6, 7]));
    let off = Options {
        augment: Augment::Off,
        ..Options::default()
    };
    let plain = super::tests::task(off, 3);
    let plain = |draw| batch_of(plain.dataset(), 7, &[draw]);
    assert_eq!(plain(5), plain(5 + count));
    assert_eq!(plain(5), data.batch(&[5]));

    // So do the gradients.
    let mut worker = worker(&task);
    let params = worker.init();
    let gradient = |worker: &mut Trainer<Images>, draws: &[u64]| {
        worker.contribute(params.clone(), draws).unwrap().gradient
    };
    let first = gradient(&mut worker, &[5, 6, 7]);
    assert_eq!(gradient(&mut worker, &[5, 6, 7]), first);
    assert_ne!(gradient(&mut worker, &[5 + count, 6 + count, 7 + count]), first);
}

#[test]
fn data_that_does_not_suit_gets_advice() {
    let told = |options: Options, data: Option<&Data>| Images::new(options, data).err().unwrap().to_string();
    assert!(told(Options::default(), None).contains("--data FOLDER, with a folder for each class"));
    let folder = Data::open(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert!(told(Options::default(), Some(&folder)).contains("leave --data out"));
    let data = Data::file_in_memory(FILE, bars(40, 1));
    let options = Options {
        size: 32,
        ..Options::default()
    };
    assert!(told(options, Some(&data)).contains("does not fit packed pictures of 16 x 16"));
    let data = Data::file_in_memory("x.safetensors", "hello");
    assert!(told(Options::default(), Some(&data)).contains("x.safetensors is no file of packed pictures"));
}

#[test]
fn half_of_the_channels_can_be_taken_out() {
    for (model, blocks) in [(Model::Cnn, 1), (Model::Resnet, 2)] {
        let options = Options {
            model,
            blocks,
            ..Options::default()
        };
        let task = task(options.clone(), 3);
        let metadata = task
            .metadata()
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let pruning = Images::pruning(&options, &metadata, 0.5).unwrap().unwrap();
        assert_eq!(pruning.config.width, 8);
        let smaller = self::task(pruning.config, 3);
        assert_pruned(&task, &pruning.units, &smaller);
        let narrow = Images::pruning(&smaller.options, &metadata, 0.5).unwrap();
        assert_eq!(narrow, None);

        // A run that starts from the smaller model.
        let layout = worker(&smaller).layout().clone();
        let params = vec![0.25; layout.len];
        let files = [
            (FILE, bars(400, 3)),
            ("start.safetensors", weights_file(&layout, &params)),
        ];
        let files = files
            .map(|(name, bytes)| (name.to_owned(), bytes.into()))
            .to_vec();
        let config = Options {
            init: "start.safetensors".into(),
            ..smaller.options.clone()
        };
        let further = Images::new(config, Some(&Data::folder_in_memory(files))).unwrap();
        assert_ne!(further.dataset().digest(), smaller.dataset().digest());
        assert_eq!(worker(&Arc::new(further)).init(), params);
    }
}
