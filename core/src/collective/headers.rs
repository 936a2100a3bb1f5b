//! Brings each member's header to all others.
//!
//! A header takes the way of its author's finished chunk, a tree from the author to all in every plan. But it does
//! not wait for that chunk: it rides on the first frame that goes the same way. So it crosses each link of the tree
//! once, and there is always a frame to carry it.
//!
//! An author might send different headers to different members. But a member that finishes a chunk has all
//! contributions, and so all headers. With the first finished piece it sends the hash of all headers, and no member
//! commits that was sent a hash other than its own. Under the direct plan each member gets a hash from every other,
//! so no two honest members commit different records. In a ring, each compares with the one before it.

use super::Plan;
use crate::access::signature::Signed;
use crate::base::id::Digest;
use crate::ledger::Header;

/// The headers of one attempt that one member knows.
#[derive(Debug)]
pub(super) struct Headers {
    plan: Plan,
    me: usize,
    known: Vec<Option<Signed<Header>>>,
    /// By member: authors whose headers will ride on the next frame to it.
    to_tell: Vec<Vec<usize>>,
    /// Hash of all headers, once they are known.
    digest: Option<Digest>,
    /// By member: whether that hash was sent to it.
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

    /// An author's header, if it is known.
    pub fn of(&self, author: usize) -> Option<&Signed<Header>> {
        self.known[author].as_ref()
    }

    /// Stores the first header of an author: this member's own, or one that came.
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

    /// All known headers.
    pub fn known(&self) -> impl Iterator<Item = &Signed<Header>> {
        self.known.iter().flatten()
    }

    /// Hash of all members' headers, once they are known.
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Whether a member may bring an author's header here.
    pub fn may_come(&self, author: usize, from: usize) -> bool {
        self.plan.finished_from(author, self.me) == Some(from)
    }

    /// The headers that ride on a frame to a member now and, once, the hash of all.
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
