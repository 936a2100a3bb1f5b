//! The cut after which the slowest member's work is shortest, with the same holders.

use super::super::spans::Holdings;
use super::Candidate;
use super::cost::Work;
use crate::ledger::shifts::{Goal, Recut};
use crate::ledger::spans::all_needed;
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use crate::run::split::Split;
use std::num::NonZeroU16;

/// The best cut of the first steps into the first spans: the time of the slowest of these, the cost of its steps
/// that are in another span now, and where the last span begins.
type Best = Option<(u128, u64, usize)>;

/// The best cut for which there is room, if it is not the present one. Dynamic programming over spans and steps, at
/// most `O(spans x steps^2)` spans: a span is as slow as its slowest holder, whatever steps it has.
pub(super) fn best_cut(
    manifest: &Manifest,
    (split, parts): (&Split, Parts),
    now: &Holdings,
    work: &Work,
) -> Option<Candidate> {
    let (founders, paces) = (manifest.split.as_ref()?, work.paces(now)?);
    let steps = split.steps.len();
    let of_step = |step: usize| split.parts_of(parts, step..step + 1);
    let of_steps: Vec<PartSet> = (0..steps).map(of_step).collect();
    let mut best: Vec<Best> = vec![None; steps + 1];
    best[0] = Some((0, 0, 0));
    let mut begins = Vec::new();
    for (span, (here, pace)) in split.spans().zip(paces).enumerate() {
        let room = now
            .of_span(span)
            .iter()
            .map(|at| now.able[*at].keeper.room.parts)
            .min();
        let room = usize::from(room.unwrap_or(0));
        let mut next: Vec<Best> = vec![None; steps + 1];
        for end in (1..=steps).filter(|end| founders.may_end(*end)) {
            // Until the cut is in force, the holder has the parts of both.
            let (mut needs, mut costs, mut moved) = (now.spans[span], 0, 0);
            for begin in (0..end).rev() {
                needs = needs.or(&of_steps[begin]);
                costs += u64::from(split.steps[begin].cost);
                moved += if here.contains(&begin) {
                    0
                } else {
                    u64::from(split.steps[begin].cost)
                };
                let time = u128::from(costs.max(1)) * pace;
                let is_slower = next[end].is_some_and(|(found, ..)| time > found);
                if needs.len() > room || is_slower {
                    // A longer one takes no less.
                    break;
                }
                let Some((before, elsewhere, _)) = best[begin] else {
                    continue;
                };
                let found = (time.max(before), elsewhere + moved, begin);
                if next[end].is_none_or(|best| (found.0, found.1) < (best.0, best.1)) {
                    next[end] = Some(found);
                }
            }
        }
        begins.push(next.clone());
        best = next;
    }
    let spans = walk_back(&begins, steps)?;
    let then = split.cut(&spans);
    if spans == split.spans {
        return None;
    }
    let needs = then.needs(parts);
    // A span that takes no room now, since another has all of its parts, may take some then.
    let there = now.in_spans(&needs);
    if !(0..now.able.len()).all(|at| there.is_within(at)) {
        return None;
    }
    let learns = now
        .able
        .iter()
        .zip(&now.holds)
        .map(|(member, holds)| all_needed(&needs, holds.iter().copied()).without(&member.keeper.kept));
    Some(Candidate {
        time: work.cut(&then).slowest(now)?,
        learns: learns.collect(),
        goal: Goal::Cut(Recut {
            spans,
            holders: now.by_name(),
            in_force: false,
        }),
    })
}

/// The number of steps of each span, from where each begins if it ends at a step.
fn walk_back(begins: &[Vec<Best>], steps: usize) -> Option<Vec<NonZeroU16>> {
    let mut spans = Vec::new();
    let mut end = steps;
    for begin_of in begins.iter().rev() {
        let (_, _, begin) = begin_of[end]?;
        spans.push(NonZeroU16::new((end - begin) as u16)?);
        end = begin;
    }
    spans.reverse();
    (end == 0).then_some(spans)
}
