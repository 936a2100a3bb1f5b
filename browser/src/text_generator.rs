//! Samples of text, written in this tab beside its contributions.

use crate::js;
use crate::page::Page;
use crate::queue::Queue;
use annulus::task::Prompt;
use annulus::task_factory::WorkerFactory;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use wasm_bindgen_futures::spawn_local;

/// Writes samples of text, beside the contributions and with a worker of its own: a text takes longer than a round.
pub struct TextGenerator {
    jobs: Queue<(Vec<f32>, Prompt)>,
    busy: Rc<Cell<bool>>,
}

impl TextGenerator {
    /// `worker_factory` makes the worker when it is first needed.
    pub fn start(worker_factory: WorkerFactory, page: Rc<Page>) -> Self {
        let text_generator = Self {
            jobs: Queue::default(),
            busy: Rc::default(),
        };
        let (jobs, busy) = (text_generator.jobs.clone(), text_generator.busy.clone());
        spawn_local(async move {
            let mut worker = None;
            loop {
                let (params, prompt) = jobs.next().await;
                let made = match worker.take() {
                    Some(worker) => Ok(worker),
                    None => worker_factory(),
                };
                let mut text = String::new();
                let failure = match made {
                    Ok(mut made) => {
                        let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
                            text.push_str(piece);
                            page.text(&prompt.text, &text, false, None);
                            // On the CPU each token holds the thread.
                            Box::pin(js::next_task())
                        };
                        let generated = match made.load(params) {
                            Ok(()) => made.generate(&prompt, &mut emit).await,
                            refused => refused,
                        };
                        worker = Some(made);
                        generated.err()
                    }
                    Err(error) => Some(error),
                };
                let problem = failure.map(|error| error.to_string());
                page.text(&prompt.text, &text, true, problem.as_deref());
                busy.set(false);
            }
        });
        text_generator
    }

    /// Writes, unless it does already.
    pub fn write(&self, params: &[f32], prompt: Prompt) {
        if !self.busy.replace(true) {
            self.jobs.push((params.to_vec(), prompt));
        }
    }
}
