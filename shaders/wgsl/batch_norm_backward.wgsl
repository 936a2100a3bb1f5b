// With n = (x - mean) / deviation of a channel: to_x = (gradient - mean(gradient) - n mean(gradient n)) gamma / deviation
//
// x, gradient, to_x [images, channels, each], stats [2, channels], gamma [channels], total [2, channels]: the sums of gradient
// and of gradient n, from batch_norm_total. Row-major; each counted in Elem.
// Grid: an invocation per Elem, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: the differences first: behind a mean over the image most of the gradient is taken away.
// How it got fast: (1) vec4 loads.

//#include "elem"

struct Params {
    count: u32,
    channels: u32,
    each: u32,
    // Numbers of a channel in all images.
    numbers: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> gradient: array<Elem>;
@group(0) @binding(2) var<storage, read> stats: array<f32>;
@group(0) @binding(3) var<storage, read> gamma: array<f32>;
@group(0) @binding(4) var<storage, read> total: array<f32>;
@group(0) @binding(5) var<storage, read_write> to_x: array<Elem>;
@group(0) @binding(6) var<uniform> params: Params;

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
    let inverse = 1.0 / sqrt(stats[params.channels + channel] + params.epsilon);
    let numbers = f32(params.numbers);
    let shift = total[channel] / numbers;
    let slope = inverse * total[params.channels + channel] / numbers;
    to_x[at] = ((gradient[at] - shift) - (x[at] - stats[channel]) * slope) * (gamma[channel] * inverse);
}
