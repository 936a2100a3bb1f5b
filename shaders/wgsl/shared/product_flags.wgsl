// What there is beside a product, as bits of params.flags.
const BIAS = 1u;
const EXTRA = 2u;
const RELU = 4u;
const GELU = 8u;
const SIDE = 16u;
const RELU_SLOPE = 32u;
const GELU_SLOPE = 64u;
const SUMS = 128u;
