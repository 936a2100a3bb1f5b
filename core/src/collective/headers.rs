//! How each member's header reaches all others.
//!
//! A header takes the way of its author's finished chunk, which is a tree from the author to all whatever the plan; but
//! it does not wait for that chunk: it rides on the first frame that goes the same way. So it crosses each link of the
//! tree once, and there is always a frame that it can ride on.
//!
//! An author might say one thing to some and another to others. Who finishes a chunk has all headers, since it has all
//! contributions; so with the first finished piece it tells each who gets it from there the hash of what all said. Nobody
//! commits who was told another hash than its own. Under the direct plan each member gets one of each other, so that no
//! two honest ones commit different records; in a ring each compares with the one before it.

use super::Plan;
use crate::access::signature::Signed;
use crate::base::id::Digest;
use crate::ledger::Header;

/// The headers of one attempt, as far as one member knows them.
#[derive(Debug)]
pub(super) struct Headers {
    plan: Plan,
    me: usize,
    known: Vec<Option<Signed<Header>>>,
    /// By member: authors whose headers will ride on the next frame to it.
    to_tell: Vec<Vec<usize>>,
    /// Hash of all, once they are known.
    digest: Option<Digest>,
    /// By member: whether it was told that hash.
    compared: Vec<bool>,
}

impl Headers {
    pub fn new(plan: Plan, me: usize) -> Self {
        let n = plan.cut.members;
        Self {
            plan,
            me,
            known: vec![None; n],
            to_tell: vec![Vec::new(); n],
            digest: None,
            compared: vec![false; n],
        }
    }

    /// What is known of an author.
    pub fn of(&self, author: usize) -> Option<&Signed<Header>> {
        self.known[author].as_ref()
    }

    /// Takes a header, the first of its author: this member's own, or one that came.
    pub fn take(&mut self, author: usize, header: Signed<Header>) {
        self.known[author] = Some(header);
        for next in self.plan.finished_to(author, self.me) {
            self.to_tell[next].push(author);
        }
        let all: Option<Vec<&Header>> = self
            .known
            .iter()
            .map(|h| h.as_ref().map(|h| &h.content))
            .collect();
        self.digest = all.map(|all| Digest::of(&postcard::to_allocvec(&all).expect("plain data")));
    }

    /// Those that are known.
    pub fn known(&self) -> impl Iterator<Item = &Signed<Header>> {
        self.known.iter().flatten()
    }

    /// Hash of what all members say, once it is known.
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Whether a member may bring an author's header here.
    pub fn may_come(&self, author: usize, from: usize) -> bool {
        self.plan.finished_from(author, self.me) == Some(from)
    }

    /// What is to ride on a frame that goes to a member now, and once the hash of all.
    pub fn for_frame(&mut self, to: usize) -> (Vec<Signed<Header>>, Option<Digest>) {
        let authors = std::mem::take(&mut self.to_tell[to]);
        let headers = authors
            .into_iter()
            .filter_map(|author| self.known[author].clone());
        let all = self.digest.filter(|_| !self.compared[to]);
        self.compared[to] |= all.is_some();
        (headers.collect(), all)
    }

    /// The headers of all members in the order of the view, once all are known.
    pub fn all(&self) -> Option<Vec<Signed<Header>>> {
        self.known.iter().cloned().collect()
    }

    /// Bytes of the headers that are known.
    pub fn bytes(&self) -> usize {
        self.known.iter().flatten().map(|h| h.bytes()).sum()
    }

    pub fn are_complete(&self) -> bool {
        self.digest.is_some()
    }
}
