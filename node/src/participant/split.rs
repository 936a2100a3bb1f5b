//! How a run's founder cuts a model over members, and for how much of it a peer has room.

use super::error::Error;
use super::memory::{self, SpanTerms};
use crate::options::{NewRun, SplitRun};
use crate::task_factory::LoadedTask;
use crate::trainer::span::{Cut, ModelSteps};
use annulus_core::Manifest;
use annulus_core::optim::Optimizer;
use annulus_core::split::{Split, Step};
use annulus_core::stages::{self, Machine, StepNeeds, Terms, fewest_spans, span_bytes};
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;

/// Times the activations at a boundary that a step's backward pass holds at once: a guess from measured language models.
const ACTIVATIONS: u64 = 24;

/// The cut of a new run's model: as many spans as are asked for, or as few as fit.
///
/// # Errors
///
/// If the task offers no steps, or no cut fits.
pub fn cut(
    run: &NewRun,
    loaded: &LoadedTask,
    model: &ModelSteps,
    memory: Option<u64>,
) -> Result<Split, Error> {
    let costs = loaded.step_costs()?;
    let micro_batch = NonZeroU32::new(run.micro_batch).unwrap_or(const { NonZeroU32::MIN });
    let with = |spans: &[Range<usize>]| {
        Cut {
            spans,
            costs: &costs,
            micro_batch,
            boundary: run.boundary,
            lanes: run.lanes,
        }
        .of(model)
    };
    if let SplitRun::Cut(steps) = &run.split {
        return given(steps, model.steps()).map(|spans| with(&spans));
    }
    let all = std::iter::once(0..model.steps()).collect::<Vec<_>>();
    let terms = SpanTerms::of(&run.optimizer.parse::<Optimizer>()?, run.moments, run.lanes.get());
    let (needs, terms) = needs(&with(&all), terms);
    let allowed = memory::limit(memory);
    let machine = |memory_bytes| Machine {
        memory_bytes,
        speed: 1000,
    };
    let (spans, limit) = match &run.split {
        SplitRun::Spans(count) => {
            let count = usize::from(count.get());
            if count > model.steps() {
                return Err(Error::Spans {
                    asked: count,
                    steps: model.steps(),
                });
            }
            let machines = vec![machine(u64::MAX); count];
            (stages::split(&needs, &machines, &terms), u64::MAX)
        }
        SplitRun::Auto | SplitRun::Off | SplitRun::Cut(_) => {
            let limit = allowed.or_else(memory::free).unwrap_or(u64::MAX);
            (fewest_spans(&needs, machine(limit), model.steps(), &terms), limit)
        }
    };
    match spans {
        Some(spans) => Ok(with(&spans)),
        None => {
            let one = |step: &StepNeeds| span_bytes(std::slice::from_ref(step), false, 1, &terms);
            let need = needs.iter().map(one).max().unwrap_or(0);
            Err(Error::NoSplit { need, limit })
        }
    }
}

/// Spans of so many steps each.
fn given(spans: &[NonZeroU16], steps: usize) -> Result<Vec<Range<usize>>, Error> {
    let ranges = spans.iter().scan(0, |end, steps| {
        let begin = *end;
        *end += usize::from(steps.get());
        Some(begin..*end)
    });
    let ranges: Vec<Range<usize>> = ranges.collect();
    if ranges.last().map(|last| last.end) == Some(steps) {
        return Ok(ranges);
    }
    let asked: Vec<String> = spans.iter().map(NonZeroU16::to_string).collect();
    Err(Error::Cut {
        asked: asked.join("+"),
        steps,
    })
}

/// What a process takes that holds one span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanNeeds {
    /// The span.
    pub steps: Range<usize>,
    /// Parameters that it uses.
    pub parameters: u64,
    /// Bytes of memory, as far as can be said beforehand.
    pub bytes: u64,
}

/// What processes take that hold one span each, and what of that each process takes that holds none.
pub fn spans(manifest: &Manifest, split: &Split) -> (Vec<SpanNeeds>, u64) {
    let terms = SpanTerms::of(&manifest.optimizer, manifest.moments, split.lanes.get());
    let (needs, terms) = needs(split, terms);
    let behind = |at: usize| split.spans.len() - 1 - at;
    let of = |(at, steps): (usize, Range<usize>)| SpanNeeds {
        parameters: split.used(at).iter().map(|range| range.len() as u64).sum(),
        bytes: span_bytes(&needs[steps.clone()], at == 0, behind(at), &terms),
        steps,
    };
    (split.spans().enumerate().map(of).collect(), terms.fixed_bytes)
}

/// For how many spans this peer has room.
///
/// # Errors
///
/// If it has not even room for one.
pub fn room(manifest: &Manifest, split: &Split, memory: Option<u64>) -> Result<NonZeroU16, Error> {
    let (spans, fixed_bytes) = spans(manifest, split);
    let largest = spans.iter().map(|span| span.bytes - fixed_bytes).max();
    let largest = largest.unwrap_or(1).max(1);
    let allowed = memory::limit(memory);
    // Of what is free some is left to others.
    let may = allowed
        .or_else(|| memory::free().map(|free| free / 4 * 3))
        .unwrap_or(u64::MAX);
    let room = may.saturating_sub(fixed_bytes) / largest;
    match (u16::try_from(room).unwrap_or(u16::MAX), allowed) {
        (0, Some(limit)) => Err(Error::NoRoom {
            need: fixed_bytes + largest,
            limit,
        }),
        (room, _) => Ok(NonZeroU16::new(room).unwrap_or(NonZeroU16::MIN).min(most(split))),
    }
}

fn most(split: &Split) -> NonZeroU16 {
    NonZeroU16::new(split.spans.len() as u16).unwrap_or(NonZeroU16::MIN)
}

/// What the steps of a split take, and what holds for all of them.
pub(super) fn needs(split: &Split, terms: SpanTerms) -> (Vec<StepNeeds>, Terms) {
    let samples = u64::from(split.micro_batch.get());
    // Of elements that several steps use all know the same pieces.
    let borders = split.borders();
    let pieces = |range: &Range<usize>| {
        let borders: Vec<usize> = borders.range(range.start..=range.end).copied().collect();
        let piece = |pair: &[usize]| (pair[0], (pair[1] - pair[0]) as u64);
        borders.windows(2).map(piece).collect::<Vec<_>>()
    };
    let mut widest = 0;
    let mut before = 0;
    let mut need = |step: &Step| {
        let given = 4 * samples * u64::from(step.boundary);
        let own = given.max(before);
        (widest, before) = (given.max(widest), given);
        StepNeeds {
            forward_us: step.cost.into(),
            // The forward pass is computed again on the way back.
            backward_us: 3 * u64::from(step.cost),
            tensors: step.ranges.iter().flat_map(pieces).collect(),
            working_bytes: ACTIVATIONS * own,
        }
    };
    let needs = split.steps.iter().map(&mut need).collect();
    let terms = Terms {
        bytes_per_parameter: terms.bytes_per_parameter,
        boundary_bytes: widest,
        fixed_bytes: terms.base,
    };
    (needs, terms)
}
