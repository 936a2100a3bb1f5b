//! What this tab's user asks the model that the tab holds: to go on with a text, or to predict for a row.

use crate::page::Page;
use crate::text_generator::TextGenerator;
use annulus::task::{Prompt, TaskError, Tensors};
use annulus::task_factory::Live;
use annulus_core::Layout;
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
}

/// What answers.
pub struct Answers {
    text_generator: TextGenerator,
    live: Option<Arc<Live>>,
    layout: Layout,
    page: Rc<Page>,
}

impl Answers {
    /// `live`: of a task that predicts. The page is told what a row must have.
    pub fn new(
        text_generator: TextGenerator,
        live: Option<Arc<Live>>,
        layout: Layout,
        page: Rc<Page>,
    ) -> Self {
        // Any parameters do: what a row must have is the same with all.
        let model = |live: &Arc<Live>| live(&Tensors::of(&layout, &vec![0.0; layout.len]));
        if let Some(Ok(Some(model))) = live.as_ref().map(model) {
            page.predicts(&model.inputs());
        }
        Self {
            text_generator,
            live,
            layout,
            page,
        }
    }

    /// Answers by the model with these parameters.
    pub fn answer(&self, params: &[f32], question: Question) {
        match question {
            Question::Text(prompt) => self.text_generator.write(params, prompt),
            Question::Row(row) => {
                let answer = self.predict(params, &row);
                self.page.answer(answer.map_err(|error| error.to_string()));
            }
        }
    }

    fn predict(&self, params: &[f32], row: &str) -> Result<Value, TaskError> {
        let live = self.live.as_ref();
        let model = live
            .map(|live| live(&Tensors::of(&self.layout, params)))
            .transpose()?;
        let model = model.flatten().ok_or("this model predicts nothing")?;
        model.answer(&serde_json::from_str(row)?)
    }
}
