//! The host of a native participant: events beside those of the link, and the effects of commits on disk, device and
//! user.

use crate::data::Stock;
use crate::data::demand::Demand;
use crate::data::provision::Source;
use crate::events::{Event, Sink};
use crate::net::identity::Identity;
use crate::net::link::{DialError, LinkEvent, Refusal};
use crate::net::mapping::Outside;
use crate::net::quic::QuicLink;
use crate::options::Local;
use crate::participant::driver::Driver;
use crate::participant::error::Error;
use crate::participant::event_translator::EventTranslator;
use crate::participant::host::{self, Host};
use crate::participant::limits::Pace;
use crate::participant::permission::Permission;
use crate::participant::requests::Requests;
use crate::participant::right::{Right, keep_revocation, revocations_in};
use crate::participant::run_setup::{Computes, RunSetup, Whole};
use crate::participant::workers::{Engine, Limits, WorkerResult, Workers};
use crate::store::checkpoint::Keep;
use crate::store::checkpoint_writer::{CheckpointWriter, Destination, Written};
use crate::store::evals::Evaluated;
use crate::store::given::Tally;
use crate::store::known::Known;
use crate::task::Eval;
use crate::trainer::{Share, Slowed, Timed, Worker, WorkerError};
use annulus_core::interface::SpanWork;
use annulus_core::peer::Event as PeerEvent;
use annulus_core::shuffle::Shuffle;
use annulus_core::{Contact, Digest, Exit, Input, Manifest, Peer, Round, Time};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Interval, interval};

mod gains;
mod leaving;
mod look;
mod nearby;
mod recording;
mod restoring;
mod samples;
mod streaming;
mod working;

use gains::{Clock, Gains, evaluate_for};
use look::{Meeting, is_member_with};
use nearby::Nearby;
use restoring::{Disk, Restored};
use samples::Samples;
use working::Working;

/// How often the folder is checked for new files.
const LOOK_AT_FOLDER: Duration = Duration::from_secs(1);

/// How long frames that were sent may still travel when a peer goes.
const DRAIN: Duration = Duration::from_secs(3);

/// How a participant's part in a run ended, if nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run is complete.
    Finished,
    /// It was asked to leave earlier.
    Left,
}

/// A participant that is ready to run.
pub(crate) struct Participant<'a> {
    driver: Driver<QuicLink>,
    host: NativeHost<'a>,
}

impl<'a> Participant<'a> {
    #[expect(clippy::too_many_arguments, reason = "put together once")]
    pub fn new(
        peer: Peer,
        link: QuicLink,
        manifest: Arc<Manifest>,
        setup: RunSetup,
        mut local: Local,
        destination: Destination,
        known: Known,
        requests: &'a Requests,
        permission: &'a mut Permission,
        start: Instant,
        sink: Sink<'a>,
    ) -> Self {
        evaluate_for(&manifest, &mut local);
        let (to_loop, results) = unbounded_channel();
        let (to_us, written) = unbounded_channel();
        let (found, answers) = unbounded_channel();
        let shuffle = Shuffle::of(&manifest);
        let keep = Keep {
            newest: local.keep.get() as usize,
            best: local.keep_best,
            ledger: local.keep_ledger,
        };
        let (mut given, samples) = (Arc::default(), Samples::of(&setup.computes, &local));
        let engine = match setup.computes {
            Computes::Whole(Whole {
                worker,
                worker_factory,
                ..
            }) => {
                given = worker.given();
                let worker: Box<dyn Worker> = match (local.sample_takes, local.slower) {
                    (Some(sample), _) => Box::new(Timed::new(worker, sample)),
                    (None, None) => worker,
                    (None, Some(speed)) => Box::new(Slowed::new(worker, speed)),
                };
                // A process that computes elsewhere evaluates there too.
                Engine::Whole(worker, (!local.external).then_some(worker_factory))
            }
            Computes::Spans { mut spans, .. } => {
                spans.act(local.sample_takes);
                Engine::Spans(spans)
            }
        };
        let gains = Gains::of(&local.out, manifest.early_stop.is_some());
        let host = NativeHost {
            workers: Workers::start(
                engine,
                &manifest,
                Limits {
                    pace: Pace::new(local.power),
                    nice: local.nice,
                    memory: setup.memory,
                },
                to_loop,
            ),
            results,
            working: Working::new(given),
            checkpoint_writer: CheckpointWriter::start(manifest, keep, destination, to_us),
            written,
            found,
            answers,
            known,
            requests,
            permission,
            aside: None,
            asked_to_leave: false,
            is_too_late: false,
            in_a_hurry: false,
            disk: Disk::new(&local.out, keep.newest),
            look: interval(LOOK_AT_FOLDER),
            meeting: None,
            nearby: None,
            told_at: None,
            contact: link.contact(),
            outside: (!link.local_addr().ip().is_unspecified()).then_some(Outside::Unasked),
            demand: setup.files.as_ref().and_then(Stock::demand),
            given: Tally::new(peer.manifest().run_id().to_hex()),
            local,
            start,
            sink,
            translator: EventTranslator::default(),
            last_loss: f32::NAN,
            last_eval: None,
            samples,
            gains,
            clock: Clock::of(setup.time),
            refused: None,
            failure: None,
            told_of_data: false,
            credentials: None,
            saved_at: Instant::now(),
            save_asked: None,
            recorded: None,
        };
        let driver = Driver::new(peer, link, shuffle);
        Self { driver, host }
    }

    /// Tries the device out, so that its speed is known when the peer has caught up.
    pub fn warm(&self) {
        self.host
            .workers
            .warm(self.driver.peer().manifest().samples.get());
    }

    /// This peer's ledger continues from its present head.
    pub fn resume_record(&mut self) {
        self.host.recorded = Some(end(self.driver.peer()));
        self.host.disk.look();
        self.host.disk.tell(&mut self.driver, self.host.now());
    }

    /// This peer's ledger begins at its present head.
    pub fn begin_record(&mut self) {
        self.host.begin_record(self.driver.peer());
    }

    /// Takes part until the run ends or this peer is asked to leave. None if it only stands aside.
    pub async fn run(mut self) -> Result<Option<Ending>, Error> {
        let exit = host::run(&mut self.host, &mut self.driver).await;
        self.host.leave_nearby().await;
        if !self.host.in_a_hurry {
            self.driver.link().drain(DRAIN).await;
        }
        if exit == Exit::NotFinite {
            let round = self.driver.peer().head().round;
            let why = self.host.refused.take();
            self.host.failure.get_or_insert(Error::NotFinite {
                round,
                dir: self.host.local.out.clone(),
                why,
            });
        }
        if exit == Exit::Lost {
            let dir = self.host.local.out.clone();
            self.host.failure.get_or_insert(Error::StateLost { dir });
        }
        let failure = match exit {
            Exit::Barred(why) => Some(Error::Barred(why)),
            Exit::NoMember => Some(Error::NoMember(self.host.local.out.clone())),
            _ => None,
        };
        if let Some(failure) = failure {
            self.host.failure.get_or_insert(failure);
        }
        let meeting = self.host.meeting.take();
        let out = self.host.local.out.clone();
        let aside = self.host.aside.is_some() && !self.host.asked_to_leave;
        let is_too_late = self.host.is_too_late;
        self.host
            .close(self.driver.peer(), exit == Exit::Finished)
            .await?;
        if is_too_late {
            return Ok(Some(Ending::Finished));
        }
        if exit != Exit::Finished {
            return Ok((!aside).then_some(Ending::Left));
        }
        if let Some(meeting) = meeting {
            meeting.finish(&out).await;
        }
        Ok(Some(Ending::Finished))
    }
}

/// The environment of a native participant: a disk, compute threads, and a user at a terminal.
struct NativeHost<'a> {
    workers: Workers,
    results: UnboundedReceiver<WorkerResult>,
    /// Their present work.
    working: Working,
    checkpoint_writer: CheckpointWriter,
    written: UnboundedReceiver<Written>,
    /// Answers from the addresses of a ticket.
    answers: UnboundedReceiver<Result<Source, DialError>>,
    found: UnboundedSender<Result<Source, DialError>>,
    /// The peers to look for after a restart.
    known: Known,
    /// Requests to leave.
    requests: &'a Requests,
    /// Whether it may compute on this machine.
    permission: &'a mut Permission,
    /// Since when it is leaving because it may not.
    aside: Option<Instant>,
    asked_to_leave: bool,
    /// The run was finished before this peer got anything of it.
    is_too_late: bool,
    /// It was asked to leave twice.
    in_a_hurry: bool,
    /// The checkpoints that it may have to go back to.
    disk: Disk,
    /// When to check for revocations in the folder.
    look: Interval,
    /// The meeting place of the run's peers.
    meeting: Option<Meeting>,
    /// Announces the run on the network and admits peers there.
    nearby: Option<Nearby>,
    /// When this peer was last announced there.
    told_at: Option<Instant>,
    /// The last known address at which others can reach it.
    contact: Contact,
    /// The last state of the port mapping that others were told.
    outside: Option<Outside>,
    given: Tally,
    /// The demand for streamed data.
    demand: Option<Arc<Demand>>,
    local: Local,
    start: Instant,
    sink: Sink<'a>,
    translator: EventTranslator,
    last_loss: f32,
    last_eval: Option<(Round, Eval)>,
    /// When the model writes for those who look.
    samples: Samples,
    /// Whether evaluations show any gain, if the run stops early.
    gains: Gains,
    clock: Clock,
    refused: Option<WorkerError>,
    failure: Option<Error>,
    /// Whether the user knows that newcomers cannot get the data here.
    told_of_data: bool,
    /// What makes it this peer, should its folder be removed.
    credentials: Option<(Arc<Identity>, Right)>,
    /// When the state was last saved, or this peer began.
    saved_at: Instant,
    /// The round whose state is being saved because somebody asked for it.
    save_asked: Option<Round>,
    /// The head that the ledger on disk ends with: only its state may be saved.
    recorded: Option<(Round, Digest)>,
}

/// Events beside those of the link.
enum Happening {
    Result(WorkerResult),
    Written(Written),
    Restored(Restored),
    Found(Result<Source, DialError>),
    Look,
    Request,
}

impl Host for NativeHost<'_> {
    type Link = QuicLink;
    type Happening = Happening;

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_micros() as u64)
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> {
        tokio::time::sleep(duration)
    }

    async fn give_way(&mut self, busy: bool) {
        // Otherwise tokio does it.
        if busy {
            tokio::task::yield_now().await;
        }
    }

    async fn next(&mut self) -> Happening {
        tokio::select! {
            Some(result) = self.results.recv() => Happening::Result(result),
            Some(written) = self.written.recv() => Happening::Written(written),
            Some(restored) = self.disk.restored.recv() => Happening::Restored(restored),
            Some(found) = self.answers.recv() => Happening::Found(found),
            _ = self.look.tick() => Happening::Look,
            () = self.requests.next() => Happening::Request,
        }
    }

    fn on_happening(&mut self, happening: Happening, driver: &mut Driver<QuicLink>) -> ControlFlow<Exit> {
        match happening {
            Happening::Result(WorkerResult::Computed(result)) => self.on_computed(*result, driver),
            Happening::Result(WorkerResult::Evaluated(round, result)) => {
                self.on_evaluated(round, result);
                self.tell_of_gains(driver);
            }
            Happening::Result(WorkerResult::Wrote(round, text, took)) => self.on_sample(round, text, took),
            Happening::Written(written) => self.on_written(written, driver),
            Happening::Restored(restored) => self.on_restored(restored, driver),
            // A member's own messages tell better where it is.
            Happening::Found(Ok(Source { peer, .. })) if is_member_with(driver.peer(), peer) => {}
            Happening::Found(Ok(Source { peer, contact })) => driver.know(peer, &contact, self.now()),
            Happening::Found(Err(DialError::Refused(Refusal::AnotherRun))) => self.warn(
                "somebody is where this run's peers meet and takes part in another run: was it started by another command?"
                    .into(),
            ),
            Happening::Found(Err(DialError::NoAddress(names))) => self.warn(format!(
                "the meeting place cannot be resolved: {names}. Check the name after --meet; until then no other peer finds \
                 this one there"
            )),
            Happening::Found(Err(error)) => self.fail(error.into(), driver),
            Happening::Look => return self.on_look(driver),
            Happening::Request => return self.leave_on_request(driver),
        }
        ControlFlow::Continue(())
    }

    fn on_link(&mut self, event: LinkEvent, driver: &mut Driver<QuicLink>) {
        let told = match &event {
            LinkEvent::Up { peer, way, rtt, .. } => Some((peer, Some(*way), rtt.as_secs_f64() * 1e3)),
            LinkEvent::Down { peer, .. } => Some((peer, None, 0.0)),
            LinkEvent::Frame { .. } | LinkEvent::DialFailed { .. } => None,
        };
        if let Some((peer, way, rtt_ms)) = told {
            let peer = peer.to_hex();
            (self.sink)(Event::Link { peer, way, rtt_ms });
        }
        driver.on_link(event, self.now());
    }

    fn compute(&mut self, round: Round, share: Share) {
        self.demand.iter().for_each(|demand| demand.begin_share());
        self.working
            .begin(round, share.samples.len() as u64, Instant::now());
        self.workers.contribute(round, share);
    }

    fn compute_span(&mut self, work: Box<SpanWork>, samples: Vec<u64>) {
        self.working.begin(work.round, 0, Instant::now());
        self.workers.compute_span(work, samples);
    }

    fn restore(&mut self, stepped: Digest) {
        self.disk.restore(stepped);
    }

    fn tell(&mut self, event: PeerEvent, driver: &Driver<QuicLink>) {
        self.foresee(&event, driver.peer());
        if matches!(event, PeerEvent::Entered) {
            self.begin_record(driver.peer());
        }
        for told in self.translator.tell(&event, driver) {
            if let Event::Round(round) = &told {
                let name = driver.peer().me().to_hex();
                let own = round.members.iter().filter(|share| share.peer == name);
                let samples = own.map(|share| share.weight).sum();
                self.given.count(samples, round.compute_seconds);
            }
            (self.sink)(told);
        }
        self.remember(&event, driver.peer());
        match event {
            PeerEvent::Committed(commit) => {
                self.working.end();
                self.committed(*commit, driver.peer());
            }
            PeerEvent::Continued { from } => self.continued(from, driver.peer()),
            _ => {}
        }
    }
}

impl NativeHost<'_> {
    fn on_evaluated(&mut self, round: Round, result: Result<Option<Eval>, WorkerError>) {
        match result {
            Ok(Some(eval)) => {
                self.last_eval = Some((round, eval.clone()));
                let Eval { loss, metrics } = eval;
                self.gains.evaluated(loss);
                self.checkpoint_writer.evaluated(Evaluated {
                    round,
                    loss,
                    metrics: metrics.clone(),
                });
                (self.sink)(Event::Eval { round, loss, metrics });
            }
            Ok(None) => {}
            Err(why) => self.warn(format!("the evaluation failed: {why}")),
        }
    }

    /// Tells the run of tickets that were taken back here, until it knows.
    fn pass_on_revocations(&mut self, driver: &mut Driver<QuicLink>) {
        for (file, revocation) in revocations_in(&self.local.out) {
            let peer = driver.peer();
            if peer.head().tickets.knows(&revocation, peer.manifest().run_id()) {
                // If it cannot be moved, it is read once more.
                let _ = keep_revocation(&self.local.out, &file);
            } else {
                self.feed(Input::Revoke(Box::new(revocation)), driver);
            }
        }
    }

    /// Leaves in good order after an error.
    fn fail(&mut self, error: Error, driver: &mut Driver<QuicLink>) {
        if self.failure.is_none() {
            self.warn(format!("leaving: {error}"));
            self.failure = Some(error);
            self.feed(Input::Leave, driver);
        }
    }

    fn warn(&mut self, message: String) {
        (self.sink)(Event::Warning { message });
    }
}

/// The end of a peer's ledger.
fn end(peer: &Peer) -> (Round, Digest) {
    let head = peer.head();
    (head.round, head.chain)
}
