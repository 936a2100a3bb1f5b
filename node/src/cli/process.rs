//! What only a program's `main` may do to its process: keep it to some cores and little memory, and take its signals.
//!
//! Ctrl-C, and on Unix SIGTERM and SIGUSR1, by which systems that look after processes ask for it, are requests to leave. So is
//! SIGHUP, by which a terminal says that it is closed.

use crate::ending::{LEFT, end_process};
use crate::options::Local;
use crate::participant::error::Error;
use crate::participant::limits::keep_to_cores;
use crate::participant::memory::keep_within;
use crate::participant::requests::Requests;
use std::io;
use std::thread;
use std::time::Duration;
use tokio::runtime;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

/// Time to save after a second request. A guess.
const HURRY: Duration = Duration::from_secs(10);

/// Sets limits of cores and memory, and turns signals into requests. Call this before there are any threads.
///
/// The process ends [`Local::leave_within`] after the first request, whatever it is doing: the one who asked will not wait
/// longer, and the disk is as consistent as after a power cut. A second request leaves it [`HURRY`], a third ends it at once.
pub fn prepare(local: &Local) -> Result<Requests, Error> {
    if let Some(cores) = local.cores {
        keep_to_cores(cores.get()).map_err(Error::Cores)?;
    }
    keep_within(local.memory);
    hear(local.leave_within).map_err(Error::Requests)
}

fn hear(limit: Duration) -> io::Result<Requests> {
    let requests = Requests::default();
    let told = requests.clone();
    // On its own thread, because the participant's may be blocked by a disk.
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _within = runtime.enter();
        Signals::new()?
    };
    let guard = thread::Builder::new().name("annulus-requests".into());
    guard.spawn(move || runtime.block_on(pass_on(signals, &told, limit)))?;
    Ok(requests)
}

async fn pass_on(mut signals: Signals, requests: &Requests, limit: Duration) {
    signals.next().await;
    requests.ask();
    let late = sleep(limit);
    tokio::pin!(late);
    tokio::select! {
        () = signals.next() => requests.ask(),
        () = &mut late => end_process(LEFT),
    }
    tokio::select! {
        () = signals.next() => {}
        () = sleep(HURRY) => {}
        () = late => {}
    }
    end_process(LEFT);
}

/// Signals that ask the process to end. From the first on, none of them ends it by itself.
pub struct Signals {
    #[cfg(unix)]
    signals: Vec<Signal>,
}

impl Signals {
    /// Listens from here on. Must be called within a tokio runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signals: kinds().into_iter().map(signal).collect::<io::Result<_>>()?,
        })
    }

    /// The next. Dropping the future loses none; several at once are one.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        std::future::poll_fn(|context| {
            // Polls each of them, so that each wakes the task.
            let came = self
                .signals
                .iter_mut()
                .map(|signal| signal.poll_recv(context).is_ready());
            match came.fold(false, |any, one| any | one) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            // Requests cannot be received here.
            std::future::pending::<()>().await;
        }
    }
}

/// The signals that are requests.
#[cfg(unix)]
fn kinds() -> Vec<SignalKind> {
    let mut kinds = vec![
        SignalKind::interrupt(),
        SignalKind::terminate(),
        // Queues can send this some time before they take the machine away.
        SignalKind::user_defined1(),
    ];
    if !is_ignored(libc::SIGHUP) {
        kinds.push(SignalKind::hangup());
    }
    kinds
}

/// Whether this process was started with a signal ignored, as `nohup` does to let it outlive its terminal.
#[cfg(unix)]
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: with a null pointer the call changes nothing, and it writes the present action to a structure of plain numbers.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}
