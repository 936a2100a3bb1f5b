//! Which kernels a model needs, so that a device is asked for no others.
//!
//! A device compiles a kernel when it is first launched, and a program that plays a GPU takes long for it. What a model
//! may launch follows from its [`Layer`]s: operations say here what they take, by the same choices that they launch by.

use crate::kernel::{DROPOUT, KERNELS, Kernel, PACK, PACK_ANY, ROTARY};
use crate::launch::Adapter;
use crate::ops::attention::Form;
use crate::ops::{
    activation, attention, batch_norm, convolution, cross_entropy, embedding, gated, gemm, norm, pool,
    rotary_halves, softmax,
};
use crate::optim;

/// A layer or an operation, as far as it decides which kernels there are to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// [`Linear`](crate::nn::Linear), [`Mlp`](crate::nn::Mlp) and the scores of an [`Embedding`](crate::nn::Embedding).
    Linear,
    /// [`CausalSelfAttention`](crate::nn::CausalSelfAttention) without its linear layers.
    Attention {
        /// Numbers in a query of one head.
        head_dim: usize,
    },
    /// [`attention`](attention::attention()) of separate tensors.
    SeparateAttention {
        /// Numbers in a query of one head.
        head_dim: usize,
        /// Whether there is a mask, or dropout.
        masked: bool,
    },
    /// [`Embedding`](crate::nn::Embedding).
    Embedding {
        /// Numbers in a row of the table.
        width: usize,
    },
    /// [`LayerNorm`](crate::nn::LayerNorm) and [`RmsNorm`](crate::nn::RmsNorm).
    Norm {
        /// Numbers in a row.
        width: usize,
    },
    /// [`CrossEntropy`](crate::nn::CrossEntropy).
    CrossEntropy {
        /// Logits in a row.
        classes: usize,
    },
    /// [`convolution`](convolution::convolution) and its transpose.
    Convolution,
    /// [`batch_norm`](batch_norm::batch_norm).
    BatchNorm {
        /// Numbers of a channel in an image.
        each: usize,
    },
    /// [`pool`](pool::pool).
    Pool,
    /// [`activation`](activation::activation) on its own.
    Activation,
    /// [`gated`](gated::gated).
    Gated,
    /// [`softmax`](softmax::softmax).
    Softmax {
        /// Numbers in a row.
        width: usize,
    },
    /// [`rotary`](crate::ops::rotary::rotary).
    Rotary,
    /// [`rope_halves`](rotary_halves::rope_halves).
    RotaryHalves {
        /// Numbers in a row.
        head_dim: usize,
    },
    /// [`dropout`](crate::ops::dropout::dropout).
    Dropout,
    /// An optimizer whose steps the device takes itself: [`LocalOptimizer`](crate::optim::LocalOptimizer).
    LocalSteps,
}

impl Layer {
    /// All layers of all sizes that make a difference: for who does not say which.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Linear,
            Self::Convolution,
            Self::Pool,
            Self::Activation,
            Self::Gated,
            Self::Rotary,
            Self::Dropout,
            Self::LocalSteps,
        ];
        all.extend([16, 32, 64].map(|head_dim| Self::Attention { head_dim }));
        for head_dim in [32, 64] {
            all.extend([false, true].map(|masked| Self::SeparateAttention { head_dim, masked }));
        }
        all.extend([4, 8].map(|head_dim| Self::RotaryHalves { head_dim }));
        for width in [1, 4] {
            all.extend([
                Self::Embedding { width },
                Self::Norm { width },
                Self::BatchNorm { each: width },
                Self::CrossEntropy { classes: width },
                Self::Softmax { width },
            ]);
        }
        all
    }

    fn kernels(self, adapter: Adapter) -> Vec<&'static Kernel> {
        match self {
            Self::Linear => gemm::kernels(adapter),
            Self::Attention { head_dim } => attention::kernels(adapter, Form::Packed, head_dim),
            Self::SeparateAttention { head_dim, masked } => {
                let form = if masked { Form::Masked } else { Form::Separate };
                attention::kernels(adapter, form, head_dim)
            }
            Self::Embedding { width } => embedding::kernels(width),
            Self::Norm { width } => norm::kernels(width),
            Self::CrossEntropy { classes } => cross_entropy::kernels(classes),
            Self::Convolution => convolution::kernels(adapter),
            Self::BatchNorm { each } => batch_norm::kernels(each),
            Self::Pool => pool::kernels(),
            Self::Activation => activation::kernels(),
            Self::Gated => gated::kernels(),
            Self::Softmax { width } => softmax::kernels(width),
            Self::Rotary => vec![&ROTARY],
            Self::RotaryHalves { head_dim } => rotary_halves::kernels(head_dim),
            Self::Dropout => vec![&DROPOUT],
            Self::LocalSteps => optim::kernels(),
        }
    }
}

/// What a model of these layers may launch on such an adapter in training, and what gathers its gradients; each once,
/// in the order of [`KERNELS`].
pub fn kernels(layers: &[Layer], adapter: Adapter) -> Vec<&'static Kernel> {
    let mut needed: Vec<&Kernel> = vec![&PACK, &PACK_ANY];
    needed.extend(layers.iter().flat_map(|layer| layer.kernels(adapter)));
    let is_needed = |kernel: &&'static Kernel| needed.iter().any(|other| std::ptr::eq(*other, *kernel));
    KERNELS.iter().copied().filter(is_needed).collect()
}
