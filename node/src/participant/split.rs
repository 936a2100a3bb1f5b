//! Cuts a founder's model into spans, and finds out for how many of them a peer has room.

use super::error::Error;
use super::memory;
use super::room::{NoRoom, SpanTerms, needs};
use crate::options::{NewRun, SplitRun};
use crate::task_factory::LoadedTask;
use crate::trainer::span::{Cut, ModelSteps};
use annulus_core::optim::Optimizer;
use annulus_core::split::Split;
use annulus_core::stages::{self, StepNeeds, fewest_spans, span_bytes};
use annulus_core::{Manifest, Room};
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;

/// The cut of a new run's model: the requested number of spans, or as few as fit.
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
    cut_by(run, model, &model.evened(&loaded.step_costs()?), memory)
}

/// The same, with known costs of steps.
///
/// # Errors
///
/// If no cut fits.
pub(super) fn cut_by(
    run: &NewRun,
    model: &ModelSteps,
    costs: &[u32],
    memory: Option<u64>,
) -> Result<Split, Error> {
    let micro_batch = NonZeroU32::new(run.micro_batch).unwrap_or(const { NonZeroU32::MIN });
    let with = |spans: &[Range<usize>]| {
        Cut {
            spans,
            costs,
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
    let (spans, limit) = match &run.split {
        SplitRun::Spans(count) => {
            let count = usize::from(count.get());
            if count > model.steps() {
                return Err(Error::Spans {
                    asked: count,
                    steps: model.steps(),
                });
            }
            (stages::split(&needs, count, u64::MAX, &terms), u64::MAX)
        }
        SplitRun::Auto | SplitRun::Off | SplitRun::Cut(_) => {
            let limit = memory::limit(memory)
                .into_iter()
                .chain(memory::free())
                .min()
                .unwrap_or(u64::MAX);
            (fewest_spans(&needs, limit, &terms), limit)
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

/// The runs of steps in which a replay computes the model one after the other, each within a span. They are as long as
/// memory allows, with weights, one sum of gradients and the memory of a microbatch.
///
/// # Errors
///
/// If there is no room for even one step.
pub fn runs_to_replay(split: &Split, memory: Option<u64>) -> Result<Vec<Range<usize>>, Error> {
    let (needs, terms) = needs(split, SpanTerms::of_replay());
    let (likes, limit) = (memory::likes(memory), memory::limit(memory));
    let mut runs = Vec::new();
    for span in split.spans() {
        let mut start = span.start;
        while start < span.end {
            let need = |end| span_bytes(&needs[start..end], start == 0, 0, &terms);
            if let Some(limit) = limit.filter(|limit| need(start + 1) > *limit) {
                return Err(Error::NoStep {
                    step: start + 1,
                    steps: needs.len(),
                    need: need(start + 1),
                    limit,
                });
            }
            let fits = |end: &usize| need(*end) <= likes;
            let end = (start + 1..=span.end)
                .take_while(fits)
                .last()
                .unwrap_or(start + 1);
            runs.push(start..end);
            start = end;
        }
    }
    Ok(runs)
}

/// Spans of this many steps each.
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

/// For how many spans this peer has room, at most `most`.
///
/// # Errors
///
/// If there is no room for even one.
pub fn room(
    manifest: &Manifest,
    split: &Split,
    memory: Option<u64>,
    most: Option<NonZeroU16>,
) -> Result<Room, Error> {
    let (may, allowed) = (memory::likes(memory), memory::limit(memory));
    let most = most.map_or(u16::MAX, NonZeroU16::get);
    match (super::room::room(manifest, split, may, (most, false)), allowed) {
        (Err(NoRoom { need }), Some(limit)) if need > limit => Err(Error::NoRoom { need, limit }),
        (room, _) => Ok(room.unwrap_or(Room::of(1))),
    }
}
