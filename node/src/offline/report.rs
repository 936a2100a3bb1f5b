//! The result of a replay.

use annulus_core::id::Round;
use std::fmt;

/// One recomputed round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The round.
    pub round: Round,
    /// Whether this round, or an earlier one, differs from the recording.
    pub differs: bool,
}

/// The comparison of states at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The checkpoint's round.
    pub round: Round,
    /// The largest difference of a parameter, relative to the largest parameter.
    pub difference: f32,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayReport {
    /// The round after which it began.
    pub base: Round,
    /// Rounds recomputed.
    pub rounds: u64,
    /// Rounds with the recorded digest.
    pub exact: u64,
    /// The first round with another digest.
    pub first_difference: Option<Round>,
    /// The checkpoints compared since then.
    pub compared: Vec<Compared>,
    /// Differences up to this size are taken to be rounding.
    pub tolerance: f32,
    /// Whether the model draws random numbers, as dropout does. A process that computes for a member draws its own.
    pub draws: bool,
}

/// Why a replay may differ although nothing is wrong.
const DRAWS: &str = "The model has dropout, and PyTorch draws random numbers that no replay can repeat: if a member computed with \
                     PyTorch, they alone may make this difference";

/// The conclusion of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Every round has the recorded digest.
    Exact,
    /// Digests differ, but no checkpoint by more than the tolerance; the largest difference.
    Within(f32),
    /// A checkpoint differs by more than the tolerance; the largest difference.
    Differs(f32),
    /// Digests differ, and there is no later checkpoint to say by how much.
    Unknown,
}

/// The difference between recomputed and recorded parameters, which can be accumulated part by part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Difference {
    /// The largest difference; infinite if one is NaN.
    off: f32,
    /// The largest recorded parameter.
    largest: f32,
}

impl Difference {
    /// Takes in more parameters.
    pub(crate) fn take(&mut self, ours: &[f32], theirs: &[f32]) {
        for (a, b) in ours.iter().zip(theirs) {
            self.largest = self.largest.max(b.abs());
            if a.to_bits() != b.to_bits() {
                let d = (a - b).abs();
                self.off = if d.is_nan() {
                    f32::INFINITY
                } else {
                    self.off.max(d)
                };
            }
        }
    }

    /// Relative to the largest parameter. Not finite if a difference is not.
    pub(crate) fn share(&self) -> f32 {
        match self.off / self.largest {
            _ if self.off == 0.0 => 0.0,
            share if share.is_nan() => f32::INFINITY,
            share => share,
        }
    }
}

impl ReplayReport {
    /// Before the first round.
    pub(crate) fn new(base: Round, tolerance: f32) -> Self {
        Self {
            base,
            rounds: 0,
            exact: 0,
            first_difference: None,
            compared: Vec::new(),
            tolerance,
            draws: false,
        }
    }

    /// Notes that a round, or one before it, differs from the recording.
    pub(crate) fn differs(&mut self, round: Round) {
        self.first_difference.get_or_insert(round);
    }

    /// Notes the difference at a checkpoint.
    pub(crate) fn compare(&mut self, round: Round, difference: Difference) {
        let difference = difference.share();
        self.compared.push(Compared { round, difference });
    }

    /// The conclusion.
    pub fn verdict(&self) -> Verdict {
        let largest = self.compared.iter().map(|c| c.difference).reduce(f32::max);
        match (self.first_difference, largest) {
            (None, _) => Verdict::Exact,
            (Some(_), None) => Verdict::Unknown,
            (Some(_), Some(largest)) if largest <= self.tolerance => Verdict::Within(largest),
            (Some(_), Some(largest)) => Verdict::Differs(largest),
        }
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            base,
            rounds,
            exact,
            tolerance,
            ..
        } = self;
        write!(
            f,
            "{exact} of {rounds} rounds after round {base} have the recorded digest"
        )?;
        let first = self.first_difference.unwrap_or(0);
        match self.verdict() {
            Verdict::Exact => write!(f, ": the replay is exact"),
            Verdict::Within(largest) => {
                write!(
                    f,
                    "; from round {first} on they differ, parameters by at most {largest:.1e} of the largest, "
                )?;
                write!(
                    f,
                    "within the tolerance of {tolerance:.1e}: devices that round differently took part"
                )
            }
            Verdict::Differs(largest) => {
                write!(
                    f,
                    "; from round {first} on they differ, parameters by up to {largest:.1e} of the largest, "
                )?;
                write!(f, "more than the tolerance of {tolerance:.1e}")?;
                match self.draws {
                    true => write!(f, ". {DRAWS}"),
                    false => Ok(()),
                }
            }
            Verdict::Unknown => {
                write!(
                    f,
                    "; from round {first} on they differ, and there is no later checkpoint to say by how much"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_a_share_of_the_largest_and_what_is_no_number_is_not_overlooked() {
        const INF: f32 = f32::INFINITY;
        for (pairs, expected) in [
            (&[(1.0, 1.0), (f32::NAN, f32::NAN)][..], 0.0),
            (&[(1.0, 1.5), (4.0, 4.0)], 0.125),
            (&[(1.0, 1.0), (2.0, -2.0)], 2.0),
            (&[(0.0, -0.0)], 0.0),
            (&[(1.0, f32::NAN), (4.0, 4.0)], INF),
            (&[(1.0, INF), (4.0, 4.0)], INF),
            (&[(1.0, 0.0)], INF),
        ] {
            let (ours, theirs): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
            let mut whole = Difference::default();
            whole.take(&ours, &theirs);
            let mut by_parts = Difference::default();
            pairs.iter().for_each(|(a, b)| by_parts.take(&[*a], &[*b]));
            assert_eq!(
                (whole.share(), by_parts.share()),
                (expected, expected),
                "{pairs:?}"
            );
        }
    }
    #[test]
    fn a_model_with_dropout_that_differs_is_told_apart() {
        let mut report = ReplayReport::new(0, 1e-2);
        report.differs(1);
        for (off, draws, told) in [(0.5, true, true), (0.5, false, false), (1e-3, true, false)] {
            report.draws = draws;
            report.compared = vec![Compared {
                round: 4,
                difference: off,
            }];
            assert_eq!(report.to_string().contains("dropout"), told, "{report}");
        }
    }
}
