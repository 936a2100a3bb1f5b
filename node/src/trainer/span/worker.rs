//! A span of a task's model on one device.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};

use super::super::parameters::drawing;
use super::super::prefetch::intact;
use super::super::read::{as_floats, read, read_scalar};
use super::super::worker::{Pending, WorkerError};
use super::model_steps::{Made, run_step, stages_of};
use super::place::{gradients_of, placed};
use super::{Activation, ModelSteps, Passed, SpanWorker};
use crate::device::OpenDevice;
use crate::task::{Task, batch_of};

/// Trains some consecutive steps of a task's model on one device.
///
/// On a GPU gradients are read back after each microbatch and summed on the host, as on a processor.
pub struct SpanTrainer<T: Task> {
    task: Arc<T>,
    model: Arc<ModelSteps>,
    seed: u64,
    span: Range<usize>,
    /// The tensors that the span uses.
    tensors: Vec<usize>,
    /// The device, without autodiff.
    device: Device,
    loaded: Option<Loaded<T>>,
}

/// The parameters on the device.
struct Loaded<T: Task> {
    /// All of the span's parameters, without gradients. It is on a device with autodiff all the same, since Burn's
    /// dropout does nothing elsewhere.
    plain: T::Model,
    /// For each step a model with the parameters that it uses, so that each step has its own graph. Threads that share
    /// a graph wait for each other, and the gradients of a tensor that two steps use would be added in no fixed order.
    tracked: Vec<T::Model>,
}

impl<T: Task> SpanTrainer<T> {
    /// The worker of some steps. `model` is the result of [`ModelSteps::of`] for the task.
    ///
    /// # Errors
    ///
    /// If the task offers no steps, or not these.
    pub fn new(
        task: Arc<T>,
        device: &OpenDevice,
        model: Arc<ModelSteps>,
        span: Range<usize>,
        seed: u64,
    ) -> Result<Self, WorkerError> {
        let steps = stages_of(&*task)?.steps();
        if span.is_empty() || span.end > steps || model.steps() != steps {
            return Err(WorkerError::Unsupported {
                problem: format!("it has {steps} steps, and {span:?} are none of them"),
            });
        }
        Ok(Self {
            tensors: model.tensors_of(span.clone()),
            task,
            model,
            seed,
            span,
            device: device.device.clone(),
            loaded: None,
        })
    }

    /// How many gradients a step has.
    fn len(&self, step: usize) -> usize {
        let tensors = self.model.uses[step].iter();
        tensors
            .map(|tensor| self.model.layout.tensors[*tensor].len())
            .sum()
    }

    fn is_first(&self) -> bool {
        self.span.start == 0
    }

    fn is_last(&self) -> bool {
        self.span.end == self.model.steps()
    }

    fn tensor(&self, activation: Activation) -> Tensor<3> {
        let Activation { shape, values } = activation;
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// Runs one step. Its random numbers depend on the samples and the step, and are the same when it is repeated.
    fn run(
        &self,
        model: &T::Model,
        step: usize,
        samples: &[u64],
        x: Option<Tensor<3>>,
        device: &Device,
    ) -> Result<Made, WorkerError> {
        let first = samples.first().copied().unwrap_or(0);
        device.seed(self.seed ^ first.rotate_left(32) ^ (step as u64).rotate_left(16));
        let batch = || batch_of(self.task.dataset(), self.seed, samples);
        let stages = stages_of(&*self.task)?;
        let made = run_step::<T>(stages, model, step, x, batch, device);
        intact(&*self.task)?;
        Ok(made)
    }

    /// The forward pass, in which each step has its own graph that begins at its input.
    fn forward_tracked(&self, samples: &[u64], input: Option<Tensor<3>>) -> Result<Vec<Link>, WorkerError> {
        let device = self.device.clone().autodiff();
        let loaded = self.loaded.as_ref().expect("parameters were loaded");
        let (mut links, mut x) = (Vec::new(), input);
        for (model, step) in loaded.tracked.iter().zip(self.span.clone()) {
            let input = x.take().map(|x| Tensor::from_inner(x).require_grad());
            let output = self.run(model, step, samples, input.clone(), &device)?;
            if let Made::Activation(y) = &output {
                x = Some(y.clone().inner());
            }
            links.push(Link { input, output });
        }
        Ok(links)
    }
}

/// A step's graph after its forward pass.
struct Link {
    input: Option<Tensor<3>>,
    output: Made,
}

impl<T: Task> SpanWorker for SpanTrainer<T> {
    fn model(&self) -> &ModelSteps {
        &self.model
    }

    fn steps(&self) -> Range<usize> {
        self.span.clone()
    }

    fn load(&mut self, mut params: Vec<f32>) -> Result<(), WorkerError> {
        let lengths = self
            .tensors
            .iter()
            .map(|tensor| self.model.layout.tensors[*tensor].len());
        let expected = lengths.clone().sum();
        if params.len() != expected {
            return Err(WorkerError::WrongLength {
                expected,
                found: params.len(),
            });
        }
        // Frees the old parameters before the new ones arrive.
        self.loaded = None;
        let mut of_span = vec![None; self.model.layout.tensors.len()];
        for (tensor, length) in self.tensors.iter().zip(lengths).rev() {
            let data = TensorData::new(params.split_off(params.len() - length), [length]);
            // Returns the memory of what is on the device now.
            params.shrink_to_fit();
            of_span[*tensor] = Some(Tensor::<1>::from_data(data, &self.device));
        }
        let autodiff = self.device.clone().autodiff();
        let tracked = |step: usize| {
            let uses = &self.model.uses[step];
            let own = |(tensor, values): (usize, &Option<Tensor<1>>)| {
                values.as_ref().filter(|_| uses.contains(&tensor)).cloned()
            };
            let of_step: Vec<_> = of_span.iter().enumerate().map(own).collect();
            placed(self.task.model(&autodiff), &of_step, &self.model.trained)
        };
        self.loaded = Some(Loaded {
            tracked: self.span.clone().map(tracked).collect(),
            plain: placed(
                self.task.model(&autodiff),
                &of_span,
                &vec![false; self.model.trained.len()],
            ),
        });
        Ok(())
    }

    fn forward<'a>(&'a mut self, samples: &'a [u64], input: Option<Activation>) -> Pending<'a, Activation> {
        Box::pin(async move {
            let y = {
                let _random = drawing();
                let loaded = self.loaded.as_ref().expect("parameters were loaded");
                let device = self.device.clone().autodiff();
                let mut x = input.map(|input| Tensor::from_inner(self.tensor(input)));
                for step in self.span.clone() {
                    match self.run(&loaded.plain, step, samples, x.take(), &device)? {
                        Made::Activation(y) => x = Some(y),
                        Made::Loss(_) => panic!("the last span gives no activations"),
                    }
                }
                x.expect("a span has a step").inner()
            };
            read_activation(y).await
        })
    }

    fn backward<'a>(
        &'a mut self,
        samples: &'a [u64],
        input: Option<Activation>,
        gradient: Option<Activation>,
        mut sums: Vec<f32>,
    ) -> Pending<'a, Passed> {
        Box::pin(async move {
            assert_eq!(
                gradient.is_none(),
                self.is_last(),
                "all but the last span take a gradient"
            );
            let lens: Vec<usize> = self.span.clone().map(|step| self.len(step)).collect();
            assert_eq!(
                sums.len(),
                lens.iter().sum::<usize>(),
                "as many sums as the steps have"
            );
            let (mut end, mut bad) = (sums.len(), None);
            let input = input.map(|input| self.tensor(input));
            let links = {
                let _random = drawing();
                self.forward_tracked(samples, input)?
            };
            let mut gradient = gradient.map(|gradient| self.tensor(gradient));
            let mut loss_sum = None;
            for (place, Link { input, output }) in links.into_iter().enumerate().rev() {
                end -= lens[place];
                let root = match output {
                    Made::Loss(mean) if mean.dims() == [1] => {
                        // Gradients are summed over samples, not averaged.
                        let sum = mean.mul_scalar(samples.len() as f32);
                        loss_sum = Some(sum.clone().inner());
                        sum
                    }
                    Made::Loss(mean) => {
                        return Err(WorkerError::BadLoss {
                            problem: format!(
                                "has the shape {:?}; return the mean over the samples",
                                mean.dims()
                            ),
                        });
                    }
                    // Burn starts from a scalar. The gradient of this one with regard to the output is the given
                    // gradient.
                    Made::Activation(y) => {
                        let given = gradient.take().expect("from the step behind");
                        (y * Tensor::from_inner(given)).sum()
                    }
                };
                let uses = &self.model.uses[self.span.start + place];
                if !root.is_tracked() {
                    // Nothing of the first step is trained. All later steps have an input with a gradient.
                    continue;
                }
                let mut gradients = root.backward();
                gradient = input.and_then(|input| input.grad_remove(&mut gradients));
                let model = &self.loaded.as_ref().expect("as above").tracked[place];
                let mut begin = end;
                for (tensor, part) in uses.iter().zip(gradients_of(model, uses, &mut gradients)) {
                    let own = begin..begin + self.model.layout.tensors[*tensor].len();
                    begin = own.end;
                    let Some(part) = part else { continue };
                    if !add(&mut sums[own], as_floats(&read(part).await?)?) {
                        bad.get_or_insert(*tensor);
                    }
                }
            }
            let loss_sum = match loss_sum {
                Some(loss) => Some(read_scalar(loss).await?),
                None => None,
            };
            if loss_sum.is_some_and(|loss: f32| !loss.is_finite()) {
                return Err(WorkerError::LossNotFinite);
            }
            if let Some(tensor) = bad {
                let tensor = self.model.layout.tensors[tensor].name.clone();
                return Err(WorkerError::GradientNotFinite { tensor });
            }
            let gradient = match gradient {
                Some(gradient) if !self.is_first() => Some(read_activation(gradient).await?),
                _ => None,
            };
            Ok(Passed {
                gradient,
                loss_sum,
                sums,
            })
        })
    }
}

/// Adds values to sums, and returns whether all sums are finite.
fn add(sums: &mut [f32], values: &[f32]) -> bool {
    let mut bad = 0;
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value;
        // Without a branch, so that the compiler vectorizes the loop.
        bad |= u32::from(!sum.is_finite());
    }
    bad == 0
}

async fn read_activation(tensor: Tensor<3>) -> Result<Activation, WorkerError> {
    let shape = tensor.dims();
    let data = read(tensor).await?;
    let values = as_floats(&data)?.to_vec();
    Ok(Activation { shape, values })
}
