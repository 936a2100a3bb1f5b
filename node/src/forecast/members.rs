//! Predicts the shortest time of a round of given members, from what they compute, what their lines carry, and delays.
//!
//! If every member has the whole model, this is the longest share and then the exchange. If the model is split, it is a
//! pipeline (1F1B): filling until the first microbatch reaches the busiest member, the computing of that member or the
//! load of its line, and draining; then the exchange of sums.
//!
//! Pure: the head tells who holds and computes what, as in a run.

use annulus_core::ledger::Head;
use annulus_core::parts::Parts;
use annulus_core::route::{Batch, Route};
use annulus_core::split::Split;
use annulus_core::{Manifest, PeerId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Bytes of a number in a sum of gradients of a split model, which is never compressed.
const NUMBER: f64 = 4.0;

/// How long a member needs for one sample, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample {
    /// Forward and backward through the whole model, with nothing computed twice. Spans before the last compute the
    /// forward pass twice.
    Computed(f64),
    /// On a device that only sleeps: each span takes its share of this.
    Acted(f64),
}

impl Sample {
    /// The speed of this machine's processor, from costs of steps that were just measured: microseconds of their
    /// forward passes.
    pub fn measured(split: &Split) -> Self {
        let forward: f64 = split.steps.iter().map(|step| f64::from(step.cost)).sum();
        Self::Computed(3.0 * forward / 1e6)
    }

    /// Seconds of a sample through the whole model, forward and backward once.
    pub fn seconds(self) -> f64 {
        let (Self::Computed(seconds) | Self::Acted(seconds)) = self;
        seconds
    }

    /// Seconds of a span's forward and backward pass, with this share of the model's work.
    fn passes(self, share: f64, is_last: bool) -> [f64; 2] {
        // Backward takes twice as long as forward, and begins with the forward pass.
        match (self, is_last) {
            (_, true) => [0.0, self.seconds() * share],
            (Self::Computed(sample), false) => [sample / 3.0 * share, sample * share],
            (Self::Acted(sample), false) => [sample / 4.0 * share, sample * 0.75 * share],
        }
    }
}

/// The properties of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peer {
    /// How long it needs for a sample.
    pub sample: Sample,
    /// Bytes per second that it can send.
    pub rate: f64,
}

/// The shortest time of a round. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Round {
    /// The whole round.
    pub seconds: f64,
    /// Until the first microbatch reaches the busiest member.
    pub filling: f64,
    /// The member that the round waits for.
    pub busiest: Busiest,
    /// From the end of its work until the last microbatch has gone back.
    pub draining: f64,
    /// The exchange of sums after that.
    pub exchange: f64,
    /// The work of each member.
    #[serde(skip)]
    pub parts: Vec<Part>,
}

/// The member that a round waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Busiest {
    /// Its place among the members.
    pub member: usize,
    /// Its first span.
    pub span: usize,
    /// Whether its line is the bottleneck, and not its computing.
    pub line: bool,
    /// Microbatches of that span that it computes.
    pub microbatches: u32,
    /// The time of all its work.
    pub seconds: f64,
}

/// The work of a member in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// Samples of which it computes something.
    pub samples: u64,
    /// Seconds for which it computes.
    pub computes: f64,
    /// Seconds for which it sends.
    pub sends: f64,
}

impl Round {
    /// The round of a head at rest, whose members are like `peers`.
    ///
    /// # Panics
    ///
    /// If there is not one peer for each member, or the round does not train.
    pub fn of(manifest: &Manifest, head: &Head, peers: &[Peer], round_trip: f64) -> Self {
        assert_eq!(head.members.len(), peers.len(), "a peer for each member");
        match (head.split(manifest), Parts::of(manifest)) {
            (Some(split), Some(parts)) => {
                Pipeline::new(manifest, head, (&split, parts), (peers, round_trip)).round()
            }
            _ => whole(manifest, head, peers, round_trip),
        }
    }
}

/// Every member has the whole model: each sends the pieces that others sum, and the sums that it has made.
fn whole(manifest: &Manifest, head: &Head, peers: &[Peer], round_trip: f64) -> Round {
    let (n, allotment) = (peers.len() as f64, head.allot(manifest));
    let bytes = manifest.codec.encoded_len(manifest.layout.len) as f64;
    // With copies the sum passes from keeper to keeper, and the last one sends it to all.
    let more = manifest
        .copies
        .map_or(0.0, |copies| f64::from(copies.get()).min(n) - 1.0);
    let sent = bytes * (2.0 * (n - 1.0) + more) / n;
    let part = |(at, peer): (usize, &Peer)| Part {
        samples: allotment.len(at),
        computes: allotment.len(at) as f64 * peer.sample.seconds(),
        sends: sent / peer.rate,
    };
    let parts: Vec<Part> = peers.iter().enumerate().map(part).collect();
    let delays = if n > 1.0 {
        (2.0 + more) * round_trip / 2.0
    } else {
        0.0
    };
    let exchange = parts.iter().map(|part| part.sends).fold(0.0, f64::max) + delays;
    let mut busiest = Busiest::default();
    for (member, part) in parts.iter().enumerate() {
        if part.computes > busiest.seconds {
            (busiest.member, busiest.seconds) = (member, part.computes);
        }
    }
    Round {
        seconds: busiest.seconds + exchange,
        filling: 0.0,
        busiest,
        draining: 0.0,
        exchange,
        parts,
    }
}

/// A round of a model that is split.
struct Pipeline<'a> {
    head: &'a Head,
    split: &'a Split,
    parts: Parts,
    peers: &'a [Peer],
    delay: f64,
    batch: Batch,
    route: Route,
}

/// The work of a member in a pipeline's round.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    member: usize,
    /// Its first span, and how many microbatches of that it computes.
    first: usize,
    microbatches: u32,
    samples: u64,
    computes: f64,
    sends: f64,
}

impl<'a> Pipeline<'a> {
    fn new(
        manifest: &Manifest,
        head: &'a Head,
        (split, parts): (&'a Split, Parts),
        (peers, round_trip): (&'a [Peer], f64),
    ) -> Self {
        let names: Vec<PeerId> = head.members.iter().map(|member| member.peer).collect();
        let batch = Batch::new(split, &head.allot(manifest).batch);
        Self {
            route: head.route(split, parts, &names, batch.lanes()),
            head,
            split,
            parts,
            peers,
            delay: round_trip / 2.0,
            batch,
        }
    }

    fn round(&self) -> Round {
        let (ways, exchanged) = (self.ways(), self.exchanged());
        let longest = |of: &dyn Fn(usize) -> f64| (0..self.peers.len()).map(of).fold(0.0, f64::max);
        let sends = |member: usize| exchanged[member].0 * NUMBER / self.peers[member].rate;
        let exchange = longest(&sends) + longest(&|member| exchanged[member].1) * self.delay;
        let mut round = Round {
            seconds: 0.0,
            filling: 0.0,
            busiest: Busiest::default(),
            draining: 0.0,
            exchange,
            parts: vec![Part::default(); self.peers.len()],
        };
        for member in 0..self.peers.len() {
            let Some(work) = self.work(member) else { continue };
            round.parts[member] = Part {
                samples: work.samples,
                computes: work.computes,
                sends: work.sends + sends(member),
            };
            let [filling, draining] = ways[work.first];
            let computing = [filling, work.computes, draining];
            for (line, [filling, seconds, draining]) in [(true, self.line(&work, &ways)), (false, computing)]
            {
                let all = filling + seconds + draining;
                if all >= round.seconds {
                    (round.seconds, round.filling, round.draining) = (all, filling, draining);
                    round.busiest = Busiest {
                        member,
                        span: work.first,
                        line,
                        microbatches: work.microbatches,
                        seconds,
                    };
                }
            }
        }
        round.seconds += exchange;
        round
    }

    fn spans(&self) -> usize {
        self.split.spans.len()
    }

    /// Seconds of a microbatch at a span, forward and backward, if this member computes it.
    fn passes(&self, span: usize, member: usize) -> [f64; 2] {
        let share = self.split.share(self.split.span(span)) * f64::from(self.split.micro_batch.get());
        self.peers[member].sample.passes(share, span + 1 == self.spans())
    }

    /// How long a microbatch of a lane occupies the line from a span to the next one, and how long it is in flight;
    /// `back` for its gradient.
    fn hop(&self, span: usize, lane: usize, back: bool) -> [f64; 2] {
        let ends = [span, span + 1].map(|span| self.route.of(span, lane));
        if ends[0] == ends[1] {
            return [0.0; 2];
        }
        let elements = self.split.boundary_after(span) * self.split.micro_batch.get() as usize;
        let bytes = self.split.boundary.encoded_len(elements) as f64;
        let sends = bytes / self.peers[ends[usize::from(back)]].rate;
        [sends, sends + self.delay]
    }

    /// For each span, the time until the first microbatch reaches it, and from there until the last one has gone back,
    /// over the fastest lane.
    fn ways(&self) -> Vec<[f64; 2]> {
        let mut ways = vec![[f64::INFINITY; 2]; self.spans()];
        for lane in 0..self.batch.lanes() {
            let mut way = [0.0; 2];
            for (span, best) in ways.iter_mut().enumerate() {
                if let Some(before) = span.checked_sub(1) {
                    let passes = self.passes(before, self.route.of(before, lane));
                    way[0] += passes[0] + self.hop(before, lane, false)[1];
                    way[1] += passes[1] + self.hop(before, lane, true)[1];
                }
                *best = [best[0].min(way[0]), best[1].min(way[1])];
            }
        }
        ways
    }

    /// The work of a member; none if it computes nothing.
    fn work(&self, member: usize) -> Option<Work> {
        let mut of_spans: BTreeMap<usize, (u32, u64)> = BTreeMap::new();
        let mut work = Work::default();
        for (span, lane) in self.route.by(member) {
            let microbatches = self.batch.lane(lane).len() as u32;
            let of_span = of_spans.entry(span).or_default();
            *of_span = (of_span.0 + microbatches, of_span.1 + self.batch.lane_len(lane));
            let computes: f64 = self.passes(span, member).iter().sum();
            let mut sends = 0.0;
            if let Some(before) = span.checked_sub(1) {
                sends += self.hop(before, lane, true)[0];
            }
            if span + 1 < self.spans() {
                sends += self.hop(span, lane, false)[0];
            }
            work.computes += f64::from(microbatches) * computes;
            work.sends += f64::from(microbatches) * sends;
        }
        let (first, (microbatches, _)) = of_spans.first_key_value()?;
        Some(Work {
            member,
            first: *first,
            microbatches: *microbatches,
            samples: of_spans.values().map(|(_, samples)| *samples).max()?,
            ..work
        })
    }

    /// Filling, work and draining of a member's line. The line is idle until the first microbatch was computed, and
    /// draining ends when the last gradient has come back.
    fn line(&self, work: &Work, ways: &[[f64; 2]]) -> [f64; 3] {
        if work.sends == 0.0 {
            return [0.0; 3];
        }
        let [filling, draining] = ways[work.first];
        let [forward, backward] = self.passes(work.first, work.member);
        let first = if work.first + 1 == self.spans() {
            backward
        } else {
            forward
        };
        let rest = match work.first {
            0 => {
                let next: f64 = self.passes(1, self.route.of(1, 0)).iter().sum();
                self.delay + next + self.hop(0, 0, true)[1] + backward
            }
            // The last gradient is part of the line's load.
            span => (draining - self.hop(span - 1, 0, true)[0]).max(0.0),
        };
        [filling + first, work.sends, rest]
    }

    /// How many numbers each member sends until all holders have their sums, and how many one-way delays that takes.
    fn exchanged(&self) -> Vec<(f64, f64)> {
        let needs = self.split.needs(self.parts);
        let holds = |member: usize, span: usize| self.head.members[member].keeper.holds(span, &needs);
        let members = 0..self.peers.len();
        let count = |span: usize| members.clone().filter(|member| holds(*member, span)).count();
        let holders: Vec<usize> = (0..needs.len()).map(count).collect();
        let (several, shared) = (self.peers.len() > 1, shared(self.split) as f64);
        let sent = |member: usize| {
            let held = (0..needs.len()).filter(|span| holds(member, *span));
            let of_span = |span: usize| {
                let len = self.split.used(span).iter().map(Range::len).sum::<usize>();
                len as f64 * (holders[span] - 1) as f64 / holders[span] as f64
            };
            let numbers: f64 = held.map(of_span).sum();
            match numbers > 0.0 {
                // Each holder sums its part of the span and sends the sum to the others.
                true => (2.0 * numbers, 2.0),
                // One holder sums what several spans use, and sends the sum to the others.
                false if several && shared > 0.0 => (shared, 1.0),
                false => (0.0, 0.0),
            }
        };
        members.clone().map(sent).collect()
    }
}

/// Elements that several spans use.
fn shared(split: &Split) -> usize {
    let mut changes: BTreeMap<usize, i32> = BTreeMap::new();
    for span in 0..split.spans.len() {
        for range in split.used(span) {
            *changes.entry(range.start).or_default() += 1;
            *changes.entry(range.end).or_default() -= 1;
        }
    }
    let (mut users, mut from, mut shared) = (0, 0, 0);
    for (at, change) in changes {
        if users > 1 {
            shared += at - from;
        }
        (users, from) = (users + change, at);
    }
    shared
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |seconds: f64| seconds * 1e3;
        let of = &self.busiest;
        write!(
            f,
            "{:.2} s = {:.0} ms of filling + {} x {:.1} ms ({} of stage {}) + {:.0} ms of draining",
            self.seconds,
            ms(self.filling),
            of.microbatches,
            ms(of.seconds) / f64::from(of.microbatches.max(1)),
            if of.line { "the line" } else { "the computing" },
            of.span + 1,
            ms(self.draining),
        )?;
        match self.exchange {
            0.0 => Ok(()),
            seconds => write!(f, " + {:.0} ms of exchange", ms(seconds)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annulus_core::codec::Codec;
    use annulus_core::keepers::rest::Machine;
    use annulus_core::split::Step;
    use annulus_core::{Layout, Room, Topology};
    use std::num::NonZeroU16;

    /// Four spans of a step each, with 512 x 768 numbers between them; the last uses what the first does too.
    fn four(boundary: Codec, lanes: u16, copies: u16) -> Manifest {
        let step = |at: usize| Step {
            ranges: match at {
                3 => vec![0..250_000, 3_000_000..4_000_000],
                at => std::iter::once(at * 1_000_000..(at + 1) * 1_000_000).collect(),
            },
            cost: 10,
            boundary: if at < 3 { 512 * 768 } else { 0 },
        };
        Manifest {
            batch: 64.try_into().unwrap(),
            samples: 1000.try_into().unwrap(),
            target: 1000.try_into().unwrap(),
            optimizer: "adam".parse().unwrap(),
            topology: Some(Topology::Direct),
            copies: NonZeroU16::new(copies),
            split: Some(Split {
                steps: (0..4).map(step).collect(),
                spans: vec![NonZeroU16::MIN; 4],
                micro_batch: 1.try_into().unwrap(),
                boundary,
                lanes: lanes.try_into().unwrap(),
            }),
            ..Manifest::new(Layout::flat(4_000_000))
        }
    }

    const ACTED: Sample = Sample::Acted(4.0 * 0.127);

    /// A round of equal members, each with room for one span.
    fn least(manifest: &Manifest, peers: usize, sample: Sample) -> Round {
        let machine = Machine {
            speed: 1000,
            room: Room::of(1),
            line: 12_500,
        };
        let peer = Peer { sample, rate: 12.5e6 };
        let head = Head::at_rest(manifest, &vec![machine; peers]);
        Round::of(manifest, &head, &vec![peer; peers], 0.05)
    }

    #[test]
    fn a_round_takes_what_its_slowest_span_does_and_the_way_there_and_back() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} {b}");
        let f16 = least(&four(Codec::F16, 1, 1), 4, ACTED);
        let hop = 2.0 * 512.0 * 768.0 / 12.5e6 + 0.025;
        near(f16.exchange, 250_000.0 * 4.0 / 12.5e6 + 0.025);
        near(f16.seconds - f16.exchange, 67.0 * 0.127 + 6.0 * hop);
        assert_eq!((f16.busiest.span, f16.busiest.line), (3, false));
        let text = f16.to_string();
        assert!(
            text.contains("64 x 127.0 ms (the computing of stage 4)"),
            "{text}"
        );
        assert!(text.ends_with("ms of draining + 105 ms of exchange"), "{text}");
        // Uncompressed activations and gradients occupy the line of an inner stage for longer than it computes.
        let f32 = least(&four(Codec::F32, 1, 1), 4, ACTED);
        assert!(f32.busiest.line && [1, 2].contains(&f32.busiest.span), "{f32}");
        near(f32.busiest.seconds / 64.0, 2.0 * 4.0 * 512.0 * 768.0 / 12.5e6);
    }

    #[test]
    fn holders_share_microbatches_and_exchange_all_that_they_have_summed() {
        let one = least(&four(Codec::Int8, 2, 1), 4, ACTED);
        let two = least(&four(Codec::Int8, 2, 2), 8, ACTED);
        assert_eq!((one.busiest.microbatches, two.busiest.microbatches), (64, 32));
        assert!((two.exchange - 2.0 * (625_000.0 * 4.0 / 12.5e6 + 0.025)).abs() < 1e-9);
        assert!(two.parts.iter().all(|part| part.samples == 32), "{:?}", two.parts);
    }

    #[test]
    fn who_is_last_computes_its_forward_passes_once() {
        let round = least(&four(Codec::F16, 1, 1), 4, Sample::Computed(1.2));
        let per_sample = |part: &Part| (part.computes / 64.0 * 1e6).round() as u64;
        let per_sample: Vec<u64> = round.parts.iter().map(per_sample).collect();
        assert_eq!(per_sample, [400_000, 400_000, 400_000, 300_000]);
    }

    #[test]
    fn of_whole_models_the_slowest_share_and_the_slowest_line_count() {
        let manifest = Manifest {
            split: None,
            copies: None,
            ..four(Codec::F32, 1, 1)
        };
        let speeds = [3000u64, 1000];
        let machines = speeds.map(|speed| Machine {
            speed,
            room: Room::default(),
            line: 0,
        });
        let peers = speeds.map(|speed| Peer {
            sample: Sample::Computed(1e3 / speed as f64),
            rate: 1e6 * speed as f64,
        });
        let head = Head::at_rest(&manifest, &machines);
        let round = Round::of(&manifest, &head, &peers, 0.05);
        let samples: Vec<u64> = round.parts.iter().map(|part| part.samples).collect();
        assert_eq!((samples, round.busiest.seconds), (vec![48, 16], 16.0));
        assert!(
            (round.exchange - 16e6 / 1e9 - 0.05).abs() < 1e-9,
            "{}",
            round.exchange
        );
        let sharded = Manifest {
            copies: NonZeroU16::new(2),
            ..manifest
        };
        let head = Head::at_rest(&sharded, &machines);
        let more = Round::of(&sharded, &head, &peers, 0.05);
        assert!(
            (more.exchange - 24e6 / 1e9 - 0.075).abs() < 1e-9,
            "{}",
            more.exchange
        );
    }
}
