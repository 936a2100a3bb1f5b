//! Lets another process compute the gradients, such as a Python program with PyTorch. It knows nothing of runs and peers.
//!
//! The two share a file in memory with room for one vector of `f32`, and talk over a socket in lines of JSON:
//!
//! | from here | meaning | answer |
//! |---|---|---|
//! | `{"begin": {..}}` | first, and again after a pause: what [`Begin`] has | `{"device": "its name"}` |
//! | `{"prefetch": [3, 7]}` | these samples will probably be summed next | none |
//! | `{"load": true}` | the file holds parameters: take them, and forget the sum. `false`: keep your own | none |
//! | `{"accumulate": [3, 7]}` | add the gradients and losses of these samples to the sum | none |
//! | `"take"` | write the sum of the gradients into the file, and begin a new one | `{"sum": {"loss": 0.5, "samples": 2}}` |
//!
//! A tensor in `begin` with a rate `follows` has no gradient, such as batch norm's running mean. In its place the sum has
//! `(new - old) / follows` for each sample of a batch that would change it from `old`, the value that was loaded, to `new`.
//!
//! `loss` is the sum over the samples, or null if it is not finite. `samples` counts those in the sum, from the front; they
//! may be fewer than were asked for. `{"error": "why"}` is an answer too. The end of the socket is the end of both.

use super::worker::{Contribution, INFINITE, Pending, Worker, WorkerError, check_finite, largest_magnitude};
use crate::task::{Emit, Eval, Prompt, Rows};
use annulus_core::{Layout, TensorRule};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ScopedJoinHandle};

/// Longest answer in bytes. A guess: room for an error's text.
const LONGEST_ANSWER: u64 = 1 << 16;

/// Bytes of zeros that are written at once to get room for the vector.
const ROOM: usize = 1 << 20;

/// Threads that copy a vector, since one does not use all of the memory's bandwidth, and the numbers that are worth a thread.
/// Guesses.
const COPIERS: usize = 4;
const SMALLEST_PART: usize = 1 << 20;

/// Numbers that are read at once: 256 KiB, which stay in a core's cache.
const BLOCK: usize = 1 << 16;

/// Where memory looks like files, on Linux.
const MEMORY: &str = "/dev/shm";

/// A socket, at whose other end a process computes.
pub struct Line {
    socket: UnixStream,
    answers: Mutex<Receiver<Answer>>,
}

impl Line {
    /// Listens to a socket from now on. Once its other end closes, `on_end` is called.
    ///
    /// # Errors
    ///
    /// If the system has no thread for it.
    pub fn new(socket: UnixStream, on_end: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (send, answers) = sync_channel(1);
        let heard = socket.try_clone()?;
        let ear = thread::Builder::new().name("annulus-external".into());
        ear.spawn(move || {
            hear(heard, &send);
            // A caller that waits for an answer learns first that there is none.
            drop(send);
            on_end();
        })?;
        let answers = Mutex::new(answers);
        Ok(Self { socket, answers })
    }

    fn say(&self, request: &Request<'_>) -> Result<(), WorkerError> {
        let mut line = serde_json::to_vec(request).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        (&self.socket).write_all(&line).map_err(|_| ended())
    }

    /// The answer to a request. Answers do not name their request, so only one may wait.
    fn ask(&self, request: &Request<'_>) -> Result<Answer, WorkerError> {
        let answers = self.answers.lock().map_err(|error| failed(error.to_string()))?;
        self.say(request)?;
        match answers.recv() {
            Ok(Answer::Error(why)) => Err(failed(format!(
                "the process that computes for this peer says: {why}"
            ))),
            Ok(answer) => Ok(answer),
            Err(_) => Err(ended()),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Ends the thread that listens, and tells the other process.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// The other end of a line computes.
pub struct External {
    layout: Layout,
    init: Box<Init>,
    line: Arc<Line>,
    /// Parameters on the way there, gradients on the way back.
    vector: File,
    /// Samples to be summed since the last sum.
    asked: u32,
    /// Samples in an epoch.
    samples: u64,
    rows: Arc<Rows>,
    /// The allocation that the next sum comes in.
    allocation: Vec<f32>,
    device_name: String,
}

/// Draws the initial parameters.
pub type Init = dyn Fn() -> Vec<f32> + Send;

/// What the other process needs to know of the model and its data.
pub struct Facts<'a> {
    /// Samples to train on. Their numbers are smaller than this.
    pub samples: u64,
    /// Where they lie in its data set.
    pub rows: Arc<Rows>,
    /// The run's data on this machine, if it has any.
    pub data: Option<&'a Path>,
}

/// A line to the other process.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Request<'a> {
    Begin(Begin<'a>),
    Prefetch(&'a [u64]),
    Load(bool),
    Accumulate(&'a [u64]),
    Take,
}

/// What the other process needs to know first.
#[derive(Serialize)]
struct Begin<'a> {
    /// The file of the vector, which goes when this is answered.
    file: &'a Path,
    /// Length of the vector in numbers.
    elements: usize,
    /// How many samples its data set must have.
    samples: u64,
    data: Option<&'a Path>,
    tensors: Vec<Place<'a>>,
}

/// Where a tensor lies in the vector, in numbers.
#[derive(Serialize)]
struct Place<'a> {
    name: &'a str,
    shape: &'a [usize],
    offset: usize,
    /// The rate by which it follows the batches, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    follows: Option<f32>,
}

/// A line from the other process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Device(String),
    Sum { loss: Option<f32>, samples: u32 },
    Error(String),
}

impl External {
    /// Begins to work with the process at the other end of a line. The vector's file is made in memory if there is room, else in
    /// `folder`.
    ///
    /// # Errors
    ///
    /// If there is no room for a vector, or the other process does not take part.
    pub fn new(
        (layout, init): (Layout, Box<Init>),
        facts: Facts<'_>,
        line: Arc<Line>,
        folder: &Path,
    ) -> Result<Self, WorkerError> {
        let file = vector_file(layout.len, folder)
            .map_err(|error| failed(format!("no room for a vector: {error}")))?;
        let vector = file
            .as_file()
            .try_clone()
            .map_err(|error| failed(error.to_string()))?;
        let begin = Request::Begin(Begin {
            file: file.path(),
            elements: layout.len,
            samples: 1
                + (0..facts.samples)
                    .map(|sample| (facts.rows)(sample))
                    .max()
                    .unwrap_or(0),
            data: facts.data,
            tensors: places(&layout),
        });
        let device_name = match line.ask(&begin)? {
            Answer::Device(name) => name,
            other => return Err(unexpected(&other)),
        };
        Ok(Self {
            layout,
            init,
            line,
            vector,
            asked: 0,
            samples: facts.samples,
            rows: facts.rows,
            allocation: Vec::new(),
            device_name,
        })
    }
}

impl External {
    /// The rows of some draws' samples, whatever their epochs.
    fn numbers(&self, draws: &[u64]) -> Vec<u64> {
        draws
            .iter()
            .map(|draw| (self.rows)(draw % self.samples))
            .collect()
    }
}

impl Worker for External {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn init(&self) -> Vec<f32> {
        (self.init)()
    }

    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError> {
        if params.len() != self.layout.len {
            return Err(WorkerError::WrongLength {
                expected: self.layout.len,
                found: params.len(),
            });
        }
        // A device is tried out with zeros, of which a model may make NaN, and users look at the losses.
        let is_trial = params.iter().all(|value| *value == 0.0);
        if !is_trial {
            write(&self.vector, &params).map_err(|error| failed(error.to_string()))?;
        }
        self.allocation = params;
        self.asked = 0;
        self.line.say(&Request::Load(!is_trial))
    }

    /// The other process knows best.
    fn work_on_at_most(&mut self, _samples: usize) {}

    fn prefetch(&mut self, samples: &[u64]) {
        // If this fails, so does what follows.
        let _ = self.line.say(&Request::Prefetch(&self.numbers(samples)));
    }

    fn accumulate(&mut self, samples: &[u64]) -> Result<(), WorkerError> {
        if samples.is_empty() {
            return Ok(());
        }
        self.asked += samples.len() as u32;
        self.line.say(&Request::Accumulate(&self.numbers(samples)))
    }

    fn take(&mut self) -> Pending<'_, Contribution> {
        Box::pin(async move {
            let mut gradient = std::mem::take(&mut self.allocation);
            gradient.resize(self.layout.len, 0.0);
            let asked = std::mem::take(&mut self.asked);
            if asked == 0 {
                return Ok(nothing(gradient));
            }
            let (loss_sum, samples) = match self.line.ask(&Request::Take)? {
                Answer::Sum { loss, samples } if samples <= asked => (loss.unwrap_or(f32::NAN), samples),
                other => return Err(unexpected(&other)),
            };
            if samples == 0 {
                return Ok(nothing(gradient));
            }
            let largest = read(&self.vector, &mut gradient).map_err(|error| failed(error.to_string()))?;
            if !loss_sum.is_finite() {
                return Err(WorkerError::LossNotFinite);
            }
            if largest >= INFINITE {
                check_finite(&self.layout, &gradient)?;
            }
            Ok(Contribution {
                gradient,
                loss_sum,
                samples,
            })
        })
    }

    /// The other process evaluates as it likes.
    fn evaluate(&mut self) -> Pending<'_, Option<Eval>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn generate<'a>(&'a self, _prompt: &'a Prompt, _emit: Emit<'a>) -> Pending<'a, ()> {
        let reason = "an external worker generates nothing".to_owned();
        Box::pin(std::future::ready(Err(WorkerError::NotGenerated { reason })))
    }

    fn deterministic(&self) -> bool {
        false
    }

    fn device_name(&self) -> &str {
        &self.device_name
    }
}

/// A file for a vector that only this user can read, with room for all of it: a mapping of a file without room would end the
/// other process where it writes.
fn vector_file(elements: usize, folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let make = |folder: &Path| {
        let mut file = tempfile::Builder::new().prefix(".annulus-").tempfile_in(folder)?;
        let zeros = vec![0; ROOM];
        let mut left = 4 * elements;
        while left > 0 {
            let now = left.min(ROOM);
            file.write_all(&zeros[..now])?;
            left -= now;
        }
        Ok(file)
    };
    // A container may have little room there.
    make(Path::new(MEMORY)).or_else(|_: io::Error| make(folder))
}

/// Writes a vector into a file.
fn write(file: &File, values: &[f32]) -> io::Result<()> {
    let length = part(values.len());
    thread::scope(|scope| {
        let parts = values.chunks(length).enumerate();
        let copies = parts.map(|(at, part)| {
            scope.spawn(move || file.write_all_at(bytemuck::cast_slice(part), 4 * (at * length) as u64))
        });
        finish(copies.collect()).map(drop)
    })
}

/// Reads a vector from a file, and tells the bits of its largest magnitude.
fn read(file: &File, values: &mut [f32]) -> io::Result<u32> {
    let length = part(values.len());
    thread::scope(|scope| {
        let parts = values.chunks_mut(length).enumerate();
        let copies =
            parts.map(|(at, part)| scope.spawn(move || read_part(file, part, 4 * (at * length) as u64)));
        let largest = finish(copies.collect())?;
        Ok(largest.into_iter().max().unwrap_or(0))
    })
}

/// Looks at each block while it is in the cache: another pass over the memory would take a third of the copy's time.
fn read_part(file: &File, values: &mut [f32], from: u64) -> io::Result<u32> {
    let mut largest = 0;
    let mut at = from;
    for block in values.chunks_mut(BLOCK) {
        file.read_exact_at(bytemuck::cast_slice_mut(block), at)?;
        at += 4 * block.len() as u64;
        largest = largest.max(largest_magnitude(block));
    }
    Ok(largest)
}

/// Numbers that one thread copies.
fn part(elements: usize) -> usize {
    elements.div_ceil(COPIERS).max(SMALLEST_PART)
}

fn finish<T>(copies: Vec<ScopedJoinHandle<'_, io::Result<T>>>) -> io::Result<Vec<T>> {
    let copies = copies.into_iter();
    copies
        .map(|copy| copy.join().expect("a copy does not panic"))
        .collect()
}

/// The sum over no samples, in this allocation.
fn nothing(mut gradient: Vec<f32>) -> Contribution {
    gradient.fill(0.0);
    Contribution {
        gradient,
        loss_sum: 0.0,
        samples: 0,
    }
}

fn places(layout: &Layout) -> Vec<Place<'_>> {
    let tensors = layout.tensors.iter();
    tensors
        .map(|tensor| Place {
            name: &tensor.name,
            shape: &tensor.shape,
            offset: tensor.offset,
            follows: match tensor.rule {
                TensorRule::Mean { rate } => Some(rate),
                TensorRule::Step | TensorRule::StepAndDecay => None,
            },
        })
        .collect()
}

/// Passes on what the other process answers, until it ends or says something else.
fn hear(socket: UnixStream, answers: &SyncSender<Answer>) {
    let mut lines = BufReader::new(socket);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = lines.by_ref().take(LONGEST_ANSWER).read_until(b'\n', &mut line);
        if read.is_err() || !line.ends_with(b"\n") {
            return;
        }
        let answer = serde_json::from_slice(&line).unwrap_or_else(|error| {
            Answer::Error(format!(
                "{:?}, which is no answer: {error}",
                String::from_utf8_lossy(&line)
            ))
        });
        if answers.send(answer).is_err() {
            return;
        }
    }
}

fn ended() -> WorkerError {
    failed("the process that computes for this peer has ended: start it again to go on".into())
}

fn unexpected(answer: &Answer) -> WorkerError {
    failed(format!(
        "the process that computes for this peer answers something else: {answer:?}"
    ))
}

fn failed(reason: String) -> WorkerError {
    WorkerError::Device { reason }
}

#[cfg(test)]
mod tests;
