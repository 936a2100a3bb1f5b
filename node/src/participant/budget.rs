//! A run with a time budget: how many rounds fit into it.
//!
//! A schedule of the learning rate needs to know the run's end before the run begins. So the founder tries some rounds on its own,
//! and the manifest says how many fit. Peers that join only make the run shorter. Should it take longer than the trial promised, its
//! members say in their headers that their time is over, as they do with `patience`.

use crate::net::ticket::Secret;
use crate::options::{Local, NewRun};
use crate::participant::compute::ComputeResult;
use crate::participant::error::Error;
use crate::participant::run_setup::{self, Computes, Means, RunSetup, Whole};
use crate::task_factory::TaskFactory;
use crate::trainer::{Contributor, Share, Worker};
use annulus_core::invitation::Invitation;
use annulus_core::shuffle::Shuffle;
use annulus_core::{Contact, EarlyStop, Input, Manifest, Output, Peer, PeerId, Settings, State, Time};
use burn::tensor::read_sync;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The part of the time that rounds and evaluations fill by the trial. It knows neither the disk nor other work of the machine; a
/// guess.
const FILLED: f64 = 0.9;

/// Most time for the trial, and its part of a short budget; guesses.
const TRIAL: Duration = Duration::from_secs(5);
const TRIAL_PART: u32 = 10;

/// The first rounds build kernels and fill caches, so they do not count.
const FIRST: u64 = 2;

/// Evaluations of such a run before its last round, where the user does not say.
const EVALUATIONS: u64 = 10;

/// The learning rate rises over at most this part of the rounds; a guess.
const WARMUP_PART: u64 = 10;

/// The patience of a run that stops early by its time alone.
pub(super) const BY_TIME_ALONE: NonZeroU32 = NonZeroU32::MAX;

/// A new run's manifest, and what computes. With a time budget the run is as long as the earlier one in its folder, if there is one, and
/// else as fits.
pub(super) fn prepare(
    run: &NewRun,
    (key, earlier): (PeerId, Option<Manifest>),
    local: &Local,
    factories: &[TaskFactory],
) -> Result<(RunSetup, Manifest), Error> {
    let since = Instant::now();
    let (mut setup, mut manifest) = run_setup::prepare(run, key, Means::of(local), factories)?;
    match (setup.time, earlier) {
        (None, _) => {}
        (Some(_), _) if !run.any_length => {
            return Err(Error::Settings(
                "time says when the run ends, by as many rounds as fit: leave rounds and epochs out, or time",
            ));
        }
        // A trial would not find the same number again.
        (Some(_), Some(earlier)) => {
            manifest.target = earlier.target;
            manifest.schedule = earlier.schedule;
            manifest.early_stop = earlier.early_stop;
        }
        (Some(time), None) => fit(&mut manifest, &mut setup, (since, time, local.power))?,
    }
    Ok((setup, manifest))
}

/// Gives a new run as many rounds as fit into its time, which began at `since`. `power`: the fraction of time that the device may
/// compute.
fn fit(
    manifest: &mut Manifest,
    setup: &mut RunSetup,
    (since, time, power): (Instant, Duration, f64),
) -> Result<(), Error> {
    let Computes::Whole(Whole { worker, .. }) = &mut setup.computes else {
        return Err(Error::Settings(
            "time does not go with a split model: leave one of them out",
        ));
    };
    let round = round_time(manifest, &mut **worker, TRIAL.min(time / TRIAL_PART))?.as_secs_f64() / power;
    let (params, began) = (worker.init(), Instant::now());
    worker.score(params)?;
    let evaluations = began.elapsed().as_secs_f64() * (EVALUATIONS + 1) as f64;
    let left = time.saturating_sub(since.elapsed());
    let rounds = (FILLED * left.as_secs_f64() - evaluations) / round;
    let rounds = NonZeroU64::new(rounds as u64).unwrap_or(NonZeroU64::MIN);
    manifest.target = rounds.saturating_mul(manifest.batch.into());
    let rounds = rounds.get();
    manifest.schedule = manifest.schedule.over(rounds, rounds / WARMUP_PART);
    let every = u32::try_from(rounds / EVALUATIONS).ok().and_then(NonZeroU32::new);
    manifest.early_stop.get_or_insert(EarlyStop {
        every: every.unwrap_or(NonZeroU32::MIN),
        patience: BY_TIME_ALONE,
    });
    setup.time = Some(left);
    if !setup.description.is_empty() {
        setup.description.push('\n');
    }
    let (batch, ms) = (manifest.batch, 1e3 * round);
    setup.description +=
        &format!("time: {rounds} rounds of {batch} samples fit, at {ms:.1} ms each by a trial");
    Ok(())
}

/// How long a round takes on this device with one member, which neither sends nor saves anything.
fn round_time(manifest: &Manifest, worker: &mut dyn Worker, most: Duration) -> Result<Duration, Error> {
    let invitation = Invitation::of_run(Secret::generate().key());
    let manifest = Arc::new(Manifest {
        key: invitation.key.peer(),
        min_peers: NonZeroU16::MIN,
        ..manifest.clone()
    });
    let key = Secret::generate().key();
    let admission = invitation.admit(key.peer(), manifest.run_id());
    let settings = Settings::new(key, admission, Contact(Vec::new()));
    let (shuffle, mut contributor) = (Shuffle::of(&manifest), Contributor::new(&manifest));
    let start = Instant::now();
    let state = State::new(worker.init(), &manifest);
    let mut peer = Peer::found(manifest, settings, state, Time(0));
    // When the rounds began that count, and how many there were.
    let (mut counted, mut rounds) = (start, 0);
    loop {
        let (mut next, mut is_over) = (Input::Tick, false);
        while let Some(output) = peer.poll() {
            match output {
                Output::Compute {
                    round,
                    positions,
                    buffer,
                    local,
                } => {
                    rounds += 1;
                    if rounds == FIRST {
                        counted = Instant::now();
                    }
                    let (samples, params, began) = (shuffle.draws(&positions), buffer, Instant::now());
                    let share = Share {
                        samples,
                        ahead: Vec::new(),
                        params,
                        local,
                    };
                    let made = read_sync(contributor.contribute(worker, share));
                    next = match ComputeResult::of(round, made, began.elapsed()) {
                        ComputeResult::Made(input) | ComputeResult::Refused(input, _) => input,
                        ComputeResult::Failed(_, error) => return Err(error.into()),
                    };
                }
                Output::Exit(_) => is_over = true,
                _ => {}
            }
        }
        if is_over || start.elapsed() >= most && rounds > FIRST {
            let rounds = rounds.saturating_sub(FIRST).max(1);
            return Ok(counted.elapsed() / u32::try_from(rounds).unwrap_or(u32::MAX));
        }
        peer.handle(next, Time(start.elapsed().as_micros() as u64));
    }
}
