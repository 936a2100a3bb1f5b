//! Requests to end: Ctrl-C, and on Unix SIGTERM and SIGUSR1, by which systems that look after processes ask for it, and SIGHUP,
//! by which a terminal says that it is closed.

use crate::ending::{LEFT, end_process};
use std::io;
use std::thread;
use std::time::Duration;
use tokio::runtime;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

/// Time to save after a second request. A guess.
const HURRY: Duration = Duration::from_secs(10);

/// Receives requests. While it exists, none of them ends the process by itself.
pub(crate) struct Requests {
    #[cfg(unix)]
    signals: Vec<Signal>,
}

impl Requests {
    /// Listens from here on. Must be called within a tokio runtime.
    ///
    /// With a limit, the process ends that long after the first request, whatever it is doing: the one who asked will not
    /// wait longer, and the disk is as consistent as after a power cut. A second request leaves it [`HURRY`], a third ends
    /// it at once.
    pub fn new(limit: Option<Duration>) -> io::Result<Self> {
        #[cfg(unix)]
        let kinds = kinds();
        if let Some(limit) = limit {
            // On its own thread, because this one may be blocked by a disk.
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let requests = {
                let _within = runtime.enter();
                Self {
                    #[cfg(unix)]
                    signals: hear(&kinds)?,
                }
            };
            let guard = thread::Builder::new().name("annulus-requests".into());
            guard.spawn(move || runtime.block_on(requests.end_after(limit)))?;
        }
        Ok(Self {
            #[cfg(unix)]
            signals: hear(&kinds)?,
        })
    }

    async fn end_after(mut self, limit: Duration) {
        self.next().await;
        let late = sleep(limit);
        tokio::pin!(late);
        tokio::select! {
            () = self.next() => {}
            () = &mut late => end_process(LEFT),
        }
        tokio::select! {
            () = self.next() => {}
            () = sleep(HURRY) => {}
            () = late => {}
        }
        end_process(LEFT);
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

#[cfg(unix)]
fn hear(kinds: &[SignalKind]) -> io::Result<Vec<Signal>> {
    kinds.iter().map(|kind| signal(*kind)).collect()
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
