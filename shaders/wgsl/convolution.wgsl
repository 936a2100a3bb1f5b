// out = sum over taps and channels of what the kernel sees times the matrix, + bias
//
// copy: images with their channels last, from convolution_copy. matrix [groups, taps, 4 quads, made] in vec4 of made, from
// convolution_matrix. bias [groups made]. out [images, groups made, ..], at the places that the parameters give: with strides
// the gradient for the input is made remainder by remainder, each of its own taps.
// Grid: a workgroup per 64 positions and 16 channels, counted row after row of the grid; z over groups. An invocation makes
// 8 positions of 16 channels.
// Workgroup memory: none, and so no barriers: they are dear where threads are emulated by a CPU.
// Accumulation order: four channels, then their sum to the total; channels ascending, tap by tap.
// How it got fast: (1) the copy makes four channels of any position a vec4, and has zeros around the image, so that nothing in
// the loop asks where it is; (2) loads take the time, so 24 of them for 512 products instead of 16 for 256: 1.25 times as fast
// on lavapipe (Zen 3), though the sums no longer fit its registers.

//#include "convolution_params"
//#include "pick"

@group(0) @binding(0) var<storage, read> copy: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> matrix: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let quads = (params.made + 3u) / 4u;
    let across = (quads + 3u) / 4u;
    let number = workgroup.y * workgroups.x + workgroup.x;
    let quad = number % across * 4u;
    let first = (number / across * 8u + local) * 8u;
    if first >= params.positions {
        return;
    }
    // What lies outside is computed as a repetition of the last, and not stored.
    let last = params.positions - 1u;
    let group = workgroup.z;
    let begin = group * params.quads;
    let x0 = begin + source_of(place_of(first));
    let x1 = begin + source_of(place_of(min(first + 1u, last)));
    let x2 = begin + source_of(place_of(min(first + 2u, last)));
    let x3 = begin + source_of(place_of(min(first + 3u, last)));
    let x4 = begin + source_of(place_of(min(first + 4u, last)));
    let x5 = begin + source_of(place_of(min(first + 5u, last)));
    let x6 = begin + source_of(place_of(min(first + 6u, last)));
    let x7 = begin + source_of(place_of(min(first + 7u, last)));
    let columns = min(quad + vec4(0u, 1u, 2u, 3u), vec4(quads - 1u));
    // Each holds four channels of four positions: position i is sum[i].
    var sum00 = mat4x4<f32>();
    var sum01 = mat4x4<f32>();
    var sum02 = mat4x4<f32>();
    var sum03 = mat4x4<f32>();
    var sum10 = mat4x4<f32>();
    var sum11 = mat4x4<f32>();
    var sum12 = mat4x4<f32>();
    var sum13 = mat4x4<f32>();
    let taps = params.taps_z * params.taps_y * params.taps_x;
    for (var j = 0u; j < taps; j++) {
        let jx = j % params.taps_x;
        let jy = j / params.taps_x % params.taps_y;
        let jz = j / params.taps_x / params.taps_y;
        let at = jz * params.step_z + jy * params.step_y + jx * params.step_x;
        let tap = params.tap + jz * params.tap_z + jy * params.tap_y + jx * params.tap_x;
        let begin_y = (group * params.all_taps + tap) * params.quads * 4u * quads;
        var y = begin_y + columns;
        for (var k = at; k != at + params.quads; k++) {
            let upper = mat4x4<f32>(copy[x0 + k], copy[x1 + k], copy[x2 + k], copy[x3 + k]);
            let lower = mat4x4<f32>(copy[x4 + k], copy[x5 + k], copy[x6 + k], copy[x7 + k]);
            let y0 = four_rows(y.x, quads);
            sum00 += y0 * upper;
            sum10 += y0 * lower;
            let y1 = four_rows(y.y, quads);
            sum01 += y1 * upper;
            sum11 += y1 * lower;
            let y2 = four_rows(y.z, quads);
            sum02 += y2 * upper;
            sum12 += y2 * lower;
            let y3 = four_rows(y.w, quads);
            sum03 += y3 * upper;
            sum13 += y3 * lower;
            y += 4u * quads;
        }
    }
    // A loop that compilers cannot unroll: what follows would be there sixteen times, and take them long.
    let pieces = min(4u, 4u * params.made);
    for (var i = 0u; i < pieces; i++) {
        finish(pick(sum00, i), group, first + i, quad);
        finish(pick(sum01, i), group, first + i, quad + 1u);
        finish(pick(sum02, i), group, first + i, quad + 2u);
        finish(pick(sum03, i), group, first + i, quad + 3u);
        finish(pick(sum10, i), group, first + 4u + i, quad);
        finish(pick(sum11, i), group, first + 4u + i, quad + 1u);
        finish(pick(sum12, i), group, first + 4u + i, quad + 2u);
        finish(pick(sum13, i), group, first + 4u + i, quad + 3u);
    }
}

fn four_rows(at: u32, step: u32) -> mat4x4<f32> {
    return mat4x4<f32>(matrix[at], matrix[at + step], matrix[at + 2u * step], matrix[at + 3u * step]);
}

fn finish(sum: vec4<f32>, group: u32, position: u32, quad: u32) {
    if position >= params.positions {
        return;
    }
    let to = target_of(place_of(position));
    put(sum.x, group, to, 4u * quad);
    put(sum.y, group, to, 4u * quad + 1u);
    put(sum.z, group, to, 4u * quad + 2u);
    put(sum.w, group, to, 4u * quad + 3u);
}

fn put(sum: f32, group: u32, to: u32, channel: u32) {
    if channel < params.made {
        let of_all = group * params.made + channel;
        var x = sum;
        if params.biased != 0u {
            x += bias[of_all];
        }
        out[to + of_all * params.to_channel] = x;
    }
}
