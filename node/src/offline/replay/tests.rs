//! Rounds that were made by members, computed once more.

use super::*;
use crate::testing::{self, record};
use annulus_core::Topology;
use annulus_core::codec::Codec;
use annulus_core::collective::{Run, Sends};
use annulus_core::config::Layout;
use annulus_core::id::{Contact, PeerId};
use annulus_core::jobs::InTurn;
use annulus_core::ledger::{Header, Member, Trials};
use annulus_core::optim::Optimizer;
use annulus_core::vector::Vector;
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
        round_us: 0,
        digest,
        ready: Vec::new(),
        ahead: false,
        anew: false,
        revoked: Vec::new(),
        stalled: false,
        late: false,
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
    let contributions: Vec<Vector> = contributions.iter().map(|own| own.clone().into()).collect();
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
                        let step = state::plan(&manifest, &head, &record, &sums, &InTurn).unwrap();
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
