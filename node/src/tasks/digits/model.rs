//! The models of the digits task. They know nothing of data or training.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use annulus_shaders::nn::{Activation, Linear, LinearConfig, convolve};
use annulus_shaders::ops::pool::max_pool;

use super::pictures::{CLASSES, PIXELS, SIDE};

/// The models to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// From pixels to classes directly.
    Linear,
    /// One hidden layer.
    Mlp,
    /// Two convolutions, then like the MLP.
    Cnn,
}

/// All three models; each kind has only the layers that it needs.
#[derive(Module, Debug)]
pub struct Classifier {
    features: Option<Features>,
    hidden: Option<Linear>,
    output: Linear,
}

impl Classifier {
    /// A model with random parameters.
    pub fn new(kind: ModelKind, hidden: usize, device: &Device) -> Self {
        let inputs = match kind {
            ModelKind::Cnn => Features::OUTPUTS,
            ModelKind::Linear | ModelKind::Mlp => PIXELS,
        };
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self {
            features: (kind == ModelKind::Cnn).then(|| Features::new(device)),
            hidden: (kind != ModelKind::Linear).then(|| layer(inputs, hidden)),
            output: match kind {
                ModelKind::Linear => layer(inputs, CLASSES),
                ModelKind::Mlp | ModelKind::Cnn => layer(hidden, CLASSES),
            },
        }
    }

    /// Everything but the output layer: images `[n, 784]` to its inputs `[n, width]`.
    pub fn hidden(&self, images: Tensor<2>) -> Tensor<2> {
        let mut x = images;
        if let Some(features) = &self.features {
            x = features.forward(x);
        }
        match &self.hidden {
            Some(hidden) => relu(hidden.forward(x)),
            None => x,
        }
    }

    /// The output layer: `[n, width]` to logits `[n, 10]`.
    pub fn output(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(x)
    }

    /// Images `[n, 784]` to logits `[n, 10]`.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let mut x = images;
        if let Some(features) = &self.features {
            x = features.forward(x);
        }
        match &self.hidden {
            Some(hidden) => hidden.forward_then(x, Activation::Relu, &self.output, None),
            None => self.output.forward(x),
        }
    }
}

/// Two convolutions of 3 x 3, each followed by a ReLU and a max-pooling that halves the image.
#[derive(Module, Debug)]
pub struct Features {
    first: Conv2d,
    second: Conv2d,
}

impl Features {
    const CHANNELS: [usize; 2] = [8, 16];
    const OUTPUTS: usize = Self::CHANNELS[1] * (SIDE / 4) * (SIDE / 4);

    fn new(device: &Device) -> Self {
        let convolution = |inputs, outputs| {
            Conv2dConfig::new([inputs, outputs], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        Self {
            first: convolution(1, Self::CHANNELS[0]),
            second: convolution(Self::CHANNELS[0], Self::CHANNELS[1]),
        }
    }

    /// Images `[n, 784]` to features `[n, 784]`: a quarter of the height and width, 16 channels.
    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let [count, _] = images.dims();
        let x = images.reshape([count, 1, SIDE, SIDE]);
        let x = max_pool(relu(convolve(&self.first, x)), 2);
        let x = max_pool(relu(convolve(&self.second, x)), 2);
        x.reshape([count, Self::OUTPUTS])
    }
}
