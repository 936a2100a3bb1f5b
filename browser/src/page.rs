//! What the worker says to the page. The page's side is `page/page.js`.

use annulus::events::Event;
use js_sys::{Function, Uint8Array};
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use wasm_bindgen::JsValue;

/// Where the tab stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Looking for the ring.
    Connecting,
    /// Fetching the run's data.
    Fetching,
    /// Trying the device out.
    Checking,
    /// Fetching the state.
    Syncing,
    /// Holding the state, not yet a member.
    Following,
    /// Holding the state, no member: the run would be slower with it.
    Aside,
    /// A member.
    Training,
    /// Out of the ring because the volunteer said so, for now.
    Paused,
    /// All links are down.
    Reconnecting,
    /// Out of the ring because the volunteer said so.
    Left,
    /// The run has reached its end.
    Ended,
}

/// Why a tab cannot take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The ticket cannot be read.
    Ticket,
    /// A peer turned us away.
    Refused,
    /// Nobody answers.
    Unreachable,
    /// A kernel does not compile.
    Kernel,
    /// The device computes something else than the CPU.
    WrongResults,
    /// The device is gone.
    GpuLost,
    /// The model does not fit.
    TooLarge,
    /// The model is split, and no span lies between its ends.
    NoMiddle,
    /// The members keep the run's data to themselves.
    NoData,
    /// No member could hand out the run's data.
    DataUnreachable,
    /// The run's data does not fit.
    TooMuchData,
    /// The page is not made for the run.
    OtherPage,
    /// The members compute with another program than ours.
    Elsewhere,
    /// Anything else.
    Internal,
}

/// Why a tab cannot take part, in words.
pub struct Failure {
    /// What kind.
    pub kind: Kind,
    /// What to tell the volunteer.
    pub message: String,
}

impl Failure {
    /// A failure.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }
}

/// The way to the page: a function that takes JSON text, and bytes that belong to it or null.
pub struct Page {
    post: Function,
    state: RefCell<Option<(State, String)>>,
}

impl Page {
    /// Through this function.
    pub fn new(post: Function) -> Self {
        Self {
            post,
            state: RefCell::default(),
        }
    }

    /// Where the tab stands, if that is news.
    pub fn state(&self, state: State, detail: &str) {
        let new = Some((state, detail.to_owned()));
        if self.state.replace(new.clone()) != new {
            self.post(&json!({"type": "state", "state": state, "detail": detail}));
        }
    }

    /// What happens in the run.
    pub fn event(&self, event: &Event) {
        let event = serde_json::to_value(event).expect("events are plain data with text keys");
        self.post(&json!({"type": "event", "event": event}));
    }

    /// That the run's model can write.
    pub fn generates(&self) {
        self.post(&json!({"type": "generates"}));
    }

    /// That the run's model predicts, and what a row must have.
    pub fn predicts(&self, schema: &Value) {
        self.post(&json!({"type": "predicts", "schema": schema}));
    }

    /// The model's prediction for a row, or the reason why there is none.
    pub fn answer(&self, answer: Result<Value, String>) {
        let (answer, problem) = (answer.as_ref().ok(), answer.as_ref().err());
        self.post(&json!({"type": "answer", "answer": answer, "problem": problem}));
    }

    /// The model as a file, or the reason why there is none.
    pub fn file(&self, file: Result<Uint8Array, String>) {
        let message = json!({"type": "file", "problem": file.as_ref().err()});
        self.post_with(&message, file.map_or(JsValue::NULL, JsValue::from));
    }

    /// A sample of text, as far as it is written, and why it goes no further if something is wrong.
    pub fn text(&self, prompt: &str, text: &str, done: bool, problem: Option<&str>) {
        self.post(&json!({"type": "text", "prompt": prompt, "text": text, "done": done, "problem": problem}));
    }

    /// That this tab is done for.
    pub fn failed(&self, failure: &Failure) {
        self.post(&json!({"type": "failed", "kind": failure.kind, "message": failure.message}));
    }

    fn post(&self, message: &Value) {
        self.post_with(message, JsValue::NULL);
    }

    /// With bytes, which JSON would make four times as long.
    fn post_with(&self, message: &Value, bytes: JsValue) {
        let text = JsValue::from_str(&message.to_string());
        // The page is what called us; if it cannot listen there is nobody to tell.
        let _ = self.post.call2(&JsValue::UNDEFINED, &text, &bytes);
    }
}
