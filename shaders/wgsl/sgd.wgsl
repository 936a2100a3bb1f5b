// p -= lr (g + weight_decay p), g = scale * clipped * sums
//
// p, sums [n], n a multiple of 64; decay [n / 64], what the weight decay of a block of 64 elements is
// multiplied with (0 for biases); totals [2], the squared norm of sums and the number of elements that
// are not finite (read if checked is set: then the norm of scale * sums is brought down to clip, and a
// gradient that is not finite changes nothing). p is changed in place.
// Grid: row after row over blocks of 256 elements, 4 per invocation.
// Workgroup memory: none.
// Accumulation order: each element stands alone.
// How it got fast: one pass over each vector, as vec4; memory is the bound.

struct Params {
    //#include "optimizer_params"
    size: f32,
    weight_decay: f32,
}

@group(0) @binding(0) var<storage, read> sums: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> decay: array<f32>;
@group(0) @binding(2) var<storage, read> totals: array<f32>;
@group(0) @binding(3) var<storage, read_write> p: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = (workgroup.y * params.groups_per_row + workgroup.x) * 64u + lane;
    var scale = params.scale;
    if params.checked != 0u {
        if totals[1] > 0.0 {
            return;
        }
        scale *= min(1.0, params.clip / (sqrt(totals[0]) * scale + 1e-6));
    }
    if at >= params.fours {
        return;
    }
    let old = p[at];
    let g = sums[at] * scale + params.weight_decay * decay[at / 16u] * old;
    p[at] = old - params.size * g;
}
