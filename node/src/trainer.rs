//! A Burn model seen as one flat vector of `f32`: parameters in, sums of gradients out.
//!
//! [`Worker`] is all that the rest of a peer knows of training. Nothing here knows of peers, rounds
//! or optimizers.

mod on_device;

use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData, read_sync};

use self::on_device::{View, gradients_and_loss, places, read_total};
use crate::device::{DeviceKind, OpenDevice};
use crate::task::{Emit, Eval, Prompt, Task};
use annulus_core::{Layout, TensorSpec};
use annulus_shaders::split::{self, SplitLayout, SplitVector};

/// What a worker is at.
///
/// Natively it is done as soon as it is first waited for; in a browser, where no thread may wait, a GPU is at work meanwhile.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, WorkerError>> + 'a>>;

/// Trains on one device. A peer has one, on a thread of its own where there are threads.
pub trait Worker: Send {
    /// Where each tensor lies in the flat vector.
    fn layout(&self) -> &Layout;

    /// Initial parameters, from the run's seed: the same on every call and every device.
    fn init(&self) -> Vec<f32>;

    /// Takes parameters and gives back the sum of the gradients over `samples`, in the same
    /// allocation. No samples make a sum of zeros.
    ///
    /// # Errors
    ///
    /// If the arguments do not fit the task, the device fails, or the result is not finite. The
    /// worker stays usable.
    fn gradient<'a>(&'a mut self, params: Vec<f32>, samples: &'a [u64]) -> Pending<'a, Contribution>;

    /// How good these parameters are on held-out data; nothing if the task holds none out.
    ///
    /// # Errors
    ///
    /// If the arguments do not fit the model or the device fails.
    fn scores<'a>(&'a mut self, params: &'a [f32]) -> Pending<'a, Option<Eval>>;

    /// Goes on after a prompt with these parameters, and says whether the task can.
    ///
    /// # Errors
    ///
    /// If the parameters do not fit the model, or the task or the device fails.
    fn write<'a>(&'a mut self, params: &'a [f32], prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, bool>;

    /// [`gradient`](Self::gradient), waited for.
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(not(target_family = "wasm"))]
    fn contribute(&mut self, params: Vec<f32>, samples: &[u64]) -> Result<Contribution, WorkerError> {
        read_sync(self.gradient(params, samples))
    }

    /// [`scores`](Self::scores), waited for.
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(not(target_family = "wasm"))]
    fn evaluate(&mut self, params: &[f32]) -> Result<Option<Eval>, WorkerError> {
        read_sync(self.scores(params))
    }

    /// Whether equal parameters and samples make equal bits, unless the model draws random numbers
    /// while another worker of the process does so too.
    fn deterministic(&self) -> bool;

    /// What computes, for people to read.
    fn device_name(&self) -> &str;
}

/// A peer's part of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Contribution {
    /// Sum over the samples of the loss's gradients.
    pub gradient: Vec<f32>,
    /// Sum of the losses over the samples.
    pub loss_sum: f32,
    /// How many samples.
    pub samples: u32,
}

/// Why a worker cannot do what was asked. Its state is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The model has parts that cannot be trained by summing gradients.
    #[error("this model cannot be trained: {problem}")]
    Unsupported {
        /// Which part, and what to do.
        problem: String,
    },
    /// A vector of parameters of the wrong length.
    #[error("{found} parameters for a model of {expected}: the peers' models differ")]
    WrongLength {
        /// Length of the model's flat vector.
        expected: usize,
        /// Length of what was given.
        found: usize,
    },
    /// A sample that the task does not have.
    #[error("no sample {sample}: the task has {samples}")]
    NoSuchSample {
        /// Its number.
        sample: u64,
        /// How many samples there are.
        samples: u64,
    },
    /// The task's loss is not one element with gradients.
    #[error("the task's loss {problem}")]
    BadLoss {
        /// What it is.
        problem: String,
    },
    /// The loss is NaN or infinite.
    #[error(
        "the loss is not finite: lower the learning rate, clip the gradient, or look for \
         bad data"
    )]
    LossNotFinite,
    /// The loss is finite, but a gradient is NaN or infinite.
    #[error(
        "the gradient of {tensor} is not finite: lower the learning rate, clip the \
         gradient, or look for a division or logarithm of 0"
    )]
    GradientNotFinite {
        /// The first tensor with such an element.
        tensor: String,
    },
    /// The device gave up.
    #[error("the device failed: {reason}")]
    Device {
        /// What it said.
        reason: String,
    },
}

/// What a trainer needs to know beside its task and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainerOptions {
    /// The run's seed.
    pub seed: u64,
    /// Most samples that the device works on at once; 0 for as many as it is given.
    pub micro_batch: usize,
}

/// Trains a task's model on one device.
#[derive(Debug)]
pub struct Trainer<T: Task> {
    task: Arc<T>,
    /// With autodiff.
    device: Device,
    device_kind: DeviceKind,
    device_name: String,
    options: TrainerOptions,
    layout: Layout,
    /// The parameters, each at a place of its own, in a vector on a GPU.
    on_device: Arc<SplitLayout>,
    /// The same for gradients, with the loss as the last of them.
    with_loss: Arc<SplitLayout>,
    model: T::Model,
}

/// Burn's CPU backend has one random generator for the whole process. Initial parameters must not
/// depend on what else draws from it (dropout in another worker), so they are made alone.
static RANDOM: RwLock<()> = RwLock::new(());

impl<T: Task> Trainer<T> {
    /// Builds the model on `device`.
    ///
    /// # Errors
    ///
    /// If the model has no parameters, or some that cannot be trained by summing gradients, or that
    /// no buffer of the device can hold.
    pub fn new(task: Arc<T>, device: &OpenDevice, options: TrainerOptions) -> Result<Self, WorkerError> {
        let largest = split::largest(&device.device).unwrap_or(usize::MAX);
        Self::within(task, device, options, largest)
    }

    /// As [`new`](Self::new), with no buffer of more than so many numbers.
    fn within(
        task: Arc<T>,
        device: &OpenDevice,
        options: TrainerOptions,
        largest: usize,
    ) -> Result<Self, WorkerError> {
        let (model, _) = initial_model(&*task, options.seed);
        let layout = layout_of(&model)?;
        let on_device = places(&layout, &[], largest)?;
        let with_loss = places(&layout, &[1], largest)?;
        let autodiff = match task.recompute() {
            false => device.device.clone().autodiff(),
            true => device.device.clone().autodiff().gradient_checkpointing(),
        };
        // The CPU backend is where the model is already; forking it would copy for nothing.
        let model = match device.kind {
            DeviceKind::Cpu => model,
            DeviceKind::Gpu | DeviceKind::SoftwareGpu => model.fork(&autodiff),
        };
        Ok(Self {
            on_device,
            with_loss,
            task,
            device: autodiff,
            device_kind: device.kind,
            device_name: device.name.clone(),
            options,
            layout,
            model,
        })
    }

    /// The sum of the gradients in `buffer`, in place of the parameters, and of the losses.
    async fn sum_up(&mut self, buffer: &mut [f32], samples: &[u64]) -> Result<f32, WorkerError> {
        let known = self.task.samples();
        if let Some(&sample) = samples.iter().find(|sample| **sample >= known) {
            return Err(WorkerError::NoSuchSample {
                sample,
                samples: known,
            });
        }
        self.load(buffer)?;
        buffer.fill(0.0);
        let Some(&first) = samples.first() else {
            return Ok(0.0);
        };
        let (mut loss_sum, on_device) = self.accumulate(buffer, samples, first)?;
        if let Some(total) = on_device {
            loss_sum = read_total(&total, buffer).await?;
        }
        if !loss_sum.is_finite() {
            return Err(WorkerError::LossNotFinite);
        }
        self.check_finite(buffer)?;
        Ok(loss_sum)
    }

    /// Sums the gradients of all micro-batches: in `buffer` on the CPU, else on the device, followed
    /// by the loss.
    fn accumulate(
        &self,
        buffer: &mut [f32],
        samples: &[u64],
        first: u64,
    ) -> Result<(f32, Option<SplitVector>), WorkerError> {
        // Shared with other workers, but not with the making of initial parameters.
        let _random = RANDOM.read().unwrap_or_else(PoisonError::into_inner);
        // So that dropout is another one for other samples, yet the same when tried again.
        self.device.seed(self.options.seed ^ first.rotate_left(32));
        let at_once = match self.options.micro_batch {
            0 => samples.len(),
            size => size,
        };
        let mut on_device: Option<SplitVector> = None;
        let mut loss_sum = 0.0;
        for micro_batch in samples.chunks(at_once) {
            if self.device_kind == DeviceKind::Cpu {
                loss_sum += self.add_up(micro_batch, buffer, cores())?;
                continue;
            }
            let (sum, mut gradients) = backward(&*self.task, &self.model, micro_batch, &self.device)?;
            let parts = gradients_and_loss(&self.model, &mut gradients, sum);
            match &mut on_device {
                Some(total) => total.add(&parts, 1.0),
                None => on_device = Some(SplitVector::packed(&self.with_loss, &parts, 1.0)),
            }
        }
        Ok((loss_sum, on_device))
    }

    /// Adds the gradients of a micro-batch up on the CPU, where reading them is no more than a copy. So many threads
    /// work on pieces of it, and these are added in their order: the bits do not depend on how many threads there are.
    fn add_up(&self, samples: &[u64], buffer: &mut [f32], threads: usize) -> Result<f32, WorkerError> {
        let count = self.task.pieces(samples.len()).clamp(1, samples.len());
        let pieces: Vec<&[u64]> = samples.chunks(samples.len().div_ceil(count)).collect();
        let mut loss_sum = 0.0;
        let mut add = |model: &T::Model, made: Result<(Tensor<1>, Gradients), WorkerError>| {
            let (sum, mut gradients) = made?;
            loss_sum += read_sync(read_scalar(sum))?;
            add_gradients(model, &mut gradients, buffer)
        };
        let task = &*self.task;
        for wave in pieces.chunks(threads) {
            if let [piece] = wave {
                add(&self.model, backward(task, &self.model, piece, &self.device))?;
                continue;
            }
            std::thread::scope(|scope| {
                let start = |piece: &&[u64]| {
                    let (piece, device) = (piece.to_vec(), self.device.clone());
                    let model = self.model.clone().map(&mut Detach);
                    scope.spawn(move || {
                        let made = backward(task, &model, &piece, &device);
                        (model, made)
                    })
                };
                let running: Vec<_> = wave.iter().map(start).collect();
                running.into_iter().try_for_each(|thread| {
                    let (model, made) = thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    add(&model, made)
                })
            })?;
        }
        Ok(loss_sum)
    }

    async fn score(&mut self, params: &[f32]) -> Result<Option<Eval>, WorkerError> {
        self.load(params)?;
        let device = self.device.clone().without_autodiff();
        let Some(scores) = self.task.evaluate(&self.model.valid(), &device) else {
            return Ok(None);
        };
        let loss = read_scalar(scores.loss).await?;
        let accuracy = match scores.accuracy {
            Some(accuracy) => Some(read_scalar(accuracy).await?),
            None => None,
        };
        Ok(Some(Eval { loss, accuracy }))
    }

    /// Writes parameters to the device, in as few pieces as it takes.
    fn load(&mut self, params: &[f32]) -> Result<(), WorkerError> {
        if params.len() != self.layout.len {
            return Err(WorkerError::WrongLength {
                expected: self.layout.len,
                found: params.len(),
            });
        }
        // Clones share their tensors, so this copies nothing.
        let model = self.model.clone();
        let device = self.device.clone().without_autodiff();
        self.model = match SplitVector::upload(&self.on_device, params, &device) {
            // One upload for all that a buffer holds, of which each parameter is a view.
            Some(vector) => model.map(&mut View {
                vector,
                device: &self.device,
                next: 0,
            }),
            None => with_parameters(model, params, &self.device),
        };
        Ok(())
    }

    fn check_finite(&self, gradient: &[f32]) -> Result<(), WorkerError> {
        // Magnitudes in order of their bits, infinity and NaN last: a loop that vectorizes.
        let largest = |values: &[f32]| values.iter().map(|v| v.abs().to_bits()).max();
        let infinity = f32::INFINITY.to_bits();
        if largest(gradient) < Some(infinity) {
            return Ok(());
        }
        let tensor =
            self.layout.tensors.iter().find(|tensor| {
                largest(&gradient[tensor.offset..tensor.offset + tensor.len()]) >= Some(infinity)
            });
        tensor.map_or(Ok(()), |tensor| {
            Err(WorkerError::GradientNotFinite {
                tensor: tensor.name.clone(),
            })
        })
    }
}

impl<T: Task> Worker for Trainer<T> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn init(&self) -> Vec<f32> {
        initial_model(&*self.task, self.options.seed).1
    }

    fn gradient<'a>(&'a mut self, mut buffer: Vec<f32>, samples: &'a [u64]) -> Pending<'a, Contribution> {
        Box::pin(async move {
            let loss_sum = self.sum_up(&mut buffer, samples).await?;
            Ok(Contribution {
                gradient: buffer,
                loss_sum,
                samples: samples.len() as u32,
            })
        })
    }

    fn scores<'a>(&'a mut self, params: &'a [f32]) -> Pending<'a, Option<Eval>> {
        Box::pin(self.score(params))
    }

    fn write<'a>(&'a mut self, params: &'a [f32], prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, bool> {
        Box::pin(async move {
            self.load(params)?;
            let device = self.device.clone().without_autodiff();
            let model = self.model.valid();
            let written = self.task.write(&model, prompt, &device, emit).await;
            written.map_err(|error| WorkerError::Device {
                reason: error.to_string(),
            })
        })
    }

    fn deterministic(&self) -> bool {
        self.device_kind == DeviceKind::Cpu
    }

    fn device_name(&self) -> &str {
        &self.device_name
    }
}

/// The sum of the losses over samples, and its gradients.
fn backward<T: Task>(
    task: &T,
    model: &T::Model,
    samples: &[u64],
    device: &Device,
) -> Result<(Tensor<1>, Gradients), WorkerError> {
    let mean = task.loss(model, samples, device);
    if mean.dims() != [1] {
        return Err(WorkerError::BadLoss {
            problem: format!(
                "has the shape {:?}; return the mean over the samples",
                mean.dims()
            ),
        });
    }
    let sum = mean.mul_scalar(samples.len() as f32);
    if !sum.is_tracked() {
        return Err(WorkerError::BadLoss {
            problem: "does not depend on the model's parameters; compute it from them on the \
                      device that is given, without detaching"
                .to_owned(),
        });
    }
    let gradients = sum.backward();
    Ok((sum.inner(), gradients))
}

/// Threads that a processor runs at once; 1 where there are no threads.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Parameters with the same values, in no graph with the old: threads that share a graph wait for each other.
struct Detach;

impl ModuleMapper for Detach {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| {
            let tracked = old.is_require_grad();
            old.detach().set_require_grad(tracked)
        })
    }
}

/// A model whose parameters are replaced, in visiting order, by as many values as [`layout_of`] says.
///
/// # Panics
///
/// If there are fewer values.
pub fn with_parameters<M: Module>(model: M, values: &[f32], device: &Device) -> M {
    model.map(&mut Load { rest: values, device })
}

/// The model as the seed makes it, on the CPU whatever device will train it, and its parameters.
fn initial_model<T: Task>(task: &T, seed: u64) -> (T::Model, Vec<f32>) {
    let _alone = RANDOM.write().unwrap_or_else(PoisonError::into_inner);
    let cpu = Device::flex().autodiff();
    cpu.seed(seed);
    let model = task.model(&cpu);
    // Burn draws a parameter when it is first looked at, so this fixes the order.
    let mut collect = Collect::default();
    model.visit(&mut collect);
    (model, collect.params)
}

#[derive(Default)]
struct Collect {
    params: Vec<f32>,
}

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.base().inner().into_data_as::<f32>();
        // The data were just converted to this type.
        let values = data.as_slice::<f32>().expect("f32 data");
        self.params.extend_from_slice(values);
    }
}

/// Lists the parameters in visiting order.
///
/// # Errors
///
/// If there are none, or some that cannot be trained by summing gradients.
pub fn layout_of<M: Module>(model: &M) -> Result<Layout, WorkerError> {
    let mut list = List::default();
    model.visit(&mut list);
    let unsupported = |problem: String| Err(WorkerError::Unsupported { problem });
    if let Some(problem) = list.problem {
        return unsupported(problem);
    }
    if list.layout.len == 0 {
        return unsupported("it has no parameters".to_owned());
    }
    Ok(list.layout)
}

#[derive(Default)]
struct List {
    path: Vec<String>,
    layout: Layout,
    problem: Option<String>,
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push(name.to_owned());
        if container_type.ends_with(":BatchNorm") {
            // The type is that of the module which `name` is a field of.
            let module = self.path[..self.path.len() - 1].join(".");
            let problem = format!(
                "{module} is a batch normalization, whose running statistics no gradient carries \
                 to the other peers; use group or layer normalization"
            );
            self.problem.get_or_insert(problem);
        }
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.join(".");
        let tensor = param.base();
        if tensor.dtype() != DType::F32 {
            let problem = format!("{name} is of type {:?}; only f32 is trained", tensor.dtype());
            self.problem.get_or_insert(problem);
        }
        let spec = TensorSpec {
            name,
            shape: tensor.dims().to_vec(),
            offset: self.layout.len,
            // Biases and normalizations have one dimension. What is frozen has no gradient, and
            // must not decay either.
            decay: D > 1 && tensor.is_require_grad(),
        };
        self.layout.len += spec.len();
        self.layout.tensors.push(spec);
    }
}

/// Replaces the parameters, in visiting order.
struct Load<'a> {
    rest: &'a [f32],
    device: &'a Device,
}

impl ModuleMapper for Load<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.shape();
        let (values, rest) = self.rest.split_at(shape.num_elements());
        self.rest = rest;
        param.map(|old| {
            let data = TensorData::new(values.to_vec(), shape);
            Tensor::from_data(data, self.device).set_require_grad(old.is_require_grad())
        })
    }
}

/// Adds each parameter's gradient to its place in `sum`. For the CPU, where reading is cheap.
fn add_gradients<M: Module>(
    model: &M,
    gradients: &mut Gradients,
    sum: &mut [f32],
) -> Result<(), WorkerError> {
    struct Add<'a> {
        gradients: &'a mut Gradients,
        rest: &'a mut [f32],
        error: Option<WorkerError>,
    }

    impl ModuleVisitor for Add<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.base();
            let rest = std::mem::take(&mut self.rest);
            let (place, rest) = rest.split_at_mut(tensor.shape().num_elements());
            self.rest = rest;
            // What is frozen, or takes no part in the loss, has none and adds nothing.
            let Some(gradient) = tensor.grad_remove(self.gradients) else {
                return;
            };
            let added = read_sync(read(gradient)).and_then(|data| {
                for (sum, value) in place.iter_mut().zip(as_floats(&data)?) {
                    *sum += value;
                }
                Ok(())
            });
            if let Err(error) = added {
                self.error.get_or_insert(error);
            }
        }
    }

    let mut add = Add {
        gradients,
        rest: sum,
        error: None,
    };
    model.visit(&mut add);
    add.error.map_or(Ok(()), Err)
}

async fn read<const D: usize>(tensor: Tensor<D>) -> Result<TensorData, WorkerError> {
    let data = tensor.into_data_async().await;
    data.map_err(|error| WorkerError::Device {
        reason: error.to_string(),
    })
}

fn as_floats(data: &TensorData) -> Result<&[f32], WorkerError> {
    data.as_slice().map_err(|error| WorkerError::Device {
        reason: format!("it gave values of another type than f32: {error:?}"),
    })
}

async fn read_scalar(tensor: Tensor<1>) -> Result<f32, WorkerError> {
    let data = read(tensor).await?;
    match as_floats(&data)? {
        [value] => Ok(*value),
        values => Err(WorkerError::BadLoss {
            problem: format!("or score has {} elements; return the mean", values.len()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::activation::tanh;

    use super::*;
    use crate::device::{self, DeviceChoice, DeviceError};
    use crate::task::{Data, Scores, TaskError};
    use crate::tasks::digits::{Digits, DigitsConfig, ModelKind};
    use annulus_core::Digest;

    #[derive(Module, Debug)]
    struct Curve {
        first: Linear,
        dropout: Dropout,
        second: Linear,
    }

    /// Fits a curve through 32 points; what may go wrong goes wrong on demand.
    #[derive(Debug, Default)]
    struct Points {
        dropout: f64,
        fault: Fault,
    }

    #[derive(Debug, Default, PartialEq)]
    enum Fault {
        #[default]
        None,
        LossPerSample,
        Detached,
        InfiniteGradient,
    }

    impl Task for Points {
        type Model = Curve;
        type Config = ();

        const NAME: &'static str = "points";

        fn new(_config: (), _data: Option<&Data>) -> Result<Self, TaskError> {
            Ok(Self::default())
        }

        fn samples(&self) -> u64 {
            32
        }

        fn digest(&self) -> Digest {
            Digest::of(b"points")
        }

        fn model(&self, device: &Device) -> Curve {
            Curve {
                first: LinearConfig::new(1, 5).init(device),
                dropout: DropoutConfig::new(self.dropout).init(),
                second: LinearConfig::new(5, 1).init(device),
            }
        }

        fn loss(&self, model: &Curve, samples: &[u64], device: &Device) -> Tensor<1> {
            let x: Vec<f32> = samples.iter().map(|i| *i as f32 / 16.0 - 1.0).collect();
            let shape = [samples.len(), 1];
            let x = Tensor::<2>::from_data(TensorData::new(x, shape), device);
            let hidden = model.dropout.forward(tanh(model.first.forward(x.clone())));
            let error = model.second.forward(hidden) - x.powi_scalar(3);
            match self.fault {
                Fault::None => error.powi_scalar(2).mean(),
                Fault::LossPerSample => error.flatten(0, 1),
                Fault::Detached => error.detach().mean(),
                // The square root of zero: a finite value with an infinite slope.
                Fault::InfiniteGradient => (error * 0.0).sqrt().mean(),
            }
        }

        fn evaluate(&self, model: &Curve, device: &Device) -> Option<Scores> {
            let loss = self.loss(model, &[1, 3, 5], device);
            Some(Scores { loss, accuracy: None })
        }
    }

    fn points(task: Points) -> Trainer<Points> {
        Trainer::new(Arc::new(task), &OpenDevice::cpu(), TrainerOptions::default()).unwrap()
    }

    fn digits(config: DigitsConfig, device: &OpenDevice, micro_batch: usize) -> Trainer<Digits> {
        let config = DigitsConfig {
            train: 64,
            test: 64,
            ..config
        };
        let task = Arc::new(Digits::new(config, None).unwrap());
        let options = TrainerOptions { seed: 5, micro_batch };
        Trainer::new(task, device, options).unwrap()
    }

    fn mlp(micro_batch: usize) -> Trainer<Digits> {
        digits(DigitsConfig::default(), &OpenDevice::cpu(), micro_batch)
    }

    fn assert_close(left: &[f32], right: &[f32], tolerance: f32) {
        assert_eq!(left.len(), right.len());
        let scale = left.iter().fold(0.0f32, |scale, v| scale.max(v.abs()));
        for (index, (l, r)) in left.iter().zip(right).enumerate() {
            assert!(
                (l - r).abs() <= tolerance * scale,
                "element {index}: {l} and {r} differ by more than {tolerance} of {scale}"
            );
        }
    }

    #[test]
    fn the_layout_names_every_parameter_in_visiting_order() {
        let config = DigitsConfig {
            model: ModelKind::Cnn,
            hidden: 32,
            ..DigitsConfig::default()
        };
        let trainer = digits(config, &OpenDevice::cpu(), 0);
        let expected: [(&str, &[usize], bool); 8] = [
            ("features.first.weight", &[8, 1, 3, 3], true),
            ("features.first.bias", &[8], false),
            ("features.second.weight", &[16, 8, 3, 3], true),
            ("features.second.bias", &[16], false),
            ("hidden.weight", &[784, 32], true),
            ("hidden.bias", &[32], false),
            ("output.weight", &[32, 10], true),
            ("output.bias", &[10], false),
        ];
        let layout = trainer.layout();
        let mut offset = 0;
        assert_eq!(layout.tensors.len(), expected.len());
        for (tensor, (name, shape, decay)) in layout.tensors.iter().zip(expected) {
            assert_eq!(tensor.name, name);
            assert_eq!(tensor.shape, shape);
            assert_eq!((tensor.offset, tensor.decay), (offset, decay));
            offset += tensor.len();
        }
        assert_eq!(layout.len, offset);
        assert_eq!(trainer.init().len(), offset);
    }

    #[test]
    fn parameters_written_to_the_model_are_read_back_in_place() {
        let mut trainer = mlp(0);
        let params: Vec<f32> = (0..trainer.layout.len).map(|i| i as f32).collect();
        trainer.load(&params).unwrap();
        let mut collect = Collect::default();
        trainer.model.visit(&mut collect);
        assert_eq!(collect.params, params);
    }

    #[test]
    fn initial_parameters_depend_on_the_seed_alone() {
        let trainer = points(Points::default());
        let params = trainer.init();
        // Another worker that draws random numbers all the time must not change them.
        let busy = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut noisy = points(Points {
                    dropout: 0.5,
                    ..Points::default()
                });
                let params = noisy.init();
                while busy.load(std::sync::atomic::Ordering::Relaxed) {
                    noisy.contribute(params.clone(), &[1, 2, 3]).unwrap();
                }
            });
            for _ in 0..200 {
                assert_eq!(trainer.init(), params);
            }
            busy.store(false, std::sync::atomic::Ordering::Relaxed);
        });
        let options = TrainerOptions {
            seed: 1,
            micro_batch: 0,
        };
        let other = Trainer::new(Arc::clone(&trainer.task), &OpenDevice::cpu(), options);
        assert_ne!(other.unwrap().init(), params);
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_sum_of_losses() {
        let mut trainer = points(Points::default());
        let samples = [0, 7, 7, 20, 31];
        let params = trainer.init();
        let result = trainer.contribute(params.clone(), &samples).unwrap();
        assert_eq!(result.samples, 5);
        let step = 1e-2;
        let mut loss_at = |index: usize, change: f32| {
            let mut moved = params.clone();
            moved[index] += change;
            trainer.contribute(moved, &samples).unwrap().loss_sum
        };
        let slopes: Vec<f32> = (0..params.len())
            .map(|index| (loss_at(index, step) - loss_at(index, -step)) / (2.0 * step))
            .collect();
        assert_close(&slopes, &result.gradient, 2e-3);
    }

    #[test]
    fn micro_batches_change_nothing_but_rounding() {
        let samples: Vec<u64> = (0..64).collect();
        let params = mlp(0).init();
        let whole = mlp(0).contribute(params.clone(), &samples).unwrap();
        for size in [16, 24, 64, 100] {
            let parts = mlp(size).contribute(params.clone(), &samples).unwrap();
            assert_close(&whole.gradient, &parts.gradient, 1e-5);
            assert!((whole.loss_sum - parts.loss_sum).abs() < 1e-3);
        }
    }

    #[test]
    fn equal_arguments_make_equal_bits_on_the_cpu() {
        let samples: Vec<u64> = (0..64).rev().collect();
        // The wide one is large enough for its products to run on several threads.
        for (model, hidden) in [
            (ModelKind::Mlp, 128),
            (ModelKind::Mlp, 1024),
            (ModelKind::Cnn, 32),
        ] {
            let config = DigitsConfig {
                model,
                hidden,
                ..DigitsConfig::default()
            };
            let make = || digits(config.clone(), &OpenDevice::cpu(), 48);
            let mut trainer = make();
            assert!(trainer.deterministic());
            let params = trainer.init();
            let first = trainer.contribute(params.clone(), &samples).unwrap();
            for trainer in [&mut trainer, &mut make()] {
                for _ in 0..5 {
                    let again = trainer.contribute(params.clone(), &samples).unwrap();
                    assert!(first.gradient == again.gradient, "{model:?} {hidden}");
                    assert_eq!(first.loss_sum, again.loss_sum);
                }
            }
        }
    }

    #[test]
    fn dropout_works_on_contributions_and_not_on_evaluations() {
        let mut with = points(Points {
            dropout: 0.5,
            ..Points::default()
        });
        let mut without = points(Points::default());
        let params = with.init();
        let gradients = [&mut with, &mut without]
            .map(|trainer| trainer.contribute(params.clone(), &[4, 9]).unwrap().gradient);
        assert_ne!(gradients[0], gradients[1]);
        assert_eq!(with.evaluate(&params), without.evaluate(&params));
    }

    #[test]
    fn no_samples_make_a_sum_of_zeros_in_the_same_allocation() {
        let mut trainer = points(Points::default());
        let params = trainer.init();
        let address = params.as_ptr();
        let nothing = trainer.contribute(params, &[]).unwrap();
        assert!(nothing.gradient.iter().all(|value| *value == 0.0));
        assert_eq!((nothing.loss_sum, nothing.samples), (0.0, 0));
        let something = trainer.contribute(nothing.gradient, &[1]).unwrap();
        assert_eq!(something.gradient.as_ptr(), address);
    }

    #[test]
    fn evaluation_leaves_no_trace() {
        let mut trainer = mlp(0);
        let params = trainer.init();
        let before = trainer.contribute(params.clone(), &[1, 2]).unwrap();
        let eval = trainer.evaluate(&params).unwrap().unwrap();
        assert!((2.0..2.6).contains(&eval.loss), "untrained: {eval:?}");
        assert!((0.0..0.5).contains(&eval.accuracy.unwrap()));
        assert_eq!(trainer.evaluate(&params).unwrap(), Some(eval));
        let after = trainer.contribute(params, &[1, 2]).unwrap();
        assert_eq!(before.gradient, after.gradient);
    }

    #[test]
    fn wrong_arguments_are_refused_and_the_worker_goes_on() {
        let mut trainer = points(Points::default());
        let length = WorkerError::WrongLength {
            expected: 16,
            found: 3,
        };
        assert_eq!(trainer.contribute(vec![0.0; 3], &[1]), Err(length.clone()));
        assert_eq!(trainer.evaluate(&[0.0; 3]), Err(length));
        let sample = WorkerError::NoSuchSample {
            sample: 32,
            samples: 32,
        };
        assert_eq!(trainer.contribute(trainer.init(), &[1, 32]), Err(sample));
        assert!(trainer.contribute(trainer.init(), &[1, 31]).is_ok());
    }

    #[test]
    fn what_is_not_finite_is_reported() {
        let mut trainer = points(Points::default());
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            let mut params = trainer.init();
            *params.last_mut().unwrap() = bad;
            let result = trainer.contribute(params, &[1]);
            assert_eq!(result, Err(WorkerError::LossNotFinite), "{bad}");
        }
        let mut trainer = points(Points {
            fault: Fault::InfiniteGradient,
            ..Points::default()
        });
        let result = trainer.contribute(trainer.init(), &[1]);
        let tensor = "first.weight".to_owned();
        assert_eq!(result, Err(WorkerError::GradientNotFinite { tensor }));
    }

    #[test]
    fn a_loss_that_is_no_mean_is_refused() {
        for fault in [Fault::LossPerSample, Fault::Detached] {
            let mut trainer = points(Points {
                fault,
                ..Points::default()
            });
            let result = trainer.contribute(trainer.init(), &[1, 2]);
            assert!(matches!(result, Err(WorkerError::BadLoss { .. })), "{result:?}");
        }
    }

    #[test]
    fn batch_normalization_is_refused_by_name() {
        #[derive(Module, Debug)]
        struct Normalized {
            norm: BatchNorm,
        }
        let norm = BatchNormConfig::new(4).init(&Device::flex());
        let error = layout_of(&Normalized { norm }).unwrap_err().to_string();
        assert!(error.contains("norm is a batch normalization"), "{error}");
    }

    #[test]
    fn frozen_parameters_stay_in_the_vector_without_gradient_or_decay() {
        #[derive(Module, Debug)]
        struct Pair {
            frozen: Linear,
            free: Linear,
        }
        let device = Device::flex().autodiff();
        let layer = || LinearConfig::new(2, 2).init(&device);
        let pair = Pair {
            frozen: layer().no_grad(),
            free: layer(),
        };
        let layout = layout_of(&pair).unwrap();
        let decay: Vec<bool> = layout.tensors.iter().map(|tensor| tensor.decay).collect();
        assert_eq!(decay, [false, false, true, false]);
        let x = Tensor::<2>::ones([1, 2], &device);
        let mut gradients = pair.free.forward(pair.frozen.forward(x)).sum().backward();
        let mut sum = vec![0.0; layout.len];
        add_gradients(&pair, &mut gradients, &mut sum).unwrap();
        assert!(sum[..6].iter().all(|value| *value == 0.0));
        assert!(sum[6..].iter().any(|value| *value != 0.0));
    }

    fn gpu() -> Option<OpenDevice> {
        match device::open(DeviceChoice::Gpu) {
            Err(DeviceError::NoAdapter) => {
                println!("skipped: this machine has no adapter, not even a software one");
                None
            }
            gpu => Some(gpu.unwrap()),
        }
    }

    #[test]
    fn a_model_larger_than_a_buffer_trains_in_several() {
        let Some(gpu) = gpu() else { return };
        let samples: Vec<u64> = (0..64).collect();
        let trainer = |largest| {
            let task = Arc::new(Digits::new(DigitsConfig::default(), None).unwrap());
            let options = TrainerOptions {
                seed: 5,
                micro_batch: 48,
            };
            Trainer::within(task, &gpu, options, largest)
        };
        let mut whole = trainer(usize::MAX).unwrap();
        let params = whole.init();
        let expected = whole.contribute(params.clone(), &samples).unwrap();
        let score = whole.evaluate(&params).unwrap();
        // With their places the weights take 784 x 128 and 1280 numbers, the biases 128 and 64, and the loss 64: a cut
        // behind the first weights, behind their biases, before the loss, and none.
        let first = 784 * 128;
        for (largest, count) in [(first, 2), (first + 128, 2), (first + 1472, 2), (first + 1536, 1)] {
            let mut parts = trainer(largest).unwrap();
            assert_eq!(parts.with_loss.parts().len(), count, "{largest}");
            let found = parts.contribute(params.clone(), &samples).unwrap();
            assert!(found.gradient == expected.gradient, "{largest}");
            assert_eq!(found.loss_sum, expected.loss_sum, "{largest}");
            assert_eq!(parts.evaluate(&params).unwrap(), score, "{largest}");
        }
        let error = trainer(784 * 128 - 1).unwrap_err().to_string();
        assert!(error.contains("100352 numbers"), "{error}");
    }

    #[test]
    fn a_gpu_agrees_with_the_cpu() {
        let Some(gpu) = gpu() else { return };
        println!("comparing the CPU with {}", gpu.name);
        let samples: Vec<u64> = (0..40).collect();
        for model in [ModelKind::Mlp, ModelKind::Cnn] {
            let config = DigitsConfig {
                model,
                hidden: 32,
                ..DigitsConfig::default()
            };
            let mut on_cpu = digits(config.clone(), &OpenDevice::cpu(), 16);
            let mut on_gpu = digits(config, &gpu, 16);
            assert!(!on_gpu.deterministic());
            let params = on_cpu.init();
            assert_eq!(on_gpu.init(), params);
            let expected = on_cpu.contribute(params.clone(), &samples).unwrap();
            let found = on_gpu.contribute(params.clone(), &samples).unwrap();
            assert_close(&expected.gradient, &found.gradient, 1e-4);
            assert!((expected.loss_sum - found.loss_sum).abs() < 1e-3);
            let expected = on_cpu.evaluate(&params).unwrap().unwrap();
            let found = on_gpu.evaluate(&params).unwrap().unwrap();
            assert!((expected.loss - found.loss).abs() < 1e-4);
            assert_eq!(expected.accuracy, found.accuracy);
        }
    }
}
