//! The plan of a sum: which member adds which values, and where the results go.
//!
//! In every topology, each chunk has a tree of partial sums that ends at its owner, and a tree of finished pieces
//! from the owner to all others. Every member adds its own values to its inputs: `((first + second) + ...) + own`
//! in the order of [`Plan::inputs`], whatever arrives first. Everything is encoded on the wire. The owner encodes
//! the finished sum once, members forward it verbatim, and the owner too uses the decoded values.
//!
//! **Ring**: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
//! section 3: reduce-scatter, then all-gather. The sum of chunk `c` starts at member `c+1`, passes every member in
//! ring order and is finished by its owner `c`. The finished chunk goes round once more, as far as `c-1`. 2(n-1)
//! one-way delays; two links for each member.
//!
//! Guests stand beside the ring, if there is a full member: each gives its values to one full member, its *host*, and
//! gets finished chunks from it. So no sum passes through a guest's hands, and the host sees its values alone.
//!
//! **Direct**: each member sends its values for a chunk straight to the owner, which adds them up in ring order
//! from `c+1` on and sends the sum straight to all. This is a parameter server spread over all members, without
//! servers beside the workers. Source: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU Clusters"
//! (BytePS, OSDI 2020), section 4. It takes 2 one-way delays; a link between any two. A
//! lossy codec rounds each contribution once and the sum once, where the ring rounds at every hop.
//!
//! If members keep parts of the moments, sums pass a chain of keepers before the update is sent to all: see
//! [`Kept`]. Only the direct plan can do that.
//!
//! In both topologies a member sends and receives 2(n-1)/n of the vector, if there are no guests. That holds with kept parts too, since
//! keepers compute the update from the sum.

use super::Cut;
use super::kept::Kept;
use crate::base::id::PeerId;
use crate::ledger::Head;
use crate::numeric::codec::Codec;
use crate::run::config::{Manifest, Topology};

/// A member's place in a chain of keepers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// The member before it; `None` for the first, which adds up.
    pub from: Option<usize>,
    /// The member after it; `None` for the last, which publishes the update.
    pub to: Option<usize>,
}

/// A topology over a cut. Members are positions in the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The routes.
    pub topology: Topology,
    /// The owners of the ranges.
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

    /// The codec of finished pieces, which are sums or, if parts are kept, updates.
    pub fn finished_codec(&self, codec: Codec) -> Codec {
        self.kept().map_or(codec, |_| codec.of_updates())
    }

    /// The member that adds up the contributions to a piece: its owner, or the first keeper of its part.
    pub fn sums(&self, (chunk, piece): (usize, usize)) -> usize {
        self.kept().map_or(chunk, |kept| kept.chain(chunk, piece)[0])
    }

    /// The neighbours of a member in the chain of a piece, if it keeps the part.
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

    /// Whether a member computes the update of a piece itself. All keepers of the part hold the sum, so the last
    /// only notifies the others that it has published the update.
    pub fn makes(&self, (chunk, piece): (usize, usize), member: usize) -> bool {
        self.kept().is_some_and(|kept| kept.makes(chunk, piece, member))
    }

    /// The members whose sums of a piece go to a member, in the order in which it adds them.
    pub fn inputs(&self, place: (usize, usize), member: usize) -> impl Iterator<Item = usize> + use<> {
        let sums = self.sums(place);
        let inputs: Vec<usize> = match self.topology {
            Topology::Ring if self.is_guest(member) => self.host_of(member, sums).collect(),
            Topology::Ring => {
                let first = self.next(self.last(sums));
                let before = (member != first).then(|| self.previous(member));
                before.into_iter().chain(self.hosted(member, sums)).collect()
            }
            Topology::Direct if member == sums => {
                self.run_of(self.after(sums), self.cut.members - 1).collect()
            }
            Topology::Direct => Vec::new(),
        };
        inputs.into_iter()
    }

    /// The receiver of a member's sum of a piece; `None` for the member that finishes it.
    pub fn partial_to(&self, place: (usize, usize), member: usize) -> Option<usize> {
        let sums = self.sums(place);
        (member != sums).then(|| match self.topology {
            Topology::Ring if self.is_guest(member) => self.host(member),
            Topology::Ring if member == self.last(sums) => sums,
            Topology::Ring => self.next(member),
            Topology::Direct => sums,
        })
    }

    /// How many members' values are in a member's sum of a piece.
    pub fn contributions(&self, place: (usize, usize), member: usize) -> usize {
        let sums = self.sums(place);
        match self.topology {
            _ if member == sums => self.cut.members,
            Topology::Ring if !self.is_guest(member) => {
                let (owners, first) = (self.cut.owners(), self.next(self.last(sums)));
                let number = |member: usize| self.cut.owners_before(member);
                let passed = (number(member) + owners - number(first)) % owners + 1;
                let passed = (0..passed).map(|i| self.cut.owner((number(first) + i) % owners));
                passed.map(|owner| 1 + self.hosted(owner, sums).count()).sum()
            }
            _ => 1,
        }
    }

    /// The member that sends a member the finished pieces of a chunk; `None` for the owner.
    pub fn finished_from(&self, chunk: usize, member: usize) -> Option<usize> {
        (member != chunk).then(|| match self.topology {
            Topology::Ring if self.is_guest(member) => self.host(member),
            Topology::Ring if member == self.last(chunk) => chunk,
            Topology::Ring => self.previous(member),
            Topology::Direct => chunk,
        })
    }

    /// The members to which a member sends the finished pieces of a chunk.
    pub fn finished_to(&self, chunk: usize, member: usize) -> impl Iterator<Item = usize> + use<> {
        let to: Vec<usize> = match self.topology {
            Topology::Ring if self.is_guest(member) => self.host_of(member, chunk).collect(),
            Topology::Ring => {
                let next = Some(self.next(member)).filter(|next| *next != self.last(chunk));
                next.into_iter().chain(self.hosted(member, chunk)).collect()
            }
            Topology::Direct if member == chunk => {
                self.run_of(self.after(member), self.cut.members - 1).collect()
            }
            Topology::Direct => Vec::new(),
        };
        to.into_iter()
    }

    /// Whether owners sign what they finish. They must if each member gets finished chunks from their owners alone,
    /// who could send each something else.
    pub fn is_sealed(&self) -> bool {
        self.topology == Topology::Direct && self.cut.members > 1
    }

    /// Chunk and number of the pieces whose sums begin with a member's values, in sending order: one piece for each
    /// other member in turn, from the next member on, so that no two begin with the same.
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

    /// This many members in ring order.
    fn run_of(&self, first: usize, count: usize) -> impl Iterator<Item = usize> + use<> {
        let n = self.cut.members;
        (first..first + count).map(move |member| member % n)
    }

    fn after(&self, member: usize) -> usize {
        (member + 1) % self.cut.members
    }

    /// Whether a member stands beside the ring.
    fn is_guest(&self, member: usize) -> bool {
        self.cut.guests.binary_search(&member).is_ok()
    }

    /// The full member by which a guest takes part in a ring.
    fn host(&self, guest: usize) -> usize {
        let number = self.cut.guests.partition_point(|other| *other < guest);
        self.cut.owner(number % self.cut.owners())
    }

    /// A guest's host, if the chunk is the guest's.
    fn host_of(&self, guest: usize, chunk: usize) -> impl Iterator<Item = usize> + use<> {
        (guest == chunk).then(|| self.host(guest)).into_iter()
    }

    /// The guests that a full member of a ring is the host of, but for the owner of a chunk.
    fn hosted(&self, member: usize, but: usize) -> impl Iterator<Item = usize> {
        let first = self.cut.owners_before(member);
        let hosted = self.cut.guests.iter().copied().skip(first);
        hosted
            .step_by(self.cut.owners())
            .filter(move |guest| *guest != but)
    }

    /// The full member of a ring at which a chunk's sum has come round: its owner, or that one's host.
    fn last(&self, chunk: usize) -> usize {
        match self.is_guest(chunk) {
            true => self.host(chunk),
            false => chunk,
        }
    }

    /// The full member after another in a ring.
    fn next(&self, member: usize) -> usize {
        self.cut
            .owner((self.cut.owners_before(member) + 1) % self.cut.owners())
    }

    /// The full member before another in a ring.
    fn previous(&self, member: usize) -> usize {
        let owners = self.cut.owners();
        self.cut
            .owner((self.cut.owners_before(member) + owners - 1) % owners)
    }
}
