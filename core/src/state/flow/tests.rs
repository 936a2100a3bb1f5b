//! Members that pass tensors to each other, without messages.

use super::*;
use crate::ledger::cut::SampleRange;
use crate::run::split::Step as ModelStep;
use std::num::NonZeroU16;

/// Two spans of one step each, eight samples in four microbatches and two lanes.
fn split() -> (Split, Batch) {
    let step = |start: usize| ModelStep {
        ranges: std::iter::once(start..start + 3).collect(),
        cost: 1,
        boundary: 1,
    };
    let split = Split {
        steps: vec![step(0), step(3)],
        spans: vec![NonZeroU16::MIN; 2],
        micro_batch: 2.try_into().unwrap(),
        boundary: Codec::F32,
        lanes: 2.try_into().unwrap(),
    };
    let batch = Batch::new(
        &split,
        &[SampleRange {
            start: 0,
            end: 8,
            refused_by: None,
        }],
    );
    (split, batch)
}

/// Members that compute these lanes of the first and of the second span.
fn members(routes: &[[usize; 2]; 2], count: usize) -> Vec<Flow> {
    let (split, batch) = split();
    let flow = |me| {
        Flow::new(
            split.clone(),
            batch.clone(),
            (Route::new(routes), me),
            (false, false),
        )
    };
    (0..count).map(flow).collect()
}

/// A device's result of a task: numbers that depend on all inputs.
fn compute(flow: &mut Flow, task: Task) -> Given {
    let (input, gradient, sum) = flow.input(task);
    let all: f32 = input.iter().chain(&gradient).sum::<f32>() + task.microbatch as f32 + 1.0;
    let output = if task.span == 0 && task.back {
        0
    } else {
        flow.batch.len(task.microbatch) as usize
    };
    Given {
        output: (0..output).map(|i| all * (i + 1) as f32).collect(),
        sum: sum.iter().map(|x| x + all).collect(),
        loss: if task.span == 1 { all } else { 0.0 },
    }
}

/// Lets members ask each other and compute until none has anything to do. Returns how many tasks each has done.
fn work(flows: &mut [Flow], alive: &[usize]) -> Vec<u32> {
    work_with(flows, alive, |_, _| {})
}

/// Like [`work`], with a change to the devices' results.
fn work_with(flows: &mut [Flow], alive: &[usize], mut change: impl FnMut(Task, &mut Given)) -> Vec<u32> {
    let mut mail: Vec<(usize, usize, Name, Bytes)> = Vec::new();
    for me in alive {
        for (span, lane, back, from, have) in flows[*me].wants() {
            let there = flows[from].on_want(*me, (span, lane, back), &have);
            let there = there.expect("it has a right to it");
            mail.extend(there.into_iter().map(|(name, data)| (from, *me, name, data)));
        }
    }
    let mut done = vec![0; flows.len()];
    loop {
        let mut idle = mail.is_empty();
        for (from, to, name, data) in std::mem::take(&mut mail) {
            assert!(flows[to].on_tensor(from, name, data));
        }
        for me in alive {
            let Some(task) = flows[*me].next() else { continue };
            idle = false;
            done[*me] += 1;
            let mut given = compute(&mut flows[*me], task);
            change(task, &mut given);
            let sends = flows[*me].done(task, given).unwrap();
            mail.extend(sends.into_iter().map(|(to, name, data)| (*me, to, name, data)));
        }
        if idle {
            return done;
        }
    }
}

fn sums(flows: &[Flow]) -> BTreeMap<(usize, usize), Vec<f32>> {
    let own = flows.iter().enumerate().flat_map(|(me, flow)| {
        let lanes = flow
            .route
            .by(me)
            .map(move |lane| (lane, flow.lanes[&lane].sum.clone()));
        lanes.collect::<Vec<_>>()
    });
    own.collect()
}

#[test]
fn sums_are_the_same_whoever_computes_what() {
    let mut alone = members(&[[0, 0], [0, 0]], 1);
    work(&mut alone, &[0]);
    assert!(alone[0].is_done());
    for routes in [
        [[0, 0], [1, 1]],
        [[0, 1], [2, 2]],
        [[0, 1], [1, 0]],
        [[3, 2], [1, 0]],
    ] {
        let mut flows = members(&routes, 4);
        work(&mut flows, &[0, 1, 2, 3]);
        assert!(flows.iter().all(Flow::is_done), "{routes:?}");
        assert_eq!(sums(&flows), sums(&alone), "{routes:?}");
        let made: Vec<_> = flows.iter_mut().map(Flow::made).collect();
        assert_eq!(made.iter().map(|(_, weight, _)| weight).sum::<u32>(), 8);
    }
}

#[test]
fn what_was_handed_in_comes_back_for_another_attempt() {
    let routes = [[0, 1], [1, 0]];
    let mut flows = members(&routes, 2);
    work(&mut flows, &[0, 1]);
    let expected = sums(&flows);
    for (me, flow) in flows.iter_mut().enumerate() {
        let (gradient, weight, loss) = flow.made();
        flow.put_back(gradient.clone());
        flow.begin_attempt(Route::new(&routes), me);
        assert_eq!(flow.made(), (gradient.clone(), weight, loss));
        flow.put_back(gradient);
    }
    assert_eq!(sums(&flows), expected);
    // The first is gone. The other computes its lanes too.
    let mut left = flows.split_off(1);
    left[0].begin_attempt(Route::new(&[[0, 0], [0, 0]]), 0);
    assert!(!left[0].is_done());
    work(&mut left, &[0]);
    assert_eq!(sums(&left), expected);
}

#[test]
fn only_what_the_dead_member_had_is_computed_again() {
    let routes = [[0, 1], [2, 3]];
    let mut alone = members(&[[0, 0], [0, 0]], 1);
    work(&mut alone, &[0]);
    let mut flows = members(&routes, 4);
    let first = work(&mut flows, &[0, 1, 2, 3]);
    // Forward and backward of two microbatches each; both at once at the end.
    assert_eq!(first, [4, 4, 2, 2]);
    // The first is gone: another holder of its span takes its lane.
    for (me, flow) in flows.iter_mut().enumerate().skip(1) {
        flow.begin_attempt(Route::new(&[[1, 1], [2, 3]]), me);
    }
    assert!(!flows[1].is_done() && flows[2].is_done() && flows[3].is_done());
    let again = work(&mut flows, &[1, 2, 3]);
    assert_eq!(again, [0, 4, 0, 0]);
    let mut left = sums(&alone);
    left.retain(|(span, lane), _| flows[1].is_own(*span, *lane));
    assert_eq!(sums(&flows[..2])[&(0, 0)], left[&(0, 0)]);
    assert_eq!(sums(&flows[..2])[&(0, 1)], left[&(0, 1)]);
}

#[test]
fn what_nobody_has_a_right_to_is_neither_taken_nor_given() {
    let mut flows = members(&[[0, 1], [2, 3]], 4);
    let data = |len: usize| Bytes::from(vec![0u8; 4 * len]);
    // It is of lane 0, whose activations go from the first to the third.
    assert!(flows[2].on_tensor(0, (0, false, 0), data(2)));
    assert!(!flows[2].on_tensor(1, (0, false, 0), data(2)), "from another");
    assert!(!flows[3].on_tensor(0, (0, false, 0), data(2)), "to another");
    assert!(!flows[2].on_tensor(0, (0, false, 0), data(3)), "too long");
    assert!(
        !flows[2].on_tensor(0, (0, false, 9), data(2)),
        "no such microbatch"
    );
    assert!(!flows[2].on_tensor(0, (7, true, 0), data(2)), "no such span");
    assert!(
        !flows[0].on_tensor(2, (0, true, 0), data(2)),
        "nothing goes back from the first span"
    );
    assert!(flows[0].on_want(2, (1, 0, false), &[]).is_some());
    assert!(
        flows[0].on_want(3, (1, 0, false), &[]).is_none(),
        "of another's lane"
    );
    assert!(
        flows[0].on_want(2, (1, 1, false), &[]).is_none(),
        "of another lane"
    );
    assert!(flows[0].on_want(2, (9, 0, false), &[]).is_none(), "no such span");
    assert!(flows[0].on_want(2, (1, 9, false), &[]).is_none(), "no such lane");
    assert!(
        flows[0].on_want(2, (1, 0, true), &[]).is_none(),
        "nothing comes back to the last span"
    );
}

#[test]
fn what_is_no_number_is_refused_by_all_who_get_it() {
    let mut flows = members(&[[0, 0], [1, 1]], 2);
    for lane in 0..2 {
        assert!(flows[0].on_want(1, (1, lane, false), &[]).is_some());
    }
    let task = flows[0].next().unwrap();
    let mut given = compute(&mut flows[0], task);
    given.output[0] = f32::NAN;
    let sends = flows[0].done(task, given).unwrap();
    assert!(flows[0].refuses && sends[0].2.is_empty());
    let (to, name, data) = sends[0].clone();
    assert!(flows[to].on_tensor(0, name, data) && flows[to].refuses);
    // Its result is not finite either, and comes back empty.
    assert!(flows[0].on_want(1, (1, 1, false), &[]).is_some());
    let lane = name.2 as usize / 2;
    assert!(flows[1].on_want(0, (0, lane, true), &[]).is_some());
    let task = flows[1].next().unwrap();
    let given = compute(&mut flows[1], task);
    let back = flows[1].done(task, given).unwrap();
    assert!(back[0].2.is_empty());
    // All goes on: others need not wait for a tensor that does not come.
    work(&mut flows, &[0, 1]);
    assert!(flows.iter().all(Flow::is_done));
    let (_, weight, loss) = flows[1].made();
    assert_eq!((weight, loss), (0, 0.0));
    // A sum that stops being finite within a lane is found at the lane's end.
    let mut flows = members(&[[0, 0], [1, 1]], 2);
    let mut spoilt = 0;
    work_with(&mut flows, &[0, 1], |task, given| {
        if (task.span, task.back, task.microbatch) == (1, true, 0) {
            given.sum[0] = f32::INFINITY;
            spoilt += 1;
        }
    });
    assert_eq!(spoilt, 1);
    assert!(flows.iter().all(Flow::is_done) && flows[1].refuses);
    let (sum, weight, _) = flows[1].made();
    assert!(weight == 0 && sum.iter().all(|x| x.is_finite()));
    // So is a result of the wrong length.
    let mut flows = members(&[[0, 0], [1, 1]], 2);
    let task = flows[0].next().unwrap();
    assert!(flows[0].done(task, Given::default()).is_err());
    flows[0].refuse(task);
    assert!(flows[0].refuses);
}

#[test]
fn no_more_is_under_way_than_there_are_stashes_for() {
    let mut flows = members(&[[0, 0], [1, 1]], 2);
    let mut forward = 0;
    while let Some(task) = flows[0].next() {
        assert!(!task.back);
        let given = compute(&mut flows[0], task);
        flows[0].done(task, given).unwrap();
        forward += 1;
    }
    // Both microbatches of each lane: one for each span behind, and one more for the way.
    assert_eq!(forward, 4);
    assert_eq!(flows[0].bytes(), 4 * 2 * 4);
}
