//! The perceptron 784-128-10 on images.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{Training, draw};

const PIXELS: usize = 784;
const CLASSES: usize = 10;

/// Two linear layers with a ReLU between them.
#[derive(Module, Debug)]
pub struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    /// A model with random parameters.
    pub fn new(hidden: usize, device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(PIXELS, hidden).init(device),
            output: LinearConfig::new(hidden, CLASSES).init(device),
        }
    }

    /// Images `[n, 784]` to logits `[n, 10]`.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(images)))
    }

    /// Mean cross-entropy over images `[n, 784]` with their labels `[n]`.
    pub fn loss(&self, images: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        let device = images.device();
        let logits = self.forward(images);
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, labels)
    }
}

/// Its training by Adam on random images.
pub struct MlpTraining {
    model: Option<Mlp>,
    adam: ModuleOptimizer,
    batch: usize,
    seed: u64,
    device: Device,
}

impl MlpTraining {
    /// Fresh, on a device without autodiff.
    pub fn new(hidden: usize, batch: usize, device: &Device) -> Self {
        let device = device.clone().autodiff();
        Self {
            model: Some(Mlp::new(hidden, &device)),
            adam: AdamConfig::new().init(),
            batch,
            seed: 1,
            device,
        }
    }
}

impl Training for MlpTraining {
    fn step(&mut self) -> f32 {
        let pixels: Vec<f32> = (0..self.batch * PIXELS)
            .map(|_| draw(&mut self.seed, 256) as f32 / 255.0)
            .collect();
        let labels: Vec<i32> = (0..self.batch).map(|_| draw(&mut self.seed, CLASSES)).collect();
        let images = Tensor::from_data(TensorData::new(pixels, [self.batch, PIXELS]), &self.device);
        let labels = Tensor::from_data(TensorData::new(labels, [self.batch]), &self.device);
        let model = self.model.take().expect("put back after each step");
        let loss = model.loss(images, labels);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.adam.step(1e-3, model, gradients));
        loss.into_scalar::<f32>()
    }
}
