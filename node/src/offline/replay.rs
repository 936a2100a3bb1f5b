//! Replays a run in one process, without a network. It computes each round's contributions one after the other, sums
//! them in the order of the run's plan, and applies the sum as members do. The states must have the digests that
//! members recorded.
//!
//! It does not know how members agree or how pieces travel.

use annulus_core::check::RecordError;
use annulus_core::collective::{Assembly, Plan};
use annulus_core::config::Manifest;
use annulus_core::feedback::compensate;
use annulus_core::id::{Digest, PeerId};
use annulus_core::jobs::InTurn;
use annulus_core::ledger::{Founder, Head, Record};
use annulus_core::local::{LocalOptimizer, LocalRound};
use annulus_core::signature::Scheme;
use annulus_core::state::{self, State};
use std::collections::BTreeMap;
use std::ops::Range;

/// Why a round could not be recomputed. The replay still stands before that round.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError<E> {
    /// The record does not follow from the ledger so far.
    #[error("the ledger cannot be replayed: {0}")]
    Record(RecordError),
    /// A contribution could not be made.
    #[error("a contribution could not be recomputed: {0}")]
    Contribution(E),
    /// A contribution was computed from something that the ledger does not contain.
    #[error("{0} computed from a state that this ledger does not contain")]
    Ahead(PeerId),
    /// A member has reported another digest for the moments of a part than the replay gets.
    #[error("the moments that {peer} reported for part {part} do not follow from the ledger")]
    Moments {
        /// The member.
        peer: PeerId,
        /// The part.
        part: u16,
    },
    /// A contribution is not as long as the parameters.
    #[error("a recomputed contribution has {got} elements instead of {expected}: is this the run's model?")]
    Length {
        /// Elements that it should have.
        expected: usize,
        /// Elements that it has.
        got: usize,
    },
}

/// The inputs of a member's contribution.
pub struct Asked<'a> {
    /// The parameters.
    pub params: &'a [f32],
    /// The stream positions of the samples that it counted.
    pub positions: Vec<Range<u64>>,
    /// In runs with local steps: the parts of its share in order, and its optimizer. The result of the last part is the
    /// contribution.
    pub local: Option<(Vec<LocalRound>, &'a mut LocalOptimizer)>,
}

/// A run that is being recomputed.
#[derive(Clone)]
pub struct Replay {
    manifest: Manifest,
    head: Head,
    state: State,
    /// The local optimizers that survive from round to round.
    moments: BTreeMap<PeerId, LocalOptimizer>,
    /// In runs with feedback: what rounding took from each member's sums in the last round that changed the state.
    errors: BTreeMap<PeerId, Vec<f32>>,
}

impl Replay {
    /// Starts from a head and its state. Its members are assumed to carry nothing over, as at the beginning of a run.
    pub fn new(manifest: Manifest, head: Head, mut state: State) -> Self {
        // If the ledger begins at the beginning, the parts that members keep are among them.
        let anew = head.untrained.without(&state.kept.set());
        state.kept.begin(&manifest, &anew);
        Self {
            moments: BTreeMap::new(),
            manifest,
            head,
            state,
            errors: BTreeMap::new(),
        }
    }

    /// The ledger's end so far.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The state so far.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// One peer went on alone.
    pub fn continued_by(&mut self, founder: Founder) {
        self.head = self.head.clone().continued_by(founder);
        self.moments.clear();
        self.errors.clear();
    }

    /// Recomputes a round and returns the digest of the state after it.
    ///
    /// `contribute` returns a member's contribution. It is not called for members that counted no samples.
    pub fn round<E>(
        &mut self,
        record: &Record,
        mut contribute: impl FnMut(Asked<'_>) -> Result<Vec<f32>, E>,
    ) -> Result<Digest, ReplayError<E>> {
        self.head
            .check(record, &self.manifest, Scheme::Ed25519)
            .map_err(ReplayError::Record)?;
        // A peer without a part in a round is no longer a member, and loses what it carried over. Members that start
        // from zero for another reason say so.
        let authors = || record.headers.iter().map(|header| header.peer);
        let (members, len) = (record.headers.len(), self.manifest.layout.len);
        let goes_on = |peer: &PeerId| record.headers.iter().any(|h| h.peer == *peer && !h.anew);
        self.moments.retain(|peer, _| goes_on(peer));
        self.errors.retain(|peer, _| goes_on(peer));
        let mut errors = self.manifest.feedback().then(|| vec![vec![0.0; len]; members]);
        let sums = match record.weight() {
            0 => None,
            _ => {
                let contributions = self.contributions(record, &mut contribute)?;
                let names: Vec<PeerId> = authors().collect();
                let plan = Plan::of(&self.manifest, &self.head, &names);
                let errors = errors.as_deref_mut();
                Some(Assembly::serial(
                    plan,
                    self.manifest.codec,
                    &contributions,
                    errors,
                ))
            }
        };
        if self.manifest.copies.is_some() {
            return self.kept_round(record, sums, errors);
        }
        let step = |sums| state::plan(&self.manifest, &self.head, record, sums, &InTurn);
        if let Some((sums, step)) = sums.as_ref().and_then(|sums| Some((sums, step(sums)?))) {
            self.state.apply_round(&self.manifest, &step, sums, 0..len);
            self.errors = authors().zip(errors.into_iter().flatten()).collect();
        }
        self.head.apply(record, &self.manifest);
        Ok(self.state.digest())
    }

    /// Applies a round of a run in which members keep parts of the moments. The replay keeps all parts, and compares
    /// them with what headers say.
    fn kept_round<E>(
        &mut self,
        record: &Record,
        sums: Option<Assembly>,
        errors: Option<Vec<Vec<f32>>>,
    ) -> Result<Digest, ReplayError<E>> {
        // If a device rounds differently, the weights already show it.
        let digest = self.state.digest();
        for header in record.headers.iter().filter(|h| h.digest == digest) {
            let keeps = &header.keeps;
            let differs = |part: &u16| keeps.digest(*part) != self.state.kept.digest(*part);
            if let Some(part) = keeps.kept.iter().find(differs) {
                let peer = header.peer;
                return Err(ReplayError::Moments { peer, part });
            }
        }
        let applied =
            sums.is_some_and(|sums| self.state.apply_alone(&self.manifest, &self.head, record, &sums));
        if applied {
            let authors = record.headers.iter().map(|header| header.peer);
            self.errors = authors.zip(errors.into_iter().flatten()).collect();
        }
        let before = self.head.untrained;
        self.head.apply(record, &self.manifest);
        let anew = self.head.untrained.without(&before);
        self.state.kept.begin(&self.manifest, &anew);
        Ok(self.state.digest())
    }

    fn contributions<E>(
        &mut self,
        record: &Record,
        contribute: &mut impl FnMut(Asked<'_>) -> Result<Vec<f32>, E>,
    ) -> Result<Vec<Vec<f32>>, ReplayError<E>> {
        let expected = self.manifest.layout.len;
        let allotment = self.head.allot(&self.manifest);
        let mut contributions = Vec::with_capacity(record.headers.len());
        for header in &record.headers {
            let compensated = |mut values: Vec<f32>| {
                let errors = self.errors.get(&header.peer);
                compensate(&mut values, errors.map_or(&[][..], Vec::as_slice));
                values
            };
            if header.weight == 0 {
                contributions.push(compensated(vec![0.0; expected]));
                continue;
            }
            let member = self.head.position(header.peer).expect("the record follows");
            let positions = front(allotment.ranges(member), u64::from(header.weight));
            let fresh = !self.moments.contains_key(&header.peer);
            let cut = self.head.cut(&allotment, member, &self.manifest);
            let unknown = || ReplayError::Ahead(header.peer);
            let mut parts = None;
            match (cut, header.ahead) {
                (None, false) => {}
                (None, true) => return Err(unknown()),
                (Some(cut), false) => parts = Some(vec![LocalRound::whole(cut, fresh)]),
                (Some(cut), true) => {
                    let lead = LocalRound::lead(cut).filter(|_| !fresh).ok_or_else(unknown)?;
                    parts = Some(vec![lead, LocalRound::rest(cut)]);
                }
            }
            let new = || LocalOptimizer::new(&self.manifest);
            let asked = Asked {
                params: &self.state.params,
                positions,
                local: parts.map(|parts| (parts, self.moments.entry(header.peer).or_insert_with(new))),
            };
            let sum = contribute(asked).map_err(ReplayError::Contribution)?;
            if sum.len() != expected {
                return Err(ReplayError::Length {
                    expected,
                    got: sum.len(),
                });
            }
            contributions.push(compensated(sum));
        }
        Ok(contributions)
    }
}

/// The first `weight` positions of a share: the ones that its contribution counts.
pub fn front(ranges: Vec<Range<u64>>, weight: u64) -> Vec<Range<u64>> {
    let mut left = weight;
    let mut taken = Vec::new();
    for range in ranges {
        let n = left.min(range.end - range.start);
        if n > 0 {
            taken.push(range.start..range.start + n);
        }
        left -= n;
    }
    taken
}

#[cfg(test)]
mod tests;
