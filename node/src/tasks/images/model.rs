//! The models of the images task. They know nothing of data or training.

use annulus_images::Plan;
use annulus_shaders::nn::{Linear, LinearConfig, convolve};
use annulus_shaders::ops::norm::layer_norm;
use annulus_shaders::ops::pool::max_pool;
use burn::module::{Initializer, Module, Param};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

/// Channels that are normalized together.
const GROUP: usize = 8;

/// Added to a variance, as PyTorch does.
const EPSILON: f32 = 1e-5;

/// A convolutional network. Its tensors have the names that torchvision's ResNet would give them.
#[derive(Module, Debug)]
pub struct ConvNet {
    conv1: Conv2d,
    norm1: GroupNorm,
    blocks: Vec<Block>,
    fc: Linear,
}

/// One convolution, or two whose result is added to the input.
#[derive(Module, Debug)]
pub struct Block {
    conv1: Conv2d,
    norm1: GroupNorm,
    conv2: Option<Conv2d>,
    norm2: Option<GroupNorm>,
    downsample: Option<Conv2d>,
}

/// Group normalization (Wu and He 2018), in groups of eight channels.
#[derive(Module, Debug)]
pub struct GroupNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
}

impl ConvNet {
    /// A model with random convolutions.
    pub fn new(plan: &Plan, device: &Device) -> Self {
        let block = |block: &annulus_images::Block| {
            let (inputs, outputs) = (block.inputs, block.outputs);
            Block {
                conv1: convolution((inputs, outputs), 3, block.stride, device),
                norm1: GroupNorm::new(outputs, device),
                conv2: block
                    .residual
                    .then(|| convolution((outputs, outputs), 3, 1, device)),
                norm2: block.residual.then(|| GroupNorm::new(outputs, device)),
                downsample: block
                    .reshapes()
                    .then(|| convolution((inputs, outputs), 1, block.stride, device)),
            }
        };
        Self {
            conv1: convolution((plan.inputs, plan.width), 3, 1, device),
            norm1: GroupNorm::new(plan.width, device),
            blocks: plan.blocks.iter().map(block).collect(),
            fc: LinearConfig::new(plan.features(), plan.outputs).init(device),
        }
    }

    /// Pictures `[n, channels, size, size]` to logits `[n, classes]`.
    pub fn forward(&self, plan: &Plan, pictures: Tensor<4>) -> Tensor<2> {
        let mut x = relu(self.norm1.forward(convolve(&self.conv1, pictures)));
        for _ in 0..plan.pools {
            x = max_pool(x, 2);
        }
        for (block, of) in self.blocks.iter().zip(&plan.blocks) {
            x = block.forward(x);
            if of.pool {
                x = max_pool(x, 2);
            }
        }
        let [count, channels, rows, columns] = x.dims();
        let places = x.reshape([count, channels, rows * columns]);
        let of_all = Tensor::cat(vec![places.clone().max_dim(2), places.mean_dim(2)], 1);
        self.fc.forward(of_all.reshape([count, 2 * channels]))
    }
}

impl Block {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = self.norm1.forward(convolve(&self.conv1, x.clone()));
        let (Some(conv2), Some(norm2)) = (&self.conv2, &self.norm2) else {
            return relu(y);
        };
        let y = norm2.forward(convolve(conv2, relu(y)));
        let around = match &self.downsample {
            Some(downsample) => convolve(downsample, x),
            None => x,
        };
        relu(y + around)
    }
}

impl GroupNorm {
    fn new(channels: usize, device: &Device) -> Self {
        Self {
            weight: Initializer::Ones.init([channels], device),
            bias: Initializer::Zeros.init([channels], device),
        }
    }

    /// `[n, channels, rows, columns]` to the same: each group of one picture to mean 0 and variance 1, then each channel scaled
    /// and shifted.
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let [count, channels, rows, columns] = x.dims();
        let width = GROUP * rows * columns;
        // One row for each group, so that the kernel of layer norm does it.
        let ones = Tensor::ones([width], &x.device());
        let groups = x.reshape([count * channels / GROUP, width]);
        let normed = layer_norm(groups, ones, None, EPSILON).reshape([count, channels, rows, columns]);
        let of_channel = |numbers: &Param<Tensor<1>>| numbers.val().reshape([1, channels, 1, 1]);
        normed * of_channel(&self.weight) + of_channel(&self.bias)
    }
}

/// Without a bias, which the norm behind it would take away.
fn convolution((inputs, outputs): (usize, usize), side: usize, stride: usize, device: &Device) -> Conv2d {
    let around = side / 2;
    Conv2dConfig::new([inputs, outputs], [side, side])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(around, around, around, around))
        .with_bias(false)
        .with_initializer(Initializer::KaimingNormal {
            gain: std::f64::consts::SQRT_2,
            fan_out_only: false,
        })
        .init(device)
}
