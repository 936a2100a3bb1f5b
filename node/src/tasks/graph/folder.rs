//! The files of a folder that `annulus.export` has written.

use super::config::ModelFileConfig;
use super::{MODEL, SAMPLES, WEIGHTS};
use crate::task::{Data, TaskError};
use crate::tasks::init;
use annulus_core::Digest;
use annulus_graph::{Graph, ReadOptions};

/// The files of a model.
pub(super) struct Files {
    model: Vec<u8>,
    weights: Option<Vec<u8>>,
    /// The weights that the run starts from.
    start: Option<Vec<u8>>,
    /// Bytes of memory that the model may take when it is read.
    memory: Option<u64>,
}

impl Files {
    pub fn read(config: &ModelFileConfig, data: &Data) -> Result<Self, TaskError> {
        Ok(Self {
            model: init::bytes(data, MODEL)?.ok_or_else(|| missing(data, MODEL))?,
            weights: init::bytes(data, WEIGHTS)?,
            start: init::weights(&config.init, data)?,
            memory: data.memory(),
        })
    }

    /// Covers the model and its samples.
    pub fn digest(&self, samples: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let files: [&[u8]; 3] = [&self.model, self.weights.as_deref().unwrap_or_default(), samples];
        for file in files.into_iter().chain(self.start.as_deref()) {
            hasher.update(&(file.len() as u64).to_le_bytes()).update(file);
        }
        Digest(*hasher.finalize().as_bytes())
    }

    pub fn graph(&self, config: &ModelFileConfig) -> Result<Graph, TaskError> {
        let mut options = ReadOptions {
            as_is: config.as_is,
            ..ReadOptions::default()
        };
        let bytes = &mut options.limits.bytes;
        *bytes = self.memory.map_or(*bytes, |memory| memory.min(*bytes));
        let mut graph = Graph::read(&self.model, self.weights.as_deref(), &options)?;
        if let Some(start) = &self.start {
            init::fit((&config.init, start), |tensors| graph.start_from(tensors))?;
        }
        Ok(graph)
    }
}

pub(super) fn missing(data: &Data, name: &str) -> String {
    format!("{} has no {name}; export the model again", data.path().display())
}

/// The samples' tensors that the model takes.
pub(super) fn inputs<T>(graph: &Graph, tensors: Vec<(String, T)>) -> Result<Vec<(String, T)>, TaskError> {
    let is_input = |name: &str| graph.inputs().iter().any(|input| input.name == name);
    let found: Vec<_> = tensors.into_iter().filter(|(name, _)| is_input(name)).collect();
    let lacks = graph
        .inputs()
        .iter()
        .find(|input| found.iter().all(|(name, _)| *name != input.name));
    match lacks {
        Some(input) => Err(format!("{SAMPLES} has no `{}`, which the model takes", input.name).into()),
        None => Ok(found),
    }
}
