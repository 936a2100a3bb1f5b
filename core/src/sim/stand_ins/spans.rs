//! Split runs of members that are only names, and rounds of them in which suggested moves happen.

use crate::base::id::PeerId;
use crate::ledger::keeps::Keeper;
use crate::ledger::spans::all_needed;
use crate::ledger::{Head, Member};
use crate::numeric::codec::Codec;
use crate::run::config::{Layout, Manifest, Topology};
use crate::run::parts::{PartSet, Parts};
use crate::run::room::Room;
use crate::run::split::{Split, Step};
use std::num::{NonZeroU16, NonZeroU32};

/// Four spans of two steps each over 8,000 elements. The last step uses the first step's elements again.
pub(crate) fn manifest(copies: u16, lanes: u16) -> Manifest {
    let step = |i: usize| Step {
        ranges: match i {
            7 => vec![0..500, 7000..8000],
            i => std::iter::once(i * 1000..(i + 1) * 1000).collect(),
        },
        cost: 1,
        boundary: 4,
    };
    Manifest {
        copies: NonZeroU16::new(copies),
        topology: Some(Topology::Direct),
        optimizer: "adam".parse().unwrap(),
        batch: 10.try_into().unwrap(),
        target: 1000.try_into().unwrap(),
        samples: 1000.try_into().unwrap(),
        split: Some(Split {
            steps: (0..8).map(step).collect(),
            spans: vec![NonZeroU16::new(2).unwrap(); 4],
            micro_batch: NonZeroU32::new(2).unwrap(),
            boundary: Codec::F32,
            lanes: lanes.try_into().unwrap(),
        }),
        ..Manifest::new(Layout::flat(8000))
    }
}

pub(crate) fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

/// A member that holds these spans, and has room for no more than one.
pub(crate) fn member(n: u8, spans: &[usize], manifest: &Manifest) -> Member {
    let (split, parts) = (manifest.split.as_ref().unwrap(), Parts::of(manifest).unwrap());
    let kept = spans.iter().map(|span| split.parts(parts, *span));
    let keeper = Keeper {
        kept: kept.fold(PartSet::default(), |all, kept| all.or(&kept)),
        room: Room::of(1),
        ..Keeper::default()
    };
    keeping(n, keeper, manifest)
}

/// A member that keeps these parts.
pub(crate) fn keeping(n: u8, keeper: Keeper, manifest: &Manifest) -> Member {
    Member {
        peer: peer(n),
        admission: crate::access::invitation::Admission::stand_in(peer(n), manifest.root()),
        speed: 1000,
        contact: Default::default(),
        trials: Default::default(),
        keeper,
    }
}

/// A head after some training, with members that hold these spans.
pub(crate) fn head(manifest: &Manifest, members: &[&[usize]]) -> Head {
    let mut head = Head::unfounded(manifest);
    head.untrained = PartSet::default();
    head.members = members
        .iter()
        .zip(1..)
        .map(|(spans, n)| member(n, spans, manifest))
        .collect();
    head
}

/// Commits rounds until nobody has anything to learn or drop, as members do.
pub(crate) fn settle(head: &mut Head, manifest: &Manifest) {
    for round in 0.. {
        assert!(round < 60, "it comes to no end: {:?}", held(head, manifest));
        if next(head, manifest, |_| 1) {
            return;
        }
    }
}

/// Commits a round without computation, with these speeds, in which all follow the suggestions. Whether nobody has
/// anything left to learn or drop.
pub(crate) fn next(head: &mut Head, manifest: &Manifest, speed: impl Fn(usize) -> u64) -> bool {
    let speeds: Vec<u64> = (0..head.members.len()).map(speed).collect();
    let is_done = head.next_as_suggested(manifest, &speeds, false);
    if let (Some(split), Some(parts)) = (head.split(manifest), Parts::of(manifest)) {
        let needs = split.needs(parts);
        let inner = all_needed(&needs, 1..needs.len() - 1);
        for keeper in head.members.iter().map(|m| &m.keeper).filter(|k| k.room.inner) {
            assert!(
                keeper.learns.without(&inner).is_empty(),
                "who takes no ends is to learn one"
            );
        }
    }
    assert_eq!(head.check_itself(manifest), Ok(()));
    is_done
}

/// The spans of each member.
pub(crate) fn held(head: &Head, manifest: &Manifest) -> Vec<Vec<usize>> {
    let (split, parts) = (head.split(manifest).unwrap(), Parts::of(manifest).unwrap());
    let needs = split.needs(parts);
    let of = |m: &Member| {
        (0..needs.len())
            .filter(|span| m.keeper.holds(*span, &needs))
            .collect()
    };
    head.members.iter().map(of).collect()
}

/// Cuts the eight steps into spans of these lengths.
pub(crate) fn cut(manifest: &mut Manifest, steps: &[u16]) {
    let steps = steps.iter().map(|steps| NonZeroU16::new(*steps).unwrap());
    manifest.split.as_mut().unwrap().spans = steps.collect();
}
