//! How each member's header reaches all others.
//!
//! A header takes the way of its author's finished chunk, which is a tree from the author to all whatever the plan; but
//! it does not wait for that chunk: it rides on the first frame that goes the same way. So it crosses each link of the
//! tree once, and there is always a frame that it can ride on.

use super::Plan;
use crate::ledger::Header;

/// The headers of one attempt, as far as one member knows them.
#[derive(Debug)]
pub(super) struct Headers {
    plan: Plan,
    me: usize,
    known: Vec<Option<Header>>,
    /// By member: authors whose headers will ride on the next frame to it.
    to_tell: Vec<Vec<usize>>,
}

impl Headers {
    pub fn new(plan: Plan, me: usize) -> Self {
        let n = plan.cut.members;
        Self {
            plan,
            me,
            known: vec![None; n],
            to_tell: vec![Vec::new(); n],
        }
    }

    /// Takes a header: this member's own, or one that came. False, and unchanged, if it contradicts one of the same author.
    pub fn take(&mut self, author: usize, header: Header) -> bool {
        if let Some(known) = &self.known[author] {
            return *known == header;
        }
        self.known[author] = Some(header);
        for next in self.plan.finished_to(author, self.me) {
            self.to_tell[next].push(author);
        }
        true
    }

    /// Whether a member may bring an author's header here.
    pub fn may_come(&self, author: usize, from: usize) -> bool {
        self.plan.finished_from(author, self.me) == Some(from)
    }

    /// What is to ride on a frame that goes to a member now.
    pub fn for_frame(&mut self, to: usize) -> Vec<Header> {
        let authors = std::mem::take(&mut self.to_tell[to]);
        authors
            .into_iter()
            .filter_map(|author| self.known[author].clone())
            .collect()
    }

    /// The headers of all members in the order of the view, once all are known.
    pub fn all(&self) -> Option<Vec<Header>> {
        self.known.iter().cloned().collect()
    }

    /// Bytes of the headers that are known.
    pub fn bytes(&self) -> usize {
        self.known.iter().flatten().map(Header::bytes).sum()
    }

    pub fn are_complete(&self) -> bool {
        self.known.iter().all(Option::is_some)
    }
}
