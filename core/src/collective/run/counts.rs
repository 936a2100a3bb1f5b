//! How many pieces went and came: this shows which members are silent or slow.

use super::Run;

impl Run {
    /// Pieces sent to a member.
    pub fn sent_to(&self, member: usize) -> u32 {
        self.sent[member]
    }

    /// Pieces received from a member.
    pub fn came_from(&self, member: usize) -> u32 {
        self.came[member]
    }

    /// Pieces received.
    pub fn came(&self) -> u32 {
        self.came.iter().sum()
    }

    /// Pieces still due from a member whose values are in, and that says it has sent `sent` to this one. At least
    /// those that depend on no other member are due.
    pub fn due_from(&self, member: usize, sent: u32) -> u32 {
        // In a split run, a member that waits may not have begun to send.
        if self.plan.cut.lanes().is_some() {
            return sent;
        }
        let here = |place: &(usize, usize)| self.plan.partial_to(*place, member) == Some(self.me);
        sent.max(self.plan.begins(member).filter(here).count() as u32)
    }
}
