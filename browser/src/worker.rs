//! What `page/worker.js` calls.

use crate::answers::Question;
use crate::device::{Backend, Gpu};
use crate::js;
use crate::page::{Failure, Kind, Page};
use crate::participant::{Options, take_part};
use crate::queue::Queue;
use crate::run_task::{factories, set_factories};
use crate::tab::Command;
use annulus::task::Prompt;
use annulus::task_factory::TaskFactory;
use js_sys::Function;
use std::rc::Rc;
use std::sync::Once;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;

unsafe extern "C" {
    /// The linker's: runs what crates have asked to be run before `main` (CubeCL's registries).
    ///
    /// If nothing calls it, the linker takes the program for one whose every export is a process of its own, and has each
    /// export call it first. All that the browser answers comes through exports: of a training step of the digits'
    /// perceptron on SwiftShader, constructors took 180 of 217 ms.
    fn __wasm_call_ctors();
}

/// Makes the program ready and says which tasks the page knows. [`main!`](crate::main) does it; a program without it has to.
pub fn register(factories: Vec<TaskFactory>) {
    static CONSTRUCTED: Once = Once::new();
    // SAFETY: The linker defines this function, without parameters and result, in every program. It is to run once, when
    // memory is set up, which it is before any code of ours; `Once` sees to the rest.
    CONSTRUCTED.call_once(|| unsafe { __wasm_call_ctors() });
    std::panic::set_hook(Box::new(|info| js::console_error(&info.to_string())));
    set_factories(factories);
}

/// A tab that takes part, as the page's script sees it.
#[wasm_bindgen]
pub struct Participant {
    commands: Queue<Command>,
}

#[wasm_bindgen]
impl Participant {
    /// Starts to take part. `link` is the ticket, behind which a page from elsewhere has what `PageServer::of` reads. `name`
    /// is what the volunteer wants to be called. `post` is given JSON text for the page, and bytes or null.
    #[wasm_bindgen(constructor)]
    pub fn new(
        link: String,
        backend: &str,
        power: f64,
        name: String,
        gpu: Gpu,
        post: Function,
    ) -> Participant {
        let commands = Queue::default();
        let participant = Participant {
            commands: commands.clone(),
        };
        let options = Options {
            link,
            name: Some(name).filter(|name| !name.is_empty()),
            backend: if backend == "cpu" {
                Backend::Cpu
            } else {
                Backend::Gpu
            },
            power,
        };
        let page = Rc::new(Page::new(post));
        let factories = factories();
        spawn_local(async move {
            if factories.is_empty() {
                return page.failed(&Failure::new(Kind::Internal, "the page was built without a task"));
            }
            if let Err(failure) = take_part(&factories, options, &commands, &gpu, &page).await {
                page.failed(&failure);
            }
        });
        participant
    }

    /// Out of the ring for now.
    pub fn pause(&self) {
        self.commands.push(Command::Pause);
    }

    /// Back into it.
    pub fn resume(&self) {
        self.commands.push(Command::Resume);
    }

    /// Out of the ring.
    pub fn leave(&self) {
        self.commands.push(Command::Leave);
    }

    /// Continues a prompt with this number of tokens.
    pub fn write(&self, text: String, tokens: u32, temperature: f64) {
        let seed = getrandom::u64().expect("browsers give random bytes");
        // A volunteer's wish must not keep the device busy for ever.
        let tokens = tokens.min(2000) as usize;
        self.commands.push(Command::Ask(Question::Text(Prompt {
            text,
            tokens,
            temperature,
            top_k: 0,
            seed,
        })));
    }

    /// Predicts for a row, as JSON text.
    pub fn predict(&self, row: String) {
        self.commands.push(Command::Ask(Question::Row(row)));
    }

    /// Makes a file of the model.
    pub fn file(&self) {
        self.commands.push(Command::Ask(Question::File));
    }

    /// Share of the time that the device may be busy, above 0 and at most 1.
    pub fn power(&self, share: f64) {
        self.commands.push(Command::Power(share));
    }
}
