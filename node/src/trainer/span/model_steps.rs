//! Finds out which parameters each step of a model uses, without ever holding all of them in memory.

use std::ops::Range;

use annulus_core::{Layout, TensorRule, TensorSpec};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::super::layout::List;
use super::super::parameters::drawing_alone;
use super::super::worker::WorkerError;
use crate::task::{Batch, Dataset, Stages, Task};

/// A model's parameters, and which of its steps use them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSteps {
    /// Where each tensor lies in the flat vector of the whole model.
    pub layout: Layout,
    /// For each tensor whether it is trained. A frozen one has no gradient.
    pub trained: Vec<bool>,
    /// For each step the tensors that it uses, in ascending order.
    pub uses: Vec<Vec<usize>>,
    /// For each step but the last, the positions and features of its output for one sample.
    pub shapes: Vec<[usize; 2]>,
}

impl ModelSteps {
    /// Runs each step once, for one sample, on a model of its own. Burn creates a parameter when it is first read, so
    /// only those that the step uses come to exist. Holds one step's parameters at a time.
    ///
    /// # Errors
    ///
    /// If the task offers no steps, its model cannot be trained, or no step uses a trained tensor.
    pub fn of<T: Task>(task: &T, seed: u64) -> Result<Self, WorkerError> {
        let stages = stages_of(task)?;
        let (layout, trained) = draw(task, seed, &mut |_, _| {})?;
        let follows = |tensor: &&TensorSpec| matches!(tensor.rule, TensorRule::Mean { .. });
        if let Some(tensor) = layout.tensors.iter().find(follows) {
            let problem = format!(
                "{} follows a statistic of the batch, which models in steps cannot carry yet",
                tensor.name
            );
            return Err(WorkerError::Unsupported { problem });
        }
        let _alone = drawing_alone();
        let device = Device::flex();
        let (mut uses, mut shapes, mut x) = (Vec::new(), Vec::new(), None);
        for step in 0..stages.steps() {
            let model = task.model(&device);
            let batch = || task.dataset().batch(&[0]);
            match run_step::<T>(stages, &model, step, x.take(), batch, &device) {
                Made::Activation(y) => {
                    let [_, positions, features] = y.dims();
                    shapes.push([positions, features]);
                    x = Some(y);
                }
                // Some backends compute only when the result is read.
                Made::Loss(loss) => drop(loss.into_data()),
            }
            uses.push(used_by(&model));
        }
        let idle =
            (0..trained.len()).find(|i| trained[*i] && !uses.iter().any(|tensors| tensors.contains(i)));
        match idle {
            None => Ok(Self {
                layout,
                trained,
                uses,
                shapes,
            }),
            Some(tensor) => Err(WorkerError::Unsupported {
                problem: format!("no step uses {}", layout.tensors[tensor].name),
            }),
        }
    }

    /// Measures each step's forward pass for one sample on this machine's processor, in microseconds, at least 1. Holds
    /// one step's parameters at a time.
    ///
    /// # Errors
    ///
    /// If the task offers no steps.
    #[cfg(not(target_family = "wasm"))]
    pub fn costs<T: Task>(task: &T) -> Result<Vec<u32>, WorkerError> {
        let stages = stages_of(task)?;
        let _alone = drawing_alone();
        let device = Device::flex();
        let (mut costs, mut x) = (Vec::new(), None);
        for step in 0..stages.steps() {
            let model = task.model(&device);
            let input = x.take();
            let run = || {
                let batch = || task.dataset().batch(&[0]);
                let begin = std::time::Instant::now();
                let made = run_step::<T>(stages, &model, step, input.clone(), batch, &device);
                let next = match made {
                    Made::Activation(y) => Some(Tensor::from_data(y.into_data(), &device)),
                    Made::Loss(loss) => {
                        drop(loss.into_data());
                        None
                    }
                };
                (next, begin.elapsed())
            };
            // The first run draws the parameters.
            run();
            let (next, mut took) = run();
            x = next;
            // Other work on the machine only adds time, so the shortest run counts.
            let mut all = took;
            while all < ENOUGH {
                let (_, again) = run();
                (took, all) = (took.min(again), all + again);
            }
            costs.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1));
        }
        Ok(costs)
    }

    /// Gives equal steps equal costs: the smallest that was measured for any of them, since other work on the machine
    /// only adds time. Two inner steps are equal if their tensors, inputs and outputs have equal shapes. If one takes
    /// more than [`UNLIKE`] times as long, it must do something else. Steps without tensors are never taken to be
    /// equal.
    pub fn evened(&self, costs: &[u32]) -> Vec<u32> {
        let shapes = |step: usize| {
            let tensors = self.uses[step].iter();
            let shapes: Vec<&[usize]> = tensors
                .map(|tensor| &self.layout.tensors[*tensor].shape[..])
                .collect();
            (shapes, self.shapes[step - 1], self.shapes[step])
        };
        let inner = 1..self.steps().saturating_sub(1).max(1);
        let even = |(step, cost): (usize, &u32)| {
            if !inner.contains(&step) || self.uses[step].is_empty() {
                return *cost;
            }
            let like = inner.clone().filter(|other| shapes(*other) == shapes(step));
            let least = like.map(|other| costs[other]).min().unwrap_or(*cost);
            if *cost <= least.saturating_mul(UNLIKE) {
                least
            } else {
                *cost
            }
        };
        costs.iter().enumerate().map(even).collect()
    }

    /// The elements of the flat vector that a step uses, as sorted ranges that do not touch.
    pub fn ranges(&self, step: usize) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for tensor in &self.uses[step] {
            let spec = &self.layout.tensors[*tensor];
            let own = spec.offset..spec.offset + spec.len();
            match ranges.last_mut() {
                Some(last) if last.end == own.start => last.end = own.end,
                _ => ranges.push(own),
            }
        }
        ranges
    }

    /// How many steps there are.
    pub fn steps(&self) -> usize {
        self.uses.len()
    }

    /// The tensors that some steps use, in ascending order, each once.
    pub fn tensors_of(&self, steps: Range<usize>) -> Vec<usize> {
        let mut tensors: Vec<usize> = self.uses[steps].concat();
        tensors.sort_unstable();
        tensors.dedup();
        tensors
    }
}

/// How long steps are measured, in repeated runs.
#[cfg(not(target_family = "wasm"))]
const ENOUGH: std::time::Duration = std::time::Duration::from_millis(50);

/// Two steps with equal tensors are taken to be equal if one is at most this many times as slow. A guess: more than
/// what a busy machine adds to the shortest of several runs.
pub const UNLIKE: u32 = 2;

/// The output of a step.
pub(super) enum Made {
    /// Of any step but the last.
    Activation(Tensor<3>),
    /// Of the last step.
    Loss(Tensor<1>),
}

/// Runs one step on a batch, on activations, or on both.
///
/// # Panics
///
/// If activations are missing or not expected.
pub(super) fn run_step<T: Task>(
    stages: &dyn Stages<T::Model, Batch<T>>,
    model: &T::Model,
    step: usize,
    x: Option<Tensor<3>>,
    batch: impl FnOnce() -> Batch<T>,
    device: &Device,
) -> Made {
    assert_eq!(x.is_none(), step == 0, "all steps but the first take activations");
    match x {
        None => Made::Activation(stages.input(model, batch(), device)),
        Some(x) if step + 1 == stages.steps() => Made::Loss(stages.head(model, x, batch(), device)),
        Some(x) => Made::Activation(stages.step(model, step, x)),
    }
}

/// The steps that a task offers, or why it offers none.
pub(super) fn stages_of<T: Task>(task: &T) -> Result<&dyn Stages<T::Model, Batch<T>>, WorkerError> {
    let unsupported = |problem: String| WorkerError::Unsupported { problem };
    let stages = task
        .stages()
        .ok_or_else(|| unsupported(format!("the task {} does not offer its steps", T::NAME)))?;
    match stages.steps() {
        0 | 1 => Err(unsupported("it has fewer than two steps".to_owned())),
        _ => Ok(stages),
    }
}

/// Called with a tensor's place in the flat vector; it may read the tensor's values.
pub type Look<'a> = dyn FnMut(Range<usize>, &dyn Fn() -> TensorData) + 'a;

/// Draws the model from the seed, one tensor at a time, and returns its layout and which tensors are trained. The bits
/// are those of the whole model, since tensors are drawn in the same order.
///
/// # Errors
///
/// If the model cannot be trained.
pub fn draw<T: Task>(task: &T, seed: u64, look: &mut Look<'_>) -> Result<(Layout, Vec<bool>), WorkerError> {
    let _alone = drawing_alone();
    let cpu = Device::flex().autodiff();
    cpu.seed(seed);
    let mut draw = Draw {
        list: List::default(),
        trained: Vec::new(),
        end: 0,
        look,
    };
    drop(task.model(&cpu).map(&mut draw));
    Ok((draw.list.finish(|name| task.rule(name))?, draw.trained))
}

struct Draw<'a, 'b> {
    list: List,
    trained: Vec<bool>,
    /// The end of the last tensor drawn.
    end: usize,
    look: &'a mut Look<'b>,
}

impl ModuleMapper for Draw<'_, '_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.list.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.list.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let tensor = param.base();
        self.list.add(&tensor);
        let own = self.end..self.end + tensor.shape().num_elements();
        self.end = own.end;
        (self.look)(own, &|| tensor.clone().inner().into_data_as::<f32>());
        self.trained.push(tensor.is_require_grad());
        // Puts a small tensor in its place, so that its values can be freed.
        Param::initialized(param.id, Tensor::zeros([1; D], &tensor.device()))
    }
}

/// The parameters that were read.
fn used_by<M: Module>(model: &M) -> Vec<usize> {
    #[derive(Default)]
    struct Used {
        tensors: Vec<usize>,
        next: usize,
    }

    impl ModuleVisitor for Used {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_initialized() {
                self.tensors.push(self.next);
            }
            self.next += 1;
        }
    }

    let mut used = Used::default();
    model.visit(&mut used);
    used.tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that each use one tensor of this shape.
    fn model(shapes: &[&[usize]]) -> ModelSteps {
        let mut end = 0;
        let tensors = shapes.iter().enumerate().map(|(at, shape)| {
            let spec = TensorSpec {
                name: format!("t{at}"),
                shape: shape.to_vec(),
                offset: end,
                rule: TensorRule::StepAndDecay,
            };
            end += spec.len();
            spec
        });
        let tensors: Vec<TensorSpec> = tensors.collect();
        ModelSteps {
            trained: vec![true; tensors.len()],
            layout: Layout { len: end, tensors },
            uses: (0..shapes.len()).map(|step| vec![step]).collect(),
            shapes: vec![[8, 4]; shapes.len() - 1],
        }
    }

    #[test]
    fn equal_steps_between_the_ends_cost_the_same() {
        let block: &[usize] = &[4, 4];
        let mut model = model(&[block, block, block, block, &[16], block, block]);
        // The first and last steps differ from the inner ones. Of five equal blocks one takes far longer.
        let costs = [90, 120, 100, 131, 107, 250, 40];
        assert_eq!(model.evened(&costs), [90, 100, 100, 100, 107, 250, 40]);
        // A step with another output is another step, and one without tensors equals none.
        model.shapes[2] = [8, 2];
        model.uses[1].clear();
        assert_eq!(model.evened(&costs), [90, 120, 100, 131, 107, 250, 40]);
    }
}
