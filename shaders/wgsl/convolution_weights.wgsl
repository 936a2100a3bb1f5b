// parts = for each tap and channel that the kernel sees, and each channel made, the sum over a piece of the positions of what
// it sees there times the gradient
//
// copy: images with their channels last, from convolution_copy. gradient: that of the output, by the same kernel; where its
// numbers lie is what the parameters else say of the output, in vec4. parts [pieces, groups, taps, 4 quads, made] in vec4 of
// made: row-major.
// Grid: a workgroup per 64 rows of taps and channels, 16 made channels and piece, counted row after row of the grid; z over
// groups. An invocation makes 8 rows of 16 channels.
// Workgroup memory: none, and so no barriers: they are dear where threads are emulated by a CPU.
// Accumulation order: positions ascending, one sum per number; convolution_weights_total adds the pieces up.
// How it got fast: (1) 6 loads for 128 products, and no division in the loop: 1.8 times as fast as the tiled text on lavapipe.

//#include "convolution_params"
//#include "convolution_reads"
//#include "pick"

@group(0) @binding(0) var<storage, read> copy: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gradient: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let quads = (params.made + 3u) / 4u;
    // In vec4 of four rows.
    let rows = params.all_taps * params.quads;
    let across = (quads + 3u) / 4u;
    let down = (rows + 15u) / 16u;
    let number = workgroup.y * workgroups.x + workgroup.x;
    let column = number % across * 4u;
    let row = number / across % down * 16u + local * 2u;
    let piece = number / across / down;
    let begin = piece * params.piece;
    let end = min(begin + params.piece, params.positions);
    if begin >= end || row >= rows {
        return;
    }
    let group = workgroup.z;
    // What lies outside is computed as a repetition of the last, and not stored.
    let columns = group * quads + min(column + vec4(0u, 1u, 2u, 3u), vec4(quads - 1u));
    let upper = group * params.quads + reads(row);
    let lower = group * params.quads + reads(min(row + 1u, rows - 1u));
    // Each holds four channels of four rows: row i is sum[i].
    var sum00 = mat4x4<f32>();
    var sum01 = mat4x4<f32>();
    var sum02 = mat4x4<f32>();
    var sum03 = mat4x4<f32>();
    var sum10 = mat4x4<f32>();
    var sum11 = mat4x4<f32>();
    var sum12 = mat4x4<f32>();
    var sum13 = mat4x4<f32>();
    var place = place_of(begin);
    for (var position = begin; position < end; position++) {
        let x = source_of(place);
        let y = columns + target_of(place);
        let x0 = copy[upper + x];
        let x1 = copy[lower + x];
        let y0 = gradient[y.x];
        sum00 += outer(x0, y0);
        sum10 += outer(x1, y0);
        let y1 = gradient[y.y];
        sum01 += outer(x0, y1);
        sum11 += outer(x1, y1);
        let y2 = gradient[y.z];
        sum02 += outer(x0, y2);
        sum12 += outer(x1, y2);
        let y3 = gradient[y.w];
        sum03 += outer(x0, y3);
        sum13 += outer(x1, y3);
        place.w++;
        if place.w == params.columns {
            place = vec4(place.xy, place.z + 1u, 0u);
            if place.z == params.rows {
                place = vec4(place.x, place.y + 1u, 0u, 0u);
                if place.y == params.depth {
                    place = vec4(place.x + 1u, 0u, 0u, 0u);
                }
            }
        }
    }
    let first = (piece * workgroups.z + group) * 4u * rows + 4u * row;
    // A loop that compilers cannot unroll: what follows would be there many times, and take them long.
    let count = min(4u, 4u * params.made);
    for (var i = 0u; i < count; i++) {
        let at = (first + i) * quads + column;
        let rest = quads - column;
        parts[at] = pick(sum00, i);
        if rest > 1u {
            parts[at + 1u] = pick(sum01, i);
        }
        if rest > 2u {
            parts[at + 2u] = pick(sum02, i);
        }
        if rest > 3u {
            parts[at + 3u] = pick(sum03, i);
        }
        if row + 1u < rows {
            let below = at + 4u * quads;
            parts[below] = pick(sum10, i);
            if rest > 1u {
                parts[below + 1u] = pick(sum11, i);
            }
            if rest > 2u {
                parts[below + 2u] = pick(sum12, i);
            }
            if rest > 3u {
                parts[below + 3u] = pick(sum13, i);
            }
        }
    }
}

fn outer(x: vec4<f32>, y: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(x.x * y, x.y * y, x.z * y, x.w * y);
}
