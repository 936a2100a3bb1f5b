//! A participant at work: the loop that feeds the driver and does what it leaves to its owner.

use crate::events::{self, Event};
use crate::net::link::next_event;
use crate::net::quic::QuicLink;
use crate::options::Local;
use crate::participant::driver::{Driver, Todo};
use crate::participant::error::Error;
use crate::participant::event_translator::EventTranslator;
use crate::participant::run_setup::RunSetup;
use crate::participant::workers::{ComputeResult, Workers};
use crate::store::checkpoint::RunWriter;
use crate::store::checkpoint_writer::{CheckpointWriter, Written};
use crate::store::evals::Evaluated;
use crate::task::Eval;
use crate::trainer::WorkerError;
use annulus_core::ledger::Member;
use annulus_core::peer::{Commit, Event as PeerEvent};
use annulus_core::shuffle::Shuffle;
use annulus_core::{Digest, Exit, Input, Manifest, Peer, Round, Time};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Takes what the run tells, as it happens.
pub type Sink<'a> = &'a mut (dyn FnMut(Event) + Send);

/// How long frames that were sent may still travel when a peer goes.
const DRAIN: Duration = Duration::from_secs(3);

/// A participant at work.
pub(crate) struct Running<'a> {
    driver: Driver<QuicLink>,
    workers: Workers,
    results: UnboundedReceiver<ComputeResult>,
    checkpoint_writer: CheckpointWriter,
    written: UnboundedReceiver<Written>,
    local: Local,
    start: Instant,
    sink: Sink<'a>,
    translator: EventTranslator,
    last_loss: f32,
    last_eval: Option<(Round, Eval)>,
    refused: Option<WorkerError>,
    failure: Option<Error>,
    /// The head that the ledger on disk ends with: only its state may be saved.
    recorded: Option<(Round, Digest)>,
}

impl<'a> Running<'a> {
    #[expect(clippy::too_many_arguments, reason = "put together once")]
    pub fn new(
        peer: Peer,
        link: QuicLink,
        manifest: Arc<Manifest>,
        setup: RunSetup,
        local: Local,
        writer: Option<RunWriter>,
        start: Instant,
        sink: Sink<'a>,
    ) -> Self {
        let (to_loop, results) = unbounded_channel();
        let (to_us, written) = unbounded_channel();
        let shuffle = Shuffle::of(&manifest);
        let keep = local.keep as usize;
        Self {
            driver: Driver::new(peer, link, shuffle),
            workers: Workers::start(setup.worker, setup.worker_factory, to_loop),
            results,
            checkpoint_writer: CheckpointWriter::start(local.out.clone(), manifest, keep, writer, to_us),
            written,
            local,
            start,
            sink,
            translator: EventTranslator::default(),
            last_loss: f32::NAN,
            last_eval: None,
            refused: None,
            failure: None,
            recorded: None,
        }
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_micros() as u64)
    }

    pub async fn run(mut self) -> Result<(), Error> {
        let exit = self.turn().await;
        self.driver.link().drain(DRAIN).await;
        if exit == Exit::NotFinite {
            let round = self.driver.peer().head().round;
            let why = self.refused.take();
            self.failure.get_or_insert(Error::NotFinite {
                round,
                dir: self.local.out.clone(),
                why,
            });
        }
        self.close().await
    }

    /// The loop: until the peer is done.
    async fn turn(&mut self) -> Exit {
        let mut interrupts = 0;
        let mut interrupt = Box::pin(interrupted());
        loop {
            while let Some(todo) = self.driver.next_todo() {
                match todo {
                    Todo::Compute {
                        round,
                        samples,
                        buffer,
                    } => self.workers.contribute(round, samples, buffer),
                    Todo::Event(event) => self.tell(event),
                    Todo::Exit(exit) => return exit,
                }
            }
            if self.driver.is_busy() {
                tokio::task::yield_now().await;
                self.feed(Input::Tick);
                continue;
            }
            let wake = self.driver.peer().wake_at().unwrap_or(Time(u64::MAX / 2));
            let wake = tokio::time::sleep((wake - self.now()).min(Duration::from_secs(3600)));
            tokio::select! {
                event = next_event(self.driver.link()) => match event {
                    Some(event) => {
                        let now = self.now();
                        self.driver.on_link(event, now);
                    }
                    None => return Exit::Left,
                },
                Some(result) = self.results.recv() => self.on_result(result),
                Some(written) = self.written.recv() => self.on_written(written),
                () = wake => self.feed(Input::Tick),
                () = &mut interrupt => {
                    interrupts += 1;
                    if interrupts > 1 {
                        return Exit::Left;
                    }
                    interrupt = Box::pin(interrupted());
                    self.warn("leaving after this round; once more to leave at once".into());
                    self.feed(Input::Leave);
                }
            }
        }
    }

    fn feed(&mut self, input: Input) {
        let now = self.now();
        self.driver.handle(input, now);
    }

    fn on_result(&mut self, result: ComputeResult) {
        match result {
            ComputeResult::Warm(speed) => self.feed(Input::Warm { speed }),
            ComputeResult::Made(input) => self.feed(input),
            ComputeResult::Refused(input, why) => {
                self.warn(format!("this peer's contribution does not count: {why}"));
                self.refused = Some(why);
                self.feed(input);
            }
            ComputeResult::Failed(why) => self.fail(why.into()),
            ComputeResult::Evaluated(round, Ok(Some(eval))) => {
                self.last_eval = Some((round, eval));
                self.checkpoint_writer.evaluated(Evaluated {
                    round,
                    loss: eval.loss,
                    accuracy: eval.accuracy,
                });
                (self.sink)(Event::Eval {
                    round,
                    loss: eval.loss,
                    accuracy: eval.accuracy,
                });
            }
            ComputeResult::Evaluated(_, Ok(None)) => {}
            ComputeResult::Evaluated(_, Err(why)) => self.warn(format!("the evaluation failed: {why}")),
        }
    }

    fn on_written(&mut self, written: Written) {
        match written {
            Written::Saved { .. } => {}
            Written::Warning(message) => self.warn(message),
            Written::Failed(error) => self.fail(error.into()),
        }
    }

    /// Something this peer cannot go on with: it leaves in good order.
    fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            self.warn(format!("leaving: {error}"));
            self.failure = Some(error);
            self.feed(Input::Leave);
        }
    }

    fn warn(&mut self, message: String) {
        (self.sink)(Event::Warning { message });
    }

    fn tell(&mut self, event: PeerEvent) {
        if matches!(event, PeerEvent::Entered) {
            self.begin_record();
        }
        for told in self.translator.tell(&event, &self.driver) {
            (self.sink)(told);
        }
        match event {
            PeerEvent::Committed(commit) => self.committed(*commit),
            PeerEvent::Continued => {
                let founder: Member = self.driver.peer().head().members[0].clone();
                self.checkpoint_writer.go_on(founder);
                self.recorded = Some(self.head());
            }
            _ => {}
        }
    }

    fn head(&self) -> (Round, Digest) {
        let head = self.driver.peer().head();
        (head.round, head.chain)
    }

    /// Tries the device out, so that its speed is known when the peer has caught up.
    pub fn warm(&self, params: Vec<f32>, samples: Vec<u64>) {
        self.workers.warm(params, samples);
    }

    /// This peer's ledger goes on from its present head.
    pub fn resume_record(&mut self) {
        self.recorded = Some(self.head());
    }

    /// This peer's ledger begins at its present head.
    pub fn begin_record(&mut self) {
        let peer = self.driver.peer();
        self.checkpoint_writer
            .begin(peer.head().clone(), peer.state().clone());
        self.recorded = Some(self.head());
    }

    fn committed(&mut self, commit: Commit) {
        let round = commit.record.round;
        self.last_loss = commit.record.loss();
        self.checkpoint_writer.append(commit.record, commit.digest);
        self.recorded = Some(self.head());
        let due = |every: u64| every > 0 && round.is_multiple_of(every);
        let peer = self.driver.peer();
        if due(self.local.checkpoint_every)
            && !self
                .checkpoint_writer
                .save(peer.head(), peer.state(), commit.digest)
        {
            let every = self.local.checkpoint_every;
            self.warn(format!(
                "the disk is slower than checkpoint_every={every}: this checkpoint is left out"
            ));
        }
        if due(self.local.eval_every) {
            let params = &self.driver.peer().state().params;
            self.workers.evaluate(round, params);
        }
    }

    /// The last checkpoint and evaluation, and the last word.
    async fn close(mut self) -> Result<(), Error> {
        let peer = self.driver.peer();
        let (round, digest) = (peer.head().round, peer.digest());
        let whole = self.recorded == Some(self.head());
        let wrote = !matches!(self.failure, Some(Error::Checkpoint(_)));
        if whole && wrote {
            while !self.checkpoint_writer.save(peer.head(), peer.state(), digest) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        if whole && self.last_eval.is_none_or(|(r, _)| r != round) {
            while !self.workers.evaluate(round, &self.driver.peer().state().params) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            while let Some(result) = self.results.recv().await {
                let last = matches!(result, ComputeResult::Evaluated(r, _) if r == round);
                if matches!(result, ComputeResult::Evaluated(..)) {
                    self.on_result(result);
                }
                if last {
                    break;
                }
            }
        }
        self.checkpoint_writer.finish();
        while let Ok(written) = self.written.try_recv() {
            match written {
                Written::Failed(error) => {
                    self.failure.get_or_insert(error.into());
                }
                Written::Warning(message) => (self.sink)(Event::Warning { message }),
                Written::Saved { .. } => {}
            }
        }
        if let Some(error) = self.failure {
            return Err(error);
        }
        let eval = self.last_eval.filter(|(r, _)| *r == round).map(|(_, eval)| eval);
        (self.sink)(Event::Done(events::Done {
            round,
            digest: digest.to_hex(),
            loss: eval.map_or(self.last_loss, |e| e.loss),
            accuracy: eval.and_then(|e| e.accuracy),
            dir: self.local.out.display().to_string(),
        }));
        Ok(())
    }
}

/// Ctrl-C, or a polite request to end.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
