//! Requests to end: Ctrl-C, and on Unix SIGTERM and SIGUSR1, by which systems that look after processes ask for it.

use std::io;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The requests that come while this is there: none of them ends the process by itself any more.
pub(crate) struct Requests {
    #[cfg(unix)]
    signals: Vec<Signal>,
}

impl Requests {
    /// From here on. Must be called within a tokio runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signals: [
                SignalKind::interrupt(),
                SignalKind::terminate(),
                // What a queue is told to send some time before it takes the machine away.
                SignalKind::user_defined1(),
            ]
            .map(signal)
            .into_iter()
            .collect::<io::Result<_>>()?,
        })
    }

    /// The next. Dropping the future loses none; several at once are one.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        std::future::poll_fn(|context| {
            // Each is asked, so that each wakes the task.
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
            // There is no way to hear of one.
            std::future::pending::<()>().await;
        }
    }
}
