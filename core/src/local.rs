//! Local steps: between two exchanges each member steps on its own copy of the parameters, and what the members exchange is
//! how far they have come (local SGD, Stich 2019, arXiv 1805.09767, algorithm 1; with an optimizer of its own for the
//! exchanged sum, as in DiLoCo, Douillard et al. 2023, arXiv 2311.08105, algorithm 1).
//!
//! A round hands out as many samples as so many batches have. A member cuts its share into steps of equal size, more of them
//! the larger the share, so that unequal devices take unequal numbers of steps. Its contribution is its samples times the
//! parameters at the round's start less those that it has come to; the mean over all samples moves the shared state.
//!
//! The moments of a member's optimizer are its own: nobody else holds them, and they begin at zero with each membership.
//! When they do follows from the ledger ([`keeps_moments`]), so that a replay can follow each member's chain.

use crate::allot::Allotment;
use crate::config::Manifest;
use crate::id::PeerId;
use crate::ledger::{Head, Record};
use crate::optim::{OptimError, Optimizer, clip_scale, norm_squared};
use crate::state::apply_optimizer;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::ops::Range;

/// How the members of a run step between exchanges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalSteps {
    /// Batches between two exchanges: the steps of the member with the largest share.
    pub steps: NonZeroU32,
    /// What the mean of the members' ways does to the shared parameters, as if it were a gradient. Plain averaging is SGD at
    /// a rate of 1.
    pub outer: Optimizer,
    /// Its learning rate.
    pub outer_lr: f32,
}

impl LocalSteps {
    /// Most steps between two exchanges.
    pub const MOST: u32 = 1 << 16;

    /// So many, averaged.
    pub fn averaged(steps: NonZeroU32) -> Self {
        Self {
            steps,
            outer: Optimizer::Sgd { weight_decay: 0.0 },
            outer_lr: 1.0,
        }
    }

    /// Whether all settings lie in their ranges. Ask this of what came from elsewhere.
    pub fn check(&self) -> Result<(), OptimError> {
        let out_of_range = |name, value, range| Err(OptimError::OutOfRange { name, value, range });
        if !(self.outer_lr.is_finite() && self.outer_lr > 0.0) {
            return out_of_range("outer_lr", self.outer_lr, "positive");
        }
        if self.steps.get() > Self::MOST {
            return out_of_range("local_steps", self.steps.get() as f32, "at most 65536");
        }
        self.outer.check()
    }
}

/// What a member does with its share of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalRound {
    /// Steps that the share is cut into.
    pub steps: u32,
    /// Whether the optimizer begins at zero.
    pub fresh: bool,
    /// Samples that the run had counted before it.
    samples: u64,
    /// Samples handed out in it.
    allotted: u64,
    /// How many times the largest share these are: the number of members, where all are equally fast.
    members: f64,
}

impl LocalRound {
    /// Of the member at a place of the head, which has a share. `None` where members sum gradients.
    pub fn of(
        head: &Head,
        allotment: &Allotment,
        place: usize,
        manifest: &Manifest,
        fresh: bool,
    ) -> Option<Self> {
        let local = manifest.local.as_ref()?;
        let lens = || (0..head.members.len()).map(|member| allotment.len(member));
        let (share, largest, allotted) = (allotment.len(place), lens().max()?.max(1), lens().sum());
        // Rounded; one at least.
        let most = u128::from(local.steps.get());
        let steps = (most * u128::from(share) + u128::from(largest) / 2) / u128::from(largest);
        Some(Self {
            steps: steps.clamp(1, share.clamp(1, u64::from(LocalSteps::MOST)).into()) as u32,
            fresh,
            samples: head.samples,
            allotted,
            members: allotted as f64 / largest as f64,
        })
    }

    /// The samples of each step, of a share of so many.
    pub fn ranges(&self, share: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let steps = self.steps as usize;
        let at = move |step: usize| (share as u128 * step as u128 / steps as u128) as usize;
        (0..steps).map(move |step| at(step)..at(step + 1))
    }

    /// The learning rate of a step, from 0.
    ///
    /// It follows the samples that the run has counted, so that neither the number of members nor that of steps changes its
    /// course. And it grows with the square root of the members: the mean of `n` ways has the noise of a batch `n` times as
    /// large, for which Adam's rate is larger by that (Malladi et al. 2022, arXiv 2205.10287, definition 2).
    fn rate(&self, manifest: &Manifest, step: u32) -> f32 {
        let within = u128::from(self.allotted) * u128::from(step) / u128::from(self.steps);
        let batches = (self.samples + within as u64) / u64::from(manifest.batch.get());
        let rate = manifest.schedule.rate(manifest.lr, batches + 1);
        // `f64::sqrt` is exactly rounded everywhere.
        (f64::from(rate) * self.members.sqrt()) as f32
    }
}

/// Whether a member's moments go on after a round, if they did before it.
///
/// Not if it was no contributor: then it enters anew. Not if it has had a share and none of its samples count: what it has
/// come to then is of no use.
pub fn keeps_moments(head: &Head, record: &Record, peer: PeerId, manifest: &Manifest, had: bool) -> bool {
    if manifest.local.is_none() {
        return false;
    }
    let Some(header) = record.headers.iter().find(|h| h.peer == peer) else {
        return false;
    };
    let shares = head.allot(manifest);
    let share = head.position(peer).map_or(0, |place| shares.len(place));
    let computed = share > 0 && manifest.trains(head.members.len());
    if computed { header.weight > 0 } else { had }
}

/// A member's own optimizer, between exchanges.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalOptimizer {
    slots: Vec<Vec<f32>>,
    /// Steps since it began.
    steps: u64,
}

impl LocalOptimizer {
    /// At zero.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            slots: vec![vec![0.0; manifest.layout.len]; manifest.optimizer.slots()],
            steps: 0,
        }
    }

    /// To be called at the start of a round.
    pub fn begin(&mut self, round: &LocalRound) {
        if round.fresh {
            self.steps = 0;
            self.slots.iter_mut().for_each(|slot| slot.fill(0.0));
        }
    }

    /// Takes one step of a round, from the sum of the gradients over so many samples.
    pub fn step(
        &mut self,
        manifest: &Manifest,
        (round, step): (&LocalRound, u32),
        params: &mut [f32],
        (sum, samples): (&[f32], u32),
    ) {
        self.steps += 1;
        let mut scale = 1.0 / samples as f32;
        if let Some(max) = manifest.clip {
            let norm = norm_squared(sum).sqrt() * f64::from(scale);
            scale *= clip_scale(norm, max);
        }
        let optimizer = &manifest.optimizer;
        let step = optimizer.step(round.rate(manifest, step), self.steps, scale);
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(|slot| &mut slot[..]).collect();
        apply_optimizer(optimizer, &manifest.layout, &step, 0, params, &mut slots, sum);
    }
}

/// A member's contribution, into the buffer that holds the parameters at the round's start: its samples times the way that
/// it has come.
pub fn way(start: &mut [f32], now: &[f32], samples: u32) {
    let samples = samples as f32;
    for (start, now) in start.iter_mut().zip(now) {
        *start = samples * (*start - now);
    }
}
