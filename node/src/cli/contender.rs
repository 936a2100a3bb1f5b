//! A run that is compared with others: what its peers tell of it, and its loss over time.
//!
//! Pure: events and times go in. Times are milliseconds since the beginning.

use crate::events::Event;
use crate::view::{Logs, RunView};
use std::collections::VecDeque;

/// Evaluations whose median is a point of a curve: a single one is noise.
const MEDIAN_OF: usize = 3;

/// Rounds for which an evaluation may still come.
const RECENT: usize = 256;

/// A run of a number of peers.
#[derive(Debug)]
pub struct Contender {
    /// What they have told.
    pub logs: Logs,
    /// The loss since the first round of all of them.
    pub curve: Curve,
}

impl Contender {
    /// Before anything has happened.
    pub fn new(peers: usize) -> Self {
        Self {
            logs: Logs::of(peers),
            curve: Curve::default(),
        }
    }

    /// An event of a peer.
    pub fn hear(&mut self, peer: usize, event: &Event, now_ms: u64) {
        let is_news = self.logs.take(peer, event, now_ms);
        match event {
            Event::Eval { round, loss, .. } => self.curve.evaluate(*round, (*loss).into()),
            Event::Round(_) if is_news => self.curve.take(&self.logs.run, self.logs.peers.len(), now_ms),
            _ => {}
        }
    }

    /// The file that holds the run's ticket, once it has one.
    pub fn ticket_file(&self) -> Option<&str> {
        let ready = self.logs.peers[0].view.ready.as_ref()?;
        Some(&ready.ticket_file)
    }
}

/// The loss of a run on text held out, over time.
#[derive(Debug, Default)]
pub struct Curve {
    began_ms: Option<u64>,
    /// Milliseconds since the first round, and the loss.
    points: Vec<(u64, f64)>,
    /// The last rounds, and when they were committed: their evaluations come later.
    recent: VecDeque<(u64, u64)>,
    /// The last evaluations.
    evaluated: VecDeque<f64>,
}

impl Curve {
    /// A round of a run with this number of members.
    fn take(&mut self, view: &RunView, members: usize, now_ms: u64) {
        let Some(round) = view.round.as_ref().filter(|round| round.members.len() == members) else {
            return;
        };
        if round.samples > 0 {
            let ms = now_ms - *self.began_ms.get_or_insert(now_ms);
            self.recent.push_back((round.round, ms));
            self.recent.drain(..self.recent.len().saturating_sub(RECENT));
        }
    }

    /// A loss on text that nobody trains on. It counts from when the round was committed whose parameters were tried.
    fn evaluate(&mut self, round: u64, loss: f64) {
        let committed = self.recent.iter().find(|(recent, _)| *recent == round);
        let Some((_, ms)) = committed.filter(|_| loss.is_finite()) else {
            return;
        };
        self.evaluated.push_back(loss);
        self.evaluated
            .drain(..self.evaluated.len().saturating_sub(MEDIAN_OF));
        if self.evaluated.len() == MEDIAN_OF {
            let mut sorted: Vec<f64> = self.evaluated.iter().copied().collect();
            sorted.sort_by(f64::total_cmp);
            self.points.push((*ms, sorted[MEDIAN_OF / 2]));
        }
    }

    /// Whether there was a round.
    pub fn has_begun(&self) -> bool {
        self.began_ms.is_some()
    }

    /// How long ago its first round was.
    pub fn elapsed_ms(&self, now_ms: u64) -> u64 {
        self.began_ms.map_or(0, |began_ms| now_ms - began_ms)
    }

    /// Milliseconds since the first round, and the loss.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// The loss of late.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, loss)| *loss)
    }

    /// The least loss so far.
    pub fn least(&self) -> Option<f64> {
        self.points.iter().map(|(_, loss)| *loss).min_by(f64::total_cmp)
    }

    /// When the loss was first so low.
    pub fn reaches(&self, loss: f64) -> Option<u64> {
        let mut points = self.points.iter();
        points.find(|(_, here)| *here <= loss).map(|(ms, _)| *ms)
    }
}
