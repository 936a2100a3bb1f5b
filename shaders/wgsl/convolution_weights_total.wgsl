// weight = the sum of parts, as the weights of a convolution lie
//
// parts [pieces, groups, taps, rows, columns], from convolution_weights; rows and columns are whole vec4 of source channels and
// of made ones. weight [groups made, sources, taps]: row-major.
// Grid: an invocation per weight, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: pieces ascending, so bits repeat.
// How it got fast: (1) four loads on their way at a time.

struct Params {
    pieces: u32,
    groups: u32,
    taps: u32,
    sources: u32,
    made: u32,
}

@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read_write> weight: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let rows = (params.sources + 3u) / 4u * 4u;
    let columns = (params.made + 3u) / 4u * 4u;
    let number = (group.y * groups.x + group.x) * 64u + local;
    if number >= params.groups * params.made * params.sources * params.taps {
        return;
    }
    // Neighbours are neighbours in parts.
    let made = number % params.made;
    let source = number / params.made % params.sources;
    let tap = number / params.made / params.sources % params.taps;
    let of_group = number / params.made / params.sources / params.taps;
    var at = ((of_group * params.taps + tap) * rows + source) * columns + made;
    let step = params.groups * params.taps * rows * columns;
    var sum = 0.0;
    var piece = 0u;
    for (; piece + 4u <= params.pieces; piece += 4u) {
        sum = sum + parts[at] + parts[at + step] + parts[at + 2u * step] + parts[at + 3u * step];
        at += 4u * step;
    }
    for (; piece < params.pieces; piece++) {
        sum += parts[at];
        at += step;
    }
    weight[((of_group * params.made + made) * params.sources + source) * params.taps + tap] = sum;
}
