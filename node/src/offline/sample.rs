//! Text by the newest checkpoint of a run's folder.

use crate::cli::sample::Args;
use crate::data::Data;
use crate::device::{self, DeviceRequest};
use crate::participant::error::Error;
use crate::participant::run_setup::find_data;
use crate::store::run_dir::RunDir;
use crate::task::{Task, config_from_json};
use crate::tasks::gpt::generate::{Choice, Writer};
use crate::tasks::gpt::model::Transformer;
use crate::tasks::gpt::text::{Text, Unit, Vocabulary};
use crate::tasks::gpt::{Gpt, GptConfig};
use crate::trainer::{layout_of, with_parameters};
use annulus_core::Manifest;
use burn::module::Module;
use burn::tensor::read_sync;
use std::future::ready;
use std::path::Path;
use std::pin::Pin;

/// Why a run's model cannot write. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The folder, its data or the device.
    #[error(transparent)]
    Run(Error),
    /// The run trains something else.
    #[error(
        "this run's task is {0}, which does not write text: name the folder of a run whose task is {gpt}",
        gpt = Gpt::NAME
    )]
    OtherTask(String),
    /// The prompt has a character that the run's data does not have.
    #[error(
        "the prompt has the character {character:?}, which does not occur in the text that the run learnt from. \
         It knows {known:?}"
    )]
    UnknownCharacter {
        /// It.
        character: char,
        /// Those that it has.
        known: String,
    },
}

impl<E: Into<Error>> From<E> for SampleError {
    fn from(error: E) -> Self {
        Self::Run(error.into())
    }
}

/// Goes on after a prompt.
pub fn write(args: &Args, emit: &mut dyn FnMut(&str)) -> Result<(), SampleError> {
    let dir = RunDir::open(&args.dir)?;
    let manifest = dir.manifest();
    if manifest.task != Gpt::NAME {
        return Err(SampleError::OtherTask(manifest.task.clone()));
    }
    let config: GptConfig =
        config_from_json(&manifest.task_config).map_err(|error| Error::Task(error.into()))?;
    let vocabulary = vocabulary(&config, manifest, args.data.as_deref())?;
    let prompt = vocabulary.encode(&args.prompt);
    let prompt = prompt.map_err(|character| SampleError::UnknownCharacter {
        character,
        known: match &vocabulary {
            Vocabulary::Bytes => String::new(),
            Vocabulary::Characters(all) => all.iter().collect(),
        },
    })?;
    let loaded = dir.load_latest()?;
    loaded
        .warnings
        .iter()
        .for_each(|warning| eprintln!("warning: {warning}"));
    let device = device::open(args.device.parse::<DeviceRequest>()?)?.device;
    let shape = config
        .shape(vocabulary.size())
        .map_err(|problem| Error::Task(problem.into()))?;
    // As a trainer makes it, so that the layouts can be compared.
    let training = device.clone().autodiff();
    let model = Transformer::new(&shape, 0.0, &training);
    if layout_of(&model)? != manifest.layout {
        return Err(Error::OtherModel.into());
    }
    let model = with_parameters(model, &loaded.state.params, &training).valid();
    let choice = Choice {
        temperature: args.temperature,
        top_k: args.top_k,
    };
    let mut writer = Writer::new(&model, &vocabulary, shape.context, choice, args.seed, &device);
    let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
        emit(piece);
        Box::pin(ready(()))
    };
    Ok(read_sync(writer.write(&prompt, args.tokens, &mut emit))?)
}

/// What a token is: for characters only the run's data tells.
fn vocabulary(config: &GptConfig, manifest: &Manifest, data: Option<&Path>) -> Result<Vocabulary, Error> {
    if config.vocabulary == Unit::Bytes {
        return Ok(Vocabulary::Bytes);
    }
    find_data(manifest, data, |path| {
        let read = |path| Text::read_from(&Data::open(path)?.single()?, config.vocabulary);
        let text = match path {
            Some(path) => read(path).map_err(|error| Error::Task(error.into()))?,
            None => Text::shipped(config.vocabulary),
        };
        Ok((text.vocabulary().clone(), text.digest()))
    })
}
