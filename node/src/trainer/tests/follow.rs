//! A model with a value that follows a statistic of the batch.

use super::*;
use crate::task::follow;
use burn::module::Param;

#[derive(Module, Debug)]
struct Centred {
    mean: Param<Tensor<1>>,
    scale: Param<Tensor<1>>,
}

/// Samples are their numbers. They are centred by the batch's mean, which the model's `mean` follows.
struct Numbers;

impl Dataset for Numbers {
    type Batch = Vec<f32>;

    fn len(&self) -> u64 {
        32
    }

    fn digest(&self) -> Digest {
        Digest::of(b"numbers")
    }

    fn batch(&self, samples: &[u64]) -> Vec<f32> {
        samples.iter().map(|i| *i as f32).collect()
    }
}

impl Task for Numbers {
    type Model = Centred;
    type Dataset = Self;
    type Config = ();

    const NAME: &'static str = "numbers";

    fn new(_config: (), _data: Option<&Data>) -> Result<Self, TaskError> {
        Ok(Self)
    }

    fn dataset(&self) -> &Self {
        self
    }

    fn model(&self, device: &Device) -> Centred {
        let value = |value: f32| Param::from_tensor(Tensor::<1>::from_floats([value], device).require_grad());
        Centred {
            mean: value(1.0),
            scale: value(2.0),
        }
    }

    fn loss(&self, model: &Centred, batch: Vec<f32>, device: &Device) -> Tensor<1> {
        let x = Tensor::<1>::from_floats(&batch[..], device);
        let mean = x.clone().mean();
        let loss = ((x - mean.clone()) * model.scale.val()).powi_scalar(2).mean();
        follow(loss, &model.mean.val(), mean)
    }

    fn rule(&self, name: &str) -> Option<TensorRule> {
        (name == "mean").then_some(TensorRule::Mean { rate: 0.1 })
    }
}

fn trains(device: &OpenDevice, micro_batch: usize) {
    let options = TrainerOptions { seed: 0, micro_batch };
    let mut trainer = Trainer::new(Arc::new(Numbers), device, options).unwrap();
    let rules: Vec<TensorRule> = trainer
        .layout()
        .tensors
        .iter()
        .map(|tensor| tensor.rule)
        .collect();
    assert_eq!(rules, [TensorRule::Mean { rate: 0.1 }, TensorRule::Step]);
    let made = trainer.contribute(vec![1.0, 2.0], &[0, 2, 4, 6]).unwrap();
    // The mean of all samples is 3, however they are cut.
    let (way, variance) = (3.0 - 1.0, if micro_batch == 2 { 1.0 } else { 5.0 });
    assert_close(&made.gradient, &[4.0 * way, 4.0 * 2.0 * 2.0 * variance], 1e-6);
    // The loss is as if nothing followed.
    assert_close(&[made.loss_sum], &[4.0 * 4.0 * variance], 1e-6);
    let optimizer = "adam".parse().unwrap();
    assert!(trainer.stepper(&optimizer).is_none(), "steps are the host's");
}

#[test]
fn a_value_that_follows_gives_samples_times_its_way_to_the_batch() {
    trains(&OpenDevice::cpu(), 0);
    trains(&OpenDevice::cpu(), 2);
    if let Some(gpu) = gpu() {
        trains(&gpu, 0);
        trains(&gpu, 2);
    }
}
