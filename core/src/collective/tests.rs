//! Tests of the all-reduce: plans against the definition of an all-reduce, runs against the definition of the sums,
//! in any order of arrival.

use super::*;
use crate::access::signature::{Key, Signed};
use crate::base::id::{Digest, PeerId};
use crate::ledger::Header;
use crate::numeric::codec::Codec;
use crate::numeric::vector::Vector;
use crate::run::config::Topology;
use crate::wire::{Leg, Message, ViewKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

mod kept;

const ATTEMPT: crate::access::signature::Attempt = crate::access::signature::Attempt {
    chain: Digest([0; 32]),
    view: ViewKey {
        round: 1,
        attempt: 0,
        id: 7,
    },
};

fn peer(member: usize) -> PeerId {
    PeerId([member as u8; 32])
}

fn place(peer: PeerId) -> usize {
    usize::from(peer.0[0])
}

fn header(member: usize) -> Signed<Header> {
    signed(said(member))
}

fn signed(header: Header) -> Signed<Header> {
    Key::stand_in(header.peer).signed(&ATTEMPT, header)
}

fn said(member: usize) -> Header {
    Header {
        weight: member as u32,
        loss: 0.5,
        ..Header::stand_in(peer(member))
    }
}

fn plan(topology: Topology, members: usize, len: usize, piece: usize) -> Plan {
    plan_in_grains(topology, members, len, (piece, 1))
}

fn plan_in_grains(topology: Topology, members: usize, len: usize, (piece, grain): (usize, usize)) -> Plan {
    let cut = Cut {
        members,
        guests: Vec::new(),
        len,
        piece: piece * grain,
        grain,
        kept: None,
    };
    Plan { topology, cut }
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let topology = prop_oneof![Just(Topology::Ring), Just(Topology::Direct)];
    let grain = prop::sample::select(vec![1usize, 1, 8]);
    (
        topology,
        1usize..20,
        0usize..500,
        1usize..70,
        grain,
        some_guests(),
    )
        .prop_map(|(topology, members, len, piece, grain, guests)| {
            let mut plan = plan_in_grains(topology, members, len, (piece, grain));
            plan.cut.guests = guests_among(members, guests);
            plan
        })
}

/// A bit for each guest, or none.
fn some_guests() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), any::<u32>()]
}

/// Not all members are guests.
fn guests_among(members: usize, bits: u32) -> Vec<usize> {
    let guests: Vec<usize> = (0..members).filter(|member| bits >> member & 1 == 1).collect();
    if guests.len() < members {
        guests
    } else {
        Vec::new()
    }
}

fn any_codec() -> impl Strategy<Value = Codec> {
    prop::sample::select(&Codec::ALL[..])
}

/// Numbers whose sums depend on their order.
fn contributions(plan: &Plan, seed: u64) -> Vec<Vec<f32>> {
    let number = |k: usize| {
        let mut x = seed.wrapping_add(k as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= x >> 29;
        x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((x >> 40) as f32 / (1 << 23) as f32 - 1.0) * f32::powi(2.0, (x % 24) as i32 - 12)
    };
    let vector = |member| {
        (0..plan.cut.len)
            .map(|i| number(member * plan.cut.len + i))
            .collect()
    };
    (0..plan.cut.members).map(vector).collect()
}

/// All members of an attempt, and the frames under way between any two.
struct Attempt {
    runs: Vec<Run>,
    own: Vec<Vector>,
    links: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// All frames that were sent: sender, receiver and frame.
    sent: Vec<(usize, usize, Message)>,
}

impl Attempt {
    fn new(plan: Plan, codec: Codec, own: Vec<Vec<f32>>) -> Self {
        let members: Vec<PeerId> = (0..plan.cut.members).map(peer).collect();
        let run = |me| {
            Run::new(
                ATTEMPT,
                members.clone(),
                me,
                plan.clone(),
                codec,
                Key::stand_in(peer(me)),
            )
        };
        Self {
            runs: (0..plan.cut.members).map(run).collect(),
            own: own.into_iter().map(Vector::from).collect(),
            links: BTreeMap::new(),
            sent: Vec::new(),
        }
    }

    fn start(&mut self, member: usize) {
        let mut out = Sends::default();
        self.runs[member]
            .start(&self.own[member], header(member), &mut out)
            .unwrap();
        self.send(member, out);
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let frame = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let mut out = Sends::default();
        self.runs[to]
            .accept(peer(from), Some(&self.own[to]), frame.unwrap(), &mut out)
            .unwrap();
        self.send(to, out);
    }

    fn send(&mut self, from: usize, out: Sends) {
        for (to, message) in out.to {
            let to = place(to);
            self.sent.push((from, to, message.clone()));
            self.links.entry((from, to)).or_default().push_back(message);
        }
    }

    /// Starts all members that have not started, and delivers frames in an order that a seed gives. Each link keeps
    /// its own order.
    fn run(&mut self, mut seed: u64) {
        let mut idle: Vec<usize> = (0..self.runs.len())
            .filter(|m| !self.runs[*m].is_started())
            .collect();
        loop {
            let busy = self.links.iter().filter(|(_, frames)| !frames.is_empty());
            let busy: Vec<(usize, usize)> = busy.map(|(link, _)| *link).collect();
            if idle.is_empty() && busy.is_empty() {
                return;
            }
            seed = seed.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(1);
            let choice = (seed >> 33) as usize % (idle.len() + busy.len());
            match choice.checked_sub(idle.len()) {
                None => {
                    let member = idle.swap_remove(choice);
                    self.start(member);
                }
                Some(link) => self.deliver(busy[link].0, busy[link].1),
            }
        }
    }
}

fn decoded(sums: &Assembly) -> Vec<u32> {
    let mut all = Vec::new();
    sums.decode(0..sums.cut().len, |_, values| {
        all.extend(values.iter().map(|x| x.to_bits()))
    });
    all
}

proptest! {
    #[test]
    fn pieces_tile_the_vector(
        members in 1usize..20,
        len in 0usize..500,
        pieces in 1usize..70,
        grain in prop::sample::select(vec![1usize, 8]),
        guests in some_guests(),
    ) {
        let piece = pieces * grain;
        let cut = Cut { members, guests: guests_among(members, guests), len, piece, grain, kept: None };
        let mut end = 0;
        for chunk in 0..members {
            for p in 0..cut.pieces(chunk) {
                let range = cut.range(chunk, p).unwrap();
                prop_assert_eq!(range.start, end);
                prop_assert!(range.clone().all(|element| cut.piece_end(element) == range.end));
                prop_assert!(range.len() <= piece);
                prop_assert!(range.start.is_multiple_of(grain) || range.is_empty());
                match cut.guests.contains(&chunk) {
                    true => prop_assert!(range.is_empty() && p == 0),
                    false => prop_assert_eq!(cut.chunk(chunk), super::reference::chunk(&cut, chunk)),
                }
                end = range.end;
            }
            prop_assert!(cut.range(chunk, cut.pieces(chunk)).is_none());
        }
        prop_assert_eq!(end, len);
        prop_assert!(cut.range(members, 0).is_none());
    }

    #[test]
    fn every_contribution_enters_every_sum_once_and_ends_at_the_owner(plan in any_plan()) {
        let n = plan.cut.members;
        for chunk in 0..n {
            let mut left = vec![chunk];
            let mut entered = Vec::new();
            while let Some(member) = left.pop() {
                entered.push(member);
                for input in plan.inputs((chunk, 0), member) {
                    prop_assert_eq!(plan.partial_to((chunk, 0), input), Some(member));
                    left.push(input);
                }
            }
            prop_assert_eq!(plan.partial_to((chunk, 0), chunk), None);
            entered.sort_unstable();
            prop_assert_eq!(entered, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn guests_add_up_and_forward_nothing_but_their_own_headers(plan in any_plan()) {
        let n = plan.cut.members;
        for (chunk, guest) in (0..n).flat_map(|chunk| plan.cut.guests.iter().map(move |guest| (chunk, *guest))) {
            let own = chunk == guest;
            prop_assert!(!own || plan.cut.chunk(chunk).is_empty());
            prop_assert!(own || plan.inputs((chunk, 0), guest).next().is_none());
            prop_assert!(own || plan.finished_to(chunk, guest).next().is_none());
            let to = plan.partial_to((chunk, 0), guest);
            prop_assert!(own || to.is_some_and(|to| to == chunk || !plan.cut.guests.contains(&to)));
        }
        // A member knows how many values are in what comes to it.
        for (chunk, member) in (0..n).flat_map(|chunk| (0..n).map(move |member| (chunk, member))) {
            let inputs = plan.inputs((chunk, 0), member);
            let sum: usize = inputs.map(|input| plan.contributions((chunk, 0), input)).sum();
            prop_assert_eq!(plan.contributions((chunk, 0), member), sum + 1);
        }
    }

    #[test]
    fn every_member_gets_every_finished_chunk_once(plan in any_plan()) {
        let n = plan.cut.members;
        for chunk in 0..n {
            let mut holds = vec![chunk];
            let mut next = 0;
            while let Some(member) = holds.get(next).copied() {
                next += 1;
                for to in plan.finished_to(chunk, member) {
                    prop_assert_eq!(plan.finished_from(chunk, to), Some(member));
                    holds.push(to);
                }
            }
            prop_assert_eq!(plan.finished_from(chunk, chunk), None);
            holds.sort_unstable();
            prop_assert_eq!(holds, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn sums_begin_where_nothing_comes_in(plan in any_plan()) {
        let n = plan.cut.members;
        let mut first = Vec::new();
        for member in 0..n {
            let begun: Vec<(usize, usize)> = plan.begins(member).collect();
            first.extend(begun.first().filter(|_| n > 1).and_then(|place| plan.partial_to(*place, member)));
            let mut sorted = begun.clone();
            sorted.sort_unstable();
            let leaves = (0..n).filter(|c| plan.inputs((*c, 0), member).next().is_none());
            let pieces = |c: usize| (0..plan.cut.pieces(c)).map(move |p| (c, p)).collect::<Vec<_>>();
            let all: Vec<_> = leaves.flat_map(pieces).collect();
            prop_assert_eq!(sorted, all);
        }
        // No two members begin with the same.
        first.sort_unstable();
        prop_assert!(n == 1 || !plan.cut.guests.is_empty() || first == (0..n).collect::<Vec<_>>());
    }

    #[test]
    fn all_end_with_the_sums_of_the_definition_whatever_comes_when(
        plan in any_plan(), codec in any_codec(), seed: u64,
    ) {
        let own = contributions(&plan, seed);
        let slices: Vec<&[f32]> = own.iter().map(Vec::as_slice).collect();
        let (expected, errors) = reference::sums(plan.topology, &plan.cut, codec, &slices);
        let expected: Vec<u32> = expected.iter().map(|x| x.to_bits()).collect();
        prop_assert_eq!(&decoded(&Assembly::serial(plan.clone(), codec, &own, None)), &expected);
        let n = plan.cut.members;
        let mut lost = vec![vec![0.5; plan.cut.len]; n];
        prop_assert_eq!(&decoded(&Assembly::serial(plan.clone(), codec, &own, Some(&mut lost))), &expected);
        prop_assert_eq!(&lost, &errors);
        let mut attempt = Attempt::new(plan.clone(), codec, own);
        if seed % 2 == 0 {
            attempt.runs = attempt.runs.into_iter().map(Run::with_errors).collect();
        }
        attempt.run(seed);
        for (run, errors) in attempt.runs.iter_mut().zip(errors) {
            prop_assert!(run.is_complete());
            prop_assert_eq!(run.take_errors(), (seed % 2 == 0).then_some(errors));
            prop_assert_eq!(decoded(&run.gathered), expected.clone());
            prop_assert_eq!(run.headers(), Some((0..n).map(header).collect()));
            prop_assert_eq!((run.waits(), run.waiting_bytes()), (false, 0));
            prop_assert_eq!(run.seals().is_some(), plan.is_sealed());
        }
        let seals: Vec<_> = attempt.runs.iter().map(Run::seals).collect();
        prop_assert!(seals.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn a_member_sends_and_receives_its_share_of_bytes_and_each_header_once(plan in any_plan(), seed: u64) {
        let n = plan.cut.members;
        let mut attempt = Attempt::new(plan.clone(), Codec::F32, contributions(&plan, seed));
        attempt.run(seed);
        // A member may own one element more than its share of each chunk and, if chunks begin at multiples of a
        // grain, up to that many more.
        let share = plan.cut.len.div_ceil(n) + plan.cut.grain - 1;
        let most = match plan.cut.guests.is_empty() {
            true => 4 * (2 * (n - 1) * share),
            // Full members' lines carry more.
            false => 4 * n * (plan.cut.len + plan.cut.grain),
        };
        let (mut sent, mut came, mut heard) = (vec![0; n], vec![0; n], vec![Vec::new(); n]);
        for (from, to, message) in &attempt.sent {
            let Message::Piece { data, headers, .. } = message else { panic!() };
            sent[*from] += data.len();
            came[*to] += data.len();
            heard[*to].extend(headers.iter().map(|h| place(h.peer)));
        }
        prop_assert!(sent.iter().chain(&came).all(|bytes| *bytes <= most), "{:?} {:?}", sent, came);
        for (member, mut heard) in heard.into_iter().enumerate() {
            heard.sort_unstable();
            prop_assert_eq!(heard, (0..n).filter(|other| *other != member).collect::<Vec<_>>());
        }
    }

    #[test]
    fn without_rounding_on_the_way_both_topologies_give_the_same_bits(
        n in 1usize..12, len in 0usize..200, piece in 1usize..40, seed: u64,
    ) {
        let [ring, direct] = Topology::ALL.map(|topology| {
            let plan = plan(topology, n, len, piece);
            decoded(&Assembly::serial(plan.clone(), Codec::F32, &contributions(&plan, seed), None))
        });
        prop_assert_eq!(ring, direct);
    }
}

/// One-way delays from the common start to the last member's last piece.
fn delays(topology: Topology, n: usize) -> usize {
    let plan = plan(topology, n, 1000, 50);
    let mut attempt = Attempt::new(plan.clone(), Codec::F16, contributions(&plan, 1));
    (0..n).for_each(|member| attempt.start(member));
    let mut delays = 0;
    while attempt.links.values().any(|frames| !frames.is_empty()) {
        delays += 1;
        // Frames that are sent while these arrive take another delay.
        let under_way: Vec<((usize, usize), usize)> = attempt
            .links
            .iter()
            .map(|(link, frames)| (*link, frames.len()))
            .collect();
        for ((from, to), frames) in under_way {
            (0..frames).for_each(|_| attempt.deliver(from, to));
        }
    }
    assert!(attempt.runs.iter().all(Run::is_complete));
    delays
}

#[test]
fn the_ring_takes_two_delays_for_each_other_member_and_direct_takes_two() {
    for n in [2, 3, 4, 7, 64] {
        assert_eq!(delays(Topology::Ring, n), 2 * (n - 1));
        assert_eq!(delays(Topology::Direct, n), 2);
    }
}

#[test]
fn a_lone_member_finishes_its_own_values_where_they_lie() {
    let plan = plan(Topology::Direct, 1, 40, 5);
    let own = Vector::from(contributions(&plan, 3).remove(0));
    let mut run = Run::new(
        ATTEMPT,
        vec![peer(0)],
        0,
        plan,
        Codec::F32,
        Key::stand_in(peer(0)),
    );
    run.start(&own, header(0), &mut Sends::default()).unwrap();
    assert!(run.is_complete());
    let first = run.gathered.get(0, 0).unwrap();
    assert_eq!(first.as_ptr(), own.as_ptr().cast());
    assert!(!own.is_alone(), "a device must not write into it yet");
}

/// A member's run, and the first frame that one of the others sends it.
fn first_frame(topology: Topology, from: usize, to: usize) -> (Run, Vector, Message) {
    let plan = plan(topology, 4, 40, 5);
    let own = contributions(&plan, 3);
    let mut attempt = Attempt::new(plan.clone(), Codec::F16, own.clone());
    (0..4).filter(|m| *m != to).for_each(|m| attempt.start(m));
    let frame = attempt.links[&(from, to)][0].clone();
    (attempt.runs.remove(to), own[to].clone().into(), frame)
}

#[test]
fn who_breaks_the_plan_is_named() {
    for topology in Topology::ALL {
        let accept = |from: usize, change: fn(&mut Message)| {
            let (mut run, own, mut frame) = first_frame(topology, 1, 2);
            change(&mut frame);
            let mut out = Sends::default();
            let mut result = run.accept(peer(from), Some(&own), frame, &mut out);
            if result.is_ok() {
                result = run.start(&own, header(2), &mut out);
            }
            result.map_err(|violation| violation.by)
        };
        assert_eq!(accept(1, |_| {}), Ok(()));
        let by = |member| Err(peer(member));
        // Another member sends it, or a peer that is not a member.
        assert_eq!(accept(3, |_| {}), by(3));
        assert_eq!(accept(9, |_| {}), by(9));
        let broken: [fn(&mut Message); 7] = [
            |m| edit(m, |_, chunk, _, _, _| *chunk = 4),
            |m| edit(m, |_, _, piece, _, _| *piece = 1000),
            // A finished piece of the receiver's own chunk.
            |m| edit(m, |leg, chunk, _, _, _| (*leg, *chunk) = (Leg::Finished, 2)),
            |m| edit(m, |_, _, _, headers, _| headers.push(header(2))),
            |m| edit(m, |_, _, _, headers, _| headers.push(header(9))),
            |m| {
                edit(m, |_, _, _, headers, _| {
                    headers.push(signed(Header {
                        weight: 99,
                        ..said(1)
                    }))
                })
            },
            |m| edit(m, |_, _, _, _, data| *data = data.slice(1..)),
        ];
        for broken in broken {
            assert_eq!(accept(1, broken), by(1));
        }
    }
}

#[test]
fn who_sends_what_can_be_no_sum_is_named_at_once() {
    for (topology, codec) in Topology::ALL.into_iter().flat_map(|t| Codec::ALL.map(|c| (t, c))) {
        let plan = plan(topology, 4, 40, 5);
        let mut attempt = Attempt::new(plan.clone(), codec, contributions(&plan, 3));
        [0, 1, 3].iter().for_each(|member| attempt.start(*member));
        for ((from, _), frames) in attempt.links.iter_mut().filter(|((_, to), _)| *to == 2) {
            for mut frame in std::mem::take(frames) {
                let mut expected = Ok(());
                if *from == 1 {
                    // NaNs and, with integers, a scale that no f32 needs.
                    edit(&mut frame, |_, _, _, _, data| {
                        *data = vec![0xff; data.len()].into()
                    });
                    expected = Err(Violation {
                        by: peer(1),
                        what: Wrong::Plan,
                    });
                }
                let accepted = attempt.runs[2].accept(peer(*from), None, frame, &mut Sends::default());
                assert_eq!(accepted, expected);
            }
        }
    }
}

#[test]
fn who_sends_more_than_can_be_summed_is_named_and_not_who_adds_to_it() {
    for (topology, codec) in Topology::ALL.into_iter().flat_map(|t| Codec::ALL.map(|c| (t, c))) {
        let plan = plan(topology, 4, 40, 5);
        let mut attempt = Attempt::new(plan.clone(), codec, vec![vec![Codec::LARGEST; 40]; 4]);
        [0, 1, 3].iter().for_each(|member| attempt.start(*member));
        for ((from, _), frames) in attempt.links.iter_mut().filter(|((_, to), _)| *to == 2) {
            for mut frame in std::mem::take(frames) {
                let Message::Piece { data, .. } = &mut frame else {
                    panic!()
                };
                // Alone it is still a number that sums can reach; with others it is more than any member can pass
                // on.
                if [1, 3].contains(from) {
                    let elements = (0..).find(|n| codec.encoded_len(*n) == data.len()).unwrap();
                    let mut bytes = Vec::new();
                    codec.encode(&vec![1.9 * f32::powi(2.0, 125); elements], &mut bytes);
                    *data = bytes.into();
                }
                let accepted = attempt.runs[2].accept(peer(*from), None, frame, &mut Sends::default());
                assert_eq!(accepted.is_ok(), *from == 0, "{topology} {codec} {from}");
            }
        }
    }
}

type Fields<'a> = (
    &'a mut Leg,
    &'a mut u16,
    &'a mut u32,
    &'a mut Vec<Signed<Header>>,
    &'a mut bytes::Bytes,
);

fn edit(
    message: &mut Message,
    change: fn(&mut Leg, &mut u16, &mut u32, &mut Vec<Signed<Header>>, &mut bytes::Bytes),
) {
    let Message::Piece {
        leg,
        chunk,
        piece,
        headers,
        data,
        ..
    } = message
    else {
        panic!()
    };
    let (leg, chunk, piece, headers, data): Fields = (leg, chunk, piece, headers, data);
    change(leg, chunk, piece, headers, data);
}

#[test]
fn an_input_that_comes_twice_is_a_violation_and_a_finished_piece_is_not() {
    for topology in Topology::ALL {
        let (mut run, own, frame) = first_frame(topology, 1, 2);
        let mut out = Sends::default();
        assert_eq!(run.accept(peer(1), None, frame.clone(), &mut out), Ok(()));
        let twice = Err(Violation {
            by: peer(1),
            what: Wrong::Plan,
        });
        assert_eq!(run.accept(peer(1), None, frame.clone(), &mut out), twice);
        run.start(&own, header(2), &mut out).unwrap();
        assert_eq!(run.accept(peer(1), Some(&own), frame, &mut out), twice);

        let (mut run, _, mut frame) = first_frame(topology, 1, 2);
        edit(&mut frame, |leg, chunk, _, _, _| {
            (*leg, *chunk) = (Leg::Finished, 1)
        });
        for held in [1, 0] {
            let mut out = Sends::default();
            assert_eq!(run.accept(peer(1), None, frame.clone(), &mut out), Ok(()));
            assert_eq!(out.finished.len(), held);
        }
    }
}

#[test]
fn nothing_is_complete_without_all_headers() {
    for topology in Topology::ALL {
        let plan = plan(topology, 3, 30, 5);
        let own = contributions(&plan, 5);
        let mut attempt = Attempt::new(plan.clone(), Codec::F32, own);
        (0..3).for_each(|member| attempt.start(member));
        // The header of member 1 is lost on all ways.
        for frames in attempt.links.values_mut().flatten() {
            edit(frames, |_, _, _, headers, _| {
                headers.retain(|h| h.peer != peer(1))
            });
        }
        attempt.run(0);
        for (member, run) in attempt.runs.iter().enumerate() {
            assert!(run.gathered.is_complete());
            assert_eq!(
                (run.is_complete(), run.headers().is_some()),
                (member == 1, member == 1)
            );
        }
    }
}

/// Member 2 of four, with all but one of the pieces of member 1's chunk, and the frames that complete it.
fn all_but_one() -> (Run, Vec<Message>) {
    let plan = plan(Topology::Direct, 4, 80, 5);
    let mut attempt = Attempt::new(plan.clone(), Codec::F32, contributions(&plan, 3));
    attempt.run(1);
    let of_chunk = |(from, to, message): &(usize, usize, Message)| {
        let finished = matches!(
            message,
            Message::Piece {
                leg: Leg::Finished,
                chunk: 1,
                ..
            }
        );
        (*from == 1 && *to == 2 && finished).then(|| message.clone())
    };
    let frames: Vec<Message> = attempt.sent.iter().filter_map(of_chunk).collect();
    let mut run = Attempt::new(plan.clone(), Codec::F32, contributions(&plan, 3))
        .runs
        .remove(2);
    for frame in &frames[1..] {
        let taken = run.accept(peer(1), None, frame.clone(), &mut Sends::default());
        assert_eq!(taken, Ok(()));
    }
    (run, frames)
}

fn spoilt(mut frame: Message) -> Message {
    edit(&mut frame, |_, _, _, _, data| {
        let mut other = data.to_vec();
        other[0] ^= 1;
        *data = other.into();
    });
    frame
}

#[test]
fn a_chunk_is_what_its_owner_has_signed_of_all_its_pieces() {
    let forged = Err(Violation {
        by: peer(1),
        what: Wrong::Forged,
    });
    let (mut run, frames) = all_but_one();
    assert!(frames.len() > 2);
    let accept = |run: &mut Run, frame| run.accept(peer(1), None, frame, &mut Sends::default());
    assert_eq!(accept(&mut run, spoilt(frames[0].clone())), forged);
    let (mut run, frames) = all_but_one();
    assert_eq!(accept(&mut run, frames[0].clone()), Ok(()));
    assert!(!run.give_up().iter().any(|(chunk, _)| *chunk == 1), "it is whole");
}

#[test]
fn what_a_commit_left_missing_comes_from_who_told_of_it_and_is_what_the_owners_have_signed() {
    let (mut run, frames) = all_but_one();
    let lacking: Vec<u32> = run
        .give_up()
        .into_iter()
        .filter_map(|(chunk, piece)| (chunk == 1).then_some(piece))
        .collect();
    assert_eq!(lacking.len(), frames.len(), "what came may be of another chunk");
    let teller = peer(3);
    let mut repair = |from, frame| run.accept_repair((from, teller), frame, &mut Sends::default());
    // The owner's pieces may still be under way, and may differ too.
    assert_eq!(repair(peer(1), spoilt(frames[0].clone())), Ok(()));
    for frame in &frames[1..] {
        assert_eq!(repair(teller, frame.clone()), Ok(()));
    }
    let by_teller = Err(Violation {
        by: teller,
        what: Wrong::Forged,
    });
    assert_eq!(repair(teller, spoilt(frames[0].clone())), by_teller);
}
