// total = sum of partial[j], both components
//
// partial [count], total [1]: pairs of f32. The second half of squared_norm.
// Grid: one workgroup.
// Workgroup memory: 64 pairs, for a tree of sums.
// Accumulation order: each invocation adds every 64th pair in order; then pairwise, the distance
// halving from 32. The same for every count, so that the bits repeat.
// How it got fast: it did not have to: there are few pairs.

struct Params {
    count: u32,
}

@group(0) @binding(0) var<storage, read> partial: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> total: array<vec2<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

var<workgroup> sums: array<vec2<f32>, 64>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = vec2(0.0);
    for (var j = lane; j < params.count; j += 64u) {
        sum += partial[j];
    }
    sums[lane] = sum;
    workgroupBarrier();
    for (var distance = 32u; distance > 0u; distance /= 2u) {
        if lane < distance {
            sums[lane] += sums[lane + distance];
        }
        workgroupBarrier();
    }
    if lane == 0u {
        total[0] = sums[0];
    }
}
