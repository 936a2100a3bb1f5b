//! The two messages that end an attempt: a member stops it, and all that are left give it up.

use super::Message;
use crate::access::signature::{Attempt, Key};
use crate::base::id::PeerId;
use crate::ledger::decision::{Decided, sign};

impl Message {
    /// A member stops an attempt because it suspects these; `held` if it has said before that it can commit.
    pub(crate) fn flush(attempt: &Attempt, suspects: Vec<PeerId>, held: bool, key: &Key) -> Self {
        Self::Flush {
            view: attempt.view,
            signature: sign(attempt, &suspects, held, key),
            suspects,
        }
    }

    /// An attempt was given up, with the proof.
    pub(crate) fn decision(decided: &Decided) -> Self {
        Self::Decision {
            view: decided.view,
            suspects: decided.suspects.iter().copied().collect(),
            proof: decided.proof.clone(),
        }
    }
}
