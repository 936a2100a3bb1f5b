//! How many pieces went and came: what tells who is mute or slow.

use super::Run;

impl Run {
    /// Pieces that went to a member.
    pub fn sent_to(&self, member: usize) -> u32 {
        self.sent[member]
    }

    /// Pieces that came from a member.
    pub fn came_from(&self, member: usize) -> u32 {
        self.came[member]
    }

    /// Pieces that came.
    pub fn came(&self) -> u32 {
        self.came.iter().sum()
    }

    /// Pieces that are due from a member whose values are in and which has sent so many to this one by its own account: what
    /// depends on nobody else is among them.
    pub fn due_from(&self, member: usize, sent: u32) -> u32 {
        // Where a model is split who waits may not have begun to send.
        if self.plan.cut.lanes().is_some() {
            return sent;
        }
        let here = |place: &(usize, usize)| self.plan.partial_to(*place, member) == Some(self.me);
        sent.max(self.plan.begins(member).filter(here).count() as u32)
    }
}
