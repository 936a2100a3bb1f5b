// total = mean and biased variance of each channel, or the gradients for shift and scale
//
// parts [2, channels, parts], from batch_norm_sums, stats [2, channels] for gradients, total [2, channels]: row-major.
// Grid: an invocation per channel, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: parts ascending.
// How it got fast: it did not have to: there are few numbers.

struct Params {
    channels: u32,
    parts: u32,
    // Numbers of a channel in all images.
    count: u32,
    gradients: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read> stats: array<f32>;
@group(0) @binding(2) var<storage, read_write> total: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let channel = (group.y * groups.x + group.x) * 64u + local;
    if channel >= params.channels {
        return;
    }
    let first = channel * params.parts;
    let behind = params.channels * params.parts;
    var sums = vec2(0.0);
    for (var i = 0u; i < params.parts; i++) {
        sums += vec2(parts[first + i], parts[behind + first + i]);
    }
    if params.gradients != 0u {
        sums.y /= sqrt(stats[params.channels + channel] + params.epsilon);
    } else {
        // All parts say the mean.
        sums = vec2(parts[first], sums.y / f32(params.count));
    }
    total[channel] = sums.x;
    total[params.channels + channel] = sums.y;
}
