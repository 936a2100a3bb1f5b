//! The result of one step of a member's part in an attempt: messages to send, or the member that broke the plan.

use crate::base::id::PeerId;
use crate::ledger::conviction::Conviction;
use crate::wire::Message;

/// The result of one step of a member's part.
#[derive(Debug, Default)]
pub struct Sends {
    /// Messages and their receivers, in sending order.
    pub to: Vec<(PeerId, Message)>,
    /// Finished pieces that this member did not hold before.
    pub finished: Vec<Message>,
    /// Members whose headers differ from this member's: an author has contradicted itself.
    pub differing: Vec<PeerId>,
}

/// A member sent something that no honest member sends.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The member.
    pub by: PeerId,
    /// The violation.
    pub what: Wrong,
}

/// The kinds of violation.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrong {
    /// A piece that contradicts the plan.
    Plan,
    /// A header that its author has not signed, or a finished chunk that does not match its seal.
    Forged,
    /// Two different headers of one author.
    Contradiction(Box<Conviction>),
}

impl Violation {
    pub(super) fn of_plan(by: PeerId) -> Self {
        let what = Wrong::Plan;
        Self { by, what }
    }
}
