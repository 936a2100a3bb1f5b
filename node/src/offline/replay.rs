//! A run once more, in one process and without a network: each round's contributions one after the other, summed in
//! the order of the run's plan, applied as members apply them. What comes out must have the digests that the members recorded.
//!
//! It must not know how members agree or how pieces travel.

use annulus_core::check::RecordError;
use annulus_core::collective::{Assembly, Plan};
use annulus_core::config::Manifest;
use annulus_core::feedback::compensate;
use annulus_core::id::{Digest, PeerId};
use annulus_core::ledger::{Founder, Head, Record};
use annulus_core::local::{LocalOptimizer, LocalRound};
use annulus_core::signature::Scheme;
use annulus_core::state::{self, State};
use std::collections::BTreeMap;
use std::ops::Range;

/// Why a round could not be recomputed. The replay stands where it stood before the round.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError<E> {
    /// The record does not follow from the ledger so far.
    #[error("the ledger cannot be replayed: {0}")]
    Record(RecordError),
    /// A contribution could not be made.
    #[error("a contribution could not be recomputed: {0}")]
    Contribution(E),
    /// A contribution was computed from what the ledger does not have.
    #[error("{0} has computed from what it knew before this ledger begins")]
    Ahead(PeerId),
    /// A member has said that its moments of a part are others than those that follow.
    #[error("{peer} has had other moments of part {part} than follow from the ledger")]
    Moments {
        /// Who.
        peer: PeerId,
        /// Of which part.
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

/// What a member has made its contribution of.
pub struct Asked<'a> {
    /// The parameters.
    pub params: &'a [f32],
    /// The stream positions of the samples that it counted.
    pub positions: Vec<Range<u64>>,
    /// How it stepped, part after part of its share, and its optimizer, where it did not only sum gradients. What comes of the
    /// last is the contribution.
    pub local: Option<(Vec<LocalRound>, &'a mut LocalOptimizer)>,
}

/// A run that is being recomputed.
#[derive(Clone)]
pub struct Replay {
    manifest: Manifest,
    head: Head,
    state: State,
    /// The parameters before the last round, where members compute ahead.
    previous: Option<Vec<f32>>,
    /// The local optimizers that go on.
    moments: BTreeMap<PeerId, LocalOptimizer>,
    /// What rounding has taken from each member's sums in the last round that changed the state, in runs with feedback.
    errors: BTreeMap<PeerId, Vec<f32>>,
}

impl Replay {
    /// Starts from a head and its state. Its members are taken to have nothing of their own yet, as at the beginning.
    pub fn new(manifest: Manifest, head: Head, mut state: State) -> Self {
        // Those that somebody keeps are among them, or the ledger does not begin at the beginning.
        let anew = head.untrained.without(&state.kept.set());
        state.kept.begin(&manifest, &anew);
        Self {
            moments: BTreeMap::new(),
            manifest,
            head,
            state,
            previous: None,
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
    /// `contribute` returns the contribution of a member. It is not called for members that counted nothing.
    pub fn round<E>(
        &mut self,
        record: &Record,
        mut contribute: impl FnMut(Asked<'_>) -> Result<Vec<f32>, E>,
    ) -> Result<Digest, ReplayError<E>> {
        self.head
            .check(record, &self.manifest, Scheme::Ed25519)
            .map_err(ReplayError::Record)?;
        // Who has no part in a round is no member any more, and what it carried on is lost. A member's own word says when it
        // begins at zero otherwise.
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
        if self.manifest.overlap && self.manifest.local.is_none() {
            self.previous
                .get_or_insert_default()
                .clone_from(&self.state.params);
        }
        if self.manifest.copies.is_some() {
            return self.kept_round(record, sums, errors);
        }
        let step = |sums| state::plan(&self.manifest, &self.head, record, sums);
        if let Some((sums, step)) = sums.as_ref().and_then(|sums| Some((sums, step(sums)?))) {
            self.state.apply_round(&self.manifest, &step, sums, 0..len);
            self.errors = authors().zip(errors.into_iter().flatten()).collect();
        }
        self.head.apply(record, &self.manifest);
        Ok(self.state.digest())
    }

    /// Applies a round where members keep parts of the moments: here all are kept, and what headers say of theirs is compared.
    fn kept_round<E>(
        &mut self,
        record: &Record,
        sums: Option<Assembly>,
        errors: Option<Vec<Vec<f32>>>,
    ) -> Result<Digest, ReplayError<E>> {
        // Where a device rounds otherwise the weights tell of it.
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
            let (mut params, mut parts) = (&self.state.params, None);
            match (cut, header.ahead) {
                (None, false) => {}
                (None, true) => params = self.previous.as_ref().ok_or_else(unknown)?,
                (Some(cut), false) => parts = Some(vec![LocalRound::whole(cut, fresh)]),
                (Some(cut), true) => {
                    let lead = LocalRound::lead(cut).filter(|_| !fresh).ok_or_else(unknown)?;
                    parts = Some(vec![lead, LocalRound::rest(cut)]);
                }
            }
            let new = || LocalOptimizer::new(&self.manifest);
            let asked = Asked {
                params,
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

/// The first `weight` positions of a share: those that are in its contribution.
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
mod tests {
    use super::*;
    use crate::testing::{self, record};
    use annulus_core::Topology;
    use annulus_core::codec::Codec;
    use annulus_core::collective::{Run, Sends};
    use annulus_core::config::Layout;
    use annulus_core::id::{Contact, PeerId};
    use annulus_core::ledger::{Header, Member, Trials};
    use annulus_core::optim::Optimizer;
    use std::collections::VecDeque;
    use std::convert::Infallible;

    fn manifest(len: usize, piece: u32, codec: Codec, topology: Topology) -> Manifest {
        Manifest {
            samples: 100.try_into().unwrap(),
            target: 300.try_into().unwrap(),
            batch: 30.try_into().unwrap(),
            optimizer: Optimizer::parse("adam").expect("its name"),
            clip: Some(1.0),
            codec,
            topology: Some(topology),
            piece: piece.try_into().unwrap(),
            ..Manifest::new(Layout::flat(len))
        }
    }

    fn member(n: usize) -> Member {
        Member {
            peer: testing::peer(n as u8 + 1),
            admission: testing::member(n as u8 + 1).admission,
            speed: 1000 + n as u64,
            contact: Contact::default(),
            trials: Trials::default(),
            keeper: Default::default(),
        }
    }

    fn headers(head: &Head, manifest: &Manifest, digest: Digest) -> Vec<Header> {
        let allotment = head.allot(manifest);
        let header = |(i, member): (usize, &Member)| Header {
            peer: member.peer,
            weight: allotment.len(i) as u32,
            loss: 1.0,
            speed: member.speed,
            compute_us: 1,
            exchange_us: 0,
            digest,
            ready: Vec::new(),
            ahead: false,
            anew: false,
            revoked: Vec::new(),
            leaving: false,
            keeps: Default::default(),
        };
        head.members.iter().enumerate().map(header).collect()
    }

    /// Any function of parameters and positions whose sums depend on their order.
    fn contribute(asked: Asked<'_>) -> Result<Vec<f32>, Infallible> {
        let Asked {
            params, positions, ..
        } = asked;
        let of = |i: usize, p: u64| ((p * 7 + i as u64 * 13) % 101) as f32 * 0.037 - 1.7;
        let sum = |(i, x): (usize, &f32)| {
            positions
                .iter()
                .cloned()
                .flatten()
                .map(|p| of(i, p) * (1.0 + x))
                .sum()
        };
        Ok(params.iter().enumerate().map(sum).collect())
    }

    fn asked(params: &[f32], positions: Vec<Range<u64>>) -> Asked<'_> {
        Asked {
            params,
            positions,
            local: None,
        }
    }

    /// The protocol's own reduce, one object per member, messages delivered in order. For each, its sums and its errors.
    fn reduced(
        manifest: &Manifest,
        head: &Head,
        record: &Record,
        contributions: &[Vec<f32>],
    ) -> Vec<(Assembly, Option<Vec<f32>>)> {
        let (n, attempt) = (contributions.len(), head.attempt_of(record));
        let members: Vec<PeerId> = record.headers.iter().map(|h| h.peer).collect();
        let plan = Plan::of(manifest, head, &members);
        let new = |me| {
            let run = Run::new(
                attempt,
                members.clone(),
                me,
                plan.clone(),
                manifest.codec,
                testing::key(me as u8 + 1),
            );
            match manifest.feedback() {
                true => run.with_errors(),
                false => run,
            }
        };
        let mut all: Vec<Run> = (0..n).map(new).collect();
        let mut queue = VecDeque::new();
        for me in 0..n {
            let mut out = Sends::default();
            all[me]
                .start(&contributions[me], record.headers[me].clone(), &mut out)
                .unwrap();
            queue.extend(out.to.into_iter().map(|(to, m)| (members[me], to, m)));
        }
        while let Some((from, to, message)) = queue.pop_front() {
            let me = members.iter().position(|m| *m == to).unwrap();
            let mut out = Sends::default();
            all[me]
                .accept(from, Some(&contributions[me]), message, &mut out)
                .unwrap();
            queue.extend(out.to.into_iter().map(|(next, m)| (to, next, m)));
        }
        assert!(all.iter().all(Run::is_complete));
        all.into_iter()
            .map(|mut run| (run.take_gathered(), run.take_errors()))
            .collect()
    }

    #[test]
    fn a_replay_gives_the_bits_that_members_get() {
        let codecs = Codec::ALL.into_iter();
        for (codec, topology) in codecs.flat_map(|codec| Topology::ALL.map(|topology| (codec, topology))) {
            for n in 1..=5 {
                for (len, piece) in [(1, 1), (7, 3), (37, 5), (64, 8), (100, 1000)] {
                    let manifest = manifest(len, piece, codec, topology);
                    let mut head = Head::genesis(&manifest, member(0));
                    head.members = (0..n).map(member).collect();
                    let params = (0..len).map(|i| i as f32 * 0.01 - 0.2).collect();
                    let mut state = State::new(params, &manifest);
                    let mut replay = Replay::new(manifest.clone(), head.clone(), state.clone());
                    let mut errors = vec![Vec::new(); n];
                    for _ in 0..4 {
                        let record = record(&head, 0, headers(&head, &manifest, state.digest()));
                        let allotment = head.allot(&manifest);
                        let made = (0..n).map(|i| {
                            let mut values = contribute(asked(&state.params, allotment.ranges(i))).unwrap();
                            compensate(&mut values, &errors[i]);
                            values
                        });
                        let sums = reduced(&manifest, &head, &record, &made.collect::<Vec<_>>());
                        errors = vec![Vec::new(); n];
                        for (i, (sums, lost)) in sums.into_iter().enumerate() {
                            errors[i] = lost.unwrap_or_default();
                            let mut next = state.clone();
                            let step = state::plan(&manifest, &head, &record, &sums).unwrap();
                            next.apply_round(&manifest, &step, &sums, 0..len);
                            let mut once = replay.clone();
                            assert_eq!(once.round(&record, contribute).unwrap(), next.digest());
                        }
                        let digest = replay.round(&record, contribute).unwrap();
                        state = replay.state().clone();
                        head.apply(&record, &manifest);
                        assert_eq!((replay.head(), digest), (&head, state.digest()));
                    }
                    assert_eq!(head.steps, 4);
                }
            }
        }
    }

    #[test]
    fn who_begins_anew_is_taken_at_its_word() {
        let manifest = manifest(37, 5, Codec::Int4, Topology::Ring);
        let mut head = Head::genesis(&manifest, member(0));
        head.members = (0..2).map(member).collect();
        let state = State::new(vec![0.1; 37], &manifest);
        let mut replay = Replay::new(manifest.clone(), head, state);
        let said = |replay: &Replay| headers(replay.head(), &manifest, replay.state().digest());
        let first = record(replay.head(), 0, said(&replay));
        replay.round(&first, contribute).unwrap();
        let goes_on = record(replay.head(), 0, said(&replay));
        let mut headers = said(&replay);
        headers[0].anew = true;
        let anew = record(replay.head(), 0, headers);
        let mut bare = replay.clone();
        bare.errors.remove(&member(0).peer);
        let digest = |replay: &Replay, record| replay.clone().round(record, contribute).unwrap();
        assert_ne!(digest(&replay, &goes_on), digest(&bare, &goes_on));
        assert_eq!(digest(&replay, &anew), digest(&bare, &goes_on));
    }

    #[test]
    fn only_counted_samples_are_recomputed() {
        let manifest = manifest(3, 2, Codec::F32, Topology::Ring);
        let mut head = Head::genesis(&manifest, member(0));
        head.members = (0..3).map(member).collect();
        let state = State::new(vec![0.0; 3], &manifest);
        let mut headers = headers(&head, &manifest, state.digest());
        headers[0].weight = 4;
        (headers[1].weight, headers[1].loss) = (0, 0.0);
        headers.pop();
        let record = record(&head, 1, headers);
        let first = head.allot(&manifest).ranges(0)[0].start;
        let mut asked = Vec::new();
        let mut replay = Replay::new(manifest, head, state);
        let digest = replay.round(&record, |share| {
            asked.push(share.positions.clone());
            contribute(share)
        });
        assert!(digest.is_ok());
        assert_eq!(asked.concat(), std::slice::from_ref(&(first..first + 4)));
        assert_eq!(replay.head().samples, 4);
    }

    #[test]
    fn a_round_below_min_peers_changes_no_state() {
        let mut manifest = manifest(3, 2, Codec::F32, Topology::Ring);
        manifest.min_peers = 2.try_into().unwrap();
        let head = Head::genesis(&manifest, member(0));
        let state = State::new(vec![0.5; 3], &manifest);
        let mut headers = headers(&head, &manifest, state.digest());
        (headers[0].weight, headers[0].loss) = (0, 0.0);
        let record = record(&head, 0, headers);
        let mut replay = Replay::new(manifest, head, state.clone());
        assert_eq!(replay.round(&record, contribute).unwrap(), state.digest());
        assert_eq!((replay.head().round, replay.head().samples), (1, 0));
    }

    #[test]
    fn what_cannot_be_replayed_is_an_error_and_changes_nothing() {
        let manifest = manifest(3, 2, Codec::F32, Topology::Ring);
        let head = Head::genesis(&manifest, member(0));
        let state = State::new(vec![0.5; 3], &manifest);
        let record = record(&head, 0, headers(&head, &manifest, state.digest()));
        let mut replay = Replay::new(manifest, head.clone(), state.clone());
        let short = |_: Asked<'_>| Ok::<_, Infallible>(vec![0.0; 2]);
        assert!(matches!(
            replay.round(&record, short),
            Err(ReplayError::Length { expected: 3, got: 2 })
        ));
        assert!(matches!(
            replay.round(&record, |_: Asked<'_>| Err("no data")),
            Err(ReplayError::Contribution("no data"))
        ));
        let skipped = Record {
            round: 2,
            ..record.clone()
        };
        assert!(matches!(
            replay.round(&skipped, contribute),
            Err(ReplayError::Record(_))
        ));
        let mut stranger = record.clone();
        stranger.headers[0].content.peer = member(9).peer;
        assert!(matches!(
            replay.round(&stranger, contribute),
            Err(ReplayError::Record(_))
        ));
        let mut changed = record.clone();
        changed.headers[0].content.loss = 3.0;
        assert!(matches!(
            replay.round(&changed, contribute),
            Err(ReplayError::Record(_))
        ));
        assert_eq!((replay.head(), replay.state()), (&head, &state));
    }
}
