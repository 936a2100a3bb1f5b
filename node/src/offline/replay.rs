//! A run once more, in one process and without a network: each round's contributions one after the other, summed in
//! the order of the run's plan, applied as members apply them. What comes out must have the digests that the members recorded.
//!
//! It must not know how members agree or how pieces travel.

use annulus_core::check::RecordError;
use annulus_core::collective::{Assembly, Plan};
use annulus_core::config::Manifest;
use annulus_core::id::Digest;
use annulus_core::ledger::{Founder, Head, Record};
use annulus_core::signature::Scheme;
use annulus_core::state::{self, State};
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
    /// A contribution is not as long as the parameters.
    #[error("a recomputed contribution has {got} elements instead of {expected}: is this the run's model?")]
    Length {
        /// Elements that it should have.
        expected: usize,
        /// Elements that it has.
        got: usize,
    },
}

/// A run that is being recomputed.
pub struct Replay {
    manifest: Manifest,
    head: Head,
    state: State,
}

impl Replay {
    /// Starts from a head and its state.
    pub fn new(manifest: Manifest, head: Head, state: State) -> Self {
        Self {
            manifest,
            head,
            state,
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
    }

    /// Recomputes a round and returns the digest of the state after it.
    ///
    /// `contribute` is given the parameters and the stream positions of the samples that a member counted, and returns
    /// the sum of their gradients. It is not called for members that counted none.
    pub fn round<E>(
        &mut self,
        record: &Record,
        mut contribute: impl FnMut(&[f32], &[Range<u64>]) -> Result<Vec<f32>, E>,
    ) -> Result<Digest, ReplayError<E>> {
        self.head
            .check(record, &self.manifest, Scheme::Ed25519)
            .map_err(ReplayError::Record)?;
        if record.weight() > 0 {
            let contributions = self.contributions(record, &mut contribute)?;
            let plan = Plan::of(&self.manifest, contributions.len());
            let sums = Assembly::serial(plan, self.manifest.codec, &contributions);
            if let Some(step) = state::plan(&self.manifest, self.head.steps, record, &sums) {
                let all = 0..self.manifest.layout.len;
                self.state.apply_round(&self.manifest, &step, &sums, all);
            }
        }
        self.head.apply(record, &self.manifest);
        Ok(self.state.digest())
    }

    fn contributions<E>(
        &self,
        record: &Record,
        contribute: &mut impl FnMut(&[f32], &[Range<u64>]) -> Result<Vec<f32>, E>,
    ) -> Result<Vec<Vec<f32>>, ReplayError<E>> {
        let expected = self.manifest.layout.len;
        let allotment = self.head.allot(&self.manifest);
        let mut contributions = Vec::with_capacity(record.headers.len());
        for header in &record.headers {
            if header.weight == 0 {
                contributions.push(vec![0.0; expected]);
                continue;
            }
            let member = self.head.position(header.peer).expect("the record follows");
            let positions = front(allotment.ranges(member), u64::from(header.weight));
            let sum = contribute(&self.state.params, &positions).map_err(ReplayError::Contribution)?;
            if sum.len() != expected {
                return Err(ReplayError::Length {
                    expected,
                    got: sum.len(),
                });
            }
            contributions.push(sum);
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
    use annulus_core::signature::Attempt;
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
            topology,
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
            digest,
            ready: Vec::new(),
            revoked: Vec::new(),
            leaving: false,
        };
        head.members.iter().enumerate().map(header).collect()
    }

    /// Any function of parameters and positions whose sums depend on their order.
    fn contribute(params: &[f32], positions: &[Range<u64>]) -> Result<Vec<f32>, Infallible> {
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

    /// The protocol's own reduce, one object per member, messages delivered in order.
    fn reduced(
        manifest: &Manifest,
        attempt: Attempt,
        record: &Record,
        contributions: &[Vec<f32>],
    ) -> Vec<Assembly> {
        let n = contributions.len();
        let members: Vec<PeerId> = record.headers.iter().map(|h| h.peer).collect();
        let plan = Plan::of(manifest, n);
        let new = |me| {
            Run::new(
                attempt,
                members.clone(),
                me,
                plan,
                manifest.codec,
                Scheme::Ed25519,
            )
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
        all.into_iter().map(|run| run.gathered).collect()
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
                    for _ in 0..4 {
                        let record = record(&head, 0, headers(&head, &manifest, state.digest()));
                        let allotment = head.allot(&manifest);
                        let made = (0..n).map(|i| contribute(&state.params, &allotment.ranges(i)).unwrap());
                        let sums = reduced(
                            &manifest,
                            head.attempt_of(&record),
                            &record,
                            &made.collect::<Vec<_>>(),
                        );
                        for sums in sums {
                            let mut next = state.clone();
                            let step = state::plan(&manifest, head.steps, &record, &sums).unwrap();
                            next.apply_round(&manifest, &step, &sums, 0..len);
                            let mut once = Replay::new(manifest.clone(), head.clone(), state.clone());
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
        let digest = replay.round(&record, |params, positions| {
            asked.push(positions.to_vec());
            contribute(params, positions)
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
        let short = |_: &[f32], _: &[Range<u64>]| Ok::<_, Infallible>(vec![0.0; 2]);
        assert!(matches!(
            replay.round(&record, short),
            Err(ReplayError::Length { expected: 3, got: 2 })
        ));
        assert!(matches!(
            replay.round(&record, |_, _| Err("no data")),
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
