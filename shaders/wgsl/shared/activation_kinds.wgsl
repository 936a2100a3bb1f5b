// Which activation function, and of how many elements.

struct Params {
    count: u32,
    kind: u32,
}

const RELU = 1u;
const GELU = 2u;
