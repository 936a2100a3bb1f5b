//! Recomputes rounds of the simulation's model in steps, in various sequences, and compares them with the
//! definition.

use super::*;
use crate::Initial;
use crate::ledger::keeps::Keeper;
use crate::ledger::{Header, Member};
use crate::numeric::optim::{Optimizer, norm_squared};
use crate::run::config::{Layout, Topology};
use crate::run::parts::PartSet;
use crate::run::room::Room;
use crate::run::split::Step;
use crate::sim::steps::{self, compute};
use std::convert::Infallible;
use std::num::{NonZeroU16, NonZeroU32};

/// Three spans of eight steps over 4,000 elements. The last step uses the first one's elements again.
fn manifest(boundary: Codec, clip: Option<f32>) -> Manifest {
    let step = |i: usize| Step {
        ranges: match i {
            7 => vec![0..200, 3500..4000],
            i => std::iter::once(i * 500..(i + 1) * 500).collect(),
        },
        cost: 1,
        // Wider and narrower.
        boundary: 3 + (i as u32 * 5) % 4,
    };
    Manifest {
        copies: NonZeroU16::new(1),
        topology: Some(Topology::Direct),
        optimizer: "adam".parse::<Optimizer>().unwrap(),
        lr: 0.01,
        batch: 7.try_into().unwrap(),
        target: 1000.try_into().unwrap(),
        samples: 1000.try_into().unwrap(),
        clip,
        split: Some(Split {
            steps: (0..8).map(step).collect(),
            spans: [2, 5, 1].map(|n| NonZeroU16::new(n).unwrap()).to_vec(),
            micro_batch: NonZeroU32::new(2).unwrap(),
            boundary,
            lanes: 3.try_into().unwrap(),
        }),
        ..Manifest::new(Layout::flat(4000))
    }
}

/// A run of one peer that holds all, and its next round.
fn round(manifest: &Manifest) -> (Head, Record) {
    let (peer, parts) = (PeerId([1; 32]), Parts::of(manifest).unwrap());
    let mut head = Head::unfounded(manifest);
    head.untrained = PartSet::default();
    head.members = vec![Member {
        peer,
        admission: crate::access::invitation::Admission::stand_in(peer, manifest.root()),
        speed: 1000,
        contact: Default::default(),
        trials: Default::default(),
        keeper: Keeper {
            kept: parts.all(),
            room: Room::of(3),
            ..Keeper::default()
        },
    }];
    let header = Header {
        weight: 7,
        loss: 1.0,
        ..Header::stand_in(peer)
    };
    let record = Record::signed_by_stand_ins(&head, vec![header]);
    (head, record)
}

/// All in memory.
struct Bench<'a> {
    manifest: &'a Manifest,
    parts: Moments,
    others: Vec<f32>,
    /// The weights that the device was given last, and the most that it ever had.
    weights: Vec<f32>,
    most: usize,
}

impl<'a> Bench<'a> {
    fn new(manifest: &'a Manifest) -> Self {
        let value = |at: usize| (at as f32 * 0.7).sin() * 0.3;
        let mut parts = Moments::default();
        parts.initial = Some(Initial::new(move |ranges| {
            let of_range = |range: &Range<usize>| range.clone().map(value).collect();
            ranges.iter().map(of_range).collect()
        }));
        parts.begin(manifest, &Parts::of(manifest).unwrap().all());
        Self {
            manifest,
            parts,
            others: Vec::new(),
            weights: Vec::new(),
            most: 0,
        }
    }
}

impl Workshop for Bench<'_> {
    type Error = Infallible;

    fn pass(&mut self, steps: Range<usize>, mut pass: Pass) -> Result<SpanDone, Infallible> {
        if let Some(weights) = pass.weights.take() {
            self.most = self.most.max(weights.len());
            self.weights = weights;
        }
        let split = self.manifest.split.as_ref().unwrap();
        Ok(compute(split, steps, &pass, &self.weights))
    }

    fn weights(&mut self, range: Range<usize>) -> Result<Vec<f32>, Infallible> {
        Ok(self.parts.weights(self.manifest, range))
    }

    fn part(&mut self, part: u16) -> Result<Moments, Infallible> {
        let mut one = self.parts.clone();
        one.retain(&PartSet::from_iter([part]));
        Ok(one)
    }

    fn put_part(&mut self, part: u16, stepped: Moments) -> Result<(), Infallible> {
        self.parts.insert(part, stepped.slots(part).unwrap().to_vec());
        Ok(())
    }

    fn take_up(&mut self, place: Range<usize>) -> Result<Vec<f32>, Infallible> {
        Ok(self.others[place].to_vec())
    }

    fn lay_down(&mut self, place: usize, values: &[f32]) -> Result<(), Infallible> {
        let end = place + values.len();
        self.others.resize(self.others.len().max(end), f32::NAN);
        self.others[place..end].copy_from_slice(values);
        Ok(())
    }
}

/// The state after the round as members make it, from the sums by definition.
fn expected(manifest: &Manifest, head: &Head, record: &Record) -> Moments {
    let parts = Parts::of(manifest).unwrap();
    let mut kept = Bench::new(manifest).parts;
    let sums = steps::sums(head, manifest, &kept.weights(manifest, 0..4000));
    let cut = Cut::of(manifest, head, &[record.headers[0].peer]);
    let pieces = |part| cut.kept.as_ref().unwrap().of_part(part);
    let squares = |part| {
        pieces(part)
            .map(|(range, _)| norm_squared(&sums[range.clone()]))
            .sum::<f64>()
    };
    let squared = parts.iter().map(squares).sum();
    let step = plan_by(manifest, head, record, || squared).unwrap();
    for part in parts.iter() {
        kept.step_part(manifest, &step, part, &sums[parts.range(part).unwrap()]);
    }
    kept
}

#[test]
fn whatever_the_runs_of_steps_the_bits_are_those_of_the_definition() {
    let cuts: [&[usize]; 4] = [
        &[2, 7, 8],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[2, 4, 7, 8],
        &[1, 2, 6, 7, 8],
    ];
    for boundary in [Codec::F32, Codec::F16, Codec::Int8] {
        for clip in [None, Some(0.01)] {
            let manifest = manifest(boundary, clip);
            let (head, record) = round(&manifest);
            let expected = expected(&manifest, &head, &record);
            assert_ne!(expected, Bench::new(&manifest).parts);
            for ends in cuts {
                let mut bench = Bench::new(&manifest);
                let mut start = 0;
                let run = |end: &usize| std::mem::replace(&mut start, *end)..*end;
                let runs: Vec<Range<usize>> = ends.iter().map(run).collect();
                assert!(recompute((&manifest, &head, &record), &runs, &mut bench).unwrap());
                assert_eq!(bench.parts, expected, "{boundary} {clip:?} {ends:?}");
                let split = manifest.split.as_ref().unwrap();
                let of_run = |run: &Range<usize>| split.used_by(run.clone()).iter().map(Range::len).sum();
                assert_eq!(Some(bench.most), runs.iter().map(of_run).max());
            }
        }
    }
}

#[test]
fn a_round_without_samples_changes_nothing() {
    let manifest = manifest(Codec::F32, None);
    let (head, record) = round(&manifest);
    let header = Header::stand_in(record.headers[0].peer);
    let record = Record::signed_by_stand_ins(&head, vec![header]);
    let mut bench = Bench::new(&manifest);
    let runs = [0..2, 2..7, 7..8];
    assert!(!recompute((&manifest, &head, &record), &runs, &mut bench).unwrap());
    assert_eq!(bench.parts, Bench::new(&manifest).parts);
}
