//! Requests to leave a run. A signal or another part of the program makes them; a participant heeds them.

use std::sync::Arc;
use tokio::sync::Notify;

/// Asks a participant to leave: once for after the current round, twice for at once. Copies ask the same participant.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Notify>);

impl Requests {
    /// Asks once. Requests that the participant has not yet seen are one.
    pub fn ask(&self) {
        self.0.notify_one();
    }

    /// The next request. Dropping the future loses none.
    pub(crate) async fn next(&self) {
        self.0.notified().await;
    }

    /// Whether there has been one since the last was seen.
    pub(crate) async fn came(&self) -> bool {
        tokio::select! {
            biased;
            () = self.next() => true,
            () = std::future::ready(()) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    #[test]
    fn a_request_waits_for_its_reader_and_several_are_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let requests = Requests::default();
            assert!(!requests.came().await);
            requests.clone().ask();
            requests.ask();
            assert!(requests.came().await && !requests.came().await);
            // One that a dropped reader was woken for stays.
            {
                let mut dropped = pin!(requests.next());
                poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_ready())).await;
                requests.ask();
            }
            assert!(requests.came().await);
        });
    }
}
