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

/// How many microbatches more may be under way behind a span of a run than there are spans: over a slow link one is on its way
/// for longer than a span computes on it. Each is one more stash. Over lines of 100 Mbit/s and 50 ms that are busy for most of a
/// round, the schedule alone reaches 0.62 of its bound with one, 0.92 with six, 0.94 with eight and 0.97 with twelve.
pub const MORE: u32 = 8;

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

/// How long one microbatch's activations, or their gradient, take from a span to its neighbour. All that a span sends, both
/// ways, goes over its own line, one after the other.
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
        lines: vec![0; spans.len()],
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

/// What a round takes at least, whatever is done in which order: until the first microbatch is where most of the time is
/// spent, all of them there, and the last one's way back from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Microseconds until that begins.
    pub filling_us: u64,
    /// Microseconds of one microbatch there.
    pub slowest_us: u64,
    /// How many microbatches.
    pub microbatches: u32,
    /// Microseconds after that.
    pub draining_us: u64,
    /// Where that is.
    pub span: usize,
    /// Whether it is the span's line, and not its computing.
    pub line: bool,
}

impl Bound {
    /// All of it, in microseconds.
    pub fn total_us(&self) -> u64 {
        self.filling_us + u64::from(self.microbatches) * self.slowest_us + self.draining_us
    }
}

/// What a round of so many microbatches takes at least, with a link behind each span but the last.
///
/// # Panics
///
/// If there are no spans, or not one link less.
pub fn bound(spans: &[SpanTime], links: &[LinkTime], microbatches: u32) -> Bound {
    assert!(links.len() + 1 == spans.len());
    let hop = |link: &LinkTime| link.send_us + link.delay_us;
    let (mut forth, mut back) = (0, 0);
    let mut all = Vec::new();
    for (span, time) in spans.iter().enumerate() {
        let (before, behind) = (span.checked_sub(1).map(|link| links[link]), links.get(span));
        let of = |filling_us, slowest_us, draining_us, line| Bound {
            filling_us,
            slowest_us,
            microbatches,
            draining_us,
            span,
            line,
        };
        all.push(of(forth, time.forward_us + time.backward_us, back, false));
        // A line has something to carry when the first microbatch was computed, and the last has come back over it when all is
        // sent.
        let sends = before.map_or(0, |link| link.send_us) + behind.map_or(0, |link| link.send_us);
        let first = time.forward_us + if behind.is_none() { time.backward_us } else { 0 };
        let rest = match (before, behind) {
            (Some(before), _) => back - before.send_us,
            (None, Some(behind)) => {
                let next = spans[1];
                behind.delay_us + next.forward_us + next.backward_us + hop(behind) + time.backward_us
            }
            (None, None) => 0,
        };
        all.push(of(forth + first, sends, rest, true));
        if let Some(link) = behind {
            forth += time.forward_us + hop(link);
            back += time.backward_us + hop(link);
        }
    }
    // Of equal ones the last, which is computing rather than a line of nothing.
    let longest = all
        .into_iter()
        .reduce(|a, b| match b.total_us() >= a.total_us() && b.slowest_us > 0 {
            true => b,
            false => a,
        });
    longest.expect("there is a span")
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
    /// When each span's line is free.
    lines: Vec<u64>,
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
                let at = self.send(span, span, done);
                self.arrive(at, Arrival::Input(span + 1, microbatch));
            }
            Work::Forward(microbatch) | Work::Backward(microbatch) if span > 0 => {
                let at = self.send(span, span - 1, done);
                self.arrive(at, Arrival::Gradient(span - 1, microbatch));
            }
            _ => {}
        }
    }

    /// When what a span sends over a link at a time is there.
    fn send(&mut self, span: usize, link: usize, now: u64) -> u64 {
        let line = &mut self.lines[span];
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
    use crate::base::random::SplitMix;

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
    fn no_schedule_is_faster_than_its_bound_or_slower_than_one_after_the_other() {
        let (mut by_line, mut reached) = (0, 0);
        for seed in 0..600 {
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
            let links: Vec<LinkTime> = (1..count)
                .map(|_| LinkTime {
                    send_us: up_to(if seed % 2 == 0 { 30 } else { 120 }),
                    delay_us: up_to(60),
                })
                .collect();
            let microbatches = 1 + up_to(20) as u32;
            let least = bound(&times, &links, microbatches);
            by_line += u32::from(least.line);
            let mut alone = times[count - 1].backward_us;
            for (time, link) in times.iter().zip(&links) {
                alone += time.forward_us + time.backward_us + 2 * (link.send_us + link.delay_us);
            }
            for more in [0, 40] {
                let limit = |span| in_flight_limit(span, count, more);
                let limits: Vec<u32> = (0..count).map(limit).collect();
                let found = simulate(&times, &links, &limits, microbatches).total_us;
                assert!(found >= least.total_us(), "seed {seed}: {found}, {least:?}");
                assert!(found <= u64::from(microbatches) * alone, "seed {seed}");
                reached += u32::from(more > 0 && found * 10 <= least.total_us() * 11);
            }
        }
        // Lines bound some of them, and with enough under way a round takes little more than its bound.
        assert!(by_line > 100 && reached > 400, "{by_line} {reached}");
    }

    #[test]
    fn the_bound_of_equal_spans_is_filling_their_work_and_draining() {
        let time = |forward_us, backward_us| SpanTime {
            forward_us,
            backward_us,
        };
        let times = [time(32, 95), time(32, 95), time(32, 95), time(0, 127)];
        let link = |send_us| {
            [LinkTime {
                send_us,
                delay_us: 25,
            }; 3]
        };
        // The last begins when all others have done one, and each hands on what it has once there and once back.
        let found = bound(&times, &link(63), 64);
        let expected = Bound {
            filling_us: 3 * (32 + 63 + 25),
            slowest_us: 127,
            microbatches: 64,
            draining_us: 3 * (95 + 63 + 25),
            span: 3,
            line: false,
        };
        assert_eq!(found, expected);
        assert_eq!(found.total_us(), 67 * 127 + 6 * 88);
        // Who is between others sends both ways.
        let found = bound(&times, &link(126), 64);
        assert_eq!((found.slowest_us, found.line, found.span), (252, true, 2));
        assert_eq!(found.filling_us, 2 * (32 + 126 + 25) + 32);
        assert_eq!(found.draining_us, 2 * (95 + 126 + 25) - 126);
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
