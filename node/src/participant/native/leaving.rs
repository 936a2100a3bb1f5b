//! Ends a native participant: what it saves and reports, and by when.

use super::{Driver, NativeHost, QuicLink, end};
use crate::events::{self, Event};
use crate::participant::error::Error;
use crate::participant::host::Host;
use crate::participant::workers::WorkerResult;
use crate::store::checkpoint_writer::Written;
use crate::store::evals::Evaluated;
use crate::store::run_dir::RunDir;
use annulus_core::{Exit, Input, Peer, Round};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

impl NativeHost<'_> {
    /// Leaves because the user asks for it: after this round if that is over in time, and at once when asked again.
    pub(super) fn leave_on_request(&mut self, driver: &mut Driver<QuicLink>) -> ControlFlow<Exit> {
        let within = self.local.leave_within;
        let left = self.working.left(Instant::now()).filter(|left| *left > within);
        if let (false, Some(left)) = (self.asked_to_leave, left) {
            self.warn(format!(
                "leaving at once: this round would take {:.0} minutes more, and leaving may take {} s (--leave-within). Its samples \
                 are computed again later",
                left.as_secs_f64() / 60.0,
                within.as_secs()
            ));
        }
        if std::mem::replace(&mut self.asked_to_leave, true) || left.is_some() {
            self.in_a_hurry = true;
            return ControlFlow::Break(Exit::Left);
        }
        self.warn(format!(
            "leaving after this round, within {} s; Ctrl-C once more leaves at once",
            within.as_secs()
        ));
        self.feed(Input::Leave, driver);
        ControlFlow::Continue(())
    }

    /// Leaves the ring where something stands against computing here, in good order while that takes no longer than it may.
    pub(super) fn stand_aside(&mut self, driver: &mut Driver<QuicLink>) -> ControlFlow<Exit> {
        match self.aside {
            Some(since) if since.elapsed() >= self.local.leave_within => {
                self.in_a_hurry = true;
                return ControlFlow::Break(Exit::Left);
            }
            None if !self.asked_to_leave => {
                if let Some(against) = self.permission.against() {
                    self.aside = Some(Instant::now());
                    self.warn(format!("leaving after this round for a while: {against}"));
                    self.feed(Input::Leave, driver);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    /// The last checkpoint and evaluation, and the last word.
    pub(super) async fn close(mut self, peer: &Peer, finished: bool) -> Result<(), Error> {
        let (round, digest) = (peer.head().round, peer.digest());
        let whole = self.recorded == Some(end(peer));
        let wrote = !matches!(self.failure, Some(Error::Checkpoint(_)));
        if whole && wrote {
            while !self.checkpoint_writer.save(peer.head(), peer.state(), digest) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let aside = self.aside.is_some() && !self.asked_to_leave;
        let is_due = self.last_eval.as_ref().is_none_or(|(r, _)| *r != round) && self.workers.evaluates();
        if whole && !self.in_a_hurry && !aside && is_due {
            self.evaluate_last(round, &peer.state().params).await;
        }
        if let (Some(tally), Some(folder)) = (self.given.take(), &self.local.tally) {
            let _ = tally.keep(folder);
        }
        self.checkpoint_writer.finish();
        while let Ok(written) = self.written.try_recv() {
            match written {
                Written::Failed(error) => {
                    self.failure.get_or_insert(error.into());
                }
                Written::Warning(message) => (self.sink)(Event::Warning { message }),
                Written::Moved { to, anew } => self.follow_folder(to, anew),
                Written::Saved { .. } | Written::Pruned => {}
            }
        }
        if let Some(error) = self.failure {
            return Err(error);
        }
        if aside {
            return Ok(());
        }
        let eval = self.last_eval.as_ref().filter(|(r, _)| *r == round);
        let eval = eval.map(|(_, eval)| eval);
        (self.sink)(Event::Done(events::Done {
            round,
            finished,
            stopped_early: finished && peer.head().stopped,
            out_of_time: finished && self.clock.is_over,
            split: peer.manifest().split.is_some(),
            digest: peer.held_digest().filter(|_| whole).map(|digest| digest.to_hex()),
            loss: eval.map_or(self.last_loss, |e| e.loss),
            held_out: eval.is_some(),
            metrics: eval.map(|e| e.metrics.clone()).unwrap_or_default(),
            dir: whole.then(|| self.local.out.display().to_string()),
            best: self.local.keep_best.then(|| best(&self.local.out)).flatten(),
        }));
        Ok(())
    }
}

/// The best checkpoint in a folder.
fn best(dir: &Path) -> Option<events::Best> {
    let dir = RunDir::open(dir).ok()?;
    let Evaluated { round, loss, .. } = dir.best(&dir.checkpoints().ok()?).ok()??;
    Some(events::Best { round, loss })
}

impl NativeHost<'_> {
    /// Waits for the evaluation after the last round, unless the user does not want to.
    async fn evaluate_last(&mut self, round: Round, params: &[f32]) {
        while !self.workers.evaluate(round, params) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        loop {
            let result = tokio::select! {
                result = self.results.recv() => result,
                () = self.requests.next() => {
                    return self.warn("leaving without the last evaluation: `annulus eval` makes it up".into());
                }
            };
            match result {
                Some(WorkerResult::Evaluated(of, result)) => {
                    self.on_evaluated(of, result);
                    if of == round {
                        return;
                    }
                }
                Some(WorkerResult::Wrote(of, text, took)) => self.on_sample(of, text, took),
                Some(WorkerResult::Computed(_)) => {}
                None => return,
            }
        }
    }
}
