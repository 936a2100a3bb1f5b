//! Who adds what to what, and whom it goes to.
//!
//! Whatever the topology, each chunk has a tree of partial sums that ends at its owner, and a tree of finished pieces
//! from the owner to all others. Every member adds its own values to what comes to it: `((first + second) + ...) + own`
//! in the order of [`Plan::inputs`], whatever arrives first. What travels is encoded; the owner encodes the finished
//! sum once, it is forwarded verbatim, and the owner too uses what the others will decode.
//!
//! **Ring**: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
//! section 3: reduce-scatter, then all-gather. The sum of chunk `c` starts at member `c+1`, passes every member in ring
//! order and is finished by its owner `c`; the finished chunk goes round once more, as far as `c-1`. 2(n-1) one-way
//! delays; two links for each member.
//!
//! **Direct**: each member's values for a chunk go straight to its owner, which adds them up in ring order from `c+1` on
//! and sends the sum straight to all: a parameter server that is spread over all members, as in Jiang et al., "A Unified
//! Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU Clusters" (BytePS, OSDI 2020),
//! section 4, without servers beside the workers. 2 one-way delays; a link between any two; with a lossy codec each
//! contribution is rounded once and the sum once, where the ring rounds at every hop.
//!
//! With either a member sends and receives 2(n-1)/n of the vector.

use super::Cut;
use crate::config::{Manifest, Topology};

/// A topology over a cut. Members are positions in the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Who is whose neighbour.
    pub topology: Topology,
    /// Which range of elements is whose.
    pub cut: Cut,
}

impl Plan {
    /// The plan of a run's attempt among so many members.
    pub fn of(manifest: &Manifest, topology: Topology, members: usize) -> Self {
        Self {
            topology,
            cut: Cut::of(manifest, members),
        }
    }

    /// The members whose sums of a chunk come to a member, in the order in which it adds them.
    pub fn inputs(&self, chunk: usize, member: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.after(chunk);
        match self.topology {
            Topology::Ring if member == first => self.run_of(first, 0),
            Topology::Ring => self.run_of(self.before(member), 1),
            Topology::Direct if member == chunk => self.run_of(first, self.cut.members - 1),
            Topology::Direct => self.run_of(first, 0),
        }
    }

    /// Whom a member's sum of a chunk goes to; nobody, if it is the owner's and so is finished.
    pub fn partial_to(&self, chunk: usize, member: usize) -> Option<usize> {
        (member != chunk).then(|| match self.topology {
            Topology::Ring => self.after(member),
            Topology::Direct => chunk,
        })
    }

    /// How many members' values are in a member's sum of a chunk.
    pub fn contributions(&self, chunk: usize, member: usize) -> usize {
        let n = self.cut.members;
        match self.topology {
            Topology::Ring => (member + n - self.after(chunk)) % n + 1,
            Topology::Direct if member == chunk => n,
            Topology::Direct => 1,
        }
    }

    /// Who sends a member the finished pieces of a chunk; nobody, if it is the owner.
    pub fn finished_from(&self, chunk: usize, member: usize) -> Option<usize> {
        (member != chunk).then(|| match self.topology {
            Topology::Ring => self.before(member),
            Topology::Direct => chunk,
        })
    }

    /// Whom a member sends the finished pieces of a chunk.
    pub fn finished_to(&self, chunk: usize, member: usize) -> impl Iterator<Item = usize> + use<> {
        let next = self.after(member);
        match self.topology {
            Topology::Ring => self.run_of(next, usize::from(next != chunk)),
            Topology::Direct if member == chunk => self.run_of(next, self.cut.members - 1),
            Topology::Direct => self.run_of(next, 0),
        }
    }

    /// Whether each member gets finished chunks from their owners alone, who could send each something else: then they sign
    /// what they finish.
    pub fn is_sealed(&self) -> bool {
        self.topology == Topology::Direct && self.cut.members > 1
    }

    /// Chunk and number of the pieces whose sums begin with a member's values, in the order in which it sends them:
    /// first a piece for everybody, from the next member on, so that no two begin with the same.
    pub fn begins(&self, member: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let plan = *self;
        let chunks = move || plan.run_of(plan.after(member), plan.cut.members);
        let chunks = move || chunks().filter(move |c| plan.inputs(*c, member).next().is_none());
        let most = chunks().map(|c| plan.cut.pieces(c)).max().unwrap_or(0);
        let there = move |&(c, p): &(usize, usize)| p < plan.cut.pieces(c);
        (0..most).flat_map(move |p| chunks().map(move |c| (c, p)).filter(there))
    }

    /// So many members in ring order.
    fn run_of(&self, first: usize, count: usize) -> impl Iterator<Item = usize> + use<> {
        let n = self.cut.members;
        (first..first + count).map(move |member| member % n)
    }

    fn after(&self, member: usize) -> usize {
        (member + 1) % self.cut.members
    }

    fn before(&self, member: usize) -> usize {
        (member + self.cut.members - 1) % self.cut.members
    }
}
