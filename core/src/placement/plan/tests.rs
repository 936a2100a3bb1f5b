//! Plans against looking at all of them, the model of time against playing rounds, and what changes a plan.

use super::time::{Group, Rest, Table, before, terms};
use super::*;
use crate::base::random::SplitMix;
use crate::placement::{LinkTime, MORE, SpanTime, in_flight_limit, simulate, span_bytes, span_parameters};

/// A model of so many steps, the first and last of which share a tensor, and machines of which few have room for all of it.
fn drawn(seed: u64) -> (Job, Vec<Machine>) {
    let mut random = SplitMix(seed);
    let mut up_to = |most: u64| random.bits() % most;
    let count = 2 + up_to(11) as usize;
    let mut steps: Vec<StepNeeds> = (0..count)
        .map(|at| {
            let forward_us = 1_000 + up_to(9_000);
            StepNeeds {
                forward_us,
                backward_us: 3 * forward_us,
                tensors: vec![(at + 1, 100_000 + up_to(1_000_000))],
                working_bytes: up_to(1 << 20),
            }
        })
        .collect();
    let tied = (0, up_to(1_000_000));
    steps[0].tensors.push(tied);
    steps[count - 1].tensors.push(tied);
    let parameters = span_parameters(&steps);
    let boundary = 1_000 + up_to(100_000);
    let job = Job {
        steps,
        boundaries: vec![boundary; count],
        terms: Terms {
            bytes_per_parameter: 24,
            boundary_bytes: boundary,
            fixed_bytes: 1 << 20,
        },
        lanes: vec![1, 4],
        whole_bytes: (1 << 20) + 26 * parameters,
        moments_bytes: 8 * parameters,
        vector_bytes: 4 * parameters,
        batch: 1 + up_to(64),
        micro_batch: 1 + up_to(4),
        copies: 1 + (up_to(4) / 3) as u16,
        spans: 1..=count,
        even: false,
    };
    let all = job.whole_bytes;
    let machines = (0..1 + up_to(6))
        .map(|_| Machine {
            memory_bytes: all / 8 + up_to(all),
            speed: 500 + up_to(20_000),
            rate: 1 << (18 + up_to(9)),
            round_trip_us: 1 << up_to(18),
        })
        .collect();
    (job, machines)
}

/// The seconds of the shortest round of all cuts and all machines for their spans, and of all sets of machines that have all.
fn exhaustive(job: &Job, machines: &[Machine]) -> Option<f64> {
    let sets = 1..1usize << machines.len();
    let of = |set: usize| {
        let mut of: Vec<usize> = (0..machines.len()).filter(|at| set >> at & 1 == 1).collect();
        of.sort_by_key(|at| (std::cmp::Reverse(machines[*at].speed), *at));
        of
    };
    let mut least = f64::INFINITY;
    for set in sets.clone() {
        for (way, first) in
            (0..of(set).len()).flat_map(|at| [(Parallelism::Replicas, at), (Parallelism::Sharded, at)])
        {
            let mut holders = of(set);
            holders.swap(0, first);
            let steps = 0..job.steps.len();
            let spans = vec![Span { steps, holders }];
            let found = job.forecast(machines, &Placement { way, spans });
            least = least.min(found.map_or(f64::INFINITY, |found| found.round));
        }
    }
    let table = Table::new(job);
    for lanes in job.lanes.iter().copied() {
        let group = |set| Group::of(&table, of(set).into_iter().map(|at| &machines[at]), lanes);
        let groups: Vec<Group> = sets.clone().map(group).collect();
        let trip = |set: usize| of(set).iter().map(|at| machines[*at].round_trip_us).max();
        let all = All {
            table: &table,
            groups: &groups,
            trips: &sets
                .clone()
                .map(|set| trip(set).unwrap_or(0) as f64 / 1e6)
                .collect::<Vec<_>>(),
            lanes,
        };
        all.go(job.steps.len(), 0, None, &mut least);
    }
    (least < f64::INFINITY).then_some(least)
}

struct All<'a> {
    table: &'a Table<'a>,
    groups: &'a [Group],
    trips: &'a [f64],
    lanes: u16,
}

impl All<'_> {
    /// With what ends at a step by the machines of a set.
    fn go(&self, end: usize, used: usize, rest: Option<&Rest>, least: &mut f64) {
        for set in (1..=self.groups.len()).filter(|set| set & used == 0) {
            if set.count_ones() < u32::from(self.table.job.copies) {
                continue;
            }
            for begin in (0..end).rev() {
                let span = (&(begin..end), self.lanes);
                let Some(found) = before(self.table, &self.groups[set - 1], span, rest) else {
                    continue;
                };
                if begin > 0 {
                    self.go(begin, used | set, Some(&found), least);
                } else if rest.is_some() {
                    *least = least.min(found.left + self.trips[(used | set) - 1]);
                }
            }
        }
    }
}

#[test]
fn a_plan_is_nearly_as_good_as_the_best_of_all() {
    let (mut worst, mut exact, mut ways) = (1.0f64, 0, [0; 4]);
    for seed in 0..200 {
        let (job, machines) = drawn(seed);
        let plan = job.plan(&machines);
        let least = exhaustive(&job, &machines);
        assert_eq!(plan.is_some(), least.is_some(), "seed {seed}");
        let (Some(plan), Some(least)) = (plan, least) else {
            ways[3] += 1;
            continue;
        };
        let ratio = plan.forecast.round / least;
        assert!((0.999..1.15).contains(&ratio), "seed {seed}: {ratio} {plan:?}");
        worst = worst.max(ratio);
        exact += usize::from(ratio < 1.000_001);
        ways[match plan.placement.way {
            Parallelism::Replicas => 0,
            Parallelism::Sharded => 1,
            Parallelism::Split { .. } => 2,
        }] += 1;
    }
    assert!(exact > 120, "{exact} are the best, the worst is {worst}");
    assert!(ways.iter().all(|count| *count > 0), "{ways:?}");
}

#[test]
fn bytes_are_those_of_the_cut() {
    for seed in 0..40 {
        let (job, _) = drawn(seed);
        let table = Table::new(&job);
        let all =
            (0..job.steps.len()).flat_map(|begin| (begin + 1..=job.steps.len()).map(move |end| begin..end));
        for (span, behind) in all.flat_map(|span| (0..3).map(move |behind| (span.clone(), behind))) {
            let expected = span_bytes(&job.steps[span.clone()], span.start == 0, behind, &terms(&job, 4));
            assert_eq!(table.bytes(&span, behind, 4), expected, "{span:?}");
        }
    }
}

#[test]
fn a_forecast_is_near_what_playing_the_round_gives() {
    let (mut sum, mut count) = (0.0, 0);
    for seed in 0..300 {
        let (mut job, mut machines) = drawn(seed);
        let spans = machines.len().min(job.steps.len());
        job.steps[0].tensors.pop();
        job.steps.last_mut().expect("there are steps").tensors.pop();
        machines.truncate(spans);
        for machine in &mut machines {
            // Played, each way of a link is a line of its own, where here all of a machine's links share its line.
            (machine.memory_bytes, machine.rate) = (u64::MAX, 1 << 28);
        }
        let table = Table::new(&job);
        let cut: Vec<Range<usize>> = (0..spans)
            .map(|at| at * job.steps.len() / spans..(at + 1) * job.steps.len() / spans)
            .collect();
        let order: Vec<usize> = (0..spans).collect();
        let forecast = job
            .forecast(&machines, &job.in_order(&cut, &order, 1))
            .expect("it fits");
        let us = |at: usize, units: u64| (1e6 * units as f64 * table.unit(&machines[at])) as u64;
        let sum_of = |at: usize, of: fn(&StepNeeds) -> u64| job.steps[cut[at].clone()].iter().map(of).sum();
        let times: Vec<SpanTime> = (0..spans)
            .map(|at| SpanTime {
                forward_us: us(
                    at,
                    if at + 1 == spans {
                        0
                    } else {
                        sum_of(at, |step| step.forward_us)
                    },
                ),
                backward_us: us(at, sum_of(at, |step| step.backward_us)),
            })
            .collect();
        let links: Vec<LinkTime> = machines
            .windows(2)
            .map(|pair| LinkTime {
                send_us: job.boundaries[0] * 1_000_000 / pair[0].rate.min(pair[1].rate),
                delay_us: (pair[0].round_trip_us + pair[1].round_trip_us) / 4,
            })
            .collect();
        let limits: Vec<u32> = (0..spans).map(|at| in_flight_limit(at, spans, MORE)).collect();
        let microbatches = job.batch.div_ceil(job.micro_batch) as u32;
        let played = simulate(&times, &links, &limits, microbatches).total_us as f64 / 1e6;
        let said = forecast.round - machines.iter().map(|m| m.round_trip_us).max().unwrap_or(0) as f64 / 1e6;
        let ratio = said / played;
        assert!((0.69..1.01).contains(&ratio), "seed {seed}: {ratio}");
        sum += (ratio - 1.0).abs();
        count += 1;
    }
    assert!(sum / f64::from(count) < 0.05, "{}", sum / f64::from(count));
}

#[test]
fn even_holders_are_what_members_make_of_their_order() {
    let mut several = 0;
    for seed in 0..300 {
        let (mut job, machines) = drawn(seed);
        (job.even, job.spans) = (true, 2..=job.steps.len());
        let Some(plan) = job.plan(&machines) else { continue };
        let (spans, Parallelism::Split { lanes }) = (&plan.placement.spans, plan.placement.way) else {
            panic!("it is split");
        };
        let cut: Vec<Range<usize>> = spans.iter().map(|span| span.steps.clone()).collect();
        assert_eq!(job.in_order(&cut, &plan.placement.order(), lanes), plan.placement);
        several += usize::from(spans[0].holders.len() > 1);
    }
    assert!(several > 5, "{several}");
}

#[test]
fn many_machines_are_planned_for_soon_and_well() {
    let (mut job, _) = drawn(3);
    (job.copies, job.spans, job.batch) = (1, 2..=job.steps.len(), 256);
    let mut random = SplitMix(9);
    let machines: Vec<Machine> = (0..24)
        .map(|_| Machine {
            memory_bytes: job.whole_bytes / 3 + random.bits() % job.whole_bytes,
            speed: 500 + random.bits() % 20_000,
            rate: 1 << 27,
            round_trip_us: 1_000,
        })
        .collect();
    let plan = job.plan(&machines).expect("there is room");
    // No more than half of what all of them could do is lost.
    let speed: u64 = machines.iter().map(|machine| machine.speed).sum();
    let least = job.batch as f64 * 1e3 / speed as f64;
    assert!(
        plan.forecast.round < 2.0 * least * 4.0 / 3.0,
        "{} {least}",
        plan.forecast.round
    );
}

/// Machines whose speeds drift and are measured with noise, as headers smooth it.
struct Measured {
    random: SplitMix,
    machines: Vec<Machine>,
    drift: Vec<f64>,
    smooth: Vec<f64>,
}

impl Measured {
    fn of(machines: Vec<Machine>, seed: u64) -> Self {
        let speeds = machines.iter().map(|machine| machine.speed as f64);
        Self {
            random: SplitMix(seed),
            drift: vec![1.0; machines.len()],
            smooth: speeds.collect(),
            machines,
        }
    }

    fn next(&mut self) -> Vec<Machine> {
        let mut measured = self.machines.clone();
        for (at, machine) in measured.iter_mut().enumerate() {
            let mut unit = || 2.0 * self.random.unit() - 1.0;
            self.drift[at] = (self.drift[at] * (1.0 + 0.02 * unit())).clamp(0.8, 1.25);
            let now = machine.speed as f64 * self.drift[at] * (1.0 + 0.3 * unit());
            self.smooth[at] = 0.75 * self.smooth[at] + 0.25 * now;
            machine.speed = self.smooth[at] as u64;
        }
        measured
    }
}

/// Eight equal steps, and machines that have room for five of them each.
fn four() -> (Job, Vec<Machine>) {
    let step = |at: usize| StepNeeds {
        forward_us: 1_000,
        backward_us: 3_000,
        tensors: vec![(at, 1_000_000)],
        working_bytes: 0,
    };
    let job = Job {
        steps: (0..8).map(step).collect(),
        boundaries: vec![10_000; 8],
        terms: Terms {
            bytes_per_parameter: 24,
            boundary_bytes: 10_000,
            fixed_bytes: 0,
        },
        lanes: vec![1, 2, 4],
        whole_bytes: 8 * 26_000_000,
        moments_bytes: 8 * 8_000_000,
        vector_bytes: 4 * 8_000_000,
        batch: 64,
        micro_batch: 2,
        copies: 1,
        spans: 1..=8,
        even: false,
    };
    let machine = |speed| Machine {
        memory_bytes: 5 * 30_000_000,
        speed,
        rate: 100_000_000,
        round_trip_us: 2_000,
    };
    (
        job,
        vec![machine(4_000), machine(8_000), machine(3_000), machine(6_000)],
    )
}

#[test]
fn noise_and_drift_change_little_and_undo_nothing() {
    let mut without = 0;
    for seed in 0..4 {
        let (job, machines) = four();
        let first = job.plan(&machines).expect("it fits").placement;
        let (mut watch, mut other) = (Watch::new(first.clone(), 0), first.clone());
        let mut was: Vec<(u64, Placement)> = vec![(0, first)];
        let mut measured = Measured::of(machines, seed);
        for round in 1..=500 {
            let now = measured.next();
            let (next, change) = watch.next(&job, &now, round);
            let best = job.plan(&now).expect("it fits").placement;
            without += usize::from(best != other);
            other = best;
            assert_eq!(change.is_some(), next.placement != watch.placement);
            if change.is_some() {
                let back = was
                    .iter()
                    .rev()
                    .nth(1)
                    .is_some_and(|(_, old)| *old == next.placement);
                assert!(!back || round >= watch.since + 20, "undone within twenty rounds");
                was.push((round, next.placement.clone()));
            }
            watch = next;
        }
        assert!(was.len() <= 4, "seed {seed}: {was:?}");
    }
    assert!(without > 200, "the best plan itself changes: {without}");
}

#[test]
fn what_lasts_changes_the_plan() {
    let (job, mut machines) = four();
    let plan = job.plan(&machines).expect("it fits");
    let mut watch = Watch::new(plan.placement, 0);
    let mut rounds = |machines: &[Machine], range: Range<u64>| {
        let mut changes = Vec::new();
        for round in range {
            let (next, change) = watch.next(&job, machines, round);
            changes.extend(change.map(|change| (round, change)));
            watch = next;
        }
        changes
    };
    assert_eq!(rounds(&machines, 1..40), []);
    // The fastest is slower from here on.
    machines[1].speed = 2_000;
    let changes = rounds(&machines, 40..100);
    let [(42, change)] = &changes[..] else {
        panic!("{changes:?}");
    };
    let (before, after) = (change.before.expect("it fitted"), change.plan.forecast.round);
    assert!(
        after < 0.8 * before && change.takes < 20.0 * (before - after),
        "{change:?}"
    );
    assert!(change.fetches.iter().any(|bytes| *bytes > 0));
    // Over lines on which the parts would be on their way for long it would stay. One that has gone is replaced at once.
    machines.iter_mut().for_each(|machine| machine.rate = 200_000);
    machines[1].speed = 30_000;
    assert_eq!(rounds(&machines, 100..200), []);
    machines[3].memory_bytes = 0;
    let changes = rounds(&machines, 200..210);
    assert!(
        matches!(&changes[..], [(200, change)] if change.before.is_none()),
        "{changes:?}"
    );
}
