// halves[i] = the numbers 2 i and 2 i + 1 of x, rounded to f16, the first in the lower bits
//
// x [count], halves [ceil(count / 2)] of u32; a last number without a partner has 0 beside it.
// Grid: workgroups counted row after row of the grid, an invocation for each pair.
// Workgroup memory: none.
// Accumulation order: there is none.
// How it got fast: it did not have to: weights are read many times for each time that they are packed.

struct Params {
    count: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> halves: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let pair = (group.y * groups.x + group.x) * 64u + lane;
    let at = 2u * pair;
    if at >= params.count {
        return;
    }
    var second = 0.0;
    if at + 1u < params.count {
        second = x[at + 1u];
    }
    halves[pair] = pack2x16float(vec2(x[at], second));
}
