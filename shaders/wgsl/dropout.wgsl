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

//#include "philox"

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
