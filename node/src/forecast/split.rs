//! What a round takes at least where a model is split over the peers: the bound of its pipeline, by what computing, lines
//! and delays allow.
//!
//! Pure, as all of the forecast: it knows the run's cut, and what peers and lines are like.

use annulus_core::split::Split;
use annulus_core::stages::{Bound, LinkTime, SpanTime, bound};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Bytes of a number in a sum of gradients: these travel as they are.
const NUMBER: f64 = 4.0;

/// How long a sample takes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample {
    /// Forward and backward through the whole model, where nothing is computed again: spans before the last compute their
    /// forward passes twice.
    Computed(f64),
    /// On devices that only sleep: each span takes its share of this, whatever it would compute.
    Acted(f64),
}

impl Sample {
    /// As this machine's processor is, by the costs of steps: microseconds of their forward passes, where they were just
    /// measured.
    pub fn measured(split: &Split) -> Self {
        let forward: f64 = split.steps.iter().map(|step| f64::from(step.cost)).sum();
        Self::Computed(3.0 * forward / 1e6)
    }
}

/// A run whose model is split, and what its peers and the lines between them are like: each span by as many, all alike.
#[derive(Clone, Debug)]
pub struct Pipeline<'a> {
    /// The run's cut.
    pub split: &'a Split,
    /// Samples of a round.
    pub batch: u64,
    /// How many peers there are.
    pub peers: usize,
    /// What a sample takes each of them.
    pub sample: Sample,
    /// Bytes per second that each can send.
    pub rate: f64,
    /// Seconds from one to another and back.
    pub round_trip: f64,
}

/// What a round takes at least.
#[derive(Clone, Debug, PartialEq)]
pub struct Least {
    /// By span.
    pub spans: Vec<Part>,
    /// Of the pipeline.
    pub pipeline: Bound,
    /// Seconds in which sums of gradients are exchanged after it.
    pub exchange: f64,
}

/// One span's part.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its steps.
    pub steps: Range<usize>,
    /// Its share of what the whole model computes for a sample.
    pub share: f64,
    /// What it computes for a microbatch.
    pub time: SpanTime,
    /// Bytes that it sends for a microbatch, both ways.
    pub sends: u64,
}

impl Pipeline<'_> {
    /// What a round takes at least.
    pub fn least(&self) -> Least {
        let (split, micro_batch) = (self.split, u64::from(self.split.micro_batch.get()));
        let last = split.spans.len() - 1;
        let shares: Vec<f64> = split.spans().map(|steps| split.share(steps)).collect();
        let times = shares.iter().enumerate().map(|(at, share)| {
            let us = |seconds: f64| (seconds * share * micro_batch as f64 * 1e6).round() as u64;
            // Backward takes twice as long as forward, which a span but the last does again before it.
            let (forward, backward) = match self.sample {
                Sample::Computed(sample) => (us(sample / 3.0), us(sample)),
                Sample::Acted(sample) if at == last => (0, us(sample)),
                Sample::Acted(sample) => (us(sample / 4.0), us(sample * 0.75)),
            };
            SpanTime {
                forward_us: if at == last { 0 } else { forward },
                backward_us: backward,
            }
        });
        let times: Vec<SpanTime> = times.collect();
        let bytes = |at: usize| {
            let elements = split.boundary_after(at) * micro_batch as usize;
            split.boundary.encoded_len(elements) as u64
        };
        let link = |at: usize| LinkTime {
            send_us: (bytes(at) as f64 / self.rate * 1e6).round() as u64,
            delay_us: (self.round_trip / 2.0 * 1e6).round() as u64,
        };
        let links: Vec<LinkTime> = (0..last).map(link).collect();
        let sends = |at: usize| at.checked_sub(1).map_or(0, bytes) + if at < last { bytes(at) } else { 0 };
        let parts = split.spans().enumerate().map(|(at, steps)| Part {
            steps,
            share: shares[at],
            time: times[at],
            sends: sends(at),
        });
        Least {
            spans: parts.collect(),
            pipeline: bound(&times, &links, self.microbatches()),
            exchange: self.exchange(),
        }
    }

    /// How many hold a span, of all that have fewest.
    fn holders(&self) -> usize {
        (self.peers / self.split.spans.len()).max(1)
    }

    /// Microbatches of who has most of them in a span.
    fn microbatches(&self) -> u32 {
        let all = self.batch.div_ceil(self.split.micro_batch.get().into()).max(1);
        let lanes = all.min(self.split.lanes.get().into());
        let own = lanes.div_ceil(self.holders() as u64);
        (all * own).div_ceil(lanes) as u32
    }

    /// Seconds until each holder has the sums of its parts.
    fn exchange(&self) -> f64 {
        let (holders, delay) = (self.holders() as f64, self.round_trip / 2.0);
        let seconds = |elements: f64| elements * NUMBER / self.rate + delay;
        if holders > 1.0 {
            // Each adds up its part of a span and hands the sum to the others.
            let spans = 0..self.split.spans.len();
            let largest = spans.map(|span| self.split.used(span).iter().map(Range::len).sum::<usize>());
            let part = largest.max().unwrap_or(0) as f64 * (holders - 1.0) / holders;
            return 2.0 * seconds(part);
        }
        // What several spans use is added up by one of their holders, which hands it to the others.
        match shared(self.split) {
            0 => 0.0,
            elements => seconds(elements as f64),
        }
    }
}

/// Elements that holders of several spans use.
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

impl Least {
    /// All of it, in seconds.
    pub fn seconds(&self) -> f64 {
        self.pipeline.total_us() as f64 / 1e6 + self.exchange
    }
}

impl fmt::Display for Least {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bound {
            filling_us,
            slowest_us,
            microbatches,
            draining_us,
            span,
            line,
        } = self.pipeline;
        let ms = |us: u64| us as f64 / 1e3;
        write!(
            f,
            "{:.2} s = {:.0} ms of filling + {microbatches} x {:.1} ms ({} of span {}) + {:.0} ms of draining",
            self.seconds(),
            ms(filling_us),
            ms(slowest_us),
            if line { "the line" } else { "the computing" },
            span + 1,
            ms(draining_us),
        )?;
        match self.exchange {
            0.0 => Ok(()),
            seconds => write!(f, " + {:.0} ms of exchange", seconds * 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annulus_core::codec::Codec;
    use annulus_core::split::Step;
    use std::num::NonZeroU16;

    /// Four spans of a step each, with 512 x 768 numbers between them; the last uses what the first does too.
    fn four(boundary: Codec, lanes: u16) -> Split {
        let step = |at: usize| Step {
            ranges: match at {
                3 => vec![0..250_000, 3_000_000..4_000_000],
                at => std::iter::once(at * 1_000_000..(at + 1) * 1_000_000).collect(),
            },
            cost: 10,
            boundary: if at < 3 { 512 * 768 } else { 0 },
        };
        Split {
            steps: (0..4).map(step).collect(),
            spans: vec![NonZeroU16::MIN; 4],
            micro_batch: 1.try_into().unwrap(),
            boundary,
            lanes: lanes.try_into().unwrap(),
        }
    }

    fn least(split: &Split, peers: usize) -> Least {
        let pipeline = Pipeline {
            split,
            batch: 64,
            peers,
            sample: Sample::Acted(4.0 * 0.127),
            rate: 12.5e6,
            round_trip: 0.05,
        };
        pipeline.least()
    }

    #[test]
    fn a_round_takes_what_its_slowest_span_does_and_the_way_there_and_back() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} {b}");
        let f16 = least(&four(Codec::F16, 1), 4);
        let hop = 2.0 * 512.0 * 768.0 / 12.5e6 + 0.025;
        near(f16.pipeline.total_us() as f64 / 1e6, 67.0 * 0.127 + 6.0 * hop);
        near(f16.exchange, 250_000.0 * 4.0 / 12.5e6 + 0.025);
        assert_eq!((f16.pipeline.span, f16.pipeline.line), (3, false));
        assert!(
            f16.to_string()
                .contains("64 x 127.0 ms (the computing of span 4)"),
            "{f16}"
        );
        assert!(
            f16.to_string().ends_with("ms of draining + 105 ms of exchange"),
            "{f16}"
        );
        // As they are, activations and gradients take the line of who is between others for longer than it computes.
        let f32 = least(&four(Codec::F32, 1), 4);
        assert!(f32.pipeline.line && [1, 2].contains(&f32.pipeline.span), "{f32}");
        near(
            f32.pipeline.slowest_us as f64 / 1e6,
            2.0 * 4.0 * 512.0 * 768.0 / 12.5e6,
        );
    }

    #[test]
    fn holders_share_microbatches_and_exchange_all_that_they_have_summed() {
        let split = four(Codec::Int8, 2);
        let (one, two) = (least(&split, 4), least(&split, 8));
        assert_eq!((one.pipeline.microbatches, two.pipeline.microbatches), (64, 32));
        assert!((two.exchange - 2.0 * (625_000.0 * 4.0 / 12.5e6 + 0.025)).abs() < 1e-9);
    }

    #[test]
    fn who_is_last_computes_its_forward_passes_once() {
        let split = four(Codec::F16, 1);
        let sample = Sample::Computed(1.2);
        let pipeline = Pipeline {
            split: &split,
            batch: 64,
            peers: 4,
            sample,
            rate: 1e9,
            round_trip: 0.0,
        };
        let of = |part: &Part| (part.time.forward_us, part.time.backward_us);
        let times: Vec<(u64, u64)> = pipeline.least().spans.iter().map(of).collect();
        let inner = (100_000, 300_000);
        assert_eq!(times, [inner, inner, inner, (0, 300_000)]);
    }
}
