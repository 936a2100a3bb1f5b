//! Bounds what a guest's contribution can do to a sum.
//!
//! A guest's device may be broken, or lie. Clipping bounds the step of a round. But one huge contribution is the whole
//! sum, and Adam remembers its size for a thousand rounds. So the member that adds up shortens guests' pieces that are
//! far longer than its own gradients. This adds no trust: that member decides the sum anyway. Guests add up nothing.
//!
//! Gradients of `w` samples are between `sqrt(w)` and `w` times as long as those of one, by how much samples agree. So
//! an honest guest's are at most as long as the larger of these two says, whatever the numbers of samples. With local
//! steps they may also be as many times as long as a guest takes more steps than the other.

use crate::numeric::optim::norm_squared;

/// A piece may be this many times as long as the whole of a member's own gradients. A guess. An honest guest's piece is
/// a part of a whole that is about as long.
const MOST: f64 = 2.0;

/// What is left of the longest gradient at each later measurement.
const KEPT: f64 = 0.5;

/// Gradients of this many samples are taken for half as long as others may be. Samples differ: a single one, already
/// learned, may give a hundredth of what another gives. A guess.
const SURE: f64 = 8.0;

/// The length of fewer elements says little. A guess.
pub(super) const FEW: usize = 64;

/// How long gradients may be, at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scale {
    per_sample: f64,
    /// By the square root of the samples.
    per_root: f64,
}

impl Scale {
    /// That of a gradient, summed over `weight` samples.
    fn of(gradient: &[f32], weight: u32) -> Self {
        let norm = norm_squared(gradient).sqrt();
        let samples = f64::from(weight);
        if weight == 0 || !norm.is_finite() {
            return Self::default();
        }
        let norm = MOST * norm * (1.0 + SURE / samples);
        Self {
            per_sample: norm / samples,
            per_root: norm / samples.sqrt(),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            per_sample: self.per_sample.max(other.per_sample),
            per_root: self.per_root.max(other.per_root),
        }
    }

    /// Notes a gradient of this member, summed over `weight` samples. The lengths of earlier ones fade.
    pub fn note(&mut self, gradient: &[f32], weight: u32) {
        let earlier = Self {
            per_sample: KEPT * self.per_sample,
            per_root: KEPT * self.per_root,
        };
        *self = Self::of(gradient, weight).max(earlier);
    }

    /// A guest's piece with the same direction and the greatest length that it may have, if it is longer. The guest may
    /// have taken `steps` times as many local steps.
    pub(super) fn shorten(&self, piece: &[f32], weight: u32, steps: u32) -> Option<Vec<f32>> {
        let samples = f64::from(weight);
        let longest = f64::from(steps) * (samples * self.per_sample).max(samples.sqrt() * self.per_root);
        let norm = norm_squared(piece).sqrt();
        if longest == 0.0 || norm <= longest {
            return None;
        }
        let factor = (longest / norm) as f32;
        Some(piece.iter().map(|value| value * factor).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of a piece after it was shortened.
    fn shortened(length: f32, weight: u32, steps: u32, scale: &Scale) -> Option<f64> {
        let shorter = scale.shorten(&[0.6 * length, -0.8 * length], weight, steps)?;
        let norm = norm_squared(&shorter).sqrt();
        let along = f64::from(shorter[0]) / norm;
        assert!((along - 0.6).abs() < 1e-5, "it keeps its direction");
        Some((norm * 1e3).round() / 1e3)
    }

    #[test]
    fn huge_pieces_are_shortened() {
        let mut scale = Scale::default();
        assert_eq!(shortened(1e18, 8, 1, &scale), None, "nothing to compare with");
        scale.note(&[3.0, 4.0], 8);
        assert_eq!(shortened(19.9, 8, 1, &scale), None);
        assert_eq!(shortened(1e18, 8, 1, &scale), Some(20.0));
    }

    #[test]
    fn more_samples_may_give_longer_pieces_and_fewer_shorter_ones() {
        let mut scale = Scale::default();
        scale.note(&[4.0], 16);
        // Twice as many: twice as long. A single one: a quarter of what sixteen of random directions give.
        assert_eq!(shortened(23.9, 32, 1, &scale), None);
        assert_eq!(shortened(1e18, 32, 1, &scale), Some(24.0));
        assert_eq!(shortened(5.0, 1, 1, &scale), Some(3.0));
    }

    #[test]
    fn more_local_steps_may_give_longer_pieces() {
        let mut scale = Scale::default();
        // Eight samples in one step, and 48 in six: six times the samples, and each has moved the weights six times.
        scale.note(&[1.0], 8);
        assert_eq!(shortened(36.0, 48, 6, &scale), None);
        assert_eq!(shortened(1e18, 48, 6, &scale), Some(144.0));
    }

    #[test]
    fn a_single_sample_says_little() {
        let mut scale = Scale::default();
        scale.note(&[1.0], 1);
        assert_eq!(shortened(200.0, 14, 1, &scale), None);
        assert_eq!(shortened(1e18, 14, 1, &scale), Some(252.0));
    }

    #[test]
    fn only_recent_gradients_are_compared() {
        let mut scale = Scale::default();
        scale.note(&[1e6], 8);
        scale.note(&[f32::INFINITY], 8);
        (0..200).for_each(|_| scale.note(&[1.0], 8));
        assert_eq!(shortened(1e6, 8, 1, &scale), Some(4.0));
    }
}
