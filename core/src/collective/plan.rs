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
//! Where members keep parts of the moments, sums pass a row of them before what comes of them is sent to all: see
//! [`Kept`]. That is for the direct plan alone.
//!
//! With either a member sends and receives 2(n-1)/n of the vector; also where parts are kept, since keepers are not sent what
//! they make of the sum themselves.

use super::Cut;
use super::kept::Kept;
use crate::base::id::PeerId;
use crate::ledger::Head;
use crate::numeric::codec::Codec;
use crate::run::config::{Manifest, Topology};

/// Where in a row of keepers a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Who comes before it; none before the first, which adds up.
    pub from: Option<usize>,
    /// Who comes after it; none after the last, which lets the update out.
    pub to: Option<usize>,
}

/// A topology over a cut. Members are positions in the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Who is whose neighbour.
    pub topology: Topology,
    /// Which range of elements is whose.
    pub cut: Cut,
}

impl Plan {
    /// The plan of an attempt among these members, at the round after a head.
    pub fn of(manifest: &Manifest, head: &Head, members: &[PeerId]) -> Self {
        Self {
            topology: head.pace.topology,
            cut: Cut::of(manifest, head, members),
        }
    }

    fn kept(&self) -> Option<&Kept> {
        self.cut.kept.as_deref()
    }

    /// How what is sent to all is encoded: sums as their parts are, or what weights change by.
    pub fn finished_codec(&self, codec: Codec) -> Codec {
        self.kept().map_or(codec, |_| codec.of_updates())
    }

    /// Who adds up the contributions to a piece: its owner, or the first that keeps its part.
    pub fn sums(&self, (chunk, piece): (usize, usize)) -> usize {
        self.kept().map_or(chunk, |kept| kept.chain(chunk, piece)[0])
    }

    /// Whom the finished sum of a piece comes from and whom it goes to at a member that keeps its part.
    pub fn passes(&self, (chunk, piece): (usize, usize), member: usize) -> Option<Passes> {
        let kept = self.kept()?;
        kept.part(chunk, piece)?;
        let chain = kept.chain(chunk, piece);
        let at = chain.iter().position(|keeper| *keeper == member)?;
        Some(Passes {
            from: at.checked_sub(1).map(|before| chain[before]),
            to: chain.get(at + 1).copied(),
        })
    }

    /// Whether a member makes what is finished of a piece itself: all that keep its part hold the sum, so the last of them lets
    /// the others know that it has let the update out, and sends them none.
    pub fn makes(&self, (chunk, piece): (usize, usize), member: usize) -> bool {
        self.kept().is_some_and(|kept| kept.makes(chunk, piece, member))
    }

    /// The members whose sums of a piece come to a member, in the order in which it adds them.
    pub fn inputs(&self, place: (usize, usize), member: usize) -> impl Iterator<Item = usize> + use<> {
        let sums = self.sums(place);
        let first = self.after(sums);
        match self.topology {
            Topology::Ring if member == first => self.run_of(first, 0),
            Topology::Ring => self.run_of(self.before(member), 1),
            Topology::Direct if member == sums => self.run_of(first, self.cut.members - 1),
            Topology::Direct => self.run_of(first, 0),
        }
    }

    /// Whom a member's sum of a piece goes to; nobody, if it is who adds it up.
    pub fn partial_to(&self, place: (usize, usize), member: usize) -> Option<usize> {
        let sums = self.sums(place);
        (member != sums).then(|| match self.topology {
            Topology::Ring => self.after(member),
            Topology::Direct => sums,
        })
    }

    /// How many members' values are in a member's sum of a piece.
    pub fn contributions(&self, place: (usize, usize), member: usize) -> usize {
        let (n, sums) = (self.cut.members, self.sums(place));
        match self.topology {
            Topology::Ring => (member + n - self.after(sums)) % n + 1,
            Topology::Direct if member == sums => n,
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
        let plan = self.clone();
        let all = self.cut.members;
        let most = (0..all).map(|c| self.cut.pieces(c)).max().unwrap_or(0);
        let places = move |p| {
            let chunks = plan.run_of(plan.after(member), all).map(move |c| (c, p));
            let begins = |place: &(usize, usize)| {
                place.1 < plan.cut.pieces(place.0) && plan.inputs(*place, member).next().is_none()
            };
            chunks.filter(begins).collect::<Vec<_>>()
        };
        (0..most).flat_map(places)
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
