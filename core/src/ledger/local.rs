//! Local steps: between two exchanges each member steps on its own copy of the parameters, and what the members exchange is
//! how far they have come (local SGD, Stich 2019, arXiv 1805.09767, algorithm 1; with an optimizer of its own for the
//! exchanged sum, as in DiLoCo, Douillard et al. 2023, arXiv 2311.08105, algorithm 1).
//!
//! A round hands out as many samples as so many batches have. A member cuts its share into steps of equal size, more of them
//! the larger the share, so that unequal devices take unequal numbers of steps. Its contribution is its samples times the
//! parameters at the round's start less those that it has come to; the mean over all samples moves the shared state.
//!
//! The moments of a member's optimizer are its own: nobody else holds them. They begin at zero with each membership, and
//! after a share that gave nothing. The member's header says when they do ([`Header::anew`](crate::ledger::Header::anew)),
//! so that a replay can follow each member's chain.
//!
//! Where exchange and computing overlap, a member goes on from where its share has led while the sums travel, for the first
//! step of the next one ([`Part::Lead`]). Once the round's parameters are there it takes the other steps from
//! those, moved on by as much as the first ones have gained ([`Part::Rest`]); so nothing is lost and nothing counted twice,
//! and only the first steps knew less than they could have. (Streaming DiLoCo, Douillard et al. 2025, arXiv 2501.18512, section
//! 2.3, overlaps so too, but mixes the two and so gives a part of what was gained up.)

use crate::ledger::cut::Cut;
use crate::ledger::stepping::apply_optimizer;
use crate::numeric::optim::{clip_scale, norm_squared};
use crate::run::config::Manifest;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Which of a share's steps are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// All, from the round's parameters.
    Whole,
    /// The first ones, before these are known: from where the share before has led.
    Lead,
    /// The others: from the round's parameters, moved on by what the first ones have gained.
    Rest,
}

/// What a member does with its share of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRound {
    /// How the share is cut.
    pub cut: Cut,
    /// Which of its steps are taken.
    pub part: Part,
    /// Whether the optimizer begins at zero.
    pub fresh: bool,
}

impl LocalRound {
    /// As bytes, for whoever computes elsewhere.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("it has only plain data")
    }

    /// What [`encode`](Self::encode) has written.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        postcard::from_bytes(bytes)
    }

    /// The whole of a share.
    pub fn whole(cut: Cut, fresh: bool) -> Self {
        Self {
            cut,
            part: Part::Whole,
            fresh,
        }
    }

    /// The first steps of a share, if it has enough for some to be taken before the others.
    pub fn lead(cut: Cut) -> Option<Self> {
        let part = Part::Lead;
        (cut.lead() > 0).then_some(Self {
            cut,
            part,
            fresh: false,
        })
    }

    /// The others.
    pub fn rest(cut: Cut) -> Self {
        let part = Part::Rest;
        Self {
            cut,
            part,
            fresh: false,
        }
    }

    /// Where a step begins in the share.
    fn begins(&self, step: u32) -> usize {
        (u128::from(self.cut.share) * u128::from(step) / u128::from(self.cut.steps)) as usize
    }

    /// The steps, from 0, each with which of the share's samples it is made of. Only so many of these, from the front, are
    /// there.
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

    /// Samples of the share, of which so many are there, that have been stepped with once these steps are taken.
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
    /// It follows the samples that the run has counted, so that neither the number of members nor that of steps changes its
    /// course. And it grows with the square root of the members: the mean of `n` ways has the noise of a batch `n` times as
    /// large, for which Adam's rate is larger by that (Malladi et al. 2022, arXiv 2205.10287, definition 2).
    fn rate(&self, manifest: &Manifest, step: u32) -> f32 {
        let cut = &self.cut;
        let within = u128::from(cut.allotted) * u128::from(step) / u128::from(cut.steps);
        let batches = (cut.samples + within as u64) / u64::from(manifest.batch.get());
        let rate = manifest.schedule.rate(manifest.lr, batches + 1);
        // How many shares like the largest would make the round: the members, where all are equally fast.
        let members = cut.allotted as f64 / cut.largest as f64;
        // `f64::sqrt` is exactly rounded everywhere.
        (f64::from(rate) * members.sqrt()) as f32
    }
}

/// A member's own optimizer, between exchanges, and where it has led.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalOptimizer {
    /// None before the first step that is taken here.
    slots: Vec<Vec<f32>>,
    /// Steps since it began.
    steps: u64,
    /// Where exchange and computing overlap: the parameters at which the last share has ended, or, once the first steps of the
    /// next are taken, by how much these have moved on.
    way: Vec<f32>,
    overlap: bool,
}

impl LocalOptimizer {
    /// At zero.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            slots: Vec::new(),
            steps: 0,
            way: Vec::new(),
            overlap: manifest.overlap,
        }
    }

    /// To be called before a round's steps, with the round's parameters; what it gives is to be stepped. The round's are of no
    /// account for the first steps of a share.
    ///
    /// # Panics
    ///
    /// If the first steps are not those after a share, or the others not those after the first.
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

    /// For who takes the next step elsewhere, with moments of its own: its number, from 1 since these began at zero, and
    /// its learning rate.
    pub fn next(&mut self, manifest: &Manifest, (round, step): (&LocalRound, u32)) -> (u64, f32) {
        self.steps += 1;
        (self.steps, round.rate(manifest, step))
    }

    /// Takes one step of a round, from the sum of the gradients over so many samples.
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
        let mut scale = 1.0 / samples as f32;
        if let Some(max) = manifest.clip {
            let norm = norm_squared(sum).sqrt() * f64::from(scale);
            scale *= clip_scale(norm, max);
        }
        let optimizer = &manifest.optimizer;
        let step = optimizer.step(rate, number, scale);
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(|slot| &mut slot[..]).collect();
        apply_optimizer(optimizer, &manifest.layout, &step, 0, params, &mut slots, sum);
    }

    /// To be called after a round's steps, with where they have led. The round's parameters become the member's contribution:
    /// its samples times the way from them; the first steps of a share contribute nothing yet.
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

/// Where the first step of a run's optimizer leads, from a sum of gradients over so many samples, without clipping and at the
/// run's full rate: for who looks whether a device takes the same steps.
pub fn first_step(manifest: &Manifest, params: &mut [f32], (sum, samples): (&[f32], u32)) {
    let optimizer = &manifest.optimizer;
    let step = optimizer.step(manifest.lr, 1, 1.0 / samples as f32);
    let mut slots = vec![vec![0.0; params.len()]; optimizer.slots()];
    let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(|slot| &mut slot[..]).collect();
    apply_optimizer(optimizer, &manifest.layout, &step, 0, params, &mut slots, sum);
}

/// A member's contribution, into the buffer that holds the parameters at the round's start: its samples times the way that
/// it has come.
fn way(start: &mut [f32], now: &[f32], samples: u32) {
    let samples = samples as f32;
    for (start, now) in start.iter_mut().zip(now) {
        *start = samples * (*start - now);
    }
}

#[cfg(test)]
mod tests;
