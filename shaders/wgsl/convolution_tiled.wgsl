// out = sum over taps and channels of what the kernel sees times the matrix, + bias
//
// Operands as for convolution.
// Grid: a workgroup per 64 positions and 64 channels, counted row after row of the grid; z over groups. 64 invocations make a
// tile of 64 channels x 64 positions, 8 x 8 in the registers of each.
// Workgroup memory: 8.5 KiB, two slices of 8 channels at a tap.
// Accumulation order: channels ascending, tap by tap, one sum per number.
// How it got fast: (1) as gemm_tiled: half of the invocations load the matrix, the others what the kernel sees, while the
// slice before it is used; neighbours store neighbouring positions.

//#include "convolution_params"
//#include "product_tile"

@group(0) @binding(0) var<storage, read> copy: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> matrix: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

// What an invocation loads of each slice: 4 x 4 numbers.
struct Block {
    of_matrix: bool,
    // Which four channels or positions of the tile these are, and the first of their depths in the slice, in vec4.
    quad: u32,
    half: u32,
    // Where they are in memory, but for the tap.
    lines: vec4<u32>,
}

// A tap, and the first vec4 of channels of a slice there.
struct Slice {
    z: u32,
    y: u32,
    x: u32,
    quad: u32,
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let quads = (params.made + 3u) / 4u;
    let across = (params.made + TILE - 1u) / TILE;
    let number = workgroup.y * workgroups.x + workgroup.x;
    let top = number % across * TILE;
    let left = number / across * TILE;
    let group = workgroup.z;
    let lane = local % 32u;
    var block = Block(local < 32u, lane % 16u, lane / 16u, vec4(0u));
    if block.of_matrix {
        block.lines = vec4(min(top / 4u + block.quad, quads - 1u));
    } else {
        let first = left + 4u * block.quad;
        block.lines = group * params.quads + vec4(
            source_at(first),
            source_at(first + 1u),
            source_at(first + 2u),
            source_at(first + 3u),
        );
    }
    let place = 4u * block.half * PITCH + block.quad + select(COLUMNS, 0u, block.of_matrix);
    let count = params.taps_z * params.taps_y * params.taps_x * ((params.quads + 1u) / 2u);
    let row_quad = local / 8u;
    let column_quad = local % 8u;
    var sums = Sums();
    var at = Slice(0u, 0u, 0u, 0u);
    var next = mat4x4<f32>();
    if count > 0u {
        next = load(block, at, group, quads);
    }
    var slice = 0u;
    for (var i = 0u; i < count; i++) {
        put(next, slice + place, PITCH);
        workgroupBarrier();
        // The next one is on its way while this slice is used.
        at = behind(at);
        if i + 1u < count {
            next = load(block, at, group, quads);
        }
        let x = slice + row_quad;
        let y = slice + COLUMNS + column_quad;
        add_two(&sums, x, y, false);
        add_two(&sums, x + 2u * PITCH, y + 2u * PITCH, false);
        add_two(&sums, x + 4u * PITCH, y + 4u * PITCH, false);
        add_two(&sums, x + 6u * PITCH, y + 6u * PITCH, false);
        slice = SECOND - slice;
    }
    // Half of the tile at a time through workgroup memory; each invocation stores the numbers of one position.
    let position = left + local;
    let to = target_of(place_of(position));
    for (var half = 0u; half < 2u; half++) {
        workgroupBarrier();
        put(half_of(sums.upper_left, sums.lower_left, half), 64u * row_quad + column_quad, 16u);
        put(half_of(sums.upper_right, sums.lower_right, half), 64u * row_quad + column_quad + 8u, 16u);
        workgroupBarrier();
        if position < params.positions {
            for (var row = 0u; row < 32u; row++) {
                let channel = top + 32u * half + row;
                if channel < params.made {
                    let of_all = group * params.made + channel;
                    var sum = pick(slices[row * 16u + local / 4u], local % 4u);
                    if params.biased != 0u {
                        sum += bias[of_all];
                    }
                    out[to + of_all * params.to_channel] = sum;
                }
            }
        }
    }
}

// Where a position reads; those beyond the last repeat it, and are not stored.
fn source_at(position: u32) -> u32 {
    return source_of(place_of(min(position, params.positions - 1u)));
}

fn behind(at: Slice) -> Slice {
    var next = at;
    next.quad += 2u;
    if next.quad >= params.quads {
        next.quad = 0u;
        next.x++;
        if next.x == params.taps_x {
            next.x = 0u;
            next.y++;
            if next.y == params.taps_y {
                next.y = 0u;
                next.z++;
            }
        }
    }
    return next;
}

// A block's numbers, a depth in each column; zeros where there is no channel.
fn load(block: Block, at: Slice, group: u32, quads: u32) -> mat4x4<f32> {
    let quad = at.quad + block.half;
    if quad >= params.quads {
        return mat4x4<f32>();
    }
    if block.of_matrix {
        let tap = params.tap + at.z * params.tap_z + at.y * params.tap_y + at.x * params.tap_x;
        let depth = ((group * params.all_taps + tap) * params.quads + quad) * 4u;
        let first = depth * quads + block.lines.x;
        return mat4x4<f32>(
            matrix[first],
            matrix[first + quads],
            matrix[first + 2u * quads],
            matrix[first + 3u * quads],
        );
    }
    let x = block.lines + at.z * params.step_z + at.y * params.step_y + at.x * params.step_x + quad;
    return transpose(mat4x4<f32>(copy[x.x], copy[x.y], copy[x.z], copy[x.w]));
}
