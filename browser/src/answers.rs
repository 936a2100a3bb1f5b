//! What this tab's user asks the model that the tab holds: to go on with a text, to predict for a row, or for the model itself.

use crate::js;
use crate::model_file::{Held, model_file};
use crate::page::Page;
use crate::text_generator::TextGenerator;
use annulus::task::{Prompt, TaskError, Tensors};
use annulus::task_factory::{Live, LoadedTask};
use annulus_core::Manifest;
use serde_json::Value;
use std::rc::Rc;
use std::sync::Arc;

/// A question to the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// To go on with a text.
    Text(Prompt),
    /// To predict for a row, as JSON text.
    Row(String),
    /// For the model as a file.
    File,
}

/// What answers.
pub struct Answers {
    text_generator: TextGenerator,
    live: Option<Arc<Live>>,
    loaded: LoadedTask,
    manifest: Arc<Manifest>,
    page: Rc<Page>,
}

impl Answers {
    /// For a task that predicts, if this one does, the page is told what a row must have.
    pub fn new(
        text_generator: TextGenerator,
        (loaded, predicts): (LoadedTask, bool),
        manifest: Arc<Manifest>,
        page: Rc<Page>,
    ) -> Self {
        let live = predicts.then(|| loaded.live());
        let layout = &manifest.layout;
        // Any parameters do: what a row must have is the same with all.
        let model = |live: &Arc<Live>| live(&Tensors::of(layout, &vec![0.0; layout.len]));
        if let Some(Ok(Some(model))) = live.as_ref().map(model) {
            page.predicts(&model.inputs());
        }
        Self {
            text_generator,
            live,
            loaded,
            manifest,
            page,
        }
    }

    /// Answers by the model as the tab holds it.
    pub fn answer(&self, held: Held<'_>, question: Question) {
        match question {
            Question::Text(prompt) => self.text_generator.write(held.params, prompt),
            Question::File => {
                let file = self.file(held).map(|file| js::bytes(&file));
                self.page.file(file.map_err(|error| error.to_string()));
            }
            Question::Row(row) => {
                let answer = self.predict(held.params, &row);
                self.page.answer(answer.map_err(|error| error.to_string()));
            }
        }
    }

    /// The model's file, as this machine's processor judges it.
    fn file(&self, held: Held<'_>) -> Result<Vec<u8>, TaskError> {
        let mut of_task = self.loaded.metadata.clone();
        if self.live.is_some() {
            let tensors = Tensors::of(&self.manifest.layout, held.params);
            let finished = self.loaded.finish(&tensors)?;
            of_task.extend(finished.into_iter().flat_map(|finished| finished.metadata));
        }
        Ok(model_file(&self.manifest, of_task, held))
    }

    fn predict(&self, params: &[f32], row: &str) -> Result<Value, TaskError> {
        let live = self.live.as_ref();
        let model = live
            .map(|live| live(&Tensors::of(&self.manifest.layout, params)))
            .transpose()?;
        let model = model.flatten().ok_or("this model predicts nothing")?;
        model.answer(&serde_json::from_str(row)?)
    }
}
