//! All kernels, by name.

use super::text::Kernel;

/// A line for each file, and in brackets what its other texts are for: the kernels of [`variant`](super::variant)s.
macro_rules! kernels {
    ($(#[$about_all:meta])* $all:ident: $($(#[$about:meta])* $constant:ident = $file:literal $([$($other:ident = $variant:literal),+])?;)*) => {
        $(
            $(#[$about])*
            pub static $constant: Kernel = Kernel::of_file($file, $file, text!($file), None);
            $($(
                #[doc = concat!("[`", stringify!($constant), "`], as its file has it for `", $variant, "`.")]
                pub static $other: Kernel =
                    Kernel::of_file(concat!($file, "_", $variant), $file, text!($file), Some($variant));
            )+)?
        )*

        $(#[$about_all])*
        pub static $all: &[&Kernel] = &[$(&$constant, $($(&$other,)+)?)*];
    };
}

macro_rules! text {
    ($file:literal) => {
        include_str!(concat!("../../wgsl/", $file, ".wgsl"))
    };
}

kernels! {
    /// All that any device takes.
    KERNELS:

    /// Matrix product of any shape and strides, a small tile per invocation.
    GEMM_ANY = "gemm_any";
    /// `A B`, rows in registers, no barriers.
    GEMM_NN = "gemm_nn" [GEMM_NN_HALVES = "halves"];
    /// `A Bᵀ`, rows in registers, no barriers.
    GEMM_NT = "gemm_nt" [GEMM_NT_HALVES = "halves"];
    /// `Aᵀ B` and the column sums of `B`, rows in registers, no barriers.
    GEMM_TN = "gemm_tn";
    /// `A B` for any strides of `A`, a large tile per invocation, without branches.
    GEMM_WIDE = "gemm_wide" [GEMM_WIDE_PLAIN = "plain"];
    /// Matrix product, tiles in workgroup memory.
    GEMM_TILED = "gemm_tiled" [GEMM_TILED_HALVES = "halves", GEMM_TILED_SCALAR = "scalar"];
    /// The sum of products of pieces.
    GEMM_TOTAL = "gemm_total" [GEMM_TOTAL_SCALAR = "scalar"];
    /// Pairs of numbers as halves.
    HALVE = "halve";

    /// Attention, without barriers.
    ATTENTION_FORWARD = "attention_forward" [
        ATTENTION_FORWARD_NARROW = "narrow",
        ATTENTION_FORWARD_MASKED = "masked",
        ATTENTION_FORWARD_MASKED_NARROW = "masked_narrow"
    ];
    /// Its slopes, without barriers.
    ATTENTION_BACKWARD = "attention_backward" [
        ATTENTION_BACKWARD_NARROW = "narrow",
        ATTENTION_BACKWARD_MASKED = "masked",
        ATTENTION_BACKWARD_MASKED_NARROW = "masked_narrow"
    ];
    /// Attention, without branches.
    ATTENTION_FORWARD_UNROLLED = "attention_forward_unrolled" [
        ATTENTION_FORWARD_UNROLLED_NARROW = "narrow",
        ATTENTION_FORWARD_UNROLLED_SLIM = "slim"
    ];
    /// Its slopes to queries, without branches.
    ATTENTION_BACKWARD_QUERIES = "attention_backward_queries" [
        ATTENTION_BACKWARD_QUERIES_NARROW = "narrow",
        ATTENTION_BACKWARD_QUERIES_SLIM = "slim"
    ];
    /// Its slopes to keys and values, without branches.
    ATTENTION_BACKWARD_KEYS = "attention_backward_keys" [
        ATTENTION_BACKWARD_KEYS_NARROW = "narrow",
        ATTENTION_BACKWARD_KEYS_SLIM = "slim"
    ];
    /// Attention, tiles in workgroup memory.
    ATTENTION_FORWARD_TILED = "attention_forward_tiled" [ATTENTION_FORWARD_TILED_MASKED = "masked"];
    /// Its slopes, tiles in workgroup memory.
    ATTENTION_BACKWARD_TILED = "attention_backward_tiled" [ATTENTION_BACKWARD_TILED_MASKED = "masked"];
    /// Rotary positions.
    ROTARY = "rotary";
    /// Rotary positions of pairs that are half a head apart.
    ROTARY_HALVES = "rotary_halves" [ROTARY_HALVES_SCALAR = "scalar"];

    /// Convolution, without barriers.
    CONVOLUTION = "convolution";
    /// Images with their channels last and a border.
    CONVOLUTION_COPY = "convolution_copy";
    /// Convolution of groups that make few channels.
    CONVOLUTION_DIRECT = "convolution_direct";
    /// Its gradient for the weights.
    CONVOLUTION_DIRECT_WEIGHTS = "convolution_direct_weights";
    /// The weights of a convolution as a product takes them.
    CONVOLUTION_MATRIX = "convolution_matrix";
    /// Convolution, tiles in workgroup memory.
    CONVOLUTION_TILED = "convolution_tiled";
    /// Gradient of a convolution for its weights, in pieces, without barriers.
    CONVOLUTION_WEIGHTS = "convolution_weights";
    /// The same, tiles in workgroup memory.
    CONVOLUTION_WEIGHTS_TILED = "convolution_weights_tiled";
    /// The sum of these pieces.
    CONVOLUTION_WEIGHTS_TOTAL = "convolution_weights_total";

    /// Batch norm, from its statistics.
    BATCH_NORM = "batch_norm" [BATCH_NORM_SCALAR = "scalar"];
    /// Gradient of `batch_norm` for its input.
    BATCH_NORM_BACKWARD = "batch_norm_backward" [BATCH_NORM_BACKWARD_SCALAR = "scalar"];
    /// Sums over channels, in parts.
    BATCH_NORM_SUMS = "batch_norm_sums";
    /// Statistics of channels, or gradients, from these.
    BATCH_NORM_TOTAL = "batch_norm_total";

    /// Maxima or means of windows.
    POOL = "pool";
    /// Gradient of `pool`.
    POOL_BACKWARD = "pool_backward";

    /// Activation functions.
    ACTIVATION = "activation" [ACTIVATION_SCALAR = "scalar"];
    /// Gradient of `activation`.
    ACTIVATION_BACKWARD = "activation_backward" [ACTIVATION_BACKWARD_SCALAR = "scalar"];
    /// An activation function of one tensor times another tensor.
    GATED = "gated" [GATED_SCALAR = "scalar"];
    /// Gradients of `gated`.
    GATED_BACKWARD = "gated_backward" [GATED_BACKWARD_SCALAR = "scalar"];
    /// Softmax and cross-entropy in one.
    CROSS_ENTROPY = "cross_entropy" [CROSS_ENTROPY_SCALAR = "scalar"];
    /// Mean of the losses, from their partial sums.
    CROSS_ENTROPY_MEAN = "cross_entropy_mean";
    /// Gradient of `cross_entropy` for the logits.
    CROSS_ENTROPY_BACKWARD = "cross_entropy_backward" [CROSS_ENTROPY_BACKWARD_SCALAR = "scalar"];
    /// Dropout by a counter-based generator.
    DROPOUT = "dropout";
    /// Rows of a table and of positions.
    EMBEDDING = "embedding" [EMBEDDING_SCALAR = "scalar"];
    /// Ids with their tokens, sorted.
    EMBEDDING_SORT = "embedding_sort" [EMBEDDING_SORT_SCALAR = "scalar"];
    /// Gradients of `embedding` for the table and the positions.
    EMBEDDING_BACKWARD = "embedding_backward" [EMBEDDING_BACKWARD_SCALAR = "scalar"];
    /// Layer norm and RMS norm.
    NORM = "norm" [NORM_SCALAR = "scalar"];
    /// Gradients of `norm` for its input, scale and shift.
    NORM_BACKWARD = "norm_backward" [NORM_BACKWARD_SCALAR = "scalar"];
    /// Softmax.
    SOFTMAX = "softmax" [SOFTMAX_SCALAR = "scalar"];
    /// Gradient of `softmax`.
    SOFTMAX_BACKWARD = "softmax_backward" [SOFTMAX_BACKWARD_SCALAR = "scalar"];

    /// Many tensors, of lengths that four divides, into one vector, scaled, summed up.
    PACK = "pack";
    /// Many tensors of any length into one vector, scaled, summed up.
    PACK_ANY = "pack_any";
    /// Partial sums of squares, and how many elements are not finite.
    SQUARED_NORM = "squared_norm";
    /// The sum of the partial ones.
    SQUARED_NORM_TOTAL = "squared_norm_total";
    /// A step of stochastic gradient descent.
    SGD = "sgd";
    /// A step of stochastic gradient descent with momentum.
    MOMENTUM = "momentum";
    /// A step of Adam or AdamW.
    ADAMW = "adamw";
    /// Halves around an exponent per run.
    F16_ENCODE = "f16_encode";
    /// The way back.
    F16_DECODE = "f16_decode";
    /// Bytes with a scale per block.
    INT8_ENCODE = "int8_encode";
    /// The way back.
    INT8_DECODE = "int8_decode";
}

kernels! {
    /// Those for devices with matrix units, which [`matrices`](crate::matrices) tries in this order.
    MATRIX_KERNELS:

    /// Matrix product by matrix units.
    GEMM_MATRIX = "gemm_matrix" [GEMM_MATRIX_BROAD = "broad", GEMM_MATRIX_SMALL = "small"];
}

/// What [`halves`](crate::halves) take; naga, unlike WGSL, asks adapters for leave.
pub static HALF_KERNELS: [&Kernel; 4] = [&GEMM_NN_HALVES, &GEMM_NT_HALVES, &GEMM_TILED_HALVES, &HALVE];

/// A kernel for rows of vec4 and the same for rows of any length.
pub type Widths = [&'static Kernel; 2];

/// The one of them for rows of `width` numbers, and how many elements such a row has.
pub fn fitting([vectors, scalars]: Widths, width: usize) -> (&'static Kernel, usize) {
    match width.is_multiple_of(4) {
        true => (vectors, width / 4),
        false => (scalars, width),
    }
}
