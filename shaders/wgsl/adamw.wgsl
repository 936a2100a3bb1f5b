// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, p = p (1 - lr weight_decay) - size m / (second sqrt(v) + eps)
//
// g = scale * clipped * sums + l2 p. size is lr / (1 - beta1^step), second 1 / sqrt(1 - beta2^step).
// p, m, v, sums [n], n a multiple of 64; decay [n / 64], what both kinds of weight decay of a block of
// 64 elements are multiplied with (0 for biases); totals [2], the squared norm of sums and the number
// of elements that are not finite (read if checked is set: then the norm of scale * sums is brought
// down to clip, and a gradient that is not finite changes nothing). p, m and v are changed in place.
// Grid: row after row over blocks of 256 elements, 4 per invocation.
// Workgroup memory: none.
// Accumulation order: each element stands alone.
// How it got fast: one pass over each vector, as vec4; memory is the bound.

struct Params {
    //#include "optimizer_params"
    size: f32,
    second: f32,
    eps: f32,
    beta1: f32,
    beta2: f32,
    l2: f32,
    decoupled: f32,
}

@group(0) @binding(0) var<storage, read> sums: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> decay: array<f32>;
@group(0) @binding(2) var<storage, read> totals: array<f32>;
@group(0) @binding(3) var<storage, read_write> p: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> m: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> v: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> params: Params;

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
    let decays = decay[at / 16u];
    let g = sums[at] * scale + params.l2 * decays * old;
    let first = params.beta1 * m[at] + (1.0 - params.beta1) * g;
    let second = params.beta2 * v[at] + (1.0 - params.beta2) * g * g;
    m[at] = first;
    v[at] = second;
    let keep = 1.0 - params.decoupled * decays;
    p[at] = old * keep - params.size * (first / (sqrt(second) * params.second + params.eps));
}
