//! In which order a span works on its microbatches, and how long all of them then take.
//!
//! The order is that of 1F1B (PipeDream-Flush; Narayanan et al. 2021, section 2.2): a span that has a gradient goes
//! backward, which lets go of a stash; otherwise forward, as long as no more microbatches are under way behind it than
//! its limit says. Which microbatch comes next is its number alone, so that sums need not wait for their turn.

use std::collections::{BTreeMap, BTreeSet};

/// What a span does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The forward pass of this microbatch; in the last span the backward pass with it.
    Forward(u32),
    /// The backward pass of this microbatch.
    Backward(u32),
}

/// What to do next, of the first microbatch whose input is there and the first whose gradient is there, with so many
/// whose forward pass is done and whose backward pass is not. Nothing: wait.
pub fn next_work(forward: Option<u32>, backward: Option<u32>, in_flight: u32, limit: u32) -> Option<Work> {
    match (forward, backward) {
        (_, Some(microbatch)) => Some(Work::Backward(microbatch)),
        (Some(microbatch), None) if in_flight < limit => Some(Work::Forward(microbatch)),
        _ => None,
    }
}

/// How many microbatches more may be under way behind a span of a run than there are spans: links take their time.
pub const MORE: u32 = 1;

/// How many microbatches may be under way behind a span, and so how many stashes it keeps: one for each span from it on,
/// as 1F1B has it where links take no time, and `more` where they do.
pub fn in_flight_limit(span: usize, spans: usize, more: u32) -> u32 {
    spans.saturating_sub(span).max(1) as u32 + more
}

/// How long a span works on one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanTime {
    /// Microseconds forward; in the last span 0.
    pub forward_us: u64,
    /// Microseconds backward; in the last span both.
    pub backward_us: u64,
}

/// How long one microbatch's activations, or their gradient, take from a span to its neighbour. Each direction is a line
/// of its own, on which one is sent after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTime {
    /// Microseconds for which they occupy the line.
    pub send_us: u64,
    /// Microseconds for which they are under way besides.
    pub delay_us: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Microseconds until the first span has done its last backward pass: filling and draining included.
    pub total_us: u64,
    /// Most stashes that each span held.
    pub stashes: Vec<u32>,
}

/// Plays one round of so many microbatches through the spans, with a link behind each but the last. `limits`: how many
/// may be under way behind each.
///
/// # Panics
///
/// If there are no spans, not one limit for each, or not one link less.
pub fn simulate(spans: &[SpanTime], links: &[LinkTime], limits: &[u32], microbatches: u32) -> Timeline {
    assert!(!spans.is_empty() && links.len() + 1 == spans.len() && limits.len() == spans.len());
    let mut play = Play {
        spans,
        links,
        limits,
        places: vec![Place::default(); spans.len()],
        lines: vec![[0; 2]; links.len()],
        arrivals: BTreeMap::new(),
        total: 0,
    };
    play.places[0].inputs.extend(0..microbatches);
    play.start_all(0);
    while let Some((now, arrivals)) = play.arrivals.pop_first() {
        for arrival in arrivals {
            match arrival {
                Arrival::Input(span, microbatch) => play.places[span].inputs.insert(microbatch),
                Arrival::Gradient(span, microbatch) => play.places[span].gradients.insert(microbatch),
                Arrival::Idle(span) => std::mem::take(&mut play.places[span].busy),
            };
        }
        play.start_all(now);
    }
    Timeline {
        total_us: play.total,
        stashes: play.places.iter().map(|place| place.most).collect(),
    }
}

#[derive(Clone, Debug, Default)]
struct Place {
    inputs: BTreeSet<u32>,
    gradients: BTreeSet<u32>,
    in_flight: u32,
    most: u32,
    busy: bool,
}

enum Arrival {
    Input(usize, u32),
    Gradient(usize, u32),
    Idle(usize),
}

struct Play<'a> {
    spans: &'a [SpanTime],
    links: &'a [LinkTime],
    limits: &'a [u32],
    places: Vec<Place>,
    /// When each link's line is free, forward and backward.
    lines: Vec<[u64; 2]>,
    arrivals: BTreeMap<u64, Vec<Arrival>>,
    total: u64,
}

impl Play<'_> {
    fn start_all(&mut self, now: u64) {
        for span in 0..self.spans.len() {
            self.start(span, now);
        }
    }

    fn start(&mut self, span: usize, now: u64) {
        let (last, time) = (span + 1 == self.spans.len(), self.spans[span]);
        let place = &mut self.places[span];
        if place.busy {
            return;
        }
        let (input, gradient) = (place.inputs.first().copied(), place.gradients.first().copied());
        let Some(work) = next_work(input, gradient, place.in_flight, self.limits[span].max(1)) else {
            return;
        };
        place.busy = true;
        let done = match work {
            Work::Forward(microbatch) => {
                place.inputs.remove(&microbatch);
                if last {
                    place.most = 1;
                    now + time.forward_us + time.backward_us
                } else {
                    place.in_flight += 1;
                    place.most = place.most.max(place.in_flight);
                    now + time.forward_us
                }
            }
            Work::Backward(microbatch) => {
                place.gradients.remove(&microbatch);
                place.in_flight -= 1;
                now + time.backward_us
            }
        };
        self.total = self.total.max(done);
        self.arrive(done, Arrival::Idle(span));
        match work {
            Work::Forward(microbatch) if !last => {
                let at = self.send(span, 0, done);
                self.arrive(at, Arrival::Input(span + 1, microbatch));
            }
            Work::Forward(microbatch) | Work::Backward(microbatch) if span > 0 => {
                let at = self.send(span - 1, 1, done);
                self.arrive(at, Arrival::Gradient(span - 1, microbatch));
            }
            _ => {}
        }
    }

    /// When what is sent over a link at a time is there.
    fn send(&mut self, link: usize, direction: usize, now: u64) -> u64 {
        let line = &mut self.lines[link][direction];
        *line = now.max(*line) + self.links[link].send_us;
        *line + self.links[link].delay_us
    }

    fn arrive(&mut self, at: u64, arrival: Arrival) {
        self.arrivals.entry(at).or_default().push(arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix;

    fn one_f_one_b(spans: &[SpanTime], link: LinkTime, microbatches: u32) -> Timeline {
        let limits: Vec<u32> = (0..spans.len())
            .map(|span| in_flight_limit(span, spans.len(), 0))
            .collect();
        simulate(spans, &vec![link; spans.len() - 1], &limits, microbatches)
    }

    #[test]
    fn equal_spans_take_the_time_of_the_textbook() {
        for spans in 1..=6u64 {
            for microbatches in 1..=9u64 {
                let mut times = vec![
                    SpanTime {
                        forward_us: 10,
                        backward_us: 20,
                    };
                    spans as usize
                ];
                *times.last_mut().unwrap() = SpanTime {
                    forward_us: 0,
                    backward_us: 30,
                };
                let timeline = one_f_one_b(&times, LinkTime::default(), microbatches as u32);
                assert_eq!(timeline.total_us, (microbatches + spans - 1) * 30);
                let stashes = (0..spans).map(|span| (spans - span).min(microbatches) as u32);
                assert_eq!(timeline.stashes, stashes.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn no_schedule_is_faster_than_its_slowest_span_or_slower_than_one_after_the_other() {
        for seed in 0..300 {
            let mut random = SplitMix(seed);
            let mut up_to = |most: u64| random.bits() % most;
            let count = 1 + up_to(6) as usize;
            let mut times: Vec<SpanTime> = (0..count)
                .map(|_| SpanTime {
                    forward_us: 1 + up_to(50),
                    backward_us: 1 + up_to(90),
                })
                .collect();
            times[count - 1].forward_us = 0;
            let link = LinkTime {
                send_us: up_to(30),
                delay_us: up_to(60),
            };
            let microbatches = 1 + up_to(20);
            let found = one_f_one_b(&times, link, microbatches as u32).total_us;
            let both = |t: &SpanTime| t.forward_us + t.backward_us;
            let hop = 2 * (link.send_us + link.delay_us);
            let before = |span: usize| times[..span].iter().map(|t| both(t) + hop).sum::<u64>();
            let least = times.iter().enumerate();
            let least = least.map(|(span, t)| before(span) + microbatches * both(t)).max();
            assert!(Some(found) >= least, "seed {seed}");
            let alone = before(count - 1) + both(&times[count - 1]);
            assert!(found <= microbatches * alone, "seed {seed}");
        }
    }

    #[test]
    fn more_under_way_hides_a_link_s_delay() {
        let times = [
            SpanTime {
                forward_us: 10,
                backward_us: 20,
            },
            SpanTime {
                forward_us: 0,
                backward_us: 30,
            },
        ];
        let link = LinkTime {
            send_us: 5,
            delay_us: 60,
        };
        let total = |more| {
            let limits = [in_flight_limit(0, 2, more), in_flight_limit(1, 2, more)];
            simulate(&times, &[link], &limits, 40).total_us
        };
        assert!(total(0) > 40 * 30 * 3 / 2, "{}", total(0));
        // The second span is never idle but while the pipeline is filled and drained.
        assert_eq!(total(6), 10 + 65 + 40 * 30 + 65 + 20);
    }
}
