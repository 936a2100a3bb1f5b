//! Local steps: between two exchanges each member steps its own copy of the parameters, and members exchange the
//! deltas. This is local SGD (Stich 2019, arXiv 1805.09767, algorithm 1), with an outer optimizer for the exchanged
//! sum as in DiLoCo (Douillard et al. 2023, arXiv 2311.08105, algorithm 1).
//!
//! A round allots the samples of several batches. A member cuts its share into steps of equal size, more of them
//! the larger the share, so that unequal devices take unequal numbers of steps. Its contribution is its samples
//! times the parameters at the round's start minus those at its end. The mean over all samples moves the shared
//! state.
//!
//! Each member has moments of its own, which nobody else holds. They start from zero with each membership, and
//! after a share that gave nothing. The member's header says when they do
//! ([`Header::anew`](crate::ledger::Header::anew)), so that a replay can follow.
//!
//! If exchange and compute overlap, a member takes the first step of its next share while the sums travel, from
//! where its last share ended ([`Part::Lead`]). Once the round's parameters are there, it takes the other steps
//! from those plus the delta of the first ([`Part::Rest`]). So nothing is lost or counted twice; only the first
//! steps used older parameters. Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512, section 2.3) overlaps in
//! this way too, but mixes the two parameter vectors and so loses part of the delta.

use crate::ledger::cut::Cut;
use crate::ledger::stepping::apply_optimizer;
use crate::numeric::optim::{clip_scale, norm_squared_without};
use crate::run::config::Manifest;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The steps of a share that are taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// All steps, from the round's parameters.
    Whole,
    /// The first steps, before the round's parameters are known, from where the last share ended.
    Lead,
    /// The remaining steps, from the round's parameters plus the delta of the first ones.
    Rest,
}

/// The local steps of a member in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRound {
    /// The steps of the share.
    pub cut: Cut,
    /// Those that are taken now.
    pub part: Part,
    /// Whether the optimizer starts from zero.
    pub fresh: bool,
}

impl LocalRound {
    /// Encodes it for a worker in another process.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("it has only plain data")
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        postcard::from_bytes(bytes)
    }

    /// All steps of a share.
    pub fn whole(cut: Cut, fresh: bool) -> Self {
        Self {
            cut,
            part: Part::Whole,
            fresh,
        }
    }

    /// The first steps of a share, if it has enough steps to take some before the others.
    pub fn lead(cut: Cut) -> Option<Self> {
        let part = Part::Lead;
        (cut.lead() > 0).then_some(Self {
            cut,
            part,
            fresh: false,
        })
    }

    /// The steps after the first ones.
    pub fn rest(cut: Cut) -> Self {
        let part = Part::Rest;
        Self {
            cut,
            part,
            fresh: false,
        }
    }

    /// The sample of the share with which a step begins.
    fn begins(&self, step: u32) -> usize {
        (u128::from(self.cut.share) * u128::from(step) / u128::from(self.cut.steps)) as usize
    }

    /// The steps, from 0, each with its range of the share's samples, of which only the first `there` exist.
    pub fn steps(&self, there: usize) -> impl Iterator<Item = (u32, Range<usize>)> + use<> {
        let taken = match self.part {
            Part::Whole => 0..self.cut.steps,
            Part::Lead => 0..self.cut.lead(),
            Part::Rest => self.cut.lead()..self.cut.steps,
        };
        let round = *self;
        let at = move |step: u32| there.min(round.begins(step));
        let all = taken.map(move |step| (step, at(step)..at(step + 1)));
        all.filter(|(_, samples)| !samples.is_empty())
    }

    /// Samples of the share that are counted once these steps are taken, if the first `there` exist.
    pub fn counted(&self, there: usize) -> u32 {
        let lead = self.begins(self.cut.lead());
        let counted = match self.part {
            Part::Whole => there,
            Part::Lead => there.min(lead),
            Part::Rest => there.max(lead),
        };
        counted as u32
    }

    /// The learning rate of a step, from 0.
    ///
    /// It follows the samples that the run has counted, so neither the number of members nor that of steps changes
    /// its course. It grows with the square root of the number of members. The mean of `n` deltas has the noise of a batch
    /// `n` times as large, for which Adam's rate is larger by that factor (Malladi et al. 2022, arXiv 2205.10287,
    /// definition 2).
    fn rate(&self, manifest: &Manifest, step: u32) -> f32 {
        let cut = &self.cut;
        let within = u128::from(cut.allotted) * u128::from(step) / u128::from(cut.steps);
        let batches = (cut.samples + within as u64) / u64::from(manifest.batch.get());
        let rate = manifest.schedule.rate(manifest.lr, batches + 1);
        // How often the largest share fits the round: the number of members, if all are equally fast.
        let members = cut.allotted as f64 / cut.largest as f64;
        // `f64::sqrt` is exactly rounded everywhere.
        (f64::from(rate) * members.sqrt()) as f32
    }
}

/// A member's inner optimizer, and the parameters that it has reached.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalOptimizer {
    /// Empty before the first step that is taken here.
    slots: Vec<Vec<f32>>,
    /// Steps since it began.
    steps: u64,
    /// With overlap: the parameters at which the last share ended or, once the first steps of the next share are
    /// taken, the delta of these.
    way: Vec<f32>,
    overlap: bool,
}

impl LocalOptimizer {
    /// An optimizer with zero moments.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            slots: Vec::new(),
            steps: 0,
            way: Vec::new(),
            overlap: manifest.overlap,
        }
    }

    /// Begins a round's steps: call it with the round's parameters, and step what it returns. For the first steps
    /// of a share the round's parameters are ignored.
    ///
    /// # Panics
    ///
    /// If first steps do not follow a share, or remaining steps do not follow first ones.
    pub fn begin(&mut self, round: &LocalRound, params: &[f32]) -> Vec<f32> {
        if round.fresh {
            self.steps = 0;
            self.slots.clear();
        }
        if round.part != Part::Whole {
            assert_eq!(self.way.len(), params.len(), "a share has led somewhere");
        }
        match round.part {
            Part::Whole => params.to_vec(),
            Part::Lead => self.way.clone(),
            Part::Rest => {
                let mut now = std::mem::take(&mut self.way);
                now.iter_mut()
                    .zip(params)
                    .for_each(|(gained, start)| *gained += *start);
                now
            }
        }
    }

    /// The number of the next step, from 1 since the moments were zero, and its learning rate: for a worker that
    /// has the moments itself.
    pub fn next(&mut self, manifest: &Manifest, (round, step): (&LocalRound, u32)) -> (u64, f32) {
        self.steps += 1;
        (self.steps, round.rate(manifest, step))
    }

    /// Takes one step of a round, given the sum of the gradients over its samples.
    pub fn step(
        &mut self,
        manifest: &Manifest,
        (round, step): (&LocalRound, u32),
        params: &mut [f32],
        (sum, samples): (&[f32], u32),
    ) {
        let (number, rate) = self.next(manifest, (round, step));
        if self.slots.is_empty() {
            self.slots = vec![vec![0.0; manifest.layout.len]; manifest.optimizer.slots()];
        }
        let optimizer = &manifest.optimizer;
        let mut step = optimizer.step(rate, number, 1.0 / samples as f32);
        if let Some(max) = manifest.clip {
            let squared = norm_squared_without(&manifest.layout.means(), 0, sum);
            step = step.clipped(clip_scale(squared.sqrt() * f64::from(step.scale), max));
        }
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(|slot| &mut slot[..]).collect();
        apply_optimizer(optimizer, &manifest.layout, &step, 0, params, &mut slots, sum);
    }

    /// Ends a round's steps: call it with the parameters that they reached. It turns the round's parameters into
    /// the member's contribution, its samples times the delta. The first steps of a share contribute nothing yet.
    pub fn end(&mut self, round: &LocalRound, params: &mut [f32], now: Vec<f32>, samples: u32) {
        if round.part == Part::Lead {
            let ways = self.way.iter_mut().zip(now);
            return ways.for_each(|(before, now)| *before = now - *before);
        }
        way(params, &now, samples);
        if self.overlap {
            self.way = now;
        }
    }
}

/// Takes the first step of a run's optimizer, from a sum of gradients, without clipping and at the full rate. Used
/// to check that a device steps in the same way.
pub fn first_step(manifest: &Manifest, params: &mut [f32], (sum, samples): (&[f32], u32)) {
    let optimizer = &manifest.optimizer;
    let step = optimizer.step(manifest.lr, 1, 1.0 / samples as f32);
    let mut slots = vec![vec![0.0; params.len()]; optimizer.slots()];
    let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(|slot| &mut slot[..]).collect();
    apply_optimizer(optimizer, &manifest.layout, &step, 0, params, &mut slots, sum);
}

/// Turns the parameters at the round's start into the member's contribution: its samples times the delta.
fn way(start: &mut [f32], now: &[f32], samples: u32) {
    let samples = samples as f32;
    for (start, now) in start.iter_mut().zip(now) {
        *start = samples * (*start - now);
    }
}

#[cfg(test)]
mod tests;
