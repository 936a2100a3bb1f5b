//! A long vector is applied part by part, with ticks; the state is the same as if it had been applied at once.

use annulus_core::optim::Moments;
use annulus_core::{
    Contact, Digest, Event, Input, Layout, Manifest, Output, Peer, PeerId, Settings, State, Time,
};
use std::sync::Arc;
use std::time::Duration;

/// Not a power of two, and longer than several parts.
const ELEMENTS: usize = (5 << 19) + 77;

fn manifest(moments: Moments) -> Manifest {
    Manifest {
        moments,
        samples: 100.try_into().unwrap(),
        target: 1_000_000.try_into().unwrap(),
        batch: 8.try_into().unwrap(),
        optimizer: "adam".parse().unwrap(),
        piece: 1024.try_into().unwrap(),
        ..Manifest::new(Layout::flat(ELEMENTS))
    }
}

fn params() -> Vec<f32> {
    (0..ELEMENTS).map(|i| (i % 1009) as f32 / 1009.0).collect()
}

fn gradient() -> Vec<f32> {
    (0..ELEMENTS).map(|i| (i % 997) as f32 - 498.0).collect()
}

/// A lone founder that has just given its contribution.
fn contributed(moments: Moments) -> Peer {
    let manifest = Arc::new(manifest(moments));
    let settings = Settings::stand_in(PeerId([1; 32]), Contact::default(), &manifest);
    let state = State::new(params(), &manifest);
    let mut peer = Peer::found(manifest, settings, state, Time(0));
    assert!(matches!(peer.poll(), Some(Output::Compute { round: 1, .. })));
    let contribution = Input::Contribution {
        round: 1,
        gradient: gradient(),
        weight: 8,
        loss: 1.0,
        compute: Duration::from_millis(1),
        late: false,
    };
    peer.handle(contribution, Time(10));
    peer
}

fn digest_committed(peer: &mut Peer) -> Option<Digest> {
    std::iter::from_fn(|| peer.poll()).find_map(|output| match output {
        Output::Event(Event::Committed(commit)) => Some(commit.digest),
        _ => None,
    })
}

#[test]
fn part_by_part_comes_to_the_same_as_at_once() {
    Moments::ALL.into_iter().for_each(comes_to_the_same);
}

fn comes_to_the_same(moments: Moments) {
    let manifest = manifest(moments);
    let mut expected = State::new(params(), &manifest);
    let step = manifest.optimizer.step(0.01, 1, 1.0 / 8.0);
    expected.apply(&manifest, &step, 0..ELEMENTS, &gradient());

    let mut peer = contributed(moments);
    let mut ticks = 0;
    while peer.is_applying() {
        assert_eq!(digest_committed(&mut peer), None);
        assert_eq!(peer.wake_at(), Some(Time(10 + ticks)));
        ticks += 1;
        peer.handle(Input::Tick, Time(10 + ticks));
    }
    assert!(ticks >= 10, "{ticks} turns");
    assert_eq!(digest_committed(&mut peer), Some(expected.digest()));
    assert!(*peer.state() == expected);
}

#[test]
fn any_other_input_finds_the_round_committed() {
    let mut peer = contributed(Moments::F32);
    peer.handle(Input::Tick, Time(11));
    assert!(peer.is_applying());
    peer.handle(Input::Leave, Time(12));
    assert!(!peer.is_applying());
    assert_eq!(digest_committed(&mut peer), Some(peer.state().digest()));
    assert_eq!(peer.head().round, 1);
}

#[test]
fn a_long_stop_in_between_changes_nothing() {
    let mut peer = contributed(Moments::F32);
    let hour = 3600 * 1_000_000;
    for at in 0..100 {
        peer.handle(Input::Tick, Time(hour + at));
    }
    assert_eq!(digest_committed(&mut peer), Some(peer.state().digest()));
    assert!(peer.is_member());
}
