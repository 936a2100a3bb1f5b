//! What a replay found.

use annulus_core::id::Round;
use std::fmt;

/// One recomputed round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The round.
    pub round: Round,
    /// Whether it or one before has come to something else than was recorded.
    pub differs: bool,
}

/// States compared at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The checkpoint's round.
    pub round: Round,
    /// The largest difference of a parameter, as a share of the largest parameter.
    pub difference: f32,
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayReport {
    /// The round that it began after.
    pub base: Round,
    /// Rounds recomputed.
    pub rounds: u64,
    /// Rounds whose digest is the recorded one.
    pub exact: u64,
    /// The first round whose digest is another.
    pub first_difference: Option<Round>,
    /// The checkpoints from there on.
    pub compared: Vec<Compared>,
    /// Differences up to here are put down to rounding.
    pub tolerance: f32,
}

/// What a report comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Every round has the recorded digest.
    Exact,
    /// Digests differ, but no checkpoint by more than the tolerance; the largest difference.
    Within(f32),
    /// A checkpoint differs by more than the tolerance; the largest difference.
    Differs(f32),
    /// Digests differ, and no later checkpoint is there to say by how much.
    Unknown,
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
        }
    }

    /// What a round, or one before, came to is something else than was recorded.
    pub(crate) fn differs(&mut self, round: Round) {
        self.first_difference.get_or_insert(round);
    }

    /// What it comes to.
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
                write!(f, "more than the tolerance of {tolerance:.1e}")
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
