// out[i] = x[i] / (1 - rate) where random(i) >= rate, else 0
//
// x, out [count]. random(i) is word i mod 4 of Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011) under
// the key params.seed, at the counter (i / 4, 0, params.offset): whoever knows seed and offset knows the
// mask. So nobody stores it, and the backward pass is this same kernel on the gradient.
// params.threshold is rate * 2^32.
// Grid: a workgroup per 256 numbers, counted row after row of the grid.
// Workgroup memory: none.
// Accumulation order: no sums.
// How it got fast: four numbers an invocation, as many as a call of the generator makes; both products
// of a round side by side.

struct Params {
    count: u32,
    threshold: u32,
    scale: f32,
    seed_low: u32,
    seed_high: u32,
    offset_low: u32,
    offset_high: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let block = (group.y * groups.x + group.x) * 64u + local;
    let counter = vec4(block, 0u, params.offset_low, params.offset_high);
    let random = philox(counter, vec2(params.seed_low, params.seed_high));
    let scale = select(vec4(0.0), vec4(params.scale), random >= vec4(params.threshold));
    let at = 4u * block;
    store(at, scale.x);
    store(at + 1u, scale.y);
    store(at + 2u, scale.z);
    store(at + 3u, scale.w);
}

fn store(at: u32, scale: f32) {
    if at < params.count {
        // Not x * 0, which is no 0 for an infinite x.
        out[at] = select(0.0, x[at] * scale, scale > 0.0);
    }
}

fn philox(start: vec4<u32>, start_key: vec2<u32>) -> vec4<u32> {
    var counter = start;
    var key = start_key;
    for (var round = 0u; round < 10u; round++) {
        let factors = vec2(0xd2511f53u, 0xcd9e8d57u);
        let low = factors * counter.xz;
        let high = high_product(factors, counter.xz);
        counter = vec4(high.y ^ counter.y ^ key.x, low.y, high.x ^ counter.w ^ key.y, low.x);
        key += vec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter;
}

// The upper halves of 64-bit products, from products of 16-bit halves.
fn high_product(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let half = vec2(0xffffu);
    let shift = vec2(16u);
    let low = (a & half) * (b & half);
    let first = (a >> shift) * (b & half) + (low >> shift);
    let second = (a & half) * (b >> shift) + (first & half);
    return (a >> shift) * (b >> shift) + (first >> shift) + (second >> shift);
}
