//! What one step of a member's part in an attempt gives: what is to be sent, or who broke the plan.

use crate::base::id::PeerId;
use crate::ledger::conviction::Conviction;
use crate::wire::Message;

/// What one step of a member's part gives.
#[derive(Debug, Default)]
pub struct Sends {
    /// Messages and whom they go to, in the order in which they are to be sent.
    pub to: Vec<(PeerId, Message)>,
    /// Pieces that are finished and that this member did not hold before.
    pub finished: Vec<Message>,
    /// Members that have other headers than this one: one of their authors has said two things.
    pub differing: Vec<PeerId>,
}

/// Something came that no honest member sends.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Whose fault it is.
    pub by: PeerId,
    /// What it is.
    pub what: Wrong,
}

/// What a member has done that none may do.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrong {
    /// It has sent what contradicts the plan.
    Plan,
    /// It has sent a header that its author has not signed, or as its finished chunk another than it has signed.
    Forged,
    /// It has signed two headers.
    Contradiction(Box<Conviction>),
}

impl Violation {
    pub(super) fn of_plan(by: PeerId) -> Self {
        let what = Wrong::Plan;
        Self { by, what }
    }
}
