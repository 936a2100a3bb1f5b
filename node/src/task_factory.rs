//! A task without its type, for a program that knows several tasks by name.

use crate::device::OpenDevice;
#[cfg(not(target_family = "wasm"))]
use crate::task::FileTensor;
use crate::task::{Data, Dataset, Finished, Predict, Pruning, Rows, Task, TaskError, Tensors, Tested};
#[cfg(not(target_family = "wasm"))]
use crate::trainer::span::{InSteps, Inference, Space, Weights};
use crate::trainer::span::{Look, ModelSteps, SpanTrainer, SpanWorker, draw};
use crate::trainer::{Trainer, TrainerOptions, Worker, WorkerError};
use annulus_core::{Digest, Layout};
use annulus_shaders::needs::Layer;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Makes a worker. Each thread that needs one calls it.
pub type WorkerFactory = Arc<dyn Fn() -> Result<Box<dyn Worker>, WorkerError> + Send + Sync>;

/// How to make a task.
#[derive(Clone, Copy)]
pub struct TaskFactory {
    /// The task's name on the command line.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Run settings that suit it, as `key=value`.
    pub run_settings: &'static [&'static str],
    /// Those for a search in their place; empty: it searches nothing.
    pub search_settings: &'static [&'static str],
    /// Why this program alone cannot compute its models, and how to take part; none: it can.
    pub elsewhere: Option<&'static str>,
    /// What its models predict from, as a person names it; none if they do not.
    pub predicts: Option<&'static str>,
    /// Endings of data files for which it is the task where the user names none.
    pub files: &'static [&'static str],
    /// Whether it is the task for a folder of data where the user names none.
    pub is_for: fn(&Path) -> bool,
    /// The name of the file that it packs data into; none: it reads all data as it is.
    pub packed: Option<&'static str>,
    /// Whether data must be packed, where `packed` names a file.
    pub must_pack: fn(&Path) -> bool,
    /// Packs data: settings as JSON text, where the data is, and what hears how many of how many steps are done.
    pub pack: PackData,
    /// Its settings with their default values: an object, or null if it has none.
    pub defaults: fn() -> Value,
    /// What its settings do: `key=value` as it is typed, and one line.
    pub help: &'static [(&'static str, &'static str)],
    /// Whether it can read these settings, as JSON text; if not, what they must be.
    pub check: fn(&str) -> Result<(), String>,
    /// Loads it: settings as JSON text, and the data, if the user gave any.
    pub load: fn(&str, Option<&Data>) -> Result<LoadedTask, TaskError>,
    /// Whether inner steps need this file of the data; none: they need no file.
    pub inner: Option<fn(&str) -> bool>,
    /// Loads it for a peer that computes only inner steps of a model with this layout, with the files that those need.
    pub load_inner: LoadInner,
    /// Makes a predictor from a model file; none if the task predicts nothing.
    pub predictor: MakePredictor,
    /// Writes a trained model into the ONNX file that it came as; none if it came as no such file.
    #[cfg(not(target_family = "wasm"))]
    pub onnx: WriteOnnx,
    /// What to take out of a trained model, from its file's metadata, so that about this share of its units stays; none if its
    /// settings have no smaller model.
    pub pruning: MakePruning,
    /// Makes a GGUF file of a model file's metadata and tensors, with halves or not; none if its models are none of llama.cpp's.
    #[cfg(not(target_family = "wasm"))]
    pub gguf: MakeGguf,
}

/// Writes these values into the ONNX file among the data.
#[cfg(not(target_family = "wasm"))]
pub type WriteOnnx = fn(&Data, &Tensors) -> Result<Option<Vec<u8>>, TaskError>;

/// Finds what to take out of a model.
pub type MakePruning = fn(&BTreeMap<String, String>, f64) -> Result<Option<Pruning<String>>, TaskError>;

/// Makes a GGUF file.
#[cfg(not(target_family = "wasm"))]
pub type MakeGguf = fn(&BTreeMap<String, String>, &[FileTensor], bool) -> Result<Option<Vec<u8>>, TaskError>;

/// Makes a file of the user's data.
pub type PackData = fn(&str, &Path, &mut dyn FnMut(u64, u64)) -> Result<Vec<u8>, TaskError>;

/// Loads a task for inner steps of a model: its settings as JSON text, the model's layout, and the files that inner steps
/// need.
pub type LoadInner = fn(&str, &Layout, Option<&Data>) -> Result<LoadedTask, TaskError>;

/// Makes a predictor of a model file's metadata and tensors.
pub type MakePredictor =
    fn(&BTreeMap<String, String>, &Tensors) -> Result<Option<Box<dyn Predict>>, TaskError>;

/// A task with its data.
pub struct LoadedTask {
    /// Its settings as JSON text, all keys included.
    pub config: String,
    /// What the task made of the data, in lines for a person; empty: nothing to tell.
    pub description: String,
    /// Samples per step that suit the data, where the user names none.
    pub batch: Option<NonZeroU32>,
    /// Rounds that suit the data, where the user names no end.
    pub rounds: Option<NonZeroU64>,
    /// How long a run may take; none: as long as it takes.
    pub time: Option<Duration>,
    /// Samples to train on.
    pub samples: NonZeroU64,
    /// How many of them in a row lie side by side: see [`Dataset::chunk`].
    pub chunk: NonZeroU32,
    /// Where each of them lies in the data set that the data was made from.
    pub rows: Arc<Rows>,
    /// Hash of the training data.
    pub data: Digest,
    /// The files that it was made from; none if the task makes its own data.
    pub files: Option<Data>,
    /// Whether its model can generate text, and what that needs.
    pub writing: Writing,
    /// Bytes that a pass on a processor takes at least for a number of samples.
    pub pass_bytes: Arc<dyn Fn(u32) -> u64 + Send + Sync>,
    /// Whether an outside process computes its model.
    pub elsewhere: bool,
    /// The layers of its model.
    pub layers: Vec<Layer>,
    /// What a reader of its exported model needs to know.
    pub metadata: Vec<(&'static str, String)>,
    finish: Box<Finish>,
    live: Arc<Live>,
    test: Arc<Test>,
    bind: Box<dyn Fn(OpenDevice, TrainerOptions) -> WorkerFactory + Send + Sync>,
    model_steps: Box<dyn Fn(u64) -> Result<ModelSteps, WorkerError> + Send + Sync>,
    #[cfg(not(target_family = "wasm"))]
    step_costs: Box<dyn Fn() -> Result<Vec<u32>, WorkerError> + Send + Sync>,
    draw: Drawing,
    bind_span: SpanFactory,
    #[cfg(not(target_family = "wasm"))]
    bind_inference: Box<BindInference>,
}

/// Judges a trained model.
type Finish = dyn Fn(&Tensors) -> Result<Option<Finished>, TaskError> + Send + Sync;

/// Makes what answers new data with a model as it stands; none if the task predicts nothing.
pub type Live = dyn Fn(&Tensors) -> Result<Option<Box<dyn Predict>>, TaskError> + Send + Sync;

/// A model file's metadata and tensors.
pub type ModelParts<'a> = (&'a BTreeMap<String, String>, &'a Tensors);

/// Has a model answer the test part.
pub type Test = dyn Fn(ModelParts<'_>, &mut TakeTested<'_>) -> Result<(), TaskError> + Send + Sync;

/// Hears a model's answers.
pub type TakeTested<'a> = dyn FnMut(Tested) -> Result<(), TaskError> + 'a;

/// Makes what evaluates a model and generates text with it, a few steps at a time.
#[cfg(not(target_family = "wasm"))]
type BindInference = dyn Fn(&OpenDevice, Arc<ModelSteps>, Space, Weights) -> Box<dyn Inference> + Send + Sync;

/// Draws a model from a seed, one tensor at a time.
pub type Drawing = Arc<DrawWith>;

type DrawWith = dyn Fn(u64, &mut Look<'_>) -> Result<Layout, WorkerError> + Send + Sync;

/// Makes a worker for some steps of a model on a device, with the run's seed.
pub type SpanFactory = Arc<BindSpan>;

type BindSpan = dyn Fn(&OpenDevice, Arc<ModelSteps>, Range<usize>, u64) -> Result<Box<dyn SpanWorker>, WorkerError>
    + Send
    + Sync;

/// Whether a task's model can generate text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// It cannot.
    Never,
    /// Only if the task was made from the run's data.
    WithData,
    /// With any data.
    Always,
}

impl LoadedTask {
    /// Judges a trained model, and tells what its file must carry to predict; none if the task predicts nothing.
    ///
    /// # Errors
    ///
    /// If the tensors are not the model's.
    pub fn finish(&self, tensors: &Tensors) -> Result<Option<Finished>, TaskError> {
        (self.finish)(tensors)
    }

    /// Makes what answers new data with the model as it stands: none if the task predicts nothing. It fails if the tensors are not
    /// the model's.
    pub fn live(&self) -> Arc<Live> {
        self.live.clone()
    }

    /// Has a trained model answer the test part, and tells its answers piece by piece: nothing if there is no test part. It
    /// fails if the tensors are not the model's, or with what it is told by the one who hears them.
    pub fn tester(&self) -> Arc<Test> {
        self.test.clone()
    }

    /// A factory of workers on a device.
    pub fn worker_factory(&self, device: OpenDevice, options: TrainerOptions) -> WorkerFactory {
        (self.bind)(device, options)
    }

    /// Where each tensor of its model lies in the flat vector. Holds one tensor at a time.
    ///
    /// # Errors
    ///
    /// If its model cannot be trained.
    pub fn layout(&self, seed: u64) -> Result<Layout, WorkerError> {
        (self.draw)(seed, &mut |_, _| {})
    }

    /// Its model's steps, and the parameters that they use.
    ///
    /// # Errors
    ///
    /// If the task offers no steps, or its model cannot be trained.
    pub fn model_steps(&self, seed: u64) -> Result<ModelSteps, WorkerError> {
        (self.model_steps)(seed)
    }

    /// Microseconds of each step's forward pass for one sample, on this machine's processor.
    ///
    /// # Errors
    ///
    /// If the task offers no steps.
    #[cfg(not(target_family = "wasm"))]
    pub fn step_costs(&self) -> Result<Vec<u32>, WorkerError> {
        (self.step_costs)()
    }

    /// Draws the model from a seed, one tensor at a time.
    pub fn drawing(&self) -> Drawing {
        self.draw.clone()
    }

    /// A factory of workers for some of the steps.
    pub fn span_factory(&self) -> SpanFactory {
        self.bind_span.clone()
    }

    /// Evaluates its model and generates text with it, a few of these steps at a time.
    #[cfg(not(target_family = "wasm"))]
    pub fn inference(
        &self,
        device: &OpenDevice,
        model: Arc<ModelSteps>,
        space: Space,
        weights: Weights,
    ) -> Box<dyn Inference> {
        (self.bind_inference)(device, model, space, weights)
    }
}

impl TaskFactory {
    /// The factory of a task.
    pub fn of<T: Task>() -> Self {
        Self {
            name: T::NAME,
            about: T::ABOUT,
            run_settings: T::SETTINGS,
            search_settings: T::SEARCH,
            elsewhere: T::ELSEWHERE,
            predicts: T::PREDICTS,
            files: T::FILES,
            is_for: T::is_for,
            packed: T::PACKED,
            must_pack: T::packs,
            pack: |config, data, tell| T::pack(&settings::<T>(config)?, data, tell),
            defaults: || json(&T::Config::default()),
            help: T::HELP,
            check: |config| read::<T>(config).map(drop),
            load: |config, data| load::<T>(config, data.cloned(), |config| T::new(config, data)),
            inner: T::INNER,
            load_inner: |config, layout, data| {
                load::<T>(config, data.cloned(), |config| T::inner(config, layout, data))
            },
            predictor: T::predictor,
            pruning: pruning::<T>,
            #[cfg(not(target_family = "wasm"))]
            onnx: T::onnx,
            #[cfg(not(target_family = "wasm"))]
            gguf: T::gguf,
        }
    }
}

impl TaskFactory {
    /// The name of the file that it packs this data into; none if it takes the data as it is, such as a folder that already has
    /// the packed file.
    pub fn packs(&self, data: &Path) -> Option<&'static str> {
        let packed = self.packed.filter(|_| (self.must_pack)(data));
        packed.filter(|name| !data.join(name).exists())
    }

    /// Its settings by name; none if it has none.
    pub fn settings(&self) -> Map<String, Value> {
        match (self.defaults)() {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    /// The default settings with some of them changed, as JSON text.
    pub fn config(&self, changes: &Map<String, Value>) -> String {
        let mut config = (self.defaults)();
        match &mut config {
            Value::Object(fields) => fields.extend(changes.clone()),
            // The task has no settings, so it must refuse them itself.
            _ if !changes.is_empty() => config = Value::Object(changes.clone()),
            _ => {}
        }
        config.to_string()
    }
}

#[cfg(test)]
impl TaskFactory {
    /// A task with settings that is never loaded.
    pub(crate) fn for_tests(
        name: &'static str,
        run_settings: &'static [&'static str],
        defaults: fn() -> Value,
    ) -> Self {
        Self {
            name,
            about: "",
            run_settings,
            search_settings: &[],
            elsewhere: None,
            predicts: None,
            files: &[],
            is_for: |_| false,
            packed: None,
            must_pack: |_| false,
            pack: |_, _, _| Err("not packed here".into()),
            defaults,
            help: &[],
            check: |_| Ok(()),
            load: |_, _| Err("not loaded here".into()),
            inner: None,
            load_inner: |_, _, _| Err("not loaded here".into()),
            predictor: |_, _| Ok(None),
            pruning: |_, _| Ok(None),
            onnx: |_, _| Ok(None),
            gguf: |_, _, _| Ok(None),
        }
    }
}

fn json(config: &impl Serialize) -> Value {
    // Only a map whose keys are not text, or a type that refuses, cannot be serialized.
    serde_json::to_value(config).expect("a task's settings can be written as JSON")
}

/// A task's settings; or what they must be, in words for whoever typed them.
fn read<T: Task>(config: &str) -> Result<T::Config, String> {
    serde_json::from_str(config).map_err(|error| plain(&error.to_string()))
}

/// A task's settings, for a task that is loaded.
fn settings<T: Task>(config: &str) -> Result<T::Config, TaskError> {
    let config = read::<T>(config);
    config.map_err(|why| format!("a setting of the task {} is not possible: {why}", T::NAME).into())
}

fn pruning<T: Task>(
    metadata: &BTreeMap<String, String>,
    keep: f64,
) -> Result<Option<Pruning<String>>, TaskError> {
    let config = metadata.get("task_config").map_or("null", String::as_str);
    let pruning = T::pruning(&settings::<T>(config)?, metadata, keep)?;
    Ok(pruning.map(|pruning| Pruning {
        config: json(&pruning.config).to_string(),
        metadata: pruning.metadata,
        units: pruning.units,
    }))
}

/// Serde's message about a value that does not fit, in plain words.
fn plain(error: &str) -> String {
    let error = error.rsplit_once(" at line ").map_or(error, |(error, _)| error);
    let Some((what, expected)) = error.split_once(", expected ") else {
        return error.to_owned();
    };
    let expected = expected.replace('`', "");
    let expected = expected.trim_start_matches("one of ");
    match (what.split_whitespace().nth(1), expected) {
        (Some("variant"), words) => format!("choose one of {words}"),
        (Some("field"), _) => format!("{what}; there are {expected}"),
        (_, "a boolean") => "it must be true or false".into(),
        (_, "usize" | "u64" | "u32" | "u16" | "u8") => "it must be a whole number, at least 0".into(),
        (_, "f32" | "f64") => "it must be a number".into(),
        (_, other) => format!("it must be {other}"),
    }
}

/// A task made of its settings, and of these files if it was made of some.
fn load<T: Task>(
    config: &str,
    files: Option<Data>,
    make: impl FnOnce(T::Config) -> Result<T, TaskError>,
) -> Result<LoadedTask, TaskError> {
    let config = settings::<T>(config)?;
    let text = json(&config).to_string();
    let task = Arc::new(make(config)?);
    let (in_steps, in_spans, in_drawing) = (task.clone(), task.clone(), task.clone());
    let (in_finish, in_live, in_test, in_rows) = (task.clone(), task.clone(), task.clone(), task.clone());
    let in_bytes = task.clone();
    #[cfg(not(target_family = "wasm"))]
    let (in_costs, in_inference) = (task.clone(), task.clone());
    Ok(LoadedTask {
        config: text,
        description: task.description(),
        batch: task.suited_batch(),
        rounds: task.suited_rounds(),
        time: task.time(),
        finish: Box::new(move |tensors| in_finish.finish(tensors)),
        live: Arc::new(move |tensors| in_live.live(tensors)),
        test: Arc::new(move |(metadata, tensors), take| {
            let mut pieces = in_test.test(metadata, tensors)?.into_iter().flatten();
            pieces.try_for_each(|tested| take(tested?))
        }),
        chunk: task.dataset().chunk(),
        samples: NonZeroU64::new(task.dataset().len()).ok_or("the data set has no sample")?,
        rows: Arc::new(move |sample| in_rows.dataset().row(sample)),
        data: task.dataset().digest(),
        files,
        pass_bytes: Arc::new(move |samples| in_bytes.pass_bytes(samples)),
        elsewhere: T::ELSEWHERE.is_some(),
        layers: task.layers(),
        metadata: task.metadata(),
        writing: match task.generator() {
            None => Writing::Never,
            Some(generator) if generator.needs_data() => Writing::WithData,
            Some(_) => Writing::Always,
        },
        bind: Box::new(move |device, options| {
            let task = task.clone();
            Arc::new(move || {
                let trainer = Trainer::new(task.clone(), &device, options)?;
                Ok(Box::new(trainer) as Box<dyn Worker>)
            })
        }),
        model_steps: Box::new(move |seed| ModelSteps::of(&*in_steps, seed)),
        #[cfg(not(target_family = "wasm"))]
        step_costs: Box::new(move || ModelSteps::costs(&*in_costs)),
        draw: Arc::new(move |seed, look| Ok(draw(&*in_drawing, seed, look)?.0)),
        bind_span: Arc::new(move |device, model, span, seed| {
            let trainer = SpanTrainer::new(in_spans.clone(), device, model, span, seed)?;
            Ok(Box::new(trainer) as Box<dyn SpanWorker>)
        }),
        #[cfg(not(target_family = "wasm"))]
        bind_inference: Box::new(move |device, model, space, weights| {
            let steps = InSteps::new(in_inference.clone(), device, model, space, weights);
            Box::new(steps) as Box<dyn Inference>
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_that_do_not_fit_are_told_in_plain_words() {
        use crate::tasks::{digits::Digits, gpt::Gpt};
        for (check, config, told) in [
            (
                TaskFactory::of::<Gpt>().check,
                r#"{"preset":"tiny"}"#,
                "choose one of pico, nano, micro, mini, small, gpt2",
            ),
            (
                TaskFactory::of::<Gpt>().check,
                r#"{"bias":"x"}"#,
                "it must be true or false",
            ),
            (
                TaskFactory::of::<Gpt>().check,
                r#"{"layers":-1}"#,
                "it must be a whole number, at least 0",
            ),
            (
                TaskFactory::of::<Digits>().check,
                r#"{"model":"x"}"#,
                "choose one of ",
            ),
        ] {
            let why = check(config).unwrap_err();
            assert!(why.starts_with(told) && !why.contains("column"), "{why}");
        }
        assert_eq!((TaskFactory::of::<Gpt>().check)(r#"{"preset":"pico"}"#), Ok(()));
    }

    #[test]
    fn each_setting_of_the_tasks_here_has_help() {
        use crate::tasks::{digits::Digits, gpt::Gpt, images::Images, table::TableTask};
        let all = [
            TaskFactory::of::<Gpt>(),
            TaskFactory::of::<Digits>(),
            TaskFactory::of::<TableTask>(),
            TaskFactory::of::<Images>(),
        ];
        for task in all {
            let mut told: Vec<_> = task
                .help
                .iter()
                .filter_map(|(key, _)| key.split(['=', '.']).next())
                .collect();
            told.sort_unstable();
            assert_eq!(told, task.settings().keys().collect::<Vec<_>>(), "{}", task.name);
        }
    }

    #[test]
    fn a_task_without_settings_is_given_none() {
        let none = TaskFactory::for_tests("test", &[], || Value::Null);
        assert_eq!(none.config(&Map::new()), "null");
        assert!(none.settings().is_empty());
        let some = TaskFactory::for_tests("test", &[], || json!({"width": 4, "depth": 2}));
        let changes = Map::from_iter([("depth".to_owned(), json!(3))]);
        assert_eq!(some.config(&changes), r#"{"depth":3,"width":4}"#);
        assert_eq!(some.settings().len(), 2);
    }
}
