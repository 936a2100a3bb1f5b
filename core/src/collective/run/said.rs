//! The statements that come with pieces: headers, hashes of all headers, seals.

use super::super::seals::Broken;
use super::super::step::{Sends, Violation, Wrong};
use super::Run;
use crate::access::signature::Signed;
use crate::base::id::Digest;
use crate::base::planted::Bug;
use crate::ledger::Header;
use crate::ledger::conviction::Conviction;
use crate::ledger::seal::Seal;
use bytes::Bytes;

impl Run {
    /// Whether this member has all headers.
    pub fn has_headers(&self) -> bool {
        self.headers.are_complete()
    }

    /// Seals a piece of this member's own chunk, or checks another's.
    pub(super) fn seal(
        &mut self,
        sender: usize,
        (chunk, piece): (usize, usize),
        data: &Bytes,
        seal: Option<Box<Seal>>,
    ) -> Result<Option<Box<Seal>>, Violation> {
        let (trusted, members) = (self.planted(Bug::TrustSeals), &self.members);
        let (key, attempt) = (&self.key, &self.attempt);
        let Some(seals) = &mut self.seals else {
            return Ok(None);
        };
        if chunk == self.me && sender == self.me {
            let own = seals.finish((chunk, piece), data, attempt, key);
            return Ok(own.map(Box::new));
        }
        let sound = |seal: &Seal, owner: usize| seal.is_by(members[owner], attempt, key.scheme());
        if sender == self.me {
            seals.make(chunk);
        }
        match seals.take((chunk, piece), data, seal.map(|seal| *seal), trusted, sound) {
            Ok(()) => Ok(None),
            Err(Broken::AsItCame) => {
                let (by, what) = (members[sender], Wrong::Forged);
                Err(Violation { by, what })
            }
            Err(Broken::AsMade) => {
                // It cannot tell which of the two is wrong. If the owner sent others the same, it will get it from
                // them.
                seals.drop(chunk);
                self.gathered.drop_chunk(chunk);
                Ok(None)
            }
        }
    }

    /// Checks that the sender may bring these headers, that their authors have signed them, and that they
    /// contradict no known one. Then stores them. A member that passes a header on has checked it too.
    pub(super) fn take_headers(
        &mut self,
        sender: usize,
        headers: Vec<Signed<Header>>,
        out: &mut Sends,
    ) -> Result<(), Violation> {
        for header in headers {
            let by = self.members[sender];
            let author = self.members.iter().position(|m| *m == header.peer);
            let author = author.filter(|author| self.headers.may_come(*author, sender));
            let author = author.ok_or(Violation::of_plan(by))?;
            let known = self.headers.of(author);
            if known.is_some_and(|known| known.content == header.content) {
                continue;
            }
            let signed = header.is_by(header.peer, &self.attempt, self.key.scheme());
            if !signed && !self.planted(Bug::TrustHeaders) {
                let what = Wrong::Forged;
                return Err(Violation { by, what });
            }
            if let Some(known) = known {
                let by = header.peer;
                let proof = Conviction::new(self.attempt, [known.clone(), header]);
                let what = Wrong::Contradiction(Box::new(proof));
                return Err(Violation { by, what });
            }
            self.take_header(author, header, out);
        }
        Ok(())
    }

    pub(super) fn take_header(&mut self, author: usize, header: Signed<Header>, out: &mut Sends) {
        self.headers.take(author, header);
        if let Some(digest) = self.headers.digest() {
            let others = self.others_have.iter().filter(|(_, other)| **other != digest);
            out.differing
                .extend(others.map(|(member, _)| self.members[*member]));
        }
    }

    /// Compares a member's hash of all headers with this one's.
    pub(super) fn compare(&mut self, sender: usize, all: Option<Digest>, out: &mut Sends) {
        let Some(all) = all.filter(|_| !self.planted(Bug::CompareNothing)) else {
            return;
        };
        let new = self.others_have.insert(sender, all).is_none();
        if new && self.headers.digest().is_some_and(|own| own != all) {
            out.differing.push(self.members[sender]);
        }
    }
}
