    // What the parameters of all attention kernels begin with.
    tokens: u32,
    heads: u32,
    width: u32,
    pairs: u32,
    chunks: u32,
    causal: u32,
    scale: f32,
