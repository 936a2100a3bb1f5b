//! How the manifest cuts a model over the members: its steps, and which steps form a span.
//!
//! A *step* is the smallest part of a model that can be computed alone. A *span* is a sequence of steps on one
//! member, a pipeline stage. [`route`](crate::ledger::route) decides who computes what in a round.

use crate::numeric::codec::Codec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;

/// Most steps, and most spans. A guess, far above any model that users cut.
pub const MOST_STEPS: usize = 256;
/// Most lanes. Each lane is one more vector for a member that computes all of them.
pub const MOST_LANES: u16 = 16;
/// Most elements of one tensor between two spans. As `f32` they fit a frame, with its header.
pub const MOST_BOUNDARY: u64 = 1 << 20;

/// One step of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The elements of the flat vector that it uses, in order. Other steps may use them too.
    pub ranges: Vec<Range<usize>>,
    /// Its time, relative to other steps.
    pub cost: u32,
    /// Elements that it passes to the next step, for each sample.
    pub boundary: u32,
}

impl Step {
    /// The number of elements that it uses.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Whether it uses no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place of a range among all elements that it uses, one range after the other.
    pub fn place(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let mut before = 0;
        for own in &self.ranges {
            if own.start <= range.start && range.end <= own.end {
                let start = before + range.start - own.start;
                return Some(start..start + range.len());
            }
            before += own.len();
        }
        None
    }
}

/// How a run's model is cut over its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// The model's steps, in order.
    pub steps: Vec<Step>,
    /// The number of steps of each span.
    pub spans: Vec<NonZeroU16>,
    /// Samples of a microbatch.
    pub micro_batch: NonZeroU32,
    /// The codec of activations and their gradients.
    pub boundary: Codec,
    /// The number of lanes of a round. One holder of a span computes each lane.
    pub lanes: NonZeroU16,
}

impl Split {
    /// Checks that it fits a flat vector of this many elements.
    ///
    /// # Errors
    ///
    /// What does not fit.
    pub fn check(&self, len: usize) -> Result<(), &'static str> {
        let steps: usize = self.spans.iter().map(|steps| usize::from(steps.get())).sum();
        if self.steps.is_empty() || self.steps.len() > MOST_STEPS || steps != self.steps.len() {
            return Err("the spans of split do not have all steps, or there are more than 256");
        }
        if self.lanes.get() > MOST_LANES {
            return Err("split has at most 16 lanes");
        }
        if !self.boundary.carries_activations() {
            return Err("activations travel as f32, f16 or int8, in no fewer bits");
        }
        for step in &self.steps {
            let ordered = step.ranges.is_sorted_by(|a, b| a.end <= b.start);
            let inside = step.ranges.iter().all(|r| r.start < r.end && r.end <= len);
            if !ordered || !inside {
                return Err("a step of split uses elements that are not there, or not in order");
            }
            if u64::from(step.boundary) * u64::from(self.micro_batch.get()) > MOST_BOUNDARY {
                return Err("a microbatch of split has more than 1048576 elements at a boundary");
            }
        }
        let mut used: Vec<&Range<usize>> = self.steps.iter().flat_map(|step| &step.ranges).collect();
        used.sort_unstable_by_key(|range| range.start);
        let mut end = 0;
        for range in used {
            if range.start > end {
                return Err("no step of split uses some elements");
            }
            end = end.max(range.end);
        }
        if end < len {
            return Err("no step of split uses some elements");
        }
        let inner = self.spans().take(self.spans.len() - 1);
        let passes = |span: Range<usize>| self.steps[span.end - 1].boundary > 0;
        if !inner.into_iter().all(passes) {
            return Err("nothing goes over a boundary of split");
        }
        Ok(())
    }

    /// The same model with spans of these numbers of steps.
    pub fn cut(&self, spans: &[NonZeroU16]) -> Self {
        Self {
            spans: spans.to_vec(),
            ..self.clone()
        }
    }

    /// Whether the same model can be cut so: into the same number of spans, none with a wider boundary than the
    /// widest now.
    pub(crate) fn can_be(&self, spans: &[NonZeroU16]) -> bool {
        let steps: usize = spans.iter().map(|steps| usize::from(steps.get())).sum();
        spans.len() == self.spans.len()
            && steps == self.steps.len()
            && self.cut(spans).spans().all(|span| self.may_end(span.end))
    }

    /// Whether a span may end with this many steps before its end.
    pub(crate) fn may_end(&self, end: usize) -> bool {
        let given = |end: usize| self.steps[end - 1].boundary;
        let inner = self.spans().take(self.spans.len() - 1);
        let widest = inner.map(|span| given(span.end)).max().unwrap_or(0);
        end == self.steps.len() || (1..=widest).contains(&given(end))
    }

    /// The steps of each span.
    pub fn spans(&self) -> impl Iterator<Item = Range<usize>> {
        self.spans.iter().scan(0, |end, steps| {
            let start = *end;
            *end += usize::from(steps.get());
            Some(start..*end)
        })
    }

    /// The steps of a span.
    ///
    /// # Panics
    /// If there is no such span.
    pub fn span(&self, span: usize) -> Range<usize> {
        self.spans().nth(span).expect("there is such a span")
    }

    /// The span that has a step.
    pub fn span_of(&self, step: usize) -> usize {
        self.spans().take_while(|span| span.end <= step).count()
    }

    /// The elements that a span uses, in order, each once.
    pub fn used(&self, span: usize) -> Vec<Range<usize>> {
        self.used_by(self.span(span))
    }

    /// The elements that some steps use, in order, each once.
    pub fn used_by(&self, steps: Range<usize>) -> Vec<Range<usize>> {
        let steps = &self.steps[steps];
        let mut ranges: Vec<Range<usize>> = steps.iter().flat_map(|step| step.ranges.clone()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut used: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match used.last_mut().filter(|last| range.start <= last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => used.push(range),
            }
        }
        used
    }

    /// The length of a span's gradient: the gradients of its steps, one after the other.
    pub fn gradient_len(&self, span: usize) -> usize {
        self.steps[self.span(span)].iter().map(Step::len).sum()
    }

    /// The range of a step's gradient within the span's.
    ///
    /// # Panics
    /// If the step is not one of the span's.
    pub fn gradient_of(&self, span: usize, step: usize) -> Range<usize> {
        let first = self.span(span).start;
        let start = self.steps[first..step].iter().map(Step::len).sum();
        start..start + self.steps[step].len()
    }

    /// The share of some steps in the model's computation for a sample.
    pub fn share(&self, steps: Range<usize>) -> f64 {
        let cost = |steps: &[Step]| steps.iter().map(|step| f64::from(step.cost)).sum::<f64>();
        cost(&self.steps[steps]) / cost(&self.steps)
    }

    /// The cost of some steps for a sample; at least 1.
    pub fn cost(&self, steps: Range<usize>) -> u64 {
        let cost = self.steps[steps].iter().map(|step| u64::from(step.cost));
        cost.sum::<u64>().max(1)
    }

    /// Converts samples of this span into samples of an average span. Speeds are measured in these, so that they do
    /// not depend on the span that a member holds.
    pub fn work(&self, span: usize, samples: u64) -> f64 {
        self.share(self.span(span)) * (self.spans.len() as u64 * samples) as f64
    }

    /// All positions where a step begins or ends to use elements.
    pub fn borders(&self) -> BTreeSet<usize> {
        let ranges = self.steps.iter().flat_map(|step| &step.ranges);
        ranges.flat_map(|range| [range.start, range.end]).collect()
    }

    /// The steps that use a range of elements between two borders, in order.
    pub fn users(&self, range: &Range<usize>) -> Vec<usize> {
        let uses = |step: &usize| self.steps[*step].place(range).is_some();
        (0..self.steps.len()).filter(uses).collect()
    }

    /// Elements that a span passes to the next, for each sample.
    pub fn boundary_after(&self, span: usize) -> usize {
        self.steps[self.span(span).end - 1].boundary as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight steps over 1,000 elements. The last uses the elements of the first again.
    fn tied() -> Split {
        let step = |i: usize| Step {
            ranges: match i {
                7 => vec![0..125, 875..1000],
                i => std::iter::once(i * 125..(i + 1) * 125).collect(),
            },
            cost: 1,
            boundary: 4,
        };
        Split {
            steps: (0..8).map(step).collect(),
            spans: [3, 5].map(|n| NonZeroU16::new(n).unwrap()).to_vec(),
            micro_batch: 2.try_into().unwrap(),
            boundary: Codec::F32,
            lanes: 2.try_into().unwrap(),
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        assert_eq!(tied().check(1000), Ok(()));
        type Change = fn(&mut Split);
        let wrong: [(&str, Change); 8] = [
            ("have all steps", |s| s.spans.truncate(1)),
            ("lanes", |s| s.lanes = 17.try_into().unwrap()),
            ("no fewer bits", |s| s.boundary = Codec::Int4),
            ("no fewer bits", |s| s.boundary = Codec::Sign),
            ("not there", |s| s.steps[6].ranges[0].end = 1001),
            ("not in order", |s| s.steps[7].ranges.reverse()),
            ("no step", |s| s.steps[3].ranges[0].start += 1),
            ("nothing goes", |s| s.steps[2].boundary = 0),
        ];
        for (why, change) in wrong {
            let mut split = tied();
            change(&mut split);
            assert!(split.check(1000).is_err_and(|error| error.contains(why)), "{why}");
        }
        let mut split = tied();
        split.steps[2].boundary = MOST_BOUNDARY as u32 / 2 + 1;
        assert!(split.check(1000).is_err_and(|error| error.contains("1048576")));
        assert!(tied().check(1001).is_err(), "one element more that nobody uses");
    }

    #[test]
    fn spans_use_what_their_steps_do() {
        let split = tied();
        assert_eq!(split.spans().collect::<Vec<_>>(), [0..3, 3..8]);
        assert_eq!([0, 2, 3, 7].map(|step| split.span_of(step)), [0, 0, 1, 1]);
        assert!(split.used(0).iter().eq(std::iter::once(&(0..375))));
        assert_eq!(split.used(1), [0..125, 375..1000]);
        assert_eq!(split.gradient_len(1), 4 * 125 + 250);
        assert_eq!(split.gradient_of(1, 7), 500..750);
        assert_eq!(split.users(&(0..100)), [0, 7]);
        assert_eq!(split.users(&(880..1000)), [7]);
        assert_eq!(split.steps[7].place(&(875..900)), Some(125..150));
        assert_eq!(split.steps[7].place(&(100..130)), None);
    }

    #[test]
    fn another_cut_has_as_many_spans_and_gives_no_more() {
        let mut split = tied();
        let spans = |steps: &[u16]| -> Vec<NonZeroU16> {
            steps.iter().map(|n| NonZeroU16::new(*n).unwrap()).collect()
        };
        for (steps, can_be) in [
            (&[1, 7][..], true),
            (&[7, 1], true),
            (&[4, 5], false),
            (&[8], false),
            (&[2, 3, 3], false),
        ] {
            assert_eq!(split.can_be(&spans(steps)), can_be, "{steps:?}");
        }
        (split.steps[0].boundary, split.steps[1].boundary) = (5, 0);
        assert!(!split.can_be(&spans(&[1, 7])) && !split.can_be(&spans(&[2, 6])));
        assert_eq!(
            split.cut(&spans(&[5, 3])).spans().collect::<Vec<_>>(),
            [0..5, 5..8]
        );
    }
}
