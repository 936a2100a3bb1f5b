//! The trainer as a whole: layout, gradients, what is refused.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Tensor, TensorData, read_sync};

use super::on_cpu::add_gradients;
use super::parameters::parameters_of;
use super::*;
use crate::device::{self, DeviceChoice, DeviceError};
use crate::net::identity::Identity;
use crate::options::ActedSpeed;
use crate::participant::compute::ComputeResult;
use crate::task::{Data, Draw, Scores, TaskError};
use crate::tasks::digits::{Digits, DigitsConfig, ModelKind};
use annulus_core::cut::Cut;
use annulus_core::invitation::Invitation;
use annulus_core::ledger::{Head, Member};
use annulus_core::local::LocalRound;
use annulus_core::optim::LocalSteps;
use annulus_core::{Contact, Digest, Input, Manifest, Settings, TensorRule};

mod follow;

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
    /// Numbers in an intermediate result for each sample, beyond one.
    wide: usize,
}

#[derive(Debug, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    LossPerSample,
    Detached,
    InfiniteGradient,
    NoBatch,
    /// Data that does not come.
    Late,
}

impl Dataset for Points {
    type Batch = Vec<f32>;

    fn len(&self) -> u64 {
        32
    }

    fn digest(&self) -> Digest {
        Digest::of(b"points")
    }

    fn batch(&self, samples: &[u64]) -> Vec<f32> {
        assert_ne!(self.fault, Fault::NoBatch, "as asked for");
        samples.iter().map(|i| *i as f32 / 16.0 - 1.0).collect()
    }

    fn have(&self, draws: &[Draw], wait: Duration) -> bool {
        let is_here = self.fault != Fault::Late || draws.iter().all(|draw| draw.sample < 16);
        if !is_here {
            std::thread::sleep(wait.min(Duration::from_millis(2)));
        }
        is_here
    }
}

impl Task for Points {
    type Model = Curve;
    type Dataset = Self;
    type Config = ();

    const NAME: &'static str = "points";

    fn new(_config: (), _data: Option<&Data>) -> Result<Self, TaskError> {
        Ok(Self::default())
    }

    fn dataset(&self) -> &Self {
        self
    }

    fn model(&self, device: &Device) -> Curve {
        Curve {
            first: LinearConfig::new(1, 5).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
            second: LinearConfig::new(5, 1).init(device),
        }
    }

    fn loss(&self, model: &Curve, batch: Vec<f32>, device: &Device) -> Tensor<1> {
        let shape = [batch.len(), 1];
        let x = Tensor::<2>::from_data(TensorData::new(batch, shape), device);
        let hidden = model.dropout.forward(tanh(model.first.forward(x.clone())));
        let error = model.second.forward(hidden) - x.powi_scalar(3);
        match self.fault {
            Fault::None | Fault::NoBatch | Fault::Late => {
                let copies = error.repeat_dim(1, 1 + self.wide);
                copies.narrow(1, 0, 1).powi_scalar(2).mean()
            }
            Fault::LossPerSample => error.flatten(0, 1),
            Fault::Detached => error.detach().mean(),
            // Zero with a slope that no number is large enough for.
            Fault::InfiniteGradient => {
                let nothing = error.clone() - error.detach();
                (nothing.mul_scalar(1e30).mul_scalar(1e30)).mean()
            }
        }
    }

    fn evaluate(&self, model: &Curve, device: &Device) -> Option<Scores> {
        Some(self.loss(model, self.batch(&[1, 3, 5]), device).into())
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
        assert_eq!(tensor.offset, offset);
        assert_eq!(tensor.rule == TensorRule::StepAndDecay, decay);
        offset += tensor.len();
    }
    assert_eq!(layout.len, offset);
    assert_eq!(trainer.init().len(), offset);
}

#[test]
fn parameters_written_to_the_model_are_read_back_in_place() {
    let mut trainer = mlp(0);
    let params: Vec<f32> = (0..trainer.layout.len).map(|i| i as f32).collect();
    trainer.load(params.clone()).unwrap();
    assert_eq!(parameters_of(&trainer.model), params);
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
    assert_eq!(with.score(params.clone()), without.score(params));
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
fn the_steps_of_a_gradient_may_be_taken_apart() {
    let mut trainer = mlp(0);
    let params = trainer.init();
    let whole = trainer.contribute(params.clone(), &[1, 2, 3, 4]).unwrap();
    // What was said to come next need not come.
    trainer.prefetch(&[7, 8]);
    trainer.prefetch(&[99]);
    trainer.load(params.clone()).unwrap();
    trainer.accumulate(&[1, 2]).unwrap();
    trainer.accumulate(&[3, 4]).unwrap();
    let parts = read_sync(trainer.take()).unwrap();
    assert_eq!(parts.samples, 4);
    assert_close(&whole.gradient, &parts.gradient, 1e-5);
    assert!((whole.loss_sum - parts.loss_sum).abs() < 1e-4);
    // The parameters stay where they are, the sum is gone.
    let nothing = read_sync(trainer.take()).unwrap();
    assert!(nothing.gradient.iter().all(|value| *value == 0.0) && nothing.samples == 0);
    trainer.prefetch(&[1, 2, 3, 4]);
    trainer.accumulate(&[1, 2, 3, 4]).unwrap();
    assert_eq!(read_sync(trainer.take()).unwrap(), whole);
    trainer.accumulate(&[5]).unwrap();
    trainer.load(params).unwrap();
    assert_eq!(read_sync(trainer.take()).unwrap().samples, 0);
}

#[test]
#[should_panic(expected = "the data set has made the batch")]
fn a_data_set_that_panics_is_not_waited_for() {
    let mut trainer = points(Points {
        fault: Fault::NoBatch,
        ..Points::default()
    });
    let _ = trainer.contribute(trainer.init(), &[1]);
}

#[test]
fn a_task_without_a_generator_says_so() {
    let mut trainer = points(Points::default());
    trainer.load(trainer.init()).unwrap();
    let prompt = Prompt {
        text: String::new(),
        tokens: 1,
        temperature: 1.0,
        top_k: 0,
        seed: 0,
    };
    let mut emit =
        |_: &str| -> std::pin::Pin<Box<dyn Future<Output = ()>>> { unreachable!("nothing to say") };
    let error = read_sync(trainer.generate(&prompt, &mut emit)).unwrap_err();
    assert_eq!(error.to_string(), "points generates nothing");
}

#[test]
fn evaluation_leaves_no_trace() {
    let mut trainer = mlp(0);
    let params = trainer.init();
    let before = trainer.contribute(params.clone(), &[1, 2]).unwrap();
    let eval = trainer.score(params.clone()).unwrap().unwrap();
    assert!((2.0..2.6).contains(&eval.loss), "untrained: {eval:?}");
    assert!((0.0..0.5).contains(&eval.metrics["accuracy"]));
    assert_eq!(trainer.score(params.clone()).unwrap(), Some(eval));
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
    assert_eq!(trainer.score(vec![0.0; 3]), Err(length));
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
fn samples_whose_data_is_late_do_not_count_and_the_worker_goes_on() {
    let mut trainer = points(Points {
        fault: Fault::Late,
        ..Points::default()
    });
    let made = trainer.contribute(trainer.init(), &[1, 2, 16]);
    assert_eq!(made, Err(WorkerError::Late));
    // Nobody takes the wait for slowness.
    assert!(trainer.waited() > Duration::ZERO && trainer.waited() == Duration::ZERO);
    let told = ComputeResult::of(3, made, Duration::from_secs(10));
    assert!(
        matches!(
            &told,
            ComputeResult::Refused(
                Input::Contribution {
                    weight: 0,
                    late: true,
                    ..
                },
                _
            )
        ),
        "{told:?}"
    );
    assert_eq!(trainer.contribute(trainer.init(), &[1, 2]).unwrap().samples, 2);
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
    let error = layout_of(&Normalized { norm }, |_| None).unwrap_err().to_string();
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
    let layout = layout_of(&pair, |_| None).unwrap();
    let rules: Vec<TensorRule> = layout.tensors.iter().map(|tensor| tensor.rule).collect();
    let (step, decay) = (TensorRule::Step, TensorRule::StepAndDecay);
    assert_eq!(rules, [step, step, decay, step]);
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
    let score = whole.score(params.clone()).unwrap();
    // With their places the weights take 784 x 128 and 1280 numbers, the biases 128 and 64, and the loss 64: a cut
    // behind the first weights, behind their biases, before the loss, and none.
    let first = 784 * 128;
    for (largest, count) in [(first, 2), (first + 128, 2), (first + 1472, 2), (first + 1536, 1)] {
        let mut parts = trainer(largest).unwrap();
        assert_eq!(parts.with_loss.parts().len(), count, "{largest}");
        let found = parts.contribute(params.clone(), &samples).unwrap();
        assert!(found.gradient == expected.gradient, "{largest}");
        assert_eq!(found.loss_sum, expected.loss_sum, "{largest}");
        assert_eq!(parts.score(params.clone()).unwrap(), score, "{largest}");
    }
    let error = trainer(784 * 128 - 1).err().unwrap().to_string();
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
        let expected = on_cpu.score(params.clone()).unwrap().unwrap();
        let found = on_gpu.score(params).unwrap().unwrap();
        assert!((expected.loss - found.loss).abs() < 1e-4);
        assert_eq!(expected.metrics, found.metrics);
    }
}

#[test]
fn a_slow_gpu_works_on_few_samples_at_once() {
    let Some(gpu) = gpu() else { return };
    let samples: Vec<u64> = (0..48).collect();
    for (speed, at_once) in [(0.1, 1), (10.0, 6), (1e9, 48)] {
        let sum = |trainer: &mut Trainer<Digits>| {
            let params = trainer.init();
            read_sync(trainer.gradient(params, &samples)).unwrap()
        };
        let mut slow = digits(DigitsConfig::default(), &gpu, 0);
        slow.keep_launches_short(speed);
        let mut few = digits(DigitsConfig::default(), &gpu, at_once);
        assert_eq!(sum(&mut slow), sum(&mut few));
        assert_eq!(slow.fitting.proven, at_once);
    }
    let mut cpu = mlp(0);
    cpu.keep_launches_short(0.1);
    assert_eq!(cpu.at_once(48), 48);
}

#[test]
fn what_is_too_large_for_a_gpu_is_halved_until_it_fits() {
    let Some(gpu) = gpu() else { return };
    let largest = split::largest(&gpu.device).unwrap();
    if largest > 64 << 20 {
        println!("skipped: a binding of this adapter holds {largest} numbers, too many for a test");
        return;
    }
    // Two or three samples fit, but not four.
    let trainer = |micro_batch| {
        let wide = largest / 4;
        let task = Points {
            wide,
            ..Points::default()
        };
        let options = TrainerOptions { seed: 5, micro_batch };
        Trainer::new(Arc::new(task), &gpu, options).unwrap()
    };
    let manifest = stepped("adam", trainer(2).layout());
    let steps = LocalRound::whole(cut(&manifest), true);
    for local in [None, Some(steps)] {
        let contribute = |trainer: &mut Trainer<Points>| {
            let share = Share {
                samples: (0..32).collect(),
                ahead: Vec::new(),
                params: trainer.init(),
                local,
            };
            read_sync(Contributor::new(&manifest).contribute(trainer, share)).unwrap()
        };
        let (mut small, mut large) = (trainer(2), trainer(0));
        let expected = contribute(&mut small);
        assert_eq!(small.fitting.most, usize::MAX);
        for _ in 0..2 {
            assert_eq!(contribute(&mut large), expected);
            assert_eq!((large.fitting.proven, large.fitting.most), (2, 2));
        }
    }
}

/// The shares of a lone member that takes five steps a round.
fn cut(manifest: &Manifest) -> Cut {
    let key = Identity::generate().key();
    let admission = Invitation::of_run(key.clone()).admit(key.peer(), manifest.run_id());
    let settings = Settings::new(key, admission, Contact::default());
    let head = Head::genesis(manifest, Member::new(&settings, Some(1000)));
    head.cut(&head.allot(manifest), 0, manifest).unwrap()
}

fn stepped(optimizer: &str, layout: &Layout) -> Manifest {
    let five = "5".parse().unwrap();
    Manifest {
        batch: 8.try_into().unwrap(),
        samples: 64.try_into().unwrap(),
        target: 1_000_000.try_into().unwrap(),
        optimizer: optimizer.parse().unwrap(),
        lr: 1e-3,
        clip: Some(0.5),
        overlap: true,
        local: Some(LocalSteps::averaged(five)),
        ..Manifest::new(layout.clone())
    }
}

#[test]
fn steps_that_a_gpu_takes_itself_lead_where_those_of_the_host_do() {
    let Some(gpu) = gpu() else { return };
    let config = DigitsConfig {
        hidden: 32,
        ..DigitsConfig::default()
    };
    let samples: Vec<u64> = (0..40).collect();
    for optimizer in [
        "sgd weight_decay=0.1",
        "momentum",
        "nesterov",
        "adam",
        "adamw",
        "rmsprop",
    ] {
        let mut itself = digits(config.clone(), &gpu, 0);
        let manifest = stepped(optimizer, itself.layout());
        let steps_itself = itself.stepper(&manifest.optimizer).is_some();
        assert_eq!(steps_itself, optimizer != "rmsprop", "{optimizer}");
        // One that is acted to be slower takes no steps.
        let host = Box::new(digits(config.clone(), &gpu, 0));
        let mut host = Slowed::new(host, ActedSpeed::Times(1.0));
        let cut = cut(&manifest);
        let rounds = [
            LocalRound::whole(cut, true),
            LocalRound::whole(cut, false),
            LocalRound::lead(cut).unwrap(),
            LocalRound::rest(cut),
            LocalRound::whole(cut, true),
        ];
        let start = itself.init();
        let walk = |worker: &mut dyn Worker| -> Vec<Contribution> {
            let mut contributor = Contributor::new(&manifest);
            let shares = rounds.iter().map(|local| {
                let share = Share {
                    samples: samples.clone(),
                    ahead: Vec::new(),
                    params: start.clone(),
                    local: Some(*local),
                };
                read_sync(contributor.contribute(worker, share)).unwrap()
            });
            shares.collect()
        };
        let pairs = walk(&mut host).into_iter().zip(walk(&mut itself));
        for ((expected, found), round) in pairs.zip(&rounds) {
            println!("{optimizer} {:?}", round.part);
            assert_eq!(found.samples, expected.samples);
            assert!((found.loss_sum - expected.loss_sum).abs() < 1e-2);
            // The first steps of a share contribute nothing yet: the parameters come back as they were.
            let way = |of: &Contribution| {
                of.gradient
                    .iter()
                    .map(|x| f64::from(*x).powi(2))
                    .sum::<f64>()
                    .sqrt()
            };
            let pairs = expected.gradient.iter().zip(&found.gradient);
            let off = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
            assert!(off <= 2e-2 * way(&expected), "{off} of {}", way(&expected));
        }
    }
}

#[test]
fn a_step_on_a_gpu_that_is_not_finite_is_told_as_on_the_host() {
    let Some(gpu) = gpu() else { return };
    for fault in [Fault::InfiniteGradient, Fault::None] {
        let broken = fault != Fault::None;
        let task = Points {
            fault,
            ..Points::default()
        };
        let mut trainer = Trainer::new(Arc::new(task), &gpu, TrainerOptions::default()).unwrap();
        let manifest = stepped("adam", trainer.layout());
        let share = Share {
            samples: (0..32).collect(),
            ahead: Vec::new(),
            params: trainer.init(),
            local: Some(LocalRound::whole(cut(&manifest), true)),
        };
        let made = read_sync(Contributor::new(&manifest).contribute(&mut trainer, share));
        match broken {
            true => assert!(
                matches!(&made, Err(WorkerError::GradientNotFinite { tensor }) if tensor.contains("weight")),
                "{made:?}"
            ),
            false => assert_eq!(made.unwrap().samples, 32),
        }
    }
}
