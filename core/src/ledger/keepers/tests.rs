//! The holdings once all members follow the suggestions.

use super::*;
use crate::run::config::Layout;
use crate::sim::stand_ins::spans::{keeping, settle};
use std::num::NonZeroU16;

fn manifest(copies: u16) -> Manifest {
    Manifest {
        copies: NonZeroU16::new(copies),
        ..Manifest::new(Layout::flat(1 << 20))
    }
}

fn member(n: u8, kept: PartSet, manifest: &Manifest) -> Member {
    let keeper = Keeper {
        kept,
        ..Keeper::default()
    };
    keeping(n, keeper, manifest)
}

/// A run into which this many come at a time, until there are at least four.
fn grown(copies: u16, at_once: u8) -> (Manifest, Head) {
    let manifest = manifest(copies);
    let all = Parts::of(&manifest).unwrap().all();
    let mut head = Head::unfounded(&manifest);
    head.untrained = PartSet::default();
    head.members = vec![member(1, all, &manifest)];
    while head.members.len() < 4 {
        for _ in 0..at_once {
            let n = head.members.len() as u8 + 1;
            head.members.push(member(n, PartSet::default(), &manifest));
        }
        settle(&mut head, &manifest);
    }
    (manifest, head)
}

#[test]
fn everybody_keeps_sums_and_lets_out_alike_and_passes_sums_on_to_all() {
    for copies in [2, 3] {
        for at_once in [1, 2, 3, 7] {
            let (manifest, head) = grown(copies, at_once);
            let parts = Parts::of(&manifest).unwrap();
            let members: Vec<PeerId> = head.members.iter().map(|m| m.peer).collect();
            let n = members.len();
            let (mut firsts, mut lasts, mut passes) = (vec![0; n], vec![0; n], vec![vec![0; n]; n]);
            for Chain { members, learners } in head.chains(parts, &members) {
                assert_eq!((members.len(), learners), (usize::from(copies), 0));
                firsts[members[0]] += 1;
                lasts[members[members.len() - 1]] += 1;
                for pair in members.windows(2) {
                    passes[pair[0]][pair[1]] += 1;
                }
            }
            let alike = |counts: &[usize], of: usize| {
                let mean = of as f64 / counts.len() as f64;
                let most = if copies == 2 { mean / 4.0 } else { mean / 2.0 };
                counts
                    .iter()
                    .all(|count| (*count as f64 - mean).abs() < most + 1.0)
            };
            let kept: Vec<usize> = head.members.iter().map(|m| m.keeper.kept.len()).collect();
            let case =
                format!("{copies} copies, {at_once} at once: {kept:?} {firsts:?} {lasts:?} {passes:?}");
            assert!(alike(&kept, parts.count() * usize::from(copies)), "{case}");
            assert!(alike(&firsts, parts.count()), "{case}");
            assert!(alike(&lasts, parts.count()), "{case}");
            let others = passes.iter().enumerate().flat_map(|(a, to)| {
                let others = to.iter().enumerate().filter(move |(b, _)| a != *b);
                others.map(|(_, count)| *count)
            });
            let others: Vec<usize> = others.collect();
            // With more copies there is a choice of chains, and less to gain.
            assert!(copies > 2 || alike(&others, parts.count()), "{case}");
        }
    }
}

#[test]
fn who_learns_a_part_comes_before_its_keepers() {
    let (manifest, mut head) = grown(2, 1);
    let parts = Parts::of(&manifest).unwrap();
    let mut learner = member(9, PartSet::default(), &manifest);
    learner.keeper.learns = [3, 200].into_iter().collect();
    head.members.insert(1, learner);
    let members: Vec<PeerId> = head.members.iter().map(|m| m.peer).collect();
    for (chain, part) in head.chains(parts, &members).iter().zip(0..) {
        let learns = part == 3 || part == 200;
        assert_eq!(
            (chain.members.len(), chain.learners),
            (2 + usize::from(learns), learns.into())
        );
        assert_eq!(chain.members[0] == 1, learns);
    }
}
