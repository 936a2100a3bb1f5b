//! What a way of training together costs in learning: a run of so many equal members, played by one process. Who sums what,
//! how numbers travel, who steps when and what comes late are as in the real run, bit for bit, since a replay makes the
//! rounds; links and time are not.
//!
//! So it tells how many batches a loss takes. Times how long a batch takes with given links ([`crate::forecast`], or a real
//! run) that is what people wait for.

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

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Members, all equally fast.
    pub members: u16,
    /// The run.
    pub run: NewRun,
    /// Batches from one evaluation to the next.
    pub every: u64,
    /// The loss on held-out data at which it ends, before the run does.
    pub until: Option<f32>,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Batches counted by then.
    pub batches: u64,
    /// Rounds, and so exchanges, by then.
    pub rounds: u64,
    /// Loss on held-out data.
    pub loss: f32,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearningReport {
    /// Always "learning".
    pub bench: &'static str,
    /// Members.
    pub members: u16,
    /// The evaluations.
    pub points: Vec<Point>,
    /// Batches until the loss that was to be reached, by a straight line between two evaluations; none if it was not reached.
    pub batches: Option<f64>,
}

/// Plays a run. Tells of each evaluation.
///
/// # Errors
///
/// If the task cannot be made, holds nothing out, or the device fails.
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

/// Where the loss comes to a value for the first time.
fn crossing(points: &[Point], until: f32) -> Option<f64> {
    let at = points.iter().position(|point| point.loss <= until)?;
    let (here, before) = (points[at], points[at.checked_sub(1)?]);
    let part = f64::from(before.loss - until) / f64::from(before.loss - here.loss);
    Some(before.batches as f64 + part * (here.batches - before.batches) as f64)
}

/// The members' keys, and who they are.
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

    /// A round in which all do what they are given, ahead if they were given it then. The state's digest and the losses are
    /// made up: nobody asks.
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
                    && cut.is_none_or(|cut| LocalRound::lead(cut).is_some()),
                anew: head.round == 0,
                ready: Vec::new(),
                revoked: Vec::new(),
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
