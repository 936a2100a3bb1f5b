//! Trains a Burn model that the protocol sees as one flat vector of `f32`: parameters in, sums of gradients out.
//!
//! [`Worker`] computes gradients and knows nothing of peers, rounds or optimizers. [`Contributor`] turns them into what
//! a round needs. [`span`] computes some steps of a model, for models that are too large for one machine.

mod backward;
#[cfg(all(unix, feature = "native"))]
pub mod external;
mod fitting;
mod layout;
mod on_cpu;
mod on_device;
mod parameters;
mod prefetch;
mod read;
mod share;
#[cfg(not(target_family = "wasm"))]
mod slowed;
pub mod span;
mod stepping;
#[cfg(not(target_family = "wasm"))]
mod timed;
mod worker;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Device;

use self::backward::backward;
use self::fitting::Fitting;
use self::on_device::{View, gradients_and_loss, places, read_total};
use self::parameters::{drawing, initial_model};
use self::prefetch::{Batches, Prefetcher, intact};
use self::read::read_scores;
use self::stepping::rule_of;
use self::worker::check_finite;
use crate::device::{DeviceKind, OpenDevice};
use crate::task::{Dataset, Emit, Eval, Prompt, Task, drawn};
use annulus_core::Layout;
use annulus_core::optim::Optimizer;
use annulus_shaders::matrices;
use annulus_shaders::optim::LocalOptimizer;
use annulus_shaders::split::{self, SplitLayout, SplitVector};

pub use self::layout::layout_of;
#[cfg(test)]
pub(crate) use self::parameters::model_of;
pub(crate) use self::parameters::{with_parameters, with_tensors};
pub use self::share::{Contributor, Share, local_steps};
#[cfg(not(target_family = "wasm"))]
pub use self::slowed::Slowed;
#[cfg(not(target_family = "wasm"))]
pub use self::timed::Timed;
pub use self::worker::{Contribution, LocalStep, Pending, Stepper, Worker, WorkerError};

/// Options of a trainer besides its task and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainerOptions {
    /// The run's seed.
    pub seed: u64,
    /// Most samples that the device processes at once; 0 for the whole batch it is given.
    pub micro_batch: usize,
}

/// Trains a task's model on one device.
pub struct Trainer<T: Task> {
    task: Arc<T>,
    /// The device, with autodiff.
    device: Device,
    device_kind: DeviceKind,
    device_name: String,
    /// Batches that are computed in parallel: one per core on a CPU.
    threads: usize,
    options: TrainerOptions,
    fitting: Fitting,
    layout: Layout,
    /// Where each parameter lies in a vector on a GPU.
    on_device: Arc<SplitLayout>,
    /// Where each gradient lies in such a vector, and the loss behind them.
    with_loss: Arc<SplitLayout>,
    model: T::Model,
    /// On a GPU: the vector that the loaded model's parameters are views of.
    params: Option<SplitVector>,
    /// On a GPU: the optimizer that steps them.
    stepping: Option<LocalOptimizer>,
    prefetcher: Prefetcher<T>,
    /// The samples that were announced next, and their batches.
    ahead: Option<(Vec<u64>, Batches<T>)>,
    sum: Sum,
}

/// How long an evaluation waits for held-out data, if that is streamed. It keeps nobody waiting.
const HELD_OUT: Duration = Duration::from_secs(20);

/// The sums since parameters were loaded or the last sum was taken.
#[derive(Default)]
struct Sum {
    /// On the CPU the gradients; elsewhere the allocation that they will be read into.
    gradient: Vec<f32>,
    /// On other devices: the gradients, and the loss behind them.
    on_device: Option<SplitVector>,
    /// On the CPU: the sum of the losses.
    loss: f32,
    samples: Vec<u64>,
    /// The largest number of samples that the device was given at once.
    at_once: usize,
    /// Whether matrix units made some of it.
    by_units: bool,
}

impl<T: Task> Trainer<T> {
    /// Builds the model on `device`.
    ///
    /// # Errors
    ///
    /// If the model has no parameters, has some that cannot be trained by summing gradients, or does not fit into a
    /// buffer of the device.
    pub fn new(task: Arc<T>, device: &OpenDevice, options: TrainerOptions) -> Result<Self, WorkerError> {
        let largest = split::largest(&device.device).unwrap_or(usize::MAX);
        Self::within(task, device, options, largest)
    }

    /// Like [`new`](Self::new), with at most this many numbers in a buffer.
    fn within(
        task: Arc<T>,
        device: &OpenDevice,
        options: TrainerOptions,
        largest: usize,
    ) -> Result<Self, WorkerError> {
        // It comes while other things are made ready.
        task.have_held_out(Duration::ZERO);
        let (model, _) = initial_model(&*task, options.seed);
        let layout = layout_of(&model, |name| task.rule(name))?;
        let on_device = places(&layout, &[], largest)?;
        let with_loss = places(&layout, &[1], largest)?;
        let autodiff = match task.recompute() {
            false => device.device.clone().autodiff(),
            true => device.device.clone().autodiff().gradient_checkpointing(),
        };
        // The model is already on the CPU. Forking it would copy it for nothing.
        let model = match device.kind {
            DeviceKind::Cpu => model,
            DeviceKind::Gpu | DeviceKind::SoftwareGpu => model.fork(&autodiff),
        };
        Ok(Self {
            on_device,
            with_loss,
            prefetcher: Prefetcher::new(task.clone(), options.seed),
            task,
            device: autodiff,
            device_kind: device.kind,
            device_name: device.name.clone(),
            threads: match device.kind {
                // Also one where there are no threads.
                DeviceKind::Cpu => std::thread::available_parallelism().map_or(1, usize::from),
                DeviceKind::Gpu | DeviceKind::SoftwareGpu => 1,
            },
            options,
            fitting: Fitting::default(),
            layout,
            model,
            params: None,
            stepping: None,
            ahead: None,
            sum: Sum::default(),
        })
    }

    fn is_cpu(&self) -> bool {
        self.device_kind == DeviceKind::Cpu
    }

    /// How many of this number of samples the device works on at once.
    fn at_once(&self, samples: usize) -> usize {
        let wanted = match self.options.micro_batch {
            0 => samples,
            size => size.min(samples),
        };
        wanted.clamp(1, self.fitting.most)
    }

    /// Splits samples into micro-batches, and each of these into parts that the cores compute in parallel.
    fn cut<'a>(&self, samples: &'a [u64]) -> Vec<Vec<&'a [u64]>> {
        let at_once = self.at_once(samples.len());
        let parts = |samples: &'a [u64]| {
            let count = if self.is_cpu() {
                self.task.pieces(samples.len())
            } else {
                1
            };
            let length = samples.len().div_ceil(count.clamp(1, samples.len()));
            samples.chunks(length).collect()
        };
        samples.chunks(at_once).map(parts).collect()
    }

    /// Starts to make the batches of these samples.
    fn order(&self, samples: &[u64]) -> Batches<T> {
        let parts = self.cut(samples).concat();
        let parts = parts.into_iter().map(<[u64]>::to_vec).collect();
        self.prefetcher.order(parts, self.threads)
    }

    /// Adds the gradients and the loss of a batch on the device.
    fn add_on_device(&mut self, batches: &mut Batches<T>) -> Result<(), WorkerError> {
        let (loss, mut gradients) = backward(&*self.task, &self.model, batches.next()?, &self.device)?;
        let parts = gradients_and_loss(&self.model, &mut gradients, loss);
        match &mut self.sum.on_device {
            Some(total) => total.add(&parts, 1.0),
            None => self.sum.on_device = Some(SplitVector::packed(&self.with_loss, &parts, 1.0)),
        }
        Ok(())
    }
}

impl<T: Task> Worker for Trainer<T> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn init(&self) -> Vec<f32> {
        initial_model(&*self.task, self.options.seed).1
    }

    fn load(&mut self, mut params: Vec<f32>) -> Result<(), WorkerError> {
        if params.len() != self.layout.len {
            return Err(WorkerError::WrongLength {
                expected: self.layout.len,
                found: params.len(),
            });
        }
        self.fitting.without_units = false;
        // Clones share their tensors, so nothing is copied.
        let model = self.model.clone();
        let device = self.device.clone().without_autodiff();
        self.params = SplitVector::upload(&self.on_device, &params, &device);
        self.model = match &self.params {
            // One upload for everything in a buffer, of which each parameter is a view.
            Some(vector) => model.map(&mut View {
                vector: vector.clone(),
                device: &self.device,
                next: 0,
            }),
            None => with_parameters(model, &params, &self.device),
        };
        params.fill(0.0);
        self.sum = Sum {
            gradient: params,
            ..Sum::default()
        };
        Ok(())
    }

    fn work_on_at_most(&mut self, samples: usize) {
        self.options.micro_batch = samples;
        // With another size the parts would differ.
        self.ahead = None;
    }

    fn keep_launches_short(&mut self, samples_per_second: f64) {
        if !self.is_cpu() {
            self.fitting.keep_launches_short(samples_per_second);
            self.ahead = None;
        }
    }

    fn expect(&mut self, samples: &[u64]) {
        let dataset = self.task.dataset();
        // Of data that is here as a whole there is nothing to ask for.
        if dataset.chunk() == NonZeroU32::MIN {
            return;
        }
        dataset.have(&drawn(dataset, self.options.seed, samples), Duration::ZERO);
    }

    fn waited(&mut self) -> Duration {
        Duration::from_micros(self.prefetcher.waited.swap(0, Ordering::Relaxed))
    }

    fn prefetch(&mut self, samples: &[u64]) {
        self.ahead = Some((samples.to_vec(), self.order(samples)));
    }

    fn accumulate(&mut self, samples: &[u64]) -> Result<(), WorkerError> {
        let Some(first) = samples.first() else {
            return Ok(());
        };
        if let Some(why) = T::ELSEWHERE {
            return Err(WorkerError::Elsewhere(why));
        }
        let mut batches = match self.ahead.take() {
            Some((ordered, batches)) if ordered == samples => batches,
            _ => self.order(samples),
        };
        let _random = drawing();
        let _units = self.units();
        self.sum.by_units |= matrices::taken();
        // Dropout differs from sample to sample, yet is the same when a batch is computed again.
        self.device.seed(self.options.seed ^ first.rotate_left(32));
        self.sum.gradient.resize(self.layout.len, 0.0);
        for parts in self.cut(samples) {
            if self.is_cpu() {
                self.sum.loss += on_cpu::add_up(
                    &*self.task,
                    &self.model,
                    &self.device,
                    &mut batches,
                    parts.len(),
                    self.threads,
                    &mut self.sum.gradient,
                )?;
            } else {
                self.add_on_device(&mut batches)?;
            }
        }
        self.sum.samples.extend(samples);
        self.sum.at_once = self.sum.at_once.max(self.at_once(samples.len()));
        Ok(())
    }

    fn take(&mut self) -> Pending<'_, Contribution> {
        Box::pin(async move {
            loop {
                self.settle().await?;
                self.sum.gradient.resize(self.layout.len, 0.0);
                if let Some(total) = self.sum.on_device.clone() {
                    self.sum.loss = read_total(&total, &mut self.sum.gradient).await?;
                }
                let finite = match self.sum.loss.is_finite() {
                    true => check_finite(&self.layout, &self.sum.gradient),
                    false => Err(WorkerError::LossNotFinite),
                };
                if self.without_overflow(finite.is_ok())? {
                    continue;
                }
                let Sum {
                    gradient,
                    loss,
                    samples,
                    ..
                } = std::mem::take(&mut self.sum);
                finite?;
                return Ok(Contribution {
                    gradient,
                    loss_sum: loss,
                    samples: samples.len() as u32,
                });
            }
        })
    }

    fn stepper(&mut self, optimizer: &Optimizer) -> Option<&mut dyn Stepper> {
        // The kernels know no tensors that follow a mean.
        if self.is_cpu() || !self.layout.means().is_empty() {
            return None;
        }
        let rule = rule_of(optimizer)?;
        if self.stepping.as_ref().map(LocalOptimizer::rule) != Some(rule) {
            self.stepping = Some(self.state_of(rule)?);
        }
        Some(self)
    }

    fn evaluate(&mut self) -> Pending<'_, Option<Eval>> {
        Box::pin(async move {
            if !self.task.have_held_out(HELD_OUT) {
                return Err(WorkerError::Late);
            }
            let device = self.device.clone().without_autodiff();
            let score = || self.task.evaluate(&self.model.valid(), &device);
            let (scores, by_units) = {
                let _units = matrices::within();
                (score(), matrices::taken())
            };
            let Some(scores) = scores else { return Ok(None) };
            intact(&*self.task)?;
            if !self.task.have_held_out(Duration::ZERO) {
                return Err(WorkerError::Late);
            }
            let eval = read_scores(scores).await?;
            // Perhaps a number is too large for halves.
            if by_units
                && !eval.loss.is_finite()
                && let Some(scores) = score()
            {
                return read_scores(scores).await.map(Some);
            }
            Ok(Some(eval))
        })
    }

    fn generate<'a>(&'a self, prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, ()> {
        Box::pin(async move {
            let refused = |reason: String| WorkerError::NotGenerated { reason };
            let generator = self.task.generator();
            let generator = generator.ok_or_else(|| refused(format!("{} generates nothing", T::NAME)))?;
            let device = self.device.clone().without_autodiff();
            let model = self.model.valid();
            let generated = generator.generate(&model, prompt, &device, emit).await;
            generated.map_err(|error| refused(error.to_string()))
        })
    }

    fn deterministic(&self) -> bool {
        self.is_cpu()
    }

    fn draws(&self) -> bool {
        self.task.draws()
    }

    fn device_name(&self) -> &str {
        &self.device_name
    }

    fn given(&self) -> Arc<AtomicU64> {
        self.prefetcher.made.clone()
    }
}

#[cfg(test)]
mod tests;
