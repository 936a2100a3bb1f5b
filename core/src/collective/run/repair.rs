//! The pieces that this member lacks once another has reported that the attempt is committed.

use super::super::step::{Sends, Violation};
use super::Run;
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::wire::{Leg, Message};

impl Run {
    /// Stops the run, since a member with all sums will send the missing pieces. Returns their chunks and numbers.
    /// Chunks without a valid seal are requested as a whole, since their pieces may belong to another version.
    pub fn give_up(&mut self) -> Vec<(u16, u32)> {
        if self.planted(Bug::ForgetHeldSums) {
            self.held.clear();
        }
        self.confirmed.clear();
        for chunk in 0..self.plan.cut.members {
            if let Some(seals) = self.seals.as_mut().filter(|seals| !seals.has(chunk)) {
                seals.drop(chunk);
                self.gathered.drop_chunk(chunk);
            }
        }
        self.gathered.missing()
    }

    /// Pieces of finished sums that have not come.
    pub fn missing(&self) -> Vec<(u16, u32)> {
        self.gathered.missing()
    }

    /// Handles a finished piece of an attempt that is known to be committed. If owners sign, it is accepted only
    /// from the member that reported the commit, so that a false piece is that member's fault.
    pub fn accept_repair(
        &mut self,
        (from, told_by): (PeerId, PeerId),
        message: Message,
        out: &mut Sends,
    ) -> Result<(), Violation> {
        let sender = self.members.iter().position(|m| *m == from);
        let sender = sender.ok_or(Violation::of_plan(from))?;
        if let Message::Piece {
            leg: Leg::Finished,
            chunk,
            piece,
            seal,
            data,
            ..
        } = message
            && (self.seals.is_none() || from == told_by)
        {
            let place = (usize::from(chunk), piece as usize);
            if data.is_empty() && self.makes(place, self.me) {
                // A word that was still on its way. The values derived from it are sent as well.
                return Ok(());
            }
            return self.finish(sender, place, (data, seal), out);
        }
        Ok(())
    }
}
