//! A span of a task's model on one device.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};

use super::super::parameters::drawing;
use super::super::prefetch::intact;
use super::super::read::{as_floats, read, read_scalar};
use super::super::worker::{Pending, WorkerError};
use super::model_steps::{Made, draw, run_step, stages_of};
use super::place::{gradients_of, placed};
use super::sums::OrderedSums;
use super::{Activation, ModelSteps, Passed, SpanSums, SpanWorker};
use crate::device::OpenDevice;
use crate::task::{Dataset, Task};

/// Trains some consecutive steps of a task's model on one device.
///
/// On a GPU gradients are read back after each microbatch and summed on the host, as on a processor.
pub struct SpanTrainer<T: Task> {
    task: Arc<T>,
    model: Arc<ModelSteps>,
    seed: u64,
    span: Range<usize>,
    /// Those that the span uses.
    tensors: Vec<usize>,
    /// Without autodiff.
    device: Device,
    loaded: Option<Loaded<T>>,
    sums: OrderedSums,
    /// By microbatch: summed up in the end, so that their order is that of their numbers.
    losses: Vec<Option<f32>>,
}

/// The parameters on the device.
struct Loaded<T: Task> {
    /// All of the span's, without gradients; on a device with autodiff nevertheless, since Burn's dropout does nothing
    /// elsewhere.
    plain: T::Model,
    /// For each step a model with what it uses, so that each has a graph of its own: threads that share one wait for each
    /// other, and gradients of a tensor that two steps use would be added where nobody can say in which order.
    tracked: Vec<T::Model>,
}

impl<T: Task> SpanTrainer<T> {
    /// Steps of a model on a device. `model` is what [`ModelSteps::of`] says of the task.
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
            sums: OrderedSums::default(),
            losses: Vec::new(),
        })
    }

    /// Sums of nothing, unless there are some already.
    fn begin(&mut self) {
        if self.sums.is_empty() {
            self.sums = OrderedSums::new(self.span.start, &self.lengths(), None);
        }
    }

    /// The tensors that each step uses, with their lengths.
    fn lengths(&self) -> Vec<Vec<(usize, usize)>> {
        let length = |tensor: &usize| (*tensor, self.model.layout.tensors[*tensor].len());
        let of = |uses: &Vec<usize>| uses.iter().map(length).collect();
        self.model.uses[self.span.clone()].iter().map(of).collect()
    }

    /// Sums begin anew: where they are given, none are made before.
    fn forget(&mut self) {
        self.sums = OrderedSums::default();
        self.losses.clear();
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

    /// One step; random numbers are another for other samples and steps, yet the same when it is done again.
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
        let batch = || self.task.dataset().batch(samples);
        let stages = stages_of(&*self.task)?;
        let made = run_step::<T>(stages, model, step, x, batch, device);
        intact(&*self.task)?;
        Ok(made)
    }

    /// The forward pass, each step in a graph of its own that begins at its input.
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

/// A step that was computed forward, with its graph.
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

    fn tensors(&self) -> &[usize] {
        &self.tensors
    }

    fn init(&self) -> Vec<f32> {
        let mut values = Vec::new();
        let mut tensor = 0;
        let drawn = draw(&*self.task, self.seed, &mut |_, read| {
            if self.tensors.contains(&tensor) {
                // The data were just converted to this type.
                values.extend_from_slice(read().as_slice::<f32>().expect("f32 data"));
            }
            tensor += 1;
        });
        // It was drawn before, when the steps were found out.
        drawn.map(|_| values).unwrap_or_default()
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
        // The old ones go before the new ones come.
        self.loaded = None;
        let mut of_span = vec![None; self.model.layout.tensors.len()];
        for (tensor, length) in self.tensors.iter().zip(lengths).rev() {
            let data = TensorData::new(params.split_off(params.len() - length), [length]);
            // What is on the device goes back to the system here.
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
        self.forget();
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
        microbatch: u32,
        samples: &'a [u64],
        input: Option<Activation>,
        gradient: Option<Activation>,
    ) -> Pending<'a, Passed> {
        Box::pin(async move {
            assert_eq!(
                gradient.is_none(),
                self.is_last(),
                "all but the last span take a gradient"
            );
            self.begin();
            let input = input.map(|input| self.tensor(input));
            let links = {
                let _random = drawing();
                self.forward_tracked(samples, input)?
            };
            let mut gradient = gradient.map(|gradient| self.tensor(gradient));
            let mut loss_sum = None;
            for (place, Link { input, output }) in links.into_iter().enumerate().rev() {
                let root = match output {
                    Made::Loss(mean) if mean.dims() == [1] => {
                        // Gradients are summed over samples.
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
                    // Burn begins at a number: the gradient of this one with regard to the output is the given one.
                    Made::Activation(y) => {
                        let given = gradient.take().expect("from the step behind");
                        (y * Tensor::from_inner(given)).sum()
                    }
                };
                let uses = &self.model.uses[self.span.start + place];
                if !root.is_tracked() {
                    // The first step, of which nothing is trained: all others have an input that gradients are taken at.
                    self.sums.add(place, microbatch, vec![None; uses.len()])?;
                    continue;
                }
                let mut gradients = root.backward();
                gradient = input.and_then(|input| input.grad_remove(&mut gradients));
                let model = &self.loaded.as_ref().expect("as above").tracked[place];
                let mut parts = Vec::with_capacity(uses.len());
                for part in gradients_of(model, uses, &mut gradients) {
                    parts.push(match part {
                        Some(part) => Some(read(part).await?),
                        None => None,
                    });
                }
                self.sums.add(place, microbatch, parts)?;
            }
            let loss_sum = match loss_sum {
                Some(loss) => Some(read_scalar(loss).await?),
                None => None,
            };
            if loss_sum.is_some() {
                let place = microbatch as usize;
                self.losses.resize(self.losses.len().max(place + 1), None);
                self.losses[place] = loss_sum;
            }
            let gradient = match gradient {
                Some(gradient) if !self.is_first() => Some(read_activation(gradient).await?),
                _ => None,
            };
            Ok(Passed { gradient, loss_sum })
        })
    }

    fn put(&mut self, sums: Vec<f32>) {
        self.forget();
        self.sums = OrderedSums::new(self.span.start, &self.lengths(), Some(sums));
    }

    fn take(&mut self) -> Result<SpanSums, WorkerError> {
        self.begin();
        let loss_sum = self.losses.iter().flatten().sum::<f32>();
        let sums = std::mem::take(&mut self.sums);
        self.forget();
        if !loss_sum.is_finite() {
            return Err(WorkerError::LossNotFinite);
        }
        sums.finish(loss_sum).map_err(|tensor| {
            let tensor = self.model.layout.tensors[tensor].name.clone();
            WorkerError::GradientNotFinite { tensor }
        })
    }
}

async fn read_activation(tensor: Tensor<3>) -> Result<Activation, WorkerError> {
    let shape = tensor.dims();
    let data = read(tensor).await?;
    let values = as_floats(&data)?.to_vec();
    Ok(Activation { shape, values })
}
