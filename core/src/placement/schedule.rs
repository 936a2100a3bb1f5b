//! In which order a span works on its microbatches.
//!
//! The order is that of 1F1B (PipeDream-Flush; Narayanan et al. 2021, section 2.2): a span that has a gradient goes
//! backward, which lets go of a stash; otherwise forward, as long as no more microbatches are under way behind it than
//! its limit says. Which microbatch comes next is its number alone, so that sums need not wait for their turn.

/// What a span does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The forward pass of this microbatch; in the last span the backward pass with it.
    Forward(u32),
    /// The backward pass of this microbatch.
    Backward(u32),
}

/// What to do next, of the first microbatch whose input is there and the first whose gradient is there, with so many
/// whose forward pass is done and whose backward pass is not. Nothing: wait.
pub fn next_work(forward: Option<u32>, backward: Option<u32>, in_flight: u32, limit: u32) -> Option<Work> {
    match (forward, backward) {
        (_, Some(microbatch)) => Some(Work::Backward(microbatch)),
        (Some(microbatch), None) if in_flight < limit => Some(Work::Forward(microbatch)),
        _ => None,
    }
}

/// How many microbatches more may be under way behind a span of a run than there are spans: over a slow link one is on its way
/// for longer than a span computes on it. Each is one more stash. Over lines of 100 Mbit/s and 50 ms that are busy for most of a
/// round, the schedule alone reaches 0.62 of its bound with one, 0.92 with six, 0.94 with eight and 0.97 with twelve.
pub const MORE: u32 = 8;

/// How many microbatches may be under way behind a span, and so how many stashes it keeps: one for each span from it on, as
/// 1F1B has it where links take no time, and [`MORE`] because they do.
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
