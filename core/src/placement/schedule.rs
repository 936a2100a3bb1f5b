//! The order in which a span works on its microbatches.
//!
//! The order is that of 1F1B (PipeDream-Flush; Narayanan et al. 2021, section 2.2). A span that has a gradient goes
//! backward, which frees a stash. Otherwise it goes forward, unless its limit of microbatches under way is reached.
//! Microbatches go in the order of their numbers, so that sums need not wait for their turn.

/// A span's next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The forward pass of this microbatch. In the last span, the backward pass with it.
    Forward(u32),
    /// The backward pass of this microbatch.
    Backward(u32),
}

/// The next task, given the first microbatch whose input is there, the first whose gradient is there, and the
/// number under way: those with a forward pass but no backward pass yet. `None`: wait.
pub fn next_work(forward: Option<u32>, backward: Option<u32>, in_flight: u32, limit: u32) -> Option<Work> {
    match (forward, backward) {
        (_, Some(microbatch)) => Some(Work::Backward(microbatch)),
        (Some(microbatch), None) if in_flight < limit => Some(Work::Forward(microbatch)),
        _ => None,
    }
}

/// How many more microbatches may be under way behind a span than there are spans. Over a slow link, a microbatch
/// is on its way for longer than a span computes on it. Each costs one more stash. Over lines of 100 Mbit/s and 50
/// ms that are busy for most of a round, the schedule alone reaches this fraction of its bound:
///
/// | more | 1 | 6 | 8 | 12 |
/// |---|---|---|---|---|
/// | fraction | 0.62 | 0.92 | 0.94 | 0.97 |
pub const MORE: u32 = 8;

/// How many microbatches may be under way behind a span, which is also its number of stashes: one for each span
/// from it on, as in 1F1B with instant links, and [`MORE`] for slow ones.
pub fn in_flight_limit(span: usize, spans: usize) -> u32 {
    spans.saturating_sub(span).max(1) as u32 + MORE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_goes_first_and_the_limit_bounds_what_is_stashed() {
        assert_eq!(next_work(Some(3), Some(1), 2, 2), Some(Work::Backward(1)));
        assert_eq!(next_work(Some(3), None, 1, 2), Some(Work::Forward(3)));
        assert_eq!(next_work(Some(3), None, 2, 2), None);
        assert_eq!(next_work(None, None, 0, 2), None);
        // One for each span from this one on.
        let limits = [0, 1, 2, 3].map(|span| in_flight_limit(span, 4) - MORE);
        assert_eq!(limits, [4, 3, 2, 1]);
    }
}
