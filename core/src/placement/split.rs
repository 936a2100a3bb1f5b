//! Cuts a model's steps into spans that fit into memory, such that the slowest takes the least time.

use super::schedule::in_flight_limit;
use std::collections::BTreeMap;
use std::ops::Range;

/// The cost of one step of a model, for one microbatch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepNeeds {
    /// Microseconds of its forward pass. 0 for the last step, which gives the loss: its backward pass includes it.
    pub forward_us: u64,
    /// Microseconds of its backward pass, which repeats its forward pass.
    pub backward_us: u64,
    /// The parameter tensors that it uses: number in the layout, and elements. Another step may use the same (a
    /// tied embedding).
    pub tensors: Vec<(usize, u64)>,
    /// Bytes that its backward pass takes besides parameters and boundaries: activations and their derivatives.
    pub working_bytes: u64,
}

/// The costs common to all spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Bytes for each parameter: the weight, its gradient, the optimizer's moments.
    pub bytes_per_parameter: u64,
    /// Bytes of one microbatch's activations, as sent between two spans and stashed.
    pub boundary_bytes: u64,
    /// Bytes of an empty process.
    pub fixed_bytes: u64,
}

/// Parameters of a sequence of steps, each tensor counted once.
fn span_parameters(span: &[StepNeeds]) -> u64 {
    let tensors = span.iter().flat_map(|step| step.tensors.iter().copied());
    tensors.collect::<BTreeMap<_, _>>().values().sum()
}

/// Microseconds of a sequence of steps for one microbatch, forward and backward. The `last` span computes its
/// forward pass once, since it has the gradient as soon as the loss.
fn span_us(span: &[StepNeeds], last: bool) -> u64 {
    let forward: u64 = span.iter().map(|step| step.forward_us).sum();
    let backward: u64 = span.iter().map(|step| step.backward_us).sum();
    if last { backward } else { forward + backward }
}

/// Most bytes of a machine for a span with `behind` spans behind it, in a run: it stashes as many microbatches as
/// may be under way. The stash of the `first` span is only sample numbers, which are free.
pub fn span_bytes(span: &[StepNeeds], first: bool, behind: usize, terms: &Terms) -> u64 {
    let stashed = if first { 0 } else { in_flight_limit(0, behind + 1) };
    let working: u64 = span.iter().map(|step| step.working_bytes).sum();
    terms.fixed_bytes
        + terms.bytes_per_parameter * span_parameters(span)
        + terms.boundary_bytes * u64::from(stashed)
        + working
}

/// Cuts a model into `count` spans, each of which fits into `bytes`, such that the slowest takes as little time for
/// a microbatch as possible, which bounds a full pipeline. Of equally good cuts it takes the one with the longest
/// last spans. `None` if nothing fits, or if there are fewer steps than spans.
///
/// Dynamic programming over steps and spans; it looks at `O(count x steps^2)` spans.
pub fn split(steps: &[StepNeeds], count: usize, bytes: u64, terms: &Terms) -> Option<Vec<Range<usize>>> {
    // For each number of steps, the time of the slowest span if the spans so far have these, and where the last of
    // them begins.
    let mut best: Vec<Option<(u64, usize)>> = vec![None; steps.len() + 1];
    best[0] = Some((0, 0));
    let mut begins = Vec::new();
    for place in 0..count {
        let behind = count - 1 - place;
        let mut next = vec![None; steps.len() + 1];
        for end in 1..=steps.len() {
            for begin in (0..end).rev() {
                let span = &steps[begin..end];
                if span_bytes(span, place == 0, behind, terms) > bytes {
                    // A longer one takes no less.
                    break;
                }
                let Some((before, _)) = best[begin] else {
                    continue;
                };
                let slowest = span_us(span, behind == 0).max(before);
                if next[end].is_none_or(|(found, _)| slowest < found) {
                    next[end] = Some((slowest, begin));
                }
            }
        }
        begins.push(next.iter().map(|found| found.map(|(_, begin)| begin)).collect());
        best = next;
    }
    walk_back(&begins, steps.len())
}

/// The spans, from where each of them begins if it ends at a step.
fn walk_back(begins: &[Vec<Option<usize>>], steps: usize) -> Option<Vec<Range<usize>>> {
    let mut spans = Vec::new();
    let mut end = steps;
    for begin_of in begins.iter().rev() {
        let begin = begin_of[end]?;
        spans.push(begin..end);
        end = begin;
    }
    spans.reverse();
    (end == 0).then_some(spans)
}

/// The fewest spans that fit into `bytes` each, cut as [`split`] does. `None` if not even single steps fit.
pub fn fewest_spans(steps: &[StepNeeds], bytes: u64, terms: &Terms) -> Option<Vec<Range<usize>>> {
    (1..=steps.len()).find_map(|count| split(steps, count, bytes, terms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    /// A model of this many steps, of which the first and the last share a tensor.
    fn drawn(random: &mut SplitMix, count: usize) -> Vec<StepNeeds> {
        let mut up_to = |most: u64| random.bits() % most;
        let mut steps: Vec<StepNeeds> = (0..count)
            .map(|i| StepNeeds {
                forward_us: up_to(50),
                backward_us: 1 + up_to(100),
                tensors: vec![(i + 1, up_to(40))],
                working_bytes: up_to(100),
            })
            .collect();
        let tied = (0, up_to(60));
        steps[0].tensors.push(tied);
        steps[count - 1].tensors.push(tied);
        steps
    }

    /// The slowest span's time of the best cut of the rest into `left` spans, found by trying all.
    fn exhaustive(steps: &[StepNeeds], begin: usize, left: usize, bytes: u64, terms: &Terms) -> Option<u64> {
        if left == 0 {
            return (begin == steps.len()).then_some(0);
        }
        let own = |end: usize| {
            let span = &steps[begin..end];
            let fits = span_bytes(span, begin == 0, left - 1, terms) <= bytes;
            fits.then(|| span_us(span, left == 1))
        };
        let rest = |end| exhaustive(steps, end, left - 1, bytes, terms);
        (begin + 1..=steps.len())
            .filter_map(|end| Some(own(end)?.max(rest(end)?)))
            .min()
    }

    #[test]
    fn it_is_as_good_as_looking_at_all_cuts() {
        let (mut fitting, mut not) = (0, 0);
        for seed in 0..600 {
            let mut random = SplitMix(seed);
            let count = 1 + (random.bits() % 12) as usize;
            let steps = drawn(&mut random, count.max(2));
            let terms = Terms {
                bytes_per_parameter: 20,
                boundary_bytes: random.bits() % 50,
                fixed_bytes: 10,
            };
            let (count, bytes) = (1 + (random.bits() % 6) as usize, 400 + random.bits() % 5_000);
            let found = split(&steps, count, bytes, &terms);
            let us = |(i, span): (usize, &Range<usize>)| span_us(&steps[span.clone()], i + 1 == count);
            let time = found
                .as_ref()
                .map(|spans| spans.iter().enumerate().map(us).max().unwrap());
            assert_eq!(time, exhaustive(&steps, 0, count, bytes, &terms), "seed {seed}");
            let Some(spans) = found else {
                not += 1;
                continue;
            };
            fitting += 1;
            assert_eq!(spans.len(), count);
            assert_eq!((spans[0].start, spans[count - 1].end), (0, steps.len()));
            assert!(spans.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(spans.iter().all(|span| !span.is_empty()));
            for (place, span) in spans.iter().enumerate() {
                assert!(span_bytes(&steps[span.clone()], place == 0, count - 1 - place, &terms) <= bytes);
            }
        }
        assert!(fitting > 100 && not > 100, "{fitting} {not}");
    }

    #[test]
    fn equal_steps_make_equal_spans_and_memory_asks_for_more_of_them() {
        let step = |tensor| StepNeeds {
            forward_us: 10,
            backward_us: 20,
            tensors: vec![(tensor, 100)],
            working_bytes: 0,
        };
        let steps: Vec<StepNeeds> = (0..8).map(step).collect();
        let terms = Terms {
            bytes_per_parameter: 20,
            boundary_bytes: 0,
            fixed_bytes: 1000,
        };
        let spans = |bytes| fewest_spans(&steps, bytes, &terms).map(|spans| spans.len());
        assert_eq!(spans(1000 + 8 * 2000), Some(1));
        assert_eq!(spans(1000 + 8 * 2000 - 1), Some(2));
        assert_eq!(spans(1000 + 4 * 2000 - 1), Some(3));
        assert_eq!(spans(1000 + 2000), Some(8));
        assert_eq!(spans(1000 + 1999), None);
        // The last computes its forward passes once, and so has more steps.
        let four = split(&steps, 4, 1 << 20, &terms).unwrap();
        let lengths: Vec<usize> = four.iter().map(Range::len).collect();
        assert_eq!(lengths.iter().sum::<usize>(), 8);
        assert!(
            lengths[..3].iter().all(|length| *length <= 2) && lengths[3] <= 3,
            "{lengths:?}"
        );
        assert_eq!(split(&steps, 9, 1 << 20, &terms), None);
    }
}
