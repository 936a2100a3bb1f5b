//! What this member lacks once another has told that the attempt is committed.

use super::super::step::{Sends, Violation};
use super::Run;
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::wire::{Leg, Message};

impl Run {
    /// Somebody who has all sums will send what is missing here: chunk and number of each such piece. Of a chunk that its
    /// owner has not sealed yet that is all of it: what came might be of another.
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

    /// Pieces of the finished sums that have not come.
    pub fn missing(&self) -> Vec<(u16, u32)> {
        self.gathered.missing()
    }

    /// Takes a finished piece of an attempt that is known to be committed: others may lack it too. Where owners sign what
    /// they finish it is taken from who told of the commit alone, so that what is not what the owner has signed is that
    /// one's fault.
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
                // Word of the attempt that was on its way still: what was to be made of it is sent as well.
                return Ok(());
            }
            return self.finish(sender, place, (data, seal), out);
        }
        Ok(())
    }
}
