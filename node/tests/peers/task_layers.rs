//! A stock task launches only kernels that its layers name, because a tab compiles nothing else.

use crate::common::computing_alone;
use annulus::data::Data;
use annulus::device::{DeviceKind, OpenDevice};
use annulus::task_factory::TaskFactory;
use annulus::tasks::digits::Digits;
use annulus::tasks::gpt::Gpt;
use annulus::tasks::graph::ModelFile;
use annulus::tasks::images::Images;
use annulus::trainer::TrainerOptions;
use annulus_images::{FILE, Facts, Records};
use annulus_shaders::KERNELS;
use annulus_shaders::launch::adapter_of;
use annulus_shaders::needs;
use annulus_table::Part;
use burn::tensor::wgpu::MemoryConfiguration;
use burn::tensor::{Device, DeviceKind as Selector};
use safetensors::tensor::{SafeTensors, TensorView};
use serde_json::{Value, json};

/// A task, its settings and its data.
type Case = (TaskFactory, Value, Option<Data>);

/// Every model, with sizes that differ in what kernels they take.
fn cases() -> Vec<Case> {
    let digits = ["linear", "mlp", "cnn"].map(|model| {
        let config = json!({"model": model, "hidden": 18, "train": 30, "test": 10});
        (TaskFactory::of::<Digits>(), config, None)
    });
    let gpt = [(32, "bytes"), (72, "characters"), (160, "bytes")].map(|(width, vocabulary)| {
        let config = json!({
            "layers": 1, "heads": 2, "width": width, "context": 7, "vocabulary": vocabulary, "eval_windows": 2,
        });
        (TaskFactory::of::<Gpt>(), config, None)
    });
    digits
        .into_iter()
        .chain(gpt)
        .chain(pictures())
        .chain(model_files())
        .collect()
}

/// Both models of pictures.
fn pictures() -> [Case; 2] {
    let (pixels, labels) = (vec![100; 12 * 10 * 10 * 3], [0, 1].repeat(6));
    let parts = [Part::Train, Part::Train, Part::Validation, Part::Test].repeat(3);
    let (mean, deviation) = Facts::measure(3, std::iter::once(&pixels[..]));
    let facts = Facts {
        name: "grey".into(),
        classes: vec!["a".into(), "b".into()],
        size: 10,
        channels: 3,
        mean,
        deviation,
        resized: String::new(),
        divided: String::new(),
        skipped: (0, Vec::new()),
    };
    let packed = Records::write(&facts, &labels, &parts, &pixels);
    ["cnn", "resnet"].map(|model| {
        let data = Data::file_in_memory(FILE, packed.clone());
        (
            TaskFactory::of::<Images>(),
            json!({"model": model, "width": 8}),
            Some(data),
        )
    })
}

/// Models from files, which have most patterns that become operations of ours.
fn model_files() -> Vec<Case> {
    let Some(folder) = crate::common::data("graph") else {
        return Vec::new();
    };
    let names = ["bert", "gpt2", "llama", "vit", "lstm", "tabular"];
    let case = |name: &str| {
        let model = std::fs::read(folder.join(format!("{name}.annulus.onnx"))).expect("a model");
        let reference = std::fs::read(folder.join(format!("{name}.safetensors"))).expect("a reference");
        let tensors = SafeTensors::deserialize(&reference).expect("safetensors");
        // The few samples of the reference, several times.
        let inputs = tensors.iter().filter_map(|(name, view)| {
            let mut shape = view.shape().to_vec();
            shape[0] *= 4;
            Some((
                name.strip_prefix("input.")?,
                view.dtype(),
                shape,
                view.data().repeat(4),
            ))
        });
        let inputs: Vec<_> = inputs.collect();
        let views = inputs.iter().map(|(name, dtype, shape, bytes)| {
            (
                *name,
                TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"),
            )
        });
        let samples = safetensors::serialize(views, None).expect("safetensors");
        let files = [("model.onnx", model), ("samples.safetensors", samples)];
        let files = files.map(|(name, bytes)| (name.to_owned(), bytes.into()));
        let data = Data::folder_in_memory(files.to_vec());
        (
            TaskFactory::of::<ModelFile>(),
            json!({"held_out": 0.25}),
            Some(data),
        )
    };
    names.into_iter().map(case).collect()
}

/// A step and an evaluation.
fn train((factory, config, data): &Case, open: &OpenDevice) -> Vec<needs::Layer> {
    let task = (factory.load)(&config.to_string(), data.as_ref()).expect("settings of the task");
    let mut worker = task.worker_factory(open.clone(), TrainerOptions::default())().expect("a trainer");
    let params = worker.init();
    worker.contribute(params.clone(), &[0, 1, 2]).expect("a step");
    worker.score(params).expect("an evaluation");
    task.layers
}

fn launches() -> Vec<u64> {
    KERNELS.iter().map(|kernel| kernel.launches()).collect()
}

/// Alone: launches are counted for the whole process.
#[test]
fn stock_tasks_launch_nothing_but_what_their_layers_need() {
    let _turn = computing_alone();
    let options = |kind| {
        let options = Device::wgpu_options().device_kind(kind);
        options.memory_config(MemoryConfiguration::ExclusivePages)
    };
    // Where nothing is said of the kind, a program is taken for a GPU: so both choices of kernels are tried.
    let kinds = [Selector::Cpu, Selector::DefaultDevice];
    let devices: Vec<Device> = kinds
        .into_iter()
        .filter_map(|kind| options(kind).init().ok())
        .collect();
    if devices.is_empty() {
        println!("skipped: this machine has no adapter, not even a software one");
    }
    for device in devices {
        let adapter = adapter_of(&device).expect("a GPU, or what plays one");
        let open = OpenDevice {
            device,
            kind: DeviceKind::Gpu,
            ..OpenDevice::cpu()
        };
        for case in cases() {
            let before = launches();
            let layers = train(&case, &open);
            let (factory, config, _) = case;
            let needed = needs::kernels(&layers, adapter);
            let counts = launches().into_iter().zip(before);
            let launched = KERNELS
                .iter()
                .zip(counts)
                .filter(|(_, (now, before))| now > before);
            let launched: Vec<&str> = launched.map(|(kernel, _)| kernel.name).collect();
            let unknown = |name: &&str| !needed.iter().any(|kernel| kernel.name == *name);
            let undeclared: Vec<&str> = launched.iter().copied().filter(unknown).collect();
            println!(
                "{} {config} on {adapter:?}: {} of {} launched",
                factory.name,
                launched.len(),
                needed.len()
            );
            assert!(!launched.is_empty(), "{config} on {adapter:?}");
            assert!(undeclared.is_empty(), "{config} on {adapter:?}: {undeclared:?}");
        }
    }
}
