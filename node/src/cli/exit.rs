//! How the process ends: its exit code, by which queues and service managers decide whether to start it again.

use crate::ending::LEFT;
use crate::net::link::{DialError, Refusal};
use crate::participant::error::Error;
use crate::participant::start::Ending;

/// The exit codes. Those above 2 are what `sysexits.h` has for the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command is done; of `train`, `join` and `resume`: the run is finished.
    Done = 0,
    /// It could not be done. Trying again as it is does not help.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Nobody who takes part in the run could be reached, or nobody there holds its state: later somebody may.
    Unreachable = 69,
    /// The peer was asked to leave before the run's end: the same command goes on.
    Left = LEFT,
    /// The run lets this peer in no more: it needs another ticket, or an identity of its own.
    Barred = 77,
}

impl Exit {
    /// The meaning of each code, as the documentation has it.
    pub const ALL: [(Self, &str); 6] = [
        (
            Self::Done,
            "done; of `train`, `join` and `resume`: the run is finished",
        ),
        (
            Self::Failed,
            "failed; see standard error. Retrying unchanged will not help",
        ),
        (Self::Usage, "the command line is wrong"),
        (
            Self::Unreachable,
            "no member could be reached, or none has the state; try again later",
        ),
        (
            Self::Left,
            "left before the run's end, because it was asked to; the same command goes on",
        ),
        (
            Self::Barred,
            "the run lets this peer in no more: it needs another ticket, or an identity of its own",
        ),
    ];

    /// Of a participant that ended well.
    pub fn of(ending: Ending) -> Self {
        match ending {
            Ending::Finished => Self::Done,
            Ending::Left => Self::Left,
        }
    }

    /// Of one that did not.
    pub fn of_error(error: &Error) -> Self {
        match error {
            Error::Barred(_) | Error::Dial(DialError::Refused(Refusal::WrongTicket)) => Self::Barred,
            Error::Dial(error) if error.barred().is_some() => Self::Barred,
            // Typed again as it is, it only brings the code's end nearer.
            Error::Dial(DialError::Refused(Refusal::WrongCode)) => Self::Failed,
            Error::Dial(_) | Error::NoMember(_) | Error::StateLost { .. } => Self::Unreachable,
            _ => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_all_of_them() {
        let page = include_str!("../../../docs/deploy.md");
        for (exit, says) in Exit::ALL {
            let row = format!("| {} | {says} |", exit as u8);
            assert!(page.contains(&row), "docs/deploy.md lacks: {row}");
        }
    }
}
