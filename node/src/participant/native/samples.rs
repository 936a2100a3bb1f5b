//! Texts by the model as it stands, for people who look at the run.

use super::NativeHost;
use crate::events::Event;
use crate::options::Local;
use crate::participant::run_setup::{Computes, Whole};
use crate::trainer::WorkerError;
use annulus_core::{Peer, Round};
use std::time::{Duration, Instant};

/// When the first text is due: short runs do without.
const FIRST: Duration = Duration::from_secs(15);

/// From one text to the next, so that what a page shows is never a minute old.
const EVERY: Duration = Duration::from_secs(45);

/// Writing takes at most one part in this many of the time.
const ONE_IN: u32 = 20;

/// Tokens of a text: a sentence or two.
const TOKENS: usize = 80;

/// When the next text is due; none while one is written, and of a model that writes none.
pub(super) struct Samples {
    due: Option<Instant>,
}

impl Samples {
    /// Of a peer that has the whole model, computes it here, and serves a page.
    pub(super) fn of(computes: &Computes, local: &Local) -> Self {
        let here = local.page.is_some() && local.sample_takes.is_none() && !local.external;
        let writes = matches!(computes, Computes::Whole(Whole { writes: true, .. }));
        let due = (writes && here).then(|| Instant::now() + FIRST);
        Self { due }
    }
}

impl NativeHost<'_> {
    /// Has the model write, if that is due.
    pub(super) fn write_sample(&mut self, peer: &Peer) {
        let (round, now) = (peer.head().round, Instant::now());
        let is_due = round > 0 && peer.is_member() && self.samples.due.is_some_and(|due| due <= now);
        if is_due && self.workers.write(round, &peer.state().params, TOKENS) {
            self.samples.due = None;
        }
    }

    /// The model has written, which took this long.
    pub(super) fn on_sample(&mut self, round: Round, text: Result<String, WorkerError>, took: Duration) {
        match text {
            Ok(text) => {
                self.samples.due = Some(Instant::now() + EVERY.max(took * ONE_IN));
                (self.sink)(Event::Sample { round, text });
            }
            Err(why) => self.warn(format!("no more texts by the model are shown: {why}")),
        }
    }
}
