//! A run within a program of your own: [`Run`] starts it, tells what happens, and stops it.
//!
//! It sits on top of the crate, beside the command line, whose settings it reads. It leaves the process as it is: it takes
//! no signal, changes no environment variable, binds no cores and never ends the process.

use crate::cli::settings;
use crate::events::{Done, Event};
use crate::options::{JoinOptions, Local, Start, TrainOptions};
use crate::participant::error::Error;
use crate::participant::requests::Requests;
use crate::participant::start;
use crate::task::Task;
use crate::task_factory::TaskFactory;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Events that may wait to be read; later ones are dropped. A guess: some minutes of a fast run.
const EVENTS: usize = 4096;

/// How a [`Run`] is to be done: where its files are, what computes, and its settings.
///
/// By default it computes on the best device, listens on a free port of all addresses, asks no router for a port,
/// announces itself to nobody and serves no page.
///
/// ```
/// use annulus::RunOptions;
///
/// let options = RunOptions::new("runs/sine")
///     .device("cpu")
///     .listen("127.0.0.1:0")
///     .set("lr", 0.01)
///     .set("rounds", 200);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct RunOptions {
    local: Local,
    settings: Vec<String>,
}

impl RunOptions {
    /// The defaults, with a folder for ledger and checkpoints. Each peer needs a folder of its own; it is made if there is
    /// none.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let local = Local {
            out: folder.into(),
            ..Local::default()
        };
        let settings = Vec::new();
        Self { local, settings }
    }

    /// A setting, by its key in `annulus train --help`; those of the task too. The last of the same key counts. A peer that
    /// joins takes the run's settings from the others, and has only `eval_every`, `checkpoint_every` and `keep` of its own.
    pub fn set(mut self, key: &str, value: impl Display) -> Self {
        self.settings.push(format!("{key}={value}"));
        self
    }

    /// The training data, a folder or a file.
    pub fn data(mut self, path: impl Into<PathBuf>) -> Self {
        self.local.data = Some(path.into());
        self
    }

    /// Where to compute: `auto`, `cpu`, `gpu` or `gpu:N`.
    pub fn device(mut self, name: &str) -> Self {
        self.local.device = name.into();
        self
    }

    /// `HOST:PORT` to listen on, or a port alone for all of this machine's addresses; port 0: any free one.
    pub fn listen(mut self, address: &str) -> Self {
        self.local.listen = address.into();
        self
    }

    /// Another address, `HOST:PORT`, at which others can reach this peer.
    pub fn advertise(mut self, address: &str) -> Self {
        self.local.advertise.push(address.into());
        self
    }

    /// Asks the router to forward a port to this peer.
    pub fn map_port(mut self) -> Self {
        self.local.map_port = true;
        self
    }
}

/// A peer that takes part in a run, on a thread of its own.
///
/// Several may run in one process, each with its own folder. Dropping the handle asks the peer to leave, as
/// [`stop`](Self::stop) does, and waits for nothing.
///
/// Burn's CPU backend has one random generator per process. So where several peers of one process train models with
/// dropout on the CPU, `annulus replay` cannot compute their rounds again.
///
/// ```no_run
/// use annulus::tasks::digits::Digits;
/// use annulus::{Event, Run, RunOptions};
///
/// # fn main() -> Result<(), annulus::Error> {
/// let run = Run::join::<Digits>("TICKET", RunOptions::new("runs/digits").data("mnist"))?;
/// for event in run.events() {
///     match event {
///         Event::Round(round) => println!("round {}: loss {}", round.round, round.loss),
///         Event::Warning { message } => eprintln!("{message}"),
///         _ => {}
///     }
/// }
/// if let Some(done) = run.wait()? {
///     println!("finished: {}", done.finished);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Run {
    requests: Requests,
    events: Receiver<Event>,
    thread: Option<JoinHandle<Result<Option<Done>, Error>>>,
}

/// What brings a peer into a run.
enum Errand {
    Train(TrainOptions),
    Join(JoinOptions),
}

impl Run {
    /// Starts a run of this task. If the folder already holds that run, goes on with it.
    ///
    /// # Errors
    ///
    /// If a setting is not possible. All else that fails is told by [`wait`](Self::wait).
    pub fn start<T: Task>(options: RunOptions) -> Result<Self, Error> {
        let RunOptions { local, settings } = options;
        let tasks = [TaskFactory::of::<T>()];
        let settings = read(&settings, &tasks)?;
        let start = Start::New(Box::new(settings.run.clone()));
        let local = settings.of_peer(local);
        Self::spawn(Errand::Train(TrainOptions { start, local }), tasks)
    }

    /// Takes part in the run of a ticket. If the folder already holds that run, goes on with it.
    ///
    /// # Errors
    ///
    /// If a setting is not possible, or is the run's own. All else that fails is told by [`wait`](Self::wait).
    pub fn join<T: Task>(ticket: &str, options: RunOptions) -> Result<Self, Error> {
        let RunOptions { local, settings } = options;
        let tasks = [TaskFactory::of::<T>()];
        let settings = read(&settings, &tasks)?;
        if let Some(key) = settings.of_run {
            return Err(Error::Setting(format!(
                "`{key}` is the same on all peers of a run, and fixed when it begins: leave it out"
            )));
        }
        let options = JoinOptions {
            ticket: ticket.into(),
            numbered: false,
            local: settings.of_peer(local),
        };
        Self::spawn(Errand::Join(options), tasks)
    }

    fn spawn(errand: Errand, tasks: [TaskFactory; 1]) -> Result<Self, Error> {
        let requests = Requests::default();
        let asked = requests.clone();
        let (send, events) = sync_channel(EVENTS);
        // One thread serves links and protocol: more of them would only hand frames to each other.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Thread)?;
        let body = move || {
            let mut done = None;
            let mut sink = |event: Event| tell(event, &mut done, &send);
            match errand {
                Errand::Train(options) => runtime.block_on(start::train(options, &tasks, &asked, &mut sink)),
                Errand::Join(options) => runtime.block_on(start::join(options, &tasks, &asked, &mut sink)),
            }?;
            Ok(done)
        };
        let thread = thread::Builder::new().name("annulus-run".into());
        Ok(Self {
            requests,
            events,
            thread: Some(thread.spawn(body).map_err(Error::Thread)?),
        })
    }

    /// What happens, as it happens. Waits for the next event, and ends when the run does.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.events.iter()
    }

    /// The next event, if there is one within this time.
    pub fn next_event(&self, within: Duration) -> Option<Event> {
        self.events.recv_timeout(within).ok()
    }

    /// Whether the peer's part is over.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks the peer to leave after the current round; asked again, it leaves at once. It saves its state, so the same start
    /// goes on later. Use [`wait`](Self::wait) to wait for it.
    pub fn stop(&self) {
        self.requests.ask();
    }

    /// Waits until the peer's part is over: how it ended; nothing if it was stopped before it took part, or the run was
    /// complete already.
    ///
    /// # Errors
    ///
    /// If the peer could not take part, or had to leave: why, and what to do.
    ///
    /// # Panics
    ///
    /// If the task's code panicked on the peer's thread.
    pub fn wait(mut self) -> Result<Option<Done>, Error> {
        let thread = self.thread.take().expect("it is only taken here");
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.requests.ask();
    }
}

fn read(words: &[String], tasks: &[TaskFactory; 1]) -> Result<settings::Settings, Error> {
    settings::read(None, words, (None, None), tasks).map_err(|error| Error::Setting(error.to_string()))
}

/// Keeps the last word, and hands an event on to whoever listens.
fn tell(event: Event, done: &mut Option<Done>, listener: &SyncSender<Event>) {
    if let Event::Done(last) = &event {
        *done = Some(last.clone());
    }
    // Nobody has to listen.
    let _ = listener.try_send(event);
}
