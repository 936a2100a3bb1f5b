//! What follows from the shapes of the inputs alone, computed once: half of a language model's operations are shapes,
//! positions and masks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::budget::bytes;
use crate::host::HostTensor;
use crate::pass::{Node, Pass};

/// Plans to keep. A run has batches of a few sizes: full ones, a last one, and those of evaluation.
const MOST_PLANS: usize = 8;

/// The operations that remain, and the values that they need.
pub(crate) struct Plan {
    /// Numbers of the nodes, and the values that nothing needs after each.
    pub(crate) steps: Vec<(usize, Vec<usize>)>,
    /// Values that are known before the pass.
    pub(crate) known: Vec<(usize, HostTensor)>,
}

impl Plan {
    /// The plan for these nodes. `kept` are the values that nobody may drop.
    pub(crate) fn of(
        nodes: &[Node],
        chosen: impl Iterator<Item = usize>,
        kept: &[usize],
        known: Vec<(usize, HostTensor)>,
    ) -> Self {
        let mut steps: Vec<(usize, Vec<usize>)> = chosen.map(|number| (number, Vec::new())).collect();
        let mut last = HashMap::new();
        for (step, (number, _)) in steps.iter().enumerate() {
            let node = &nodes[*number];
            for slot in node.inputs.iter().chain(&node.outputs).flatten() {
                last.insert(*slot, step);
            }
        }
        for slot in kept {
            last.remove(slot);
        }
        for (slot, step) in last {
            steps[step].1.push(slot);
        }
        Self { steps, known }
    }

    fn bytes(&self) -> u64 {
        self.known.iter().map(|(_, value)| bytes(value)).sum()
    }

    /// Gives a pass the values that are known before it.
    pub(crate) fn set_known(&self, pass: &mut Pass) {
        for (slot, value) in &self.known {
            pass.set(*slot, value.clone().into(), true);
        }
    }

    /// The rest of this plan, after a pass has shown which values are fixed. The pass must have kept them.
    pub(crate) fn reduced(&self, nodes: &[Node], pass: &Pass, kept: &[usize]) -> Self {
        let is_fixed = |slot: &Option<usize>| slot.is_none_or(|slot| pass.fixed(slot).is_some());
        let rest = self.steps.iter().map(|(number, _)| *number);
        let rest: Vec<usize> = rest
            .filter(|number| !nodes[*number].outputs.iter().all(is_fixed))
            .collect();
        let needed = rest
            .iter()
            .flat_map(|number| nodes[*number].inputs.iter().flatten());
        let mut needed: Vec<usize> = needed.chain(kept).copied().collect();
        needed.sort_unstable();
        needed.dedup();
        let known = needed
            .into_iter()
            .filter_map(|slot| Some((slot, pass.fixed(slot)?.clone())));
        let known = known.collect();
        Self::of(nodes, rest.into_iter(), kept, known)
    }
}

/// The shapes of all inputs.
type Key = Vec<Vec<usize>>;

/// Plans by the shapes of the inputs, the latest last.
#[derive(Default)]
pub(crate) struct Plans(Mutex<Vec<(Key, Arc<Plan>)>>);

impl Plans {
    pub(crate) fn get(&self, key: &[Vec<usize>]) -> Option<Arc<Plan>> {
        let plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = plans.iter().find(|(own, _)| own == key)?;
        Some(found.1.clone())
    }

    /// Keeps a plan, and as many of the former ones as have no more than this many bytes of values together.
    pub(crate) fn keep(&self, key: Key, plan: Plan, most_bytes: u64) -> Arc<Plan> {
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = plans.iter().find(|(own, _)| *own == key) {
            return found.clone();
        }
        let plan = Arc::new(plan);
        let held = |plans: &[(Key, Arc<Plan>)]| plans.iter().map(|(_, own)| own.bytes()).sum::<u64>();
        while plans.len() == MOST_PLANS || !plans.is_empty() && held(&plans) + plan.bytes() > most_bytes {
            plans.remove(0);
        }
        plans.push((key, plan.clone()));
        plan
    }
}
