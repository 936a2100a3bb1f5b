//! A trained model by itself: a model file, or what a run's folder would write into one.
//!
//! It must not know what the model is.

use crate::data::cache::{self, Place};
use crate::device::{self, DeviceRequest};
use crate::participant::error::Error;
use crate::participant::run_data::{about, find, load_of_run};
use crate::participant::run_setup::Means;
use crate::store::run_dir::{CheckpointError, RunDir};
use crate::store::state_file::{Label, header_of, params_metadata};
use crate::store::which::Which;
use crate::task::{Data, FileTensor, TaskError, Tensors};
use crate::task_factory::{LoadedTask, TaskFactory, Writing};
use crate::trainer::{TrainerOptions, Worker};
use annulus_core::{Digest, Manifest};
use annulus_graph::{Numbers, Packing, read_tensors};
use annulus_net::files::{read_named, write_atomic};
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Largest model file that is read.
const LIMIT: usize = 4 << 30;

/// The name of a model file in a run's folder.
pub(super) const MODEL: &str = "model.safetensors";

/// A trained model.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    /// Its file, or the run's folder.
    pub path: PathBuf,
    /// The task's name.
    pub task: String,
    /// What the file says beside its tensors.
    pub metadata: BTreeMap<String, String>,
    /// The tensors, sorted by name.
    pub tensors: Vec<FileTensor>,
}

impl Saved {
    /// Reads a model file, or a checkpoint of a run's folder. `data`: the run's, if it is not found here; a file needs none.
    ///
    /// # Errors
    ///
    /// If there is no model.
    pub fn open(
        (path, which): (&Path, Which),
        data: Option<&Path>,
        factories: &[TaskFactory],
    ) -> Result<Self, Error> {
        match path.is_dir() {
            true => Self::of_folder((path, which), data, factories),
            false if which == Which::Newest => Self::of_file(path),
            false => Err(Error::Task(
                "a model file holds one model: leave out --round, or name the run's folder".into(),
            )),
        }
    }

    fn of_folder(
        (dir, which): (&Path, Which),
        data: Option<&Path>,
        factories: &[TaskFactory],
    ) -> Result<Self, Error> {
        let loaded = RunDir::open(dir)?.load_which(which)?;
        super::warn(&loaded.warnings);
        super::note_round(loaded.head.round);
        let manifest = &loaded.manifest;
        if manifest.split.is_some() {
            return Err(Error::Split);
        }
        let about = about(manifest, Some(&loaded.state.params), data, factories);
        if let Some(why) = about.lacks {
            let finished = Self::finished(dir, loaded.digest);
            return finished.ok_or_else(|| Error::Task(why.into()));
        }
        let label = Label {
            head: loaded.head,
            digest: loaded.digest,
        };
        let metadata = params_metadata(manifest, &label, &about.metadata);
        let tensor = |tensor: &annulus_core::TensorSpec| FileTensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            values: loaded.state.params[tensor.offset..tensor.offset + tensor.len()].to_vec(),
            packed: None,
        };
        Ok(Self {
            path: dir.to_owned(),
            task: manifest.task.clone(),
            metadata: metadata.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            tensors: manifest.layout.tensors.iter().map(tensor).collect(),
        })
    }

    /// The model file that a run's end wrote into its folder, if it has this state: it needs no data.
    pub(super) fn finished(dir: &Path, state: Digest) -> Option<Self> {
        let file = Self::of_file(&dir.join(MODEL)).ok()?;
        (file.metadata.get("digest") == Some(&state.to_hex())).then_some(file)
    }

    fn of_file(path: &Path) -> Result<Self, Error> {
        let failed = |why: &dyn std::fmt::Display| {
            let path = path.display();
            Error::Task(TaskError::from(format!(
                "{path} is no model that can be used: {why}. Name a run's folder, or a file that `annulus export` wrote"
            )))
        };
        let bytes = read_named(path, LIMIT).map_err(|error| Error::Task(error.into()))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| failed(&error))?;
        let metadata: BTreeMap<String, String> = header
            .metadata()
            .iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let task = metadata
            .get("task")
            .cloned()
            .ok_or_else(|| failed(&"it names no task"))?;
        let views = SafeTensors::deserialize(&bytes).map_err(|error| failed(&error))?;
        let mut tensors = Vec::new();
        for (name, tensor) in read_tensors(&bytes).map_err(|error| failed(&error))? {
            let Numbers::Floats(values) = tensor.numbers() else {
                continue;
            };
            let packing = metadata.get(&Packing::key(&name)).map(|text| text.parse());
            let packing = packing.transpose().map_err(|why: String| failed(&why))?;
            let blocks = views.tensor(&name).map_err(|error| failed(&error))?;
            tensors.push(FileTensor {
                shape: tensor.shape().to_vec(),
                values: values.clone(),
                packed: packing.map(|packing| (packing, blocks.data().to_vec())),
                name,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            task,
            metadata,
            tensors,
        })
    }

    /// The numbers by name.
    pub fn tensors(&self) -> Tensors {
        let tensor = |own: &FileTensor| (own.name.clone(), own.values.clone());
        self.tensors.iter().map(tensor).collect()
    }

    /// The kind of blocks that some tensors lie in; none of a model as it was trained.
    pub fn quantized(&self) -> Option<&'static str> {
        let mut packed = self.tensors.iter().filter_map(|tensor| tensor.packed.as_ref());
        packed.next().map(|(packing, _)| packing.blocks.name())
    }

    /// Where the file is to be written by default, beside the model: `model-q8.safetensors`, or in a run's folder.
    pub fn beside(&self, suffix: &str) -> PathBuf {
        let (dir, stem) = match self.path.is_dir() {
            true => (Some(&*self.path), None),
            false => (self.path.parent(), self.path.file_stem()),
        };
        let stem = stem.map_or("model".into(), |stem| stem.to_string_lossy());
        dir.unwrap_or(Path::new(""))
            .join(format!("{stem}-{suffix}.safetensors"))
    }

    /// The bytes of its file.
    ///
    /// # Errors
    ///
    /// If it has too many tensors for the format.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        // Numbers first: blocks are of odd lengths.
        let (packed, plain): (Vec<_>, Vec<_>) =
            self.tensors.iter().partition(|tensor| tensor.packed.is_some());
        let (mut infos, mut data) = (Vec::new(), Vec::new());
        let mut metadata = self.metadata.clone();
        for tensor in plain.into_iter().chain(packed) {
            let start = data.len();
            let (dtype, shape) = match &tensor.packed {
                None => {
                    data.extend_from_slice(bytemuck::cast_slice(&tensor.values));
                    (Dtype::F32, tensor.shape.clone())
                }
                Some((packing, blocks)) => {
                    metadata.insert(Packing::key(&tensor.name), packing.to_string());
                    data.extend_from_slice(blocks);
                    let each = packing.blocks.bytes();
                    (Dtype::U8, vec![blocks.len() / each, each])
                }
            };
            let info = TensorInfo {
                dtype,
                shape,
                data_offsets: (start, data.len()),
            };
            infos.push((tensor.name.clone(), info));
        }
        let header = header_of(metadata.into_iter().collect(), infos);
        let mut bytes = header.map_err(|error| CheckpointError::State(self.path.clone(), error))?;
        bytes.append(&mut data);
        Ok(bytes)
    }

    /// Loads its task with the data that it was trained on, from the user's path or wherever that is on this machine; none if it
    /// is not here.
    ///
    /// # Errors
    ///
    /// If the user's path cannot be used, or has other data.
    pub fn load_task(
        &self,
        data: Option<&Path>,
        factories: &[TaskFactory],
    ) -> Result<Option<LoadedTask>, Error> {
        let factory = find(factories, &self.task)?;
        let unpacked = data.filter(|data| factory.packs(data).is_some());
        if let Some(manifest) = self.manifest().filter(|_| unpacked.is_none()) {
            let packed = factory.packed;
            let packed = packed
                .map(|name| self.home().join(name))
                .filter(|path| path.exists());
            let load = |data: Option<&Path>| load_of_run(&manifest, (data, None), factories);
            let loaded = match (data, packed) {
                // What lies there may be a file of the user's by that name.
                (None, Some(packed)) => load(Some(&packed)).or_else(|_| load(None)),
                _ => load(data),
            };
            return match (loaded, data) {
                (Ok(loaded), _) => Ok(Some(loaded)),
                (Err(error), Some(_)) => Err(error),
                (Err(_), None) => Ok(None),
            };
        }
        let config = self.config();
        let wanted = self.metadata.get("data").and_then(|hex| Digest::from_hex(hex));
        if let Some(path) = data {
            let data = match factory.packs(path) {
                Some(name) => {
                    let packed = (factory.pack)(config, path, &mut |_, _| {})?;
                    Data::file_in_memory(name, packed)
                }
                None => Data::open(path).map_err(|error| Error::Task(error.into()))?,
            };
            let loaded = (factory.load)(config, Some(&data))?;
            return match wanted.is_some_and(|wanted| wanted != loaded.data) {
                false => Ok(Some(loaded)),
                true => Err(Error::Task(
                    format!(
                        "{} has other data than the model was trained on, so its test part is another one: name that data",
                        path.display()
                    )
                    .into(),
                )),
            };
        }
        let Some(wanted) = wanted else {
            return Ok(None);
        };
        let place = cache::folder().map(|folder| Place::new(folder, wanted));
        let places = place.map(|place| place.found().into_iter().chain(place.noted()));
        let places = places.into_iter().flatten().map(Some).chain([None]);
        let loaded = places.filter_map(|place: Option<PathBuf>| {
            let data = place.as_deref().map(Data::open).transpose().ok()?;
            (factory.load)(config, data.as_ref()).ok()
        });
        Ok(loaded.into_iter().find(|loaded| loaded.data == wanted))
    }

    /// Loads its task for generating text: without the data if that makes no difference.
    ///
    /// # Errors
    ///
    /// If the task writes nothing, or the data is needed and not here.
    pub fn load_to_write(&self, data: Option<&Path>, factories: &[TaskFactory]) -> Result<LoadedTask, Error> {
        let factory = find(factories, &self.task)?;
        let loaded = match (factory.load)(self.config(), None) {
            Ok(without) if without.writing != Writing::WithData => Some(without),
            _ => self.load_task(data, factories)?,
        };
        let loaded =
            loaded.ok_or("this model needs the data that it learnt from to write: name it by --data");
        match loaded.map_err(|why| Error::Task(why.into()))? {
            loaded if loaded.writing == Writing::Never => Err(Error::WritesNothing(self.task.clone())),
            loaded => Ok(loaded),
        }
    }

    /// A worker with the model, to write with on `given.device`.
    ///
    /// # Errors
    ///
    /// If the task writes nothing, or the data is needed and not here.
    pub fn writer(&self, given: Means<'_>, factories: &[TaskFactory]) -> Result<Box<dyn Worker>, Error> {
        let loaded = self.load_to_write(given.data, factories)?;
        let device = device::open(given.device.parse::<DeviceRequest>()?)?;
        let mut worker = loaded.worker_factory(device, TrainerOptions::default())()?;
        worker.load(self.tensors().flat(worker.layout())?)?;
        Ok(worker)
    }

    /// Loads its task with the data of another one, whose model may have had other settings.
    ///
    /// # Errors
    ///
    /// If its settings do not fit the data.
    pub fn load_like(&self, other: &LoadedTask, factories: &[TaskFactory]) -> Result<LoadedTask, Error> {
        let factory = find(factories, &self.task)?;
        Ok((factory.load)(self.config(), other.files.as_ref())?)
    }

    /// The task's settings, as JSON.
    fn config(&self) -> &str {
        self.metadata.get("task_config").map_or("null", String::as_str)
    }

    /// The folder that it is, or lies in.
    fn home(&self) -> &Path {
        match self.path.is_dir() {
            true => &self.path,
            false => self.path.parent().unwrap_or(Path::new("")),
        }
    }

    /// The run's manifest, if it lies in that run's folder.
    fn manifest(&self) -> Option<Manifest> {
        let run = RunDir::open(self.home()).ok()?;
        let id = run.manifest().run_id().to_hex();
        let is_its = self.metadata.get("run") == Some(&id);
        is_its.then(|| Manifest {
            // A pruned model has others.
            task_config: self.config().to_owned(),
            ..run.manifest().clone()
        })
    }
}

/// Writes a file as a whole.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> Result<(), Error> {
    let written = write_atomic(file, |out| out.write_all(bytes));
    Ok(written.map_err(CheckpointError::from)?)
}
