//! A trained language model over HTTP, as programs know it from OpenAI's API: `POST /v1/completions`, at once or as a stream.
//!
//! One thread writes all answers, at most [`MOST`], in turns of one piece of text each. So a short answer is there soon while long
//! ones are being written. Further ones wait in the order in which they came, at most [`WAITING`]; long ones leave some places to
//! short ones. The thread stops writing for an asker that hangs up.

use super::answers::{refused, whole};
use super::fresh;
use crate::task::Prompt;
use crate::trainer::Worker;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::Response;
use hyper::body::Frame;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;

/// Most answers that are written at the same time; a guess.
const MOST: usize = 16;

/// Places that long answers leave to short ones, and the most tokens of a short one; guesses.
const SHORT_PLACES: usize = 4;
const SHORT: usize = 256;

/// Most answers that wait for a place; a guess.
const WAITING: usize = 32;

/// Seconds after which somebody who finds the queue full may try again; a guess.
const RETRY: u32 = 10;

/// Most tokens of an answer: what a model of a few million parameters writes in a minute on a processor; a guess.
const MOST_TOKENS: usize = 4_096;

/// Most texts that end an answer, as in OpenAI's API.
const MOST_STOPS: usize = 4;

/// Writes with a model on a thread of its own.
#[derive(Debug)]
pub struct Writer {
    queue: UnboundedSender<Job>,
    places: Places,
    /// The model's name in answers.
    name: String,
}

/// Places for answers that are written, and for those that wait.
#[derive(Debug)]
struct Places {
    /// One permit for each answer that is written; waiters get them in their order.
    all: Arc<Semaphore>,
    /// One permit for each long one of them.
    long: Arc<Semaphore>,
    /// One permit for each answer that is written or waits.
    queue: Arc<Semaphore>,
}

/// A place, as long as it is held.
type Place = Vec<OwnedSemaphorePermit>;

impl Places {
    fn new() -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self {
            all: of(MOST),
            long: of(MOST - SHORT_PLACES),
            queue: of(MOST + WAITING),
        }
    }

    /// Waits for a place; none if too many wait already.
    async fn take(&self, tokens: usize) -> Option<Place> {
        let mut place = vec![self.queue.clone().try_acquire_owned().ok()?];
        if tokens > SHORT {
            place.push(self.long.clone().acquire_owned().await.ok()?);
        }
        place.push(self.all.clone().acquire_owned().await.ok()?);
        Some(place)
    }
}

/// What to write, and where to.
struct Job {
    prompt: Prompt,
    stops: Stops,
    pieces: UnboundedSender<Piece>,
    /// Held until it is written.
    place: Option<Place>,
}

/// A part of an answer.
#[derive(Debug)]
enum Piece {
    Text(String),
    /// The last: why the answer ends, or what failed.
    End(Result<&'static str, String>),
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the system gives none.
    pub fn start(worker: Box<dyn Worker>, name: String) -> io::Result<Self> {
        let (queue, jobs) = unbounded_channel();
        let places = Places::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        thread::Builder::new()
            .name("annulus-writer".into())
            .spawn(move || runtime.block_on(write_all(worker, jobs)))?;
        Ok(Self { queue, places, name })
    }

    fn answer(&self, id: &str, text: &str, end: Option<&str>) -> Value {
        let created = SystemTime::now().duration_since(UNIX_EPOCH);
        json!({
            "id": id,
            "object": "text_completion",
            "created": created.map_or(0, |since| since.as_secs()),
            "model": self.name,
            "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": end}],
        })
    }
}

/// Writes what is asked for until nobody can ask any more: a piece of each answer, then the next one of each.
async fn write_all(worker: Box<dyn Worker>, mut jobs: UnboundedReceiver<Job>) {
    let mut writing: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    let worker = Rc::<dyn Worker>::from(worker);
    poll_fn(|context| {
        let mut more = true;
        while let Poll::Ready(job) = jobs.poll_recv(context) {
            let Some(job) = job else {
                more = false;
                break;
            };
            let worker = worker.clone();
            writing.push(Box::pin(async move { job.write(&*worker).await }));
        }
        // Each gives way after a piece, and is then due again.
        writing.retain_mut(|answer| answer.as_mut().poll(context).is_pending());
        match more || !writing.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
}

impl Job {
    /// Writes until the tokens are used up, a text comes that ends the answer, or nobody listens any more.
    async fn write(mut self, worker: &dyn Worker) {
        let (pieces, stops, ended) = (&self.pieces, &mut self.stops, &Notify::new());
        let send = |text: String| {
            if !text.is_empty() {
                // Whether anybody listens is seen below.
                let _ = pieces.send(Piece::Text(text));
            }
        };
        let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
            let (text, is_end) = stops.take(piece);
            send(text);
            match is_end {
                true => {
                    ended.notify_one();
                    Box::pin(std::future::pending())
                }
                // Gives way, so that the others below are looked at.
                false => Box::pin(yield_now()),
            }
        };
        let end = tokio::select! {
            biased;
            () = pieces.closed() => return,
            () = ended.notified() => Ok("stop"),
            written = worker.generate(&self.prompt, &mut emit) => match written {
                Ok(()) => Ok("length"),
                Err(error) => Err(error.to_string()),
            }
        };
        if end != Ok("stop") {
            send(std::mem::take(&mut self.stops.held));
        }
        let _ = self.pieces.send(Piece::End(end));
    }
}

/// Texts that end an answer, and what may be the beginning of one.
#[derive(Debug, Default, PartialEq)]
struct Stops {
    texts: Vec<String>,
    held: String,
}

impl Stops {
    /// Takes a piece: what of it and of those before can be told now, and whether that is all.
    fn take(&mut self, piece: &str) -> (String, bool) {
        self.held += piece;
        let first = self.texts.iter().filter_map(|text| self.held.find(text)).min();
        if let Some(first) = first {
            self.held.truncate(first);
            return (std::mem::take(&mut self.held), true);
        }
        let may_begin = |at: &usize| self.texts.iter().any(|text| text.starts_with(&self.held[*at..]));
        let mut places = self.held.char_indices().map(|(at, _)| at);
        let begin = places.find(may_begin).unwrap_or(self.held.len());
        let held = self.held.split_off(begin);
        (std::mem::replace(&mut self.held, held), false)
    }
}

/// A request, as OpenAI's API has it. Other fields are in the way only if they would change the answer.
#[derive(Debug, Deserialize)]
struct Asked {
    prompt: Option<Texts>,
    max_tokens: Option<usize>,
    temperature: Option<f64>,
    /// Draws from that number of likeliest tokens; OpenAI's API has no such field.
    #[serde(default)]
    top_k: usize,
    seed: Option<u64>,
    #[serde(default)]
    stream: bool,
    stop: Option<Texts>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// A text, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Several(Vec<String>),
}

/// Fields that change the answer, with the values at which they do not.
const NEUTRAL: [(&str, f64); 5] = [
    ("n", 1.0),
    ("best_of", 1.0),
    ("top_p", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
];

impl Asked {
    /// What to write, and what ends it; or why not.
    fn job(self, pieces: UnboundedSender<Piece>) -> Result<Job, String> {
        for (name, value) in &self.others {
            let neutral = NEUTRAL.iter().find(|(field, _)| field == name);
            let changes = match (neutral, value) {
                (_, Value::Null) => false,
                (Some((_, neutral)), value) => value.as_f64() != Some(*neutral),
                (None, value) => match &**name {
                    "echo" => *value != Value::Bool(false),
                    "logprobs" | "logit_bias" | "suffix" => true,
                    _ => false,
                },
            };
            if changes {
                return Err(format!("{name}={value} is not possible here: leave it out"));
            }
        }
        let text = match self.prompt {
            None => String::new(),
            Some(Texts::One(text)) => text,
            Some(Texts::Several(texts)) => match <[String; 1]>::try_from(texts) {
                Ok([text]) => text,
                Err(texts) => return Err(format!("give one prompt, not {}", texts.len())),
            },
        };
        let tokens = self.max_tokens.unwrap_or(16);
        if !(1..=MOST_TOKENS).contains(&tokens) {
            return Err(format!(
                "max_tokens={tokens} is not possible: give 1 to {MOST_TOKENS}"
            ));
        }
        let temperature = self.temperature.unwrap_or(1.0);
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(format!(
                "temperature={temperature} is not possible: give 0 or more"
            ));
        }
        let texts = match self.stop {
            None => Vec::new(),
            Some(Texts::One(text)) => vec![text],
            Some(Texts::Several(texts)) => texts,
        };
        if texts.len() > MOST_STOPS || texts.iter().any(String::is_empty) {
            return Err(format!("stop takes 1 to {MOST_STOPS} texts that are not empty"));
        }
        let prompt = Prompt {
            text,
            tokens,
            temperature,
            top_k: self.top_k,
            seed: self.seed.unwrap_or_else(drawn),
        };
        let stops = Stops {
            texts,
            held: String::new(),
        };
        Ok(Job {
            prompt,
            stops,
            pieces,
            place: None,
        })
    }
}

/// A number that nobody knows beforehand.
fn drawn() -> u64 {
    getrandom::u64().expect("the operating system gives random bytes")
}

/// What the form needs.
pub(super) async fn schema() -> Response {
    let prompt = json!({"name": "prompt", "kind": "text"});
    fresh(Json(json!({"writes": true, "inputs": [prompt]})))
}

/// The models that there are, as OpenAI's API lists them.
pub(super) async fn models(State(writer): State<Arc<Writer>>) -> Response {
    let model = json!({"id": writer.name, "object": "model", "owned_by": "annulus"});
    fresh(Json(json!({"object": "list", "data": [model]})))
}

/// Continues a prompt.
pub(super) async fn complete(
    State(writer): State<Arc<Writer>>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let bad = |why: String| refused(StatusCode::BAD_REQUEST, &why);
    let body = match whole(body) {
        Ok(body) => body,
        Err(answer) => return *answer,
    };
    let asked: Asked = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => return bad(format!("the body is no request for a completion: {error}")),
    };
    let stream = asked.stream;
    let (send, mut pieces) = unbounded_channel();
    let mut job = match asked.job(send) {
        Ok(job) => job,
        Err(why) => return bad(why),
    };
    job.place = writer.places.take(job.prompt.tokens).await;
    if job.place.is_none() || writer.queue.send(job).is_err() {
        let why = format!(
            "{MOST} answers are being written and {WAITING} wait already: try again in {RETRY} seconds"
        );
        let mut answer = refused(StatusCode::SERVICE_UNAVAILABLE, &why);
        answer.headers_mut().insert(RETRY_AFTER, RETRY.into());
        return answer;
    }
    let id = format!("cmpl-{:016x}", drawn());
    if stream {
        let kind = [(CONTENT_TYPE, "text/event-stream")];
        let told = Told {
            pieces,
            writer,
            id,
            is_over: false,
        };
        return fresh((kind, Body::new(told)));
    }
    let mut text = String::new();
    loop {
        match pieces.recv().await {
            Some(Piece::Text(piece)) => text += &piece,
            Some(Piece::End(Ok(end))) => return fresh(Json(writer.answer(&id, &text, Some(end)))),
            Some(Piece::End(Err(why))) => return bad(why),
            None => return fresh(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// An answer as server-sent events.
struct Told {
    pieces: UnboundedReceiver<Piece>,
    writer: Arc<Writer>,
    id: String,
    is_over: bool,
}

impl hyper::body::Body for Told {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Poll::Ready(piece) = self.pieces.poll_recv(context) else {
            return Poll::Pending;
        };
        let is_last = !matches!(piece, Some(Piece::Text(_)));
        let event = match piece {
            Some(Piece::Text(text)) => self.writer.answer(&self.id, &text, None),
            Some(Piece::End(Ok(end))) => self.writer.answer(&self.id, "", Some(end)),
            Some(Piece::End(Err(why))) => json!({"error": why}),
            None => return Poll::Ready(None),
        };
        self.is_over = is_last;
        let done = if is_last { "data: [DONE]\n\n" } else { "" };
        let frame = Frame::data(format!("data: {event}\n\n{done}").into());
        Poll::Ready(Some(Ok(frame)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Emit, Eval};
    use crate::trainer::{Contribution, Pending, WorkerError};
    use annulus_core::Layout;
    use std::sync::Mutex;

    fn asked(body: Value) -> Result<Job, String> {
        let asked: Asked = serde_json::from_value(body).expect("a request");
        asked.job(unbounded_channel().0)
    }

    /// Writes as many pieces as it is asked for, and notes for which prompt each was.
    struct Notes(Arc<Mutex<Vec<String>>>, Layout);

    impl Worker for Notes {
        fn layout(&self) -> &Layout {
            &self.1
        }
        fn init(&self) -> Vec<f32> {
            Vec::new()
        }
        fn load(&mut self, _: Vec<f32>) -> Result<(), WorkerError> {
            Ok(())
        }
        fn work_on_at_most(&mut self, _: usize) {}
        fn prefetch(&mut self, _: &[u64]) {}
        fn accumulate(&mut self, _: &[u64]) -> Result<(), WorkerError> {
            Ok(())
        }
        fn take(&mut self) -> Pending<'_, Contribution> {
            unreachable!("it trains nothing")
        }
        fn evaluate(&mut self) -> Pending<'_, Option<Eval>> {
            unreachable!("it evaluates nothing")
        }
        fn generate<'a>(&'a self, prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, ()> {
            Box::pin(async move {
                for _ in 0..prompt.tokens {
                    self.0.lock().expect("one thread").push(prompt.text.clone());
                    emit("x").await;
                }
                Ok(())
            })
        }
        fn deterministic(&self) -> bool {
            true
        }
        fn device_name(&self) -> &str {
            "none"
        }
    }

    #[tokio::test]
    async fn many_askers_wait_in_their_order_and_a_short_one_gets_in_between() {
        let places = Places::new();
        let mut written = Vec::new();
        for _ in 0..MOST - SHORT_PLACES {
            written.push(places.take(MOST_TOKENS).await.expect("a place"));
        }
        let mut waiting: Vec<_> = (0..WAITING + SHORT_PLACES - 1)
            .map(|_| Box::pin(places.take(MOST_TOKENS)))
            .collect();
        for waiter in &mut waiting {
            assert!(polled(waiter.as_mut()).is_none(), "it waits");
        }
        let short = places.take(SHORT).await;
        assert!(short.is_some(), "long ones leave it a place");
        assert!(places.take(SHORT).await.is_none(), "too many wait");
        written.pop();
        assert!(polled(waiting[1].as_mut()).is_none(), "the first comes first");
        assert!(matches!(polled(waiting[0].as_mut()), Some(Some(_))));
        // One that hangs up makes room.
        drop(waiting.pop());
        assert!(places.take(SHORT).await.is_some());
    }

    /// The value of a future, if it is there.
    fn polled<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn a_short_answer_does_not_wait_for_long_ones() {
        let (notes, (queue, jobs)) = (Arc::default(), unbounded_channel());
        let mut answers = Vec::new();
        let asked = [
            ("long", 4_096),
            ("another", 4_096),
            ("short", 16),
            ("long", 4_096),
        ];
        for (prompt, tokens) in asked {
            let (pieces, answer) = unbounded_channel();
            let body = json!({"prompt": prompt, "max_tokens": tokens});
            let asked: Asked = serde_json::from_value(body).expect("a request");
            queue.send(asked.job(pieces).expect("a job")).expect("it is open");
            answers.push(answer);
        }
        drop(queue);
        write_all(Box::new(Notes(Arc::clone(&notes), Layout::default())), jobs).await;
        for (mut answer, (_, tokens)) in answers.into_iter().zip(asked) {
            let mut text = String::new();
            while let Some(Piece::Text(piece)) = answer.recv().await {
                text += &piece;
            }
            assert_eq!(text.len(), tokens);
        }
        let notes = notes.lock().expect("one thread");
        let last = notes.iter().rposition(|prompt| prompt == "short");
        assert_eq!(last, Some(15 * asked.len() + 2), "a piece of each in turn");
    }

    #[test]
    fn a_request_has_the_defaults_of_the_api_and_what_would_change_the_answer_is_refused() {
        let job =
            asked(json!({"model": "x", "prompt": ["a"], "n": 1, "user": "me", "logprobs": null})).unwrap();
        let wanted = Prompt {
            text: "a".into(),
            tokens: 16,
            temperature: 1.0,
            top_k: 0,
            seed: job.prompt.seed,
        };
        assert_eq!(job.prompt, wanted);
        for (body, told) in [
            (json!({"n": 2}), "n=2 is not possible here"),
            (json!({"echo": true}), "echo=true"),
            (json!({"suffix": "x"}), "suffix"),
            (json!({"prompt": ["a", "b"]}), "one prompt, not 2"),
            (json!({"max_tokens": 0}), "give 1 to 4096"),
            (json!({"max_tokens": 5000}), "give 1 to 4096"),
            (json!({"temperature": -1}), "temperature=-1 is not possible"),
            (json!({"stop": ["a", "b", "c", "d", "e"]}), "1 to 4 texts"),
            (json!({"stop": ""}), "not empty"),
        ] {
            let found = asked(body).err().expect(told);
            assert!(found.contains(told), "{found}");
        }
    }

    #[test]
    fn a_text_that_ends_the_answer_is_found_over_pieces_and_never_told() {
        let mut stops = Stops {
            texts: vec!["END".into(), "\n\n".into()],
            held: String::new(),
        };
        let told = |stops: &mut Stops, piece: &str| stops.take(piece);
        assert_eq!(told(&mut stops, "a\u{e9}E"), ("a\u{e9}".into(), false));
        assert_eq!(told(&mut stops, "N"), (String::new(), false));
        assert_eq!(told(&mut stops, "x\n"), ("ENx".into(), false));
        assert_eq!(told(&mut stops, "E"), ("\n".into(), false));
        assert_eq!(told(&mut stops, "NDb"), (String::new(), true));
        let mut none = Stops::default();
        assert_eq!(told(&mut none, "x"), ("x".into(), false));
    }
}
