// out = (x - mean) / sqrt(variance + epsilon) * gamma + beta, channel by channel
//
// x, out [images, channels, each], stats [2, channels], gamma, beta [channels]: row-major; each counted in Elem.
// Grid: an invocation per Elem, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: nothing is added up.
// How it got fast: (1) vec4 loads.

//#include "elem"

struct Params {
    count: u32,
    channels: u32,
    each: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> stats: array<f32>;
@group(0) @binding(2) var<storage, read> gamma: array<f32>;
@group(0) @binding(3) var<storage, read> beta: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<Elem>;
@group(0) @binding(5) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = (group.y * groups.x + group.x) * 64u + local;
    if at >= params.count {
        return;
    }
    let channel = at / params.each % params.channels;
    let scale = gamma[channel] / sqrt(stats[params.channels + channel] + params.epsilon);
    out[at] = (x[at] - stats[channel]) * scale + beta[channel];
}
