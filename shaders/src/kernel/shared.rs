//! The files that kernels include, compiled in.

macro_rules! shared {
    ($($name:literal)*) => {
        /// All of `wgsl/shared/`, by name.
        pub(super) static SHARED: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../wgsl/shared/", $name, ".wgsl"))),)*
        ];
    };
}

shared! {
    "activation_kinds"
    "attention_block"
    "attention_d_out"
    "attention_loops"
    "attention_masked"
    "attention_params"
    "attention_row_sums"
    "attention_tiles"
    "attention_unrolled"
    "attention_unrolled_slopes"
    "convolution_direct_params"
    "convolution_params"
    "convolution_reads"
    "elem"
    "erf"
    "optimizer_params"
    "pack_places"
    "peak"
    "philox"
    "pick"
    "pool_params"
    "product_blocks"
    "product_flags"
    "product_params"
    "product_rows"
    "product_strided"
    "product_tile"
    "product_vectors"
    "scaled_rows"
    "total"
}
