//! What became of a mutant, and what can try one.

/// What the tests said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Noticed,
    Missed,
    /// It does not compile, so it says nothing about the tests.
    Invalid,
    /// The checkout has no such line.
    Absent,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Noticed, Self::Missed, Self::Invalid, Self::Absent];

    pub fn name(self) -> &'static str {
        match self {
            Self::Noticed => "noticed",
            Self::Missed => "missed",
            Self::Invalid => "invalid",
            Self::Absent => "absent",
        }
    }

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name)
    }
}

/// An outcome, and the tests that noticed the mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    pub outcome: Outcome,
    pub by: String,
}

impl Tried {
    pub fn new(outcome: Outcome, by: &str) -> Self {
        let by = by.to_string();
        Self { outcome, by }
    }
}

/// Tests that can run with a mutant in place of a file.
pub trait Bench {
    /// Sees, once, that the tests of `file` pass without any mutant.
    ///
    /// # Errors
    ///
    /// If they fail, or cannot run.
    fn prove(&mut self, file: &str) -> Result<(), String>;

    /// Tries the text of a mutant of `file`.
    ///
    /// # Errors
    ///
    /// If the tests cannot run.
    fn attempt(&mut self, file: &str, mutant: &str) -> Result<Tried, String>;
}
