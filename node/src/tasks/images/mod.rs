//! Tells which class a picture shows. The data is a folder of PNG and JPEG files, with one folder for each class.
//!
//! The peer that founds the run packs the pictures into one file ([`Task::pack`]); everybody learns from that. `annulus-images`
//! does this, and computes predictions. This task adds the model and its loss: a convolutional or a residual network, with group
//! norm, since batch norm would make a sample's gradient depend on the others of its batch.

pub mod model;
mod pruning;

use annulus_images::{Augment, FILE, Facts, GROUP, Network, Options, Plan, Predictor, Records};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::num::{NonZeroU32, NonZeroU64};
#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use super::init;
use crate::task::{
    Data, Dataset, Draw, Finished, Layer, Predict, Pruning, Right, Scores, Task, TaskError, Tensors,
    TestPart, Tested, kept, logarithms,
};
use crate::tasks::table::{json, read};
use crate::trainer::with_parameters;
use annulus_core::Digest;
use annulus_table::{ClassWeights, Predicted, Target};
use model::ConvNet;

/// Pictures to evaluate at once.
const EVALUATION_BATCH: usize = 128;

/// How to give the data as a folder.
const WITH_FOLDER: &str = "give --data FOLDER with the pictures.safetensors of a run's folder";

/// Pictures for one processor core at once; fewer would only wait for each other.
const PIECE: usize = 8;

/// Pictures, and the shape of their model.
pub struct Images {
    data: Pictures,
    plan: Plan,
    options: Options,
    /// The parameters to start from, in the model's order, if the settings name some.
    start: Option<Vec<f32>>,
}

/// The training pictures.
pub struct Pictures {
    records: Records,
    augment: Augment,
    /// The weight of each class in the loss.
    weights: Vec<f32>,
    digest: Digest,
}

/// Some pictures and their classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// By picture, channel, row and column.
    pixels: Vec<f32>,
    /// For each picture one number for each class: the class's weight, the others 0.
    targets: Vec<f32>,
    count: usize,
}

impl Task for Images {
    type Model = ConvNet;
    type Dataset = Pictures;
    type Config = Options;

    const NAME: &'static str = "images";
    const ABOUT: &'static str =
        "which class does a picture show? --data FOLDER with a folder of PNG and JPEG files for each class";
    // Tried on the pictures of docs/images.md.
    const SETTINGS: &'static [&'static str] = &[
        "rounds=600",
        "optimizer=adamw",
        "lr=3e-3",
        "weight_decay=0.05",
        "schedule=cosine",
        "warmup=50",
    ];
    const PREDICTS: Option<&'static str> = Some("PICTURE");
    const FILES: &'static [&'static str] = &["safetensors"];
    const PACKED: Option<&'static str> = Some(FILE);
    const HELP: &'static [(&'static str, &'static str)] = &[
        (
            "model=cnn|resnet",
            "convolutions, or residual blocks with group norm",
        ),
        ("width=N", "channels of the first convolution, a multiple of 8"),
        (
            "blocks=N",
            "residual blocks of the resnet for each of its three sizes",
        ),
        (
            "size=N",
            "pixels in each direction that pictures are brought to (default: their own size up to 64, or 32 or 64)",
        ),
        (
            "augment=auto|off|flip|crop|flip,crop",
            "how training pictures are varied (default: colour ones flipped and shifted, grey ones shifted)",
        ),
        (
            "bad_files=fail|skip",
            "stop at files that cannot be used, or go on without them",
        ),
        (
            "class_weights=off|balanced",
            "let all classes weigh the same in the loss, however rare",
        ),
        init::HELP,
    ];

    #[cfg(not(target_family = "wasm"))]
    fn is_for(folder: &Path) -> bool {
        annulus_images::is_of_pictures(folder)
    }

    #[cfg(not(target_family = "wasm"))]
    fn pack(options: &Options, folder: &Path, tell: &mut dyn FnMut(u64, u64)) -> Result<Vec<u8>, TaskError> {
        Ok(annulus_images::pack(folder, options, tell)?)
    }

    fn new(options: Options, data: Option<&Data>) -> Result<Self, TaskError> {
        let data =
            data.ok_or("the task images needs pictures: --data FOLDER, with a folder for each class")?;
        let file = match data.is_folder() {
            false => data.single()?,
            true => data.file(FILE)?.ok_or_else(|| {
                let path = data.path().display();
                format!(
                    "{path} is a folder, which only the peer that founds a run packs: leave --data out, or name the {FILE} \
                     of its run's folder"
                )
            })?,
        };
        let mut bytes = Vec::with_capacity(usize::try_from(file.size()?)?);
        file.reader()?.read_to_end(&mut bytes)?;
        let records = Records::read(&file.path().display().to_string(), bytes)?;
        let size = records.facts.size;
        if ![0, size].contains(&options.size) {
            return Err(format!("size={} does not fit packed pictures of {size} x {size}: leave it out, or pack the folder again", options.size).into());
        }
        let plan = Plan::of(&options, &records.facts)?;
        let target = records.target();
        let model = || ConvNet::new(&plan, &Device::flex());
        let start = init::start(&options.init, (Some(data), WITH_FOLDER), model)?;
        let (start, weights_file) = start.unzip();
        Ok(Self {
            start,
            plan,
            data: Pictures {
                augment: options.augment,
                weights: match options.class_weights {
                    ClassWeights::Off => vec![1.0; target.outputs()],
                    ClassWeights::Balanced => target.balanced(),
                },
                digest: match weights_file {
                    None => Digest(records.digest()),
                    Some(file) => Digest::of(&[&records.digest()[..], &file].concat()),
                },
                records,
            },
            options,
        })
    }

    fn dataset(&self) -> &Pictures {
        &self.data
    }

    fn description(&self) -> String {
        self.data.records.describe(self.data.augment)
    }

    fn suited_batch(&self) -> Option<NonZeroU32> {
        let pictures = self.data.len() as usize;
        NonZeroU32::new((pictures / 20).clamp(16, 64).min(pictures) as u32)
    }

    fn suited_rounds(&self) -> Option<NonZeroU64> {
        // Tried on the pictures of docs/images.md: ten passes, and more over few pictures.
        let batch = self.suited_batch()?.get();
        NonZeroU64::new((10 * self.data.len() / u64::from(batch)).clamp(600, 20_000))
    }

    fn layers(&self) -> Vec<Layer> {
        vec![
            Layer::Linear,
            Layer::Convolution,
            Layer::Pool,
            Layer::Norm { width: 4 },
        ]
    }

    fn model(&self, device: &Device) -> ConvNet {
        let model = ConvNet::new(&self.plan, device);
        match &self.start {
            Some(values) => with_parameters(model, values, device),
            None => model,
        }
    }

    fn loss(&self, model: &ConvNet, batch: Batch, device: &Device) -> Tensor<1> {
        let count = batch.count;
        let (pictures, targets) = self.tensors(batch, device);
        let logits = model.forward(&self.plan, pictures);
        (log_softmax(logits, 1) * targets)
            .sum()
            .mul_scalar(-1.0 / count as f32)
    }

    fn evaluate(&self, model: &ConvNet, device: &Device) -> Option<Scores> {
        let pictures = &self.data.records.split.validation;
        let zero = || Tensor::<1>::zeros([1], device);
        let (mut loss, mut right) = (zero(), zero());
        for part in pictures.chunks(EVALUATION_BATCH) {
            let plain = |at: &usize, out: &mut Vec<f32>| self.data.records.input(*at, out);
            let (pictures, targets) = self.tensors(self.data.of(part, plain), device);
            let logits = model.forward(&self.plan, pictures);
            let is = targets.clone().argmax(1).equal(logits.clone().argmax(1));
            right = right + is.float().sum();
            loss = loss - (log_softmax(logits, 1) * targets).sum();
        }
        let count = pictures.len() as f32;
        Some(Scores::from(loss / count).with("accuracy", right / count))
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        vec![
            ("pictures", json(&self.data.records.facts)),
            ("options", json(&self.options)),
            (
                "input",
                "channels, rows and columns of the middle square, each (value - mean) / deviation".into(),
            ),
            (
                "linear",
                "fc: y = x @ weight + bias, with weight [in, out]".into(),
            ),
            ("norms", "group norm in groups of 8 channels, epsilon 1e-5".into()),
        ]
    }

    fn finish(&self, tensors: &Tensors) -> Result<Option<Finished>, TaskError> {
        let records = &self.data.records;
        let predictor = predictor(records.facts.clone(), &self.plan, tensors)?;
        let of = |pictures: &[usize]| predictor.judge(records, pictures);
        let (validation, test) = (of(&records.split.validation), of(&records.split.test));
        let target: Target = records.target();
        Ok(Some(Finished {
            report: format!("{}\n", test.describe("test", "pictures", &target)),
            card: predictor.card(&test),
            metadata: vec![("validation", json(&validation)), ("test", json(&test))],
        }))
    }

    fn test<'a>(
        &'a self,
        _metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<TestPart<'a>>, TaskError> {
        let records = &self.data.records;
        let predictor = predictor(records.facts.clone(), &self.plan, tensors)?;
        let tested = move |pictures: &'a [usize]| {
            let answers = predictor.answers(records, pictures);
            Ok(Tested {
                answers: answers.iter().flat_map(|answer| logarithms(answer)).collect(),
                right: Right::Classes(pictures.iter().map(|at| records.label(*at)).collect()),
            })
        };
        let parts = records.split.test.chunks(EVALUATION_BATCH);
        Ok(Some(Box::new(parts.map(tested))))
    }

    fn predictor(
        metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<Box<dyn Predict>>, TaskError> {
        let facts: Facts = read(metadata, "pictures")?;
        let options: Options = read(metadata, "options")?;
        let plan = Plan::of(&options, &facts)?;
        Ok(Some(Box::new(Answers(predictor(facts, &plan, tensors)?))))
    }

    fn pruning(
        options: &Options,
        metadata: &BTreeMap<String, String>,
        keep: f64,
    ) -> Result<Option<Pruning<Options>>, TaskError> {
        let plan = Plan::of(options, &read(metadata, "pictures")?)?;
        let smaller = Options {
            width: kept(plan.width, keep, GROUP),
            init: String::new(),
            ..options.clone()
        };
        // The narrowest has one group.
        Ok((smaller.width < plan.width).then(|| Pruning {
            units: pruning::groups(&plan, smaller.width),
            metadata: vec![("options", json(&smaller))],
            config: smaller,
        }))
    }

    fn pieces(&self, samples: usize) -> usize {
        samples / PIECE
    }
}

impl Images {
    /// Pictures `[n, channels, size, size]` and targets `[n, classes]`.
    fn tensors(&self, batch: Batch, device: &Device) -> (Tensor<4>, Tensor<2>) {
        let Facts { size, channels, .. } = self.data.records.facts;
        let pixels = TensorData::new(batch.pixels, [batch.count, channels, size, size]);
        let targets = TensorData::new(batch.targets, [batch.count, self.plan.outputs]);
        (
            Tensor::from_data(pixels, device),
            Tensor::from_data(targets, device),
        )
    }
}

impl Pictures {
    /// The pictures at some places, of which `input` appends the pixels.
    fn of(&self, places: &[usize], mut input: impl FnMut(&usize, &mut Vec<f32>)) -> Batch {
        let classes = self.weights.len();
        let mut pixels = Vec::with_capacity(places.len() * self.records.facts.record());
        let mut targets = vec![0.0; places.len() * classes];
        for (at, targets) in places.iter().zip(targets.chunks_exact_mut(classes)) {
            input(at, &mut pixels);
            let class = self.records.label(*at);
            targets[class] = self.weights[class];
        }
        Batch {
            pixels,
            targets,
            count: places.len(),
        }
    }

    fn place(&self, sample: u64) -> usize {
        self.records.split.train[sample as usize]
    }
}

impl Dataset for Pictures {
    type Batch = Batch;

    fn len(&self) -> u64 {
        self.records.split.train.len() as u64
    }

    /// Covers all parts, since moving a border between them changes the training pictures.
    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, samples: &[u64]) -> Batch {
        let places: Vec<usize> = samples.iter().map(|sample| self.place(*sample)).collect();
        self.of(&places, |at, out| self.records.input(*at, out))
    }

    fn drawn(&self, draws: &[Draw]) -> Batch {
        let places: Vec<usize> = draws.iter().map(|draw| self.place(draw.sample)).collect();
        let mut seeds = draws.iter().map(|draw| draw.seed);
        self.of(&places, |at, out| {
            let seed = seeds.next().unwrap_or_default();
            self.records.varied(*at, seed, self.augment, out);
        })
    }
}

fn predictor(facts: Facts, plan: &Plan, tensors: &Tensors) -> Result<Predictor, TaskError> {
    let network = Network::of(plan, |name| tensors.get(name));
    let network = network.ok_or("the tensors are not those of the pictures' model")?;
    Ok(Predictor::new(facts, network))
}

/// The answer to rows.
#[cfg(not(target_family = "wasm"))]
const READS_PICTURES: &str = "this model reads pictures: send one with Content-Type: image/png or image/jpeg";

/// A model file's predictor.
#[cfg_attr(target_family = "wasm", expect(dead_code, reason = "tabs read no pictures"))]
struct Answers(Predictor);

#[cfg(not(target_family = "wasm"))]
impl Predict for Answers {
    fn predict(&self, name: &str, picture: &[u8]) -> Result<Predicted, TaskError> {
        Ok(self.0.predict(name, picture)?.into())
    }

    fn answer_rows(&self, _rows: &[u8]) -> Result<Predicted, TaskError> {
        Err(READS_PICTURES.into())
    }

    fn answer(&self, _rows: &Value) -> Result<Value, TaskError> {
        Err(READS_PICTURES.into())
    }

    fn inputs(&self) -> Value {
        serde_json::json!({"target": annulus_images::TARGET, "inputs": [{"name": "picture", "kind": "picture"}]})
    }

    fn predict_folder(&self, folder: &Path) -> Result<Predicted, TaskError> {
        Ok(self.0.predict_folder(folder)?.into())
    }

    fn answer_file(&self, picture: &[u8]) -> Result<Value, TaskError> {
        Ok(self.0.answer_json(picture)?)
    }
}

/// A tab has no codec.
#[cfg(target_family = "wasm")]
impl Predict for Answers {
    fn predict(&self, _name: &str, _picture: &[u8]) -> Result<Predicted, TaskError> {
        Err("pictures are decoded by the native program only".into())
    }

    fn answer(&self, _rows: &Value) -> Result<Value, TaskError> {
        Err("pictures are decoded by the native program only".into())
    }

    fn inputs(&self) -> Value {
        Value::Null
    }
}

#[cfg(test)]
mod tests;
