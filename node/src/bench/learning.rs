//! Measures what a way of training together costs in learning. One process plays a run of equal members: sums, codecs,
//! steps and lateness are those of the real run, bit for bit, since a replay computes the rounds; links and time are
//! not.
//!
//! The result is how many batches a loss takes. Multiply it by the time of a batch on your links ([`crate::forecast`],
//! or a real run) to get the time that people wait.

use super::Error;
use crate::net::ticket::Secret;
use crate::offline::recompute::contribution;
use crate::offline::replay::{Asked, Replay};
use crate::options::NewRun;
use crate::participant::run_setup::{Means, Whole, prepare};
use crate::task_factory::TaskFactory;
use annulus_core::config::{Manifest, Settings};
use annulus_core::id::{Contact, Digest};
use annulus_core::invitation::Invitation;
use annulus_core::ledger::{Head, Header, Member, Record};
use annulus_core::local::LocalRound;
use annulus_core::shuffle::Shuffle;
use annulus_core::signature::{Key, Signed};
use annulus_core::state::State;
use serde::Serialize;

/// Options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Members, all equally fast.
    pub members: u16,
    /// The run.
    pub run: NewRun,
    /// Batches between two evaluations.
    pub every: u64,
    /// The loss on held-out data at which to stop early.
    pub until: Option<f32>,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Batches so far.
    pub batches: u64,
    /// Rounds so far, and so exchanges.
    pub rounds: u64,
    /// Loss on held-out data.
    pub loss: f32,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearningReport {
    /// Always "learning".
    pub bench: &'static str,
    /// Members.
    pub members: u16,
    /// The evaluations.
    pub points: Vec<Point>,
    /// Batches until the requested loss, interpolated between two evaluations; none if it was not reached.
    pub batches: Option<f64>,
}

/// Plays a run, and reports each evaluation.
///
/// # Errors
///
/// If the task cannot be made, has no held-out data, or the device fails.
pub fn measure(
    options: &Options,
    given: Means<'_>,
    tasks: &[TaskFactory],
    mut tell: impl FnMut(Point),
) -> Result<LearningReport, Error> {
    let founder = Secret::generate().key();
    let (setup, manifest) = prepare(&options.run, founder.peer(), given, tasks).map_err(failed)?;
    let members = Members::new(founder, options.members, &manifest);
    let head = members.head(&manifest);
    let state = setup.first_state(&manifest);
    let mut whole = setup.computes.whole().map_err(failed)?;
    let (mut replay, mut points) = (Replay::new(manifest.clone(), head, state), Vec::<Point>::new());
    let shuffle = Shuffle::of(&manifest);
    let mut due = 0;
    loop {
        let batches = replay.head().samples / u64::from(manifest.batch.get());
        let finished = replay.head().finished(&manifest);
        if batches >= due || finished {
            let loss = evaluate(&mut whole, replay.state())?;
            let point = Point {
                batches,
                rounds: replay.head().round,
                loss,
            };
            tell(point);
            points.push(point);
            due = batches + options.every;
            let reached = options.until.is_some_and(|until| loss <= until);
            if finished || reached || !loss.is_finite() {
                break;
            }
        }
        let record = members.record(replay.head(), &manifest);
        let contribute = |asked: Asked<'_>| contribution(&mut *whole.worker, &manifest, &shuffle, asked);
        replay.round(&record, contribute).map_err(failed)?;
    }
    Ok(LearningReport {
        bench: "learning",
        members: options.members,
        batches: options.until.and_then(|until| crossing(&points, until)),
        points,
    })
}

fn evaluate(whole: &mut Whole, state: &State) -> Result<f32, Error> {
    let eval = whole.worker.score(state.params.clone()).map_err(failed)?;
    Ok(eval
        .ok_or_else(|| failed("the task holds nothing out to evaluate on"))?
        .loss)
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::Training(why.to_string())
}

/// Where the loss first reaches a value.
fn crossing(points: &[Point], until: f32) -> Option<f64> {
    let at = points.iter().position(|point| point.loss <= until)?;
    let (here, before) = (points[at], points[at.checked_sub(1)?]);
    let part = f64::from(before.loss - until) / f64::from(before.loss - here.loss);
    Some(before.batches as f64 + part * (here.batches - before.batches) as f64)
}

/// The members and their keys.
struct Members(Vec<(Key, Member)>);

impl Members {
    fn new(founder: Key, count: u16, manifest: &Manifest) -> Self {
        let invitation = Invitation::of_run(founder.clone());
        let others = std::iter::repeat_with(|| Secret::generate().key());
        let keys = std::iter::once(founder).chain(others).take(count.into());
        let run = manifest.run_id();
        let member = |key: Key| {
            let admission = invitation.admit(key.peer(), run);
            let settings = Settings::new(key.clone(), admission, Contact::default());
            (key, Member::new(&settings, Some(1000)))
        };
        Self(keys.map(member).collect())
    }

    fn head(&self, manifest: &Manifest) -> Head {
        let mut head = Head::genesis(manifest, self.0[0].1.clone());
        head.members = self.0.iter().map(|(_, member)| member.clone()).collect();
        head
    }

    /// A round in which all members do their shares, ahead of time if they got them ahead of time. The state's digest
    /// and the losses are invented, since nobody checks them.
    fn record(&self, head: &Head, manifest: &Manifest) -> Record {
        let allotment = head.allot(manifest);
        let header = |place: usize| {
            let cut = head.cut(&allotment, place, manifest);
            let weight = allotment.len(place) as u32;
            Header {
                peer: head.members[place].peer,
                weight,
                loss: 0.0,
                speed: 1000,
                compute_us: 1,
                exchange_us: 0,
                round_us: 0,
                digest: Digest([0; 32]),
                ahead: weight > 0
                    && !head.ahead.is_empty()
                    && cut.is_some_and(|cut| LocalRound::lead(cut).is_some()),
                anew: head.round == 0,
                ready: Vec::new(),
                revoked: Vec::new(),
                stalled: false,
                late: false,
                leaving: false,
                keeps: Default::default(),
            }
        };
        let unsigned = |place| Signed {
            content: header(place),
            signature: self.0[place].0.sign_bytes(&[]),
        };
        let mut record = Record {
            round: head.round + 1,
            attempt: 0,
            headers: (0..head.members.len()).map(unsigned).collect(),
        };
        let attempt = head.attempt_of(&record);
        for (header, (key, _)) in record.headers.iter_mut().zip(&self.0) {
            header.signature = key.sign(&attempt, &header.content);
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_reached_between_two_evaluations() {
        let point = |(batches, loss)| Point {
            batches,
            rounds: batches,
            loss,
        };
        let points = [(0, 4.0), (10, 3.0), (20, 2.0), (30, 1.5)].map(point);
        assert_eq!(crossing(&points, 2.5), Some(15.0));
        assert_eq!(crossing(&points, 2.0), Some(20.0));
        assert_eq!(crossing(&points, 1.0), None);
        assert_eq!(
            crossing(&points, 5.0),
            None,
            "it was there before the first batch"
        );
    }
}
